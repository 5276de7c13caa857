package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// survey asks a device of a library for all that is around it.
func survey(t *testing.T, lib *sim.Library, gpu int) timeline.Inventory {
	t.Helper()
	devices, err := lib.Devices()
	if err != nil {
		t.Fatal(err)
	}
	v := timeline.Inventory{NUMANode: timeline.NoNUMANode}
	for _, call := range []nvml.Call{nvml.CallProcesses, nvml.CallTopology} {
		if err := devices[gpu].Survey(call, &v); err != nil && !errors.Is(err, nvml.ErrNotSupported) {
			t.Fatal(err)
		}
	}
	return v
}

func TestGPUsOfAScenarioAreLinkedToEachOther(t *testing.T) {
	tl := timelineFrom(t, "tp2")
	lib := sim.NewLibrary(sim.Scenario(tl), sim.Options{}, func() timeline.Instant { return 1 })
	v := survey(t, lib, 1)
	if len(v.NVLinks) != 18 || v.PCIeMaxGen != 5 || v.PCIeWidth != 16 || v.NUMANode != 0 || v.ProcessesKnown {
		t.Errorf("%+v: want the 18 links and the PCIe 5 x16 of an H100, and no word of processes", v)
	}
	for _, l := range v.NVLinks {
		if !l.Up || l.PeerBusID != tl.GPUs()[0].PCIBusID {
			t.Errorf("link %+v: want it up, and the other GPU at its other end", l)
		}
	}
	lib.SetNVLink(1, 7, false)
	lib.SetPCIeWidth(1, 8)
	if v := survey(t, lib, 1); v.NVLinks[7].Up || !v.NVLinks[6].Up || v.PCIeWidth != 8 {
		t.Errorf("%+v: want link 7 down and 8 lanes", v)
	}
	if v := survey(t, lib, 0); !v.NVLinks[7].Up || v.PCIeWidth != 16 {
		t.Errorf("%+v: nothing happened to this GPU", v)
	}
	if v := survey(t, sim.NewLibrary(sim.Scenario(timelineFrom(t, "decode_b1")), sim.Options{}, func() timeline.Instant { return 1 }), 0); len(v.NVLinks) > 0 {
		t.Errorf("a GPU alone has links: %+v", v.NVLinks)
	}
}

func TestANeighbourIsAProcessWhileItIsThere(t *testing.T) {
	tl := timelineFrom(t, "neighbour") // from 20 s to 40 s
	now := timeline.Instant(1)
	lib := sim.NewLibrary(sim.Scenario(tl, 77), sim.Options{}, func() timeline.Instant { return now })
	for _, at := range []struct {
		after time.Duration
		want  int
	}{{time.Second, 1}, {21 * time.Second, 2}, {39 * time.Second, 2}} {
		now = timeline.Instant(1).Add(at.after)
		v := survey(t, lib, 0)
		if !v.ProcessesKnown || len(v.Processes) != at.want || v.Processes[0].PID != 77 || v.Processes[0].MemoryBytes == 0 {
			t.Errorf("after %v: %+v, want %d processes, the engine first", at.after, v.Processes, at.want)
		}
	}
	lib.SetProcesses(0, timeline.GPUProcess{PID: 5})
	if v := survey(t, lib, 0); len(v.Processes) != 1 || v.Processes[0].PID != 5 {
		t.Errorf("%+v: want what was set", v.Processes)
	}
}
