package timeline_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestACapabilityCanBeReadBackFromItsEvent(t *testing.T) {
	for _, c := range []timeline.Capability{
		{GPU: 0, Call: "dram_util", State: timeline.StateUntrusted, Detail: "12 of 10 possible: twice"},
		{GPU: 3, Call: timeline.ForeignProcess, State: timeline.StateOK},
	} {
		e := c.Event(7)
		got, ok := e.Capability()
		if diff := cmp.Diff(c, got); !ok || diff != "" || e.At != 7 || e.Kind != timeline.EventCapability {
			t.Errorf("event %+v gives (-want +got):\n%s", e, diff)
		}
	}
	for _, e := range []timeline.Event{
		{Kind: timeline.EventCapability, GPU: timeline.NoGPU, Detail: "engine metrics: ok"},
		{Kind: timeline.EventCapability, Detail: "permission lost after 5 min"},
		{Kind: timeline.EventCapability},
		{Kind: timeline.EventMarker, Detail: "dram_util: ok"},
	} {
		if c, ok := e.Capability(); ok {
			t.Errorf("%+v is taken for the capability %+v", e, c)
		}
	}
}
