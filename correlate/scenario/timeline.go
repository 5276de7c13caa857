package scenario

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Timeline is the truth of one scenario. It is safe for concurrent readers: nothing in it changes after Run.
type Timeline struct {
	scenario *Scenario
	owner    []int // target of each GPU, -1 for none
	rank     []int // of each GPU in its target
	tracks   []track
	requests []Request
}

// track is what one target's GPUs did, as steps that touch: each ends where the next one starts. The last one only
// marks the end. The kernels of a step are not kept: they are computed again from its batches when asked for.
type track struct {
	plants    []plant // a rank
	blocks    int
	blockSize int
	steps     []step
	ranks     [][]segment // a rank, a step
	births    []birth     // after its first
}

func (tr *track) lastOf(rank int) *segment { return &tr.ranks[rank][len(tr.ranks[rank])-1] }

// totals grow along one rank's time.
type totals struct {
	gr, sm, occ, tensor, half, integer, dram float64 // s
	energy                                   float64 // J
	bytes, link                              float64
	limited                                  [numLimiters]float64 // s
	waits                                    float64              // s of LimitComm with nothing to do
	idle                                     float64              // s
	clock                                    float64              // s times part of the highest clock
	power, thermal                           float64              // s held
}

// counts grow at the ends of an engine's steps.
type counts struct {
	steps, batch, prompt, prompted, output, preempted, finished, firsts, gaps, queried, hits int
	contexts, stepBytes, ttft, itl                                                           float64
}

func (t *totals) add(o *totals) { t.plus(o, 1) }

// plus adds w times o.
func (t *totals) plus(o *totals, w float64) {
	t.gr += w * o.gr
	t.sm += w * o.sm
	t.occ += w * o.occ
	t.tensor += w * o.tensor
	t.half += w * o.half
	t.integer += w * o.integer
	t.dram += w * o.dram
	t.energy += w * o.energy
	t.bytes += w * o.bytes
	t.link += w * o.link
	for i := range t.limited {
		t.limited[i] += w * o.limited[i]
	}
	t.waits += w * o.waits
	t.idle += w * o.idle
	t.clock += w * o.clock
	t.power += w * o.power
	t.thermal += w * o.thermal
}

// Run makes the timeline of the scenario. It is a pure function: the same scenario gives the same timeline.
func (s *Scenario) Run() (*Timeline, error) {
	tl := &Timeline{scenario: s, owner: make([]int, len(s.GPUs)), rank: make([]int, len(s.GPUs))}
	for i := range tl.owner {
		tl.owner[i] = -1
	}
	for i := range s.Targets {
		for rank, g := range s.Targets[i].GPUs {
			tl.owner[g], tl.rank[g] = i, rank
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
	slices.SortStableFunc(tl.requests, byArrival)
	for i := range tl.requests {
		tl.requests[i].Index = i
	}
	tl.deliver()
	return tl, nil
}

// lay returns the program of a rank in a step that has been synchronized, as long as the step.
func (tr *track) lay(rank, i int) *program {
	pr := &program{kernels: make([]Kernel, 0, 24), sections: make([]section, 0, 5)}
	seg := &tr.ranks[rank][i]
	tr.plants[rank].build(pr, &tr.steps[i], &seg.cond)
	tr.plants[rank].fit(pr, seg, (tr.steps[i+1].start - tr.steps[i].start).Seconds())
	return pr
}

// until returns what a step adds to a rank in its first x seconds.
func (p *plant) until(pr *program, c *condition, x float64) totals {
	var t totals
	for _, s := range pr.sections {
		once := pr.length(s)
		whole := min(float64(s.repeat), math.Floor(x/once+1e-12))
		for _, k := range pr.of(s) {
			if d := k.Seconds * whole; d > 0 {
				p.run(&t, &k, d, c)
			}
		}
		x -= once * whole
		if x <= 0 || int(whole) == s.repeat {
			continue
		}
		for _, k := range pr.of(s) {
			if d := min(k.Seconds, x); d > 0 {
				p.run(&t, &k, d, c)
				x -= d
			}
		}
		return t
	}
	return t
}

// run adds d seconds of a kernel.
func (p *plant) run(t *totals, k *Kernel, d float64, c *condition) {
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
	t.link += k.Link * part
	t.dram += k.Bytes * part / p.peak
	t.energy += watts(&p.gpu, k, p.peak, c.clock) * d
	t.limited[k.Limiter] += d
	if k.Waits {
		t.waits += d
	}
	t.hold(d, c)
}

// hold adds d seconds of a clock.
func (t *totals) hold(d float64, c *condition) {
	t.clock += c.clock * d
	switch c.held {
	case holdPower:
		t.power += d
	case holdThermal:
		t.thermal += d
	default: // nothing that the driver counts
	}
}

// rest returns what d seconds without work add.
func (p *plant) rest(d float64, c *condition) totals {
	t := totals{idle: d, energy: restPart * p.gpu.TDPWatts * d}
	if f := c.foreign; f > 0 {
		k := p.stranger(d * f)
		p.run(&t, &k, d*f, c)
		t.limited = [numLimiters]float64{} // not the engine's time
		t.energy -= restPart * p.gpu.TDPWatts * d * f
		t.clock, t.power, t.thermal = 0, 0, 0
	}
	t.hold(d, c)
	return t
}

// meanDemand returns the mean power of a step by parts, at the highest clock.
func (p *plant) meanDemand(pr *program, seconds float64) (fixed, dynamic float64) {
	for _, s := range pr.sections {
		for _, k := range pr.of(s) {
			f, d := demand(&p.gpu, &k, p.peak)
			fixed += f * k.Seconds * float64(s.repeat)
			dynamic += d * k.Seconds * float64(s.repeat)
		}
	}
	return fixed / seconds, dynamic / seconds
}

// find returns the index of the step that holds t.
func (tr *track) find(t time.Duration) int {
	i := sort.Search(len(tr.steps), func(i int) bool { return tr.steps[i].start > t })
	return max(0, i-1)
}

// at returns the totals of a rank up to t.
func (tr *track) at(rank int, t time.Duration) totals {
	i := tr.find(max(0, t))
	st, seg := &tr.steps[i], &tr.ranks[rank][i]
	sum := seg.done
	x := (t - st.start).Seconds()
	if x <= 0 {
		return sum
	}
	var spent totals
	if st.idle {
		spent = tr.plants[rank].rest(x, &seg.cond)
	} else {
		spent = tr.plants[rank].until(tr.lay(rank, i), &seg.cond, x)
	}
	sum.add(&spent)
	return sum
}

// counted returns the counts up to t.
func (tr *track) counted(t time.Duration) counts { return tr.steps[tr.find(max(0, t))].done }

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
		if part, ok := tl.scenario.Slices[i]; ok {
			d.MIG, d.PeakShare = true, part
			d.ParentUUID = "GPU-" + strings.TrimPrefix(d.UUID, "MIG-")
		}
		d.PCIBusID = fmt.Sprintf("00000000:%02X:00.0", 0x18+i)
		list = append(list, d)
	}
	return list
}

// uuid returns the identity of a GPU.
func (s *Scenario) uuid(gpu int) string {
	r := rand.NewPCG(s.Seed, 0x6770750000000000+uint64(gpu))
	a, b := r.Uint64(), r.Uint64()
	kind := "GPU"
	if _, ok := s.Slices[gpu]; ok {
		kind = "MIG"
	}
	return fmt.Sprintf(kind+"-%08x-%04x-4%03x-a%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0xfff, b&0xffffffffffff)
}

// Targets returns the engines and the GPUs they run on. They have no URL: whoever serves them knows it.
func (tl *Timeline) Targets() []timeline.Target {
	var list []timeline.Target
	for _, t := range tl.scenario.Targets {
		d := timeline.Target{Name: t.Name, Model: t.Model.Name, DType: t.DType.Name, KVDType: t.KVDType.Name, TP: t.TP}
		if t.PP > 1 {
			d.PP = t.PP
		}
		if t.DP > 1 {
			d.DP = t.DP
		}
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
// reading is the difference of its ends over its length; J for Energy; s for the throttle counters; bytes for NVLink. It is exact at any
// t, inside kernels too, and zero for a counter that is read at one moment.
func (tl *Timeline) Integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	sum := tl.totals(gpu, t)
	return sum.of(c)
}

// HasNVLink reports whether a GPU has links to others, whose traffic is counted.
func (tl *Timeline) HasNVLink(gpu int) bool {
	return tl.scenario.GPUs[gpu].NVLinkBps > 0 && len(tl.scenario.GPUs) > 1
}

// totals returns what a GPU's time adds up to by t.
func (tl *Timeline) totals(gpu int, t time.Duration) totals {
	t = max(0, min(t, tl.Duration()))
	if tl.owner[gpu] < 0 {
		return totals{energy: restPart * tl.scenario.GPUs[gpu].TDPWatts * t.Seconds()}
	}
	return tl.tracks[tl.owner[gpu]].at(tl.rank[gpu], t)
}

// of returns what a counter tells of the totals.
func (t *totals) of(c timeline.Counter) float64 {
	switch c {
	case timeline.GraphicsUtil:
		return t.gr
	case timeline.SMUtil:
		return t.sm
	case timeline.SMOccupancy:
		return t.occ
	case timeline.TensorUtil:
		return t.tensor
	case timeline.HMMAUtil:
		return t.half
	case timeline.IMMAUtil:
		return t.integer
	case timeline.DRAMUtil:
		return t.dram
	case timeline.NVLinkTx, timeline.NVLinkRx:
		return t.link
	case timeline.Energy:
		return t.energy
	case timeline.ThrottlePower:
		return t.power
	case timeline.ThrottleSWThermal:
		return t.thermal
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
	i, rank := tr.find(t), tl.rank[gpu]
	c := &tr.ranks[rank][i].cond
	st.SMClockHz = g.MaxSMClockHz * c.clock
	st.EventReasons = c.held.reasons()
	if tr.steps[i].idle {
		st.EventReasons |= timeline.ReasonIdle
	}
	st.MemUsedBytes = memoryTaken * float64(g.MemoryBytes)
	if from := max(0, t-powerWindow); from < t {
		st.Watts = (tr.at(rank, t).energy - tr.at(rank, from).energy) / (t - from).Seconds()
	}
	st.Celsius = warm(c.celsius, tl.scenario.limitsAt(gpu, t).rise*st.Watts/g.TDPWatts, t-tr.steps[i].start)
	return st
}
