package correlate

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// scratch is room that calls use again.
type scratch struct {
	events []timeline.TokenEvent
	perGPU []sums
	judged []judged
	read   timeline.Span // in the cell that is being closed
}

// judged is one target's cell before it is told.
type judged struct {
	cell   Cell
	pooled *sums
	read   bool // something was read in it, besides that a request is in flight
}

// always holds every window.
var always = timeline.Span{Start: math.MinInt64, End: math.MaxInt64}

// maxEmpty is how many cells without anything of a target come out while there is something of others.
const maxEmpty = 5

// Advance closes, in order, every cell that ends at or before upTo and appends it to dst, and after each cell the phases
// of the finished requests whose decode ends in it or before. Callers stay Config.Lateness behind the newest data, so
// that what is late still finds its cell.
func (e *Engine) Advance(dst *Output, upTo timeline.Instant) {
	if !e.started {
		if e.first == 0 || e.first >= upTo {
			return
		}
		e.cursor = e.cellStart(e.index(e.first))
	}
	for {
		span := timeline.Span{Start: e.cursor, End: e.cursor.Add(e.cfg.Cell)}
		if span.End > upTo {
			return
		}
		e.started = true
		busy := e.closeCells(dst, span)
		e.cursor = span.End
		e.giveUpLost()
		e.emitPhases(dst)
		if !busy {
			e.skip(upTo)
			e.giveUpLost()
			e.emitPhases(dst)
		}
	}
}

// Flush closes all cells that hold data, and with them all finished requests. Requests that are still open are left
// alone: whoever observes them closes them first, or [Engine.GiveUp] does.
func (e *Engine) Flush(dst *Output) {
	if e.last == 0 {
		return
	}
	end := e.cellStart(e.index(max(e.first, e.last-1))).Add(e.cfg.Cell)
	e.Advance(dst, end)
	e.emitPhases(dst)
}

func (e *Engine) cellStart(i int64) timeline.Instant {
	return timeline.Instant(i * int64(e.cfg.Cell))
}

// skip moves the cursor over a hole in the data, to the cell of the next of it.
func (e *Engine) skip(upTo timeline.Instant) {
	next := min(e.nextData(), upTo)
	if at := e.cellStart(e.index(next)); at > e.cursor {
		e.cursor = at
	}
}

// nextData returns the earliest instant from the cursor on of which anything is known, the greatest if there is none.
func (e *Engine) nextData() timeline.Instant {
	next := timeline.Instant(math.MaxInt64)
	for i := range e.gpus {
		next = min(next, e.gpus[i].next(e.cursor))
	}
	for _, t := range e.targets {
		next = min(next, t.scrapes.next(e.cursor))
		if i, ok := t.bins.next(); ok {
			next = min(next, e.cellStart(i))
		}
	}
	for q := e.oldest.head; q != nil; q = q.next {
		over := q.flight(math.MaxInt64)
		if over.Start > e.cursor {
			next = min(next, over.Start)
		}
		if q.closed && over.End > e.cursor {
			next = min(next, over.End)
		}
	}
	return next
}

// closeCells closes one cell of every target and reports whether anything was read in it. A cell in which nothing was
// read of any target is never told, also when requests are in flight: whoever watches was not watching, and how many such
// cells are looked at depends on how often the engine is advanced.
func (e *Engine) closeCells(dst *Output, span timeline.Span) bool {
	for _, t := range e.targets {
		t.now.reset()
	}
	for q := e.oldest.head; q != nil; q = q.next {
		if q.target >= 0 {
			e.targets[q.target].now.take(q, span)
		}
	}
	e.scratch.read = e.readIn(span)
	e.remap(span)
	broken := e.brokenIn(span)
	told := false
	e.scratch.judged = e.scratch.judged[:0]
	for _, t := range e.targets {
		b := t.bins.pop(e.index(span.Start))
		j := e.cell(t, span, &b, broken)
		e.scratch.judged = append(e.scratch.judged, j)
		told = told || j.read && !t.gone
	}
	for i, t := range e.targets {
		if told {
			e.tell(dst, i, &e.scratch.judged[i])
		}
		t.scrapes.forget(span.End.Add(-time.Second))
	}
	for i := range e.gpus {
		e.gpus[i].forget(span.End)
	}
	return told
}

// readIn returns from when to when anything was read in span: windows and growth by their overlap, gauges at their
// moment, whatever they hold.
func (e *Engine) readIn(span timeline.Span) timeline.Span {
	var out timeline.Span
	for i := range e.gpus {
		out = out.Union(e.gpus[i].readIn(span))
	}
	for _, t := range e.targets {
		t.scrapes.fold(timeline.NumEngineCounters, span, func(_, _ *scrape, part timeline.Span) { out = out.Union(part) })
	}
	for q := e.oldest.head; q != nil; q = q.next {
		out = out.Union(q.flight(span.End).Intersect(span))
	}
	return out
}

// tell appends one target's cell, and gives the requests in flight their parts of it. Of a target of which nothing is
// known any more a few cells say so, and more while a request is in flight.
func (e *Engine) tell(dst *Output, index int, j *judged) {
	t := e.targets[index]
	if j.read || j.cell.Active <= 0 {
		t.quiet = 0
	} else {
		t.quiet++
	}
	if j.read || j.cell.Active > 0 && t.quiet <= maxQuiet {
		t.empty = 0
	} else {
		t.empty++
	}
	if t.empty > maxEmpty || t.gone {
		return
	}
	e.stats.Cells++
	dst.Cells = append(dst.Cells, j.cell)
	t.run.take(&j.cell.Verdict, j.cell.Span)
	e.attribute(index, t, &j.cell, j.pooled)
}

// brokenIn reports whether an alignment epoch ended in span, and forgets breaks up to its end.
func (e *Engine) brokenIn(span timeline.Span) bool {
	broken := false
	kept := e.breaks[:0]
	for _, at := range e.breaks {
		switch {
		case at >= span.End:
			kept = append(kept, at)
		case at >= span.Start:
			broken = true
		}
	}
	e.breaks = kept
	return broken
}

// cell works out one cell of a target.
func (e *Engine) cell(t *target, span timeline.Span, b *bin, broken bool) judged {
	c := Cell{Target: t.spec.Name, Span: span}
	t.now.settle()
	width := span.Duration().Seconds()
	if c.Data = e.scratch.read; c.Data.Empty() {
		c.Data = timeline.Span{Start: span.Start, End: span.Start} // what gauges hold alone is no reading
	}
	e.probeCell(&c, t, b, width)
	c.Matched = t.match(&c, b)
	e.engineCell(&c, t, width)
	t.step(&c)
	pooled := e.countCell(&c, t, width)
	c.Decode = c.Decoding > 0 || c.Tokens > 0 || (c.Batch.OK() && c.Batch.Value > 0 && c.OutputTokens.OK() && c.OutputTokens.Value > 0)
	c.Level = t.now.level
	in := e.judged(&c, t, pooled, broken)
	c.Verdict = verdict.Judge(&in)
	if l := c.Verdict.Label; l == timeline.Host || l == timeline.HostOrLaunch {
		c.Verdict.Reason += e.hostState(span)
	}
	return judged{c, pooled, c.Tokens > 0 || t.scrapes.growthKnown(span) || anySeconds(pooled)}
}

// maxQuiet is how many cells come out in which a request is in flight and nothing else is known.
const maxQuiet = 600

func anySeconds(s *sums) bool {
	for _, sec := range s.seconds {
		if sec > 0 {
			return true
		}
	}
	return false
}

// probeCell fills in what came to clients.
func (e *Engine) probeCell(c *Cell, t *target, b *bin, width float64) {
	c.Tokens = b.tokens
	t.now.events, t.now.coalesced = b.events, b.coalesced
	c.TokensEstimated = b.estimated > 0
	c.Active = t.now.active / width
	c.Decoding = t.now.decoding / width
	switch {
	case t.now.decoding <= 0:
		c.WindowTPOT = timeline.Absent("nothing decoded before a client's eyes")
	case b.decoded <= 0:
		c.WindowTPOT = timeline.Absent("no token came")
	default:
		c.WindowTPOT = timeline.Known(t.now.decoding / b.decoded)
	}
}

// engineCell fills in what the engine tells, and from the probe what it does not, where the probe sees all traffic.
func (e *Engine) engineCell(c *Cell, t *target, width float64) {
	q, span := &t.scrapes, c.Span
	c.Waiting = q.gauge(timeline.Waiting, span)
	c.KVUsage = q.gauge(timeline.KVUsage, span)
	c.OutputTokens = q.growth(timeline.OutputTotal, span)
	c.Preemptions = q.growth(timeline.PreemptTotal, span)
	c.Steps = q.growth(timeline.StepTotal, span)
	c.PromptTokens = t.processed(span)
	c.EngineTPOT = q.growth(timeline.ITLSum, span)
	if n := q.growth(timeline.ITLCount, span); c.EngineTPOT.OK() {
		switch {
		case !n.OK():
			c.EngineTPOT = n
		case n.Value <= 0:
			c.EngineTPOT = timeline.Absent("no token came")
		default:
			c.EngineTPOT.Value /= n.Value
		}
	}
	c.Coverage = t.coverage(c.Matched, span.End)
	if t.now.requests == 0 && c.Tokens == 0 && c.Coverage.OK() && c.Coverage.Value == 0 {
		c.Coverage = timeline.Absent("no probe")
	}
	all := c.Coverage.OK() && c.Coverage.Value >= fullCoverage
	c.Batch = fallBack(q.gauge(timeline.Running, span), timeline.Known(c.Active), all)
	c.ContextSum = contextSum(q, c, span.End)
	context := t.now.context
	if context.OK() {
		context.Value /= width
	}
	c.ContextSum = fallBack(c.ContextSum, context, all)
	c.PromptTokens = fallBack(c.PromptTokens, t.now.prompt, all)
	if !c.OutputTokens.OK() {
		c.OutputTokens = fallBack(c.OutputTokens, timeline.Known(c.Tokens), all)
	}
}

// fullCoverage is the part of the engine's output from which on the probe stands for all traffic.
const fullCoverage = 0.95

// fallBack returns what the engine tells, else the probe's word where it sees all traffic.
func fallBack(engine, probe timeline.Measure, all bool) timeline.Measure {
	if engine.OK() || !all {
		return engine
	}
	return probe
}

// contextSum returns the tokens in the KV cache: the part in use, times blocks, times tokens in a block.
func contextSum(q *scrapes, c *Cell, at timeline.Instant) timeline.Measure {
	if !c.KVUsage.OK() {
		return c.KVUsage
	}
	blocks, ok := q.latest(timeline.KVBlocks, at)
	size, sized := q.latest(timeline.KVBlockSize, at)
	if !ok || !sized {
		return timeline.Absent("the engine does not tell the size of its KV cache")
	}
	return timeline.Known(c.KVUsage.Value * blocks * size)
}

// growthKnown reports whether scrapes cover any of span.
func (q *scrapes) growthKnown(span timeline.Span) bool {
	for i := 1; i < q.ring.Len(); i++ {
		a, b := q.ring.At(i-1), q.ring.At(i)
		if b.at.Sub(a.at) <= maxScrapeGap && a.at < span.End && b.at > span.Start {
			return true
		}
	}
	return false
}

// countCell fills in the counters, per GPU and over all.
func (e *Engine) countCell(c *Cell, t *target, width float64) *sums {
	pooled := &sums{}
	if len(t.gpus) == 0 {
		c.DRAMBytes = timeline.Absent(e.unmapped(c.Span))
		return pooled
	}
	e.scratch.perGPU = e.scratch.perGPU[:0]
	c.PerGPU = make([]GPUCell, 0, len(t.gpus))
	c.Windows, c.CoveredS = math.MaxInt, math.MaxFloat64
	for _, i := range t.gpus {
		g := &e.gpus[i]
		var s sums
		g.integrate(&s, c.Span, always)
		p := GPUCell{GPU: i, UUID: g.spec.UUID, Windows: s.windows, CoveredS: s.covered}
		for k := range s.has.All() {
			p.Counters[k] = s.mean(k)
		}
		p.DRAMBytes = scaledBytes(s.bytes, s.covered, width)
		var sec float64
		sec, p.ThrottledS = s.throttled(nil)
		c.ThrottledS += sec
		c.Windows, c.CoveredS = min(c.Windows, s.windows), min(c.CoveredS, s.covered)
		c.PerGPU = append(c.PerGPU, p)
		pooled.merge(&s)
		e.scratch.perGPU = append(e.scratch.perGPU, s)
	}
	n := float64(len(t.gpus))
	for k := range pooled.has.All() {
		c.Counters[k] = pooled.mean(k)
		c.Counters[k].CoveredS /= n
	}
	c.DRAMBytes = scaledBytes(pooled.bytes, pooled.covered, width*n)
	return pooled
}

// scaledBytes is the traffic over the whole time, from that over its covered part.
func scaledBytes(bytes, covered, seconds float64) timeline.Measure {
	if covered < minScraped*seconds {
		return timeline.Absent(verdict.ReasonCoverage)
	}
	return timeline.Known(bytes * seconds / covered)
}

// draftedFrom tokens a step and request drafts are accepted: the first tokens of new requests, and gauges that lag, stay
// below.
const draftedFrom = 1.2

// MeanStep returns the mean step of the cell, and how many there were; false where the work of a step is not known.
func MeanStep(c *Cell) (roofline.Step, float64, bool) {
	if !c.OutputTokens.OK() || !c.Batch.OK() || !c.ContextSum.OK() || !c.PromptTokens.OK() {
		return roofline.Step{}, 0, false
	}
	n := c.Steps.Value
	if !c.Steps.OK() || n <= 0 {
		n = c.OutputTokens.Value / max(1, c.Batch.Value) // each running request yields one token a step
	}
	if n <= 0 {
		return roofline.Step{}, 0, false
	}
	st := roofline.Step{Decode: c.OutputTokens.Value / n, Prompt: c.PromptTokens.Value / n, Context: c.ContextSum.Value}
	if st.Decode > draftedFrom*c.Batch.Value {
		st.Sequences = c.Batch.Value
	}
	return st, n, true
}
