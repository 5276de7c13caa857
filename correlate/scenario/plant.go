package scenario

import (
	"math"
	"math/rand/v2"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// plant is one rank of a target: how fast this GPU runs its part of this model.
type plant struct {
	gpu   hardware.GPU
	model hardware.Model
	spec  *TargetSpec

	replica    int  // which copy of the model it belongs to
	stage      int  // of the pipeline
	last       bool // its stage ends in the head
	parts      int  // into which a step is cut for the pipeline: its stages
	layerCount int
	pooled     bool // the experts of all replicas are spread over all ranks

	peak       float64 // DRAM bytes per second
	stream     float64 // fraction of peak that a weight-streaming product reaches
	headStream float64 // the same of the head, which is never one of the quantized kernels
	gather     float64 // fraction of peak that attention over the cache reaches
	flops      float64 // tensor operations per second at the maximal clock
	narrow     float64 // the same in 16 bits: attention and the head compute there
	weightBits float64
	headBits   float64
	attnBits   float64 // of what is neither expert nor head, in a model with experts
	kvBytes    float64 // per element
	unpack     float64 // factor on the compute time of products that first widen their weights
	integer    bool    // the products run on the integer pipes

	ranks       float64 // that take part in its collectives
	tensorRanks float64 // over which each product is cut
	kvRanks     float64
	expertRanks float64 // over which the parameters of the experts are spread
	expertSplit float64 // over which the tokens of the experts are spread
	linkBps     float64
	reduce      float64              // s, latency of a collective at the reference clock
	load        float64              // of its experts, as a part of the mean over ranks
	routes      [routePoints]float64 // see touched
}

// newPlant returns the rank of that number. Luck is what this board reaches of what boards of its kind do.
func newPlant(g hardware.GPU, t *TargetSpec, rank int, luck float64, seed uint64) plant {
	p := plant{gpu: g, model: t.Model, spec: t, peak: g.Describe(0, "").DerivedBandwidth(), unpack: 1, load: 1}
	p.place(rank)
	switch g.Memory {
	case hardware.HBM3, hardware.HBM3e:
		p.stream, p.gather = 0.885, 0.895
	case hardware.HBM2, hardware.HBM2e:
		p.stream, p.gather = 0.84, 0.84
	default: // error correction on GDDR costs bandwidth
		p.stream, p.gather = 0.82, 0.79
	}
	if t.KVDType.Bits < 16 { // numbers of eight bits are widened as they come (calibrated: row 32 against row 31)
		p.gather *= 0.93
	}
	p.stream *= luck
	p.gather *= luck
	p.headStream = p.stream
	if r := t.Engine.Reach; r > 0 {
		p.stream *= r
	}
	p.weightBits, p.headBits, p.kvBytes = t.DType.Bits, t.DType.HeadBits, t.KVDType.Bits/8
	scale := g.MaxSMClockHz / g.RateClockHz
	p.narrow = g.Rates.BF16 * scale
	p.flops = p.narrow
	r, native := g.Rate(t.DType.Name)
	if native {
		p.flops = r * scale
	}
	if t.DType.WeightsOnly || !native {
		p.unpack = 1.15
	}
	p.integer = native && t.DType.Math == "int8"
	p.attnBits = p.weightBits
	if t.Model.MoE() && t.DType.WeightsOnly { // four-bit checkpoints of expert models quantize the experts alone
		p.attnBits = p.headBits
	}
	p.kvRanks = p.tensorRanks
	if t.Model.KVHeads > 0 {
		p.kvRanks = min(p.tensorRanks, float64(t.Model.KVHeads))
	}
	if t.Model.MLA() {
		p.kvRanks = 1
	}
	// Both directions at 0.81 of what the links carry: 366 GB/s of 450 on H100 (waynehacking8/nccl-collectives-bench).
	p.linkBps = max(g.NVLinkBps/2, 25e9) * 0.81
	p.reduce = reduceSeconds
	if d := t.Engine.Reduce; d > 0 {
		p.reduce = d.Seconds()
	}
	p.route(rank, seed)
	return p
}

// place says which part of the model a rank holds. Ranks count tensor parallelism fastest, then stages, then replicas.
func (p *plant) place(rank int) {
	t := p.spec
	p.parts = t.PP
	p.stage, p.replica = rank/t.TP%t.PP, rank/(t.TP*t.PP)
	p.last = p.stage == t.PP-1
	p.layerCount = t.Model.Layers / t.PP
	if p.stage < t.Model.Layers%t.PP {
		p.layerCount++
	}
	p.tensorRanks = float64(t.TP)
	p.ranks, p.expertRanks, p.expertSplit = p.tensorRanks, p.tensorRanks, p.tensorRanks
	p.pooled = t.Model.MoE() && (t.DP > 1 || t.EP)
	if p.pooled {
		p.ranks = float64(t.TP * t.DP)
		p.expertRanks, p.expertSplit = p.ranks, p.ranks
	}
}

const (
	routePoints    = 57 // four for each doubling of the tokens, up to 16384
	pointsPerTwice = 4
)

// route draws how popular each expert is, and works out which part of this rank's experts any number of tokens touches.
// Popularity is far from even in trained models, so a step reads fewer experts than even routing would. Tokens that
// resemble each other choose alike: with a correlation c, n tokens touch as many as 1 + (n-1)(1-c) strangers do.
func (p *plant) route(rank int, seed uint64) {
	m := &p.model
	if !m.MoE() {
		return
	}
	r := rand.New(rand.NewPCG(seed, 0x726f757465))
	popular := make([]float64, m.Experts)
	var sum float64
	for i := range popular {
		popular[i] = math.Exp(p.spec.Skew * clamped(r))
		sum += popular[i]
	}
	own := popular
	if p.pooled {
		n, of := len(popular), int(p.ranks)
		k := rank % of
		own = popular[k*n/of : max(k*n/of+1, (k+1)*n/of)]
		var here float64
		for _, w := range own {
			here += w
		}
		p.load = here / sum * p.ranks
	}
	for i := range p.routes {
		n := 1 + (math.Exp2(float64(i)/pointsPerTwice)-1)*(1-p.spec.Correlation)
		for _, w := range own {
			p.routes[i] += 1 - math.Pow(1-min(1, w/sum*float64(m.TopK)), n)
		}
		p.routes[i] /= float64(len(own))
	}
}

// touched is the part of a layer's experts on this rank that n tokens go to.
func (p *plant) touched(n float64) float64 {
	at := math.Log2(max(1, n)) * pointsPerTwice
	i := min(int(at), routePoints-2)
	return p.routes[i] + (p.routes[i+1]-p.routes[i])*min(1, at-float64(i))
}

// weightBytes is what the weights of this rank take of its memory.
func (p *plant) weightBytes() float64 {
	m := &p.model
	head, all := float64(m.HeadParams()), float64(m.ParamsTotal)
	experts := float64(m.ParamsStreamed - m.NonExpert)
	part := float64(p.layerCount) / float64(m.Layers)
	body := (all-head-experts)/p.tensorRanks + experts/p.expertRanks
	bytes := body * part * p.spec.DType.Bits / 8
	if p.last {
		bytes += head * p.spec.DType.HeadBits / 8 / p.tensorRanks
	}
	return bytes + float64(p.spec.Engine.Draft.ParamsTotal)*2/p.tensorRanks
}
