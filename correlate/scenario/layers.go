package scenario

import (
	"math"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// batch is what one step asks of the ranks that hold one copy of the model, or of the part of it that passes a pipeline
// together.
type batch struct {
	decode   int     // sequences that decode
	drafts   int     // tokens that each of them guesses and checks on top of its own
	contexts float64 // sum of their contexts, tokens
	windowed float64 // the same with each context cut to the model's window
	prompt   int     // prompt tokens
	missed   int     // of them, those that a working prefix cache would have held
	pairs    float64 // sum over prompt tokens of the tokens they attend to
	reused   float64 // tokens of contexts that are read from the L2, since another sequence has just read them
	promptKV float64 // tokens of KV that the prompt chunks read and write
	arrived  float64 // tokens of KV that come from another machine
	sampled  int     // rows for which the head computes logits
	adapters int     // different adapters among the sequences
	dummy    bool    // nothing to do, but the others need this rank in their collectives
}

func (b *batch) tokens() int {
	if b.dummy {
		return 1
	}
	return b.decode*(1+b.drafts) + b.prompt
}

// condition is the state in which one GPU meets a step.
type condition struct {
	clock     float64 // of the maximal SM clock
	free      float64 // what it would be without the faults that hold it
	bandwidth float64 // of the bandwidth there usually is
	slow      float64 // factor on the time of all kernels
	foreign   float64 // fraction of the time that someone else's kernels run
	held      hold
	celsius   float64 // at the start
}

// build makes the program of a step as one GPU would run it if it never had to wait for another.
func (p *plant) build(pr *program, st *step, c *condition) {
	pr.reset()
	pr.open(1, 0)
	pr.add(Kernel{Seconds: st.gap, Limiter: LimitHost})
	for i := range p.parts {
		b := &st.batches[p.replica*p.parts+i]
		if b.tokens() == 0 {
			continue
		}
		p.layers(pr, st, c, b, i)
		if p.last {
			pr.open(1, i)
			p.output(pr, st, c, b)
		}
		if p.parts > 1 {
			pr.open(1, i)
			pr.add(Kernel{Seconds: pipeSeconds, Link: float64(b.tokens()*p.model.Hidden) * 2, SM: pipeSM, Occ: pipeSM / 4, GR: 1, Limiter: LimitComm})
		}
	}
}

// layers adds the section that is repeated once a layer.
func (p *plant) layers(pr *program, st *step, c *condition, b *batch, part int) {
	m := &p.model
	pr.open(p.layerCount, part)
	first := len(pr.kernels)
	n := float64(b.tokens())
	if !st.eager && b.prompt == 0 && p.spec.Engine.Pad {
		n = float64(captured(b.tokens()))
	}
	attn, rest := attentionParams(m), float64(m.NonExpert-m.HeadParams())/float64(m.Layers)
	kernels, alone := 10.0, 14.0
	if k := p.spec.Engine.Kernels; k > 0 {
		kernels, alone = float64(k), 1.4*float64(k)
	}
	if m.MoE() {
		kernels, alone = 14, 52
		pr.add(p.product(st, c, rest, rest, p.attnBits, n, p.narrow, p.stream, 2))
		p.experts(pr, st, c, n)
	} else {
		q, kv := float64(m.Hidden*m.Heads*m.HeadDim), 2*float64(m.Hidden*m.KVHeads*m.HeadDim)
		up := (rest - attn) * 2 / 3
		if float64(m.Intermediate)*float64(m.Hidden)*2.5 > rest-attn { // no gate: up and down are alike
			up = (rest - attn) / 2
		}
		pr.add(p.product(st, c, q+kv, q+kv, p.weightBits, n, p.flops, p.stream, 1))
		pr.add(p.product(st, c, q, q, p.weightBits, n, p.flops, p.stream, 1))
		pr.add(p.product(st, c, up, up, p.weightBits, n, p.flops, p.stream, 1))
		pr.add(p.product(st, c, rest-attn-up, rest-attn-up, p.weightBits, n, p.flops, p.stream, 1))
	}
	p.adapters(pr, st, c, b, n)
	p.attention(pr, st, c, b)
	p.elementwise(pr, st, c, n)
	p.overheads(pr, st, c, first, kernels, alone)
	p.foreign(pr, c, first)
	p.collectives(pr, st, c, n)
}

// attentionParams is the size of the four projections around attention of one layer.
func attentionParams(m *hardware.Model) float64 {
	return float64(m.Hidden) * float64(m.HeadDim) * float64(2*m.Heads+2*m.KVHeads)
}

// ticks is by how much longer than at the reference clock a fixed number of cycles takes.
func (p *plant) ticks(c *condition) float64 {
	return referenceHz / (p.gpu.MaxSMClockHz * c.clock) * c.slow
}

// product is a matrix product over n tokens that streams the given weights once: params numbers of bits each, spread
// over the ranks of a group, in so many kernels.
func (p *plant) product(st *step, c *condition, params, active, bits, n, peakFlops, reach, kernels float64) Kernel {
	if params <= 0 || n <= 0 {
		return Kernel{}
	}
	params, active = params/p.tensorRanks, active/p.tensorRanks
	buffer := n * float64(p.model.Hidden) * 2
	bytes := params*bits/8 + 2*buffer*spill(buffer, p.gpu.L2Bytes)
	rows := padded(n)
	tensor := 2 * active * rows / (peakFlops * c.clock)
	k := p.join(st, c, bytes, tensor, tensor/pipe(rows)*p.unpack, reach)
	k.Seconds += kernels * productSeconds * p.ticks(c)
	return k
}

// join makes one kernel of a memory time and a compute time. Neither hides wholly behind the other near the ridge.
func (p *plant) join(st *step, c *condition, bytes, tensor, compute, reach float64) Kernel {
	memory := bytes / (p.peak * reach * c.bandwidth * clockReach(c.clock) * st.noise) * c.slow
	compute *= c.slow / st.noise
	longer, shorter := max(memory, compute), min(memory, compute)
	k := Kernel{Bytes: bytes, Tensor: tensor, SM: 0.96, Occ: 0.20, GR: 1, Limiter: LimitMemory}
	if longer > 0 {
		k.Seconds = longer
		if r := shorter / longer; r > 0.1 { // below, the root differs from one by less than a millionth
			k.Seconds *= math.Pow(1+math.Pow(r, sharpness), 1.0/sharpness)
		}
	}
	if compute > memory {
		k.Limiter, k.Occ = LimitCompute, 0.16
	}
	return k
}

// experts adds the routed part of a layer. Each expert sees its part of the tokens, so that its tiles are emptier than
// a dense layer's; and what a small expert streams is over before its loads have come up to speed, so that neither
// roof is reached.
func (p *plant) experts(pr *program, st *step, c *condition, own float64) {
	m := &p.model
	n := own
	if p.pooled { // the experts of all replicas are spread over all ranks, and work for all of them
		n = 0
		for i := range st.batches {
			n += float64(st.batches[i].tokens())
		}
	}
	touched := p.touched(n)
	held := float64(m.ParamsStreamed-m.NonExpert) / float64(m.Layers) / p.expertRanks // parameters of experts on this rank
	one := float64(m.ExpertParams)
	rows := n * float64(m.TopK) * p.load / p.expertSplit // of all experts on this rank
	here := held / one * touched                         // experts with work
	each := rows / max(1, here)
	tiles := math.Ceil(each/expertTile) * expertTile
	if each > 64 {
		tiles = math.Ceil(each/64) * 64
	}
	bytes := held * touched * p.weightBits / 8
	buffer := rows * float64(m.Hidden) * 2
	bytes += expertPasses / 2 * buffer * spill(buffer, p.gpu.L2Bytes)
	tensor := 2 * one * here * tiles / (p.flops * expertRate * c.clock)
	size := one * p.weightBits / 8
	reach := size / (size + expertLead)
	k := p.join(st, c, bytes, tensor, tensor/pipe(tiles)*p.unpack, p.stream*reach)
	k.Seconds += 2 * productSeconds * p.ticks(c)
	if k.Limiter == LimitMemory && reach < 0.7 {
		k.Limiter = LimitOther
	}
	k.SM *= min(1, 0.3+0.7*touched)
	pr.add(k)
	scatter := rows / float64(m.TopK) * scatterSeconds / max(1, p.gpuScale())
	moved := expertPasses / 2 * buffer * spill(buffer, p.gpu.L2Bytes)
	pr.add(Kernel{
		Seconds: max(scatter*p.ticks(c), moved/(p.peak*p.stream*c.bandwidth)*c.slow), Bytes: moved, SM: 0.9, Occ: 0.35, GR: 1,
		Limiter: LimitOther,
	})
	pr.add(Kernel{Seconds: routeSeconds * p.ticks(c), SM: 0.06, Occ: 0.02, GR: 1, Limiter: LimitLaunch})
}

// gpuScale is how many SMs the GPU has for each one of the board that the fixed times were found on.
func (p *plant) gpuScale() float64 { return float64(p.gpu.SMs) / 132 }

// adapters adds the low-rank products of the sequences' adapters: two small kernels at each of the four places where a
// layer has weights, which read the adapters that are in use.
func (p *plant) adapters(pr *program, st *step, c *condition, b *batch, n float64) {
	if b.adapters == 0 {
		return
	}
	m := &p.model
	width := float64(m.Hidden)*7 + float64(m.Heads*m.HeadDim)*2 + float64(m.KVHeads*m.HeadDim)*2 + float64(m.Intermediate)*3
	params := width * float64(p.spec.Engine.AdapterRank) / p.tensorRanks
	bytes := params * 2 * float64(b.adapters)
	tensor := 2 * params * max(n, 16*float64(b.adapters)) / (p.narrow * c.clock)
	k := p.join(st, c, bytes, tensor, tensor/0.3, p.stream*0.6)
	k.SM = 0.6
	pr.add(k)
	pr.add(Kernel{Seconds: 8 * (rampSeconds + gapSeconds) * p.ticks(c), SM: 0.25, Occ: 0.05, GR: 1, Limiter: LimitLaunch})
}

// attention adds the kernels that read the cache.
func (p *plant) attention(pr *program, st *step, c *condition, b *batch) {
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
	if b.decode > 0 {
		tokens := full*b.contexts + (1-full)*b.windowed + float64(b.decode*(1+b.drafts))
		bytes := max(0, tokens-b.reused) * elems * p.kvBytes
		// The group of query heads fills a tile of sixteen rows however small it is.
		tensor := 4 * width / p.tensorRanks * tokens * max(p.headPadding(), float64(1+b.drafts)) / (p.narrow * c.clock)
		k := p.join(st, c, bytes, tensor, tensor/0.65, p.gather)
		k.Occ = 0.13
		pr.add(k)
	}
	if b.prompt > 0 {
		bytes := b.promptKV * elems * p.kvBytes
		tensor := 4 * width / p.tensorRanks * b.pairs * (full + (1-full)*0.3) / (p.narrow * c.clock)
		pr.add(p.join(st, c, bytes, tensor, tensor/0.62, p.gather))
	}
	if b.arrived > 0 { // what the other machine sends is written as it comes
		bytes := b.arrived * elems * p.kvBytes
		pr.add(Kernel{Seconds: bytes / (p.peak * 0.8), Bytes: bytes, SM: 0.1, Occ: 0.05, GR: 1, Limiter: LimitMemory})
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
func (p *plant) elementwise(pr *program, st *step, c *condition, n float64) {
	buffer := n * float64(p.model.Hidden) * 2
	traffic := 14 * buffer / max(1, p.tensorRanks/2)
	out := spill(buffer, p.gpu.L2Bytes)
	k := Kernel{Bytes: traffic * out, SM: 0.85, Occ: 0.5, GR: 1, Limiter: LimitOther}
	dram := k.Bytes / (p.peak * 0.85 * c.bandwidth)
	cache := traffic * (1 - out) / (p.peak * 2.2 * c.clock)
	k.Seconds = (dram + cache) / st.noise * c.slow
	if dram > cache {
		k.Limiter = LimitMemory
	}
	pr.add(k)
}

// overheads adds what a layer loses between and around its kernels. Outside a graph there are more of them (alone), and
// the GPU runs dry when the host launches slower than it works.
func (p *plant) overheads(pr *program, st *step, c *condition, first int, kernels, alone float64) {
	var resident float64
	for _, k := range pr.kernels[first:] {
		resident += k.Seconds
	}
	if st.eager {
		kernels = alone
	}
	ramp := kernels * rampSeconds * p.ticks(c)
	pr.add(Kernel{Seconds: ramp, SM: 0.30, Occ: 0.05, GR: 1, Limiter: LimitLaunch})
	gap := kernels * gapSeconds * p.ticks(c)
	if !st.eager {
		pr.add(Kernel{Seconds: gap, SM: 0.02, GR: 1, Limiter: LimitLaunch})
		return
	}
	gap = max(gap, kernels*st.launch-resident-ramp)
	pr.add(Kernel{Seconds: gap, SM: 0, GR: min(1, kernels*fetchSeconds/gap), Limiter: LimitLaunch})
}

// foreign adds the time slices of someone else's kernels.
func (p *plant) foreign(pr *program, c *condition, first int) {
	if c.foreign <= 0 {
		return
	}
	var own float64
	for _, k := range pr.kernels[first:] {
		own += k.Seconds
	}
	pr.add(p.stranger(own * c.foreign / (1 - c.foreign)))
}

// stranger is a slice of someone else's work: a bit of everything.
func (p *plant) stranger(seconds float64) Kernel {
	return Kernel{
		Seconds: seconds, Bytes: 0.35 * p.peak * seconds, Tensor: 0.25 * seconds, SM: 0.9, Occ: 0.3, GR: 1, Limiter: LimitOther,
	}
}

// collectives adds what a layer exchanges with the other ranks, and the place where it waits for them: two all-reduces
// of a tensor-parallel group, and the exchange of tokens before and after pooled experts.
func (p *plant) collectives(pr *program, st *step, c *condition, n float64) {
	if p.tensorRanks == 1 && !p.pooled {
		return
	}
	message := n * float64(p.model.Hidden) * 2
	rounds := 2.0
	if p.pooled && p.tensorRanks > 1 {
		rounds = 4
	}
	if p.pooled {
		message *= float64(p.model.TopK) / 2 // each token travels to several experts, mostly on other ranks
	}
	wire := 2 * (p.ranks - 1) / p.ranks * message / p.linkBps
	pr.add(Kernel{
		Seconds: rounds*(p.reduce*p.ticks(c)+st.link+wire) + st.tail/float64(p.model.Layers),
		Bytes:   2 * message, Link: rounds * 2 * (p.ranks - 1) / p.ranks * message, SM: reduceSM, Occ: reduceSM / 3, GR: 1, Limiter: LimitComm,
	})
	pr.add(Kernel{SM: reduceSM, Occ: reduceSM / 3, GR: 1, Limiter: LimitComm, Waits: true})
}

// output adds what comes after the layers: the drafts of a speculating engine, the head and the sampling.
func (p *plant) output(pr *program, st *step, c *condition, b *batch) {
	m := &p.model
	head := float64(m.HeadParams())
	if b.drafts > 0 && b.decode > 0 {
		p.draft(pr, st, c, b)
	}
	if b.sampled > 0 {
		pr.add(p.product(st, c, head, head, p.headBits, float64(b.sampled), p.narrow, p.headStream, 1))
	}
	// Sampling sorts and reduces the logits, which fit in L2 but for large batches.
	logits := float64(b.sampled) * float64(m.Vocab) * 4 / p.tensorRanks
	pr.add(Kernel{
		Seconds: 30e-6*p.ticks(c) + 4*logits/(p.peak*0.6)*c.slow, Bytes: 4 * logits * spill(logits, p.gpu.L2Bytes),
		SM: 0.35, Occ: 0.2, GR: 1, Limiter: LimitOther,
	})
}

// draft adds the guesses. A draft model runs all its layers once for each guess; without one, a layer of the model's own
// and its head do, as trained-on heads are.
func (p *plant) draft(pr *program, st *step, c *condition, b *batch) {
	m, times, n := &p.spec.Engine.Draft, float64(b.drafts), float64(b.decode)
	layers, params, bits := float64(m.Layers), float64(m.ParamsStreamed), 16.0
	if m.Name == "" {
		layers, bits = 1, p.headBits
		params = float64(p.model.NonExpert-p.model.HeadParams())/float64(p.model.Layers) + float64(p.model.HeadParams())
	}
	k := p.product(st, c, params, params, bits, n, p.narrow, p.headStream, 4*layers+1)
	k.Seconds, k.Bytes, k.Tensor = k.Seconds*times, k.Bytes*times, k.Tensor*times
	pr.add(k)
	if m.Name != "" {
		cache := b.contexts * float64(m.KVElems) * 2 / p.tensorRanks * times
		pr.add(p.join(st, c, cache, 0, 0, p.gather))
	}
	pr.add(Kernel{
		Seconds: times * layers * 10 * (rampSeconds + gapSeconds) * p.ticks(c), SM: 0.25, Occ: 0.05, GR: 1, Limiter: LimitLaunch,
	})
}
