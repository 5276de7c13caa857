package nvml

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of a window. NVML asks for more than 100 ms between two snapshots, because the counters behind them are
// refreshed no faster (NVML API, nvmlGpmSampleGet; NVIDIA/DCGM#310: shorter windows give plausible, wrong numbers).
const (
	MinWindow = 100 * time.Millisecond
	MaxWindow = 300 * time.Millisecond
)

const (
	maxPeriod     = 250 * time.Millisecond // leaves room for a late tick below MaxWindow
	minFastPeriod = 20 * time.Millisecond
	maxFastPeriod = time.Second
	minSlowPeriod = 200 * time.Millisecond
	maxSlowPeriod = time.Minute
	rarePeriod    = 10 * time.Second // of what is surveyed
)

// Config says how often a GPU is read.
type Config struct {
	Period     time.Duration `yaml:"period"`      // of the windows
	FastPeriod time.Duration `yaml:"fast_period"` // of clocks and the reasons that hold them
	SlowPeriod time.Duration `yaml:"slow_period"` // of power, energy, throttle times, memory, temperature, duty
	DutyBudget float64       `yaml:"duty_budget"` // share of one thread that calls of one GPU may take
}

// DefaultConfig returns the rates that suit every GPU. Windows are a little longer than the least, so that a snapshot
// that is refreshed late does not spoil them.
func DefaultConfig() Config {
	return Config{
		Period:     110 * time.Millisecond,
		FastPeriod: 100 * time.Millisecond,
		SlowPeriod: time.Second,
		DutyBudget: 0.02,
	}
}

// Validate names every fault of c.
func (c Config) Validate() error {
	var errs []error
	if c.Period < MinWindow {
		errs = append(errs, fmt.Errorf("period %v: the driver refreshes its counters every %v, shorter windows give "+
			"plausible, wrong numbers; use %v or more", c.Period, MinWindow, MinWindow))
	} else {
		errs = append(errs, between("period", c.Period, MinWindow, maxPeriod))
	}
	errs = append(errs,
		between("fast_period", c.FastPeriod, minFastPeriod, maxFastPeriod),
		between("slow_period", c.SlowPeriod, minSlowPeriod, maxSlowPeriod))
	if !(c.DutyBudget > 0 && c.DutyBudget <= 0.5) {
		errs = append(errs, fmt.Errorf("duty_budget %v: want a share above 0 and at most 0.5", c.DutyBudget))
	}
	return errors.Join(errs...)
}

func between(name string, d, low, high time.Duration) error {
	if d < low || d > high {
		return fmt.Errorf("%s %v: want %v to %v", name, d, low, high)
	}
	return nil
}
