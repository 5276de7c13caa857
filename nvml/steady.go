package nvml

import (
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// steady watches for an SM clock that does not move. That clocks are locked (nvidia-smi -lgc) no call of the driver tells:
// all that shows is a clock that stands below its highest while the GPU is busy and nothing holds it. The fact is told, and
// not what it may mean.
type steady struct {
	clock float64
	since timeline.Instant // zero: it moves, is held, or the GPU rests
	at    timeline.Instant // the last reading
}

const (
	steadyFor  = 30 * time.Second
	belowFull  = 0.98 // of the highest clock: what is above is not worth a word
	steadyHole = 5 * time.Second
)

// look takes one reading of the clocks and their reasons.
func (s *steady) look(r *Reading, at timeline.Instant, busy bool) {
	clock, reasons := r.Value[timeline.SMClock], uint64(r.Value[timeline.EventReasons])
	known := r.Has.Has(timeline.SMClock) && r.Has.Has(timeline.EventReasons)
	switch {
	case !known || !busy || reasons&timeline.ReasonThrottles != 0:
		s.since = 0
	case clock != s.clock || s.since.IsZero() || at.Sub(s.at) > steadyHole:
		s.since = at
	}
	s.clock, s.at = clock, at
}

// standing returns the clock that stands below the highest, zero if there is none.
func (s *steady) standing(now timeline.Instant, highest float64) float64 {
	if s.since.IsZero() || now.Sub(s.since) < steadyFor || s.clock <= 0 || s.clock >= belowFull*highest {
		return 0
	}
	return s.clock
}
