package libnvml_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// states keeps the last word on each counter.
type states struct {
	state  map[string]timeline.State
	detail map[string]string
	last   timeline.Sample // all counters together, the newest value of each
	around timeline.Inventory
}

func (*states) SetGPUs([]timeline.GPU)  {}
func (*states) AddEvent(timeline.Event) {}
func (s *states) AddSample(v *timeline.Sample) {
	for c := range timeline.Counter(timeline.NumCounters) {
		if v.Has.Has(c) {
			s.last.Put(c, v.Value[c])
		}
	}
}

func (s *states) AddCapability(c timeline.Capability) {
	s.state[c.Call], s.detail[c.Call] = c.State, c.Detail
}
func (s *states) AddInventory(v timeline.Inventory) { s.around = v }

// branch is what a driver of one branch must give.
type branch struct {
	version string
	missing []string // counters that are not there, of all that the newest driver has
	bits    []string // throttle times that come from the reasons, integrated
	flows   []string // traffic that comes from the windows, integrated
	powered bool     // power is read as it is, not as an average
	numa    bool
}

// thermal are the throttle times that drivers before R575 have no known field for.
var thermal = []string{"throttle_hw_thermal", "throttle_power_brake", "throttle_sw_thermal"}

// matrix is read off the differences between the headers of NVML (12.0 is R525, 12.2 R535, 12.4 R550, 12.5 R555, 12.8 R570,
// 12.9 R575, 13.0 R580, 13.1 R590).
var matrix = map[string]branch{
	"525": {"525.147.05", []string{"dram_cache_hit", "temperature_margin"}, thermal, pcie, false, false},
	"535": {"535.183.01", []string{"dram_cache_hit", "temperature_margin"}, thermal, pcie, true, false},
	"550": {"550.127.05", []string{"dram_cache_hit", "temperature_margin"}, thermal, pcie, true, true},
	"570": {"570.86.15", []string{"dram_cache_hit"}, thermal, nil, true, true},
	"575": {"575.57.08", nil, nil, nil, true, true},
	"580": {"580.95.05", nil, nil, nil, true, true},
	"590": {"590.44.01", nil, nil, nil, true, true},
	"610": {"610.11.00", nil, nil, nil, true, true},
}

// pcie is the traffic that drivers before R555 have no fields for.
var pcie = []string{"pcie_rx", "pcie_tx"}

// TestMatrixInChild holds what TestDriverMatrix runs in a process of its own.
func TestMatrixInChild(t *testing.T) {
	name, ok := strings.CutPrefix(os.Getenv(childVar), "BRANCH=")
	if !ok {
		t.Skip("runs only as a child of TestDriverMatrix")
	}
	want := matrix[name]
	if err := page.SetDriver(want.version); err != nil {
		t.Fatal(err)
	}
	_, devices := open(t)
	s := &states{state: map[string]timeline.State{}, detail: map[string]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), 1600*time.Millisecond)
	defer cancel()
	if err := nvml.NewSampler(0, devices[0], nvml.DefaultConfig(), now).Run(ctx, s); err != nil {
		t.Fatal(err)
	}
	var missing, bits, flows []string
	for c := range timeline.Counter(timeline.NumCounters) {
		switch st := s.state[c.String()]; {
		case c == timeline.Xids: // said by whoever waits for events
		case st != timeline.StateOK:
			missing = append(missing, c.String())
			if st != timeline.StateUnsupported {
				t.Errorf("%s is %s (%s), want not supported, or read", c, st, s.detail[c.String()])
			}
		case strings.Contains(s.detail[c.String()], "reasons that hold clocks, integrated"):
			bits = append(bits, c.String())
		case strings.Contains(s.detail[c.String()], "windows of activity, integrated"):
			flows = append(flows, c.String())
		}
	}
	slices.Sort(missing)
	slices.Sort(bits)
	slices.Sort(flows)
	if diff := cmp.Diff(want.missing, missing); diff != "" {
		t.Errorf("not there (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff(want.bits, bits); diff != "" {
		t.Errorf("from the reasons (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff(want.flows, flows); diff != "" {
		t.Errorf("from the windows (-want +have):\n%s", diff)
	}
	if have := s.detail["power"] == ""; have != want.powered {
		t.Errorf("power: %q, want it at one moment: %v", s.detail["power"], want.powered)
	}
	if have := s.around.NUMANode != timeline.NoNUMANode; have != want.numa || len(s.around.NVLinks) != 18 {
		t.Errorf("node %d and %d links, want a node: %v", s.around.NUMANode, len(s.around.NVLinks), want.numa)
	}
	// The world sends 1.5 GB/s over PCIe, and the integral begins with the sampler.
	if v, _ := s.last.Get(timeline.PCIeTx); v < 0.3*1.5e9 || v > 1.5e9*page.Elapsed().Seconds() {
		t.Errorf("%v bytes were sent over PCIe in %v", v, page.Elapsed())
	}
	// The world holds clocks for 0.02 s a second for the hardware's heat.
	if v, ok := s.last.Get(timeline.ThrottleHWThermal); len(want.bits) == 0 && (!ok || v < 0.005*page.Elapsed().Seconds()) {
		t.Errorf("hardware thermal time %v: another feature's field was read", v)
	}
}

func TestDriverMatrix(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range matrix {
		t.Run("R"+name, func(t *testing.T) {
			t.Parallel() // each waits for its windows
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestMatrixInChild$", "-test.v")
			cmd.Env = append(os.Environ(), childVar+"=BRANCH="+name)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestMatrixInChild") {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
}
