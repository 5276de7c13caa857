package correlate_test

import (
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestARequestOfADeadObserverDoesNotDecodeForEver plays streams whose observer dies: their tokens stop and their end is
// never told, while counters go on.
func TestARequestOfADeadObserverDoesNotDecodeForEver(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "t"}}
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100()})
	for ref := range uint64(5) {
		e.Open(&timeline.Request{Ref: ref + 1, Target: "t", Sent: t0, Streaming: true})
	}
	e.Open(&timeline.Request{Ref: 9, Target: "t", Sent: t0, Streaming: true}) // and one that never got a token
	var out correlate.Output
	for i := range 1200 {
		at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
		s := timeline.Sample{Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}}
		for _, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.DRAMUtil, timeline.TensorUtil} {
			s.Put(c, 0)
		}
		e.AddSample(&s)
		if i < 30 {
			for ref := range uint64(5) {
				e.Token(timeline.TokenEvent{Ref: ref + 1, At: at, After: at, Tokens: 4, Source: timeline.CountIDs, Kind: timeline.KindContent})
			}
		}
		if i%10 == 0 {
			e.Advance(&out, at.Add(-2*time.Second))
		}
	}
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
}
