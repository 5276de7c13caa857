package timeline

import "strings"

// ForeignProcess is the call of a capability that says whether a process that is not the engine's computes on a GPU:
// untrusted if so, ok if not.
const ForeignProcess = "foreign_process"

// Event returns c as an event at that instant, so that it can be recorded.
func (c Capability) Event(at Instant) Event {
	detail := c.Call + ": " + c.State.String()
	if c.Detail != "" {
		detail += ": " + c.Detail
	}
	return Event{At: at, Kind: EventCapability, GPU: c.GPU, Detail: detail}
}

// Capability returns the capability that e was made of, if it was made of one.
func (e *Event) Capability() (Capability, bool) {
	call, rest, _ := strings.Cut(e.Detail, ": ")
	name, detail, _ := strings.Cut(rest, ": ")
	if e.Kind != EventCapability || e.GPU < 0 || call == "" {
		return Capability{}, false
	}
	for i, n := range stateNames {
		if n == name {
			return Capability{GPU: e.GPU, Call: call, State: State(i), Detail: detail}, true
		}
	}
	return Capability{}, false
}
