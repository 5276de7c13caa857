// Package remote keeps the driver out of the agent. A driver can end its process, hang it for minutes, or hold it in the
// kernel for good; so it lives in a helper, and this package is both ends of the wire between them: [Serve] in the
// helper, [Source] in the agent, which starts helpers, watches them and gives up on those that do not die. [Local] runs
// a library that cannot hang, such as a simulation, without a helper.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

const (
	awaitStep    = 500 * time.Millisecond // how long the driver is asked to wait for an event
	changePeriod = 10 * time.Second       // between looks at what the driver lists
)

// errRecycle says that the driver is opened again, to see what it lists then.
var errRecycle = errors.New("the driver is opened again")

// ErrStuck says that calls of the driver had not come back when everything else had ended.
var ErrStuck = errors.New("a call of the driver does not come back")

// fleet is the samplers of all GPUs.
type fleet struct {
	lib      nvml.Library
	now      func() timeline.Instant
	gpus     []timeline.GPU
	samplers []*nvml.Sampler
	missing  error // which GPUs could not be opened; nil if all could

	asked timeline.Instant // when the end of run was asked for; zero: it was not
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
	f := &fleet{lib: lib, now: now, missing: err}
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
// can be looked for by opening the driver again, and it ends at once when the driver lists others. While at least one
// sampler comes back from its calls, beat is called each beatPeriod. When run returns nothing is left behind, unless the
// error is ErrStuck.
func (f *fleet) run(ctx context.Context, sink timeline.GPUSink, bursts <-chan time.Duration, beat func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, watched := make(chan string, 1), make(chan struct{})
	go func() { defer close(watched); f.watch(ctx, sink, changed) }()
	err := f.sample(ctx, sink, bursts, changed, beat)
	cancel()
	left := drainTime // on a busy host a wait of half a second can take several times that
	if !f.asked.IsZero() {
		left = max(left-f.now().Sub(f.asked), 2*awaitStep)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-watched:
		return err
	case <-timer.C:
		return errors.Join(err, ErrStuck)
	}
}

// sample runs the samplers until ctx ends, all are lost, or the driver has to be opened again.
func (f *fleet) sample(ctx context.Context, sink timeline.GPUSink, bursts <-chan time.Duration, changed <-chan string, beat func()) error {
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
				return errors.Join(fmt.Errorf("a gpu is lost: %w to look for it", errRecycle), f.drain(ended, left))
			}
			recycle.Reset(recycleTime)
		case why := <-changed:
			cancel()
			return errors.Join(fmt.Errorf("%s: %w", why, errRecycle), f.drain(ended, left))
		case <-ctx.Done():
			return f.drain(ended, left)
		case err := <-ended:
			left--
			errs = append(errs, err)
		case d := <-bursts:
			for _, s := range f.samplers {
				s.Burst(d)
			}
		case <-ticker.C:
			if f.markStuck(sink) < left {
				beat()
			}
		}
	}
	return errors.Join(errs...)
}

// watch hands on what the driver tells by itself, and says once into changed that it lists other GPUs, until ctx ends.
func (f *fleet) watch(ctx context.Context, sink timeline.GPUSink, changed chan<- string) {
	w, ok := f.lib.(nvml.Watcher)
	if !ok {
		f.setWatched(func(int) error { return fmt.Errorf("the library tells no events: %w", nvml.ErrNotSupported) })
		return
	}
	look := f.now().Add(changePeriod)
	told, failed := false, false
	for ctx.Err() == nil {
		h, happened, err := w.Await(awaitStep)
		if !told || (err != nil) != failed {
			told, failed = true, err != nil
			f.setWatched(func(gpu int) error { return cmp.Or(err, w.Tells(gpu)) })
		}
		why, other := "", false
		switch {
		case err != nil:
			sleep(ctx, changePeriod)
		case happened:
			f.tell(sink, h)
			why, other = h.Detail, h.Kind == timeline.EventMIGChange
		}
		if now := f.now(); !other && now >= look && ctx.Err() == nil {
			look = now.Add(changePeriod)
			why, other = w.Changed()
		}
		if other {
			changed <- why
			return
		}
	}
}

// setWatched says of every GPU whether its errors are told, and why not.
func (f *fleet) setWatched(why func(gpu int) error) {
	for i, s := range f.samplers {
		s.Watched(why(i))
	}
}

// tell hands on something that the driver told.
func (f *fleet) tell(sink timeline.GPUSink, h nvml.Happening) {
	e := timeline.Event{At: f.now(), Kind: h.Kind, GPU: timeline.NoGPU, Detail: h.Detail}
	if h.Device >= 0 && h.Device < len(f.samplers) {
		e.GPU = h.Device
		if h.Kind == timeline.EventXid {
			f.samplers[h.Device].CountXid()
		}
	}
	sink.AddEvent(e)
}

// drain waits for the samplers that are left. Errors no longer matter: the end was asked for.
func (f *fleet) drain(ended <-chan error, left int) error {
	f.asked = f.now()
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

	bursts chan time.Duration // capacity 1: the newest counts

	mu    sync.Mutex
	fleet *fleet // nil until Run
}

var _ nvml.Source = (*Local)(nil)

// NewLocal returns a source that samples lib, which stays the caller's to close.
func NewLocal(lib nvml.Library, cfg nvml.Config, now func() timeline.Instant) *Local {
	return &Local{lib: lib, cfg: cfg, now: now, bursts: make(chan time.Duration, 1)}
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
		if err := f.run(ctx, sink, l.bursts, func() {}); !errors.Is(err, errRecycle) || errors.Is(err, ErrStuck) {
			return err
		}
	}
}

// Burst reads clocks and the reasons that hold them at the highest rate for d from now on; zero ends a burst.
func (l *Local) Burst(d time.Duration) error {
	replace(l.bursts, d)
	return nil
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
