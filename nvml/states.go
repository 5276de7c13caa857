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
		case s.reading.Has.Has(c) && !c.Windowed(): // a window is only good once all of it was checked
			s.setState(sink, c, timeline.StateOK, s.reading.Note[c])
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

// callState is what is known of one call besides the states of its counters.
type callState struct {
	state   timeline.State   // of a survey, which has no counters
	since   timeline.Instant // of the first success
	next    timeline.Instant // not asked before
	refused int              // times in a row
}

const (
	quickRefusals = 5                // refusals in a row that may be an accident
	retryRefused  = 2 * time.Second  // after each of them
	retryDenied   = 30 * time.Second // after that: rights come back when somebody does something
)

// settle notes how a call ended. A call that is refused for lack of rights is asked again, and not often: on some hosts
// the right is lost after minutes (NVIDIA/DCGM#214), which is said once.
func (s *Sampler) settle(sink timeline.GPUSink, call Call, at timeline.Instant, err error) {
	c := &s.calls[call]
	if err == nil {
		c.refused, c.next = 0, 0
		if c.since.IsZero() {
			c.since = at
		}
		return
	}
	if !errors.Is(err, ErrNoPermission) {
		return
	}
	if c.refused == 0 && !c.since.IsZero() {
		sink.AddEvent(timeline.Event{
			At: at, Kind: timeline.EventCapability, GPU: s.gpu,
			Detail: call.String() + ": permission lost after " + at.Sub(c.since).Round(time.Second).String() + ": " + err.Error(),
		})
	}
	c.refused++
	wait := retryRefused
	if c.refused > quickRefusals {
		wait = retryDenied
	}
	c.next = at.Add(wait)
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

// What callers branch on. A driver's binding wraps its own text around one of these.
var (
	ErrNotSupported    = errors.New("not supported")
	ErrNoPermission    = errors.New("no permission")
	ErrGPULost         = errors.New("gpu is lost")
	ErrTimeout         = errors.New("driver timed out")
	ErrNoLibrary       = errors.New("driver library not found")
	ErrNoDriver        = errors.New("driver is not loaded")
	ErrVersionMismatch = errors.New("driver and library versions differ")
	ErrDriver          = errors.New("driver error")
)

// StateOf returns the state of a counter whose call ended with err. An error that is none of the known ones leaves
// the counter stale: it may come back.
func StateOf(err error) timeline.State {
	switch {
	case err == nil:
		return timeline.StateOK
	case errors.Is(err, ErrNotSupported):
		return timeline.StateUnsupported
	case errors.Is(err, ErrNoPermission):
		return timeline.StateNoPermission
	case errors.Is(err, ErrGPULost):
		return timeline.StateLost
	case errors.Is(err, ErrTimeout):
		return timeline.StateTimeout
	}
	return timeline.StateStale
}
