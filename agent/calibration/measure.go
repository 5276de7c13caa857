package calibration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

const (
	settle      = 500 * time.Millisecond // at both ends of a load: clocks ramp, and windows reach over the edge
	restFor     = 2500 * time.Millisecond
	lastWindows = time.Second // after a command, for its last windows to come
	minWindows  = 10
	kernelTime  = 5 * time.Minute // most that a command may take on one GPU
	busyAtRest  = 0.03            // of the DRAM bandwidth before the load: something else runs
	scaleBand   = 0.15            // counted bytes and the counter's own word may differ by that much of one another
	faultyPart  = 0.9             // of the table's: a GPU that reaches less has a fault, which is no calibration
	leastTensor = 0.5
)

// Source is a source of counters. Run hands what it reads to sink until ctx ends.
type Source interface {
	Run(ctx context.Context, sink timeline.GPUSink) error
}

// Options say what is calibrated and with what.
type Options struct {
	Source  Source
	Now     func() timeline.Instant
	Command []string // empty: only what can be told without running a load
	Env     []string // of the command, whole
	Wall    func() time.Time
	Say     func(string) // takes a line on what goes on; may be nil
}

// Finding is what came out of one GPU.
type Finding struct {
	GPU     timeline.GPU `json:"gpu"`
	Known   []Fact       `json:"known"`
	Entry   *Entry       `json:"calibration,omitempty"`
	Refused string       `json:"refused,omitempty"` // why no calibration is kept
	Scale   float64      `json:"scale,omitempty"`   // counted bytes over those by the counter
	MFU     float64      `json:"mfu,omitempty"`     // of the product: operations over the peak at the clock that it ran at
}

// Run measures all GPUs that the source lists, one after another.
func Run(ctx context.Context, o Options) ([]Finding, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seen := &gathered{}
	ended := make(chan error, 1)
	go func() { ended <- o.Source.Run(ctx, seen) }()
	out, err := o.measure(ctx, seen, ended)
	stop()
	if errSource := <-ended; err == nil && errSource != nil && !errors.Is(errSource, context.Canceled) {
		err = fmt.Errorf("read counters: %w", errSource)
	}
	return out, err
}

func (o *Options) measure(ctx context.Context, seen *gathered, ended chan error) ([]Finding, error) {
	if err := o.rest(ctx, restFor, ended); err != nil {
		return nil, err
	}
	var out []Finding
	for i, g := range seen.list() {
		f := Finding{GPU: g, Known: Facts(g, seen.inventoryOf(i))}
		if len(o.Command) > 0 {
			o.Say(fmt.Sprintf("GPU %s (%s): running the loads", timeline.ShortUUID(g.UUID), g.Name))
			if err := o.gpu(ctx, seen, ended, i, &f); err != nil {
				return out, err
			}
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil, errors.New("calibrate: no GPU was listed")
	}
	return out, nil
}

// rest waits, unless the source ends.
func (o *Options) rest(ctx context.Context, d time.Duration, ended chan error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		ended <- err
		return fmt.Errorf("read counters: the source ended: %w", err)
	case <-timer.C:
		return nil
	}
}

// gpu runs the loads on one GPU. What speaks against a calibration goes into the finding; an error ends all.
func (o *Options) gpu(ctx context.Context, seen *gathered, ended chan error, i int, f *Finding) error {
	if !f.GPU.GPM {
		f.Refused = "no windows of activity on this GPU (GPM, Hopper and newer)"
		return nil
	}
	now := o.Now()
	before := seen.over(i, timeline.Span{Start: now.Add(-restFor), End: now})
	if d, ok := before.mean(timeline.DRAMUtil); !ok || d > busyAtRest {
		f.Refused = fmt.Sprintf("the GPU is not at rest: DRAM at %.0f %% before the load", 100*d)
		if !ok {
			f.Refused = "DRAM bandwidth cannot be read"
		}
		return nil
	}
	seen.forget(i)
	limited, cancel := context.WithTimeout(ctx, kernelTime)
	defer cancel()
	kernels, err := runKernels(limited, o.Command, o.Env, f.GPU.UUID, o.Now)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.Refused = err.Error()
		return nil
	}
	if err := o.rest(ctx, lastWindows, ended); err != nil {
		return err
	}
	e := Entry{UUID: f.GPU.UUID, Name: f.GPU.Name, Driver: f.GPU.Driver, Simulated: f.GPU.Simulated, Time: o.Wall().UTC().Truncate(time.Second), PowerLimitW: f.GPU.PowerLimitW}
	for _, k := range kernels {
		m := seen.over(i, timeline.Span{Start: k.Over.Start.Add(settle), End: k.Over.End.Add(-settle)})
		if m.windows < minWindows {
			f.Refused = fmt.Sprintf("%s lasted for %d windows, and %d are needed: let it run longer", k.Name, m.windows, minWindows)
			return nil
		}
		f.take(&e, k, m)
	}
	if f.Refused = refuse(&e, f); f.Refused == "" {
		f.Entry = &e
	}
	return nil
}

// take notes the figures of one load.
func (f *Finding) take(e *Entry, k Kernel, m means) {
	hw, _ := hardware.IdentifyGPU(f.GPU) // of an unknown GPU the rates are zero
	clock, _ := m.mean(timeline.SMClock)
	memory, _ := m.mean(timeline.MemClock)
	if k.Name == "gemm" {
		if t, ok := m.mean(timeline.TensorUtil); ok {
			e.EtaTensor, e.OpsPerS, e.SMClockHz = t, k.Ops/k.Seconds, clock
		}
		if peak := hw.Rates.BF16; peak > 0 && hw.RateClockHz > 0 && clock > 0 {
			f.MFU = e.OpsPerS / (peak * clock / hw.RateClockHz)
		}
		return
	}
	d, ok := m.mean(timeline.DRAMUtil)
	if !ok || d <= e.EtaBandwidth {
		return
	}
	e.EtaBandwidth, e.BytesPerS, e.MemClockHz, e.Windows = d, k.Bytes/k.Seconds, memory, m.windows
	if e.SMClockHz == 0 {
		e.SMClockHz = clock
	}
	if peak := denominator(f.GPU, hw); peak > 0 {
		f.Scale = e.BytesPerS / (d * peak)
	}
}

// refuse returns what speaks against keeping e, or nothing.
func refuse(e *Entry, f *Finding) string {
	hw, _ := hardware.IdentifyGPU(f.GPU) // of an unknown GPU nothing is in the table
	table := verdict.EtaOf(hw)
	switch {
	case e.EtaBandwidth == 0:
		return "no load moved bytes (read or copy)"
	case e.EtaBandwidth > 1 || e.EtaTensor > 1:
		return "a counter read more than all"
	case f.Scale != 0 && (f.Scale < 1-scaleBand || f.Scale > 1/(1-scaleBand)):
		return fmt.Sprintf("the load counts %.2f of the bytes that the counter tells: one of the two is wrong", f.Scale)
	case table.BandwidthOrigin == verdict.OriginTable && e.EtaBandwidth < faultyPart*table.Bandwidth:
		return fmt.Sprintf("DRAM reaches %.2f where this model reaches %.2f: find out why before calibrating", e.EtaBandwidth, table.Bandwidth)
	case e.EtaTensor != 0 && e.EtaTensor < leastTensor:
		return fmt.Sprintf("the product keeps the tensor cores active for %.0f %% of the time: it is no load to calibrate with", 100*e.EtaTensor)
	}
	return ""
}

// maxSamples bounds what is kept of one GPU: ten minutes at the highest rates.
const maxSamples = 1 << 16

// gathered is a sink that keeps samples. It is safe for concurrent use.
type gathered struct {
	mu        sync.Mutex
	gpus      []timeline.GPU
	samples   map[int][]timeline.Sample
	inventory map[int]timeline.Inventory
}

// SetGPUs keeps the list.
func (s *gathered) SetGPUs(list []timeline.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus = append([]timeline.GPU(nil), list...)
}

// AddSample keeps a reading.
func (s *gathered) AddSample(x *timeline.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.samples == nil {
		s.samples = map[int][]timeline.Sample{}
	}
	if len(s.samples[x.GPU]) < maxSamples {
		s.samples[x.GPU] = append(s.samples[x.GPU], *x)
	}
}

// AddCapability needs no note: a counter that cannot be read has no mean.
func (s *gathered) AddCapability(timeline.Capability) {}

// AddEvent needs no note.
func (s *gathered) AddEvent(timeline.Event) {}

// AddInventory keeps what is on and around a GPU.
func (s *gathered) AddInventory(v timeline.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inventory == nil {
		s.inventory = map[int]timeline.Inventory{}
	}
	s.inventory[v.GPU] = v
}

func (s *gathered) list() []timeline.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpus
}

func (s *gathered) inventoryOf(gpu int) timeline.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inventory[gpu]
}

// forget drops the readings of one GPU.
func (s *gathered) forget(gpu int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.samples, gpu)
}

// means are means over whole readings.
type means struct {
	sum, weight [timeline.NumCounters]float64
	windows     int
}

func (m *means) mean(c timeline.Counter) (float64, bool) {
	if m.weight[c] <= 0 {
		return 0, false
	}
	return m.sum[c] / m.weight[c], true
}

// over returns the means of what lies wholly in span: windows by their length, readings of a moment alike.
func (s *gathered) over(gpu int, span timeline.Span) means {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m means
	for i := range s.samples[gpu] {
		x := &s.samples[gpu][i]
		if x.Over.Start < span.Start || x.Over.End > span.End {
			continue
		}
		if x.Has.Has(timeline.DRAMUtil) {
			m.windows++
		}
		for c := range timeline.Counter(timeline.NumCounters) {
			w := 1.0
			if c.Windowed() {
				w = x.Over.Duration().Seconds()
			}
			if v, ok := x.Get(c); ok {
				m.sum[c], m.weight[c] = m.sum[c]+w*v, m.weight[c]+w
			}
		}
	}
	return m
}
