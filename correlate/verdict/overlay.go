package verdict

import (
	"math"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// SlowClock is the part of the clock that the data sheet assumes below which a clock is said to be low.
const SlowClock = 0.97

const (
	throttledPart = 0.02 // of the time: less is a blip
	lowLimit      = 0.97 // enforced power limit over the board's own
	atLimit       = 0.97 // power over the enforced limit
	windowError   = 0.03 // of a window's SM activity, one sigma: refresh and denominator are off by a twentieth at most
	sigmas        = 3.0  // of that error, for a rank to stand out
	rankSpread    = 0.03 // of SM activity, by which equal ranks may differ for good
	slowRank      = 0.97 // clock of one rank over the median of the others
)

// overlays lists the circumstances beside the label, in a fixed order.
func overlays(in *Input, v *Verdict) []timeline.Overlay {
	var out []timeline.Overlay
	idle := v.Reason == ReasonIdle || v.Reason == ReasonNoDecode // clocks of an idle GPU rest
	if !idle && throttled(&in.Device) {
		out = append(out, timeline.Throttled)
	}
	w := in.Work
	if v.Placed() && v.Mixed && w.Prompt.OK() && w.Decode.OK() && w.Decode.Value > 0 {
		out = append(out, timeline.PrefillInterference)
	}
	if in.Preempted >= 0.5 {
		out = append(out, timeline.Preempted)
	}
	if in.Foreign {
		out = append(out, timeline.NoisyNeighbour)
	}
	if v.Placed() && v.Label != timeline.Communication && in.Parallel > 1 && 1-v.D-expectedComm(in) > waitsLikely {
		out = append(out, timeline.CommOrStraggler)
	}
	return out
}

// throttled reports whether something held the clocks of a busy GPU: time under a reason that the driver states or
// counts, a clock below the one the data sheet assumes, or power at a limit that someone lowered. The clock finds locked
// clocks, for which drivers state no reason, and needs no history of the node, which a slow node would poison.
func throttled(d *Device) bool {
	switch {
	case d.ThrottledPart >= throttledPart:
		return true
	case d.RateClockHz > 0 && d.Clock.OK() && d.Clock.Value > 0 && d.Clock.Value < SlowClock*d.RateClockHz:
		return true
	}
	lowered := d.PowerLimitW > 0 && d.PowerLimitW < lowLimit*d.DefaultLimitW
	return lowered && d.Power.OK() && d.Power.Value >= atLimit*d.PowerLimitW
}

type slowest struct {
	uuid string
	wait float64 // by what part of its activity it leads the others
	time float64 // the same as a part of the time: that in which the others wait
}

// leader is the rank whose SMs were busiest, and by what part of its activity more than the mean of the others.
func leader(ranks []Rank) (slowest, bool) {
	if len(ranks) < 2 {
		return slowest{}, false
	}
	best, sum := 0, 0.0
	for i, r := range ranks {
		if !r.SM.OK() {
			return slowest{}, false
		}
		sum += r.SM.Value
		if r.SM.Value > ranks[best].SM.Value {
			best = i
		}
	}
	top := ranks[best].SM.Value
	if top <= 0 {
		return slowest{}, false
	}
	rest := (sum - top) / float64(len(ranks)-1)
	return slowest{uuid: ranks[best].UUID, wait: (top - rest) / top, time: top - rest}, true
}

// standsOut is by how much the busiest of so many equal ranks may lead through the errors of so many windows. The more
// ranks, the likelier that one of them errs far.
func standsOut(ranks, windows int) float64 {
	n := float64(max(2, ranks))
	tail := math.Sqrt(sigmas*sigmas + 2*math.Log(n/2))
	return max(rankSpread, tail*windowError/math.Sqrt(float64(max(1, windows)))*math.Sqrt(n/(n-1)))
}

// straggler finds the rank that the others wait for: its SMs are busier than theirs, whose kernels wait in a
// collective on few SMs, or its clock is lower. DRAM traffic is the same on all ranks of a group and cannot find it. What
// the SMs show is the least of the wait: those that spin in a collective count as busy.
func straggler(ranks []Rank, windows int) (slowest, bool) {
	lead, ok := leader(ranks)
	if !ok {
		return slowest{}, false
	}
	slow, clocked := slowClockRank(ranks)
	need := standsOut(len(ranks), windows)
	if clocked && slow.uuid == lead.uuid { // two signs of the same
		need /= 2
	}
	switch {
	case lead.wait >= need:
		return lead, true
	case clocked:
		return slow, true
	}
	return slowest{}, false
}

// slowClockRank finds a rank whose clock is below all others by more than the clocks of equal GPUs differ. It gives no
// time waited: the SMs did not show any.
func slowClockRank(ranks []Rank) (slowest, bool) {
	low, lowest, next := -1, 0.0, 0.0
	for i, r := range ranks {
		if !r.Clock.OK() || r.Clock.Value <= 0 {
			return slowest{}, false
		}
		switch {
		case low < 0:
			low, lowest = i, r.Clock.Value
		case r.Clock.Value < lowest:
			next, low, lowest = lowest, i, r.Clock.Value
		case next == 0 || r.Clock.Value < next:
			next = r.Clock.Value
		}
	}
	if next > 0 && lowest < slowRank*next {
		return slowest{uuid: ranks[low].UUID}, true
	}
	return slowest{}, false
}

// ClockEffect is what a lower SM clock does to the time per token.
type ClockEffect struct {
	Most   float64 // that the shares allow
	Blamed float64 // of what was observed
	Weak   bool    // less than half of the clock's own change
}

// EffectOfClock says how much of a time per token that is observed times what it was at the clock before may be blamed on
// the clock after. Neither DRAM nor host slow down with the SMs, so that only the rest of the time stretches, by the ratio
// of the clocks at most.
func EffectOfClock(s timeline.Shares, observed, before, after float64) ClockEffect {
	if before <= 0 || after <= 0 || after >= before {
		return ClockEffect{Weak: true}
	}
	change := before/after - 1
	most := (s.Compute + s.Other + s.Launch) * change
	blamed := min(most, max(0, observed-1))
	return ClockEffect{Most: most, Blamed: blamed, Weak: blamed < change/2}
}
