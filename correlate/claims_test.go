package correlate_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// observe runs what instruments read of a scenario through a fresh engine, as an agent would.
func observe(tl *scenario.Timeline, in scenario.Instruments) (*scenario.Observed, correlate.Output) {
	o := tl.Observe(in)
	cfg := correlate.DefaultConfig()
	cfg.Targets = o.Targets
	e := correlate.New(cfg)
	e.SetGPUs(o.GPUs)
	var calls []call
	add := func(at timeline.Instant, do func(e *correlate.Engine)) { calls = append(calls, call{at, do}) }
	for i := range o.Events {
		ev := o.Events[i]
		add(ev.At, func(e *correlate.Engine) {
			if c, ok := ev.Capability(); ok {
				e.AddCapability(c)
				if c.Call == timeline.ForeignProcess {
					e.SetForeign(c.GPU, c.State == timeline.StateUntrusted)
				}
			}
			e.AddEvent(ev)
		})
	}
	for i := range o.Samples {
		s := &o.Samples[i]
		add(s.Over.End, func(e *correlate.Engine) { e.AddSample(s) })
	}
	for i := range o.Engine {
		s := &o.Engine[i]
		add(s.Over.End, func(e *correlate.Engine) { e.AddEngine(s) })
	}
	for i := range o.Requests {
		r := &o.Requests[i]
		add(r.Sent, func(e *correlate.Engine) { e.Open(r) })
	}
	for _, tok := range o.Tokens {
		add(tok.At, func(e *correlate.Engine) { e.Token(tok) })
	}
	for i := range o.Requests {
		r := &o.Requests[i]
		if r.Done != 0 {
			add(r.Done, func(e *correlate.Engine) { e.Close(r) })
		}
	}
	byTime(calls)
	var out correlate.Output
	next := o.Origin
	for _, c := range calls {
		for c.at >= next {
			e.Advance(&out, next.Add(-2*time.Second))
			next = next.Add(500 * time.Millisecond)
		}
		c.do(e)
	}
	e.GiveUp()
	e.Flush(&out)
	return o, out
}

// gateReasons are what a verdict says where a gate is shut.
var gateReasons = map[scenario.Gate][]string{
	"windows": {verdict.ReasonWindows, verdict.ReasonCoverage}, "coverage": {verdict.ReasonCoverage}, "clock": {verdict.ReasonClock},
	"foreign": {verdict.ReasonForeign}, "mig": {verdict.ReasonMIG}, "legacy": {verdict.ReasonLegacy},
	"permission": {verdict.ReasonNoCounters, verdict.ReasonLegacy}, "untrusted": {verdict.ReasonUntrusted}, "idle": {verdict.ReasonIdle},
}

// TestWhatScenariosAreMadeToShowIsSaid plays the scenarios that each show one label, overlay, gate or grade, which their own
// tests hold against the truth of their kernels: the run of cells, and requests, must say so.
func TestWhatScenariosAreMadeToShowIsSaid(t *testing.T) {
	paths, err := filepath.Glob("scenario/testdata/*/*.scenario")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, path := range paths {
		tl := load(t, path)
		claims := slices.DeleteFunc(tl.Phases(), func(p scenario.Phase) bool {
			return p.Label == "" && p.Overlay == "" && p.Grade == "" && p.Gate == ""
		})
		if len(claims) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".scenario"), func(t *testing.T) {
			o, out := observe(tl, scenario.Instruments{})
			for _, p := range claims {
				holds(t, p, timeline.Span{Start: o.Origin.Add(p.Span.From), End: o.Origin.Add(p.Span.To)}, &out)
			}
		})
		shown += len(claims)
	}
	if shown < 30 {
		t.Errorf("%d claims, want one for each label, overlay, gate and grade", shown)
	}
}

// holds checks one claim.
func holds(t *testing.T, p scenario.Phase, over timeline.Span, out *correlate.Output) {
	t.Helper()
	var run []verdict.Timed
	overlaid, cells := 0, 0
	reasons := map[string]int{}
	for i := range out.Cells {
		c := &out.Cells[i]
		if c.Span.Start < over.Start || c.Span.End > over.End {
			continue
		}
		cells++
		run = append(run, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
		reasons[c.Verdict.Reason]++
		if slices.Contains(c.Verdict.Overlays, p.Overlay) {
			overlaid++
		}
	}
	v := verdict.Run(run)
	t.Logf("%s: %s (%s), %v, %s, caps %v, reasons %v", p.Name, v.Label, v.Confidence, v.Overlays, v.Reason, v.Caps, reasons)
	switch {
	case p.Label == timeline.Launch && v.Label == timeline.HostOrLaunch:
		// Kernels launched one by one leave gaps as a slow host does; which of the two it is averages do not tell.
	case p.Label != "" && v.Label != p.Label:
		t.Errorf("said %s (%s: %s), want %s; shares %+v", v.Label, v.Confidence, v.Reason, p.Label, v.Shares)
	case p.Overlay != "" && overlaid < cells/2:
		t.Errorf("%s in %d of %d cells", p.Overlay, overlaid, cells)
	case p.Gate == scenario.GateClock:
		// The cells rest on the engine's own counts; what the probe's clock decides is which windows are a request's.
		requests(t, over, out, "undetermined for its clock", func(r *correlate.Phase) bool {
			return r.Label == timeline.Undetermined && r.Reason == verdict.ReasonClock
		})
	case p.Gate == scenario.GateCoverage:
		requests(t, over, out, "not told to be alone", func(r *correlate.Phase) bool { return r.Grade != timeline.Isolated })
		for i := range out.Cells {
			if c := &out.Cells[i]; c.Coverage.OK() && c.Coverage.Value > 0.2 {
				t.Errorf("coverage %v of a tenth", c.Coverage.Value)
			}
		}
	case p.Gate != "":
		n := 0
		for _, r := range gateReasons[p.Gate] {
			n += reasons[r]
		}
		if n < cells*8/10 && cells > 0 || gateReasons[p.Gate] == nil {
			t.Errorf("gate %s: %v", p.Gate, reasons)
		}
	case p.Grade != "":
		requests(t, over, out, string(p.Grade), func(r *correlate.Phase) bool { return r.Grade == p.Grade })
	}
}

// requests checks that four in five of the requests that decoded in a span are as they should.
func requests(t *testing.T, over timeline.Span, out *correlate.Output, what string, is func(*correlate.Phase) bool) {
	t.Helper()
	all, right := 0, 0
	for i := range out.Phases {
		if d := out.Phases[i].Request.Decode(); d.Start >= over.Start && d.End <= over.End {
			all++
			if is(&out.Phases[i]) {
				right++
			}
		}
	}
	if all == 0 || right < all*8/10 {
		t.Errorf("%d of %d requests are %s", right, all, what)
	}
}
