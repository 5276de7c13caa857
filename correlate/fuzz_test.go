package correlate_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// FuzzEngine makes calls in any order with any instants and values, and holds what is true of all output.
func FuzzEngine(f *testing.F) {
	seed := make([]byte, 0, 400)
	for i := range 50 {
		seed = append(seed, byte(i*7), byte(i), byte(i*3), byte(255-i), byte(i*11), byte(i%5))
	}
	f.Add(seed)
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Fuzz(func(t *testing.T, calls []byte) {
		cfg := correlate.DefaultConfig()
		cfg.MaxRequests, cfg.MaxTokens, cfg.MaxReadings = 20, 100, 30
		e := correlate.New(cfg)
		e.SetGPUs([]timeline.GPU{h100()})
		var out correlate.Output
		closed := map[uint64]int{}
		for len(calls) >= 6 {
			one(e, &out, calls[:6], closed)
			calls = calls[6:]
		}
		e.Flush(&out)
		last := timeline.Instant(math.MinInt64)
		for i := range out.Cells {
			c := &out.Cells[i]
			if c.Span.Start < last {
				t.Fatalf("cell %+v begins before %d", c.Span, last)
			}
			last = c.Span.Start
			if c.Verdict.OK() && math.Abs(c.Verdict.Shares.Sum()-1) > 1e-9 {
				t.Fatalf("shares %+v", c.Verdict.Shares)
			}
			if c.Tokens < 0 || c.Active < 0 || c.Decoding < 0 || math.IsNaN(c.Verdict.D) {
				t.Fatalf("cell %+v", c)
			}
		}
		phases := map[uint64]int{}
		for i := range out.Phases {
			r := &out.Phases[i].Request
			if r.Status == timeline.StatusUnfinished && r.Done == 0 {
				continue // given up
			}
			ref := r.Ref
			if phases[ref]++; phases[ref] > closed[ref] {
				t.Fatalf("request %d closed %d times, has %d phases", ref, closed[ref], phases[ref])
			}
		}
	})
}

// one makes the call that six bytes stand for.
func one(e *correlate.Engine, out *correlate.Output, b []byte, closed map[uint64]int) {
	now := t0.Add(time.Duration(binary.LittleEndian.Uint16(b[1:])) * time.Millisecond)
	ref := uint64(b[3] % 32)
	value := float64(b[4]) / 200
	switch b[0] % 9 {
	case 0:
		e.Open(&timeline.Request{Ref: ref, Sent: now, Target: "vllm"})
	case 1, 2:
		e.Token(timeline.TokenEvent{Ref: ref, At: now, Tokens: int32(b[4] % 4), Source: timeline.CountSource(b[5] % 7), Kind: timeline.KindContent})
	case 3:
		closed[ref]++
		e.Close(&timeline.Request{
			Ref: ref, Target: "vllm", Sent: now.Add(-time.Duration(b[4]) * 10 * time.Millisecond), First: now, Last: now.Add(time.Duration(b[5]) * 20 * time.Millisecond),
			Done: now.Add(time.Duration(b[5]) * 20 * time.Millisecond), OutputTokens: int(b[4]), Counted: timeline.CountFinal, FirstTokens: 1, Events: int(b[5] % 9),
		})
	case 4, 5:
		s := timeline.Sample{Over: timeline.Span{Start: now, End: now.Add(time.Duration(b[5]) * time.Millisecond)}}
		for c := range timeline.Counter(timeline.NumCounters) {
			if (int(b[3])>>(c%7))&1 == 0 {
				s.Put(c, value)
			}
		}
		e.AddSample(&s)
	case 6:
		s := timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: now, End: now}}
		for c := range timeline.EngineCounter(timeline.NumEngineCounters) {
			s.Put(c, float64(b[4])*float64(b[5]%3))
		}
		e.AddEngine(&s)
	case 7:
		e.AddEvent(timeline.Event{At: now, Kind: []timeline.EventKind{timeline.EventSuspend, timeline.EventGap, timeline.EventEngineUp}[b[5]%3], GPU: timeline.NoGPU})
	case 8:
		e.Advance(out, now)
	}
}
