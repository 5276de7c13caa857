package correlate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestHotPathsDoNotAllocate(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	var out correlate.Output
	memoryBound().feed(e, &out, 5*time.Second)
	at := t0.Add(6 * time.Second)
	e.Open(&timeline.Request{Ref: 7, Target: "vllm", Sent: at})
	for k := range 2000 {
		e.Token(timeline.TokenEvent{Ref: 7, At: at.Add(time.Duration(k)), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
	}
	s := timeline.Sample{}
	s.Put(timeline.DRAMUtil, 0.5)
	s.Put(timeline.SMClock, 1e9)
	s.Put(timeline.Energy, 1)
	scrape := running(at, 1, 8)
	k := 0
	if n := testing.AllocsPerRun(200, func() {
		k++
		now := at.Add(time.Duration(k) * 10 * time.Millisecond)
		e.Token(timeline.TokenEvent{Ref: 7, At: now, Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
		s.Over = timeline.Span{Start: now, End: now.Add(100 * time.Millisecond)}
		e.AddSample(&s)
		scrape.Over = s.Over
		e.AddEngine(scrape)
	}); n != 0 {
		t.Errorf("%v allocations for a token, a sample and a scrape, want none", n)
	}
}

// BenchmarkTokens measures a second of tokens on many streams, with the cells they fall into.
func BenchmarkTokens(b *testing.B) {
	for _, streams := range []int{16, 256, 2048} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			e := newEngine(timeline.Target{}, h100())
			f := feeder{steady: memoryBound(), e: e}
			at := t0
			var out correlate.Output
			const tokens = 50 // a second and stream
			refs := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				for i := range streams {
					r := refs + uint64(i) + 1
					e.Open(&timeline.Request{Ref: r, Target: "vllm", Sent: at})
				}
				for k := range tokens {
					for i := range streams {
						e.Token(timeline.TokenEvent{
							Ref: refs + uint64(i) + 1, At: at.Add(time.Duration(k) * 20 * time.Millisecond), Tokens: 1,
							Source: timeline.CountIDs, Kind: timeline.KindContent,
						})
					}
				}
				for k := range 9 {
					start := at.Add(time.Duration(k) * 110 * time.Millisecond)
					f.sample(0, timeline.Span{Start: start, End: start.Add(110 * time.Millisecond)})
				}
				f.scrape(at)
				for i := range streams {
					r := refs + uint64(i) + 1
					e.Close(&timeline.Request{
						Ref: r, Target: "vllm", Sent: at, First: at, Last: at.Add(980 * time.Millisecond), Done: at.Add(980 * time.Millisecond),
						OutputTokens: tokens, Counted: timeline.CountIDs, FirstTokens: 1, Events: tokens,
					})
				}
				refs += uint64(streams)
				at = at.Add(time.Second)
				out.Reset()
				e.Advance(&out, at.Add(-2*time.Second))
			}
			b.ReportMetric(float64(streams*tokens)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkToken measures one token event alone.
func BenchmarkToken(b *testing.B) {
	e := newEngine(timeline.Target{}, h100())
	for i := range 256 {
		e.Open(&timeline.Request{Ref: uint64(i), Target: "vllm", Sent: t0})
	}
	k := 0
	b.ReportAllocs()
	for b.Loop() {
		k++
		e.Token(timeline.TokenEvent{Ref: uint64(k % 256), At: t0.Add(time.Duration(k)), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
	}
}

// BenchmarkAdvance measures closing a second of a node with eight GPUs and long-running streams.
func BenchmarkAdvance(b *testing.B) {
	for _, streams := range []int{16, 256, 2048} {
		b.Run(fmt.Sprintf("gpus=8/streams=%d", streams), func(b *testing.B) {
			var gpus []timeline.GPU
			for i := range 8 {
				g := h100()
				g.UUID, g.Index = fmt.Sprintf("GPU-%d", i), i
				gpus = append(gpus, g)
			}
			e := newEngine(timeline.Target{TP: 8, Model: "Llama-3.1-70B", DType: "fp8"}, gpus...)
			f := feeder{steady: memoryBound(), e: e}
			for i := range streams {
				e.Open(&timeline.Request{Ref: uint64(i), Target: "vllm", Sent: t0})
				e.Token(timeline.TokenEvent{Ref: uint64(i), At: t0.Add(time.Millisecond), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
			}
			at := t0
			var out correlate.Output
			b.ReportAllocs()
			for b.Loop() {
				for k := range 9 {
					start := at.Add(time.Duration(k) * 110 * time.Millisecond)
					for g := range 8 {
						f.sample(g, timeline.Span{Start: start, End: start.Add(110 * time.Millisecond)})
					}
				}
				f.scrape(at)
				at = at.Add(time.Second)
				out.Reset()
				e.Advance(&out, at.Add(-2*time.Second))
			}
		})
	}
}
