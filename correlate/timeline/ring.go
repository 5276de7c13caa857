package timeline

import "iter"

// Ring keeps the newest values pushed, up to its capacity, in the order of the pushes. The zero Ring has capacity
// zero: every push is dropped and counted. It is not safe for concurrent use; the agent's store holds the lock.
type Ring[T any] struct {
	buf      []T // grows up to capacity
	capacity int
	start    int
	n        int
	dropped  uint64
}

// firstRoom is how many values a ring has room for when it is made. A capacity is what the worst moment needs; a ring
// that never sees that moment does not hold the memory for it.
const firstRoom = 32

// NewRing returns a ring of the given capacity. It takes memory for as many values as it has held at once, rounded up
// to a power of two.
func NewRing[T any](capacity int) *Ring[T] {
	return &Ring[T]{buf: make([]T, min(capacity, firstRoom)), capacity: capacity}
}

// Push appends v and overwrites the oldest value if the ring is full.
func (r *Ring[T]) Push(v T) {
	if r.capacity == 0 {
		r.dropped++
		return
	}
	if r.n == len(r.buf) && r.n < r.capacity {
		r.grow()
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

// grow doubles the room, and puts the oldest value first.
func (r *Ring[T]) grow() {
	buf := make([]T, min(2*len(r.buf), r.capacity))
	copied := copy(buf, r.buf[r.start:])
	copy(buf[copied:], r.buf[:r.start])
	r.buf, r.start = buf, 0
}

// Len returns how many values the ring holds.
func (r *Ring[T]) Len() int { return r.n }

// Cap returns how many values the ring can hold.
func (r *Ring[T]) Cap() int { return r.capacity }

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
