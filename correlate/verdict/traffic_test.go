package verdict_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// TestARunMayKnowMoreOfTheTrafficThanItsCells judges one cell under all that can be known of its traffic, and again by
// what the run knows: the two agree, whatever the cell was judged by first.
func TestARunMayKnowMoreOfTheTrafficThanItsCells(t *testing.T) {
	unknown := timeline.Absent("no scrapes over this time")
	for _, coalesced := range []bool{false, true} {
		for _, seen := range []timeline.Measure{timeline.Known(1), timeline.Known(0.6), unknown} {
			for _, run := range []timeline.Measure{timeline.Known(1), timeline.Known(0.83), unknown} {
				in := cellOf(coalesced, seen)
				v := verdict.Judge(&in)
				before := slices.Clone(v.Caps)
				got := v.Seen(verdict.Unseen(run))
				in = cellOf(coalesced, run)
				want := verdict.Judge(&in)
				got.Caps, want.Caps = slices.Sorted(slices.Values(got.Caps)), slices.Sorted(slices.Values(want.Caps))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("coalesced %v, cell %+v, run %+v (-judged +seen):\n%s", coalesced, seen, run, diff)
				}
				if !slices.Equal(v.Caps, before) {
					t.Errorf("the cell's own clauses have changed from %q to %q", before, v.Caps)
				}
			}
		}
	}
}

func cellOf(coalesced bool, coverage timeline.Measure) verdict.Input {
	return without(cell(0.9, 0.1, 0.95, 1), func(in *verdict.Input) { in.Coalesced, in.Coverage = coalesced, coverage })
}
