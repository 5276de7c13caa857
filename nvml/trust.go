package nvml

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// errUntrusted marks a counter that contradicts what a counter of its kind can be.
var errUntrusted = errors.New("grew faster than time, or shrank")

// errPegged marks a counter that stands where nothing can hold it: it contradicts what memory can do.
var errPegged = fmt.Errorf("stands at full scale, which no kernel reaches: %w", errUntrusted)

const (
	busyDuty      = 0.5         // a duty cycle that says kernels ran
	busyPower     = 0.6         // of the limit: what no idle GPU draws
	busyReads     = 2           // consecutive slow reads that have to say so
	zeroWindows   = 10          // consecutive windows that have to be all zero
	frozenWindows = 20          // consecutive windows that have to be the same, bit by bit
	frozenMoves   = 3           // changes of clocks or power in that time
	peggedWindows = 10          // consecutive windows with DRAM at full scale
	fullScale     = 0.995       // of the peak: refresh and row changes leave copies below 0.95 (research kernels reach 0.93)
	growthFloor   = time.Second // between two readings, below which growth is not judged
	growthLimit   = 1.1         // seconds of throttling a second can hold, with room for coarse steps
)

// trust remembers what is needed to see that a counter contradicts itself or others.
type trust struct {
	busy, zeros int
	pegged      int     // windows with DRAM at full scale
	limit       float64 // W, enforced
	last        [timeline.NumCounters]float64
	at          [timeline.NumCounters]timeline.Instant // of last
	bad         timeline.CounterSet

	moves        uint64 // changes of clocks and power
	clock, power float64
	window       [timeline.SMClock]float64 // of the last window
	same         int                       // windows that were like it
	sameSince    uint64                    // moves when it came
}

// throttleTimes are the counters of seconds held back, which no second can hold more than one of.
const throttleTimes = timeline.CounterSet(1<<timeline.ThrottlePower | 1<<timeline.ThrottleSWThermal |
	1<<timeline.ThrottleHWThermal | 1<<timeline.ThrottlePowerBrake | 1<<timeline.ThrottleSyncBoost)

// check takes throttle times out of r that grow faster than time or shrink: the ids of these fields moved between
// drivers, and a wrong id reads some other feature. It also takes note of what says that the GPU is busy.
func (t *trust) check(r *Reading, at timeline.Instant) {
	t.watch(r)
	if r.Has&throttleTimes == 0 {
		return
	}
	for c := timeline.ThrottlePower; c <= timeline.ThrottleSyncBoost; c++ {
		if !r.Has.Has(c) {
			continue
		}
		grown, passed := r.Value[c]-t.last[c], max(at.Sub(t.at[c]), growthFloor).Seconds()
		if !t.at[c].IsZero() && (grown < 0 || grown > growthLimit*passed) {
			t.bad |= timeline.Set(c)
		}
		t.last[c], t.at[c] = r.Value[c], at
		if t.bad.Has(c) {
			r.Fail(c, errUntrusted)
		}
	}
}

// watch takes note of duty, power and clocks.
func (t *trust) watch(r *Reading) {
	if r.Has.Has(timeline.PowerLimit) {
		t.limit = r.Value[timeline.PowerLimit]
	}
	if v := r.Value[timeline.SMClock]; r.Has.Has(timeline.SMClock) && v != t.clock {
		t.clock = v
		t.moves++
	}
	if v := r.Value[timeline.Power]; r.Has.Has(timeline.Power) && v != t.power {
		t.power = v
		t.moves++
	}
	if !r.Has.Has(timeline.GPUDuty) && !r.Has.Has(timeline.Power) {
		return
	}
	byDuty := r.Has.Has(timeline.GPUDuty) && r.Value[timeline.GPUDuty] >= busyDuty
	byPower := t.limit > 0 && r.Has.Has(timeline.Power) && r.Value[timeline.Power] >= busyPower*t.limit
	t.busy++
	if !byDuty && !byPower {
		t.busy = 0
	}
}

// contradicted reports whether windows have read zero for long while the duty cycle or the power says that kernels ran:
// after some faults the driver's activity counters stay at zero (NVIDIA/DCGM#303).
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

// full takes DRAM bandwidth out of windows once it has stood at full scale for long: a window may, by the error of its
// edges, and all of them cannot.
func (t *trust) full(r *Reading) {
	if !r.Has.Has(timeline.DRAMUtil) {
		return
	}
	t.pegged++
	if r.Value[timeline.DRAMUtil] < fullScale {
		t.pegged = 0
	}
	if t.pegged >= peggedWindows {
		r.Fail(timeline.DRAMUtil, errPegged)
	}
}

// frozen reports whether windows have said the same for long, and not nothing, while clocks or power moved.
func (t *trust) frozen(r *Reading) bool {
	same, some := true, false
	for c := range timeline.SMClock {
		if r.Has.Has(c) {
			same = same && r.Value[c] == t.window[c]
			some = some || r.Value[c] != 0
			t.window[c] = r.Value[c]
		}
	}
	t.same++
	if !same || !some {
		t.same, t.sameSince = 0, t.moves
	}
	return t.same >= frozenWindows && t.moves-t.sameSince >= frozenMoves
}

// bound is what a gauge can be.
type bound struct{ low, high float64 }

// bounds are well outside of every GPU there is, so that only nonsense lies beyond them: Hz, W, degrees, links.
var bounds = map[timeline.Counter]bound{
	timeline.SMClock: {0, 20e9}, timeline.MemClock: {0, 20e9}, timeline.Power: {0, 20e3}, timeline.PowerLimit: {0, 20e3},
	timeline.Temperature: {-60, 200}, timeline.MemTemperature: {-60, 200}, timeline.TemperatureMargin: {-200, 200},
	timeline.GPUDuty: {0, 1 + tolerance}, timeline.MemDuty: {0, 1 + tolerance}, timeline.PCIeGen: {0, 16}, timeline.PCIeWidth: {0, 64},
}

// checkGauges drops what no GPU can show.
func (s *Sampler) checkGauges() {
	for c := timeline.SMClock; c < timeline.NumCounters; c++ {
		if !s.reading.Has.Has(c) {
			continue
		}
		v, b := s.reading.Value[c], bound{0, math.Inf(1)}
		if known, ok := bounds[c]; ok {
			b = known
		}
		if c == timeline.MemUsed && s.info.MemoryBytes > 0 {
			b.high = 1.05 * float64(s.info.MemoryBytes)
		}
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			s.drop(DropNaN)
			s.reading.Has &^= timeline.Set(c)
		case v < b.low || v > b.high:
			s.drop(DropRange)
			s.reading.Has &^= timeline.Set(c)
		}
	}
}

const (
	deafTime  = 30 * time.Second
	deafCalls = 20
)

// listenFor gives a GPU up that answers no call for long, in whatever words: some drivers say only "unknown error" once
// access to the device was taken away, until they are opened anew (NVIDIA/nvidia-container-toolkit#48).
func (s *Sampler) listenFor(at timeline.Instant, err error) {
	switch StateOf(err) {
	case timeline.StateOK, timeline.StateUnsupported, timeline.StateNoPermission:
		s.answered, s.deaf = at, 0
		return
	default:
	}
	if s.answered.IsZero() {
		s.answered = at
	}
	s.deaf++
	if s.lost == nil && s.deaf >= deafCalls && at.Sub(s.answered) > deafTime {
		s.lost = fmt.Errorf("no call was answered for %v: %w: %w", at.Sub(s.answered).Round(time.Second), ErrGPULost, err)
	}
}

// steady watches for an SM clock that does not move. That clocks are locked (nvidia-smi -lgc) no call of the driver tells:
// all that shows is a clock that stands below its highest while the GPU is busy and nothing holds it. The fact is told, and
// not what it may mean.
type steady struct {
	clock float64
	since timeline.Instant // zero: it moves, is held, or the GPU rests
	at    timeline.Instant // the last reading
}

const (
	steadyFor  = 30 * time.Second
	belowFull  = 0.98 // of the highest clock: what is above is not worth a word
	steadyHole = 5 * time.Second
)

// look takes one reading of the clocks and their reasons.
func (s *steady) look(r *Reading, at timeline.Instant, busy bool) {
	clock, reasons := r.Value[timeline.SMClock], uint64(r.Value[timeline.EventReasons])
	known := r.Has.Has(timeline.SMClock) && r.Has.Has(timeline.EventReasons)
	switch {
	case !known || !busy || reasons&timeline.ReasonThrottles != 0:
		s.since = 0
	case clock != s.clock || s.since.IsZero() || at.Sub(s.at) > steadyHole:
		s.since = at
	}
	s.clock, s.at = clock, at
}

// standing returns the clock that stands below the highest, zero if there is none.
func (s *steady) standing(now timeline.Instant, highest float64) float64 {
	if s.since.IsZero() || now.Sub(s.since) < steadyFor || s.clock <= 0 || s.clock >= belowFull*highest {
		return 0
	}
	return s.clock
}
