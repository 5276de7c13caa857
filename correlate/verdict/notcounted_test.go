package verdict_test

import (
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// TestARunIsMixedByWhatHeldLonger keeps what nobody counted apart from what was measured.
func TestARunIsMixedByWhatHeldLonger(t *testing.T) {
	counted := cell(0.5, 0.4, 0.75, 0.9)
	counted.Work.Prompt = timeline.Known(5000)
	not := counted
	not.Work.Prompt = timeline.Absent("the engine is not scraped")
	for _, tt := range []struct {
		name          string
		counted, last int // cells, and then those in which nobody counted
		want          bool
	}{
		{"nobody ever counted", 0, 12, true},
		{"prompts were counted", 12, 0, false},
		{"the count ends with the run", 12, 2, false},
		{"the count is of the first moments", 2, 12, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cells []verdict.Timed
			for i := range tt.counted + tt.last {
				in := &counted
				if i >= tt.counted {
					in = &not
				}
				start := timeline.Instant(1e12).Add(time.Duration(i) * time.Second)
				cells = append(cells, verdict.Timed{Verdict: verdict.Judge(in), Over: timeline.Span{Start: start, End: start.Add(time.Second)}})
			}
			v := verdict.Run(cells)
			if v.Label != timeline.Mixed || (v.Reason == verdict.ReasonNotCounted) != tt.want {
				t.Errorf("got %s (%s), not counted: want %v", v.Label, v.Reason, tt.want)
			}
		})
	}
}

func TestAValueBelowALimitIsNotRoundedOntoIt(t *testing.T) {
	for _, tt := range []struct {
		value, limit float64
		decimals     int
		want         string
	}{
		{94.6, 95, 0, "94.6"},
		{94.4, 95, 0, "94"},
		{94.96, 95, 0, "94.96"},
		{95, 95, 0, "95"},
		{95.3, 95, 0, "95"},
		{0.9453, 0.95, 2, "0.945"},
		{0.31, 0.95, 2, "0.31"},
		{0.94999999999, 0.95, 2, "0.950000"},
	} {
		if got := verdict.Below(tt.value, tt.limit, tt.decimals); got != tt.want {
			t.Errorf("%v below %v: got %s, want %s", tt.value, tt.limit, got, tt.want)
		}
	}
}
