package verdict

import (
	"fmt"

	"github.com/tpotscope/tpotscope/correlate/roofline"
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
	mixedWait       = 0.60
	sureHalf        = 0.50 // beyond, no other share can be as large
	hostGap         = 0.30
	hostOverSmall   = 2.0 // times the launch share: closer together, averages do not tell which of the two it was
	launchSmall     = 0.40
	launchResident  = 0.85
	hostOrLaunchGap = 0.50
	bothRoofs       = 0.60
	busySM          = 0.70
	waitsLikely     = 0.15 // time off the DRAM roof with several ranks
	idlePart        = 0.5  // of the DRAM traffic of the busiest data-parallel rank
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
		return mixedRung(in, p, at, v)
	}
	sh := v.Shares
	computeMin := computeAssumed
	if sure(in.Eta.TensorOrigin) {
		computeMin = computeSure
	}
	switch {
	case p.d >= memorySure && p.d-p.c >= roofMargin:
		return rung{label: timeline.Memory, reason: atRoof("DRAM", p.d, in.Eta.BandwidthOrigin), ceiling: timeline.High}
	case p.c >= computeMin && p.c-p.d >= roofMargin:
		return rung{label: timeline.Compute, reason: atRoof("tensor cores", p.c, in.Eta.TensorOrigin), ceiling: timeline.High}
	}
	if r, ok := waitRung(in, p, sh, v); ok {
		return r
	}
	switch {
	case p.d >= memoryLikely && p.d < memorySure && p.d-p.c >= likelyMargin:
		return rung{timeline.Memory, atRoof("DRAM", p.d, in.Eta.BandwidthOrigin), timeline.Medium, "DRAM is below 75 % of achievable"}
	case p.c >= computeLikely && p.c-p.d >= likelyMargin:
		return rung{timeline.Compute, atRoof("tensor cores", p.c, in.Eta.TensorOrigin), timeline.Medium, "tensor activity is below its sure threshold"}
	case p.d >= bothRoofs && p.c >= bothRoofs:
		return rung{label: timeline.Balanced, reason: "both roofs above 60 %", ceiling: timeline.High}
	case p.hasS && p.s >= busySM && p.d < bothRoofs && p.c < bothRoofs:
		return rung{label: timeline.Busy, reason: fmt.Sprintf("SMs at %.0f %%, both roofs below 60 %%", 100*p.s), ceiling: timeline.High}
	}
	return rung{label: timeline.Undetermined, reason: ReasonNoShare}
}

// atRoof says how near to a roof something was, and if the roof was measured on this node, that too.
func atRoof(what string, part float64, origin string) string {
	text := fmt.Sprintf("%s at %.0f %% of achievable", what, 100*part)
	if origin == OriginCalibrated {
		text += " (calibrated)"
	}
	return text
}

// limited says for how much of the time steps that hold prompt work too were at a roof, and if the roof was measured on
// this node, that too.
func limited(what string, part float64, origin string) string {
	text := fmt.Sprintf("steps with prompt work, %s-limited %.0f %% of the time", what, 100*part)
	if origin == OriginCalibrated {
		text += " (calibrated)"
	}
	return text
}

// waitRung tells whether the GPU waited: for other ranks, for the host, or for its own launches.
func waitRung(in *Input, p part, sh timeline.Shares, v *Verdict) (rung, bool) {
	if in.Parallel > 1 {
		if s, ok := straggler(in.Ranks, in.Windows); ok {
			v.Rank = s.uuid
			if s.wait >= waitsLikely && p.d < 1-waitsLikely {
				r := rung{label: timeline.Communication, reason: fmt.Sprintf("the other ranks wait %.0f %% of the time for one", 100*s.time), ceiling: timeline.High}
				if s.time < max(p.d, p.c) || p.hasG && s.time < sh.Host {
					r.ceiling, r.why = timeline.Low, "the ranks wait for less of the time than something else takes"
				}
				return r, true
			}
		}
	}
	label, why := decodeWait(p, sh)
	return waited(in, v, label, why)
}

// decodeWait tells whether the host or the launches held a cell that only decoded, and how that shows. The GPU waits
// for its host only where nothing takes more of the time: steps that stream weights for half of it and wait for a third
// are bound by neither. Kernels launched one by one leave two traces that averages cannot part, SMs unfilled at their
// edges and gaps in which none is resident, and so does a slow host that launches late; only where one trace is clearly
// the greater does it name its cause. Without the activity of the graphics engine both lie in the host's share.
func decodeWait(p part, sh timeline.Shares) (timeline.Label, string) {
	gap, small := sh.Host, sh.Launch
	most := max(sh.Memory, sh.Compute, sh.Other)
	switch {
	case p.hasG && gap >= hostGap && gap >= most && gap >= hostOverSmall*small:
		return timeline.Host, hostReason(gap)
	case p.hasG && small >= launchSmall && p.g >= launchResident && small >= max(most, gap):
		return timeline.Launch, launchReason(small)
	case p.hasS && gap+small >= hostOrLaunchGap && gap+small > sh.Memory+sh.Compute:
		return timeline.HostOrLaunch, eitherReason(p, gap, small)
	}
	return "", ""
}

// mixedWaits tells the same of a cell whose steps carry prompt work. Time in which no kernel was resident needs no model
// of what prompts cost, so that it is named as soon as it is most of the cell, and by the same part as the roofs.
func mixedWaits(p part, sh timeline.Shares) (timeline.Label, string) {
	switch {
	case p.hasG && sh.Host >= mixedWait:
		return timeline.Host, hostReason(sh.Host)
	case p.hasG && sh.Launch >= mixedWait:
		return timeline.Launch, launchReason(sh.Launch)
	case p.hasS && sh.Host+sh.Launch >= mixedWait:
		return timeline.HostOrLaunch, eitherReason(p, sh.Host, sh.Launch)
	}
	return "", ""
}

// waited makes a rung of a label of waiting. A bubble of the pipeline and a rank without work leave the same gaps as a
// slow host does, with and without the counter that parts gaps from launches; and kernels that wait for another rank are
// resident on few SMs, as launches leave them.
func waited(in *Input, v *Verdict, label timeline.Label, why string) (rung, bool) {
	bubble, idle := in.Pipeline > 1, idleRank(in)
	switch {
	case label == "":
		return rung{}, false
	case bubble:
		return rung{label: timeline.Undetermined, reason: ReasonPipeline}, true
	case idle:
		return rung{label: timeline.Undetermined, reason: ReasonIdleRank}, true
	}
	unfilled := label == timeline.Launch || label == timeline.HostOrLaunch && (!in.Graphics.OK() || v.Shares.Launch >= v.Shares.Host)
	if unfilled && in.Parallel > 1 {
		return rung{label, why, timeline.Low, "kernels that wait for another rank leave SMs unfilled as launches do"}, true
	}
	return rung{label: label, reason: why, ceiling: timeline.High}, true
}

// idleRank reports whether a data-parallel rank had nothing to do while another worked: in lockstep both run the same
// steps, and the one without requests moves little.
func idleRank(in *Input) bool {
	if in.IdleRank || in.Replicas < 2 || len(in.Ranks) < 2 {
		return in.IdleRank
	}
	least, most := in.Ranks[0].DRAM.Value, in.Ranks[0].DRAM.Value
	for _, r := range in.Ranks {
		if !r.DRAM.OK() {
			return false
		}
		least, most = min(least, r.DRAM.Value), max(most, r.DRAM.Value)
	}
	return least < idlePart*most
}

func hostReason(gap float64) string {
	return fmt.Sprintf("no kernel resident %.0f %% of the time", 100*gap)
}

func launchReason(small float64) string {
	return fmt.Sprintf("kernels resident, SMs unfilled %.0f %% of the time", 100*small)
}

func eitherReason(p part, gap, small float64) string {
	if !p.hasG {
		return fmt.Sprintf("SMs idle %.0f %% of the time; without graphics activity host and launch are not told apart", 100*(gap+small))
	}
	return fmt.Sprintf("no kernel resident %.0f %% of the time, SMs unfilled another %.0f %%", 100*gap, 100*small)
}

// mixedRung labels a cell in which prompt work shared the steps: by the time at each roof where the model places it, with
// no more than a hint where the other roof could hold as much for some way in which prompt work may have been spread, or,
// without the model, by what the counters alone prove; else by what the GPU waited for.
func mixedRung(in *Input, p part, at point, v *Verdict) rung {
	most, why := timeline.Medium, "prompt work shares the steps"
	counted := in.Work.Prompt.OK()
	if !counted {
		most, why = timeline.Low, ReasonNotCounted
	}
	m, c := at.memory, at.compute
	if !at.placed {
		m, c = at.low.memory, at.low.compute
	}
	roof := func(label timeline.Label, what string, part, least float64, origin string) rung {
		r := rung{label, limited(what, part, origin), most, why}
		if least < sureHalf {
			r.ceiling, r.why = timeline.Low, "prompt work may be spread so that the other roof holds as much"
		}
		return r
	}
	switch {
	case counted && m >= mixedRoof:
		return roof(timeline.Memory, "memory", m, at.low.memory, in.Eta.BandwidthOrigin)
	case counted && c >= mixedRoof:
		return roof(timeline.Compute, "compute", c, at.low.compute, in.Eta.TensorOrigin)
	}
	label, reason := mixedWaits(p, v.Shares)
	if r, ok := waited(in, v, label, reason); ok {
		if r.ceiling > most {
			r.ceiling, r.why = most, why
		}
		return r
	}
	if !counted {
		return rung{timeline.Mixed, why, most, why}
	}
	return rung{timeline.Mixed, mixedReason(v.Shares), most, why}
}

// mixedReason names what took most of a mixed cell that nothing holds.
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

// unexplained reports whether several ranks left more of the time off the DRAM roof than their own work explains: what
// the all-reduces of their steps take at least is their own.
func unexplained(in *Input, p part) bool {
	return in.Parallel > 1 && 1-p.d-expectedComm(in) > waitsLikely
}

// expectedComm is the part of the cell that the all-reduces of its steps take at least.
func expectedComm(in *Input) float64 { return leastReduce * commPart(in) }

// commPart is the part of the cell that the all-reduces of its steps take by the model, from layers, hidden size and
// degree. Zero if the work is not known.
func commPart(in *Input) float64 {
	steps, ok := stepsOf(&in.Work)
	w := &in.Work
	if in.Parallel < 2 || in.Model == nil || !ok || !w.Decode.OK() || in.CellS <= 0 {
		return 0
	}
	c := in.Model.Cost(roofline.Step{Decode: w.Decode.Value / steps, Prompt: w.Prompt.Value / steps}, roofline.Rates{})
	return clip(c.FixedS * steps / in.CellS)
}

// leastReduce is what an all-reduce takes at least of the time that the model has for it, which is that of a library's
// inside a graph; kernels made for small messages are faster, and time that is not theirs must not pass for it.
const leastReduce = 0.4
