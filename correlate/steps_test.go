package correlate_test

import (
	"math"
	"testing"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestStepsAreCountedFromTokens plays scenarios to an engine that does not count its steps: where the arrivals of tokens part
// into steps, the cells hold as many as there were, also where half of the requests are not seen.
func TestStepsAreCountedFromTokens(t *testing.T) {
	for _, name := range []string{"decode_b64", "decode_b16", "prefill_mixed", "batch_growth"} {
		for _, seen := range []float64{1, 0.5} {
			p := player{tl: load(t, "scenario/testdata/"+name+".scenario"), seen: seen, mute: true}
			p.targets = p.tl.Targets()
			_, out := p.run()
			var counted, truth float64
			cells := 0
			for i := range out.Cells {
				c := &out.Cells[i]
				if !c.Step.Holds || c.Decoding < 1 {
					continue
				}
				cells++
				counted += c.Steps.Value
				from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
				truth += float64(p.tl.Engine(0, to).Steps - p.tl.Engine(0, from).Steps)
				if c.Step.Source != steps.Arrivals || !c.Steps.OK() {
					t.Errorf("%s: cell of %s steps, %+v", name, c.Step.Source, c.Steps)
				}
			}
			t.Logf("%s, %.0f %% seen: %.0f steps in %d of %d cells, in truth %.0f", name, 100*seen, counted, cells, len(out.Cells), truth)
			if cells < 5 || math.Abs(counted/truth-1) > 0.03 {
				t.Errorf("%s, %.0f %% seen: %.0f steps in %d cells, in truth %.0f", name, 100*seen, counted, cells, truth)
			}
		}
	}
}

// TestAMiscountOfStepsIsTold plays an engine that counts each step twice.
func TestAMiscountOfStepsIsTold(t *testing.T) {
	told := func(miscount float64) (n, of int) {
		p := player{tl: load(t, "scenario/testdata/decode_b64.scenario"), seen: 1, miscount: miscount}
		p.targets = p.tl.Targets()
		_, out := p.run()
		for i := range out.Cells[2 : len(out.Cells)-2] { // at the ends scrapes cover a part
			c := &out.Cells[2+i]
			if !c.Batch.OK() || c.Batch.Value < 1 || !c.Step.Holds {
				continue
			}
			of++
			if c.StepConflict != "" {
				n++
			}
			if c.Step.Source != steps.Engine {
				t.Errorf("the cell's step is from %s, want the engine's count", c.Step.Source)
			}
		}
		return n, of
	}
	if n, of := told(0); of < 5 || n > 0 {
		t.Errorf("%d of %d cells contradict a true count", n, of)
	}
	if n, of := told(2); of < 5 || n < of*9/10 {
		t.Errorf("%d of %d cells contradict a count that is double", n, of)
	}
}

// TestACellWithoutTokensHasNoStep gives an engine counters alone.
func TestACellWithoutTokensHasNoStep(t *testing.T) {
	e := correlate.New(correlate.DefaultConfig())
	e.SetGPUs([]timeline.GPU{h100()})
	e.AddSample(counters(t0))
	var out correlate.Output
	e.Flush(&out)
	for i := range out.Cells {
		if c := &out.Cells[i]; c.Step.Holds || c.Step.Reason == "" {
			t.Errorf("step %+v", c.Step)
		}
	}
}
