package remote

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// What drivers do to a helper, done to the real one.

// details returns what the events of a kind say.
func (r *record) details(kind timeline.EventKind) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.events {
		if e.Kind == kind {
			all = append(all, e.Detail)
		}
	}
	return all
}

func (r *record) said(kind timeline.EventKind, what string) bool {
	return slices.ContainsFunc(r.details(kind), func(d string) bool { return strings.Contains(d, what) })
}

// list returns the newest list of GPUs.
func (r *record) list() []timeline.GPU {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gpus) == 0 {
		return nil
	}
	return r.gpus[len(r.gpus)-1]
}

func (r *rig) fault(t *testing.T, f sim.Fault) {
	t.Helper()
	if err := r.page.SetFault(f); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCrashInACallIsALossThatIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	_, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > 3 })
	r.fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallTemperature), Mode: sim.ModeCrash})
	until(t, 8*time.Second, "the loss", func() bool {
		return rec.said(timeline.EventSamplerLost, "exit status 2: SIGSEGV: segmentation violation")
	})
	r.fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallTemperature)})
	n := len(rec.windows(1, timeline.DRAMUtil))
	until(t, 15*time.Second, "windows of the next helper", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > n+3 })
}

func TestHangThatTakesNoSignalIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > 3 })
	pid := s.Stats().PID
	r.fault(t, sim.Fault{Call: int(nvml.CallTake), Delay: time.Hour, Mode: sim.ModeStubborn})
	until(t, 20*time.Second, "the helper to be gone", func() bool {
		return rec.said(timeline.EventSamplerLost, "says nothing") && !alive(pid)
	})
	r.fault(t, sim.Fault{Call: int(nvml.CallTake)})
	n := len(rec.windows(0, timeline.DRAMUtil))
	until(t, 15*time.Second, "windows of the next helper", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > n+3 })
}

func TestDriverThatIsReloadedComesBackWithAnotherVersion(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	_, rec := r.run(t, r.options())
	thermal := func() bool { return len(rec.windows(0, timeline.ThrottleHWThermal)) > 1 }
	until(t, 10*time.Second, "throttle times by the fields of R580", thermal)
	must(t, r.page.SetInit(18, 0)) // library and driver differ while packages are exchanged
	r.fault(t, sim.Fault{Call: int(nvml.CallReasons), Code: 15})
	until(t, 10*time.Second, "the loss", func() bool { return rec.said(timeline.EventSamplerLost, "versions differ") })
	must(t, r.page.SetDriver("590.44.01"))
	must(t, r.page.SetInit(0, 0))
	r.fault(t, sim.Fault{Call: int(nvml.CallReasons)})
	before := len(rec.windows(0, timeline.ThrottleHWThermal))
	until(t, 15*time.Second, "throttle times by the fields of R590", func() bool {
		return rec.list()[0].Driver == "590.44.01" && len(rec.windows(0, timeline.ThrottleHWThermal)) > before+1
	})
	if states := rec.statesOf(0, timeline.ThrottleHWThermal); slices.Contains(states, "untrusted") || slices.Contains(states, "not_supported") {
		t.Errorf("states %v: the fields moved, and were not followed", states)
	}
}

func TestInstancesKeepTheirPositionsWhenTheDeviceIsCutAnew(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, sim.Waves{Count: 2, MIG: 3})
	must(t, r.page.SetPresent(4, false)) // the third instance is not there at first
	_, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows of an instance", func() bool { return len(rec.list()) == 4 && len(rec.windows(1, timeline.DRAMUtil)) > 3 })
	first := rec.list()
	names := func(list []timeline.GPU) string {
		var b strings.Builder
		for _, g := range list {
			b.WriteString(g.UUID[len(g.UUID)-1:] + map[bool]string{true: "m ", false: " "}[g.ParentUUID != ""])
		}
		return strings.TrimSpace(b.String())
	}
	if have := names(first); have != "0 0m 1m 1" {
		t.Errorf("list %q, want a device, its two instances, and the other device", have)
	}
	if g := first[1]; !g.MIG || !g.GPM || g.PeakShare != 0.125 || g.BusWidthBits != 640 || g.SMs != 16 || g.ParentUUID != first[0].UUID {
		t.Errorf("instance %+v: want an eighth of its device", g)
	}
	until(t, 5*time.Second, "traffic of an instance, from its windows", func() bool { return len(rec.windows(2, timeline.NVLinkTx)) > 2 })
	must(t, r.page.SetPresent(2, false))
	must(t, r.page.SetPresent(4, true))
	must(t, r.page.Tell(0, 0x100, 0))
	until(t, 15*time.Second, "the list with the other instance", func() bool { return len(rec.list()) == 5 })
	if have := names(rec.list()); have != "0 0m 1m 1 2m" {
		t.Errorf("list %q, want the other instance behind all that were there", have)
	}
	until(t, 10*time.Second, "windows of the other instance", func() bool { return len(rec.windows(4, timeline.DRAMUtil)) > 3 })
	if states := rec.statesOf(1, timeline.DRAMUtil); states[len(states)-1] != "lost" {
		t.Errorf("the instance that went ends %v, want lost", states)
	}
	if !rec.said(timeline.EventMIGChange, "cut") || !rec.said(timeline.EventGPULost, "does not list") {
		t.Errorf("events %v: want the change and the loss", rec.kinds())
	}
}

func TestErrorsThatTheDriverTellsAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "a reading of errors", func() bool { return len(rec.windows(1, timeline.Xids)) > 0 })
	must(t, r.page.Tell(1, 8, 79))
	must(t, r.page.Tell(0, 0x400, 0))
	until(t, 5*time.Second, "the error", func() bool {
		return rec.said(timeline.EventXid, "Xid 79") && rec.said(timeline.EventGPUFault, "retired")
	})
	until(t, 5*time.Second, "the count", func() bool {
		w := rec.windows(1, timeline.Xids)
		return w[len(w)-1].Value[timeline.Xids] == 1
	})
	inventory := s.Inventory()
	if len(inventory) != 2 || len(inventory[1].NVLinks) != 18 || inventory[1].NVLinks[0].PeerBusID == "" || inventory[1].NVLinks[17].Up ||
		len(inventory[1].Processes) != 1 || inventory[1].Processes[0].PID != 4001 || inventory[1].PCIeMaxGen != 5 || inventory[1].NUMANode != 0 ||
		inventory[1].AppSMClockHz != 1980e6 {
		t.Errorf("inventory %+v: not what the world says", inventory)
	}
}

func TestPermissionThatIsLostIsSaidOnceAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	_, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > 3 })
	r.fault(t, sim.Fault{Call: int(nvml.CallTake), Code: 4, After: r.page.Elapsed() + time.Second})
	until(t, 5*time.Second, "the loss of permission", func() bool { return rec.said(timeline.EventCapability, "permission lost after") })
	until(t, 5*time.Second, "its state", func() bool { return slices.Contains(rec.statesOf(0, timeline.DRAMUtil), "no_permission") })
	r.fault(t, sim.Fault{Call: int(nvml.CallTake)})
	until(t, 6*time.Second, "windows again", func() bool {
		states := rec.statesOf(0, timeline.DRAMUtil)
		return states[len(states)-1] == "ok"
	})
	if n := len(rec.details(timeline.EventCapability)); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

func TestFrozenWindowsAreNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > 3 })
	must(t, r.page.SetFrozen(0, true))
	until(t, 15*time.Second, "distrust", func() bool { return slices.Contains(rec.statesOf(0, timeline.DRAMUtil), "untrusted") })
	until(t, 3*time.Second, "its count", func() bool { return s.Stats().GPUs[0].Dropped[nvml.DropFrozen] > 0 })
	must(t, r.page.SetFrozen(0, false))
	until(t, 5*time.Second, "trust again", func() bool {
		states := rec.statesOf(0, timeline.DRAMUtil)
		return states[len(states)-1] == "ok"
	})
}

func TestUnpluggedGPUIsLostAndComesBackToItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	_, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > 3 })
	must(t, r.page.SetCount(1))
	until(t, 25*time.Second, "the loss", func() bool {
		states := rec.statesOf(1, timeline.DRAMUtil)
		return states[len(states)-1] == "lost" && rec.said(timeline.EventGPULost, "does not list")
	})
	if !rec.said(timeline.EventSamplerLost, "the driver lists 1 gpus, and listed 2") {
		t.Errorf("losses %v, want one that says what the driver lists", rec.details(timeline.EventSamplerLost))
	}
	n := len(rec.windows(0, timeline.DRAMUtil))
	until(t, 10*time.Second, "windows of the other", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > n+3 })
	must(t, r.page.SetCount(2))
	n = len(rec.windows(1, timeline.DRAMUtil))
	until(t, 25*time.Second, "windows of the lost one", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > n+3 })
	if list := rec.list(); len(list) != 2 || list[1].UUID != r.world.GPUs()[1].UUID {
		t.Errorf("list %v, want both in their places", list)
	}
}
