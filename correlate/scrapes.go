package correlate

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
