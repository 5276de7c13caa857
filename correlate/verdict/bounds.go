package verdict

import "github.com/tpotscope/tpotscope/correlate/timeline"

// bound is a quantity that must lie above a threshold for the label to hold.
type bound struct {
	of    func(v *Verdict) float64
	above float64
}

// bounds lists what decides a label, the share first: at high confidence, and at medium.
func bounds(l timeline.Label, mixed bool) (high, medium []bound) {
	d := func(v *Verdict) float64 { return v.D }
	c := func(v *Verdict) float64 { return v.C }
	dc := func(v *Verdict) float64 { return v.D - v.C }
	cd := func(v *Verdict) float64 { return v.C - v.D }
	switch {
	case mixed:
		return nil, mixedBounds(l)
	case l == timeline.Mixed: // cells of several labels: nothing that could be bounded
		return nil, nil
	}
	switch l {
	case timeline.Memory:
		return []bound{{d, memorySure}, {dc, roofMargin}}, []bound{{d, memoryLikely}, {dc, roofMargin}}
	case timeline.Compute:
		return []bound{{c, computeSure}, {cd, roofMargin}}, []bound{{c, computeLikely}, {cd, roofMargin}}
	case timeline.Host, timeline.Launch, timeline.HostOrLaunch:
		return append(waitBounds(l), bound{overRoofs(l), roofMargin}), append(waitBounds(l), bound{overRoofs(l), 0})
	case timeline.Balanced:
		b := []bound{{d, bothRoofs}, {c, bothRoofs}}
		return b, b
	case timeline.Busy:
		b := []bound{
			{func(v *Verdict) float64 { return v.Shares.Memory + v.Shares.Compute + v.Shares.Other }, busySM},
			{func(v *Verdict) float64 { return 1 - max(v.D, v.C) }, 1 - memoryLikely},
		}
		return b, b
	case timeline.Communication:
		b := []bound{{func(v *Verdict) float64 { return 1 - v.D }, waitsLikely}}
		return b, b
	case timeline.Mixed, timeline.Undetermined:
	}
	return nil, nil
}

func hostShare(v *Verdict) float64   { return v.Shares.Host }
func launchShare(v *Verdict) float64 { return v.Shares.Launch }
func waitShare(v *Verdict) float64   { return v.Shares.Host + v.Shares.Launch }

// overRoofs is by how much what the label names exceeds the time at the roofs.
func overRoofs(l timeline.Label) func(v *Verdict) float64 {
	return func(v *Verdict) float64 {
		named := waitShare(v)
		switch l { //nolint:exhaustive // of the labels of waiting
		case timeline.Host:
			named = v.Shares.Host
		case timeline.Launch:
			named = v.Shares.Launch
		}
		return named - v.Shares.Memory - v.Shares.Compute
	}
}

// waitBounds lists what decides a label of waiting, beside the roofs.
func waitBounds(l timeline.Label) []bound {
	switch l { //nolint:exhaustive // of the labels of waiting
	case timeline.Host:
		return []bound{
			{hostShare, hostGap},
			{func(v *Verdict) float64 { return v.Shares.Host - hostOverSmall*v.Shares.Launch }, 0},
			{func(v *Verdict) float64 { return v.Shares.Host - v.Shares.Other }, 0},
		}
	case timeline.Launch:
		return []bound{
			{launchShare, launchSmall},
			{func(v *Verdict) float64 { return 1 - v.Shares.Host }, launchResident},
			{func(v *Verdict) float64 { return v.Shares.Launch - v.Shares.Other }, 0},
		}
	}
	return []bound{{waitShare, hostOrLaunchGap}}
}

// mixedBounds lists what decides a label at medium confidence in a run whose steps carry prompt work. That nothing
// holds such a run is shown by what each share leaves.
func mixedBounds(l timeline.Label) []bound {
	memory := func(v *Verdict) float64 { return v.Shares.Memory }
	compute := func(v *Verdict) float64 { return v.Shares.Compute }
	switch l { //nolint:exhaustive // the ladder gives mixed cells no other label that an interval could hold
	case timeline.Memory:
		return []bound{{memory, mixedRoof}}
	case timeline.Compute:
		return []bound{{compute, mixedRoof}}
	case timeline.Host:
		return []bound{{hostShare, mixedWait}}
	case timeline.Launch:
		return []bound{{launchShare, mixedWait}}
	case timeline.HostOrLaunch:
		return []bound{{waitShare, mixedWait}}
	case timeline.Mixed:
		rest := func(of func(*Verdict) float64) func(*Verdict) float64 {
			return func(v *Verdict) float64 { return 1 - of(v) }
		}
		return []bound{{rest(memory), 1 - mixedRoof}, {rest(compute), 1 - mixedRoof}, {rest(waitShare), 1 - mixedWait}}
	}
	return nil
}
