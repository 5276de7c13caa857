package correlate

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// target is a GPU group that serves one engine, and what is known of it that is not yet in a cell.
type target struct {
	spec    timeline.Target
	gpus    []int
	missing bool // a GPU of the list is not there
	model   *roofline.Model
	scrapes scrapes
	bins    bins
	// arrivals finds steps in the tokens that come, nil until one does.
	arrivals *steps.Estimator
	warm     int       // requests finished since the engine started
	seen     []Matched // newest, for the coverage of a cell
	came     float64   // tokens that came to clients before the cell that is closed next
	heard    heard
	run      likeCells
	now      probed
	empty    int  // cells in a row without anything
	quiet    int  // cells in a row in which no more is known than that a request is in flight
	gone     bool // no longer configured
}

func newTarget(spec timeline.Target, _ Config) *target {
	return &target{spec: spec, scrapes: scrapes{ring: timeline.NewRing[scrape](maxScrapes)}}
}

// parallel is the number of GPUs that share each step.
func (t *target) parallel() int {
	if t.spec.TP > 0 {
		return t.spec.TP
	}
	return max(1, len(t.gpus)/t.pieces())
}

// pieces is into how many groups of the tensor-parallel degree the GPUs fall: stages of a pipeline, and copies.
func (t *target) pieces() int { return max(1, t.spec.PP) * max(1, t.spec.DP) }

// likeCells is the run of cells with one label that the newest cell belongs to.
type likeCells struct {
	cells []verdict.Timed
	at    int // length of the run when its verdict was worked out
	total int // cells in the run, also those that have left
	last  verdict.Verdict
}

// maxRun bounds the run; older cells leave it.
const maxRun = 32

// take adds a cell to the run, or starts one.
func (l *likeCells) take(v *verdict.Verdict, span timeline.Span) {
	if n := len(l.cells); n > 0 {
		last := &l.cells[n-1]
		if last.Verdict.Label != v.Label || last.Verdict.Mixed != v.Mixed || last.Over.End != span.Start {
			*l = likeCells{cells: l.cells[:0]}
		}
	}
	if len(l.cells) == maxRun {
		l.cells = l.cells[:copy(l.cells, l.cells[1:])]
	}
	l.cells = append(l.cells, verdict.Timed{Verdict: *v, Over: span})
	l.total++
}

// confidence returns that of the run. It is worked out when the run has grown by a quarter or by thirty cells, not at
// every cell.
func (l *likeCells) confidence() timeline.Confidence {
	if len(l.cells) == 0 {
		return timeline.NoConfidence
	}
	if l.at == 0 || l.total >= l.at+min(30, 1+l.at/4) {
		l.last, l.at = verdict.Run(l.cells), l.total
	}
	return l.last.Confidence
}

const (
	maxScrapes   = 1024
	maxScrapeGap = 30 * time.Second // between scrapes: beyond, nothing is known of the time between
	minScraped   = 0.5              // of a span, to speak for all of it
)

// scrape is one reading of an engine. A restart parts it from the one before.
type scrape struct {
	at      timeline.Instant
	has     uint32
	restart bool
	apart   bool    // who observes began anew since the scrape before, so that tokens came unseen
	placed  bool    // came is known
	came    float64 // tokens that had come to clients
	v       [timeline.NumEngineCounters]float64
}

func (s *scrape) told(c timeline.EngineCounter) bool { return s.has&(1<<c) != 0 }

// scrapes are the newest readings of one engine, in order of time.
type scrapes struct {
	ring *timeline.Ring[scrape]
	seen uint32 // counters ever told
	cut  bool   // the next scrape stands apart from the last
}

// add takes a scrape and reports whether the engine has restarted since the one before.
func (q *scrapes) add(s *timeline.EngineSample) bool {
	n := scrape{at: s.Over.Mid(), has: s.Has, v: s.Value, apart: q.cut}
	q.seen |= s.Has
	if k := q.ring.Len(); k > 0 {
		last := q.ring.At(k - 1)
		if n.at <= last.at {
			return false
		}
		n.restart = restarted(last, &n)
	}
	q.ring.Push(n)
	q.cut = false
	return n.restart
}

// restarted reports whether the engine started again between two scrapes: it says so, or a counter that only grows
// fell.
func restarted(a, b *scrape) bool {
	if a.told(timeline.StartTime) && b.told(timeline.StartTime) && b.v[timeline.StartTime] > a.v[timeline.StartTime]+1 {
		return true
	}
	for c := timeline.PromptTotal; c < timeline.NumEngineCounters; c++ {
		if a.told(c) && b.told(c) && b.v[c] < a.v[c] {
			return true
		}
	}
	return false
}

// forget drops scrapes that no span after t needs.
func (q *scrapes) forget(t timeline.Instant) {
	for q.ring.Len() >= 2 && q.ring.At(1).at <= t {
		first := true
		q.ring.PopWhile(func(*scrape) bool { f := first; first = false; return f })
	}
}

// next returns the instant of the first scrape from t on, the greatest if there is none.
func (q *scrapes) next(t timeline.Instant) timeline.Instant {
	for s := range q.ring.All() {
		if s.at >= t {
			return s.at
		}
	}
	return math.MaxInt64
}

// fold walks the pairs of neighbouring scrapes that both tell c, or all pairs for no counter, with the part of the time between them in span.
func (q *scrapes) fold(c timeline.EngineCounter, span timeline.Span, f func(a, b *scrape, part timeline.Span)) {
	for i := 1; i < q.ring.Len(); i++ {
		a, b := q.ring.At(i-1), q.ring.At(i)
		if a.at >= span.End {
			return
		}
		part := timeline.Span{Start: a.at, End: b.at}.Intersect(span)
		if part.Empty() || b.restart || b.at.Sub(a.at) > maxScrapeGap {
			continue
		}
		if c < timeline.NumEngineCounters && (!a.told(c) || !b.told(c)) {
			continue
		}
		f(a, b, part)
	}
}

// growth returns how much the cumulative counter c grew over span, by straight lines between scrapes.
func (q *scrapes) growth(c timeline.EngineCounter, span timeline.Span) timeline.Measure {
	var grew, covered float64
	q.fold(c, span, func(a, b *scrape, part timeline.Span) {
		sec := part.Duration().Seconds()
		covered += sec
		grew += (b.v[c] - a.v[c]) * sec / b.at.Sub(a.at).Seconds()
	})
	return q.measure(c, grew, covered, span, true)
}

// gauge returns the mean of the gauge c over span, by straight lines between scrapes.
func (q *scrapes) gauge(c timeline.EngineCounter, span timeline.Span) timeline.Measure {
	var area, covered float64
	q.fold(c, span, func(a, b *scrape, part timeline.Span) {
		at := func(t timeline.Instant) float64 {
			return a.v[c] + (b.v[c]-a.v[c])*float64(t-a.at)/float64(b.at-a.at)
		}
		sec := part.Duration().Seconds()
		covered += sec
		area += (at(part.Start) + at(part.End)) / 2 * sec
	})
	return q.measure(c, area, covered, span, false)
}

// measure makes a measure of what covered a part of span.
func (q *scrapes) measure(c timeline.EngineCounter, sum, covered float64, span timeline.Span, total bool) timeline.Measure {
	width := span.Duration().Seconds()
	switch {
	case q.seen == 0:
		return timeline.Absent(whyNoEngine)
	case q.seen&(1<<c) == 0:
		return timeline.Absent("the engine does not tell " + c.String())
	case covered < minScraped*width:
		return timeline.Absent("no scrapes over this time")
	case total:
		return timeline.Known(sum * width / covered)
	}
	return timeline.Known(sum / covered)
}

const whyNoEngine = "the engine is not scraped"

// latest returns the newest value of c at or before t, or the oldest there is.
func (q *scrapes) latest(c timeline.EngineCounter, t timeline.Instant) (float64, bool) {
	for i := q.ring.Len() - 1; i >= 0; i-- {
		if s := q.ring.At(i); s.told(c) && (s.at <= t || i == 0) {
			return s.v[c], true
		}
	}
	return 0, false
}

// stillThere is how long a GPU, or an engine, counts after the last that was heard of it.
const stillThere = 30 * time.Second

// heard is when something was heard of, in stretches that neither a long silence nor a new life of the observer parts.
type heard struct {
	spans []timeline.Span
	cut   bool
}

// maxHeard bounds the stretches; the oldest gives way.
const maxHeard = 8

func (h *heard) add(over timeline.Span) {
	if n := len(h.spans); n > 0 && !h.cut && over.Start <= h.spans[n-1].End.Add(stillThere) {
		h.spans[n-1].End = max(h.spans[n-1].End, over.End)
		return
	}
	h.cut = false
	if len(h.spans) == maxHeard {
		h.spans = h.spans[:copy(h.spans, h.spans[1:])]
	}
	h.spans = append(h.spans, over)
}

// lost keeps what fell silent because it broke: it is there until the observer's life ends.
func (h *heard) lost() {
	if n := len(h.spans); n > 0 {
		h.spans[n-1].End = always.End / 2
	}
}

// part ends what was heard in a life that ended at that instant.
func (h *heard) part(at timeline.Instant) {
	h.cut = true
	for i := range h.spans {
		h.spans[i].End = min(h.spans[i].End, at)
	}
}

// in reports whether anything was heard between from and to.
func (h *heard) in(from, to timeline.Instant) bool {
	return slices.ContainsFunc(h.spans, func(s timeline.Span) bool { return s.Start < to && s.End > from })
}

// remap ties the one target that is there to the one GPU that is there, of those that are listed. A recording lists
// all GPUs and targets that ever were, of all lives of the agent that made it; a life begins with an EventSegment, and
// what was not heard of in the cell's life, or not for [stillThere], is not there, unless it was lost. A target that names its GPUs is left
// alone, and so is a GPU that such a target names.
func (e *Engine) remap(span timeline.Span) {
	if len(e.gpus) < 2 && len(e.targets) < 2 {
		return
	}
	gpu, sole := e.there(span)
	named := slices.ContainsFunc(e.targets, func(t *target) bool {
		return !t.gone && len(t.spec.GPUs) > 0 && slices.Contains(t.gpus, gpu)
	})
	for i, t := range e.targets {
		tied := i == sole && gpu >= 0 && !named
		switch {
		case len(t.spec.GPUs) > 0:
		case tied && !slices.Equal(t.gpus, []int{gpu}):
			t.gpus = append(t.gpus[:0], gpu)
			t.model = e.modelOf(t)
		case !tied && len(t.gpus) > 0:
			t.gpus, t.model = t.gpus[:0], nil
		}
	}
}

// there returns the only GPU and the only target that are there in a cell, each -1 where there are more or none.
func (e *Engine) there(span timeline.Span) (int, int) {
	from, to := e.life(span)
	only := func(n int, heard func(int) bool) int {
		at := -1
		for i := range n {
			switch {
			case !heard(i):
			case at >= 0:
				return -1
			default:
				at = i
			}
		}
		return at
	}
	gpu := only(len(e.gpus), func(i int) bool {
		return len(e.gpus) == 1 || e.gpus[i].heard.in(from, to) && !e.cut(i, from, to)
	})
	if e.implicit && len(e.targets) == 0 && gpu >= 0 {
		e.addTarget(timeline.Target{})
	}
	return gpu, only(len(e.targets), func(i int) bool {
		t := e.targets[i]
		return !t.gone && (len(e.targets) == 1 || t.heard.in(from, to))
	})
}

// cut reports whether a GPU is cut into instances of which one is there between from and to: engines are served by
// instances, and the whole device is listed beside them for what only it tells.
func (e *Engine) cut(whole int, from, to timeline.Instant) bool {
	uuid := e.gpus[whole].spec.UUID
	return slices.ContainsFunc(e.gpus, func(g gpuState) bool {
		return uuid != "" && g.spec.ParentUUID == uuid && g.heard.in(from, to)
	})
}

// life returns between which instants that what was heard speaks for a cell.
func (e *Engine) life(span timeline.Span) (timeline.Instant, timeline.Instant) {
	from, to := span.Start.Add(-stillThere), span.End.Add(e.cfg.Lateness)
	for _, at := range e.lives {
		if at < span.End {
			from = max(from, at)
		} else {
			to = min(to, at)
		}
	}
	return from, to
}

// begin notes a new life of what observes.
func (e *Engine) begin(at timeline.Instant) {
	if len(e.lives) == maxBreaks {
		e.lives = e.lives[:copy(e.lives, e.lives[1:])]
	}
	e.lives = append(e.lives, at)
	for i := range e.gpus {
		e.gpus[i].heard.part(at)
	}
	for _, t := range e.targets {
		t.heard.part(at)
		t.scrapes.cut = true
	}
}
