package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestWhatIsAroundAGPUIsRecordedWhenItChanges(t *testing.T) {
	s := NewStore(correlate.New(correlate.DefaultConfig()), true)
	v := timeline.Inventory{
		GPU: 1, At: 5, NUMANode: 0, PCIeMaxGen: 5, PCIeMaxWidth: 16, AppSMClockHz: 1.98e9, AppMemClockHz: 2.619e9,
		NVLinks: []timeline.NVLink{{Link: 0, Up: true}, {Link: 1, Up: true}}, ProcessesKnown: true,
	}
	s.AddInventory(v)
	v.At, v.Processes = 6, []timeline.GPUProcess{{PID: 7}}
	s.AddInventory(v)
	v.At, v.NVLinks = 7, []timeline.NVLink{{Link: 0, Up: true}, {Link: 1}}
	s.AddInventory(v)
	s.AddInventory(timeline.Inventory{GPU: 0, At: 8, NUMANode: timeline.NoNUMANode})
	const same = "NUMA node 0, PCIe 5 x16 at most, application clocks 1980 and 2619 MHz, "
	want := []timeline.Event{
		{At: 5, Kind: timeline.EventInventory, GPU: 1, Detail: same + "2 of 2 NVLinks up"},
		{At: 7, Kind: timeline.EventInventory, GPU: 1, Detail: same + "1 of 2 NVLinks up"},
		{At: 8, Kind: timeline.EventInventory, GPU: 0, Detail: "nothing is told"},
	}
	if diff := cmp.Diff(want, s.drain(pending{}).events); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if got := s.inventories()[1]; len(got.Processes) != 1 {
		t.Errorf("newest inventory %+v, want the one with a process", got)
	}
}
