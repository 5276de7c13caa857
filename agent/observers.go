package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// maxNumbers bounds the numbers that are kept of open requests, of all observers together: four times what the engine
// keeps of them. Where there are more, the observer with the most loses the older half of its own: what it still tells
// of those counts as other requests. So one that never closes its requests costs no other anything.
const maxNumbers = 1 << 16

// numbers gives the requests of all observers numbers of the store's own. It is safe for concurrent use.
type numbers struct {
	mu   sync.Mutex
	last uint64
	held int                           // in all of the maps below
	of   map[*source]map[uint64]uint64 // of requests that are open, by their observer's number; none is empty
}

// get returns the store's number of an observer's request.
func (n *numbers) get(o *source, theirs uint64) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.number(o, theirs)
}

// getAll numbers events in place.
func (n *numbers) getAll(o *source, events []timeline.TokenEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range events {
		events[i].Ref = n.number(o, events[i].Ref)
	}
}

// number is get with the lock held.
func (n *numbers) number(o *source, theirs uint64) uint64 {
	if r, ok := n.of[o][theirs]; ok {
		return r
	}
	if n.held >= maxNumbers {
		n.halve()
	}
	if n.of[o] == nil {
		n.of[o] = map[uint64]uint64{}
	}
	n.last++
	n.held++
	n.of[o][theirs] = n.last
	return n.last
}

// halve drops the older half of what the observer with the most has open. The lock is held.
func (n *numbers) halve() {
	var most *source
	for o, refs := range n.of {
		if len(refs) > len(n.of[most]) {
			most = o
		}
	}
	refs := n.of[most]
	own := slices.Sorted(maps.Values(refs))
	from := own[len(own)/2]
	kept := make(map[uint64]uint64, len(own)/2+1) // a map that is emptied keeps its room
	for theirs, r := range refs {
		if r >= from {
			kept[theirs] = r
		}
	}
	n.held -= len(refs) - len(kept)
	n.of[most] = kept
}

// drop forgets the number of a request that has ended.
func (n *numbers) drop(o *source, theirs uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	refs := n.of[o]
	if _, ok := refs[theirs]; !ok {
		return
	}
	delete(refs, theirs)
	n.held--
	if len(refs) == 0 {
		delete(n.of, o)
	}
}

// forget drops all that an observer has open.
func (n *numbers) forget(o *source) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held -= len(n.of[o])
	delete(n.of, o)
}

// Source returns the sink of one observer of requests. Observers number their requests as they like; the store gives
// each request a number of its own. A request whose record names no target gets the given one.
func (s *Store) Source(target string) timeline.RequestSink { return &source{store: s, target: target} }

// source renumbers the requests of one observer.
type source struct {
	store  *Store
	target string
}

var _ timeline.TokensSink = (*source)(nil)

// Forget lets go of what the observer has open: nothing more comes of it.
func (o *source) Forget() { o.store.numbers.forget(o) }

// OpenRequest takes a request that was sent.
func (o *source) OpenRequest(r *timeline.Request) {
	open := o.rename(r)
	s := o.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Open(&open)
	if s.keep {
		s.queue.opens = push(s.queue.opens, open, maxPendingRequests, &s.drops.Requests)
	}
}

// AddToken takes one event of an open request.
func (o *source) AddToken(e timeline.TokenEvent) {
	s := o.store
	e.Ref = s.numbers.get(o, e.Ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Token(e)
	if s.keep {
		s.queue.tokens = push(s.queue.tokens, e, maxPendingTokens, &s.drops.Tokens)
	}
}

// AddTokens takes many events under one lock: a report of a busy node holds hundreds. It numbers them in place.
func (o *source) AddTokens(events []timeline.TokenEvent) {
	s := o.store
	s.numbers.getAll(o, events)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.engine.Token(e)
		if s.keep {
			s.queue.tokens = push(s.queue.tokens, e, maxPendingTokens, &s.drops.Tokens)
		}
	}
}

// CloseRequest takes the whole record of a request that ended.
func (o *source) CloseRequest(r *timeline.Request) {
	closed := o.rename(r)
	s := o.store
	s.numbers.drop(o, r.Ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Close(&closed)
	if s.keep {
		s.queue.requests = push(s.queue.requests, closed, maxPendingRequests, &s.drops.Requests)
	}
}

func (o *source) rename(r *timeline.Request) timeline.Request {
	own := *r
	own.Ref = o.store.numbers.get(o, r.Ref)
	if own.Target == "" {
		own.Target = o.target
	}
	return own
}
