// Package timeline is the language of tpotscope: instants and spans on one clock, and everything that is measured
// on it (counter readings, token events, requests, engine and host readings, events) or said of it (labels, shares,
// grades). It knows no device, no wire format and no conclusion: those are verbs, and live in the rooms above.
//
// Two rules bind every type here. A reading covers an interval, never an instant, so it carries its [Span]. And
// absent is not zero: a reading carries the set of counters it holds, and a counter that is missing from the set has
// no value at all.
package timeline

import "time"

// Instant is a point on the host's timeline in nanoseconds: CLOCK_MONOTONIC of the host the agent runs on. The zero
// Instant means "never happened"; a monotonic clock does not read zero after boot.
type Instant int64

// Add returns t moved by d.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// IsZero reports whether t never happened.
func (t Instant) IsZero() bool { return t == 0 }

// Seconds returns t in seconds of its clock.
func (t Instant) Seconds() float64 { return float64(t) / float64(time.Second) }

// Span is the half-open interval [Start, End).
type Span struct {
	Start, End Instant
}

// Duration returns the length of s, zero if s is empty or inverted.
func (s Span) Duration() time.Duration { return max(0, s.End.Sub(s.Start)) }

// Empty reports whether s holds no instant.
func (s Span) Empty() bool { return s.End <= s.Start }

// Contains reports whether t lies in s.
func (s Span) Contains(t Instant) bool { return s.Start <= t && t < s.End }

// Intersect returns the part of s that lies in o, which may be empty.
func (s Span) Intersect(o Span) Span { return Span{max(s.Start, o.Start), min(s.End, o.End)} }

// Overlap returns how long s and o have in common.
func (s Span) Overlap(o Span) time.Duration { return s.Intersect(o).Duration() }

// Union returns the smallest span that holds s and o. An empty span adds nothing.
func (s Span) Union(o Span) Span {
	switch {
	case s.Empty():
		return o
	case o.Empty():
		return s
	}
	return Span{min(s.Start, o.Start), max(s.End, o.End)}
}

// Mid returns the middle of s.
func (s Span) Mid() Instant { return s.Start + (s.End-s.Start)/2 }

// Anchor ties the host's timeline to its other clocks: one simultaneous reading of all of them. Width is the time
// the reading took, so that each conversion through an anchor is off by at most Width/2 at the anchor itself.
type Anchor struct {
	Mono   Instant       // CLOCK_MONOTONIC
	Real   int64         // CLOCK_REALTIME, ns since 1970
	Boot   int64         // CLOCK_BOOTTIME, ns; grows during suspend while Mono does not
	Width  time.Duration // between the two monotonic readings that bracket the others
	BootID string        // the kernel's boot id: instants of different boots never compare
}

// Unix returns t as nanoseconds since 1970.
func (a Anchor) Unix(t Instant) int64 { return a.Real + int64(t-a.Mono) }

// Instant returns the wall-clock reading unixNano on the timeline.
func (a Anchor) Instant(unixNano int64) Instant { return a.Mono + Instant(unixNano-a.Real) }

// Time returns t as a wall-clock time in UTC.
func (a Anchor) Time(t Instant) time.Time { return time.Unix(0, a.Unix(t)).UTC() }
