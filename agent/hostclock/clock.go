// Package hostclock is the one reader of the host's clocks. It places instants on the host's timeline
// (CLOCK_MONOTONIC), takes the anchors that tie that timeline to the wall clock, and watches for what breaks the tie:
// steps of the wall clock, suspends and pauses. It does not know what the instants are used for.
package hostclock

import (
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Clock gives instants on the host's timeline. It is read once from CLOCK_MONOTONIC and goes on by [time.Since], which
// is about ten times cheaper than a clock_gettime system call and follows the fake time of a testing/synctest bubble.
// Instants of two processes on one host and boot compare. A Clock is safe for concurrent use.
type Clock struct {
	start  time.Time
	mono   timeline.Instant
	bootID string
}

// New returns a clock that agrees with CLOCK_MONOTONIC to within a few microseconds.
func New() (*Clock, error) {
	c := &Clock{bootID: bootID()}
	narrowest := time.Duration(-1)
	for range anchorTries {
		before := time.Now()
		mono, err := monotonic()
		if err != nil {
			return nil, fmt.Errorf("read monotonic clock: %w", err)
		}
		if width := time.Since(before); narrowest < 0 || width < narrowest {
			narrowest = width
			c.start, c.mono = before.Add(width/2), timeline.Instant(mono)
		}
	}
	return c, nil
}

// Now returns the present instant.
func (c *Clock) Now() timeline.Instant { return c.mono.Add(time.Since(c.start)) }

// FromTime places t, which must come from [time.Now] of this process and still carry its monotonic reading. A time
// without one is placed by the wall clock, and is wrong by every step since the clock was made.
func (c *Clock) FromTime(t time.Time) timeline.Instant { return c.mono.Add(t.Sub(c.start)) }

// FromKernel places a CLOCK_REALTIME reading of the kernel, such as the receive time of SO_TIMESTAMPNS, by a pair of
// readings of both clocks that [time.Now] took at read, soon after. It reports false when the kernel's reading lies
// after read: then the wall clock was set back in between, and the reading says nothing.
func (c *Clock) FromKernel(realNS int64, read time.Time) (timeline.Instant, bool) {
	lag := read.UnixNano() - realNS
	if lag < 0 {
		return 0, false
	}
	return c.FromTime(read).Add(-time.Duration(lag)), true
}

// BootID returns the kernel's id of this boot, empty where the system tells none.
func (c *Clock) BootID() string { return c.bootID }

// anchorTries is how many bracketed readings an anchor is the tightest of: enough to dodge one preemption.
const anchorTries = 5

// Anchor reads all clocks at once: each reading is bracketed by two of CLOCK_MONOTONIC, and the tightest of five is
// returned.
func (c *Clock) Anchor() (timeline.Anchor, error) {
	best := timeline.Anchor{Width: -1, BootID: c.bootID}
	for range anchorTries {
		a, err := readAll()
		if err != nil {
			return timeline.Anchor{}, fmt.Errorf("read clocks: %w", err)
		}
		if best.Width < 0 || a.Width < best.Width {
			a.BootID = c.bootID
			best = a
		}
	}
	return best, nil
}
