package outlook

import (
	"cmp"
	"slices"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Help is something that would make a step shorter, and by how much at most.
type Help struct {
	What   string  `json:"what"`    // a name that stays: kv_fp8, weights_8bit, weights_4bit, host, launch, host_or_launch, launch_or_ranks, ranks, prompt, clock
	Name   string  `json:"name"`    // for people
	SavesS float64 `json:"saves_s"` // of each step, at most
	StepS  float64 `json:"step_s"`  // that it is of, as measured
	Part   float64 `json:"part"`    // SavesS over StepS
	ActsOn string  `json:"acts_on"` // whose share of the time bounds it
	Share  float64 `json:"share"`   // that share
	Basis  string  `json:"basis"`   // "byte model, expected", or "measured share"
	AtMost bool    `json:"at_most"` // the amount is an upper bound, not an expectation
	Capped bool    `json:"capped,omitempty"`
}

// What amounts rest on.
const (
	ByModel = "byte model, expected"
	ByShare = "measured share"
)

// leastPart of a step is what a remedy must save to be worth a line.
const leastPart = 0.02

// remedy is a number format that the target could use.
type remedy struct {
	what, name string
	model      *roofline.Model
	seconds    float64 // expected, over all steps
}

// remedies are the formats that store less than the target's own. The four-bit one is for weights alone, and eight bits
// are the hardware's own where it has them.
func remedies(target timeline.Target, gpu hardware.GPU, build func(dtype, kv string) (*roofline.Model, error)) []remedy {
	var out []remedy
	add := func(what, name, dtype, kv string) {
		if m, err := build(dtype, kv); err == nil { // what cannot be built is no remedy
			out = append(out, remedy{what: what, name: name, model: m})
		}
	}
	kv, err := hardware.LookupDType(cmp.Or(target.KVDType, "bf16"))
	if target.KVDType == "auto" || err == nil && kv.Bits >= 16 {
		add("kv_fp8", "fp8 KV cache", target.DType, "fp8")
	}
	w, err := hardware.LookupDType(target.DType)
	if err != nil {
		return out
	}
	if w.Bits >= 16 {
		eight := "w8a16"
		if gpu.Rates.FP8 > 0 {
			eight = "fp8"
		}
		add("weights_8bit", "8-bit weights ("+eight+")", eight, target.KVDType)
	}
	if w.Bits >= 8 {
		add("weights_4bit", "4-bit weights (awq)", "awq", target.KVDType)
	}
	return out
}

// Help returns what would make the steps shorter, the greatest first. Shares are the measured ones of the decode; split
// says that host and launch are told apart in them. Each promise is bounded by the share that the remedy acts on, so that
// on a target that waits for its host no format saves more than its memory share.
func (t *Tally) Help(step *Step, shares timeline.Shares, split bool) []Help {
	if !step.MeasuredS.OK() || shares.Sum() <= 0 {
		return nil
	}
	var out []Help
	add := func(h Help) {
		if bound := h.Share * step.MeasuredS.Value; h.SavesS > bound {
			h.SavesS, h.Capped = bound, h.Basis == ByModel
		}
		h.StepS = step.MeasuredS.Value
		h.AtMost = h.AtMost || h.Capped || h.Basis == ByShare
		if h.Part = h.SavesS / h.StepS; h.Part >= leastPart {
			out = append(out, h)
		}
	}
	whole := step.MeasuredS.Value
	if split {
		add(Help{What: "host", Name: "host gaps closed", SavesS: shares.Host * whole, ActsOn: "host", Share: shares.Host, Basis: ByShare})
		add(Help{What: "launch", Name: "kernel launch gaps closed", SavesS: shares.Launch * whole, ActsOn: "launch", Share: shares.Launch, Basis: ByShare})
	} else {
		wait := shares.Host + shares.Launch
		add(Help{What: "host_or_launch", Name: "host and launch gaps closed", SavesS: wait * whole, ActsOn: "host, launch", Share: wait, Basis: ByShare})
	}
	if s := &t.sums; t.model != nil && s.modelled > 0 {
		for _, r := range t.other {
			add(Help{
				What: r.what, Name: r.name, SavesS: (s.even - r.seconds) / s.modelled, ActsOn: "memory", Share: shares.Memory, Basis: ByModel,
			})
		}
		// How prompts were spread is not told: in whole chunks they cost the most.
		add(Help{
			What: "prompt", Name: "prompt work on other GPUs", SavesS: (s.chunks - s.alone) / s.modelled, AtMost: true,
			ActsOn: "memory, compute", Share: shares.Memory + shares.Compute, Basis: ByModel,
		})
		// Small kernels and what waits for neither roof take the longer the slower the SMs are, too.
		if rated := t.model.GPU().RateClockHz; s.clockS > 0 && s.clock < verdict.SlowClock*rated*s.clockS {
			share := shares.Compute + shares.Launch + shares.Other
			add(Help{
				What: "clock", Name: "SM clock as rated", SavesS: share * (1 - s.clock/s.clockS/rated) * whole,
				ActsOn: "compute, launch, other", Share: share, Basis: ByShare,
			})
		}
	}
	slices.SortStableFunc(out, func(a, b Help) int { return cmp.Compare(b.SavesS, a.SavesS) })
	return out
}

// AmongRanks returns help for a target on several GPUs. A rank that waits for others holds a kernel that fills no SM, so
// that its waits count as launch: where ranks wait for one, evening it out is what would help, and elsewhere counters
// cannot tell the two apart. Slow names the rank that the others wait for; empty where that is not what bounded decode.
func AmongRanks(help []Help, slow string) []Help {
	out := slices.Clone(help)
	for i := range out {
		switch h := &out[i]; {
		case h.What != "launch" && h.What != "host_or_launch":
		case slow != "":
			h.What, h.Name = "ranks", slow+" as fast as the other ranks"
		case h.What == "launch":
			h.What, h.Name = "launch_or_ranks", "kernel launch gaps and waits for other ranks closed"
		default:
			h.Name = "host and launch gaps and waits for other ranks closed"
		}
	}
	return out
}
