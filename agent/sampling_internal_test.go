package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestWhatIsAroundAGPUIsRecordedWhenItChanges(t *testing.T) {
	s := NewStore(correlate.New(correlate.DefaultConfig()), true)
	var log bytes.Buffer
	sink := watchLinks(s, slog.New(slog.NewTextHandler(&log, nil)))
	v := timeline.Inventory{
		GPU: 1, At: 5, NUMANode: 0, PCIeMaxGen: 5, PCIeMaxWidth: 16, AppSMClockHz: 1.98e9, AppMemClockHz: 2.619e9,
		NVLinks: []timeline.NVLink{{Link: 0, Up: true}, {Link: 1, Up: true, PeerBusID: "00000000:1A:00.0"}}, ProcessesKnown: true,
	}
	sink.AddInventory(v)
	v.At, v.Processes = 6, []timeline.GPUProcess{{PID: 7}}
	sink.AddInventory(v)
	v.At, v.NVLinks = 7, []timeline.NVLink{{Link: 0, Up: true}, {Link: 1}}
	sink.AddInventory(v)
	sink.AddInventory(timeline.Inventory{GPU: 0, At: 8, NUMANode: timeline.NoNUMANode})
	const same = "NUMA node 0, PCIe 5 x16 at most, application clocks 1980 and 2619 MHz, "
	v.At, v.PCIeWidth = 9, 16 // the driver has begun to tell it
	sink.AddInventory(v)
	v.At, v.PCIeWidth, v.NVLinks = 10, 8, []timeline.NVLink{{Link: 0, Up: true}, {Link: 1, Up: true}}
	sink.AddInventory(v)
	v.At, v.AppSMClockHz = 11, 1e9
	sink.AddInventory(v)
	want := []timeline.Event{
		{At: 5, Kind: timeline.EventInventory, GPU: 1, Detail: same + "2 of 2 NVLinks up"},
		{At: 7, Kind: timeline.EventInventory, GPU: 1, Detail: "NVLink 1 to 00000000:1A:00.0 is down: " + same + "1 of 2 NVLinks up"},
		{At: 8, Kind: timeline.EventInventory, GPU: 0, Detail: "nothing is told"},
		{
			At: 10, Kind: timeline.EventInventory, GPU: 1, Detail: "NVLink 1 is up again, PCIe has 8 lanes and had 16: NUMA node 0, PCIe 5 x16 at most, " +
				"x8 now, application clocks 1980 and 2619 MHz, 2 of 2 NVLinks up",
		},
		{At: 11, Kind: timeline.EventInventory, GPU: 1, Detail: "NUMA node 0, PCIe 5 x16 at most, x8 now, application clocks 1000 and 2619 MHz, 2 of 2 NVLinks up"},
	}
	if diff := cmp.Diff(want, s.drain(pending{}).events); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if n := strings.Count(log.String(), "links of a gpu changed"); n != 2 {
		t.Errorf("the log tells of %d changes, want 2:\n%s", n, &log)
	}
	if got := s.inventories()[1]; len(got.Processes) != 1 {
		t.Errorf("newest inventory %+v, want the one with a process", got)
	}
}
