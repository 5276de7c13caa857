package timeline

import "slices"

// Label names what bounded decode.
type Label string

// The labels. There is one set of names, everywhere.
const (
	Memory        Label = "memory"         // DRAM bandwidth
	Compute       Label = "compute"        // tensor throughput
	Balanced      Label = "balanced"       // both roofs at once
	Mixed         Label = "mixed"          // prompt and decode work share the steps, and nothing holds 60 %
	Host          Label = "host"           // the GPU waited for the host
	Launch        Label = "launch"         // kernels resident, SMs unfilled
	HostOrLaunch  Label = "host_or_launch" // one of the two, and the counters do not tell which
	Communication Label = "communication"  // ranks waited for each other
	Busy          Label = "busy"           // SMs busy, neither roof near
	Undetermined  Label = "undetermined"   // withheld, with a reason
)

// labels are all labels in the order in which outputs show them.
var labels = [...]Label{Memory, Compute, Balanced, Mixed, Host, Launch, HostOrLaunch, Communication, Busy, Undetermined}

// NumLabels is how many labels there are.
const NumLabels = len(labels)

// Labels lists all labels in the order in which outputs show them.
func Labels() []Label { return slices.Clone(labels[:]) }

// Shares are the parts of busy and idle time by what limited them. They sum to one.
type Shares struct {
	Memory  float64 `json:"memory"`
	Compute float64 `json:"compute"`
	Launch  float64 `json:"launch"`
	Host    float64 `json:"host"`
	Other   float64 `json:"other"`
}

// Sum returns the sum of all shares.
func (s Shares) Sum() float64 { return s.Memory + s.Compute + s.Launch + s.Host + s.Other }

// Add returns s plus o times w.
func (s Shares) Add(o Shares, w float64) Shares {
	return Shares{s.Memory + w*o.Memory, s.Compute + w*o.Compute, s.Launch + w*o.Launch, s.Host + w*o.Host, s.Other + w*o.Other}
}

// Scale returns s times w.
func (s Shares) Scale(w float64) Shares { return Shares{}.Add(s, w) }

// Interval is a closed range of values.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Confidence says how sure a label is. It orders: a greater value is surer.
type Confidence uint8

// The confidences.
const (
	NoConfidence Confidence = iota
	Low
	Medium
	High
)

var confidenceNames = []string{"none", "low", "medium", "high"}

// String returns the confidence's name.
func (c Confidence) String() string {
	if int(c) < len(confidenceNames) {
		return confidenceNames[c]
	}
	return "none"
}

// MarshalText spells the confidence by name.
func (c Confidence) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a confidence by name; an unknown name is none.
func (c *Confidence) UnmarshalText(b []byte) error {
	*c = NoConfidence
	for i, n := range confidenceNames {
		if n == string(b) {
			*c = Confidence(i)
		}
	}
	return nil
}

// Grade says how much of what was read over a request's decode is the request's own.
type Grade string

// The grades.
const (
	Isolated     Grade = "isolated"     // alone on its target, and all traffic was seen
	Shared       Grade = "shared"       // the batch held others too; see the phase's concurrency
	Contaminated Grade = "contaminated" // something that is not the engine used the GPU
	Inherited    Grade = "inherited"    // shorter than three whole windows: the batch's verdict, not its own
	Insufficient Grade = "insufficient" // no verdict to inherit
)

// Overlay marks a circumstance beside a label; several may hold at once.
type Overlay string

// The overlays.
const (
	Throttled           Overlay = "throttled"
	PrefillInterference Overlay = "prefill_interference"
	Preempted           Overlay = "preempted"
	NoisyNeighbour      Overlay = "noisy_neighbour"
	CommOrStraggler     Overlay = "comm_or_straggler_possible"
)

// EvidenceLevel says which sources a statement rests on.
type EvidenceLevel uint8

// The evidence levels.
const (
	L0 EvidenceLevel = iota // counters, the engine's own metrics, the host
	L1                      // and the engine's spans
	L2                      // and a passive capture
	L3                      // and a probe in the path, or a client that reports its tokens
)

// String returns the level as outputs print it.
func (l EvidenceLevel) String() string { return [...]string{"L0", "L1", "L2", "L3"}[min(l, L3)] }

// MarshalText spells the level.
func (l EvidenceLevel) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a level; an unknown one is L0.
func (l *EvidenceLevel) UnmarshalText(b []byte) error {
	*l = L0
	if len(b) == 2 && b[0] == 'L' && b[1] >= '0' && b[1] <= '3' {
		*l = EvidenceLevel(b[1] - '0')
	}
	return nil
}
