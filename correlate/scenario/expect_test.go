package scenario_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// holds reports whether a label is what the kernels say. "Most" is 60 % of the time.
func holds(l timeline.Label, tl *scenario.Timeline, tr *scenario.Truth) bool {
	const most = 0.6
	s := tr.Shares
	switch l {
	case timeline.Memory:
		return s.Memory >= most
	case timeline.Compute:
		return s.Compute >= most
	case timeline.Balanced: // one kind of work near the ridge: whichever roof limits a kernel, the other is not far
		return tr.PromptTokens == 0 && s.Memory+s.Compute >= 0.75 && min(tr.DRAMUtil, tr.TensorUtil) >= 0.55
	case timeline.Mixed:
		return tr.PromptTokens > 0 && tr.MeanBatch > 1 && max(s.Memory, s.Compute, s.Host, s.Launch, s.Other) < most
	case timeline.Host:
		return s.Host >= most
	case timeline.Launch:
		return s.Launch >= most
	case timeline.HostOrLaunch:
		return s.Host+s.Launch >= most && unsupported(tl, timeline.GraphicsUtil)
	case timeline.Communication:
		return tr.Communication >= most
	case timeline.Busy:
		return tr.SMUtil > 0.6 && tr.Of(scenario.LimitOther) > s.Memory && tr.Of(scenario.LimitOther) > s.Compute && max(s.Memory, s.Compute) < 0.35
	case timeline.Undetermined:
	}
	return false
}

func unsupported(tl *scenario.Timeline, c timeline.Counter) bool {
	for _, f := range tl.CounterFaults() {
		if name, _ := f.Arg("counter"); f.Name == "unsupported" && name == c.String() {
			return true
		}
	}
	return false
}

// inForce reports whether a fault of that kind is on over all of a phase.
func inForce(tl *scenario.Timeline, kind scenario.FaultKind, ph scenario.Phase) bool {
	for _, f := range tl.Scenario().Faults {
		if f.Kind == kind && f.Over.From <= ph.Span.From && f.Over.To >= ph.Span.To {
			return true
		}
	}
	return false
}

// first is the truth of the first phase, which is healthy where a later one is not.
func first(tl *scenario.Timeline) scenario.Truth {
	p := tl.Phases()[0]
	return tl.Truth(0, p.Span.From, p.Span.To)
}

func overlays(o timeline.Overlay, tl *scenario.Timeline, ph scenario.Phase, tr *scenario.Truth) bool {
	before := first(tl)
	switch o {
	case timeline.Throttled:
		return tr.Throttled > ph.Span.Length()*9/10 && tr.SMClockHz < 0.93*before.SMClockHz && tr.TPOT > before.TPOT*21/20
	case timeline.PrefillInterference:
		return tr.PromptTokens > 3*before.PromptTokens && tr.TPOT > before.TPOT*23/20
	case timeline.Preempted:
		return tr.Preemptions > 0
	case timeline.NoisyNeighbour:
		return inForce(tl, scenario.Neighbour, ph) && tr.TPOT > before.TPOT*23/20
	case timeline.CommOrStraggler:
		return tr.Waits > 0.1 && before.Waits < 0.05 || tr.Communication > 0.3 && tr.Communication > 1.5*before.Communication
	}
	return false
}

// gated reports whether a phase's circumstance is there, in the scenario or in what instruments read of it.
func gated(g scenario.Gate, tl *scenario.Timeline, ph scenario.Phase, tr *scenario.Truth) bool {
	s := tl.Scenario()
	o := tl.Observe(scenario.Instruments{})
	from, to := o.Origin.Add(ph.Span.From), o.Origin.Add(ph.Span.To)
	windows := 0
	for _, x := range o.Samples {
		if x.Has.Has(timeline.DRAMUtil) && x.Over.Start >= from && x.Over.End <= to {
			windows++
		}
	}
	untrusted := func(call string) bool {
		for _, e := range o.Events {
			if c, ok := e.Capability(); ok && e.At <= from && c.Call == call && c.State == timeline.StateUntrusted {
				return true
			}
		}
		return false
	}
	switch g {
	case scenario.GateWindows:
		return windows > 0 && float64(windows) < 2*ph.Span.Length().Seconds()
	case scenario.GateCoverage:
		var seen, all int
		for _, q := range tl.Requests() {
			all++
			if q.Observed {
				seen++
			}
		}
		return seen > 0 && seen*10 < all && len(o.Requests) == seen
	case scenario.GateClock:
		return o.Requests[0].ClockBound > 2*tr.TPOT
	case scenario.GateForeign:
		return untrusted(timeline.ForeignProcess) && inForce(tl, scenario.Neighbour, ph)
	case scenario.GateMIG:
		return o.GPUs[0].MIG && o.GPUs[0].PeakShare < 1 && s.GPUs[0].SMs < 132
	case scenario.GateLegacy:
		return windows == 0 && !o.GPUs[0].GPM && tr.DRAMUtil > 0.3
	case scenario.GateUntrusted:
		return untrusted(timeline.DRAMUtil.String()) && windows > 0
	case scenario.GatePermission:
		return windows == 0 && o.GPUs[0].GPM && tr.DRAMUtil > 0.3
	case scenario.GateIdle:
		return tr.Idle == ph.Span.Length()
	}
	return false
}

func graded(g timeline.Grade, tl *scenario.Timeline, ph scenario.Phase, tr *scenario.Truth) bool {
	var longest time.Duration
	for _, q := range tl.Requests() {
		if n := len(q.Tokens); n > 0 {
			longest = max(longest, q.Tokens[n-1]-q.Tokens[0])
		}
		if !q.Observed {
			return false
		}
	}
	short := longest < 3*100*time.Millisecond
	foreign := inForce(tl, scenario.Neighbour, ph)
	windows := false
	for _, x := range tl.Observe(scenario.Instruments{}).Samples {
		windows = windows || x.Has.Has(timeline.DRAMUtil)
	}
	switch g {
	case timeline.Isolated:
		return tr.MeanBatch <= 1 && !short && !foreign
	case timeline.Shared:
		return tr.MeanBatch > 2 && !short && !foreign
	case timeline.Contaminated:
		return foreign && !short
	case timeline.Inherited:
		return short && windows && !foreign
	case timeline.Insufficient:
		return short && !windows
	}
	return false
}

func TestPhasesShowWhatTheyAreMadeToShow(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.scenario")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return strings.Contains(name, "groups/") }) // they claim nothing
	shown := map[any]bool{}
	for _, name := range files {
		tl := file(t, name)
		claims := 0
		for _, ph := range tl.Phases() {
			tr := tl.Truth(0, ph.Span.From, ph.Span.To)
			var claim any
			var ok bool
			switch {
			case ph.Label != "":
				claim, ok = ph.Label, holds(ph.Label, tl, &tr)
			case ph.Overlay != "":
				claim, ok = ph.Overlay, overlays(ph.Overlay, tl, ph, &tr)
			case ph.Gate != "":
				claim, ok = ph.Gate, gated(ph.Gate, tl, ph, &tr)
			case ph.Grade != "":
				claim, ok = ph.Grade, graded(ph.Grade, tl, ph, &tr)
			default:
				continue
			}
			claims++
			shown[claim] = true
			if !ok {
				t.Errorf("%s: phase %s does not show %v: %+v", name, ph.Name, claim, tr)
			}
		}
		if claims != 1 {
			t.Errorf("%s: %d phases make a claim, want one", name, claims)
		}
	}
	for _, l := range timeline.Labels() {
		if l != timeline.Undetermined && !shown[l] {
			t.Errorf("no scenario shows %s", l)
		}
	}
	if want := 10 + 5 + 9 + 5 - 1; len(shown) != want {
		t.Errorf("%d things are shown, want %d", len(shown), want)
	}
}
