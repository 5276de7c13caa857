package correlate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// judged gathers what the verdict rests on. It also fills in the traffic that the byte model expects.
func (e *Engine) judged(c *Cell, t *target, pooled *sums, broken bool) verdict.Input {
	in := verdict.Input{
		CellS: c.Span.Duration().Seconds(), CoveredS: c.CoveredS, Windows: c.Windows,
		DRAM: c.fraction(timeline.DRAMUtil), Tensor: c.fraction(timeline.TensorUtil),
		SM: c.fraction(timeline.SMUtil), Graphics: c.fraction(timeline.GraphicsUtil),
		AllowForeign: e.cfg.AllowForeign, Coverage: c.Coverage, Model: t.model, Parallel: t.parallel(),
		Pipeline: t.spec.PP, Replicas: t.spec.DP,
		// Fewer requests than copies leave one without any, which steps along all the same.
		IdleRank: t.spec.DP > 1 && c.Batch.OK() && c.Batch.Value <= float64(t.spec.DP-1),
		Rho:      timeline.Absent("no byte model"), Preempted: c.Preemptions.Value,
		Coalesced: t.now.events > 0 && float64(t.now.coalesced) > coalescedPart*float64(t.now.events),
	}
	if pooled.windows > 0 {
		in.WindowS = pooled.widths / float64(pooled.windows)
	}
	in.Work = verdict.Work{
		Running: c.Batch, Decode: c.OutputTokens, Prompt: promptWork(c, t), Context: c.ContextSum, Steps: c.Steps,
	}
	if !c.Batch.OK() && c.Decoding > 0 {
		in.Work.Running = timeline.Known(c.Decoding) // at least these
		in.ClockBoundS = t.now.clockBound            // the probe alone says that the engine decoded
	}
	for _, i := range t.gpus {
		g := &e.gpus[i]
		in.Foreign = in.Foreign || g.foreign || g.shared || g.beside > c.Span.Start
	}
	// At the lowest level nobody watches the traffic, so that none of it can be missed: all counts are the engine's.
	in.NoProbe = c.Level == timeline.L0 && !c.Coverage.OK() && c.Batch.OK() && c.OutputTokens.OK()
	in.Gate = e.gateOf(c, t, pooled, broken)
	if len(t.gpus) > 0 {
		in.Eta = e.gpus[t.gpus[0]].eta
		in.Device = e.device(c, t, pooled)
		in.Ranks = ranks(c, t)
	}
	c.ModelledBytes = modelled(c, t, &in)
	return in
}

// promptWork returns the prompt tokens whose work fell in the cell. Engines count a prompt when it is complete, so that
// the work of a prompt counted in the next second may have been done in this one; and they do not count what they
// compute again after a preemption.
func promptWork(c *Cell, t *target) timeline.Measure {
	work := c.PromptTokens
	if !work.OK() {
		return work
	}
	next := timeline.Span{Start: c.Span.End, End: c.Span.End.Add(c.Span.Duration())}
	if ahead := t.processed(next); work.Value <= 0 && ahead.OK() {
		work.Value = ahead.Value / 2
	}
	if c.Preemptions.OK() && c.ContextSum.OK() && c.Batch.OK() && c.Batch.Value > 0 {
		work.Value += c.Preemptions.Value * c.ContextSum.Value / c.Batch.Value
	}
	return work
}

// processed returns the prompt tokens that the engine counted over span, without those it found in its cache.
func (t *target) processed(span timeline.Span) timeline.Measure {
	m := t.scrapes.growth(timeline.PromptTotal, span)
	if hits := t.scrapes.growth(timeline.PrefixHits, span); m.OK() && hits.OK() {
		m.Value = max(0, m.Value-hits.Value)
	}
	return m
}

// coalescedPart of the token events sharing a read makes gaps doubtful.
const coalescedPart = 0.05

// fraction returns a counter's mean as a measure.
func (c *Cell) fraction(k timeline.Counter) timeline.Measure {
	if m := c.Counters[k]; m.OK() {
		return timeline.Known(m.Value)
	}
	return timeline.Absent(verdict.ReasonNoCounters)
}

// gateOf returns why nothing can be said of the cell, as far as the verdict cannot see it itself.
func (e *Engine) gateOf(c *Cell, t *target, pooled *sums, broken bool) string {
	if len(t.gpus) == 0 || t.missing {
		return e.unmapped(c.Span)
	}
	if broken {
		return verdict.ReasonClock
	}
	if !c.Decode {
		if c.Active > 0 || c.Batch.OK() && c.Batch.Value > 0 {
			return verdict.ReasonNoDecode
		}
		return verdict.ReasonIdle
	}
	for _, i := range t.gpus {
		g := &e.gpus[i]
		if g.spec.MIG {
			return verdict.ReasonMIG
		}
	}
	if pooled.covered > 0 {
		return ""
	}
	return e.uncovered(c, t, pooled)
}

// uncovered returns why no trusted window lies in the cell.
func (e *Engine) uncovered(c *Cell, t *target, pooled *sums) string {
	missed := false // by a reader that has them
	for _, i := range t.gpus {
		g := &e.gpus[i]
		if g.doubted > c.Span.Start || g.untrusted.Has(timeline.DRAMUtil) { // a sampler may keep what it does not trust
			return verdict.ReasonUntrusted
		}
		missed = missed || g.spec.GPM && !g.denied.Has(timeline.DRAMUtil) && g.deniedTo < c.Span.End
	}
	switch read := pooled.seconds[timeline.GPUDuty] > 0 || pooled.seconds[timeline.MemDuty] > 0; {
	case read && missed:
		return verdict.ReasonWindows
	case read:
		return verdict.ReasonLegacy
	}
	return verdict.ReasonNoCounters
}

// unmapped returns why a target without GPUs has no counters: those that are read cannot be tied to it, or none is read.
func (e *Engine) unmapped(span timeline.Span) string {
	from, to := e.life(span)
	for i := range e.gpus {
		if e.gpus[i].heard.in(from, to) {
			return verdict.ReasonNoMapping
		}
	}
	return verdict.ReasonNoCounters
}

// device gathers what tells whether the GPUs ran as they should. The slowest stands for the group: all wait for it.
func (e *Engine) device(c *Cell, t *target, pooled *sums) verdict.Device {
	d := verdict.Device{
		Reasons: pooled.reasons, Clock: timeline.Absent(verdict.ReasonNoCounters), Power: timeline.Absent(verdict.ReasonNoCounters),
	}
	for k, i := range t.gpus {
		g, p := &e.gpus[i], &c.PerGPU[k]
		if m := p.Counters[timeline.SMClock]; m.OK() && (!d.Clock.OK() || m.Value < d.Clock.Value) {
			d.Clock = timeline.Known(m.Value)
		}
		if g.known {
			d.RateClockHz = g.hw.RateClockHz
		}
		if m := p.Counters[timeline.Power]; m.OK() && (!d.Power.OK() || m.Value > d.Power.Value) {
			d.Power = timeline.Known(m.Value)
		}
		d.PowerLimitW, d.DefaultLimitW = g.spec.PowerLimitW, g.spec.DefaultLimitW
		if m := p.Counters[timeline.PowerLimit]; m.OK() {
			d.PowerLimitW = m.Value
		}
		sec, _ := e.scratch.perGPU[k].throttled(nil)
		d.ThrottledPart = max(d.ThrottledPart, sec/c.Span.Duration().Seconds())
	}
	return d
}

// ranks lists the GPUs of a group that shares its steps.
func ranks(c *Cell, t *target) []verdict.Rank {
	if t.parallel() < 2 && t.spec.DP < 2 || len(c.PerGPU) < 2 {
		return nil
	}
	out := make([]verdict.Rank, len(c.PerGPU))
	for i := range c.PerGPU {
		p := &c.PerGPU[i]
		one := func(k timeline.Counter) timeline.Measure {
			if m := p.Counters[k]; m.OK() {
				return timeline.Known(m.Value)
			}
			return timeline.Absent(verdict.ReasonNoCounters)
		}
		out[i] = verdict.Rank{UUID: p.UUID, DRAM: one(timeline.DRAMUtil), SM: one(timeline.SMUtil), Clock: one(timeline.SMClock), Power: one(timeline.Power)}
	}
	return out
}

// modelled fills in the ratio of measured to modelled traffic, and its band, and returns the modelled traffic.
func modelled(c *Cell, t *target, in *verdict.Input) timeline.Measure {
	if t.model == nil {
		if t.pieces() > 1 {
			return timeline.Absent("the byte model knows no pipelines or copies in lockstep")
		}
		return timeline.Absent("model, number format or gpu is not known")
	}
	st, n, ok := MeanStep(c)
	if !ok {
		return timeline.Absent("batch, context or token counts are not known")
	}
	u := roofline.Unknown{Padding: true, Draft: st.Sequences > 0}
	if hits := t.scrapes.growth(timeline.PrefixHits, c.Span); hits.OK() && hits.Value > 0 {
		u.Prefix = true
	}
	bytes := t.model.Bytes(st, u).Scale(n)
	in.Band = verdict.RhoBand(bytes, c.Steps.OK())
	if !in.NoProbe && (!c.Coverage.OK() || c.Coverage.Value < fullCoverage) {
		in.Rho = timeline.Absent("traffic coverage is below 95 %")
	} else if c.DRAMBytes.OK() && bytes.Estimate > 0 {
		in.Rho = timeline.Known(c.DRAMBytes.Value / bytes.Estimate)
	}
	return timeline.Known(bytes.Estimate)
}

// probed is what the probe knows of one target in the cell that is being closed.
type probed struct {
	active     float64 // request-seconds
	decoding   float64
	edges      []edge
	level      timeline.EvidenceLevel
	clockBound float64
	coalesced  int
	events     int
	prompt     timeline.Measure // tokens whose prefill ended in the cell
	context    timeline.Measure // token-seconds
	requests   int
}

func (p *probed) reset() {
	*p = probed{edges: p.edges[:0], prompt: timeline.Known(0), context: timeline.Known(0)}
}

// edge is a moment at which the number of decoding requests changes by one.
type edge struct {
	at timeline.Instant
	by int32
	n  int32   // decoding from here on
	in float64 // request-seconds of decode before here
}

// take adds one request's part of the cell.
func (p *probed) take(r *request, cell timeline.Span) {
	if sec := r.flight(cell.End).Overlap(cell).Seconds(); sec > 0 {
		p.active += sec
		p.requests++
		p.level = max(p.level, LevelOf(r.rec.Client))
	}
	d := r.decode(cell.End)
	if r.first != 0 || r.closed {
		p.prefilled(r, d, cell)
	}
	in := d.Intersect(cell)
	if in.Empty() {
		return
	}
	p.decoding += in.Duration().Seconds()
	p.edges = append(p.edges, edge{at: in.Start, by: 1}, edge{at: in.End, by: -1})
	p.clockBound = max(p.clockBound, r.rec.ClockBound.Seconds())
	switch {
	case !p.context.OK():
	case !r.rec.PromptKnown:
		p.context = timeline.Absent("prompt lengths are not known")
	default:
		p.context.Value += (float64(r.rec.PromptTokens) + r.tokensAt(in.Mid())) * in.Duration().Seconds()
	}
}

// prefilled counts the prompt of a request whose first token came in the cell.
func (p *probed) prefilled(r *request, d, cell timeline.Span) {
	if !cell.Contains(d.Start) || !p.prompt.OK() {
		return
	}
	if !r.rec.PromptKnown {
		p.prompt = timeline.Absent("prompt lengths are not known")
		return
	}
	p.prompt.Value += float64(max(0, r.rec.PromptTokens-r.rec.CachedTokens))
}

// settle sorts the edges and integrates the number of decoding requests.
func (p *probed) settle() {
	slices.SortFunc(p.edges, func(a, b edge) int {
		if a.at != b.at {
			if a.at < b.at {
				return -1
			}
			return 1
		}
		return int(b.by - a.by)
	})
	var n int32
	var in float64
	for i := range p.edges {
		g := &p.edges[i]
		if i > 0 {
			in += float64(n) * g.at.Sub(p.edges[i-1].at).Seconds()
		}
		n += g.by
		g.n, g.in = n, in
	}
}

// decodingUntil returns the request-seconds of decode from the start of the cell to t.
func (p *probed) decodingUntil(t timeline.Instant) float64 {
	i, _ := slices.BinarySearchFunc(p.edges, t, func(e edge, t timeline.Instant) int {
		if e.at <= t {
			return -1
		}
		return 1
	})
	if i == 0 {
		return 0
	}
	g := p.edges[i-1]
	return g.in + float64(g.n)*t.Sub(g.at).Seconds()
}

// arrived hands an event of a request's stream, which bore n tokens, to what finds steps. Choices are streams of their own.
func (t *target) arrived(q *request, ev *timeline.TokenEvent, n float64) {
	if t.arrivals == nil {
		t.arrivals = steps.New(steps.DefaultConfig())
	}
	context := 0.0
	if q.rec.PromptKnown {
		context = float64(q.rec.PromptTokens) + q.tokens
	}
	t.arrivals.Add(steps.Token{
		At: ev.At, Stream: ev.Ref ^ uint64(ev.Choice)<<48, Tokens: int32(min(n, math.MaxInt32)), Context: int32(min(context, math.MaxInt32)),
	})
}

// step fills in the mean step of the cell, and counts the steps where the engine does not.
func (t *target) step(c *Cell) {
	seen := steps.Reading{Source: steps.Arrivals, Time: timeline.Absent("no token came"), Reason: "no token came"}
	if t.arrivals != nil && (c.Tokens > 0 || c.Decoding > 0) {
		seen = t.arrivals.Cut(steps.Cut{Over: c.Span})
	}
	if c.Steps.OK() && c.Batch.OK() && c.Batch.Value >= 1 { // below, the engine idled for a part that is not known
		told := steps.Counted(c.Span, c.Steps.Value, c.Span.Duration())
		c.Step, c.StepConflict = steps.Best(told, seen), steps.Disagreement(told, seen)
		return
	}
	c.Step = seen
	if yield := seen.Streams.Value * seen.Tokens.Value; !c.Steps.OK() && seen.Holds && yield > 0 {
		c.Steps = timeline.Known(c.Tokens / yield)
	}
}

// LevelOf is the evidence that a kind of client gives, as [timeline.Request] names them.
func LevelOf(client string) timeline.EvidenceLevel {
	switch client {
	case "tap", "capture":
		return timeline.L2
	case "span", "otlp":
		return timeline.L1
	}
	return timeline.L3
}

// hostState says what of the host may explain that the GPU waited for it, if it was read near span.
func (e *Engine) hostState(span timeline.Span) string {
	near := timeline.Span{Start: span.Start.Add(-hostNear), End: span.End.Add(hostNear)}
	if e.host.Has == 0 || !near.Contains(e.host.Over.End) {
		return ""
	}
	for _, k := range []struct {
		counter timeline.HostCounter
		above   float64
		text    string
	}{
		{timeline.HostSteal, 0.05, "; the hypervisor took %.0f %% of the cores"},
		{timeline.HostCPUPressure, 0.10, "; tasks waited for a core %.0f %% of the time"},
		{timeline.HostCPUUtil, 0.90, "; the cores were %.0f %% busy"},
	} {
		if v, ok := e.host.Get(k.counter); ok && v >= k.above {
			return fmt.Sprintf(k.text, 100*v)
		}
	}
	return ""
}

// hostNear is how far from a cell a reading of the host still speaks for it.
const hostNear = 5 * time.Second
