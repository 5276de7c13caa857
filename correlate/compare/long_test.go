package compare_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// day is so many seconds of a server whose load swings, with two requests a second.
func day(seconds int, seed uint64, slower float64) *compare.Recording {
	r := compare.New(compare.Config{Name: "day", Targets: []timeline.Target{{Name: "main"}}})
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range seconds {
		span := timeline.Span{Start: at(time.Duration(i) * time.Second), End: at(time.Duration(i+1) * time.Second)}
		batch := 20 + 15*rng.Float64()
		tpot := slower * (0.006 + 0.0001*batch) * (1 + 0.01*rng.NormFloat64())
		steps := 1 / tpot
		c := correlate.Cell{
			Target: "main", Span: span, Data: span, Decode: true, Batch: timeline.Known(batch), EngineTPOT: timeline.Known(tpot),
			WindowTPOT: timeline.Absent("no probe"), ContextSum: timeline.Known(batch * 800), OutputTokens: timeline.Known(batch * steps),
			Steps: timeline.Known(steps), PromptTokens: timeline.Known(1000), DRAMBytes: timeline.Known(1e12), Coverage: timeline.Absent("no probe"),
		}
		r.AddCell(&c)
		for k := range 2 {
			p := correlate.Phase{Request: timeline.Request{
				Target: "main", Sent: span.Start, First: span.Start.Add(time.Duration(k) * 100 * time.Millisecond), Last: span.End, Done: span.End,
			}}
			p.Latency.TPOT, p.Latency.N = timeline.Known(tpot), 100
			r.AddPhase(&p)
		}
	}
	return r
}

func TestADayIsThinnedEvenlyAndItsRatioStays(t *testing.T) {
	const seconds = 140_000 // more than is kept
	r := against(t, day(seconds, 1, 1), day(3600, 2, 1.1))
	near(t, "time", r.Time.Value.Value, 1.1, 0.005)
	if r.Verdict != compare.Regression || r.A.DecodeS < 60_000 || r.A.DecodeS > 80_000 {
		t.Errorf("of %d s %.0f are compared: %s", seconds, r.A.DecodeS, figures(r))
	}
}

func BenchmarkDays(b *testing.B) {
	x, y := day(86400, 1, 1), day(86400, 2, 1.1)
	for b.Loop() {
		against(b, x, y)
	}
}
