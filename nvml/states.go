package nvml

import (
	"errors"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// noteOutcomes notes the state of each counter that the calls first to last were asked for.
func (s *Sampler) noteOutcomes(sink timeline.GPUSink, first, last Call) {
	var asked timeline.CounterSet
	for call := first; call <= last; call++ {
		asked |= call.Counters()
	}
	asked &^= s.ignored
	for c := range timeline.Counter(timeline.NumCounters) {
		if !asked.Has(c) {
			continue
		}
		switch err := s.reading.Err[c]; {
		case errors.Is(err, errUntrusted):
			s.setState(sink, c, timeline.StateUntrusted, err.Error())
		case err != nil:
			s.setState(sink, c, StateOf(err), err.Error())
		case s.reading.Has.Has(c) && !c.Windowed():
			s.setState(sink, c, timeline.StateOK, "") // a window is only good once all of it was checked
		}
	}
}

// setStates notes the state of all counters of a set.
func (s *Sampler) setStates(sink timeline.GPUSink, set timeline.CounterSet, st timeline.State, detail string) {
	for c := range timeline.Counter(timeline.NumCounters) {
		if set.Has(c) {
			s.setState(sink, c, st, detail)
		}
	}
}

// setState notes the state of a counter and says so if it changed.
func (s *Sampler) setState(sink timeline.GPUSink, c timeline.Counter, st timeline.State, detail string) {
	s.mu.Lock()
	changed := s.states[c] != st
	s.states[c] = st
	if st == timeline.StateUnsupported {
		s.ignored |= timeline.Set(c)
	}
	s.mu.Unlock()
	if changed {
		sink.AddCapability(timeline.Capability{GPU: s.gpu, Call: c.String(), State: st, Detail: detail})
	}
}

// MarkStuck says that a call of this GPU does not come back: every counter that was read is timed out from here on.
// The sampler itself cannot say so while it waits; whoever watches it does. Once the call is back, the next readings
// set the states right again.
func (s *Sampler) MarkStuck(sink timeline.GPUSink) {
	s.mu.Lock()
	inCall := s.inCall
	states := s.states
	s.mu.Unlock()
	if inCall.IsZero() {
		return
	}
	why := "a call of the driver has not come back for " + s.now().Sub(inCall).Round(time.Second).String()
	said := false
	for c, st := range states {
		if st != timeline.StateUnsupported && st != timeline.StateTimeout {
			s.setState(sink, timeline.Counter(c), timeline.StateTimeout, why)
			said = true
		}
	}
	if said {
		sink.AddEvent(timeline.Event{At: s.now(), Kind: timeline.EventGap, GPU: s.gpu, Detail: why})
	}
}

// duty measures what share of a thread the calls take, and stretches the periods when it is too much.
type duty struct {
	busy    time.Duration
	since   timeline.Instant
	stretch float64
}

const (
	dutySpan     = time.Second
	stretchStep  = 1.5
	maxStretch   = 32
	windowGiveUp = 5 // stretch above which windows are made longer too
)

// adapt stretches the fast tier while the calls take more than the budget, then the windows, and shrinks them back
// when there is room. Slow calls are left alone: they are few.
func (s *Sampler) adapt() {
	now := s.now()
	span := now.Sub(s.duty.since)
	if span < dutySpan {
		return
	}
	share := s.duty.busy.Seconds() / span.Seconds()
	s.duty.busy, s.duty.since = 0, now
	switch {
	case share > s.cfg.DutyBudget:
		s.duty.stretch = min(s.duty.stretch*stretchStep, maxStretch)
	case share < s.cfg.DutyBudget/2:
		s.duty.stretch = max(s.duty.stretch/stretchStep, 1)
	}
	s.fast.period = min(time.Duration(float64(s.cfg.FastPeriod)*s.duty.stretch), maxFastPeriod)
	s.window.period = s.cfg.Period
	if s.duty.stretch > windowGiveUp {
		s.window.period = min(2*s.cfg.Period, maxPeriod)
	}
	s.mu.Lock()
	s.stats.Duty, s.stats.Period, s.stats.FastPeriod = share, s.window.period, s.fast.period
	s.mu.Unlock()
}
