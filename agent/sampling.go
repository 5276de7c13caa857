package agent

import (
	"time"

	"github.com/tpotscope/tpotscope/agent/burst"
)

// newBursts returns what begins bursts of the source of counters, where it has any.
func (a *Agent) newBursts() *burst.Control {
	cfg := burst.Config{Mode: burst.Mode(a.cfg.NVML.Burst), Now: a.clock.Now, Event: a.store.AddEvent, Logger: a.log}
	if src, ok := a.counters.(interface{ Burst(d time.Duration) error }); ok {
		cfg.Source = src.Burst
	}
	return burst.New(cfg)
}
