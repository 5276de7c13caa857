package correlate

import (
	"time"

	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// request is one request in flight, or finished and waiting for the cells of its decode to close.
type request struct {
	rec    timeline.Request
	lat    latency.Record
	target int // -1 while not known
	closed bool
	late   bool // finished after the cells of its decode were closed
	warm   bool

	events      chain
	first, last timeline.Instant // of its token-bearing events so far
	heard       timeline.Instant // newest sign of life of any kind
	tokens      float64          // so far, by event; an event without a count counts as one
	acc         share

	prev, next *request // in the order of opening
}

// Silence after which an open request is taken for lost: whoever observed it may have died, and its end will never be
// told. A stream that once came at an even pace is believed for fifty of its gaps, and ten seconds at least; a request
// without a token, which may wait in a queue, for ten minutes. What is heard of it later counts again.
const (
	silentGaps    = 50
	silentStream  = 10 * time.Second
	silentRequest = 10 * time.Minute
	// lostAfter is how long a request that is no more believed is still held, for its end: a stream may stall for long.
	lostAfter = 2 * time.Minute
)

// alive returns the instant up to which an open request is believed to go on.
func (r *request) alive() timeline.Instant {
	if r.first == 0 {
		return r.heard.Add(silentRequest)
	}
	silence := silentStream
	if r.tokens > 1 {
		gaps := silentGaps * r.last.Sub(r.first).Seconds() / (r.tokens - 1)
		silence = max(silence, time.Duration(min(gaps, silentRequest.Seconds())*float64(time.Second)))
	}
	return r.last.Add(silence)
}

// lost reports whether nothing was heard of an open request for so long that nothing more is expected.
func (r *request) lost(t timeline.Instant) bool {
	return !r.closed && r.alive().Add(lostAfter) <= t
}

// decode returns the span of the decode as far as it is known at t: a request that is still open decodes on.
func (r *request) decode(t timeline.Instant) timeline.Span {
	if r.closed {
		if r.rec.First == 0 {
			return timeline.Span{}
		}
		return timeline.Span{Start: r.rec.First, End: max(r.rec.First, r.rec.Last)}
	}
	if r.first == 0 {
		return timeline.Span{}
	}
	return timeline.Span{Start: r.first, End: max(r.first, min(t, r.alive()))}
}

// tokensAt returns the tokens that had come by t, as if they had come at an even pace: cells close seconds after their
// time, when more tokens have come.
func (r *request) tokensAt(t timeline.Instant) float64 {
	if r.last <= r.first {
		return r.tokens
	}
	return r.tokens * min(1, max(0, t.Sub(r.first).Seconds()/r.last.Sub(r.first).Seconds()))
}

// flight returns the span in which the request is in flight, as far as it is known at t.
func (r *request) flight(t timeline.Instant) timeline.Span {
	start := r.rec.Sent
	if start == 0 {
		start = max(r.rec.First, r.first)
	}
	switch {
	case start == 0:
		return timeline.Span{}
	case r.closed:
		return timeline.Span{Start: start, End: max(start, r.rec.Over().End)}
	}
	return timeline.Span{Start: start, End: max(start, min(t, r.alive()))}
}

// requestList is all requests, oldest first.
type requestList struct{ head, tail *request }

func (l *requestList) push(r *request) {
	r.prev, r.next = l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *requestList) remove(r *request) {
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
}

// Open takes a request that was sent. It keeps a copy of r.
func (e *Engine) Open(r *timeline.Request) {
	q := e.requests[r.Ref]
	if q == nil {
		q = e.admit(r.Ref)
	} else if q.closed {
		return
	}
	q.rec = *r
	q.heard = max(q.heard, r.Sent, r.Head)
	e.place(q, r.Target)
	if r.Sent != 0 {
		e.saw(timeline.Span{Start: r.Sent, End: r.Sent})
	}
}

// Token takes one event of a request's stream.
func (e *Engine) Token(ev timeline.TokenEvent) {
	e.stats.Tokens++
	q := e.requests[ev.Ref]
	if q == nil { // the open record is best effort
		q = e.admit(ev.Ref)
		q.rec = timeline.Request{Ref: ev.Ref, Streaming: true}
		e.place(q, "")
	}
	if q.closed || !e.arena.push(&q.events, ev) {
		e.stats.DroppedTokens++
		if q.closed {
			return
		}
		q.rec.Flags |= timeline.FlagEventsDropped
	}
	q.heard = max(q.heard, ev.At)
	n, estimated := tokensOf(&ev)
	if !ev.Kind.Bears() || n <= 0 {
		return
	}
	first := q.first == 0
	if first {
		q.first = ev.At
	}
	q.last = max(q.last, ev.At)
	q.tokens += n
	if e.first == 0 || ev.At < e.first {
		e.first = ev.At
	}
	e.last = max(e.last, ev.At)
	if q.target < 0 {
		return
	}
	t := e.targets[q.target]
	b := t.bins.at(e.index(ev.At))
	if b == nil {
		e.stats.LateTokens++
		return
	}
	t.arrived(q, &ev, n)
	b.tokens += n
	b.fine[e.fine(ev.At)] += n
	b.events++
	if ev.Coalesced {
		b.coalesced++
	}
	if !first {
		b.decoded += n
	}
	if estimated {
		b.estimated++
	}
}

// index is the number of the cell that holds t.
func (e *Engine) index(t timeline.Instant) int64 {
	w := int64(e.cfg.Cell)
	i := int64(t) / w
	if int64(t)%w < 0 {
		i--
	}
	return i
}

// Close takes a request that ended; r is complete in itself. It keeps a copy of r.
func (e *Engine) Close(r *timeline.Request) {
	e.stats.Requests++
	q := e.requests[r.Ref]
	if q == nil {
		q = e.admit(r.Ref)
	} else if q.closed {
		return
	}
	dropped := q.rec.Flags & timeline.FlagEventsDropped
	q.rec = *r
	q.rec.Flags |= dropped
	e.place(q, r.Target)
	q.closed = true
	over := r.Over()
	e.saw(over)
	if e.started && over.End <= e.cursor && q.acc.cells == 0 && r.First != 0 {
		q.late = true
		e.stats.LateRequests++
	}
	e.scratch.events = e.arena.take(e.scratch.events[:0], &q.events)
	if len(e.scratch.events) < r.Events {
		q.rec.Flags |= timeline.FlagEventsDropped
	}
	q.lat = latency.Of(&q.rec, e.scratch.events)
	if q.target >= 0 {
		t := e.targets[q.target]
		q.warm = t.warm < e.cfg.Warmup
		t.warm++
		if q.tokens == 0 && r.Counted != timeline.CountNone {
			e.spread(t, float64(r.OutputTokens), over)
		}
	}
}

// spread counts the tokens of a reply that came whole: the probe saw them all, at no time of their own. They are put at
// an even pace into the cells of the request that are still open, so that traffic coverage does not miss them.
func (e *Engine) spread(t *target, tokens float64, over timeline.Span) {
	over.Start = max(over.Start, e.cursor, over.End.Add(-maxBins*e.cfg.Cell))
	if tokens <= 0 || over.Empty() {
		return
	}
	for i := e.index(over.Start); i <= e.index(over.End-1); i++ {
		b := t.bins.at(i)
		if b == nil {
			continue
		}
		part := over.Intersect(e.cellSpan(i))
		n := tokens * part.Duration().Seconds() / over.Duration().Seconds()
		b.tokens += n
		b.estimated++
		from, to := e.fine(part.Start), e.fine(part.End-1)
		for k := from; k <= to; k++ {
			b.fine[k] += n / float64(to-from+1)
		}
	}
}

// admit makes room for a request and lists it as the newest.
func (e *Engine) admit(ref uint64) *request {
	if len(e.requests) >= e.cfg.MaxRequests {
		e.stats.EvictedRequests++
		e.drop(e.oldest.head)
	}
	var q *request
	if n := len(e.free); n > 0 {
		q, e.free = e.free[n-1], e.free[:n-1]
	} else {
		slab := make([]request, slabRequests)
		for i := 1; i < len(slab); i++ {
			e.free = append(e.free, &slab[i])
		}
		q = &slab[0]
	}
	*q = request{target: -1}
	e.requests[ref] = q
	q.rec.Ref = ref
	e.oldest.push(q)
	return q
}

// slabRequests is how many requests are allocated at once.
const slabRequests = 64

// drop forgets a request.
func (e *Engine) drop(q *request) {
	e.arena.release(&q.events)
	delete(e.requests, q.rec.Ref)
	e.oldest.remove(q)
	q.lat = latency.Record{}
	e.free = append(e.free, q)
}

// place ties a request to its target. A request without one goes to the only target there is.
func (e *Engine) place(q *request, name string) {
	if q.target >= 0 && (name == "" || e.targets[q.target].spec.Name == name) {
		return
	}
	i, ok := e.resolve(name)
	if !ok {
		e.stats.UnknownTargets++
		return
	}
	q.target = i
	if over := q.rec.Over(); over.Start != 0 {
		e.targets[i].heard.add(over)
	}
}

// blockEvents is how many token events one block of the arena holds.
const blockEvents = 32

// block is a run of events of one request.
type block struct {
	events [blockEvents]timeline.TokenEvent
	n      int
	next   int32 // one more than its position; zero: none
}

// chain is the blocks of one request.
type chain struct{ head, tail int32 }

// arena holds the events of all requests in flight, in blocks, up to a limit.
type arena struct {
	slabs [][]block
	free  int32 // one more than the position of a free block; zero: none
	used  int   // blocks ever handed out
	limit int
}

// slabBlocks is how many blocks are allocated at once.
const slabBlocks = 256

func (a *arena) at(i int32) *block { return &a.slabs[(i-1)/slabBlocks][(i-1)%slabBlocks] }

// push appends an event and reports false if there is no room.
func (a *arena) push(c *chain, ev timeline.TokenEvent) bool {
	if c.tail == 0 || a.at(c.tail).n == blockEvents {
		i := a.get()
		if i == 0 {
			return false
		}
		if c.tail == 0 {
			c.head = i
		} else {
			a.at(c.tail).next = i
		}
		c.tail = i
	}
	b := a.at(c.tail)
	b.events[b.n] = ev
	b.n++
	return true
}

func (a *arena) get() int32 {
	if i := a.free; i != 0 {
		b := a.at(i)
		a.free, b.next, b.n = b.next, 0, 0
		return i
	}
	if a.used >= a.limit {
		return 0
	}
	if a.used%slabBlocks == 0 {
		a.slabs = append(a.slabs, make([]block, min(slabBlocks, a.limit-a.used)))
	}
	a.used++
	return int32(a.used) // bounded by limit, which is far below 2^31
}

// take appends the events of the chain to dst and frees its blocks.
func (a *arena) take(dst []timeline.TokenEvent, c *chain) []timeline.TokenEvent {
	for i := c.head; i != 0; i = a.at(i).next {
		b := a.at(i)
		dst = append(dst, b.events[:b.n]...)
	}
	a.release(c)
	return dst
}

func (a *arena) release(c *chain) {
	if c.head == 0 {
		return
	}
	a.at(c.tail).next = a.free
	a.free = c.head
	*c = chain{}
}
