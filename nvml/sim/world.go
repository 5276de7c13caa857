// Package sim plays GPUs that do not exist. It knows the habits of NVML (activity counters that are refreshed ten times
// a second on a phase of their own, jitter, lag, coarse steps) and takes what the GPUs do from a [World]. The same
// refreshed readings feed devices in this process and, through a shared page, a C library that stands in for the
// driver's, so that the real binding can be run without a GPU. It does not know what a scenario is made of.
package sim

import (
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
	o.Lag = max(o.Lag, 0)
	return o
}
