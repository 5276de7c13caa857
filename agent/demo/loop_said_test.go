package demo

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// concluded is all that was said of a run of a scenario that began at epoch.
type concluded struct {
	epoch    timeline.Instant
	cells    []correlate.Cell
	requests []correlate.Phase
	gaps     []timeline.Span // in which the driver's page was not written
}

func (c *concluded) take(o *correlate.Output) error {
	c.cells, c.requests = append(c.cells, o.Cells...), append(c.requests, o.Phases...)
	return nil
}

// replayed is what a recording says.
func replayed(ctx context.Context, dir string, epoch timeline.Instant) (*concluded, error) {
	r, err := record.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	c := &concluded{epoch: epoch}
	_, err = replay.Run(ctx, r, correlate.DefaultConfig(), c.take, nil)
	return c, err
}

// purely is what is said of what a scenario's instruments read, without a clock, a socket or a driver in between.
func purely(o *scenario.Observed) *concluded {
	cfg := correlate.DefaultConfig()
	cfg.Targets = o.Targets
	e := correlate.New(cfg)
	e.SetGPUs(o.GPUs)
	type call struct {
		at timeline.Instant
		do func()
	}
	var calls []call
	for i := range o.Events {
		ev := o.Events[i]
		calls = append(calls, call{ev.At, func() {
			if c, ok := ev.Capability(); ok {
				e.AddCapability(c)
				if c.Call == timeline.ForeignProcess {
					e.SetForeign(c.GPU, c.State == timeline.StateUntrusted)
				}
			}
			e.AddEvent(ev)
		}})
	}
	for i := range o.Samples {
		calls = append(calls, call{o.Samples[i].Over.End, func() { e.AddSample(&o.Samples[i]) }})
	}
	for i := range o.Engine {
		calls = append(calls, call{o.Engine[i].Over.End, func() { e.AddEngine(&o.Engine[i]) }})
	}
	for i := range o.Requests {
		calls = append(calls, call{o.Requests[i].Sent, func() { e.Open(&o.Requests[i]) }})
	}
	for _, tok := range o.Tokens {
		calls = append(calls, call{tok.At, func() { e.Token(tok) }})
	}
	for i := range o.Requests {
		calls = append(calls, call{o.Requests[i].Done, func() { e.Close(&o.Requests[i]) }})
	}
	slices.SortStableFunc(calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	c, out := &concluded{epoch: o.Origin}, correlate.Output{}
	next := o.Origin
	for _, one := range calls {
		for one.at >= next {
			e.Advance(&out, next.Add(-cfg.Lateness))
			next = next.Add(500 * time.Millisecond)
		}
		one.do()
	}
	e.GiveUp()
	e.Flush(&out)
	_ = c.take(&out) // it has no error
	return c
}

// opinion is what was said of one phase of one target.
type opinion struct {
	verdict  verdict.Verdict
	reasons  map[string]float64           // part of the cells, without numbers
	overlays map[timeline.Overlay]float64 // part of the cells
	grades   map[timeline.Grade]float64   // part of the requests that decoded in the phase
	coverage float64                      // the most that a cell tells of the probe's traffic
	clock    float64                      // part of the requests whose windows are not told for their clock
	requests int
	cells    int
	covered  float64 // mean part of a cell that windows cover
	starved  int     // cells that were left out, because the host was too busy to read their windows
}

// starvedPart is the part of what a perfect observer's windows cover that a cell's must, for it to speak of the scenario
// and not of a host that was too busy to read them.
const starvedPart = 0.85

// in returns what was said of a target in a phase. Cells that cover less than atLeast are left out, and the requests that
// decoded in them.
func (c *concluded) in(target string, span scenario.Span, atLeast float64) opinion {
	over := timeline.Span{Start: c.epoch.Add(span.From), End: c.epoch.Add(span.To)}
	o := opinion{reasons: map[string]float64{}, overlays: map[timeline.Overlay]float64{}, grades: map[timeline.Grade]float64{}}
	var run []verdict.Timed
	var lost []timeline.Span
	for i := range c.cells {
		cell := &c.cells[i]
		if cell.Target != target || cell.Span.Start < over.Start || cell.Span.End > over.End {
			continue
		}
		o.cells++
		covered := cell.CoveredS / cell.Span.Duration().Seconds()
		if slices.ContainsFunc(c.gaps, func(s timeline.Span) bool { return s.Overlap(cell.Span) > 0 }) {
			covered = 0 // what windows cover then is an old page
		}
		o.covered += covered
		if covered < atLeast {
			o.starved++
			lost = append(lost, cell.Span)
			continue
		}
		run = append(run, verdict.Timed{Verdict: cell.Verdict, Over: cell.Span})
		o.reasons[reasonCode(cell.Verdict.Reason)]++
		for _, l := range cell.Verdict.Overlays {
			o.overlays[l]++
		}
		if cell.Coverage.OK() {
			o.coverage = max(o.coverage, cell.Coverage.Value)
		}
	}
	o.covered /= float64(max(1, o.cells))
	scale(o.reasons, len(run))
	scale(o.overlays, len(run))
	o.verdict = verdict.Run(run)
	for i := range c.requests {
		r := &c.requests[i]
		d := r.Request.Decode()
		if r.Request.Target != target || d.Start < over.Start || d.End > over.End || slices.ContainsFunc(lost, func(s timeline.Span) bool { return s.Overlap(d) > 0 }) {
			continue
		}
		o.requests++
		o.grades[r.Grade]++
		if r.Label == timeline.Undetermined && r.Reason == verdict.ReasonClock {
			o.clock++
		}
	}
	scale(o.grades, o.requests)
	o.clock /= float64(max(1, o.requests))
	return o
}

func scale[K comparable](m map[K]float64, n int) {
	for k := range m {
		m[k] /= float64(max(1, n))
	}
}

// most returns what holds the largest part.
func most[K cmp.Ordered](m map[K]float64) K {
	var best K
	for k, v := range m {
		if w := m[best]; v > w || v == w && k < best {
			best = k
		}
	}
	return best
}

// said is a word for the claim's kind.
func (o *opinion) said(p *scenario.Phase) string {
	switch {
	case p.Grade != "":
		return string(most(o.grades))
	case p.Overlay != "" && o.overlays[p.Overlay] >= 0.5:
		return string(p.Overlay)
	case p.Overlay != "":
		return fmt.Sprintf("no %s (%.0f %%)", p.Overlay, 100*o.overlays[p.Overlay])
	case p.Gate == scenario.GateClock:
		return fmt.Sprintf("clock of %.0f %%", 100*o.clock)
	case p.Gate == scenario.GateCoverage:
		return fmt.Sprintf("coverage %.2f", o.coverage)
	case p.Gate != "":
		return most(o.reasons)
	}
	return string(o.verdict.Label)
}

// gateReasons are what a verdict says where a gate is shut.
var gateReasons = map[scenario.Gate][]string{
	scenario.GateWindows: {verdict.ReasonWindows, verdict.ReasonCoverage}, scenario.GateForeign: {verdict.ReasonForeign},
	scenario.GateMIG: {verdict.ReasonMIG}, scenario.GateLegacy: {verdict.ReasonLegacy},
	scenario.GatePermission: {verdict.ReasonNoCounters, verdict.ReasonLegacy}, scenario.GateUntrusted: {verdict.ReasonUntrusted},
	scenario.GateIdle: {verdict.ReasonIdle},
}

// keeps says what is wrong with an opinion by what the scenario claims; nothing if it is as claimed.
func (o *opinion) keeps(p *scenario.Phase) string {
	ok := true
	switch {
	case p.Label == timeline.Launch: // averages do not tell gaps between kernels from those between steps
		ok = o.verdict.Label == timeline.Launch || o.verdict.Label == timeline.HostOrLaunch
	case p.Label != "":
		ok = o.verdict.Label == p.Label
	case p.Overlay != "":
		ok = o.overlays[p.Overlay] >= 0.5
	case p.Gate == scenario.GateClock:
		ok = o.clock >= 0.8
	case p.Gate == scenario.GateCoverage:
		ok = o.coverage <= 0.2 && o.requests > 0 && o.grades[timeline.Isolated] <= 0.2
	case p.Gate != "":
		part := 0.0
		for _, r := range gateReasons[p.Gate] {
			part += o.reasons[r]
		}
		ok = part >= 0.8
	case p.Grade != "":
		ok = o.requests > 0 && o.grades[p.Grade] >= 0.8
	}
	if ok {
		return ""
	}
	return "says " + o.said(p)
}

// closeTo says in what an opinion differs from a perfect observer's, and by how much their shares do.
func (o *opinion) closeTo(want *opinion, gate scenario.Gate) (differences []string, shares float64) {
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	a, b := &o.verdict, &want.verdict
	if a.Label != b.Label {
		differ("label %s, not %s", a.Label, b.Label)
	}
	if x, y := most(o.reasons), most(want.reasons); x != y && (!slices.Contains(gateReasons[gate], x) || !slices.Contains(gateReasons[gate], y)) {
		differ("reason %q, not %q", x, y)
	}
	if x, y := most(o.grades), most(want.grades); x != y && (o.requests > 0 || o.starved == 0) {
		differ("grade %s, not %s", cmp.Or(string(x), "none"), cmp.Or(string(y), "none"))
	}
	for l := range union(o.overlays, want.overlays) {
		if x, y := o.overlays[l], want.overlays[l]; x >= 0.7 && y <= 0.3 || x <= 0.3 && y >= 0.7 {
			differ("%s in %.0f %% of the cells, not %.0f %%", l, 100*x, 100*y)
		}
	}
	if a.Label != timeline.Undetermined && b.Label != timeline.Undetermined {
		x, y := a.Shares, b.Shares
		for _, d := range []float64{x.Memory - y.Memory, x.Compute - y.Compute, x.Launch - y.Launch, x.Host - y.Host, x.Other - y.Other} {
			shares = max(shares, math.Abs(d))
		}
		if shares > 0.05 {
			differ("shares %.3f, not %.3f", x, y)
		}
	}
	return differences, shares
}

func union[K comparable](a, b map[K]float64) map[K]bool {
	all := map[K]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}

// claim is what a phase is made to show.
func claim(p *scenario.Phase) string {
	for kind, what := range map[string]string{"label": string(p.Label), "overlay": string(p.Overlay), "grade": string(p.Grade), "gate": string(p.Gate)} {
		if what != "" {
			return kind + " " + what
		}
	}
	return "-"
}

// pureWay is the way of a perfect observer.
const pureWay = "pure"

// row is one line of the table: a phase of a target.
type row struct {
	scenario, target, phase, claim string
	said                           map[string]string // by way
	shares                         float64           // largest difference from a perfect observer's
	wrong                          []string
	starved                        []string
}

// rows compares what was said by each way.
func rows(sc *ready, ways map[string]*concluded) []row {
	var all []row
	for _, target := range sc.tl.Targets() {
		for _, p := range sc.tl.Phases() {
			want := sc.pure.in(target.Name, p.Span, 0)
			atLeast := 0.0
			if want.verdict.OK() {
				atLeast = starvedPart * want.covered
			}
			r := row{scenario: sc.name, target: target.Name, phase: p.Name, claim: claim(&p), said: map[string]string{}}
			for _, way := range []string{pureWay, localWay, cWay} {
				got := ways[way].in(target.Name, p.Span, atLeast)
				r.said[way] = got.said(&p)
				if got.cells == 0 || got.covered < atLeast || got.starved > 0 && got.requests == 0 && p.Grade != "" {
					r.starved = append(r.starved, fmt.Sprintf("%s: windows cover %.2f, a perfect observer's %.2f; %d of %d cells left out",
						way, got.covered, want.covered, got.starved, got.cells))
				}
				if wrong := got.keeps(&p); wrong != "" {
					r.wrong = append(r.wrong, way+" "+wrong)
				}
				differences, shares := got.closeTo(&want, p.Gate)
				r.shares = max(r.shares, shares)
				if len(differences) > 0 {
					r.wrong = append(r.wrong, way+": "+strings.Join(differences, ", "))
				}
			}
			all = append(all, r)
		}
	}
	return all
}
