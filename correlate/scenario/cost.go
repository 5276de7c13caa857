package scenario

import (
	"slices"
	"time"
)

// Cost is what a fault costs over a span, in seconds per token of one request.
type Cost struct {
	With    float64
	Without float64 // the same steps at the same batches, had the fault not been there
}

// Direct returns what the fault adds to the time per token by itself: by which the steps get longer, or bring less, with
// everything else as it is. That they get longer still because the batch grows in turn is not part of it.
func (c Cost) Direct() float64 { return c.With - c.Without }

// DirectCost returns what the faults of a kind cost a target over a span. Both sides are worked out from the steps of
// the span: once as they ran, and once more without the fault. Faults of the requests themselves, longer ones, cost
// nothing at the same batches.
func (tl *Timeline) DirectCost(target int, kind FaultKind, from, to time.Duration) Cost {
	tr := &tl.tracks[target]
	healthy := track{plants: tr.plants, steps: make([]step, 2), ranks: make([][]segment, len(tr.ranks))}
	for rank := range healthy.ranks {
		healthy.ranks[rank] = make([]segment, 1)
	}
	programs := make([]program, len(tr.plants))
	var with, without, tokens, given float64
	for i := tr.find(max(0, from)); i < len(tr.steps)-1; i++ {
		st, next := &tr.steps[i], &tr.steps[i+1]
		if st.idle || next.start <= from {
			continue
		}
		if next.start > min(to, tl.Duration()) {
			break
		}
		healthy.steps[0] = st.without(kind, &tl.scenario.Targets[target])
		for rank := range healthy.ranks {
			healthy.ranks[rank][0].cond = tr.ranks[rank][i].cond.without(kind)
		}
		var decode, drafts int
		for _, b := range st.batches {
			decode += b.decode
			drafts = max(drafts, b.drafts)
		}
		with += float64(decode) * (next.start - st.start).Seconds()
		without += float64(decode) * healthy.synchronize(0, programs).Seconds()
		tokens += float64(next.done.output-st.done.output) - float64(next.done.firsts-st.done.firsts)
		given += float64(decode) * expected(drafts, tl.scenario.Targets[target].Engine.Accept)
	}
	if tokens == 0 {
		return Cost{}
	}
	if kind != Acceptance {
		given = tokens
	}
	return Cost{With: with / tokens, Without: without / given}
}

// expected is how many tokens a sequence gets from a step in the mean, with so many guesses of such a chance each.
func expected(drafts int, accept float64) float64 {
	sum, p := 1.0, 1.0
	for range drafts {
		p *= accept
		sum += p
	}
	return sum
}

// without returns the step as it would be without a fault.
func (st *step) without(kind FaultKind, t *TargetSpec) step {
	s := *st
	switch kind {
	case HostStall:
		s.gap -= s.stall
	case Eager:
		most := 0
		for _, b := range s.batches {
			most = max(most, b.tokens())
		}
		s.eager = !t.Engine.Graphs || t.Engine.Capture > 0 && most > t.Engine.Capture
	case SlowLaunch:
		s.launch = t.Engine.Launch.Seconds()
	case SlowLink:
		s.link = 0
	case PrefixMiss:
		s.batches = slices.Clone(s.batches)
		for i := range s.batches {
			if b := &s.batches[i]; b.missed > 0 {
				left := float64(b.prompt-b.missed) / float64(b.prompt)
				b.prompt -= b.missed
				b.pairs *= left
				b.promptKV *= left
			}
		}
	default: // not of the step
	}
	return s
}

// without returns the condition as it would be without a fault.
func (c condition) without(kind FaultKind) condition {
	switch kind {
	case PowerCap, ClockLock, Thermal, Cooling:
		c.clock = c.free
	case BandwidthLoss:
		c.bandwidth = 1
	case Straggler:
		c.slow = 1
	case Neighbour:
		c.foreign = 0
	default: // not of one GPU
	}
	return c
}

// Without returns the scenario without its faults of a kind, so that what they cost in all, with what the load makes of
// it, can be told from two timelines.
func (s *Scenario) Without(kind FaultKind) *Scenario {
	c := *s
	c.Faults = slices.DeleteFunc(slices.Clone(s.Faults), func(f Fault) bool { return f.Kind == kind })
	return &c
}
