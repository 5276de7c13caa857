package scenario

import "math"

// Limiter is the one thing that a kernel, or a gap between kernels, waits for.
type Limiter uint8

// The limiters.
const (
	LimitMemory  Limiter = iota // DRAM bandwidth
	LimitCompute                // tensor throughput
	LimitLaunch                 // launches, and kernels too short to fill the SMs
	LimitHost                   // the host, while the GPU has nothing to run
	LimitComm                   // other ranks: collectives, and the wait for whoever is late
	LimitOther                  // anything else: arithmetic outside the tensor cores, someone else's kernels

	numLimiters = iota
)

// Kernel is a stretch of one GPU's time with one limiter: a kernel, the like kernels of a layer taken together, or a
// gap. All its rates are constant over it.
type Kernel struct {
	Seconds float64
	Bytes   float64 // moved to and from DRAM
	Tensor  float64 // seconds of tensor pipes active, tile padding included
	Link    float64 // bytes sent to other ranks; as many come back
	SM      float64 // fraction of SMs with work
	Occ     float64 // fraction of warps resident
	GR      float64 // fraction of the time the engine has work
	Limiter Limiter
	Waits   bool // for another rank, with nothing of its own to do
}

// program is what a GPU runs for one step: sections of kernels, some of which are repeated once a layer.
type program struct {
	kernels  []Kernel
	sections []section
}

// section is a run of kernels that is repeated as a whole.
type section struct {
	from, to int
	repeat   int
	part     int // of the batch, when the step is cut over the stages of a pipeline
}

func (p *program) reset() { p.kernels, p.sections = p.kernels[:0], p.sections[:0] }

// open starts a section that is repeated so often.
func (p *program) open(repeat, part int) {
	p.sections = append(p.sections, section{from: len(p.kernels), to: len(p.kernels), repeat: repeat, part: part})
}

// add adds a kernel to the section that was opened last.
func (p *program) add(k Kernel) {
	if k.Seconds > 0 || k.Waits {
		p.kernels = append(p.kernels, k)
		p.sections[len(p.sections)-1].to++
	}
}

// of returns the kernels of a section, once.
func (p *program) of(s section) []Kernel { return p.kernels[s.from:s.to] }

// length returns how long a section takes once.
func (p *program) length(s section) float64 {
	var sum float64
	for i := s.from; i < s.to; i++ {
		sum += p.kernels[i].Seconds
	}
	return sum
}

func (p *program) seconds() float64 {
	var sum float64
	for _, s := range p.sections {
		sum += p.length(s) * float64(s.repeat)
	}
	return sum
}

// stretch multiplies all durations by f, which is one but for the rounding of the step to whole nanoseconds.
func (p *program) stretch(f float64) {
	for i := range p.kernels {
		p.kernels[i].Seconds *= f
	}
}

// wait spreads so many seconds over the places where the rank waits for the others.
func (p *program) wait(seconds float64) {
	places := 0
	for _, s := range p.sections {
		for _, k := range p.of(s) {
			if k.Waits {
				places += s.repeat
			}
		}
	}
	if places == 0 {
		return
	}
	for i := range p.kernels {
		if p.kernels[i].Waits {
			p.kernels[i].Seconds = seconds / float64(places)
		}
	}
}

// Constants of the physics. What is said to be calibrated was fitted to the rows that TestPublished calls calibration;
// all other rows are predictions.
const (
	// referenceHz is the SM clock at which the fixed times below hold: they are cycles, not seconds.
	referenceHz = 1980e6
	// rampSeconds is what each kernel loses to filling and draining the SMs, and gapSeconds the time between two
	// kernels of a graph. productSeconds is what a matrix product loses on top: its prologue, its last wave, and the
	// reduction over the parts of a split sum. Together they make the fixed part of a step (calibrated: 6.44 ms for
	// Llama-3.1-8B in bf16 on H100 at no context, vLLM's "State of FP8 KV-cache").
	rampSeconds    = 1.3e-6
	gapSeconds     = 1.0e-6
	productSeconds = 1.5e-6
	// fetchSeconds is how long the front end counts as busy for each launch, however late the launch comes.
	fetchSeconds = 4e-6
	// sharpness is the exponent with which a kernel's memory and compute times join: near the ridge neither pipe hides
	// fully behind the other.
	sharpness = 6
	// routeSeconds is what routing adds to a layer with experts: choosing, sorting and gathering tokens in a train of
	// kernels that fill few SMs (calibrated: a public sweep of Qwen3-30B-A3B on H200 has a step of 5.15 ms at one
	// request, of which the weights explain 0.8 ms).
	routeSeconds = 36e-6
	// expertLead is how many bytes a kernel over experts could have read while the loads of each one start. With it the
	// small experts of Qwen3-30B-A3B in fp8 stream at half of the rate of a dense layer.
	expertLead = 4e6
	// expertRate is the part of the tensor rate that grouped products over experts issue at: kernels written for the
	// older matrix instructions, as the portable ones are, reach half of Hopper's rate and keep the pipes active for
	// twice as long (calibrated on that sweep's row of 2048 requests).
	expertRate = 0.55
	// expertTile is the least number of rows that the tile of an expert holds.
	expertTile = 16
	// expertPasses is how often the routed tokens are written and read on their way: quantized, gathered, out of the
	// first product, into the activation and out, out of the second product, and summed.
	expertPasses = 9
	// scatterSeconds is what a token costs in a layer with experts outside the products: it is quantized, gathered into
	// the order of the experts, scattered back and summed, with random access by warps that mostly wait (calibrated on
	// the same row).
	scatterSeconds = 0.36e-6
	// reduceSeconds is the latency of one all-reduce inside a graph on NVLink: 12.9 us for NCCL on four quiet H100s
	// (waynehacking8/nccl-collectives-bench), and 5 to 10 us for the one-shot kernels that engines bring.
	reduceSeconds = 11e-6
	// tailChance is the part of the collectives that come late, and tailSeconds by how much at least: 23 to 37 us of
	// latency come with stragglers of 65 to 82 us in that benchmark. tailShape is the exponent of the lateness.
	tailChance  = 0.015
	tailSeconds = 25e-6
	tailShape   = 2.2
	tailLongest = 4e-3
	// reduceSM is the part of the SMs that a collective holds, waiting or not: its blocks spin on flags in the memory of
	// the others. One-shot kernels run 36 blocks on 132 SMs, rings fewer.
	reduceSM = 0.2
	// pipeSM is the same for a receive between the stages of a pipeline, and pipeSeconds its latency.
	pipeSM      = 0.03
	pipeSeconds = 15e-6
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

// captured returns for how many tokens the graph is made that a step of n tokens is replayed with: engines capture
// graphs for one, two, four and the multiples of eight.
func captured(n int) int {
	switch {
	case n <= 2:
		return n
	case n <= 4:
		return 4
	default:
		return (n + 7) / 8 * 8
	}
}

// pipe is the part of its cycles that a product of n rows keeps the tensor pipes of a busy SM active. Small products
// cannot hide their loads.
func pipe(n float64) float64 {
	return 0.91 * n / (n + 24)
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
