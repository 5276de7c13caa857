package verdict

import (
	"fmt"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Thresholds of the labels, on time shares. They sit where the published rooflines put theirs (Nsight Compute's speed
// of light: below 60 % of both peaks latency, above 80 % of one bound by it), after division by what is achievable.
const (
	memorySure      = 0.75
	memoryLikely    = 0.60
	computeSure     = 0.65 // of a calibrated roof
	computeAssumed  = 0.75
	computeLikely   = 0.60
	roofMargin      = 0.15
	likelyMargin    = 0.20
	mixedRoof       = 0.60
	hostGap         = 0.30
	launchSmall     = 0.40
	launchResident  = 0.85
	hostOrLaunchGap = 0.50
	bothRoofs       = 0.60
	busySM          = 0.70
	waitsLikely     = 0.15 // time off the DRAM roof with several ranks
)

// rung is the outcome of the ladder.
type rung struct {
	label   timeline.Label
	reason  string
	ceiling timeline.Confidence
	why     string
}

// ladder walks the labels in their fixed order; the first match wins.
func ladder(in *Input, p part, at point, v *Verdict) rung {
	if v.Mixed {
		return mixedRung(in, at, v)
	}
	sh := v.Shares
	computeMin := computeAssumed
	if sure(in.Eta.TensorOrigin) {
		computeMin = computeSure
	}
	switch {
	case p.d >= memorySure && p.d-p.c >= roofMargin:
		return rung{label: timeline.Memory, reason: fmt.Sprintf("DRAM at %.0f %% of achievable", 100*p.d), ceiling: timeline.High}
	case p.c >= computeMin && p.c-p.d >= roofMargin:
		return rung{label: timeline.Compute, reason: fmt.Sprintf("tensor cores at %.0f %% of achievable", 100*p.c), ceiling: timeline.High}
	}
	if r, ok := waitRung(in, p, sh, v); ok {
		return r
	}
	switch {
	case p.d >= memoryLikely && p.d < memorySure && p.d-p.c >= likelyMargin:
		return rung{timeline.Memory, fmt.Sprintf("DRAM at %.0f %% of achievable", 100*p.d), timeline.Medium, "DRAM is below 75 % of achievable"}
	case p.c >= computeLikely && p.c-p.d >= likelyMargin:
		return rung{timeline.Compute, fmt.Sprintf("tensor cores at %.0f %% of achievable", 100*p.c), timeline.Medium, "tensor activity is below its sure threshold"}
	case p.d >= bothRoofs && p.c >= bothRoofs:
		return rung{label: timeline.Balanced, reason: "both roofs above 60 %", ceiling: timeline.High}
	case p.hasS && p.s >= busySM:
		return rung{label: timeline.Busy, reason: fmt.Sprintf("SMs at %.0f %%, both roofs below 60 %%", 100*p.s), ceiling: timeline.High}
	}
	return rung{label: timeline.Undetermined, reason: ReasonNoShare}
}

// waitRung tells whether the GPU waited: for other ranks, for the host, or for its own launches.
func waitRung(in *Input, p part, sh timeline.Shares, v *Verdict) (rung, bool) {
	if in.Parallel > 1 {
		if s, ok := straggler(in.Ranks); ok {
			v.Rank = s.uuid
			if s.wait >= waitsLikely && p.d < 1-waitsLikely {
				why := fmt.Sprintf("the other ranks wait %.0f %% of the time for one", 100*s.wait)
				return rung{label: timeline.Communication, reason: why, ceiling: timeline.High}, true
			}
		}
	}
	if !p.hasS {
		return rung{}, false
	}
	if !p.hasG {
		if sh.Host >= hostOrLaunchGap {
			return rung{label: timeline.HostOrLaunch, reason: fmt.Sprintf("SMs idle %.0f %% of the time", 100*sh.Host), ceiling: timeline.High}, true
		}
		return rung{}, false
	}
	if sh.Host >= hostGap {
		switch {
		case in.Pipeline > 1:
			return rung{label: timeline.Undetermined, reason: ReasonPipeline}, true
		case in.IdleRank:
			return rung{label: timeline.Undetermined, reason: ReasonIdleRank}, true
		}
		return rung{label: timeline.Host, reason: fmt.Sprintf("no kernel resident %.0f %% of the time", 100*sh.Host), ceiling: timeline.High}, true
	}
	if sh.Launch >= launchSmall && p.g >= launchResident {
		return rung{label: timeline.Launch, reason: fmt.Sprintf("kernels resident, SMs unfilled %.0f %% of the time", 100*sh.Launch), ceiling: timeline.High}, true
	}
	return rung{}, false
}

// mixedRung labels a cell in which prompt work shared the steps, by the least time at each roof: of the ways in which
// prompt work may have been spread, or, without the model, what the counters alone prove.
func mixedRung(in *Input, at point, v *Verdict) rung {
	if !in.Work.Prompt.OK() {
		return rung{timeline.Mixed, "prompt tokens are not counted", timeline.Low, "prompt tokens are not counted"}
	}
	m, c := at.low.memory, at.low.compute
	switch {
	case m >= mixedRoof:
		return rung{timeline.Memory, fmt.Sprintf("steps with prompt work, memory-limited %.0f %% of the time", 100*m), timeline.Medium, "prompt work shares the steps"}
	case c >= mixedRoof:
		return rung{timeline.Compute, fmt.Sprintf("steps with prompt work, compute-limited %.0f %% of the time", 100*c), timeline.Medium, "prompt work shares the steps"}
	}
	return rung{timeline.Mixed, mixedReason(v.Shares), timeline.Medium, "prompt work shares the steps"}
}

// mixedReason names what took most of a mixed cell that neither roof holds.
func mixedReason(s timeline.Shares) string {
	names := []string{"memory", "compute", "launch", "host", "neither roof"}
	values := []float64{s.Memory, s.Compute, s.Launch, s.Host, s.Other}
	most := 0
	for i, v := range values {
		if v > values[most] {
			most = i
		}
	}
	return fmt.Sprintf("prompt work shares the steps; the most time goes to %s, %.0f %%", names[most], 100*values[most])
}

// unexplained reports whether several ranks left more of the time off the DRAM roof than their own work explains.
func unexplained(in *Input, p part) bool { return in.Parallel > 1 && 1-p.d > waitsLikely }
