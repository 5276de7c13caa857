package compare_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
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

// t0 is where the tests' timelines start.
const t0 = timeline.Instant(1000*1e9 + 137e6)

func at(d time.Duration) timeline.Instant { return t0.Add(d) }

// rig says how a scenario is observed.
type rig struct {
	seen     float64 // part of the requests that a probe sees
	noEngine bool    // no scrapes
	noSteps  bool    // the engine counts no steps
	dtype    string  // that the target claims; the scenario's own if empty
	tune     func(*scenario.Scenario)
	noise    float64 // relative error of a window, one sigma
	drift    float64 // relative error of a whole run's windows, as of an instrument that is off
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
	if s.Targets[0].Model.Name == "" {
		tb.Fatal("no model")
	}
	p.observe(r)
	return p
}

// call is something the engine is told at a moment.
type call struct {
	at timeline.Instant
	do func(e *correlate.Engine)
}

func (p *played) observe(r rig) {
	var calls []call
	add := func(t time.Duration, do func(e *correlate.Engine)) { calls = append(calls, call{at(t), do}) }
	p.counters(r, add)
	if !r.noEngine {
		p.scrape(r, add)
	}
	p.requests(r, add)
	slices.SortStableFunc(calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	cfg := correlate.DefaultConfig()
	cfg.Targets = p.targets
	e := correlate.New(cfg)
	e.SetGPUs(p.tl.GPUs())
	next := t0
	for _, c := range calls {
		for c.at >= next {
			e.Advance(&p.out, next.Add(-2*time.Second))
			next = next.Add(time.Second)
		}
		c.do(e)
	}
	e.Flush(&p.out)
}

func (p *played) counters(r rig, add func(time.Duration, func(*correlate.Engine))) {
	rng := rand.New(rand.NewPCG(p.tl.Scenario().Seed, 7))
	off := 1 + r.drift*rng.NormFloat64()
	for gpu := range p.tl.GPUs() {
		for from := time.Duration(0); ; {
			to := from + 100*time.Millisecond + time.Duration(rng.Int64N(int64(10*time.Millisecond)))
			if to > p.tl.Duration() {
				break
			}
			s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(from), End: at(to)}, Slack: 5e5}
			scale := off * (1 + r.noise*rng.NormFloat64())
			for _, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.TensorUtil, timeline.DRAMUtil} {
				v := (p.tl.Integral(gpu, c, to) - p.tl.Integral(gpu, c, from)) / (to - from).Seconds()
				s.Put(c, min(1, scale*v))
			}
			add(to, func(e *correlate.Engine) { e.AddSample(&s) })
			m := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(to), End: at(to + 300*time.Microsecond)}}
			st := p.tl.State(gpu, to)
			m.Put(timeline.SMClock, st.SMClockHz)
			m.Put(timeline.EventReasons, float64(st.EventReasons))
			add(to+time.Millisecond, func(e *correlate.Engine) { e.AddSample(&m) })
			from = to
		}
	}
}

func (p *played) scrape(r rig, add func(time.Duration, func(*correlate.Engine))) {
	for t := 100 * time.Millisecond; t < p.tl.Duration(); t += time.Second {
		st := p.tl.Engine(0, t)
		s := timeline.EngineSample{Target: p.targets[0].Name, Over: timeline.Span{Start: at(t - time.Millisecond), End: at(t + time.Millisecond)}}
		for c, v := range map[timeline.EngineCounter]float64{
			timeline.Running: float64(st.Running), timeline.Waiting: float64(st.Waiting), timeline.KVUsage: st.KVUsage,
			timeline.KVBlocks: float64(st.KVBlocks), timeline.KVBlockSize: float64(st.BlockSize), timeline.StartTime: 1,
			timeline.PromptTotal: float64(st.PromptTokens), timeline.OutputTotal: float64(st.OutputTokens),
			timeline.PreemptTotal: float64(st.Preemptions), timeline.StepTotal: float64(st.Steps), timeline.FinishedTotal: float64(st.Finished),
			timeline.ITLSum: st.ITLSum, timeline.ITLCount: float64(st.ITLCount),
			timeline.PrefixQueries: float64(st.PrefixQueries), timeline.PrefixHits: float64(st.PrefixHits),
		} {
			if c != timeline.StepTotal || !r.noSteps {
				s.Put(c, v)
			}
		}
		p.scrapes = append(p.scrapes, s)
		add(t+2*time.Millisecond, func(e *correlate.Engine) { e.AddEngine(&s) })
	}
}

func (p *played) requests(r rig, add func(time.Duration, func(*correlate.Engine))) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, q := range p.tl.Requests() {
		if rng.Float64() >= r.seen {
			continue
		}
		open := timeline.Request{Ref: uint64(q.Index + 1), Target: p.targets[0].Name, Streaming: true, Client: "proxy", Sent: at(q.Arrival)}
		add(q.Arrival, func(e *correlate.Engine) { e.Open(&open) })
		for _, t := range q.Tokens {
			ev := timeline.TokenEvent{Ref: open.Ref, At: at(t), After: at(t), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent}
			add(t, func(e *correlate.Engine) { e.Token(ev) })
		}
		done := open
		done.Done, done.Status = at(p.tl.Duration()), timeline.StatusUnfinished
		if n := len(q.Tokens); n > 0 {
			done.First, done.Last, done.Head = at(q.Tokens[0]), at(q.Tokens[n-1]), at(q.Tokens[0])
			done.OutputTokens, done.Counted, done.FirstTokens, done.Events = n, timeline.CountIDs, 1, n
			done.PromptTokens, done.PromptKnown = q.PromptTokens, true
		}
		if q.Finish > 0 {
			done.Done, done.Status = at(q.Finish+time.Millisecond), timeline.StatusOK
		}
		add(done.Done.Sub(t0), func(e *correlate.Engine) { e.Close(&done) })
	}
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
