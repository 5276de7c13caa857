package scenario

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Instruments are the habits of what reads a timeline. The zero value is a good instrument: windows of 110 ms, scrapes
// once a second, no error. What the scenario itself asks for, its counter faults and its probe, comes on top.
type Instruments struct {
	Origin      timeline.Instant // of the scenario on the observer's clock; zero: 1000 s
	Window      time.Duration    // of the activity counters; zero: 110 ms
	Refresh     time.Duration    // the driver refreshes those counters so often, each GPU at its own phase; zero: at every call
	Jitter      time.Duration    // each window's end comes up to so much late
	Lag         time.Duration    // how old the counters are when they are refreshed
	Noise       float64          // relative error of each reading, one standard deviation
	Denominator float64          // relative error of the peak that DRAM activity is told against, drawn once a GPU from this range about zero
	Dropout     float64          // part of the windows that are lost
	Gauges      time.Duration    // between readings of clocks and power; zero: 100 ms
	Scrape      time.Duration    // between readings of the engine; zero: 1 s
	Coverage    float64          // of the requests; zero: the scenario's
	Seed        uint64           // of the errors; zero: the scenario's
}

func (in Instruments) withDefaults(s *Scenario) Instruments {
	in.Origin = cmp.Or(in.Origin, timeline.Instant(1000*time.Second))
	in.Window = cmp.Or(in.Window, 110*time.Millisecond)
	in.Gauges = cmp.Or(in.Gauges, 100*time.Millisecond)
	in.Scrape = cmp.Or(in.Scrape, time.Second)
	in.Seed = cmp.Or(in.Seed, s.Seed)
	return in
}

// Observed is what was read of a timeline. Samples are sorted by the end of their span, all else by its moment.
type Observed struct {
	GPUs     []timeline.GPU
	Targets  []timeline.Target
	Origin   timeline.Instant
	Samples  []timeline.Sample
	Engine   []timeline.EngineSample
	Events   []timeline.Event   // what the instruments cannot read, and who else computes on a GPU
	Requests []timeline.Request // of those that the probe saw, as they ended; in the order in which they were sent
	Tokens   []timeline.TokenEvent
}

// Observe reads a timeline as a node's instruments do. It is pure: the same timeline and instruments give the same
// readings.
func (tl *Timeline) Observe(in Instruments) *Observed {
	in = in.withDefaults(tl.scenario)
	o := observer{tl: tl, in: in, out: &Observed{GPUs: tl.GPUs(), Targets: tl.Targets(), Origin: in.Origin}}
	for g := range o.out.GPUs {
		o.states(g)
		if o.out.GPUs[g].GPM {
			o.windows(g)
		}
		o.gauges(g)
	}
	for i := range o.out.Targets {
		o.scrapes(i)
	}
	o.requests()
	slices.SortStableFunc(o.out.Samples, func(a, b timeline.Sample) int { return cmp.Compare(a.Over.End, b.Over.End) })
	slices.SortStableFunc(o.out.Engine, func(a, b timeline.EngineSample) int { return cmp.Compare(a.Over.End, b.Over.End) })
	slices.SortStableFunc(o.out.Events, func(a, b timeline.Event) int { return cmp.Compare(a.At, b.At) })
	// No request has two events at one moment, so that nothing is left to chance.
	slices.SortFunc(o.out.Tokens, func(a, b timeline.TokenEvent) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Ref, b.Ref)) })
	return o.out
}

type observer struct {
	tl   *Timeline
	in   Instruments
	out  *Observed
	memo [4]remembered // all counters of a window ask for the same two moments
	next int           // place in memo
}

// remembered is what a GPU's time adds up to by a moment.
type remembered struct {
	known bool
	gpu   int
	at    time.Duration
	sum   totals
}

func (o *observer) totals(gpu int, t time.Duration) *totals {
	for i := range o.memo {
		if m := &o.memo[i]; m.known && m.gpu == gpu && m.at == t {
			return &m.sum
		}
	}
	m := &o.memo[o.next]
	o.next = (o.next + 1) % len(o.memo)
	*m = remembered{true, gpu, t, o.tl.totals(gpu, t)}
	return &m.sum
}

func (o *observer) at(d time.Duration) timeline.Instant { return o.in.Origin.Add(d) }

// faulty returns the fault of the instrument of one of the names that is on at a moment, if there is one.
func (o *observer) faulty(gpu int, t time.Duration, names ...string) (CounterFault, bool) {
	for _, f := range o.tl.scenario.Counters {
		if (f.GPU < 0 || f.GPU == gpu) && f.Over.Contains(t) && slices.Contains(names, f.Name) {
			return f, true
		}
	}
	return CounterFault{}, false
}

// concerns reports whether a fault of the instrument is one of this counter.
func (f CounterFault) concerns(c timeline.Counter) bool {
	name, ok := f.Arg("counter")
	if !ok {
		return f.Name != "denominator" || c == timeline.DRAMUtil
	}
	return name == c.String()
}

// states tells what cannot be read, and when someone else computes on the GPU.
func (o *observer) states(gpu int) {
	states := map[string]timeline.State{
		"unsupported": timeline.StateUnsupported, "no_permission": timeline.StateNoPermission, "untrusted": timeline.StateUntrusted,
		"lost": timeline.StateLost,
	}
	for _, f := range o.tl.scenario.Counters {
		state, ok := states[f.Name]
		if !ok || f.GPU >= 0 && f.GPU != gpu {
			continue
		}
		for c := timeline.GraphicsUtil; c <= timeline.DRAMUtil; c++ {
			if f.concerns(c) {
				o.tell(gpu, c.String(), state, f.Over)
			}
		}
	}
	for _, f := range o.tl.scenario.Faults {
		if f.Kind == Neighbour && (f.GPU < 0 || f.GPU == gpu) {
			o.tell(gpu, timeline.ForeignProcess, timeline.StateUntrusted, f.Over)
		}
	}
}

// tell says that something is in a state over a span, and well after it.
func (o *observer) tell(gpu int, call string, state timeline.State, over Span) {
	say := func(at time.Duration, s timeline.State) {
		o.out.Events = append(o.out.Events, timeline.Capability{GPU: gpu, Call: call, State: s}.Event(o.at(at)))
	}
	say(over.From, state)
	if over.To < o.tl.Duration() {
		say(over.To, timeline.StateOK)
	}
}

// windows reads the activity counters of a GPU.
func (o *observer) windows(gpu int) {
	r := rand.New(rand.NewPCG(o.in.Seed, 0x77696e0000+uint64(gpu)))
	off := 1 + o.in.Denominator*(2*r.Float64()-1)
	phase := time.Duration(r.Float64() * float64(o.in.Refresh))
	var last timeline.Sample
	for from := time.Duration(r.Float64() * float64(o.in.Window)); ; {
		to := from + o.in.Window
		late := o.in.Jitter
		if f, ok := o.faulty(gpu, to, "jitter"); ok {
			late = max(late, f.DurationOr("jitter", 20*time.Millisecond))
		}
		to += time.Duration(r.Float64() * float64(late))
		if f, ok := o.faulty(gpu, to, "hang"); ok {
			to += f.DurationOr("hang", time.Second)
		}
		if to > o.tl.Duration() {
			return
		}
		s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: o.at(from), End: o.at(to)}, Slack: int64(20 * time.Microsecond)}
		scale := 1 + o.in.Noise*r.NormFloat64()
		for c := timeline.GraphicsUtil; c <= timeline.DRAMUtil; c++ {
			o.read(&s, &last, gpu, c, from, to, phase, scale, off)
		}
		_, gap := o.faulty(gpu, to, "gap", "lost")
		if drop := r.Float64() < o.in.Dropout; !drop && !gap && s.Has != 0 {
			o.out.Samples = append(o.out.Samples, s)
		}
		last, from = s, to
	}
}

// read puts one counter's mean over a window into a sample, as the instrument shows it.
func (o *observer) read(s, last *timeline.Sample, gpu int, c timeline.Counter, from, to, phase time.Duration, scale, off float64) {
	for _, name := range []string{"unsupported", "no_permission", "nan"} {
		if f, ok := o.faulty(gpu, to, name); ok && f.concerns(c) {
			return // a reader drops what is no number
		}
	}
	lag := o.in.Lag
	if f, ok := o.faulty(gpu, to, "lag"); ok && f.concerns(c) {
		lag += f.DurationOr("lag", 300*time.Millisecond)
	}
	a, b := o.seen(from, phase, lag), o.seen(to, phase, lag)
	if a == b {
		return
	}
	v := scale * (o.totals(gpu, b).of(c) - o.totals(gpu, a).of(c)) / (b - a).Seconds()
	if c == timeline.DRAMUtil {
		v *= off
	}
	for _, f := range o.tl.scenario.Counters {
		if f.GPU >= 0 && f.GPU != gpu || !f.Over.Contains(to) || !f.concerns(c) {
			continue
		}
		switch f.Name {
		case "denominator":
			v *= f.NumberOr("denominator", 1.05)
		case "zero":
			v = 0
		case "frozen":
			v = last.Value[c]
		case "noise":
			v *= 1 + f.NumberOr("noise", 0.02)*math.Sin(float64(to)/7e6)
		case "spike":
			if (to/o.in.Window)%50 == 0 {
				v += f.NumberOr("spike", 0.5)
			}
		}
	}
	s.Put(c, min(1, v))
}

// seen returns the moment whose counters a call at t gets to see.
func (o *observer) seen(t, phase, lag time.Duration) time.Duration {
	if o.in.Refresh > 0 {
		t -= (t - phase + o.in.Refresh) % o.in.Refresh
	}
	return max(0, t-lag)
}

// gauges reads clocks, power and what else is read at one moment.
func (o *observer) gauges(gpu int) {
	for t := o.in.Gauges / 2; t < o.tl.Duration(); t += o.in.Gauges {
		if _, ok := o.faulty(gpu, t, "lost"); ok {
			continue
		}
		st := o.tl.State(gpu, t)
		s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: o.at(t), End: o.at(t + 40*time.Microsecond)}, Slack: int64(20 * time.Microsecond)}
		s.Put(timeline.SMClock, st.SMClockHz)
		s.Put(timeline.MemClock, st.MemClockHz)
		s.Put(timeline.EventReasons, float64(st.EventReasons))
		s.Put(timeline.Power, st.Watts)
		s.Put(timeline.PowerLimit, st.LimitWatts)
		s.Put(timeline.MemUsed, st.MemUsedBytes)
		s.Put(timeline.Temperature, st.Celsius)
		if before := t - time.Second; before >= 0 {
			s.Put(timeline.GPUDuty, (o.totals(gpu, t).of(timeline.GraphicsUtil)-o.totals(gpu, before).of(timeline.GraphicsUtil))/time.Second.Seconds())
		}
		cumulative := []timeline.Counter{timeline.Energy, timeline.ThrottlePower, timeline.ThrottleSWThermal}
		if o.tl.HasNVLink(gpu) {
			cumulative = append(cumulative, timeline.NVLinkTx, timeline.NVLinkRx)
		}
		for _, c := range cumulative {
			s.Put(c, o.totals(gpu, t).of(c))
		}
		o.out.Samples = append(o.out.Samples, s)
	}
}

// scrapes reads the engine of a target.
func (o *observer) scrapes(target int) {
	for t := o.in.Scrape / 10; t < o.tl.Duration(); t += o.in.Scrape {
		st := o.tl.Engine(target, t)
		s := timeline.EngineSample{Target: o.out.Targets[target].Name, Over: timeline.Span{Start: o.at(t - time.Millisecond), End: o.at(t + time.Millisecond)}}
		for _, v := range []struct {
			c timeline.EngineCounter
			v float64
		}{
			{timeline.Running, float64(st.Running)},
			{timeline.Waiting, float64(st.Waiting)},
			{timeline.KVUsage, st.KVUsage},
			{timeline.KVBlocks, float64(st.KVBlocks)},
			{timeline.KVBlockSize, float64(st.BlockSize)},
			{timeline.PromptTotal, float64(st.PromptTokens)},
			{timeline.OutputTotal, float64(st.OutputTokens)},
			{timeline.PreemptTotal, float64(st.Preemptions)},
			{timeline.StepTotal, float64(st.Steps)},
			{timeline.PrefixQueries, float64(st.PrefixQueries)},
			{timeline.PrefixHits, float64(st.PrefixHits)},
			{timeline.ITLSum, st.ITLSum},
			{timeline.ITLCount, float64(st.ITLCount)},
			{timeline.TTFTSum, st.TTFTSum},
			{timeline.TTFTCount, float64(st.TTFTCount)},
			{timeline.FinishedTotal, float64(st.Finished)},
			{timeline.StartTime, 1.7e9 + st.Started.Seconds()},
		} {
			s.Put(v.c, v.v)
		}
		o.out.Engine = append(o.out.Engine, s)
	}
}

// requests tells what the probe saw: the chunks as they reached the client, not the tokens as the engine made them.
func (o *observer) requests() {
	r := rand.New(rand.NewPCG(o.in.Seed, 0x70726f6265))
	for i := range o.tl.requests {
		q := &o.tl.requests[i]
		seen := q.Observed
		if o.in.Coverage > 0 {
			seen = r.Float64() < o.in.Coverage
		}
		if !seen {
			continue
		}
		t := &o.out.Targets[q.Target]
		w := timeline.Request{
			Ref: uint64(q.Index) + 1, ID: fmt.Sprintf("simulated-%06d", q.Index+1), Target: t.Name, Dialect: "scenario", Operation: "chat",
			Model: t.Model, Streaming: true, Client: "scenario", Sent: o.at(q.Arrival), MaxTokens: q.OutputTokens, Choices: 1,
			ClockBound: o.tl.scenario.Probe.ClockBound, Status: timeline.StatusUnfinished, Done: o.at(o.tl.Duration()),
		}
		var counted int
		for _, c := range q.Chunks() {
			if c.At > o.tl.Duration() {
				break
			}
			counted += c.Tokens
			if w.Events++; w.Events == 1 {
				w.Head, w.First, w.FirstTokens = o.at(c.At), o.at(c.At), c.Tokens
			}
			w.Last = o.at(c.At)
			o.out.Tokens = append(o.out.Tokens, timeline.TokenEvent{
				Ref: w.Ref, At: o.at(c.At), After: o.at(c.At), Tokens: int32(c.Tokens), Source: timeline.CountUsage,
				Kind: timeline.KindContent, Stamp: timeline.StampModel,
			})
		}
		if counted > 0 {
			w.OutputTokens, w.Counted = counted, timeline.CountUsage
			w.PromptTokens, w.PromptKnown = q.PromptTokens, true
		}
		if q.Finish > 0 && counted == len(q.Tokens) {
			w.Done, w.Status, w.HTTPStatus, w.Finish = max(w.Last, o.at(q.Finish)), timeline.StatusOK, 200, "length"
		}
		if q.Aborted > 0 {
			w.Done, w.Status, w.HTTPStatus = max(w.Last, o.at(q.Aborted)), timeline.StatusTruncated, 200
		}
		o.out.Requests = append(o.out.Requests, w)
	}
}
