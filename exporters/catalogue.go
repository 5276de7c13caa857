package exporters

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Kind says how a series behaves.
type Kind uint8

// The kinds of series.
const (
	Counter   Kind = iota // only grows, so that any scrape interval and any sum over series is right
	Gauge                 // the newest reading; absent, not zero, when there is none
	Histogram             // exponential buckets: a native histogram in Prometheus
	Info                  // always one; its labels carry what does not change
)

var kindNames = []string{"counter", "gauge", "histogram", "info"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Scope says what a series is of.
type Scope uint8

// The scopes.
const (
	OfGPU Scope = iota
	OfTarget
	OfAgent
)

var scopeNames = []string{"gpu", "target", "agent"}

// String returns the scope's name.
func (s Scope) String() string {
	if int(s) < len(scopeNames) {
		return scopeNames[s]
	}
	return "unknown"
}

// Profile is how much goes out. Each holds the one before.
type Profile uint8

// The profiles.
const (
	Minimal  Profile = iota // what the headline needs
	Standard                // beside dcgm-exporter, without repeating it
	Full                    // everything
)

var profileNames = []string{"minimal", "standard", "full"}

// String returns the profile's name.
func (p Profile) String() string {
	if int(p) < len(profileNames) {
		return profileNames[p]
	}
	return "unknown"
}

// MarshalText spells the profile by name.
func (p Profile) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a profile by name.
func (p *Profile) UnmarshalText(b []byte) error {
	i := slices.Index(profileNames, string(b))
	if i < 0 {
		return fmt.Errorf("read profile %q: want %s", b, strings.Join(profileNames, ", "))
	}
	*p = Profile(i)
	return nil
}

// ID is the position of a metric in the catalogue.
type ID int

// The metrics, in the order of the catalogue.
const (
	GPUDRAMBytes ID = iota
	GPUSMActive
	GPUTensorActive
	GPUCovered
	GPUThrottled
	GPUInfo
	GPUGraphicsActive
	GPUOccupancy
	GPUSMClock
	GPUMemClock
	GPUPower
	GPUPowerLimit
	GPUMemUsed
	GPUTemperature
	GPUEnergy
	GPUPCIeSent
	GPUPCIeReceived
	GPUNVLinkSent
	GPUNVLinkReceived
	GPUIntegerActive
	GPUFP32Active
	GPUFP16Active
	GPUDRAMCacheHit
	GPUMemTemperature
	GPUTemperatureMargin
	GPUPCIeGen
	GPUPCIeWidth
	GPUPCIeReplays
	GPUECCCorrected
	GPUECCUncorrected
	GPURowsCorrectable
	GPURowsUncorrectable
	GPURowRemapPending
	GPURowRemapFailure
	GPUXids
	GPUCapability

	Decode
	Tokens
	Requests
	TPOT
	TTFT
	ITL
	WindowTPOT
	BatchSize
	Waiting
	KVUsage
	Coverage
	TargetInfo
	DecodeShare
	DRAMBytes
	ModelledBytes
	Throttled
	Preemptions
	Steps
	EngineTPOT
	ICL
	StallTime

	SelfSamplerRate
	SelfSamplerOverruns
	SelfSamplerPeriod
	SelfSamplerPeriodSet
	SelfSamplerDuty
	SelfSamplerDrops
	SelfCallLatency
	SelfCalls
	SelfHelperRestarts
	SelfHelperAbandoned
	SelfRingDrops
	SelfQueueSize
	SelfQueueDrops
	SelfExportErrors
	SelfSpans
	SelfProbeEvents
	SelfProbeLag
	SelfProbeInFlight
	SelfProbePassed
	SelfProbeStreamed
	SelfIngestRefused
	SelfAgentCPU
	SelfAgentRSS
	SelfHelperCPU
	SelfHelperRSS
	SelfBuildInfo

	NumMetrics
)

// Metric is one entry of the catalogue: everything that is said about a series, once.
type Metric struct {
	Name    string // in OpenTelemetry
	Prom    string // in Prometheus: what the standard translation makes of Name, Unit and Kind
	Unit    string // UCUM
	Kind    Kind
	Scope   Scope
	Profile Profile                // the smallest profile that holds it
	Level   timeline.EvidenceLevel // the weakest evidence that it rests on, of those that can be had
	Labels  []string               // keys in OpenTelemetry spelling
	Values  []string               // every value of the last label, if the list is closed: all are present from the start
	Help    string
}

// PromLabels returns the keys of the labels in Prometheus spelling.
func (m *Metric) PromLabels() []string {
	keys := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		keys[i] = strings.ReplaceAll(l, ".", "_")
	}
	return keys
}

// Catalogue returns all metrics, in the order in which they are shown.
func Catalogue() []Metric { return slices.Clone(catalogue[:]) }

// Lookup returns the metric of that id, or nil. The catalogue owns it.
func Lookup(id ID) *Metric {
	if id < 0 || id >= NumMetrics {
		return nil
	}
	return &catalogue[id]
}

// ByName returns the id of the metric of that OpenTelemetry name.
func ByName(name string) (ID, bool) {
	for i := range catalogue {
		if catalogue[i].Name == name {
			return ID(i), true
		}
	}
	return 0, false
}

// with returns labels and one more.
func with(labels []string, more ...string) []string {
	return append(append([]string{}, labels...), more...)
}

// throttleReasons lists the reasons that slow a busy GPU down, in the order of their bits.
func throttleReasons() []string { return timeline.ReasonNames(timeline.ReasonThrottles) }

func bounds() []string {
	var names []string
	for _, l := range timeline.Labels() {
		names = append(names, string(l))
	}
	return names
}

func statuses() []string {
	var names []string
	for s := timeline.StatusOK; s <= timeline.StatusUnfinished; s++ {
		names = append(names, s.String())
	}
	return names
}
