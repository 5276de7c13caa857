package timeline

import "iter"

// Ring keeps the newest values pushed, up to its capacity, in the order of the pushes. The zero Ring has capacity
// zero: every push is dropped and counted. It is not safe for concurrent use; the agent's store holds the lock.
type Ring[T any] struct {
	buf     []T
	start   int
	n       int
	dropped uint64
}

// NewRing returns a ring of the given capacity.
func NewRing[T any](capacity int) *Ring[T] { return &Ring[T]{buf: make([]T, capacity)} }

// Push appends v and overwrites the oldest value if the ring is full.
func (r *Ring[T]) Push(v T) {
	if len(r.buf) == 0 {
		r.dropped++
		return
	}
	if r.n < len(r.buf) {
		r.buf[(r.start+r.n)%len(r.buf)] = v
		r.n++
		return
	}
	r.buf[r.start] = v
	r.start = (r.start + 1) % len(r.buf)
	r.dropped++
}

// Len returns how many values the ring holds.
func (r *Ring[T]) Len() int { return r.n }

// Cap returns how many values the ring can hold.
func (r *Ring[T]) Cap() int { return len(r.buf) }

// Dropped returns how many values were overwritten or refused since the ring was made.
func (r *Ring[T]) Dropped() uint64 { return r.dropped }

// At returns the i-th oldest value. It is the caller's fault if i is not in [0, Len).
func (r *Ring[T]) At(i int) *T { return &r.buf[(r.start+i)%len(r.buf)] }

// All yields the values, oldest first. The ring must not be pushed to meanwhile.
func (r *Ring[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.n {
			if !yield(r.At(i)) {
				return
			}
		}
	}
}

// PopWhile removes the oldest values for which old says true. It stops at the first that is kept.
func (r *Ring[T]) PopWhile(old func(*T) bool) {
	var zero T
	for r.n > 0 && old(&r.buf[r.start]) {
		r.buf[r.start] = zero
		r.start = (r.start + 1) % len(r.buf)
		r.n--
	}
}
