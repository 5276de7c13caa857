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
}

// Fault makes one call of one GPU fail or take long. The code is NVML's: 3 not supported, 4 no permission, 10 timeout,
// 15 GPU is lost.
type Fault struct {
	GPU   int
	Call  int // an nvml.Call
	Code  int // zero: the call succeeds
	Delay time.Duration
}

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
	For   time.Duration // how long the world lasts; zero: an hour
	NoGPM bool          // GPUs older than Hopper: no windows of activity
}

var _ World = Waves{}

// GPUs lists GPUs of one kind (NVIDIA H100 80GB HBM3: 132 SMs, 5120 bits at 2619 MHz, 700 W, from public data sheets).
func (w Waves) GPUs() []timeline.GPU {
	gpus := make([]timeline.GPU, w.Count)
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
	return gpus
}

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
	low := 0.35 + 0.02*float64(gpu) + 0.03*float64(c)
	return wave{period: 3.1 + 0.37*float64(gpu), low: low, high: low + 0.25}
}

// rates are what the cumulative counters grow by, a second.
var rates = map[timeline.Counter]float64{
	timeline.Energy: 420, timeline.ThrottlePower: 0.25, timeline.ThrottleSWThermal: 0.05, timeline.ThrottleHWThermal: 0.02,
	timeline.ThrottlePowerBrake: 0.01, timeline.ThrottleSyncBoost: 0,
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
	g := Gauges{
		SMClockHz: 1980e6, MemClockHz: 2619e6, PowerW: 420, PowerLimitW: 700,
		MemUsedBytes: float64(60<<30 + gpu<<20), TemperatureC: 55 + float64(gpu),
	}
	if w.of(gpu, timeline.SMUtil).isHigh(t.Seconds()) {
		g.SMClockHz, g.Reasons = 1755e6, timeline.ReasonSWPowerCap
	}
	return g
}
