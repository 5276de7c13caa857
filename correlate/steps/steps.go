// Package steps finds an engine's steps where the engine does not count them, from the times at which tokens came. Every
// stream that decodes gets one token of each step, so that the arrivals of different streams crowd together at the end
// of a step, as long as steps are long against the host's jitter. Whether they are is measured each time, and a reading
// that does not hold says why. From step times over batch and context it draws a second witness of whether memory
// bounded the steps, which needs no counter of the GPU.
//
// It knows arrivals and numbers that are handed in; it knows no model, no GPU and no wire.
package steps

import (
	"cmp"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Token is one event of one stream that bore tokens.
type Token struct {
	At      timeline.Instant
	Stream  uint64 // a request, or one choice of it: what gets one token a step
	Tokens  int32  // in the event; one if no count is told
	Context int32  // tokens the stream attends to: its prompt and what it has got so far; zero if not known
}

// Config bounds an estimator's memory.
type Config struct {
	MaxEvents  int // kept at once, 24 bytes each; later ones are dropped and the reading does not hold
	MaxStreams int // with events kept at once, about 60 bytes each
}

// DefaultConfig returns bounds for seconds of data: a batch of 512 at 5 ms a step brings 100,000 events a second.
func DefaultConfig() Config { return Config{MaxEvents: 1 << 19, MaxStreams: 1 << 13} }

// Estimator turns the token events of one target into readings of its steps, one for each stretch of time.
//
// Feed it so: call Add for each event that bears tokens of any stream of the target, as it comes; a little out of order
// does no harm. When a stretch (a cell of a second, say) is known to be complete, call Cut with it; stretches follow one
// another in time, and events that lie after a stretch wait for their own. A stretch in which nothing decoded needs no
// call. One that is left out, or holds too few steps to tell, is read together with the next. Cut returns one [Reading]
// by value and keeps what the next needs: the two steps at the seam, so that no step is lost or counted twice there. The
// last step of a stretch is read with the next, since more of its tokens may come; Over says which time was read.
//
// A step that yields no token, such as one of a prompt's chunks alone, is part of the next that does. Tokens of streams
// that are not observed are not missed: the length of steps holds as long as some observed stream decodes, and only the
// number of streams and the sum of contexts are then of a part.
//
// Memory is bounded by the configuration and grows only as needed; Add allocates nothing once it has grown. The same
// calls give the same readings. It is not safe for concurrent use.
type Estimator struct {
	cfg     Config
	events  []event
	streams []stream
	table   table
	sorted  bool             // events are in the order of time
	dropped int              // since the last Cut
	done    timeline.Instant // last arrival of the last step that was read
}

// event is a token event with its stream's place in streams.
type event struct {
	at      timeline.Instant
	stream  int32
	tokens  int32
	context int32
}

// stream is what a walk along the events knows of one stream.
type stream struct {
	ref  uint64
	at   timeline.Instant // of its latest event that opened its part of a step
	step int32            // that event's step, or none
}

const none = -1

// New returns an estimator with these bounds.
func New(cfg Config) *Estimator {
	cfg.MaxEvents, cfg.MaxStreams = max(1, cfg.MaxEvents), max(1, cfg.MaxStreams)
	return &Estimator{cfg: cfg, sorted: true}
}

// Add takes one event and reports whether there was room for it, and it came late for no reading.
func (e *Estimator) Add(t Token) bool {
	if t.At <= e.done || len(e.events) >= e.cfg.MaxEvents {
		e.dropped++
		return false
	}
	s := e.stream(t.Stream)
	if s == none {
		e.dropped++
		return false
	}
	e.events = append(e.events, event{at: t.At, stream: s, tokens: max(1, t.Tokens), context: max(0, t.Context)})
	if e.sorted {
		e.settle()
	}
	return true
}

// maxBack is how many places an event may have come too late for that it is put in its place at once.
const maxBack = 64

// settle moves the newest event to its place in the order of time, unless that is far away.
func (e *Estimator) settle() {
	n := len(e.events) - 1
	ev := e.events[n]
	at := n
	for at > 0 && e.events[at-1].at > ev.at {
		if n-at == maxBack {
			e.sorted = false
			return
		}
		at--
	}
	if at < n {
		copy(e.events[at+1:], e.events[at:n])
		e.events[at] = ev
	}
}

// stream returns the place of a stream, or none.
func (e *Estimator) stream(ref uint64) int32 {
	s, ok := e.table.find(ref, e.streams)
	if ok {
		return s
	}
	if len(e.streams) >= e.cfg.MaxStreams {
		return none
	}
	e.streams = append(e.streams, stream{ref: ref, step: none})
	return e.table.put(e.streams)
}

// Cut is one stretch of time to read, and what is known of it besides.
type Cut struct {
	Over timeline.Span
	// Speculates says that the engine is known to yield several tokens a step to a stream. Otherwise events of several
	// tokens may as well be those of several steps that were put together on the way, and nothing is concluded.
	Speculates bool
}

// Cut ends a stretch and returns what its arrivals say of the steps in it. Pass stretches in the order of time.
func (e *Estimator) Cut(c Cut) Reading {
	if !e.sorted {
		// The rest of the order only makes it one order.
		slices.SortFunc(e.events, func(a, b event) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.stream, b.stream), cmp.Compare(a.tokens, b.tokens))
		})
		e.sorted = true
	}
	n := e.until(c.Over.End)
	w := walk{events: e.events[:n], streams: e.streams, done: e.done}
	best := Reading{Over: c.Over, Source: Arrivals}
	period := w.period()
	if period == 0 {
		best.judge(c.Speculates)
	}
	seam := n
	for i, part := range splits {
		if period == 0 {
			break
		}
		w.split = time.Duration(part * float64(period))
		w.burst = min(time.Duration(burstPart*float64(period)), maxBurst)
		w.run()
		now := w.reading(Reading{Over: c.Over, Source: Arrivals}, c.Speculates, e.dropped)
		if i == 0 || now.Holds || now.doubt() < best.doubt() {
			best = now
		}
		if now.Holds {
			seam, e.done = w.seam, w.until
			break
		}
	}
	if best.short() {
		seam = e.until(c.Over.End.Add(-maxWait))
	}
	e.keep(seam)
	e.dropped = 0
	return best
}

// maxWait is how long events wait for more where a stretch holds too few steps to tell anything.
const maxWait = 5 * time.Second

// until returns how many events came before t.
func (e *Estimator) until(t timeline.Instant) int {
	n, _ := slices.BinarySearchFunc(e.events, t, func(ev event, t timeline.Instant) int { return cmp.Compare(ev.at, t) })
	return n
}

// keep drops all events before the one numbered first, and the streams that have no others.
func (e *Estimator) keep(first int) {
	kept := copy(e.events, e.events[first:])
	e.events = e.events[:kept]
	old := e.table.spare(e.streams)
	e.streams = e.streams[:0]
	e.table.clear()
	for i := range e.events {
		e.events[i].stream = e.stream(old[e.events[i].stream].ref)
	}
}

// table finds streams by their reference: open addressing over a power of two, at most half full.
type table struct {
	at   []int32 // place in the streams, plus one
	old  []stream
	mask uint64
}

// slot is where the search for ref begins: the top bits of a multiple of it (Knuth's multiplicative hashing).
func (t *table) slot(ref uint64) uint64 { return (ref * 0x9E3779B97F4A7C15) >> 32 & t.mask }

func (t *table) find(ref uint64, streams []stream) (int32, bool) {
	if len(t.at) == 0 {
		return none, false
	}
	for i := t.slot(ref); ; i = (i + 1) & t.mask {
		at := t.at[i]
		if at == 0 {
			return none, false
		}
		if streams[at-1].ref == ref {
			return at - 1, true
		}
	}
}

// put enters the last of the streams and returns its place.
func (t *table) put(streams []stream) int32 {
	if 2*len(streams) > len(t.at) {
		t.at = make([]int32, max(64, 2*len(t.at)))
		t.mask = uint64(len(t.at) - 1)
		for i := range streams {
			t.enter(streams[i].ref, int32(i))
		}
	} else {
		t.enter(streams[len(streams)-1].ref, int32(len(streams)-1))
	}
	return int32(len(streams) - 1)
}

func (t *table) enter(ref uint64, place int32) {
	i := t.slot(ref)
	for t.at[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.at[i] = place + 1
}

// spare returns a copy of the streams that lasts until the next call.
func (t *table) spare(streams []stream) []stream {
	t.old = append(t.old[:0], streams...)
	return t.old
}

func (t *table) clear() { clear(t.at) }
