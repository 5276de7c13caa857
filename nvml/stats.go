package nvml

import (
	"math"
	"math/bits"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Drop says why a window, or one counter of it, was not handed on.
type Drop uint8

// The reasons to drop.
const (
	DropFirst        Drop = iota // the first snapshot has nothing to be compared with
	DropShort                    // less than MinWindow
	DropLong                     // more than MaxWindow
	DropBracket                  // the call took more than a fifth of the window: its ends are not known
	DropNaN                      // the driver's arithmetic gave no number
	DropRange                    // well outside of what the counter can be
	DropFailed                   // the call failed
	DropContradicted             // all zero while the duty cycle or the power says the GPU is busy
	DropFrozen                   // the same, bit by bit, for long, while clocks or power move

	NumDrops = iota
)

var dropNames = [NumDrops]string{"first", "short", "long", "bracket", "nan", "range", "failed", "contradicted", "frozen"}

// String returns the reason's name.
func (d Drop) String() string {
	if int(d) < len(dropNames) {
		return dropNames[d]
	}
	return "unknown"
}

// LatencyBuckets is the number of buckets of a CallStats: bucket i counts calls that took less than 2^i microseconds
// and no less than half of that; the last counts all that took longer.
const LatencyBuckets = 22

// CallStats are counts of one call of the driver.
type CallStats struct {
	Count   uint64
	Errors  uint64
	Total   time.Duration
	Max     time.Duration
	Latency [LatencyBuckets]uint64
}

func (c *CallStats) add(took time.Duration, failed bool) {
	c.Count++
	if failed {
		c.Errors++
	}
	c.Total += took
	c.Max = max(c.Max, took)
	c.Latency[min(bits.Len64(uint64(max(0, took.Microseconds()))), LatencyBuckets-1)]++
}

// Quantile returns a time that the share q of the calls did not exceed, to the next bucket's end; zero before any call.
func (c *CallStats) Quantile(q float64) time.Duration {
	if c.Count == 0 {
		return 0
	}
	left := uint64(math.Ceil(q * float64(c.Count)))
	for i, n := range c.Latency {
		if n >= left {
			return min(time.Microsecond<<i, c.Max)
		}
		left -= n
	}
	return c.Max
}

// Stats are a sampler's own counts since it was made.
type Stats struct {
	Calls        [NumCalls]CallStats
	Windows      uint64           // handed on
	Dropped      [NumDrops]uint64 // windows by reason; DropNaN and DropRange count single readings of a counter
	Missed       uint64           // ticks that had to be left out because earlier ones took too long
	Gaps         uint64
	Duty         float64       // share of one thread spent in calls, over the last second
	Period       time.Duration // of the windows, as reached
	FastPeriod   time.Duration // as reached
	SlowPeriod   time.Duration // as reached
	Stretch      float64       // of the fast period, to keep the budget; 1: none
	Burst        bool          // the fast tier is read at its highest rate, because somebody asked
	Calibrated   bool          // Update is known
	InCall       time.Duration // how long the call under way has taken; zero between calls
	WindowsOfGPU bool          // the device has windows at all

	// Update is how often each counter changed when the sampler started; zero: not often enough to say.
	Update [timeline.NumCounters]time.Duration
}
