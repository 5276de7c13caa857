package steps

import (
	"math/bits"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// burstPart is the part of a step within which two events of one stream are of the same step: an engine that yields
	// several tokens a step may send each as an event of its own.
	burstPart = 0.25
	// maxBurst bounds it: what an engine yields together it sends together, and no engine steps so fast.
	maxBurst = 2 * time.Millisecond
	// maxAbsence is the longest run of steps without a token that may come of steps that fall apart. A stream that misses
	// more in a row was preempted, or waits for something else, and says nothing of the rest.
	maxAbsence = 8
	// lowPart is the part of all streams' time that lies in their shortest gaps, from which a step's length is taken: the
	// mixed steps between decode steps are longer, and it is the shortest that must not run together.
	lowPart = 0.1
)

// splits are the gaps in arrivals that part two steps, as parts of a step, in the order in which they are tried. Half a
// step is right while jitter is below it; with many streams arrivals lie so close that a smaller gap parts steps whose
// arrivals nearly touch.
var splits = [...]float64{0.5, 0.3, 0.15}

// walk parts one stretch's events into steps.
type walk struct {
	events  []event
	streams []stream
	done    timeline.Instant // steps up to here were read before
	split   time.Duration    // a longer time without arrivals parts two steps
	burst   time.Duration    // two events of a stream within it are of one step

	total  tally
	step   tally // of the open step
	first  timeline.Instant
	last   timeline.Instant
	start  int   // number of the open step's first event
	before int   // and of the one before it
	number int32 // of the open step

	seam  int              // number of the first event that the next stretch needs
	until timeline.Instant // last arrival of the last step that was read
	from  timeline.Instant // first arrival of the first step that was read
}

// tally adds up what steps hold.
type tally struct {
	steps    int // read
	linked   int // of them, those with a stream that has a token of the step before too
	took     float64
	arrivals int // of streams in steps: their number of steps
	absent   int // steps between two of a stream of which it has no token
	doubled  int // second arrivals of a stream in a step, too late to be of it
	several  int // events of more than one token, or with another of their stream close before
	tokens   int64
	context  float64
	unknown  int // arrivals without a context
	shared   int // steps of two streams or more
	spread   time.Duration
	common   int
	gap      time.Duration
}

// period returns a low quantile of the gaps between events of a stream, each weighed by its length so that a burst
// counts for nothing; zero if there are too few. It is good to a sixteenth, which is all that is asked of it.
func (w *walk) period() time.Duration {
	var hist [64 * 16]int64
	var total int64
	gaps := 0
	w.forget()
	for i := range w.events {
		ev := &w.events[i]
		s := &w.streams[ev.stream]
		if s.step == 0 && ev.at > s.at {
			gap := uint64(ev.at - s.at)
			hist[bin(gap)] += int64(gap)
			total += int64(gap)
			gaps++
		}
		s.at, s.step = ev.at, 0
	}
	if gaps < minGaps {
		return 0
	}
	var sum int64
	for i, h := range hist {
		if sum += h; float64(sum) >= lowPart*float64(total) {
			return middle(i)
		}
	}
	return 0
}

// bin numbers lengths so that each octave has sixteen bins; middle is the middle of one.
func bin(d uint64) int {
	n := bits.Len64(d)
	if n <= 5 {
		return int(d)
	}
	return (n-4)*16 + int(d>>(n-5)&15)
}

func middle(i int) time.Duration {
	n := i/16 + 4
	if n <= 5 {
		return time.Duration(i)
	}
	low := uint64(16+i%16) << (n - 5)
	return time.Duration(low + 1<<(n-6))
}

// forget takes all streams for not seen yet.
func (w *walk) forget() {
	for i := range w.streams {
		w.streams[i].step = none
	}
}

// run walks along the events once.
func (w *walk) run() {
	w.forget()
	w.total, w.step = tally{}, tally{}
	w.number, w.seam, w.until, w.from = none, len(w.events), w.done, 0
	w.start, w.before = 0, 0
	for i := range w.events {
		ev := &w.events[i]
		if w.number == none || ev.at.Sub(w.last) > w.split {
			w.close()
			w.before, w.start = w.start, i
			w.number++
			w.first = ev.at
		}
		w.last = ev.at
		w.arrive(ev)
	}
	// The last step may go on in the next stretch, which also needs the one before it to begin from.
	if w.number != none {
		w.seam = w.before
	}
}

// arrive takes one event into the open step.
func (w *walk) arrive(ev *event) {
	t := &w.step
	s := &w.streams[ev.stream]
	t.tokens += int64(ev.tokens)
	if s.step == w.number {
		if ev.at.Sub(s.at) <= w.burst {
			t.several++
		} else {
			t.doubled++
		}
		return
	}
	t.arrivals++
	if ev.tokens > 1 {
		t.several++
	}
	t.context += float64(ev.context)
	if ev.context == 0 {
		t.unknown++
	}
	if s.step != none {
		if missed := int(w.number - s.step - 1); missed <= maxAbsence {
			t.absent += missed
		}
		if s.step == w.number-1 {
			t.common++
			t.gap += ev.at.Sub(s.at)
		}
	}
	s.step, s.at = w.number, ev.at
}

// close ends the open step and adds it to what is read, unless it was read with the stretch before.
func (w *walk) close() {
	t := w.step
	w.step = tally{}
	// A step that begins before what was read and ends after it has run together, and must show.
	if w.number == none || w.last <= w.done {
		return
	}
	w.until = w.last
	if w.total.steps == 0 {
		w.from = w.first
	}
	if t.arrivals > 1 {
		t.shared++
		t.spread += w.last.Sub(w.first)
	}
	if t.common > 0 {
		t.linked++
		t.took += t.gap.Seconds() / float64(t.common)
	}
	t.steps = 1
	w.total.add(&t)
}

func (t *tally) add(o *tally) {
	t.steps += o.steps
	t.linked += o.linked
	t.took += o.took
	t.arrivals += o.arrivals
	t.absent += o.absent
	t.doubled += o.doubled
	t.several += o.several
	t.tokens += o.tokens
	t.context += o.context
	t.unknown += o.unknown
	t.shared += o.shared
	t.spread += o.spread
}
