// Package remote keeps the driver out of the agent. A driver can end its process, hang it for minutes, or hold it in the
// kernel for good; so it lives in a helper, and this package is both ends of the wire between them: [Serve] in the
// helper, [Source] in the agent, which starts helpers, watches them and gives up on those that do not die. [Local] runs
// a library that cannot hang, such as a simulation, without a helper.
package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

const (
	beatPeriod = 500 * time.Millisecond
	// stuckAfter is how long a call of the driver may take before its GPU's counters are called timed out.
	stuckAfter = 2 * time.Second
	// drainTime is how long samplers are waited for at the end. It leaves a second of the five that a helper has.
	drainTime = 4 * time.Second
)

// recycleTime is how long a fleet with lost GPUs goes on: opening the driver again costs the others a second.
const recycleTime = 15 * time.Minute

var errRecycle = errors.New("a gpu is lost: the driver is opened again to look for it")

// ErrStuck says that calls of the driver had not come back when everything else had ended.
var ErrStuck = errors.New("a call of the driver does not come back")

// fleet is the samplers of all GPUs.
type fleet struct {
	gpus     []timeline.GPU
	samplers []*nvml.Sampler
	missing  error // which GPUs could not be opened; nil if all could
}

// newFleet makes a sampler for each of the library's GPUs.
func newFleet(lib nvml.Library, cfg nvml.Config, now func() timeline.Instant) (*fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sample gpus: %w", err)
	}
	devices, err := lib.Devices()
	switch {
	case len(devices) == 0 && err != nil:
		return nil, fmt.Errorf("list gpus: %w", err)
	case len(devices) == 0:
		return nil, fmt.Errorf("list gpus: %w: the driver has none", nvml.ErrNoDriver)
	}
	f := &fleet{missing: err}
	for i, d := range devices {
		f.gpus = append(f.gpus, d.GPU())
		f.samplers = append(f.samplers, nvml.NewSampler(i, d, cfg, now))
	}
	return f, nil
}

// start tells sink what there is.
func (f *fleet) start(sink timeline.GPUSink, at timeline.Instant) {
	sink.SetGPUs(f.gpus)
	if f.missing != nil {
		sink.AddEvent(timeline.Event{At: at, Kind: timeline.EventGPULost, GPU: timeline.NoGPU, Detail: f.missing.Error()})
	}
}

// run samples all GPUs until ctx ends or all are lost; if some are lost or missing it ends after a while, so that they
// can be looked for by opening the driver again. While at least one sampler comes back from its calls, beat is
// called each beatPeriod. When run returns nothing is left behind, unless the error is ErrStuck.
func (f *fleet) run(ctx context.Context, sink timeline.GPUSink, beat func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(f.samplers))
	for _, s := range f.samplers {
		go func() { ended <- s.Run(ctx, sink) }()
	}
	ticker := time.NewTicker(beatPeriod)
	defer ticker.Stop()
	recycle := time.NewTimer(recycleTime)
	defer recycle.Stop()
	var errs []error
	for left := len(f.samplers); left > 0; {
		select {
		case <-recycle.C:
			if left < len(f.samplers) || f.missing != nil {
				cancel()
				return errors.Join(errRecycle, drain(ended, left))
			}
			recycle.Reset(recycleTime)
		case <-ctx.Done():
			return drain(ended, left)
		case err := <-ended:
			left--
			errs = append(errs, err)
		case <-ticker.C:
			if f.markStuck(sink) < left {
				beat()
			}
		}
	}
	return errors.Join(errs...)
}

// drain waits for the samplers that are left. Errors no longer matter: the end was asked for.
func drain(ended <-chan error, left int) error {
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	for range left {
		select {
		case <-ended: //nolint:errcheck // the end was asked for
		case <-timer.C:
			return ErrStuck
		}
	}
	return nil
}

// markStuck marks the samplers whose call does not come back, and counts them.
func (f *fleet) markStuck(sink timeline.GPUSink) int {
	stuck := 0
	for _, s := range f.samplers {
		if s.Stats().InCall > stuckAfter {
			s.MarkStuck(sink)
			stuck++
		}
	}
	return stuck
}

// stats returns the counts of all samplers, by position.
func (f *fleet) stats() []nvml.Stats {
	all := make([]nvml.Stats, len(f.samplers))
	for i, s := range f.samplers {
		all[i] = s.Stats()
	}
	return all
}

// Local is a source that samples a library in this process: for libraries that can neither hang nor end it.
type Local struct {
	lib nvml.Library
	cfg nvml.Config
	now func() timeline.Instant

	mu    sync.Mutex
	fleet *fleet // nil until Run
}

var _ nvml.Source = (*Local)(nil)

// NewLocal returns a source that samples lib, which stays the caller's to close.
func NewLocal(lib nvml.Library, cfg nvml.Config, now func() timeline.Instant) *Local {
	return &Local{lib: lib, cfg: cfg, now: now}
}

// Run samples all GPUs until ctx ends or all are lost. A list with holes is the driver's: positions are of what opened.
func (l *Local) Run(ctx context.Context, sink timeline.GPUSink) error {
	for {
		f, err := newFleet(l.lib, l.cfg, l.now)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.fleet = f
		l.mu.Unlock()
		f.start(sink, l.now())
		sink.AddEvent(timeline.Event{At: l.now(), Kind: timeline.EventSamplerStarted, GPU: timeline.NoGPU, Detail: "in process"})
		if err := f.run(ctx, sink, func() {}); !errors.Is(err, errRecycle) || errors.Is(err, ErrStuck) {
			return err
		}
	}
}

// Stats returns the samplers' counts, by position.
func (l *Local) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fleet == nil {
		return Stats{}
	}
	return Stats{GPUs: l.fleet.stats()}
}

// probeTime holds two rounds of the slowest tier at default rates, and a dozen windows.
const probeTime = 1500 * time.Millisecond

// Findings are what a probe finds out about a library's GPUs.
type Findings struct {
	GPUs         []timeline.GPU `json:"gpus"`
	Capabilities []CallState    `json:"capabilities"`
	Latency      []CallLatency  `json:"latency"`
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
	MaxUS  float64 `json:"max_us"`
}

// Probe samples all GPUs of lib for a moment and says what could be read, and what each call took.
func Probe(ctx context.Context, lib nvml.Library, cfg nvml.Config, now func() timeline.Instant) (Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	f, err := newFleet(lib, cfg, now)
	if err != nil {
		return Findings{}, err
	}
	var n notes
	if err := f.run(ctx, &n, func() {}); err != nil {
		return Findings{}, err
	}
	found := Findings{GPUs: f.gpus}
	for gpu, st := range f.stats() {
		for _, call := range slices.Sorted(maps.Keys(n.states[gpu])) {
			found.Capabilities = append(found.Capabilities, n.states[gpu][call])
		}
		for call, c := range st.Calls {
			if c.Count > 0 {
				found.Latency = append(found.Latency, CallLatency{
					GPU: gpu, Call: nvml.Call(call).String(), Count: c.Count,
					MeanUS: float64(c.Total.Microseconds()) / float64(c.Count), MaxUS: float64(c.Max.Microseconds()),
				})
			}
		}
	}
	return found, nil
}

// notes keeps the last state of each counter. It is safe for concurrent use.
type notes struct {
	mu     sync.Mutex
	states map[int]map[string]CallState
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
