// Package sim plays GPUs that do not exist. It knows the habits of NVML (activity counters that are refreshed ten times
// a second on a phase of their own, jitter, lag, coarse steps) and takes what the GPUs do from a [World]. The same
// refreshed readings feed devices in this process and, through a shared page, a C library that stands in for the
// driver's, so that the real binding can be run without a GPU. It does not know what a scenario is made of.
package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// World is what happens to the GPUs: pure functions of the time since its start. A scenario's timeline is one.
type World interface {
	GPUs() []timeline.GPU
	Duration() time.Duration
	// Integral returns what c has added up to by t: fraction-seconds of a windowed counter, J or s of a cumulative one.
	Integral(gpu int, c timeline.Counter, t time.Duration) float64
	// At returns a GPU's gauges at t.
	At(gpu int, t time.Duration) Gauges
}

// Gauges are what a GPU shows at one moment.
type Gauges struct {
	SMClockHz, MemClockHz float64
	Reasons               uint64
	PowerW, PowerLimitW   float64
	MemUsedBytes          float64
	TemperatureC          float64

	MemTemperatureC, MarginC         float64
	PCIeGen, PCIeWidth               int
	RowRemapPending, RowRemapFailure bool
}

// Surroundings is a World that tells what is around its GPUs.
type Surroundings interface {
	// Inventory returns what there is on and around a GPU at t.
	Inventory(gpu int, t time.Duration) timeline.Inventory
}

// Partial is a World that does not tell some counters: they are not supported.
type Partial interface {
	Lacks(gpu int) timeline.CounterSet
}

// untold returns the counters that the world does not tell of a GPU.
func untold(w World, gpu int) timeline.CounterSet {
	if p, ok := w.(Partial); ok {
		return p.Lacks(gpu)
	}
	return 0
}

// unknownTo returns the counters that no driver of a branch tells.
func unknownTo(branch int) timeline.CounterSet {
	var set timeline.CounterSet
	for c, since := range sinceBranch {
		if branch < since {
			set |= timeline.Set(c)
		}
	}
	return set
}

// sinceBranch holds the driver branch from which on a counter can be read at all (headers of NVML: 12.5 is R555 and 12.9
// is R575; the temperature margin came with 12.8, which is R570).
var sinceBranch = map[timeline.Counter]int{
	timeline.PCIeTx: 555, timeline.PCIeRx: 555, timeline.DRAMCacheHit: 575, timeline.TemperatureMargin: 570,
}

// Fault makes one call of one GPU fail or take long. The code is NVML's: 3 not supported, 4 no permission, 10 timeout,
// 15 GPU is lost.
type Fault struct {
	GPU   int
	Call  int // an nvml.Call
	Code  int // zero: the call succeeds
	Delay time.Duration
	After time.Duration // since the start: the call is as before until then
	Mode  Mode          // of the C library alone
}

// Mode is what a call of the C library does besides failing.
type Mode uint8

// The modes.
const (
	ModePlain    Mode = iota
	ModeStubborn      // no signal but the one that cannot be held off ends its wait, like a wait in the kernel
	ModeCrash         // the call ends the process by a bad access to memory
)

// Options are the habits of the simulated driver.
type Options struct {
	Driver  string        // version as told; empty: a 580 branch
	Refresh time.Duration // between refreshes of the activity counters; zero: 100 ms
	Jitter  time.Duration // each refresh comes up to this much late
	Lag     time.Duration // how old the counters are when they are refreshed
	Speed   float64       // of the world against the clock; zero: 1
	Loop    bool          // start over when the world ends; otherwise it stands still
}

// DefaultDriver is the driver version that simulated GPUs tell unless another is asked for.
const DefaultDriver = "580.95.05"

const defaultRefresh = 100 * time.Millisecond

func (o Options) withDefaults() Options {
	if o.Driver == "" {
		o.Driver = DefaultDriver
	}
	if o.Refresh <= 0 {
		o.Refresh = defaultRefresh
	}
	if o.Speed <= 0 {
		o.Speed = 1
	}
	o.Jitter = min(max(o.Jitter, 0), o.Refresh/2)
	o.Lag = min(max(o.Lag, 0), activityBase/2)
	return o
}

// Waves is a world without a scenario: GPUs whose counters go up and down in square waves, each GPU with a period and
// levels of its own. Its integrals are exact, so that what was measured can be held against what was there.
type Waves struct {
	Count int           // of GPUs
	MIG   int           // instances that the first GPU is cut into, listed after all GPUs
	For   time.Duration // how long the world lasts; zero: an hour
	NoGPM bool          // GPUs older than Hopper: no windows of activity
}

var _ World = Waves{}

// GPUs lists GPUs of one kind (NVIDIA H100 80GB HBM3: 132 SMs, 5120 bits at 2619 MHz, 700 W, from public data sheets).
func (w Waves) GPUs() []timeline.GPU {
	gpus := make([]timeline.GPU, w.Count, w.Count+w.MIG)
	for i := range gpus {
		gpus[i] = timeline.GPU{
			UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i), Name: "NVIDIA H100 80GB HBM3", Index: i,
			PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x10+i), ComputeCapability: "9.0", MemoryBytes: 80 << 30,
			BusWidthBits: 5120, SMs: 132, MaxSMClockHz: 1980e6, MaxMemClockHz: 2619e6,
			PowerLimitW: 700, DefaultLimitW: 700, GPM: !w.NoGPM, Simulated: true,
		}
		if w.NoGPM {
			gpus[i].Name, gpus[i].ComputeCapability, gpus[i].SMs = "NVIDIA A100-SXM4-80GB", "8.0", 108
		}
	}
	for i := range w.MIG {
		g := gpus[0]
		gpus[0].MIG, g.MIG = true, true
		g.UUID, g.ParentUUID = fmt.Sprintf("MIG-00000000-0000-4000-8000-%012d", i), gpus[0].UUID
		g.Name += " MIG 1g.10gb"
		g.MemoryBytes, g.PeakShare, g.SMs = g.MemoryBytes/8, 1./8, 16
		g.BusWidthBits /= 8
		gpus = append(gpus, g)
	}
	return gpus
}

// Inventory returns surroundings like those of a server with eight GPUs behind NVSwitches.
func (w Waves) Inventory(gpu int, _ time.Duration) timeline.Inventory {
	v := timeline.Inventory{
		NUMANode: gpu / 4 % 2, PCIeMaxGen: 5, PCIeMaxWidth: 16, PCIeWidth: 16, AppSMClockHz: 1980e6, AppMemClockHz: 2619e6, ProcessesKnown: true,
		Processes: []timeline.GPUProcess{{PID: 4000 + gpu, MemoryBytes: uint64(60<<30 + gpu<<20)}},
	}
	for i := range 18 {
		v.NVLinks = append(v.NVLinks, timeline.NVLink{Link: i, Up: i < 17, PeerBusID: switchBusID})
	}
	return v
}

// switchBusID is where the other end of every simulated NVLink is.
const switchBusID = "00000000:C5:00.0"

// Duration returns how long the world lasts.
func (w Waves) Duration() time.Duration {
	if w.For <= 0 {
		return time.Hour
	}
	return w.For
}

// wave is a square wave that is high in the first half of each period.
type wave struct{ period, low, high float64 }

func (v wave) isHigh(t float64) bool { return math.Mod(t, v.period) < v.period/2 }

// integral returns the area under the wave from 0 to t seconds.
func (v wave) integral(t float64) float64 {
	rounds := math.Floor(t / v.period)
	rest := t - rounds*v.period
	area := rounds * v.period * (v.low + v.high) / 2
	return area + v.high*min(rest, v.period/2) + v.low*max(0, rest-v.period/2)
}

// of returns the wave of a windowed counter of a GPU.
func (w Waves) of(gpu int, c timeline.Counter) wave {
	low := 0.35 + 0.02*float64(gpu%8) + 0.03*float64(c%9)
	return wave{period: 3.1 + 0.37*float64(gpu%8), low: low, high: low + 0.25}
}

// rates are what the cumulative counters grow by, a second.
var rates = map[timeline.Counter]float64{
	timeline.Energy: 420, timeline.ThrottlePower: 0.25, timeline.ThrottleSWThermal: 0.05, timeline.ThrottleHWThermal: 0.02,
	timeline.ThrottlePowerBrake: 0.01, timeline.ThrottleSyncBoost: 0,
	timeline.PCIeTx: 1.5e9, timeline.PCIeRx: 2.5e9, timeline.NVLinkTx: 40 << 30, timeline.NVLinkRx: 41 << 30,
	timeline.ECCCorrected: 0.5, timeline.ECCCorrectedEver: 0.5, timeline.PCIeReplays: 0.25,
}

// Integral returns what c has added up to by t.
func (w Waves) Integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	if c.Windowed() {
		return w.of(gpu, c).integral(t.Seconds())
	}
	return rates[c] * t.Seconds()
}

// At returns the gauges at t.
func (w Waves) At(gpu int, t time.Duration) Gauges {
	if gpu >= w.Count {
		g := w.At(0, t) // an instance has the clocks of its device
		g.MemUsedBytes /= 8
		return g
	}
	g := Gauges{
		SMClockHz: 1980e6, MemClockHz: 2619e6, PowerW: 420, PowerLimitW: 700,
		MemUsedBytes: float64(60<<30 + gpu<<20), TemperatureC: 55 + float64(gpu),
		MemTemperatureC: 68 + float64(gpu), MarginC: 30 - float64(gpu), PCIeGen: 5, PCIeWidth: 16,
	}
	if w.of(gpu, timeline.SMUtil).isHigh(t.Seconds()) {
		g.SMClockHz, g.Reasons = 1755e6, timeline.ReasonSWPowerCap
	}
	return g
}
