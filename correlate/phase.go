package correlate

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

const (
	minWhole   = 3    // whole windows for a request to be more than its batch
	aloneUpTo  = 1.05 // mean decoding requests, itself included
	aloneBatch = 1.2  // mean batch as the engine tells: scrapes blur its edges
	knownPart  = 0.8  // of the decode, in which coverage must be known
	// overlayPart of the decode is what a circumstance must hold to be named.
	overlayPart = 0.1
)

// labelOrder lists the labels by the place of their time in a share.
var labelOrder = timeline.Labels()

// overlayOrder lists the overlays by the place of their time in a share.
var overlayOrder = [...]timeline.Overlay{
	timeline.Throttled, timeline.PrefillInterference, timeline.Preempted, timeline.NoisyNeighbour, timeline.CommOrStraggler,
}

// share is what closed cells gave to one request's decode.
type share struct {
	cells      int
	seconds    float64
	determined float64 // s, under cells with a verdict
	labels     [timeline.NumLabels]float64
	shares     timeline.Shares // times seconds determined
	reason     string          // of the undetermined cell that took longest
	reasonS    float64
	overlays   [len(overlayOrder)]float64 // s
	sums       sums
	throttled  float64
	company    float64 // request-seconds of decode meanwhile, itself included
	foreign    bool
	coverage   float64 // times seconds in which it was known
	coveredS   float64
	batch      float64                                 // request-seconds that the engine told
	conf       [timeline.NumLabels]timeline.Confidence // of the newest run of each label
}

// attribute gives each request that decoded in the cell its part of it.
func (e *Engine) attribute(index int, t *target, c *Cell, pooled *sums) {
	for q := e.oldest.head; q != nil; q = q.next {
		if q.target != index {
			continue
		}
		d := q.decode(c.Span.End)
		in := d.Intersect(c.Span)
		if in.Empty() {
			continue
		}
		sec := in.Duration().Seconds()
		a := &q.acc
		a.cells++
		a.seconds += sec
		a.take(c, sec, t.run.confidence())
		a.company += t.now.decodingUntil(in.End) - t.now.decodingUntil(in.Start)
		if in == c.Span && (!q.closed || d.End > c.Span.End) && d.Start < c.Span.Start {
			a.sums.merge(pooled)
			continue
		}
		within := d
		if !q.closed {
			within.End = always.End
		}
		for _, i := range t.gpus {
			e.gpus[i].integrate(&a.sums, in, within)
		}
	}
}

// take adds sec seconds of the cell's verdict.
func (a *share) take(c *Cell, sec float64, confidence timeline.Confidence) {
	v := &c.Verdict
	for i, l := range labelOrder {
		if l == v.Label {
			a.labels[i] += sec
			a.conf[i] = confidence
		}
	}
	if v.OK() {
		a.determined += sec
		a.shares = a.shares.Add(v.Shares, sec)
	} else if sec >= a.reasonS {
		a.reason, a.reasonS = v.Reason, sec
	}
	for i, o := range overlayOrder {
		if slices.Contains(v.Overlays, o) {
			a.overlays[i] += sec
			a.foreign = a.foreign || o == timeline.NoisyNeighbour
		}
	}
	a.foreign = a.foreign || v.Reason == verdict.ReasonForeign
	a.throttled += c.ThrottledS * sec / c.Span.Duration().Seconds()
	if c.Coverage.OK() {
		a.coverage += sec * c.Coverage.Value
		a.coveredS += sec
	}
	if c.Batch.OK() {
		a.batch += sec * c.Batch.Value
	}
}

// GiveUp ends all requests that are open, where nothing more of them can come: their observer is gone, or what was recorded
// of them ends. Each is concluded with its last sign of life, as unfinished and without an end.
func (e *Engine) GiveUp() {
	for q := e.oldest.head; q != nil; q = q.next {
		if !q.closed {
			e.giveUp(q)
		}
	}
}

// giveUpLost ends the open requests of which nothing was heard for too long. One that is heard of after all is a request
// of its own from there on; its end, which is complete in itself, tells its whole latency.
func (e *Engine) giveUpLost() {
	for q := e.oldest.head; q != nil; q = q.next {
		if q.lost(e.cursor) {
			e.giveUp(q)
			e.stats.LostRequests++
		}
	}
}

// giveUp ends a request as far as its events tell.
func (e *Engine) giveUp(q *request) {
	r := &q.rec
	r.Status, r.Done = timeline.StatusUnfinished, 0
	e.scratch.events = e.arena.take(e.scratch.events[:0], &q.events)
	for i := range e.scratch.events {
		witness(r, &e.scratch.events[i])
	}
	q.closed = true
	q.lat = latency.Of(r, e.scratch.events)
}

// witness adds one event to what is known of a request that has no end.
func witness(r *timeline.Request, ev *timeline.TokenEvent) {
	if !ev.Kind.Bears() {
		return
	}
	n := int(ev.Tokens)
	if ev.Source == timeline.CountNone {
		n = 0
	}
	if r.First == 0 {
		r.First, r.FirstTokens, r.Counted = ev.At, n, ev.Source
	}
	r.Last = max(r.Last, ev.At)
	r.Events++
	r.OutputTokens += n
	if ev.Source == timeline.CountNone || r.Counted == timeline.CountNone {
		r.Counted = timeline.CountNone
	} else {
		r.Counted = max(r.Counted, ev.Source) // the weakest of the sources
	}
}

// emitPhases appends the phases of all finished requests whose decode lies in closed cells, in the order in which the
// requests were opened.
func (e *Engine) emitPhases(dst *Output) {
	for q := e.oldest.head; q != nil; {
		next := q.next
		if q.closed {
			end := q.rec.Over().End
			if q.rec.First != 0 {
				end = q.decode(e.cursor).End
			}
			if end <= e.cursor && e.started {
				dst.Phases = append(dst.Phases, e.phase(q))
				e.stats.Phases++
				e.drop(q)
			}
		}
		q = next
	}
}

// phase concludes a request.
func (e *Engine) phase(q *request) Phase {
	a := &q.acc
	p := Phase{
		Request: q.rec, Latency: q.lat, Warmup: q.warm, ThrottledS: a.throttled, ClockBoundS: q.rec.ClockBound.Seconds(),
		Concurrency: timeline.Absent(whyNoDecode), DRAMBytes: timeline.Absent(whyNoDecode),
		Label: timeline.Undetermined, Grade: timeline.Insufficient,
	}
	if q.target >= 0 && p.Request.Target == "" {
		p.Request.Target = e.targets[q.target].spec.Name
	}
	if q.rec.First == 0 || a.seconds <= 0 {
		p.Reason = whyNoDecode
		if q.late {
			p.Reason = "finished after its cells were closed"
		}
		return p
	}
	gpus := 1.0
	if q.target >= 0 {
		gpus = max(1, float64(len(e.targets[q.target].gpus)))
	}
	p.Concurrency = timeline.Known(a.company / a.seconds)
	for k := range a.sums.has.All() {
		p.Counters[k] = a.sums.mean(k)
		p.Counters[k].CoveredS /= gpus
	}
	p.Windows = int(float64(a.sums.windows) / gpus)
	p.DRAMBytes = scaledBytes(a.sums.bytes, a.sums.covered, a.seconds*gpus)
	for i, o := range overlayOrder {
		if a.overlays[i] > 0 && a.overlays[i] >= overlayPart*a.seconds {
			p.Overlays = append(p.Overlays, o)
		}
	}
	p.Mixture = a.mixture()
	p.Label, p.Reason, p.Confidence = a.label()
	if a.determined > 0 {
		p.Shares = a.shares.Scale(1 / a.determined)
	}
	if p.Windows > 0 && p.ClockBoundS > clockPart*a.sums.widths/float64(a.sums.windows) {
		p.Label, p.Reason = timeline.Undetermined, verdict.ReasonClock
	}
	if p.Label == timeline.Undetermined {
		p.Confidence = timeline.NoConfidence
	}
	p.Grade = a.grade(&p)
	return p
}

const (
	whyNoDecode = "no decode was seen"
	clockPart   = 0.25 // of a window: beyond, it is not known which windows are the request's
)

// mixture lists the labels of the cells that the decode spans by their part of its time, the largest first.
func (a *share) mixture() []Part {
	out := make([]Part, 0, 4)
	for i, sec := range a.labels {
		if sec > 0 {
			out = append(out, Part{labelOrder[i], sec / a.seconds})
		}
	}
	slices.SortStableFunc(out, func(x, y Part) int {
		switch {
		case x.Share > y.Share:
			return -1
		case x.Share < y.Share:
			return 1
		}
		return 0
	})
	return out
}

// label returns the label that holds at least 60 % of the decode, else mixed, and how sure that is: as sure as the run
// of like cells that the decode ended in.
func (a *share) label() (timeline.Label, string, timeline.Confidence) {
	for i, sec := range a.labels {
		if sec >= verdict.Dominant*a.seconds {
			if labelOrder[i] == timeline.Undetermined {
				return timeline.Undetermined, a.reason, timeline.NoConfidence
			}
			return labelOrder[i], "", a.conf[i]
		}
	}
	return timeline.Mixed, "no label holds 60 % of the decode", timeline.Low
}

// grade says how much of what was read is the request's own.
func (a *share) grade(p *Phase) timeline.Grade {
	switch {
	case a.foreign:
		return timeline.Contaminated
	case p.Label == timeline.Undetermined && p.Reason != verdict.ReasonNoShare:
		return timeline.Insufficient
	case p.Windows < minWhole:
		return timeline.Inherited
	case a.alone(p.Concurrency.Value):
		return timeline.Isolated
	}
	return timeline.Shared
}

// alone reports whether nothing else was in the batch: the probe saw all traffic, and neither it nor the engine knows
// of more than one request.
func (a *share) alone(company float64) bool {
	return a.coveredS >= knownPart*a.seconds && a.coverage >= fullCoverage*a.coveredS &&
		company <= aloneUpTo && a.batch <= aloneBatch*a.seconds
}
