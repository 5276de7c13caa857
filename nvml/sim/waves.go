package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
