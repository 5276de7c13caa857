package nvml

import (
	"errors"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// errUntrusted marks a counter that contradicts what a counter of its kind can be.
var errUntrusted = errors.New("grew faster than time, or shrank")

const (
	busyDuty    = 0.5         // a duty cycle that says kernels ran
	busyReads   = 2           // consecutive slow reads that have to say so
	zeroWindows = 10          // consecutive windows that have to be all zero
	growthFloor = time.Second // between two readings, below which growth is not judged
	growthLimit = 1.1         // seconds of throttling a second can hold, with room for coarse steps
)

// trust remembers what is needed to see that a counter contradicts itself or others.
type trust struct {
	busy, zeros int
	last        [timeline.NumCounters]float64
	at          timeline.Instant
	bad         timeline.CounterSet
}

// throttleTimes are the counters of seconds held back, which no second can hold more than one of.
const throttleTimes = timeline.CounterSet(1<<timeline.ThrottlePower | 1<<timeline.ThrottleSWThermal |
	1<<timeline.ThrottleHWThermal | 1<<timeline.ThrottlePowerBrake | 1<<timeline.ThrottleSyncBoost)

// check takes throttle times out of r that grow faster than time or shrink: the ids of these fields moved between
// drivers, and a wrong id reads some other feature.
func (t *trust) check(r *Reading, at timeline.Instant) {
	if r.Has.Has(timeline.GPUDuty) {
		t.busy++
		if r.Value[timeline.GPUDuty] < busyDuty {
			t.busy = 0
		}
	}
	if r.Has&throttleTimes == 0 {
		return
	}
	passed := at.Sub(t.at)
	judge := !t.at.IsZero()
	for c := timeline.ThrottlePower; c <= timeline.ThrottleSyncBoost; c++ {
		if !r.Has.Has(c) {
			continue
		}
		grown := r.Value[c] - t.last[c]
		if judge && (grown < 0 || grown > growthLimit*max(passed, growthFloor).Seconds()) {
			t.bad |= timeline.Set(c)
		}
		t.last[c] = r.Value[c]
		if t.bad.Has(c) {
			r.Fail(c, errUntrusted)
		}
	}
	t.at = at
}

// contradicted reports whether windows have read zero for long while the duty cycle says that kernels ran: after
// some faults the driver's activity counters stay at zero (NVIDIA/DCGM#303).
func (t *trust) contradicted(r *Reading) bool {
	const activity = timeline.CounterSet(1<<timeline.GraphicsUtil | 1<<timeline.SMUtil | 1<<timeline.DRAMUtil)
	zero := r.Has&activity != 0
	for c := range timeline.Counter(timeline.NumCounters) {
		if (r.Has & activity).Has(c) && r.Value[c] != 0 {
			zero = false
		}
	}
	t.zeros++
	if !zero {
		t.zeros = 0
	}
	return t.zeros >= zeroWindows && t.busy >= busyReads
}
