package compare_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// origin is where scenarios start on the observers' clock.
const origin = timeline.Instant(1000 * time.Second)

func at(d time.Duration) timeline.Instant { return origin.Add(d) }

// rig says how a scenario is observed.
type rig struct {
	seen     float64 // part of the requests that a probe sees
	noEngine bool    // no scrapes
	noSteps  bool    // the engine counts no steps
	noITL    bool    // the engine tells no latency
	dtype    string  // that the target claims; the scenario's own if empty
	tune     func(*scenario.Scenario)
	rough    bool   // instruments with a refresh of their own, jitter, lag and errors
	node     uint64 // whose instruments they are: those of one node are off alike
}

// played is what was observed of a scenario.
type played struct {
	tl      *scenario.Timeline
	targets []timeline.Target
	out     correlate.Output
	scrapes []timeline.EngineSample
}

// simulate runs a scenario and observes it.
func simulate(tb testing.TB, text string, r rig) *played {
	tb.Helper()
	s, err := scenario.Parse("test.scenario", strings.NewReader(text))
	if err != nil {
		tb.Fatal(err)
	}
	if r.tune != nil {
		r.tune(s)
	}
	tl, err := s.Run()
	if err != nil {
		tb.Fatal(err)
	}
	p := &played{tl: tl, targets: tl.Targets()}
	if r.dtype != "" {
		p.targets[0].DType = r.dtype
	}
	p.observe(r)
	return p
}

// call is something the engine is told at a moment.
type call struct {
	at timeline.Instant
	do func(e *correlate.Engine)
}

// observe reads the timeline and feeds what was read to an engine, as an agent would.
func (p *played) observe(r rig) {
	in := scenario.Instruments{Origin: origin, Coverage: r.seen, Seed: r.node}
	if r.rough {
		in.Refresh, in.Jitter, in.Lag = 100*time.Millisecond, 8*time.Millisecond, 30*time.Millisecond
		in.Noise, in.Denominator, in.Dropout = 0.02, 0.05, 0.01
	}
	o := p.tl.Observe(in)
	var calls []call
	add := func(at timeline.Instant, do func(e *correlate.Engine)) { calls = append(calls, call{at, do}) }
	for i := range o.Samples {
		add(o.Samples[i].Over.End, func(e *correlate.Engine) { e.AddSample(&o.Samples[i]) })
	}
	for i := range o.Engine {
		if r.noSteps {
			o.Engine[i].Has &^= 1 << timeline.StepTotal
		}
		if r.noITL {
			o.Engine[i].Has &^= 1<<timeline.ITLSum | 1<<timeline.ITLCount
		}
		if !r.noEngine {
			p.scrapes = append(p.scrapes, o.Engine[i])
			add(o.Engine[i].Over.End, func(e *correlate.Engine) { e.AddEngine(&o.Engine[i]) })
		}
	}
	if r.seen > 0 {
		for i := range o.Requests {
			q := &o.Requests[i]
			open := timeline.Request{Ref: q.Ref, Target: q.Target, Streaming: true, Client: q.Client, Sent: q.Sent}
			add(q.Sent, func(e *correlate.Engine) { e.Open(&open) })
			add(q.Done, func(e *correlate.Engine) { e.Close(q) })
		}
		for i := range o.Tokens {
			add(o.Tokens[i].At, func(e *correlate.Engine) { e.Token(o.Tokens[i]) })
		}
	}
	slices.SortStableFunc(calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	cfg := correlate.DefaultConfig()
	cfg.Targets = p.targets
	e := correlate.New(cfg)
	e.SetGPUs(p.tl.GPUs())
	next := origin
	for _, c := range calls {
		for c.at >= next {
			e.Advance(&p.out, next.Add(-2*time.Second))
			next = next.Add(time.Second)
		}
		c.do(e)
	}
	e.Flush(&p.out)
}

// recording hands over what was observed from one moment to another; zero for all of it.
func (p *played) recording(name string, from, to time.Duration) *compare.Recording {
	c := compare.Config{Name: name, GPUs: p.tl.GPUs(), Targets: p.targets, Simulated: true}
	if to > 0 {
		c.Since, c.Until = at(from), at(to)
	}
	r := compare.New(c)
	for i := range p.out.Cells {
		r.AddCell(&p.out.Cells[i])
	}
	for i := range p.out.Phases {
		r.AddPhase(&p.out.Phases[i])
	}
	for i := range p.scrapes {
		r.AddEngine(&p.scrapes[i])
	}
	return r
}

func (p *played) all(name string) *compare.Recording { return p.recording(name, 0, 0) }

// against compares two recordings with the usual options.
func against(tb testing.TB, a, b *compare.Recording) *compare.Report {
	tb.Helper()
	r, err := compare.Of(a, b, compare.Options{Margin: compare.DefaultMargin, Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// figures writes what a test wants to see of a report.
func figures(r *compare.Report) string {
	v := func(v compare.Value) string {
		switch {
		case !v.OK():
			return "-"
		case !v.Sure():
			return fmt.Sprintf("%.3f", v.Value.Value)
		}
		return fmt.Sprintf("%.3f [%.3f %.3f]", v.Value.Value, v.CI95.Value.Low, v.CI95.Value.High)
	}
	var parts []string
	for _, p := range r.Parts {
		if p.A.OK() && p.Change.OK() {
			parts = append(parts, fmt.Sprintf("%s %.2f->%.2f", p.Name, 1e3*p.A.Value.Value, 1e3*p.B.Value.Value))
		}
	}
	return fmt.Sprintf("%s (%s; %s) time %s bytes %s model %s expected %s gap %s came %s f %s bins %d blocks %d/%d loop %s parts %s",
		r.Verdict, r.Confidence, r.Reason, v(r.Time), v(r.Bytes.Measured), v(r.Bytes.Modelled), v(r.Expected), v(r.Gap), v(r.Came), v(r.Memory),
		r.Matched.Bins, r.Matched.BlocksA, r.Matched.BlocksB, r.Split.Loop, strings.Join(parts, ", "))
}

// slowDequant reads weights in eight bits and widens them before each product, which takes so many times what the product
// does: the bytes fall, and the time does not.
func slowDequant(s *scenario.Scenario, times float64) {
	d, err := hardware.LookupDType("w8a16")
	if err != nil {
		return
	}
	s.Targets[0].DType = d
	for i := range s.GPUs {
		s.GPUs[i].Rates.BF16 /= times
	}
}
