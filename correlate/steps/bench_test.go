package steps_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// BenchmarkEstimator feeds seconds of tokens and cuts them, in the order in which they came and a little out of it.
func BenchmarkEstimator(b *testing.B) {
	for _, batch := range []int{8, 128, 512} {
		for _, swap := range []bool{false, true} {
			b.Run(fmt.Sprintf("batch=%d/sorted=%v", batch, !swap), func(b *testing.B) {
				p := play{batch: batch, step: constant(10 * time.Millisecond), jitter: uniform(time.Millisecond), stretch: 4 * time.Second}
				tokens, _ := p.run()
				if swap {
					for i := 7; i < len(tokens); i += 16 {
						tokens[i-3], tokens[i] = tokens[i], tokens[i-3]
					}
				}
				e := steps.New(steps.DefaultConfig())
				span := timeline.Instant(5 * time.Second)
				feed := func(lap int) {
					shift := timeline.Instant(lap) * span
					end := begin + shift + timeline.Instant(time.Second)
					for _, t := range tokens {
						t.At += shift
						if t.At >= end {
							e.Cut(steps.Cut{Over: timeline.Span{Start: end - timeline.Instant(time.Second), End: end}})
							end += timeline.Instant(time.Second)
						}
						e.Add(t)
					}
				}
				feed(0)
				lap := 0
				b.ReportAllocs()
				for b.Loop() {
					lap++
					feed(lap)
				}
				b.ReportMetric(float64(lap)*float64(len(tokens))/b.Elapsed().Seconds()/1e6, "Mevents/s")
			})
		}
	}
}

// BenchmarkWitness is what one question costs at a full history.
func BenchmarkWitness(b *testing.B) {
	w := world{n: steps.DefaultHistory, noise: 0.02, prompt: 200, law: readingLaw}
	h := w.history(1)
	b.ReportAllocs()
	for b.Loop() {
		h.Witness(dense)
	}
}
