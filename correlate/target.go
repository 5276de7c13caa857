package correlate

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/roofline"
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
	warm    int // requests finished since the engine started
	seen    []seen
	run     likeCells
	now     probed
	empty   int  // cells in a row without anything
	quiet   int  // cells in a row in which no more is known than that a request is in flight
	gone    bool // no longer configured
}

func newTarget(spec timeline.Target, _ Config) *target {
	return &target{spec: spec, scrapes: scrapes{ring: timeline.NewRing[scrape](maxScrapes)}}
}

// parallel is the number of GPUs that share each step.
func (t *target) parallel() int {
	if t.spec.TP > 0 {
		return t.spec.TP
	}
	return max(1, len(t.gpus))
}

// seen is the output of one cell by two observers.
type seen struct {
	at            timeline.Instant // start of the cell
	probe, engine float64
	known         bool // the engine told
}

// coverage returns the probe's output over the engine's, over the newest cells in which the engine told.
func (t *target) coverage(now seen) timeline.Measure {
	t.seen = slices.DeleteFunc(t.seen, func(s seen) bool { return s.at <= now.at.Add(-coverageSpan) })
	t.seen = append(t.seen, now)
	var probe, engine float64
	var told bool
	for _, s := range t.seen {
		if s.known {
			probe, engine, told = probe+s.probe, engine+s.engine, true
		}
	}
	switch {
	case !told:
		return timeline.Absent("the engine tells no output tokens")
	case engine <= 0:
		return timeline.Absent("the engine made no output tokens")
	}
	return timeline.Known(probe / engine)
}

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

// coverageSpan is the span over which the probe's tokens are compared with the engine's: long enough that neither the
// moment of a scrape nor the way to the client matters.
const coverageSpan = 10 * time.Second

// bin is what came to clients in one cell that is not closed yet.
type bin struct {
	tokens, decoded   float64 // decoded leaves out the first event of each request
	events, estimated int
	coalesced         int
}

// maxBins bounds how far ahead of the last closed cell tokens may lie.
const maxBins = 4096

// bins are the open cells' bins, the first of them for the cell with number base.
type bins struct {
	base   int64
	floor  int64 // cells below are closed; meaningless while nothing is
	closed bool
	bin    []bin
}

// at returns the bin of cell i, nil if that cell is closed or too far from the others.
func (b *bins) at(i int64) *bin {
	if b.closed && i < b.floor {
		return nil
	}
	if len(b.bin) == 0 {
		b.base = i
	}
	if i < b.base {
		if b.base-i+int64(len(b.bin)) > maxBins {
			return nil
		}
		b.bin = append(make([]bin, b.base-i), b.bin...)
		b.base = i
	}
	if i-b.base >= maxBins {
		return nil
	}
	for int64(len(b.bin)) <= i-b.base {
		b.bin = append(b.bin, bin{})
	}
	return &b.bin[i-b.base]
}

// pop returns the bin of cell i and closes that cell and all before.
func (b *bins) pop(i int64) bin {
	var out bin
	if k := i - b.base; len(b.bin) > 0 && k >= 0 {
		if k < int64(len(b.bin)) {
			out = b.bin[k]
		}
		n := copy(b.bin, b.bin[min(k+1, int64(len(b.bin))):])
		b.bin, b.base = b.bin[:n], i+1
	}
	b.floor, b.closed = i+1, true
	return out
}

// next returns the number of the first cell with an event.
func (b *bins) next() (int64, bool) {
	for i := range b.bin {
		if b.bin[i].events > 0 {
			return b.base + int64(i), true
		}
	}
	return 0, false
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
	v       [timeline.NumEngineCounters]float64
}

func (s *scrape) told(c timeline.EngineCounter) bool { return s.has&(1<<c) != 0 }

// scrapes are the newest readings of one engine, in order of time.
type scrapes struct {
	ring *timeline.Ring[scrape]
	seen uint32 // counters ever told
}

// add takes a scrape and reports whether the engine has restarted since the one before.
func (q *scrapes) add(s *timeline.EngineSample) bool {
	n := scrape{at: s.Over.Mid(), has: s.Has, v: s.Value}
	q.seen |= s.Has
	if k := q.ring.Len(); k > 0 {
		last := q.ring.At(k - 1)
		if n.at <= last.at {
			return false
		}
		n.restart = restarted(last, &n)
	}
	q.ring.Push(n)
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

// fold walks the pairs of neighbouring scrapes that both tell c, with the part of the time between them in span.
func (q *scrapes) fold(c timeline.EngineCounter, span timeline.Span, f func(a, b *scrape, part timeline.Span)) {
	for i := 1; i < q.ring.Len(); i++ {
		a, b := q.ring.At(i-1), q.ring.At(i)
		if a.at >= span.End {
			return
		}
		part := timeline.Span{Start: a.at, End: b.at}.Intersect(span)
		if part.Empty() || b.restart || b.at.Sub(a.at) > maxScrapeGap || !a.told(c) || !b.told(c) {
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
