package correlate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Config says how an Engine cuts time and how much it keeps.
type Config struct {
	Cell time.Duration `yaml:"cell"` // length of a cell, aligned to multiples of itself on the timeline
	// Lateness is how far behind the newest data callers keep the horizon of Advance. It must be more than the time from
	// one scrape of an engine to the next: what an engine did is known only at the scrape that ends it.
	Lateness time.Duration `yaml:"lateness"`
	Warmup   int           `yaml:"warmup_requests"` // requests after an engine's start whose phases are marked as warm-up

	MaxRequests int `yaml:"max_requests"` // in flight or waiting for their cells; the oldest gives way
	MaxTokens   int `yaml:"max_tokens"`   // token events kept for requests in flight; later ones are dropped and counted
	MaxReadings int `yaml:"max_readings"` // of each kind and GPU, not yet cut into cells; the oldest gives way

	AllowForeign bool                   `yaml:"allow_foreign"` // judge although a foreign process uses the GPU
	Targets      []timeline.Target      `yaml:"-"`
	Eta          map[string]verdict.Eta `yaml:"-"` // calibrated on this node, by UUID; never from load history
}

// DefaultConfig returns the configuration that the agent uses unless told otherwise.
func DefaultConfig() Config {
	return Config{
		Cell: time.Second, Lateness: 2 * time.Second, Warmup: 2,
		MaxRequests: 16384, MaxTokens: 1 << 19, MaxReadings: 2048,
	}
}

// Validate returns all faults of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	if c.Cell < 500*time.Millisecond || c.Cell > time.Minute {
		errs = append(errs, fmt.Errorf("cell %v: must be from 500ms to 1m, so that it holds enough counter windows", c.Cell))
	}
	if c.Lateness < 0 || c.Lateness > time.Minute {
		errs = append(errs, fmt.Errorf("lateness %v: must be from 0s to 1m", c.Lateness))
	}
	if c.Warmup < 0 {
		errs = append(errs, fmt.Errorf("warmup_requests %d: must not be negative", c.Warmup))
	}
	if c.MaxRequests < 1 || c.MaxTokens < 1 || c.MaxReadings < 1 {
		errs = append(errs, fmt.Errorf("max_requests %d, max_tokens %d, max_readings %d: must be positive", c.MaxRequests, c.MaxTokens, c.MaxReadings))
	}
	return errors.Join(errs...)
}

// Stats counts what an Engine took and what it had to leave out.
type Stats struct {
	Samples, Tokens, Requests, Scrapes uint64
	Cells, Phases                      uint64

	LateSamples      uint64 // of a cell that was closed already
	LateTokens       uint64
	LateRequests     uint64 // closed after the cells of their decode
	UntrustedSamples uint64 // windows too short, too uncertain at their ends, or with values out of range
	DroppedReadings  uint64 // no room
	DroppedTokens    uint64 // no room, or of a request that is not known
	EvictedRequests  uint64 // open too long for the room there is
	LostRequests     uint64 // whose end was never told, concluded after a long silence
	UnknownTargets   uint64 // readings of a target or GPU that is not known
}

// Output takes what Advance has to say. The engine appends and keeps nothing of it.
type Output struct {
	Cells  []Cell
	Phases []Phase
}

// Reset empties the output and keeps its room.
func (o *Output) Reset() { o.Cells, o.Phases = o.Cells[:0], o.Phases[:0] }

// Engine joins readings, tokens and requests into cells and phases. Feed it in about the order of time, and call
// Advance at least every few seconds of data. It is a deterministic state machine: the same calls give the same
// output. It is not safe for concurrent use.
//
// A cell's verdict carries the confidence of a lone cell. A phase carries the confidence of the run of like cells that
// its decode ended in, as far as that run was known by then; [verdict.Run] gives that of any other run.
type Engine struct {
	cfg      Config
	gpus     []gpuState
	targets  []*target
	byName   map[string]int
	implicit bool // targets were found, not configured

	requests map[uint64]*request
	free     []*request
	oldest   requestList
	arena    arena

	cursor  timeline.Instant // end of the last closed cell
	started bool             // a cell was closed
	first   timeline.Instant // earliest instant of any reading while nothing is closed
	last    timeline.Instant // latest instant of any reading
	breaks  []timeline.Instant
	lives   []timeline.Instant // of what observes, as far as they are known to have begun
	host    timeline.HostSample
	stats   Stats
	scratch scratch
}

// maxTargets bounds the targets that are found by name in what comes in.
const maxTargets = 64

// New returns an engine with that configuration, which must be valid.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, byName: map[string]int{}, requests: make(map[uint64]*request, min(cfg.MaxRequests, 1<<16))}
	e.arena.limit = max(1, cfg.MaxTokens/blockEvents)
	e.implicit = true
	if len(cfg.Targets) > 0 {
		e.SetTargets(cfg.Targets)
	}
	return e
}

// Stats returns what the engine counted so far.
func (e *Engine) Stats() Stats { return e.stats }

// SetGPUs hands over the list of GPUs that samples refer to by position. A GPU keeps its position; a longer list adds.
func (e *Engine) SetGPUs(gpus []timeline.GPU) {
	for i, g := range gpus {
		if i >= len(e.gpus) {
			e.gpus = append(e.gpus, newGPUState(e.cfg.MaxReadings))
		}
		e.gpus[i].describe(g, e.cfg.Eta)
	}
	e.mapTargets()
}

// SetTargets replaces the configured targets. A target that keeps its name keeps its state; one that is not listed any
// more has no further cells. An empty list lets the engine find targets by their names in what comes in.
func (e *Engine) SetTargets(targets []timeline.Target) {
	e.implicit = len(targets) == 0
	for _, t := range e.targets {
		t.gone = !e.implicit
	}
	for _, spec := range targets {
		if i, ok := e.byName[spec.Name]; ok {
			e.targets[i].spec, e.targets[i].gone = spec, false
			continue
		}
		e.addTarget(spec)
	}
	e.mapTargets()
}

// AddSample takes one reading of a GPU. It keeps no reference to s.
func (e *Engine) AddSample(s *timeline.Sample) {
	e.stats.Samples++
	if s.GPU < 0 || s.GPU >= len(e.gpus) {
		e.stats.UnknownTargets++
		return
	}
	if e.started && s.Over.End <= e.cursor {
		e.stats.LateSamples++
		return
	}
	e.saw(s.Over)
	g := &e.gpus[s.GPU]
	g.heard.add(s.Over)
	before := g.windows.Dropped() + g.gauges.Dropped() + g.totals.Dropped()
	if !g.add(s) {
		e.stats.UntrustedSamples++
	}
	e.stats.DroppedReadings += g.windows.Dropped() + g.gauges.Dropped() + g.totals.Dropped() - before
}

// AddCapability takes the state of a call on a GPU. A counter that is untrusted is left out until it is trusted again.
func (e *Engine) AddCapability(c timeline.Capability) {
	counter, ok := timeline.ParseCounter(c.Call)
	if !ok || c.GPU < 0 || c.GPU >= len(e.gpus) {
		return
	}
	g := &e.gpus[c.GPU]
	g.untrusted &^= timeline.Set(counter)
	if g.denied.Has(counter) {
		g.deniedTo = e.last // cells up to here are closed later
	}
	g.denied &^= timeline.Set(counter)
	if c.State == timeline.StateUnsupported || c.State == timeline.StateNoPermission {
		g.denied |= timeline.Set(counter)
	}
	if c.State == timeline.StateUntrusted {
		g.untrusted |= timeline.Set(counter)
	}
}

// SetForeign says whether a process that is not the engine's uses the GPU at that position.
func (e *Engine) SetForeign(gpu int, foreign bool) {
	if gpu >= 0 && gpu < len(e.gpus) {
		e.gpus[gpu].foreign = foreign
	}
}

// AddEngine takes one scrape of an engine. It keeps no reference to s.
func (e *Engine) AddEngine(s *timeline.EngineSample) {
	e.stats.Scrapes++
	i, ok := e.resolve(s.Target)
	if !ok {
		e.stats.UnknownTargets++
		return
	}
	e.saw(s.Over)
	t := e.targets[i]
	t.heard.add(s.Over)
	before := t.scrapes.ring.Dropped()
	if t.scrapes.add(s) {
		t.warm = 0
	}
	e.stats.DroppedReadings += t.scrapes.ring.Dropped() - before
}

// AddHost takes one reading of the host.
func (e *Engine) AddHost(s *timeline.HostSample) { e.host = *s }

// AddEvent takes something that happened. Events that close an alignment epoch leave the cell they fall in without a
// verdict; the loss of a sampler ends at once what its last readings still held; a segment that another process began
// parts what was heard before from what is heard after.
func (e *Engine) AddEvent(ev timeline.Event) {
	switch ev.Kind {
	case timeline.EventSuspend, timeline.EventPause, timeline.EventClockStep:
		if len(e.breaks) < maxBreaks {
			e.breaks = append(e.breaks, ev.At)
		}
	case timeline.EventSamplerLost, timeline.EventGPULost, timeline.EventGap:
		for i := range e.gpus {
			if ev.GPU == timeline.NoGPU || ev.GPU == i {
				e.gpus[i].release(ev.At)
				if ev.Kind == timeline.EventGPULost {
					e.gpus[i].heard.lost()
				}
			}
		}
	case timeline.EventEngineRestart, timeline.EventEngineUp:
		if i, ok := e.byName[ev.Target]; ok {
			e.targets[i].warm = 0
		}
	case timeline.EventSegment:
		e.begin(ev.At)
	case timeline.EventSamplerStarted, timeline.EventCapability, timeline.EventEngineDown,
		timeline.EventDropped, timeline.EventMarker, timeline.EventXid, timeline.EventGPUFault, timeline.EventMIGChange, timeline.EventRate,
		timeline.EventCounterMismatch, timeline.EventCounterSource, timeline.EventBurst, timeline.EventInventory:
	}
}

// maxBreaks bounds the epochs that wait for their cell.
const maxBreaks = 1024

// saw widens what is known of the data's span.
func (e *Engine) saw(s timeline.Span) {
	if e.first == 0 || s.Start < e.first {
		e.first = s.Start
	}
	e.last = max(e.last, s.End)
}

// resolve returns the target of that name, and makes one if targets are not configured. An empty name is the only
// target there is.
func (e *Engine) resolve(name string) (int, bool) {
	if i, ok := e.byName[name]; ok {
		return i, true
	}
	if name == "" && len(e.targets) == 1 {
		return 0, true
	}
	if !e.implicit || len(e.targets) >= maxTargets {
		return 0, false
	}
	if len(e.targets) == 1 && e.targets[0].spec.Name == "" {
		t := e.targets[0]
		delete(e.byName, "")
		t.spec.Name, e.byName[name] = name, 0
		return 0, true
	}
	i := e.addTarget(timeline.Target{Name: name})
	e.mapTargets()
	return i, true
}

func (e *Engine) addTarget(spec timeline.Target) int {
	e.targets = append(e.targets, newTarget(spec, e.cfg))
	i := len(e.targets) - 1
	e.byName[spec.Name] = i
	return i
}

// mapTargets ties targets to GPUs: by UUID, and one GPU and one engine to each other; where more of either is listed
// than is there at a time, remap does so cell by cell. It looks the model up again, because it needs the GPU.
func (e *Engine) mapTargets() {
	if e.implicit && len(e.targets) == 0 && len(e.gpus) == 1 {
		e.addTarget(timeline.Target{})
	}
	for i := range e.gpus {
		e.gpus[i].shared = false
	}
	used := make([]bool, len(e.gpus))
	for _, t := range e.targets {
		t.gpus = e.gpusOf(t, t.gpus[:0])
		t.model = e.modelOf(t)
		if t.gone {
			continue
		}
		for _, i := range t.gpus {
			e.gpus[i].shared, used[i] = e.gpus[i].shared || used[i], true
		}
	}
}

// gpusOf appends the GPUs of a target to dst, each once however often it is listed.
func (e *Engine) gpusOf(t *target, dst []int) []int {
	t.missing = false
	if len(t.spec.GPUs) == 0 && len(e.gpus) == 1 && len(e.targets) == 1 {
		return append(dst, 0)
	}
	for _, uuid := range t.spec.GPUs {
		i := slices.IndexFunc(e.gpus, func(g gpuState) bool {
			return timeline.NormalizeUUID(g.spec.UUID) == timeline.NormalizeUUID(uuid)
		})
		switch {
		case i < 0:
			t.missing = true
		case !slices.Contains(dst, i):
			dst = append(dst, i)
		}
	}
	return dst
}

// modelOf returns the byte model of a target, or nil where model, format or GPU is not known.
func (e *Engine) modelOf(t *target) *roofline.Model {
	if len(t.gpus) == 0 || t.spec.Model == "" || t.spec.DType == "" || !e.gpus[t.gpus[0]].known || t.pieces() > 1 {
		return nil // how stages and copies share steps is not modelled
	}
	spec, err := hardware.LookupModel(t.spec.Model)
	if err != nil {
		return nil
	}
	m, err := roofline.New(spec, e.gpus[t.gpus[0]].hw, t.spec.DType, t.spec.KVDType, t.parallel())
	if err != nil {
		return nil
	}
	return m
}
