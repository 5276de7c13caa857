package verdict

import (
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	throttledPart = 0.02 // of the time: less is a blip
	slowClock     = 0.97 // of the clock that the data sheet assumes
	lowLimit      = 0.97 // enforced power limit over the board's own
	atLimit       = 0.97 // power over the enforced limit
	waitNoise     = 0.05 // of SM activity: three times what the means of ten windows of equal ranks differ by
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
	if v.OK() && v.Mixed && w.Prompt.OK() && w.Decode.OK() && w.Decode.Value > 0 {
		out = append(out, timeline.PrefillInterference)
	}
	if in.Preempted >= 0.5 {
		out = append(out, timeline.Preempted)
	}
	if in.Foreign {
		out = append(out, timeline.NoisyNeighbour)
	}
	if v.OK() && v.Label != timeline.Communication && in.Parallel > 1 && 1-v.D > waitsLikely {
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
	case d.RateClockHz > 0 && d.Clock.OK() && d.Clock.Value > 0 && d.Clock.Value < slowClock*d.RateClockHz:
		return true
	}
	lowered := d.PowerLimitW > 0 && d.PowerLimitW < lowLimit*d.DefaultLimitW
	return lowered && d.Power.OK() && d.Power.Value >= atLimit*d.PowerLimitW
}

type slowest struct {
	uuid string
	wait float64 // part of the time that the others wait
}

// straggler finds the rank that the others wait for: its SMs are busier than theirs, whose kernels wait in a
// collective on few SMs, or its clock is lower. DRAM traffic is the same on all ranks of a group and cannot find it.
func straggler(ranks []Rank) (slowest, bool) {
	if len(ranks) < 2 {
		return slowest{}, false
	}
	best, bestSM := -1, -1.0
	for i, r := range ranks {
		if !r.SM.OK() {
			return slowest{}, false
		}
		if r.SM.Value > bestSM {
			best, bestSM = i, r.SM.Value
		}
	}
	var rest float64
	for i, r := range ranks {
		if i != best {
			rest += r.SM.Value
		}
	}
	rest /= float64(len(ranks) - 1)
	if bestSM <= 0 || bestSM-rest < waitNoise*bestSM {
		return slowClockRank(ranks)
	}
	return slowest{ranks[best].UUID, (bestSM - rest) / bestSM}, true
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
