package agent

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Sizes of the queues between what measures and what writes. Each holds several seconds of the busiest node that is
// planned for (8 GPUs, 256 streams of 50 tokens a second).
const (
	maxPendingTokens   = 1 << 18
	maxPendingSamples  = 1 << 15
	maxPendingRequests = 1 << 15
	maxPendingOther    = 1 << 12
)

// pending is what was measured and is not yet recorded.
type pending struct {
	samples  []timeline.Sample
	engine   []timeline.EngineSample
	host     []timeline.HostSample
	anchors  []timeline.Anchor
	opens    []timeline.Request // as they were sent
	requests []timeline.Request // as they ended
	tokens   []timeline.TokenEvent
	events   []timeline.Event
	gpus     []timeline.GPU    // when the list changed
	targets  []timeline.Target // when more became known of them
}

func (p *pending) reset() {
	p.samples, p.engine, p.host = emptied(p.samples, maxIdle), emptied(p.engine, maxIdle), emptied(p.host, maxIdle)
	p.anchors, p.opens, p.requests = emptied(p.anchors, maxIdle), emptied(p.opens, maxIdle), emptied(p.requests, maxIdle)
	p.tokens, p.events = emptied(p.tokens, maxIdleTokens), emptied(p.events, maxIdle)
	p.gpus, p.targets = nil, nil
}

// Bounds of the room that an empty queue keeps, each more than a busy second takes: a burst must not hold its memory for
// good.
const (
	maxIdle       = 1 << 12
	maxIdleTokens = 1 << 15
)

// emptied returns q without its rows, and lets go of what they hold.
func emptied[T any](q []T, most int) []T {
	if cap(q) > most {
		return nil
	}
	clear(q)
	return q[:0]
}

// Drops counts what the store's queues could not hold, by kind.
type Drops struct {
	Samples  uint64 `json:"samples"`
	Tokens   uint64 `json:"tokens"`
	Requests uint64 `json:"requests"`
	Other    uint64 `json:"other"`
}

// Store is where everything measured meets. It numbers requests, feeds the correlation engine and queues what is to be
// recorded. All methods are safe for concurrent use and none blocks on anything but the store's own short lock.
type Store struct {
	numbers numbers

	now func() timeline.Instant // of what carries no instant of its own; nil: zero

	mu      sync.Mutex
	engine  *correlate.Engine
	gpus    []timeline.GPU
	caps    map[capKey]timeline.Capability
	anchor  timeline.Anchor
	queue   pending
	keep    bool // queue for a recording
	drops   Drops
	around  map[int]timeline.Inventory
	latest  map[int]timeline.Instant // newest window of each GPU; of one without windows, newest reading
	events  []timeline.Event         // since the last Advance
	lost    bool
	lostWhy string
}

type capKey struct {
	gpu  int
	call string
}

// NewStore returns a store that feeds engine. With keep, what is measured is also queued for a recording, and the
// caller has to drain it.
func NewStore(engine *correlate.Engine, keep bool) *Store {
	return &Store{
		engine: engine, keep: keep, numbers: numbers{of: map[*source]map[uint64]uint64{}},
		caps: map[capKey]timeline.Capability{}, latest: map[int]timeline.Instant{}, around: map[int]timeline.Inventory{},
	}
}

var (
	_ timeline.GPUSink       = (*Store)(nil)
	_ timeline.InventorySink = (*Store)(nil)
)

// SetGPUs takes the list of GPUs.
func (s *Store) SetGPUs(gpus []timeline.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus = slices.Clone(gpus)
	s.engine.SetGPUs(s.gpus)
	if s.keep {
		s.queue.gpus = s.gpus
	}
}

// AddSample takes one reading of a GPU.
func (s *Store) AddSample(sample *timeline.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.AddSample(sample)
	s.lost = false
	if sample.Has&timeline.GPM != 0 || !s.hasWindows(sample.GPU) {
		s.latest[sample.GPU] = sample.Over.End
	}
	if s.keep {
		s.queue.samples = push(s.queue.samples, *sample, maxPendingSamples, &s.drops.Samples)
	}
}

// hasWindows reports whether a GPU is one that gives windows of activity. The lock is held.
func (s *Store) hasWindows(gpu int) bool { return gpu >= 0 && gpu < len(s.gpus) && s.gpus[gpu].GPM }

// AddCapability takes the state of one call on one GPU. What changes is recorded, so that a replay trusts what was
// trusted.
func (s *Store) AddCapability(c timeline.Capability) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := capKey{c.GPU, c.Call}
	before, told := s.caps[key]
	s.caps[key] = c
	s.engine.AddCapability(c)
	if c.Call == timeline.ForeignProcess {
		s.engine.SetForeign(c.GPU, c.State == timeline.StateUntrusted)
	}
	changed := before.State != c.State
	if !told {
		changed = c.State != timeline.StateOK
	}
	if s.keep && changed {
		at := timeline.Instant(0)
		if s.now != nil {
			at = s.now()
		}
		s.queue.events = push(s.queue.events, c.Event(at), maxPendingOther, &s.drops.Other)
	}
}

// AddEvent takes something that happened.
func (s *Store) AddEvent(e timeline.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.AddEvent(e)
	if e.Kind == timeline.EventSamplerLost {
		s.lost, s.lostWhy = true, e.Detail
	}
	s.events = push(s.events, e, maxPendingOther, &s.drops.Other)
	if s.keep {
		s.queue.events = push(s.queue.events, e, maxPendingOther, &s.drops.Other)
	}
}

// AddEngine takes one scrape of an engine.
func (s *Store) AddEngine(e *timeline.EngineSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.AddEngine(e)
	if s.keep {
		s.queue.engine = push(s.queue.engine, *e, maxPendingOther, &s.drops.Other)
	}
}

// AddHost takes one reading of the host.
func (s *Store) AddHost(h *timeline.HostSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.AddHost(h)
	if s.keep {
		s.queue.host = push(s.queue.host, *h, maxPendingOther, &s.drops.Other)
	}
}

// AddAnchor takes a reading of the host's clocks.
func (s *Store) AddAnchor(a timeline.Anchor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.anchor = a
	if s.keep {
		s.queue.anchors = push(s.queue.anchors, a, maxPendingOther, &s.drops.Other)
	}
}

// SetTargets replaces the targets.
func (s *Store) SetTargets(targets []timeline.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.SetTargets(targets)
	if s.keep {
		s.queue.targets = slices.Clone(targets)
	}
}

// Advance closes every cell that ends at or before upTo and returns what came out, with the events since the last
// call.
func (s *Store) Advance(dst *correlate.Output, upTo timeline.Instant) []timeline.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Advance(dst, upTo)
	return s.takeEvents()
}

// Flush closes everything that is left.
func (s *Store) Flush(dst *correlate.Output) []timeline.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Flush(dst)
	return s.takeEvents()
}

func (s *Store) takeEvents() []timeline.Event {
	events := s.events
	s.events = nil
	return events
}

// drain hands over what is to be recorded. The caller gives the last one back.
func (s *Store) drain(back pending) pending {
	back.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.queue
	s.queue = back
	return full
}

// Anchor returns the newest reading of the host's clocks.
func (s *Store) Anchor() timeline.Anchor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anchor
}

// GPUs returns the list of GPUs, which the caller must not change.
func (s *Store) GPUs() []timeline.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpus
}

// Drops returns what the queues could not hold.
func (s *Store) Drops() Drops {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops
}

// Health says what is known of the counters: the newest reading of each GPU, and why there is none if the sampler is
// gone.
type Health struct {
	Latest       map[int]timeline.Instant
	Lost         bool
	Why          string
	Capabilities []timeline.Capability
}

// Health returns the state of the counters.
func (s *Store) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	caps := slices.SortedFunc(maps.Values(s.caps), func(a, b timeline.Capability) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Call, b.Call))
	})
	return Health{Latest: maps.Clone(s.latest), Lost: s.lost, Why: s.lostWhy, Capabilities: caps}
}

// push appends v to q unless q is full, which it counts.
func push[T any](q []T, v T, most int, dropped *uint64) []T {
	if len(q) >= most {
		*dropped++
		return q
	}
	return append(q, v)
}
