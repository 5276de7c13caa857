package scenario

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
	// hotCelsius is where the board's own thermal control begins, and coolPart the part of the clock it takes a degree.
	hotCelsius = 85.0
	coolPart   = 0.06
)

// machine is the power, clock and temperature of one rank. Its state only moves forward.
type machine struct {
	gpu     hardware.GPU
	fixed   float64 // W that the clock does not change, averaged
	dynamic float64 // W at the highest clock, averaged
	celsius float64
	rise    float64 // K at rated power
}

func newMachine(g hardware.GPU) machine {
	return machine{gpu: g, fixed: restPart * g.TDPWatts, celsius: ambientCelsius + restPart*riseCelsius, rise: riseCelsius}
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
	if f := 1 - coolPart*(m.celsius-hotCelsius); f < clock {
		clock, why = max(lowestClock, f), holdThermal
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
	m.celsius = warm(m.celsius, m.rise*drawn/m.gpu.TDPWatts, d)
}

// warm returns the temperature after a while with a source of heat that ends in such a rise.
func warm(celsius, rise float64, d time.Duration) float64 {
	end := ambientCelsius + rise
	return end + (celsius-end)*math.Exp(-float64(d)/float64(thermalMemory))
}

// limits are what is in force at a moment.
type limits struct {
	watts     float64
	lockHz    float64
	thermalHz float64
	rise      float64 // K at rated power
}

// limitsAt returns the limits of a GPU at a moment.
func (s *Scenario) limitsAt(gpu int, t time.Duration) limits {
	l := limits{watts: s.GPUs[gpu].TDPWatts, rise: riseCelsius}
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
		case Cooling:
			l.rise = riseCelsius * f.Value
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

// unlimited are the limits of a board that nothing is wrong with.
func unlimited(g *hardware.GPU) limits { return limits{watts: g.TDPWatts, rise: riseCelsius} }
