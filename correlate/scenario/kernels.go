package scenario

import (
	"math"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Limiter is the one thing that a kernel, or a gap between kernels, waits for.
type Limiter uint8

// The limiters.
const (
	LimitMemory  Limiter = iota // DRAM bandwidth
	LimitCompute                // tensor throughput
	LimitLaunch                 // launches, and kernels too short to fill the SMs
	LimitHost                   // the host, while the GPU has nothing to run
	LimitOther                  // anything else: collectives, arithmetic outside the tensor cores

	numLimiters = iota
)

// Kernel is a stretch of one GPU's time with one limiter: a kernel, the like kernels of a layer taken together, or a
// gap. All its rates are constant over it.
type Kernel struct {
	Seconds float64
	Bytes   float64 // moved to and from DRAM
	Tensor  float64 // seconds of tensor pipes active, tile padding included
	SM      float64 // fraction of SMs with work
	Occ     float64 // fraction of warps resident
	GR      float64 // fraction of the time the engine has work
	Limiter Limiter
}

// program is what a GPU runs for one step: a host gap, the layers, the output head. Layers repeats its kernels.
type program struct {
	host   Kernel
	layer  [maxLayerKernels]Kernel
	nLayer int
	layers int
	head   [maxHeadKernels]Kernel
	nHead  int
}

const (
	maxLayerKernels = 10
	maxHeadKernels  = 4
)

func (p *program) addLayer(k Kernel) {
	if k.Seconds > 0 {
		p.layer[p.nLayer] = k
		p.nLayer++
	}
}

func (p *program) addHead(k Kernel) {
	if k.Seconds > 0 {
		p.head[p.nHead] = k
		p.nHead++
	}
}

func (p *program) seconds() float64 {
	var layer, head float64
	for _, k := range p.layer[:p.nLayer] {
		layer += k.Seconds
	}
	for _, k := range p.head[:p.nHead] {
		head += k.Seconds
	}
	return p.host.Seconds + layer*float64(p.layers) + head
}

// stretch multiplies all durations by f, which is one but for the rounding of the step to whole nanoseconds.
func (p *program) stretch(f float64) {
	p.host.Seconds *= f
	for i := range p.layer[:p.nLayer] {
		p.layer[i].Seconds *= f
	}
	for i := range p.head[:p.nHead] {
		p.head[i].Seconds *= f
	}
}

// work is what one step asks of a rank, and the state of the machine it meets.
type work struct {
	decode    int     // sequences that decode
	drafts    int     // tokens that each of them guesses and checks on top of its own
	contexts  float64 // sum of their contexts, tokens
	windowed  float64 // the same with each context cut to the model's window
	prompt    int     // prompt tokens
	pairs     float64 // sum over prompt tokens of the tokens they attend to
	reused    float64 // tokens of contexts that are read from the L2, since another sequence has just read them
	promptKV  float64 // tokens of KV that the prompt chunks read and write
	sampled   int     // rows for which the head computes logits
	clock     float64 // of the maximal SM clock
	bandwidth float64 // of the bandwidth there usually is
	gap       float64 // s of host time before the step
	launch    float64 // s of host time to launch a kernel
	link      float64 // s that each collective takes more
	foreign   float64 // fraction of the time that someone else's kernels run
	eager     bool
	noise     float64 // factor on what kernels reach
}

// Constants of the physics.
const (
	// rampSeconds is what each kernel loses to filling and draining the SMs, and gapSeconds the time between two
	// kernels of a graph. Together, over some eleven kernels a layer, they make the fixed part of a step: 6.44 ms for
	// Llama-3.1-8B in bf16 on H100 at no context, of which the weights are 5.1 ms (vLLM's "State of FP8 KV-cache").
	rampSeconds = 1.2e-6
	gapSeconds  = 0.9e-6
	// fetchSeconds is how long the front end counts as busy for each launch, however late the launch comes.
	fetchSeconds = 4e-6
	// sharpness is the exponent with which a kernel's memory and compute times join: near the ridge neither pipe hides
	// fully behind the other.
	sharpness = 6
	// tailBytes is the part of a kernel's traffic by which its last wave is late.
	tailBytes = 1.5e6
	// routeSeconds is what routing adds to a layer with experts: choosing, sorting and gathering tokens in a train of
	// kernels that fill few SMs. A public sweep of Qwen3-30B-A3B on H200 has a step of 5.15 ms at one request, of which
	// the weights explain 0.8 ms.
	routeSeconds = 36e-6
	// expertLead is how many bytes a kernel over experts could have read while the loads of each one start. With it the
	// small experts of Qwen3-30B-A3B in fp8 stream at half of the rate of a dense layer. That sweep found them far below
	// both roofs at any number of requests: 14 % of the DRAM's peak at one, and never more than 28 %.
	expertLead = 4e6
	// reduceSeconds is the latency of one all-reduce inside a graph on NVLink: some 13 us on four H100s
	// (waynehacking8/nccl-collectives-bench).
	reduceSeconds = 13e-6
)

// padded returns how many rows the tiles of a product over n tokens hold. Few tokens fit in small tiles; from 128 on
// the tiles are 128 rows high, so that token 257 costs as much as 384 do.
func padded(n float64) float64 {
	for _, tile := range []float64{8, 16, 32, 64, 128} {
		if n <= tile {
			return tile
		}
	}
	return math.Ceil(n/128) * 128
}

// pipe is the part of its cycles that a product of n rows keeps the tensor pipes of a busy SM active. Small products
// cannot hide their loads.
func pipe(n float64) float64 {
	return 0.91 * n / (n + 24)
}

// product is a matrix product over n tokens that streams the given weights once: params numbers of bits each.
func (p *plant) product(w *work, params, active, bits, n, peakFlops float64) Kernel {
	if params <= 0 || n <= 0 {
		return Kernel{}
	}
	params, active = params/p.ranks, active/p.ranks
	bytes := params*bits/8 + n*float64(p.model.Hidden)*2*2*spill(n*float64(p.model.Hidden)*2, p.gpu.L2Bytes)
	rows := padded(n)
	tensor := 2 * active * rows / (peakFlops * w.clock)
	return p.join(w, bytes, tensor, tensor/pipe(rows)*p.unpack, p.stream)
}

// join makes one kernel of a memory time and a compute time. Neither hides wholly behind the other near the ridge.
func (p *plant) join(w *work, bytes, tensor, compute, reach float64) Kernel {
	memory := (bytes + tailBytes) / (p.peak * reach * w.bandwidth * clockReach(w.clock) * w.noise)
	compute /= w.noise
	longer, shorter := max(memory, compute), min(memory, compute)
	k := Kernel{
		Seconds: longer * math.Pow(1+math.Pow(shorter/longer, sharpness), 1.0/sharpness),
		Bytes:   bytes, Tensor: tensor, SM: 0.96, Occ: 0.20, GR: 1, Limiter: LimitMemory,
	}
	if compute > memory {
		k.Limiter, k.Occ = LimitCompute, 0.16
	}
	return k
}

// clockReach is the part of the usual bandwidth that the SMs can still ask for at a lower clock. It takes a very low
// clock to matter: decode is nearly indifferent to it (arXiv 2501.08219).
func clockReach(clock float64) float64 {
	if clock >= 0.55 {
		return 1
	}
	return 1 - 0.6*(0.55-clock)
}

// spill is the part of a buffer's traffic that reaches DRAM: what fits in half of the L2 mostly stays there.
func spill(bytes, l2 float64) float64 {
	half := l2 / 2
	if bytes <= half {
		return 0.1
	}
	return 0.1 + 0.9*(1-half/bytes)
}

// build returns the program of a step.
func (p *plant) build(w *work) program {
	m := &p.model
	pr := program{layers: m.Layers, host: Kernel{Seconds: w.gap, Limiter: LimitHost}}
	n := float64(w.decode*(1+w.drafts) + w.prompt)
	layers := float64(m.Layers)
	body := float64(m.NonExpert - m.HeadParams())
	expert := float64(m.ExpertParams)
	experts := float64(m.ParamsStreamed-m.NonExpert) / layers // all routed experts of a mean layer

	kernels := 10.0
	if m.MoE() {
		kernels = 14
		attn, moe := body/layers, experts
		touched := p.touched(n)
		active := expert * float64(m.TopK) * experts / max(1, expert*float64(m.Experts))
		pr.addLayer(p.product(w, attn, attn, p.attnBits, n, p.narrow))
		// Each expert sees its part of the tokens, so that its tiles are emptier than a dense layer's; and what a small
		// expert streams is over before its loads have come up to speed, so that neither roof is reached.
		each := expert * p.weightBits / 8 / p.ranks
		reach := each / (each + expertLead)
		slow := *w
		slow.bandwidth *= reach
		k := p.product(&slow, moe*touched, active, p.weightBits, n, p.flops/expertPadding(n, m))
		if k.Limiter == LimitMemory && reach < 0.7 {
			k.Limiter = LimitOther
		}
		k.SM *= min(1, 0.3+0.7*touched)
		pr.addLayer(k)
		pr.addLayer(Kernel{Seconds: routeSeconds / w.clock, SM: 0.06, Occ: 0.02, GR: 1, Limiter: LimitLaunch})
	} else {
		// Two groups, since the projections of attention are smaller than those of the feed-forward part.
		attn := attentionParams(m)
		pr.addLayer(p.product(w, attn, attn, p.weightBits, n, p.flops*0.97))
		pr.addLayer(p.product(w, body/layers-attn, body/layers-attn, p.weightBits, n, p.flops))
	}
	p.attention(&pr, w)
	p.elementwise(&pr, w, n)
	p.overheads(&pr, w, kernels, n)
	p.foreign(&pr, w)
	p.output(&pr, w)
	return pr
}

// foreign adds the time slices of someone else's kernels.
func (p *plant) foreign(pr *program, w *work) {
	if w.foreign <= 0 {
		return
	}
	var own float64
	for _, k := range pr.layer[:pr.nLayer] {
		own += k.Seconds
	}
	pr.addLayer(p.stranger(own * w.foreign / (1 - w.foreign)))
}

// stranger is a slice of someone else's work: a bit of everything.
func (p *plant) stranger(seconds float64) Kernel {
	return Kernel{
		Seconds: seconds, Bytes: 0.35 * p.peak * seconds, Tensor: 0.25 * seconds, SM: 0.9, Occ: 0.3, GR: 1, Limiter: LimitOther,
	}
}

// output adds what comes after the layers: the drafts of a speculating engine, the head and the sampling.
func (p *plant) output(pr *program, w *work) {
	m := &p.model
	head := float64(m.HeadParams())
	if w.drafts > 0 && w.decode > 0 {
		// A draft takes one layer and the head, for each guess in turn.
		one := float64(m.NonExpert-m.HeadParams())/float64(m.Layers) + head
		k := p.product(w, one, one, p.headBits, float64(w.decode), p.narrow)
		times := float64(w.drafts)
		k.Seconds, k.Bytes, k.Tensor = k.Seconds*times, k.Bytes*times, k.Tensor*times
		pr.addHead(k)
	}
	if w.sampled > 0 {
		pr.addHead(p.product(w, head, head, p.headBits, float64(w.sampled), p.narrow))
	}
	// Sampling sorts and reduces the logits, which fit in L2 but for large batches.
	logits := float64(w.sampled) * float64(m.Vocab) * 4
	pr.addHead(Kernel{
		Seconds: (30e-6 + 4*logits/(p.peak*0.6)) / w.clock, Bytes: 4 * logits * spill(logits, p.gpu.L2Bytes),
		SM: 0.35, Occ: 0.2, GR: 1, Limiter: LimitOther,
	})
}

// attentionParams is the size of the four projections around attention of one layer.
func attentionParams(m *hardware.Model) float64 {
	return float64(m.Hidden) * float64(m.HeadDim) * float64(2*m.Heads+2*m.KVHeads)
}

// expertPadding is how many rows the tiles of the experts hold for each row of work.
func expertPadding(n float64, m *hardware.Model) float64 {
	each := max(1, n*float64(m.TopK)/float64(m.Experts))
	return max(1, padded(each)/each) / max(1, padded(n)/n)
}

// attention adds the kernels that read the cache.
func (p *plant) attention(pr *program, w *work) {
	m := &p.model
	layers := float64(m.Layers)
	width := float64(m.Heads * m.HeadDim)
	if m.MLA() {
		width = float64(m.Heads) * (float64(m.KVLoraRank) + float64(m.QKRope)/2)
	}
	full := 1.0
	if m.SlidingWindow > 0 {
		full = float64(m.KVElemsFull) / float64(m.KVElems)
	}
	elems := float64(m.KVElems) / layers / p.kvRanks
	if w.decode > 0 {
		tokens := full*w.contexts + (1-full)*w.windowed + float64(w.decode*(1+w.drafts))
		bytes := max(0, tokens-w.reused) * elems * p.kvBytes
		// The group of query heads fills a tile of 64 rows however small it is.
		tensor := 4 * width / p.ranks * tokens * max(p.headPadding(), float64(1+w.drafts)) / (p.narrow * w.clock)
		k := p.join(w, bytes, tensor, tensor/0.65, p.gather)
		k.Occ = 0.13
		pr.addLayer(k)
	}
	if w.prompt > 0 {
		bytes := w.promptKV * elems * p.kvBytes
		tensor := 4 * width / p.ranks * w.pairs * (full + (1-full)*0.3) / (p.narrow * w.clock)
		pr.addLayer(p.join(w, bytes, tensor, tensor/0.62, p.gather))
	}
}

// headPadding is how many query rows the tiles of decode attention hold for each query head.
func (p *plant) headPadding() float64 {
	if p.model.MLA() || p.model.KVHeads == 0 {
		return 1
	}
	return max(1, 16/(float64(p.model.Heads)/float64(p.model.KVHeads)))
}

// elementwise adds norms, rotations, activations and residuals: arithmetic outside the tensor cores, which is bound by
// DRAM once the activations outgrow the L2.
func (p *plant) elementwise(pr *program, w *work, n float64) {
	buffer := n * float64(p.model.Hidden) * 2
	traffic := 14 * buffer / max(1, p.ranks/2)
	out := spill(buffer, p.gpu.L2Bytes)
	k := Kernel{Bytes: traffic * out, SM: 0.85, Occ: 0.5, GR: 1, Limiter: LimitOther}
	dram := k.Bytes / (p.peak * 0.85 * w.bandwidth)
	cache := traffic * (1 - out) / (p.peak * 2.2 * w.clock)
	k.Seconds = (dram + cache) / w.noise
	if dram > cache {
		k.Limiter = LimitMemory
	}
	pr.addLayer(k)
}

// overheads adds what a layer loses between and around its kernels, and its collectives.
func (p *plant) overheads(pr *program, w *work, kernels, n float64) {
	var resident float64
	for _, k := range pr.layer[:pr.nLayer] {
		resident += k.Seconds
	}
	ramp := kernels * rampSeconds / w.clock
	pr.addLayer(Kernel{Seconds: ramp, SM: 0.30, Occ: 0.05, GR: 1, Limiter: LimitLaunch})
	gap := kernels * gapSeconds / w.clock
	if w.eager {
		// Outside a graph there are more kernels, and the GPU runs dry when the host launches slower than it works.
		launches := kernels * 1.4
		gap = max(gap*1.4, launches*w.launch-resident-ramp)
		pr.addLayer(Kernel{Seconds: gap, SM: 0, GR: min(1, launches*fetchSeconds/gap), Limiter: LimitLaunch})
	} else {
		pr.addLayer(Kernel{Seconds: gap, SM: 0.02, GR: 1, Limiter: LimitLaunch})
	}
	if p.ranks > 1 {
		message := n * float64(p.model.Hidden) * 2
		pr.addLayer(Kernel{
			Seconds: 2 * (reduceSeconds + w.link + 2*(p.ranks-1)/p.ranks*message/p.linkBps),
			Bytes:   4 * message * 0.5, SM: 0.12, Occ: 0.05, GR: 1, Limiter: LimitOther,
		})
	}
}
