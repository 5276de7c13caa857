package correlate_test

import (
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestWholeRepliesCountAsSeen plays an engine of 100 tokens a second whose clients do not stream: each reply of 100
// tokens takes a second, and none has an event.
func TestWholeRepliesCountAsSeen(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "vllm", EngineURL: "http://127.0.0.1:8000"}}
	e := correlate.New(cfg)
	var out correlate.Output
	for i := range 40 {
		at := t0.Add(time.Duration(i) * time.Second)
		s := timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: at, End: at.Add(time.Millisecond)}}
		s.Put(timeline.OutputTotal, float64(100*i))
		s.Put(timeline.Running, 1)
		e.AddEngine(&s)
		r := timeline.Request{Ref: uint64(i + 1), Target: "vllm", Sent: at}
		e.Open(&r)
		r.Head, r.Done = at.Add(time.Second), at.Add(time.Second)
		r.HTTPStatus, r.OutputTokens, r.Counted = 200, 100, timeline.CountFinal
		e.Close(&r)
		e.Advance(&out, at.Add(-2*time.Second))
	}
	e.Flush(&out)
	seen := 0
	for _, c := range out.Cells[2 : len(out.Cells)-4] {
		if c.Tokens > 0 && !c.TokensEstimated {
			t.Errorf("tokens of whole replies at %v pass for timed ones", c.Span)
		}
		if c.Coverage.OK() {
			seen++
			near(t, "coverage", c.Coverage.Value, 1, 0.1)
		}
	}
	if seen < 20 {
		t.Errorf("%d cells know their coverage, want 20 at least", seen)
	}
}
