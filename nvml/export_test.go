package nvml

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

type discard struct{}

func (discard) SetGPUs([]timeline.GPU)            {}
func (discard) AddSample(*timeline.Sample)        {}
func (discard) AddCapability(timeline.Capability) {}
func (discard) AddEvent(timeline.Event)           {}

// AllocsPerTick returns how many allocations one tick of all tiers makes once all states are known.
func AllocsPerTick(d Device, now func() timeline.Instant) float64 {
	at := now()
	s := NewSampler(0, d, DefaultConfig(), func() timeline.Instant { return at })
	var sink timeline.GPUSink = discard{}
	s.start(sink)
	tick := func() {
		at = at.Add(s.cfg.SlowPeriod / 8)
		s.slow.next = at
		s.tick(sink)
	}
	tick()
	return testing.AllocsPerRun(100, tick)
}
