package relay

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// lagBounds are the upper bounds of the lag histograms' buckets; one more bucket holds what is beyond.
var lagBounds = [...]time.Duration{
	5 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond,
	50 * time.Millisecond, 200 * time.Millisecond, time.Second,
}

// Lag is a histogram of delays. Counts[i] holds those up to Bounds[i], and the last of Counts those beyond all bounds.
type Lag struct {
	Bounds []time.Duration
	Counts []uint64
	Sum    time.Duration
}

// Count returns how many delays the histogram holds.
func (l Lag) Count() uint64 {
	n := uint64(0)
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// Quantile returns the bound of the bucket that holds the q-th part of the delays, from 0 to 1. Beyond all bounds it
// returns the greatest.
func (l Lag) Quantile(q float64) time.Duration {
	seen, rank := uint64(0), q*float64(l.Count())
	for i, c := range l.Counts {
		if seen += c; float64(seen) >= rank && c > 0 {
			return l.Bounds[min(i, len(l.Bounds)-1)]
		}
	}
	return 0
}

// Stats are a relay's own counters since it was made.
type Stats struct {
	Requests    map[timeline.Status]uint64 // observed ones that have ended
	InFlight    int64                      // observed ones that have not
	Passed      uint64                     // requests that were passed on unobserved
	PassErrors  uint64                     // of them, without a response
	Bytes       uint64                     // of observed responses' bodies, as clients received them
	Events      map[timeline.StampSource]uint64
	Coalesced   uint64 // token events that shared a read with a later one
	StreamedReq uint64 // requests whose body was too long to be held, and that could not have been sent again
	// Wake is the time from the kernel's receipt to the return of the read; Hold the time from there until the bytes
	// were written to the client.
	Wake, Hold Lag
}

// counters are the living form of [Stats].
type counters struct {
	requests   [timeline.StatusUnfinished + 1]atomic.Uint64
	inFlight   atomic.Int64
	passed     atomic.Uint64
	passErrors atomic.Uint64
	bytes      atomic.Uint64
	kernel     atomic.Uint64
	user       atomic.Uint64
	coalesced  atomic.Uint64
	streamed   atomic.Uint64
	wake, hold lag
}

type lag struct {
	counts [len(lagBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

func (l *lag) add(d time.Duration) {
	i := 0
	for i < len(lagBounds) && d > lagBounds[i] {
		i++
	}
	l.counts[i].Add(1)
	l.sum.Add(int64(d))
}

func (l *lag) snapshot() Lag {
	s := Lag{Bounds: lagBounds[:], Counts: make([]uint64, len(l.counts)), Sum: time.Duration(l.sum.Load())}
	for i := range l.counts {
		s.Counts[i] = l.counts[i].Load()
	}
	return s
}

// ended counts a closed request.
func (c *counters) ended(r *timeline.Request) {
	c.requests[min(r.Status, timeline.StatusUnfinished)].Add(1)
	c.kernel.Add(uint64(r.KernelStamped))
	c.user.Add(uint64(r.Events - r.KernelStamped))
	c.coalesced.Add(uint64(r.Coalesced))
}

// Stats returns the relay's counters as they are now.
func (r *Relay) Stats() Stats {
	c := &r.stats
	s := Stats{
		Requests: map[timeline.Status]uint64{},
		InFlight: c.inFlight.Load(), Passed: c.passed.Load(), PassErrors: c.passErrors.Load(), Bytes: c.bytes.Load(),
		Events: map[timeline.StampSource]uint64{
			timeline.StampKernel: c.kernel.Load(), timeline.StampUser: c.user.Load(),
		},
		Coalesced: c.coalesced.Load(), StreamedReq: c.streamed.Load(),
		Wake: c.wake.snapshot(), Hold: c.hold.snapshot(),
	}
	for i := range c.requests {
		if n := c.requests[i].Load(); n > 0 {
			s.Requests[timeline.Status(i)] = n
		}
	}
	return s
}

// A request that failed has a line of its own in the log, up to so many: while an upstream is down, thousands fail alike.
const (
	failureLines = 1.0 // a second
	failureBurst = 20
)

// scarce limits log lines and counts those that it held back.
type scarce struct {
	limit *rate.Limiter
	held  atomic.Uint64
}

// admit reports whether a line may be written, and how many were held back since the last one.
func (s *scarce) admit() (held uint64, ok bool) {
	if !s.limit.Allow() {
		s.held.Add(1)
		return 0, false
	}
	return s.held.Swap(0), true
}
