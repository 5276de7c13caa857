package correlate_test

import (
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// TestMappingIsMissedOnlyWhereCountersAreRead tells a GPU that cannot be tied to its engine from no readings at all.
func TestMappingIsMissedOnlyWhereCountersAreRead(t *testing.T) {
	other := h100()
	other.UUID = "GPU-99999999-2222-3333-4444-555555555555"
	for _, tt := range []struct {
		name string
		gpus []timeline.GPU
		want string
	}{
		{"no GPU at all", nil, verdict.ReasonNoCounters},
		{"a GPU of another name is read", []timeline.GPU{other}, verdict.ReasonNoMapping},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(timeline.Target{GPUs: []string{uuid}}, tt.gpus...)
			var out correlate.Output
			memoryBound().feed(e, &out, 10*time.Second)
			if v := &middle(out).Verdict; v.OK() || v.Reason != tt.want {
				t.Errorf("got %s (%s), want undetermined (%s)", v.Label, v.Reason, tt.want)
			}
		})
	}
}
