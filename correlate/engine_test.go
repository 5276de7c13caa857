package correlate_test

import (
	"math"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func memoryBound() steady {
	return steady{
		dram: 0.78, tensor: 0.12, sm: 0.85, graphics: 0.98, clock: 1980e6, streams: 8, seen: 8,
		tpot: 8 * time.Millisecond, context: 2000, steps: true,
	}
}

func run(t *testing.T, s steady, target timeline.Target, d time.Duration) correlate.Output {
	t.Helper()
	var out correlate.Output
	s.feed(newEngine(target, h100()), &out, d)
	if len(out.Cells) == 0 {
		t.Fatal("no cells")
	}
	return out
}

// middle is a cell away from both ends.
func middle(out correlate.Output) *correlate.Cell { return &out.Cells[len(out.Cells)/2] }

func TestMemoryBoundNode(t *testing.T) {
	out := run(t, memoryBound(), timeline.Target{}, 30*time.Second)
	c := middle(out)
	if c.Verdict.Label != timeline.Memory || c.Verdict.Confidence != timeline.Low || c.Verdict.Ceiling != timeline.High {
		t.Errorf("cell: got %s, confidence %s, ceiling %s (%v); want memory, low, high", c.Verdict.Label, c.Verdict.Confidence, c.Verdict.Ceiling, c.Verdict.Caps)
	}
	near(t, "coverage", c.Coverage.Value, 1, 0.02)
	near(t, "batch", c.Batch.Value, 8, 1e-6)
	near(t, "decoding", c.Decoding, 8, 1e-6)
	near(t, "window TPOT", c.WindowTPOT.Value, 0.008, 1e-4)
	near(t, "tokens", c.Tokens, 1000, 10)
	near(t, "context", c.ContextSum.Value, 16000, 1)
	near(t, "steps", c.Steps.Value, 125, 0.1)
	near(t, "dram bytes", c.DRAMBytes.Value, 0.78*3350e9, 1e9)
	if len(out.Phases) != 8 {
		t.Fatalf("got %d phases, want 8", len(out.Phases))
	}
	for _, p := range out.Phases {
		if p.Label != timeline.Memory || p.Confidence != timeline.High || p.Grade != timeline.Shared {
			t.Errorf("phase: got %s, %s, %s; want memory, high, shared", p.Label, p.Confidence, p.Grade)
		}
		near(t, "concurrency", p.Concurrency.Value, 8, 1e-3)
		near(t, "phase TPOT", p.Latency.TPOT.Value, 0.008, 1e-6)
		near(t, "phase dram", p.Counters[timeline.DRAMUtil].Value, 0.78, 1e-9)
		if p.Windows < 280 || p.Windows > 286 {
			t.Errorf("whole windows: got %d, want about 285", p.Windows)
		}
	}
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s: got %v, want %v within %v", what, got, want, within)
	}
}
