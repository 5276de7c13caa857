package correlate_test

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// TestStagesAndCopiesThatWaitAreNotBlamedOnTheHost plays a pipeline and copies in lockstep of which most have nothing to do:
// neither host nor launches are named, and the reason is.
func TestStagesAndCopiesThatWaitAreNotBlamedOnTheHost(t *testing.T) {
	for name, why := range map[string]string{"pipeline": verdict.ReasonPipeline, "lockstep": verdict.ReasonIdleRank} {
		tl := load(t, "scenario/testdata/groups/"+name+".scenario")
		o, out := observe(tl, scenario.Instruments{})
		p := tl.Phases()[0]
		right, all := 0, 0
		for i := range out.Cells {
			c := &out.Cells[i]
			if c.Span.Start < o.Origin.Add(p.Span.From) || c.Span.End > o.Origin.Add(p.Span.To) {
				continue
			}
			all++
			switch v := &c.Verdict; {
			case v.Label == timeline.Host || v.Label == timeline.Launch || v.Label == timeline.HostOrLaunch:
				t.Errorf("%s: said %s (%s)", name, v.Label, v.Reason)
			case v.Reason == why:
				right++
			}
			if c.ModelledBytes.OK() {
				t.Errorf("%s: bytes are modelled of what the model does not know", name)
			}
		}
		t.Logf("%s: %d of %d cells say that %s", name, right, all, why)
		if all < 5 || right < all/2 {
			t.Errorf("%s: %d of %d cells say that %s", name, right, all, why)
		}
	}
}
