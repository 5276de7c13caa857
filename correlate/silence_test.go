package correlate_test

import (
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// counters is one reading of an idle GPU.
func counters(at timeline.Instant) *timeline.Sample {
	s := timeline.Sample{Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}}
	for _, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.DRAMUtil, timeline.TensorUtil} {
		s.Put(c, 0)
	}
	return &s
}

// TestARequestOfADeadObserverEnds plays streams whose observer dies: their tokens stop and their end is never told, while
// counters go on. They decode no more after ten seconds of silence, and are concluded two minutes later, as unfinished.
func TestARequestOfADeadObserverEnds(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "t"}}
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100()})
	for ref := range uint64(5) {
		e.Open(&timeline.Request{Ref: ref + 1, Target: "t", Sent: t0, Streaming: true})
	}
	e.Open(&timeline.Request{Ref: 9, Target: "t", Sent: t0, Streaming: true}) // and one that never got a token
	var out correlate.Output
	told := map[uint64]timeline.Instant{}
	play := func(from, to time.Duration) {
		for d := from; d < to; d += 100 * time.Millisecond {
			at := t0.Add(d)
			e.AddSample(counters(at))
			if d < 3*time.Second {
				for ref := range uint64(5) {
					e.Token(timeline.TokenEvent{Ref: ref + 1, At: at, After: at, Tokens: 4, Source: timeline.CountIDs, Kind: timeline.KindContent})
				}
			}
			if d%time.Second != 0 {
				continue
			}
			e.Advance(&out, at.Add(-2*time.Second))
			for _, p := range out.Phases {
				if told[p.Request.Ref] == 0 {
					told[p.Request.Ref] = at
				}
			}
		}
	}
	play(0, 2*time.Minute)
	decoded, idle := 0.0, 0
	for _, c := range out.Cells {
		decoded += c.Decoding
		if !c.Decode {
			idle++
		}
	}
	if decoded < 14 || decoded > 5*(3+11) {
		t.Errorf("five streams of three seconds decode for %.0f stream-seconds, want at most ten more each", decoded)
	}
	if idle < 90 {
		t.Errorf("%d cells of two minutes know that nothing decodes", idle)
	}
	if len(told) > 0 {
		t.Errorf("concluded %v within two minutes", told)
	}
	play(2*time.Minute, 13*time.Minute)
	for ref, want := range map[uint64]time.Duration{1: 133 * time.Second, 5: 133 * time.Second, 9: 12 * time.Minute} {
		if got := told[ref].Sub(t0); got < want || got > want+5*time.Second {
			t.Errorf("request %d was concluded after %v, want %v", ref, got, want)
		}
	}
	if n := e.Stats().LostRequests; n != 6 || len(out.Phases) != 6 {
		t.Errorf("%d requests are lost and %d phases told, want 6 and 6", n, len(out.Phases))
	}
	for _, p := range out.Phases {
		if p.Request.Status != timeline.StatusUnfinished || p.Request.Done != 0 {
			t.Errorf("request %d: status %v, done %d", p.Request.Ref, p.Request.Status, p.Request.Done)
		}
		if p.Request.Ref != 9 && (p.Request.OutputTokens != 120 || p.Request.Last != t0.Add(2900*time.Millisecond)) {
			t.Errorf("request %d: %d tokens, the last at %v", p.Request.Ref, p.Request.OutputTokens, p.Request.Last.Sub(t0))
		}
	}
}

// TestALostRequestThatEndsAfterAll plays a stream that stalls for three minutes: it is given up on, and its end still
// tells its whole latency.
func TestALostRequestThatEndsAfterAll(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "t"}}
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100()})
	e.Open(&timeline.Request{Ref: 1, Target: "t", Sent: t0, Streaming: true})
	var out correlate.Output
	token := func(at timeline.Instant) {
		e.Token(timeline.TokenEvent{Ref: 1, At: at, After: at, Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
	}
	first, last := t0.Add(time.Second), t0.Add(200*time.Second)
	token(first)
	for d := time.Duration(0); d < 210*time.Second; d += 100 * time.Millisecond {
		at := t0.Add(d)
		e.AddSample(counters(at))
		if at == last {
			token(last)
			e.Close(&timeline.Request{
				Ref: 1, Target: "t", Sent: t0, First: first, Last: last, Done: last, Streaming: true,
				OutputTokens: 2, FirstTokens: 1, Counted: timeline.CountIDs, Events: 2,
			})
		}
		if d%time.Second == 0 {
			e.Advance(&out, at.Add(-2*time.Second))
		}
	}
	e.Flush(&out)
	if len(out.Phases) != 2 {
		t.Fatalf("%d phases, want the one that was given up and the one that ended", len(out.Phases))
	}
	p := out.Phases[1]
	if got := p.Latency.TPOT; !got.OK() || got.Value != 199 {
		t.Errorf("TPOT %+v, want 199 s", got)
	}
	if p.Request.Flags&timeline.FlagEventsDropped == 0 {
		t.Error("nothing says that events are missing")
	}
}
