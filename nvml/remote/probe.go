package remote

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// probeTime holds three rounds of the slow tier at default rates, two dozen windows, and the calibration.
const probeTime = 2500 * time.Millisecond

// Findings are what a probe finds out about a library's GPUs.
type Findings struct {
	GPUs         []timeline.GPU `json:"gpus"`
	Capabilities []CallState    `json:"capabilities"`
	Latency      []CallLatency  `json:"latency"`
	Updates      []Update       `json:"updates"`

	Inventory []timeline.Inventory `json:"inventory"`

	Missing string `json:"missing,omitempty"` // which GPUs could not be opened, and why
}

// Update is how often one counter of one GPU was seen to change. A counter that was steady is not listed.
type Update struct {
	GPU     int     `json:"gpu"`
	Counter string  `json:"counter"`
	EveryMS float64 `json:"every_ms"`
}

// CallState is the state of one counter of one GPU, spelt for people.
type CallState struct {
	GPU    int    `json:"gpu"`
	Call   string `json:"call"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// CallLatency is what one call of the driver took.
type CallLatency struct {
	GPU    int     `json:"gpu"`
	Call   string  `json:"call"`
	Count  uint64  `json:"count"`
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"` // to the next power of two
	P99US  float64 `json:"p99_us"` // to the next power of two
	MaxUS  float64 `json:"max_us"`
}

// Probe samples all GPUs of lib for a moment and says what could be read, and what each call took. With an error that
// wraps ErrStuck there are findings all the same, and the GPU whose call does not come back is timed out in them.
func Probe(ctx context.Context, lib nvml.Library, cfg nvml.Config, now func() timeline.Instant) (Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	f, err := newFleet(lib, cfg, now)
	if err != nil {
		return Findings{}, err
	}
	var n notes
	stuck := f.run(ctx, &n, nil, func() {})
	if stuck != nil && !errors.Is(stuck, ErrStuck) {
		return Findings{}, stuck
	}
	if stuck != nil {
		f.markStuck(&n)
	}
	found := n.findings()
	found.GPUs = f.gpus
	if f.missing != nil {
		found.Missing = f.missing.Error()
	}
	for gpu, st := range f.stats() {
		for call, c := range st.Calls {
			if c.Count > 0 {
				found.Latency = append(found.Latency, CallLatency{
					GPU: gpu, Call: nvml.Call(call).String(), Count: c.Count,
					MeanUS: float64(c.Total.Microseconds()) / float64(c.Count), MaxUS: float64(c.Max.Microseconds()),
					P50US: float64(c.Quantile(0.5).Microseconds()), P99US: float64(c.Quantile(0.99).Microseconds()),
				})
			}
		}
		for c, every := range st.Update {
			if every > 0 {
				found.Updates = append(found.Updates, Update{gpu, timeline.Counter(c).String(), every.Seconds() * 1e3})
			}
		}
	}
	return found, stuck
}

// notes keeps the last state of each counter. It is safe for concurrent use.
type notes struct {
	mu     sync.Mutex
	states map[int]map[string]CallState
	around map[int]timeline.Inventory
}

// findings returns what was noted so far.
func (n *notes) findings() Findings {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := Findings{Inventory: slices.SortedFunc(maps.Values(n.around), func(a, b timeline.Inventory) int { return a.GPU - b.GPU })}
	for _, gpu := range slices.Sorted(maps.Keys(n.states)) {
		for _, call := range slices.Sorted(maps.Keys(n.states[gpu])) {
			found.Capabilities = append(found.Capabilities, n.states[gpu][call])
		}
	}
	return found
}

// AddInventory keeps the inventory.
func (n *notes) AddInventory(v timeline.Inventory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.around == nil {
		n.around = map[int]timeline.Inventory{}
	}
	n.around[v.GPU] = v
}

// SetGPUs is not called by a fleet.
func (n *notes) SetGPUs([]timeline.GPU) {}

// AddSample needs no note: a counter that is read says so by its state.
func (n *notes) AddSample(*timeline.Sample) {}

// AddEvent needs no note.
func (n *notes) AddEvent(timeline.Event) {}

// AddCapability keeps the state.
func (n *notes) AddCapability(c timeline.Capability) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states == nil {
		n.states = map[int]map[string]CallState{}
	}
	if n.states[c.GPU] == nil {
		n.states[c.GPU] = map[string]CallState{}
	}
	n.states[c.GPU][c.Call] = CallState{c.GPU, c.Call, c.State.String(), c.Detail}
}
