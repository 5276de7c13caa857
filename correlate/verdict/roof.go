package verdict

import (
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// What a kernel that waits for one thing alone reaches of the achievable, and what one that waits for something else may.
const (
	// Below 60 % of a peak a kernel is said to wait for something else, above 80 % to wait for that peak; between the two
	// it may be either (the speed-of-light rules of Nsight Compute). Decode kernels of dense models reach 0.82 to 0.91 of
	// the DRAM's peak (vLLM's "State of FP8 KV-cache", the gpt-fast README); on a board that lost a third of its bandwidth
	// they would still be above the lower line.
	latencyLine = 0.60
	roofLine    = 0.80
	// decodeReach is the least of decode kernels of dense models, over the 0.9 that is taken for achievable.
	decodeReach = 0.91
	// plannedReach is what products at the compute roof may be short of: a saturating test keeps the tensor pipes active
	// for 0.93 of the cycles at 0.81 of the sheet's rate (NVIDIA's DCGM documentation), and prompt work is planned at 0.6 of
	// that rate, 0.74 of what the test reaches. usualReach is the middle between the two.
	plannedReach = 0.74
	usualReach   = 0.87
	// filledSMs is the least of the SMs that a kernel at a roof keeps busy: below 0.8 a device is not used effectively
	// (NVIDIA's DCGM documentation). Where experts are few, SMs without one have nothing to do while others stream.
	filledSMs = 0.80
	// atMost is what kernels reach of what is taken for achievable: 0.91 of 0.90 on HBM, more where a board with error
	// correction loses only the 10 to 15 % of its peak that the Marlin README tells, of the 20 that are allowed for; and a
	// counter's denominator may be off by as much.
	atMost = 1.05
)

// roofInterval returns where the true share of time at a roof lies, from what each counter bounds.
//
// Traffic is carried by kernels at the DRAM roof, which run between some part e of the achievable and all of it, and by
// others, which run at most at some part u. With R the time at a roof and G that in which any kernel is resident,
// R + u (G - R) >= D and e R <= D; tensor activity bounds the time at the compute roof alike, and the two times add, up
// to the time in which kernels are resident and, those of dense models, fill the SMs. A kernel may be at its roof from
// 60 % of it on, and off it up to 80 %. Where kernels are long, all that is read but activations is read at a roof: then
// R >= D, but for what they may exceed the achievable by.
func roofInterval(in *Input, p part) timeline.Interval {
	resident := 1.0
	if p.hasG {
		resident = max(p.g, p.s, p.d, p.c)
	}
	low, filled := max(sureRoof(p.d, resident), sureRoof(p.c, resident)), false
	if longKernels(in.Model) {
		low = max(p.d*(1-activationPart(in)), p.c) / atMost
		filled = p.hasS && !in.Model.Spec().MoE()
	}
	high := min(resident, p.d/latencyLine+p.c/latencyLine)
	if filled {
		high = min(high, p.s/filledSMs)
	}
	return timeline.Interval{Low: low, High: max(high, p.d, p.c)}
}

// sureRoof is the least time at a roof of which a counter reads x, where kernels off the roof may reach up to roofLine.
func sureRoof(x, resident float64) float64 {
	return clip((x - roofLine*resident) / (1 - roofLine))
}

const (
	kernelLatencyS  = 1e-6 // from the first request of a kernel to the last SM at work, and back
	latenciesCover  = 4    // times that latency: from there on rise and fall take less than a fifth of a kernel
	productsPerPart = 2    // an expert has two products, the layer of a dense model two pairs of them
	manyTokens      = 1024 // enough to touch more experts than one token does
)

// longKernels reports whether the products that stream m's weights move so many bytes each that their rise and tail do
// not matter: several times what is in flight at full bandwidth. Small experts do not (a public sweep of Qwen3-30B-A3B on
// H200 reads 14 % of the DRAM's peak at one request and never more than 28 %), nor do the layers of small models cut over
// many GPUs.
func longKernels(m *roofline.Model) bool {
	if m == nil {
		return false
	}
	spec, n := m.Spec(), float64(m.TP())
	inFlight := kernelLatencyS * roofline.Bandwidth(m.GPU())
	least, most := m.WeightBytes(manyTokens)
	if !spec.MoE() {
		layer := least / float64(max(1, spec.Layers)) / n
		return layer/(2*productsPerPart) >= latenciesCover*inFlight
	}
	few, many := m.ExpertsTouched(manyTokens)
	layers := float64(max(1, spec.Layers-spec.DenseLayers))
	if many <= few {
		return false
	}
	expert := (most - least) / (many - few) / layers / n
	return expert/productsPerPart >= latenciesCover*inFlight
}

// activationPart is the part of the traffic that activations and logits may be: kernels between and after the products
// move them, at neither roof or at one. L2 absorbs the activations of a few hundred tokens.
func activationPart(in *Input) float64 {
	steps, ok := stepsOf(&in.Work)
	w := &in.Work
	if in.Model == nil || !ok || !w.Decode.OK() {
		return 0
	}
	tokens := (w.Decode.Value + w.Prompt.Value) / steps
	own := samplingPasses * 4 * float64(in.Model.Spec().Vocab) * w.Decode.Value / steps // 32-bit logits
	if tokens > absorbedTokens {
		own += in.Model.ActivationBytes(tokens)
	}
	least, _ := in.Model.WeightBytes(tokens)
	if w.Context.OK() && w.Running.OK() && w.Running.Value > 0 {
		least += w.Running.Value * in.Model.KVReadBytes(w.Context.Value/w.Running.Value)
	}
	return clip(own / (own + least))
}

// absorbedTokens of a step leave activations that L2 holds.
const absorbedTokens = 256

// samplingPasses over the logits: to scale, to rank and to normalise them, and to draw.
const samplingPasses = 4
