package scenario

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Timeline is the truth of one scenario. It is safe for concurrent readers: nothing in it changes after Run.
type Timeline struct {
	scenario *Scenario
	owner    []int // target of each GPU, -1 for none
	tracks   []track
	requests []Request
}

// track is what one target's GPUs did, as segments that touch: each ends where the next one starts. The last one only
// marks the end. The kernels of a step are not kept: they are computed again from the step's work when asked for.
type track struct {
	plant     plant
	blocks    int
	blockSize int
	segments  []segment
}

func (tr *track) add(s segment) { tr.segments = append(tr.segments, s) }

// segment is a step, or a stretch without work.
type segment struct {
	start   time.Duration
	idle    bool
	held    hold
	running int
	waiting int
	blocks  int // of the KV cache in use
	work    work
	celsius float64 // at the start
	done    totals  // up to the start
}

// totals grow along a track. The first group grows within a step, the second at its end.
type totals struct {
	gr, sm, occ, tensor, half, integer, dram float64 // s
	energy                                   float64 // J
	bytes                                    float64
	limited                                  [numLimiters]float64 // s
	idle                                     float64              // s
	clock                                    float64              // s times part of the highest clock
	power, thermal                           float64              // s held

	steps, batch, prompt, prompted, output, preempted, finished, firsts, gaps, queried, hits int
	contexts, stepBytes, ttft, itl                                                           float64
}

// add adds what grows within a step.
func (t *totals) add(o totals) {
	t.gr += o.gr
	t.sm += o.sm
	t.occ += o.occ
	t.tensor += o.tensor
	t.half += o.half
	t.integer += o.integer
	t.dram += o.dram
	t.energy += o.energy
	t.bytes += o.bytes
	for i := range t.limited {
		t.limited[i] += o.limited[i]
	}
	t.idle += o.idle
	t.clock += o.clock
	t.power += o.power
	t.thermal += o.thermal
}

// Run makes the timeline of the scenario. It is a pure function: the same scenario gives the same timeline.
func (s *Scenario) Run() (*Timeline, error) {
	tl := &Timeline{scenario: s, owner: make([]int, len(s.GPUs))}
	for i := range tl.owner {
		tl.owner[i] = -1
	}
	for i := range s.Targets {
		for _, g := range s.Targets[i].GPUs {
			tl.owner[g] = i
		}
		e, err := newEngine(s, i)
		if err != nil {
			return nil, err
		}
		e.run()
		tl.tracks = append(tl.tracks, e.track)
		for _, r := range e.requests {
			tl.requests = append(tl.requests, *r)
		}
	}
	slices.SortStableFunc(tl.requests, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	for i := range tl.requests {
		tl.requests[i].Index = i
	}
	return tl, nil
}

// lay builds the program of a step and its length in whole nanoseconds.
func (p *plant) lay(w *work) (program, time.Duration) {
	pr := p.build(w)
	exact := pr.seconds()
	length := max(1, time.Duration(math.Round(exact*1e9)))
	pr.stretch(length.Seconds() / exact)
	return pr, length
}

// until returns what a step adds in its first x seconds.
func (p *plant) until(pr *program, seg *segment, x float64) totals {
	var t totals
	spend := func(k *Kernel, times, limit float64) float64 {
		d := min(k.Seconds*times, limit)
		if d > 0 {
			p.run(&t, k, d, seg)
		}
		return limit - max(0, d)
	}
	left := spend(&pr.host, 1, x)
	var layer float64
	for i := range pr.layer[:pr.nLayer] {
		layer += pr.layer[i].Seconds
	}
	whole := math.Min(float64(pr.layers), math.Floor(left/layer))
	for i := range pr.layer[:pr.nLayer] {
		left = spend(&pr.layer[i], whole, left)
	}
	if int(whole) < pr.layers {
		for i := range pr.layer[:pr.nLayer] {
			left = spend(&pr.layer[i], 1, left)
		}
		return t
	}
	for i := range pr.head[:pr.nHead] {
		left = spend(&pr.head[i], 1, left)
	}
	return t
}

// run adds d seconds of a kernel.
func (p *plant) run(t *totals, k *Kernel, d float64, seg *segment) {
	part := d / k.Seconds
	t.gr += k.GR * d
	t.sm += k.SM * d
	t.occ += k.Occ * d
	t.tensor += k.Tensor * part
	if p.integer {
		t.integer += k.Tensor * part
	} else {
		t.half += k.Tensor * part
	}
	t.bytes += k.Bytes * part
	t.dram += k.Bytes * part / p.peak
	t.energy += watts(&p.gpu, k, p.peak, seg.work.clock) * d
	t.limited[k.Limiter] += d
	t.hold(d, seg)
}

// hold adds d seconds of the segment's clock.
func (t *totals) hold(d float64, seg *segment) {
	t.clock += seg.work.clock * d
	switch seg.held {
	case holdPower:
		t.power += d
	case holdThermal:
		t.thermal += d
	default: // nothing that the driver counts
	}
}

// rest returns what d seconds without work add.
func (p *plant) rest(d float64, seg *segment) totals {
	t := totals{idle: d, energy: restPart * p.gpu.TDPWatts * d}
	if f := seg.work.foreign; f > 0 {
		k := p.stranger(d * f)
		p.run(&t, &k, d*f, seg)
		t.limited = [numLimiters]float64{} // not the engine's time
		t.energy -= restPart * p.gpu.TDPWatts * d * f
		t.clock -= seg.work.clock * d * f
	}
	t.hold(d, seg)
	return t
}

// meanDemand returns the mean power of a step by parts, at the highest clock.
func (p *plant) meanDemand(pr *program, seconds float64) (fixed, dynamic float64) {
	sum := func(k *Kernel, times float64) {
		f, d := demand(&p.gpu, k, p.peak)
		fixed += f * k.Seconds * times
		dynamic += d * k.Seconds * times
	}
	sum(&pr.host, 1)
	for i := range pr.layer[:pr.nLayer] {
		sum(&pr.layer[i], float64(pr.layers))
	}
	for i := range pr.head[:pr.nHead] {
		sum(&pr.head[i], 1)
	}
	return fixed / seconds, dynamic / seconds
}

// find returns the index of the segment that holds t.
func (tr *track) find(t time.Duration) int {
	i := sort.Search(len(tr.segments), func(i int) bool { return tr.segments[i].start > t })
	return max(0, i-1)
}

// at returns the totals up to t.
func (tr *track) at(t time.Duration) totals {
	i := tr.find(max(0, t))
	seg := &tr.segments[i]
	sum := seg.done
	x := (t - seg.start).Seconds()
	if x <= 0 {
		return sum
	}
	if seg.idle {
		sum.add(tr.plant.rest(x, seg))
		return sum
	}
	pr, _ := tr.plant.lay(&seg.work)
	sum.add(tr.plant.until(&pr, seg, x))
	return sum
}

// Duration returns how long the scenario is.
func (tl *Timeline) Duration() time.Duration { return tl.scenario.Length }

// Name returns the scenario's name.
func (tl *Timeline) Name() string { return tl.scenario.Name }

// Scenario returns what the timeline was made from. It must not be changed.
func (tl *Timeline) Scenario() *Scenario { return tl.scenario }

// GPUs returns the simulated GPUs, as a driver would describe them. Their identities depend on the seed alone.
func (tl *Timeline) GPUs() []timeline.GPU {
	var list []timeline.GPU
	for i, g := range tl.scenario.GPUs {
		d := g.Describe(i, tl.scenario.uuid(i))
		d.Simulated = true
		d.Driver = "simulated"
		d.PCIBusID = fmt.Sprintf("00000000:%02X:00.0", 0x18+i)
		list = append(list, d)
	}
	return list
}

// uuid returns the identity of a GPU.
func (s *Scenario) uuid(gpu int) string {
	r := rand.NewPCG(s.Seed, 0x6770750000000000+uint64(gpu))
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("GPU-%08x-%04x-4%03x-a%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0xfff, b&0xffffffffffff)
}

// Targets returns the engines and the GPUs they run on. They have no URL: whoever serves them knows it.
func (tl *Timeline) Targets() []timeline.Target {
	var list []timeline.Target
	for _, t := range tl.scenario.Targets {
		d := timeline.Target{Name: t.Name, Model: t.Model.Name, DType: t.DType.Name, KVDType: t.KVDType.Name, TP: t.TP}
		for _, g := range t.GPUs {
			d.GPUs = append(d.GPUs, tl.scenario.uuid(g))
		}
		list = append(list, d)
	}
	return list
}

// CounterFaults returns the faults of the instrument that the scenario asks for.
func (tl *Timeline) CounterFaults() []CounterFault { return slices.Clone(tl.scenario.Counters) }

// Integral returns the integral of a counter from the start to t: seconds for windowed fractions, so that a window's
// reading is the difference of its ends over its length; J for Energy; s for the throttle counters. It is exact at any
// t, inside kernels too, and zero for a counter that is read at one moment.
func (tl *Timeline) Integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	t = max(0, min(t, tl.Duration()))
	if tl.owner[gpu] < 0 {
		if c == timeline.Energy {
			return restPart * tl.scenario.GPUs[gpu].TDPWatts * t.Seconds()
		}
		return 0
	}
	sum := tl.tracks[tl.owner[gpu]].at(t)
	switch c {
	case timeline.GraphicsUtil:
		return sum.gr
	case timeline.SMUtil:
		return sum.sm
	case timeline.SMOccupancy:
		return sum.occ
	case timeline.TensorUtil:
		return sum.tensor
	case timeline.HMMAUtil:
		return sum.half
	case timeline.IMMAUtil:
		return sum.integer
	case timeline.DRAMUtil:
		return sum.dram
	case timeline.Energy:
		return sum.energy
	case timeline.ThrottlePower:
		return sum.power
	case timeline.ThrottleSWThermal:
		return sum.thermal
	default:
		return 0
	}
}

// State is what a GPU would tell at one moment.
type State struct {
	SMClockHz    float64
	MemClockHz   float64
	EventReasons uint64
	Watts        float64 // mean over the hundred milliseconds before
	LimitWatts   float64
	MemUsedBytes float64
	Celsius      float64
}

// powerWindow is what a driver's power reading averages over.
const powerWindow = 100 * time.Millisecond

// State returns the state of a GPU at t.
func (tl *Timeline) State(gpu int, t time.Duration) State {
	g := &tl.scenario.GPUs[gpu]
	t = max(0, min(t, tl.Duration()))
	st := State{
		SMClockHz: g.MaxSMClockHz, MemClockHz: g.MaxMemClockHz, LimitWatts: tl.scenario.limitsAt(gpu, t).watts,
		Watts: restPart * g.TDPWatts, Celsius: ambientCelsius + restPart*riseCelsius, EventReasons: timeline.ReasonIdle,
		MemUsedBytes: 500e6,
	}
	if tl.owner[gpu] < 0 {
		return st
	}
	tr := &tl.tracks[tl.owner[gpu]]
	seg := &tr.segments[tr.find(t)]
	st.SMClockHz = g.MaxSMClockHz * seg.work.clock
	st.EventReasons = seg.held.reasons()
	if seg.idle {
		st.EventReasons |= timeline.ReasonIdle
	}
	st.MemUsedBytes = memoryTaken * float64(g.MemoryBytes)
	if from := max(0, t-powerWindow); from < t {
		st.Watts = (tr.at(t).energy - tr.at(from).energy) / (t - from).Seconds()
	}
	st.Celsius = warm(seg.celsius, st.Watts/g.TDPWatts, t-seg.start)
	return st
}
