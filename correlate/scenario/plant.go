package scenario

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// plant is one rank of a target: how fast this GPU runs this model.
type plant struct {
	gpu   hardware.GPU
	model hardware.Model

	peak       float64 // DRAM bytes per second
	stream     float64 // fraction of peak that a weight-streaming product reaches
	gather     float64 // fraction of peak that attention over the cache reaches
	flops      float64 // tensor operations per second at the maximal clock
	narrow     float64 // the same in 16 bits: attention and the head compute there
	weightBits float64
	headBits   float64
	attnBits   float64 // of what is neither expert nor head, in a model with experts
	kvBytes    float64 // per element
	unpack     float64 // factor on the compute time of products that first widen their weights
	integer    bool    // the products run on the integer pipes
	ranks      float64
	kvRanks    float64
	linkBps    float64
	routes     [routePoints]float64 // see touched
}

func newPlant(g hardware.GPU, t *TargetSpec, luck float64, seed uint64) plant {
	p := plant{gpu: g, model: t.Model, peak: g.Describe(0, "").DerivedBandwidth(), ranks: float64(t.TP), unpack: 1}
	switch g.Memory {
	case hardware.HBM3, hardware.HBM3e:
		p.stream, p.gather = 0.885, 0.895
	case hardware.HBM2, hardware.HBM2e:
		p.stream, p.gather = 0.85, 0.84
	default: // error correction on GDDR costs bandwidth
		p.stream, p.gather = 0.81, 0.79
	}
	p.stream *= luck
	p.gather *= luck
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
	p.kvRanks = p.ranks
	if t.Model.KVHeads > 0 {
		p.kvRanks = min(p.ranks, float64(t.Model.KVHeads))
	}
	if t.Model.MLA() {
		p.kvRanks = 1
	}
	p.linkBps = max(g.NVLinkBps/2, 25e9) * 0.8
	p.route(seed)
	return p
}

const (
	routePoints    = 57 // four for each doubling of the tokens, up to 16384
	pointsPerTwice = 4
	routeSpread    = 0.9
)

// route draws how popular each expert is, and works out which part of them any number of tokens touches. Popularity is
// far from even in trained models, so a step reads fewer experts than even routing would.
func (p *plant) route(seed uint64) {
	m := &p.model
	if !m.MoE() {
		return
	}
	r := rand.New(rand.NewPCG(seed, 0x726f757465))
	popular := make([]float64, m.Experts)
	var sum float64
	for i := range popular {
		popular[i] = math.Exp(routeSpread * clamped(r))
		sum += popular[i]
	}
	for i := range p.routes {
		n := math.Exp2(float64(i) / pointsPerTwice)
		for _, w := range popular {
			p.routes[i] += 1 - math.Pow(1-min(1, w/sum*float64(m.TopK)), n)
		}
		p.routes[i] /= float64(m.Experts)
	}
}

// touched is the part of a layer's experts that n tokens go to.
func (p *plant) touched(n float64) float64 {
	at := math.Log2(max(1, n)) * pointsPerTwice
	i := min(int(at), routePoints-2)
	return p.routes[i] + (p.routes[i+1]-p.routes[i])*min(1, at-float64(i))
}

// Parts of a board's rated power, at full activity and the highest clock. A board at rest with a loaded model draws some
// 15 % of its rating; streaming weights at the roof draws half to two thirds of it (320 to 430 W in the logs of arXiv
// 2503.08311 on 700 W boards); dense products of random numbers want more than the board may draw, which is why they
// run below the highest clock.
const (
	restPart   = 0.14
	memoryPart = 0.30
	smPart     = 0.20
	tensorPart = 1.25
	// clockPower is the exponent with which dynamic power follows the clock: frequency times the square of the voltage.
	clockPower = 2.4
)

const (
	governorMemory = 60 * time.Millisecond // over which the power control averages
	thermalMemory  = 15 * time.Second
	ambientCelsius = 31.0
	riseCelsius    = 42.0 // at rated power
	clockStepHz    = 15e6
	lowestClock    = 0.12 // of the maximum
)

// machine is the power, clock and temperature of one rank. Its state only moves forward.
type machine struct {
	gpu     hardware.GPU
	fixed   float64 // W that the clock does not change, averaged
	dynamic float64 // W at the highest clock, averaged
	celsius float64
}

func newMachine(g hardware.GPU) machine {
	return machine{gpu: g, fixed: restPart * g.TDPWatts, celsius: ambientCelsius + restPart*riseCelsius}
}

// demand splits the power of a kernel into the part that the clock does not change and the part it does, at the
// highest clock.
func demand(g *hardware.GPU, k *Kernel, peak float64) (fixed, dynamic float64) {
	fixed = restPart * g.TDPWatts
	if k.Seconds <= 0 {
		return fixed, 0
	}
	fixed += memoryPart * g.TDPWatts * k.Bytes / k.Seconds / peak
	return fixed, g.TDPWatts * (smPart*k.SM + tensorPart*k.Tensor/k.Seconds)
}

// watts is the power of a kernel at a clock, as a part of the highest.
func watts(g *hardware.GPU, k *Kernel, peak, clock float64) float64 {
	fixed, dynamic := demand(g, k, peak)
	return fixed + dynamic*math.Pow(clock, clockPower)
}

// hold says what keeps the clock below its maximum.
type hold uint8

const (
	holdNone hold = iota
	holdPower
	holdThermal
	holdLock
)

// clock returns the clock that the machine runs at, as a part of the highest, and what holds it there.
func (m *machine) clock(limits limits) (float64, hold) {
	clock, why := 1.0, holdNone
	if f := limits.lockHz / m.gpu.MaxSMClockHz; limits.lockHz > 0 && f < clock {
		clock, why = f, holdLock
	}
	if f := limits.thermalHz / m.gpu.MaxSMClockHz; limits.thermalHz > 0 && f < clock {
		clock, why = f, holdThermal
	}
	if m.fixed+m.dynamic*math.Pow(clock, clockPower) > limits.watts {
		f := 0.0
		if room := limits.watts - m.fixed; room > 0 { // then it is the dynamic part that is too much, and not zero
			f = math.Pow(room/m.dynamic, 1/clockPower)
		}
		clock, why = min(clock, f), holdPower
	}
	step := clockStepHz / m.gpu.MaxSMClockHz
	return max(lowestClock, math.Floor(clock/step+1e-9)*step), why
}

// follow lets the averages and the temperature see a stretch of mean power: fixed and dynamic at the highest clock,
// and what was drawn.
func (m *machine) follow(fixed, dynamic, drawn float64, d time.Duration) {
	a := 1 - math.Exp(-float64(d)/float64(governorMemory))
	m.fixed += a * (fixed - m.fixed)
	m.dynamic += a * (dynamic - m.dynamic)
	m.celsius = warm(m.celsius, drawn/m.gpu.TDPWatts, d)
}

// warm returns the temperature after drawing a part of the rated power for a while.
func warm(celsius, part float64, d time.Duration) float64 {
	end := ambientCelsius + part*riseCelsius
	return end + (celsius-end)*math.Exp(-float64(d)/float64(thermalMemory))
}

// limits are what is in force at a moment.
type limits struct {
	watts     float64
	lockHz    float64
	thermalHz float64
}

// limitsAt returns the limits of a GPU at a moment.
func (s *Scenario) limitsAt(gpu int, t time.Duration) limits {
	l := limits{watts: s.GPUs[gpu].TDPWatts}
	for _, f := range s.Faults {
		if !f.Over.Contains(t) || f.GPU >= 0 && f.GPU != gpu {
			continue
		}
		switch f.Kind {
		case PowerCap:
			l.watts = min(l.watts, f.Value)
		case ClockLock:
			l.lockHz = f.Value
		case Thermal:
			l.thermalHz = f.Value
		default: // not a limit
		}
	}
	return l
}

// reasons returns the driver's bit mask for a hold.
func (h hold) reasons() uint64 {
	switch h {
	case holdPower:
		return timeline.ReasonSWPowerCap
	case holdThermal:
		return timeline.ReasonSWThermal
	case holdLock:
		return timeline.ReasonAppClocks
	default:
		return 0
	}
}

// meets reports whether the fault is in force and concerns this engine.
func (e *engine) meets(f *Fault) bool {
	return f.Over.Contains(e.now) && (f.Target < 0 || f.Target == e.target) && (f.GPU < 0 || slices.Contains(e.spec.GPUs, f.GPU))
}

// faults changes w by the faults in force.
func (e *engine) faults(w *work) {
	for _, f := range e.s.Faults {
		if !e.meets(&f) {
			continue
		}
		switch f.Kind {
		case HostStall:
			if f.Every == 0 || (e.now-f.Over.From)/f.Every > (e.previous-f.Over.From)/f.Every || e.previous < f.Over.From {
				w.gap += f.Value
			}
		case BandwidthLoss:
			w.bandwidth *= 1 - f.Value
		case Eager:
			w.eager = true
		case SlowLaunch:
			w.launch = f.Value
		case SlowLink:
			w.link += f.Value
		case Neighbour:
			w.foreign = f.Value
		default: // the machine's limits
		}
	}
}

// work sums up the parts.
func (e *engine) work() work {
	w := work{bandwidth: 1, drafts: e.spec.Engine.Speculate, eager: !e.spec.Engine.Graphs, launch: e.spec.Engine.Launch.Seconds(), noise: 1 + 0.008*clamped(e.rng)}
	window := e.spec.Model.SlidingWindow
	for _, p := range e.parts {
		if p.prompt == 0 {
			context := p.job.computed + 1
			w.decode++
			w.contexts += float64(context)
			if window > 0 {
				w.windowed += float64(min(window, context))
			}
			continue
		}
		w.prompt += p.prompt
		w.pairs += float64(p.prompt) * (float64(p.job.computed) + float64(p.prompt+1)/2)
		w.promptKV += float64(p.job.computed + 2*p.prompt)
		if p.job.computed+p.prompt == p.job.need {
			w.sampled++
		}
	}
	w.sampled += w.decode * (1 + w.drafts)
	w.reused = e.reuse()
	if e.spec.TP > 1 {
		// Ranks wait for the slowest of them, and how late it is has a long tail.
		w.link = 0.2 * reduceSeconds * e.rng.ExpFloat64()
	}
	if most := e.spec.Engine.Capture; most > 0 && w.decode+w.prompt > most {
		w.eager = true
	}
	host := e.spec.Engine.Host + time.Duration(len(e.parts))*e.spec.Engine.HostPerSeq
	w.gap = host.Seconds() * math.Exp(0.12*clamped(e.rng))
	return w
}

// reuse returns how many tokens of the contexts come from the L2: a common prefix is read once for all sequences that
// share it, if one layer's part of it fits.
func (e *engine) reuse() float64 {
	var tokens, seen float64
	counted := make([]bool, len(e.s.Loads))
	for _, p := range e.parts {
		if p.prompt > 0 || p.job.shared == 0 {
			continue
		}
		shared := float64(p.job.shared * e.spec.Engine.BlockSize)
		tokens += shared
		if !counted[p.job.load] {
			counted[p.job.load] = true
			seen += shared
		}
	}
	perLayer := float64(e.spec.Model.KVElems) / float64(e.spec.Model.Layers) / e.plant.kvRanks * e.plant.kvBytes
	if seen*perLayer > e.plant.gpu.L2Bytes/2 {
		return 0
	}
	return tokens - seen
}

// accepted draws how many tokens a sequence gets from a step: its own, and the guesses that are right.
func (e *engine) accepted() int {
	accept := e.spec.Engine.Accept
	for _, f := range e.s.Faults {
		if f.Kind == Acceptance && e.meets(&f) {
			accept = f.Value
		}
	}
	n := 1
	for n <= e.spec.Engine.Speculate && e.rng.Float64() < accept {
		n++
	}
	return n
}

// strangers notes who else uses the GPU while the engine rests, and cuts the rest where that changes.
func (e *engine) strangers(w *work, until *time.Duration) {
	for _, f := range e.s.Faults {
		if f.Kind != Neighbour {
			continue
		}
		if e.meets(&f) {
			w.foreign = f.Value
			*until = min(*until, f.Over.To)
		} else if f.Over.From > e.now {
			*until = min(*until, f.Over.From)
		}
	}
}
