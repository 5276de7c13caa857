package exporters

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// staleAfter is how far a target or GPU may lag behind the newest cell before its readings count as gone.
const staleAfter = 30 * time.Second

// StateConfig says what a State keeps.
type StateConfig struct {
	Profile Profile
	Targets []timeline.Target // for what the info series tell
	Spans   SpanPolicy        // which requests are exemplars
	Version string            // of the agent
}

// Series is one series and its present value.
type Series struct {
	ID      ID
	Labels  []string  // values, in the order of the metric's labels
	Since   time.Time // when it began, by the clock of that day: it never moves
	Value   float64
	Buckets *Buckets // of a histogram; the state's own, valid until it takes something in
}

// State turns the result stream into cumulative series. It is the one accumulator behind every way out, so that all
// agree. It is not safe for concurrent use.
type State struct {
	cfg     StateConfig
	limiter *spanLimiter
	anchor  timeline.Anchor
	began   time.Time // wall-clock time of the first batch
	gpus    []timeline.GPU
	byGPU   map[gpuKey]*group
	owned   map[string]timeline.Instant // by UUID: up to where a GPU's time is accounted
	targets map[string]*group
	self    map[string]Series
	grown   map[string]grown  // what the agent counts, by the key of its series
	caps    map[string]Series // of calls of GPUs
	newest  timeline.Instant
	unread  []string // UUIDs of GPUs of which nothing can be read at the moment
}

type gpuKey struct{ uuid, target string }

// group holds the series of one GPU or one target.
type group struct {
	labels   []string // the first labels of each of its series
	since    time.Time
	at       timeline.Instant // end of the newest cell
	covered  timeline.Instant // start of the newest cell with readings
	lost     timeline.Instant // when the sampler was lost; zero if it is there
	values   [NumMetrics][]float64
	has      [NumMetrics]bool
	buckets  [NumMetrics]*Buckets
	evidence timeline.EvidenceLevel
}

// NewState returns a state that has seen nothing.
func NewState(cfg StateConfig) *State {
	return &State{
		cfg: cfg, limiter: newSpanLimiter(cfg.Spans), byGPU: map[gpuKey]*group{}, owned: map[string]timeline.Instant{},
		targets: map[string]*group{}, self: map[string]Series{}, grown: map[string]grown{},
	}
}

// GPUsOf returns the UUIDs of the GPUs that a target's cells were made of.
func (s *State) GPUsOf(target string) []string {
	var uuids []string
	for k := range s.byGPU {
		if k.target == targetName(target) {
			uuids = append(uuids, k.uuid)
		}
	}
	slices.Sort(uuids)
	return uuids
}

// SetTargets hands over what is known of the targets.
func (s *State) SetTargets(targets []timeline.Target) { s.cfg.Targets = targets }

// Anchor returns the newest anchor, which converts the instants of series to wall-clock time.
func (s *State) Anchor() timeline.Anchor { return s.anchor }

// Consume takes a whole batch in.
func (s *State) Consume(b *Batch) error {
	s.Begin(b)
	for i := range b.Cells {
		s.AddCell(&b.Cells[i])
	}
	for i := range b.Phases {
		s.AddPhase(&b.Phases[i])
	}
	return s.Finish(b)
}

// Begin takes in what a batch's cells and phases refer to.
func (s *State) Begin(b *Batch) {
	if b.Anchor != (timeline.Anchor{}) {
		s.anchor = b.Anchor
		if s.began.IsZero() {
			s.began = b.Anchor.Time(b.Anchor.Mono)
		}
	}
	if b.GPUs != nil {
		s.gpus = b.GPUs
	}
	s.unread = s.unread[:0]
	for _, i := range b.Unread {
		if i >= 0 && i < len(s.gpus) {
			s.unread = append(s.unread, s.gpus[i].UUID)
		}
	}
	if b.Capabilities != nil && catalogue[GPUCapability].Profile <= s.cfg.Profile {
		s.setCapabilities(b.Capabilities)
	}
}

// setCapabilities replaces what is known of the states of calls: each call of a GPU has one state at a time.
func (s *State) setCapabilities(list []timeline.Capability) {
	s.caps = make(map[string]Series, len(list))
	for _, c := range list {
		if c.GPU < 0 || c.GPU >= len(s.gpus) || s.gpus[c.GPU].UUID == "" {
			continue
		}
		uuid := s.gpus[c.GPU].UUID
		s.caps[uuid+"\x00"+c.Call] = Series{ID: GPUCapability, Labels: []string{uuid, c.Call, c.State.String()}, Value: 1}
	}
}

// Finish takes in a batch's events and the agent's own readings. The error names readings that are not in the
// catalogue.
func (s *State) Finish(b *Batch) error {
	for _, e := range b.Events {
		s.addEvent(e)
	}
	var errs []error
	for _, r := range b.Self {
		errs = append(errs, s.addSelf(r))
	}
	return errors.Join(errs...)
}

// addEvent takes note of counters that stop.
func (s *State) addEvent(e timeline.Event) {
	if e.Kind != timeline.EventSamplerLost && e.Kind != timeline.EventGPULost {
		return
	}
	for k, g := range s.byGPU {
		concerned := e.GPU == timeline.NoGPU || e.GPU >= 0 && e.GPU < len(s.gpus) && s.gpus[e.GPU].UUID == k.uuid
		if concerned && e.At > g.covered {
			g.lost = e.At
		}
	}
}

func (s *State) addSelf(r Self) error {
	id, ok := ByName(r.Name)
	if !ok || catalogue[id].Scope != OfAgent || len(r.Labels) != len(catalogue[id].Labels) {
		return fmt.Errorf("take reading %s with %d labels: not in the catalogue", r.Name, len(r.Labels))
	}
	if catalogue[id].Profile > s.cfg.Profile {
		return nil
	}
	key, v := r.Name+"\x00"+strings.Join(r.Labels, "\x00"), r.Value
	if catalogue[id].Kind == Counter {
		g := s.grown[key]
		v = g.to(v)
		s.grown[key] = g
	}
	s.self[key] = Series{ID: id, Labels: r.Labels, Since: s.began, Value: v}
	return nil
}

// grown lets what is counted anew from time to time, such as by each helper, only grow.
type grown struct{ last, before float64 }

func (g *grown) to(v float64) float64 {
	if v < g.last {
		g.before += g.last
	}
	g.last = v
	return g.before + v
}

// newGroup returns a group in which every closed counter of the scope stands at zero.
func (s *State) newGroup(scope Scope, since timeline.Instant, labels ...string) *group {
	g := &group{labels: labels, since: s.anchor.Time(since)}
	for id := range NumMetrics {
		m := &catalogue[id]
		if m.Scope != scope || m.Profile > s.cfg.Profile {
			continue
		}
		switch m.Kind {
		case Histogram:
			g.buckets[id] = NewBuckets()
		case Counter, Gauge:
			g.values[id] = make([]float64, max(1, len(m.Values)))
			g.has[id] = len(m.Values) > 0
		case Info:
		}
	}
	return g
}

// add lets a counter grow.
func (g *group) add(id ID, at int, v float64) {
	if at < len(g.values[id]) && v >= 0 {
		g.values[id][at] += v
		g.has[id] = true
	}
}

// addMeasure lets a counter grow by what may be absent.
func (g *group) addMeasure(id ID, at int, m timeline.Measure) {
	if m.OK() {
		g.add(id, at, m.Value)
	}
}

// set puts a gauge to what it reads, or takes it away.
func (g *group) set(id ID, v float64, ok bool) {
	if len(g.values[id]) > 0 {
		g.values[id][0], g.has[id] = v, ok
	}
}

func (g *group) setMeasure(id ID, m timeline.Measure) { g.set(id, m.Value, m.OK()) }

// Append appends all series, in the order of the catalogue and then of their labels.
func (s *State) Append(dst []Series) []Series {
	from := len(dst)
	for _, k := range slices.SortedFunc(maps.Keys(s.byGPU), func(a, b gpuKey) int {
		return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.target, b.target))
	}) {
		dst = s.AppendGPU(dst, k.uuid, k.target)
	}
	for _, name := range slices.Sorted(maps.Keys(s.targets)) {
		dst = s.AppendTarget(dst, name)
	}
	dst = s.AppendAgent(dst)
	slices.SortStableFunc(dst[from:], func(a, b Series) int { return cmp.Compare(a.ID, b.ID) })
	return dst
}

// AppendGPU appends the series of one GPU under one target. There are none while nothing can be read of it.
func (s *State) AppendGPU(dst []Series, uuid, target string) []Series {
	g := s.byGPU[gpuKey{uuid, targetName(target)}]
	if g == nil || g.lost != 0 || s.stale(g) || slices.Contains(s.unread, uuid) {
		return dst
	}
	dst = s.appendGroup(dst, g, OfGPU)
	i := slices.IndexFunc(s.gpus, func(d timeline.GPU) bool { return d.UUID == uuid })
	if i < 0 || catalogue[GPUInfo].Profile > s.cfg.Profile {
		return dst
	}
	d := &s.gpus[i]
	labels := append(slices.Clone(g.labels), d.Name, d.Driver, d.PCIBusID, strconv.FormatBool(d.Simulated))
	return append(dst, Series{ID: GPUInfo, Labels: labels, Value: 1})
}

// AppendTarget appends the series of one target. Once no cell of it comes any more, only what counts remains.
func (s *State) AppendTarget(dst []Series, name string) []Series {
	g := s.targets[targetName(name)]
	if g == nil {
		return dst
	}
	dst = s.appendGroup(dst, g, OfTarget)
	if catalogue[TargetInfo].Profile > s.cfg.Profile || s.stale(g) {
		return dst
	}
	var t timeline.Target
	if i := slices.IndexFunc(s.cfg.Targets, func(t timeline.Target) bool { return t.Name == name }); i >= 0 {
		t = s.cfg.Targets[i]
	}
	labels := append(slices.Clone(g.labels), t.Model, t.DType, g.evidence.String(), strconv.FormatBool(s.simulated(targetName(name))))
	return append(dst, Series{ID: TargetInfo, Labels: labels, Value: 1})
}

// simulated reports whether a simulation stands behind a target: behind one of its GPUs, or behind any where none is
// known to be its own.
func (s *State) simulated(target string) bool {
	own := s.GPUsOf(target)
	return slices.ContainsFunc(s.gpus, func(d timeline.GPU) bool {
		return d.Simulated && (len(own) == 0 || slices.Contains(own, d.UUID))
	})
}

// AppendAgent appends the agent's own series.
func (s *State) AppendAgent(dst []Series) []Series {
	for _, k := range slices.Sorted(maps.Keys(s.self)) {
		dst = append(dst, s.self[k])
	}
	for _, k := range slices.Sorted(maps.Keys(s.caps)) {
		dst = append(dst, s.caps[k])
	}
	_, told := s.self[catalogue[SelfBuildInfo].Name+"\x00"+s.cfg.Version]
	if s.cfg.Version != "" && !told && catalogue[SelfBuildInfo].Profile <= s.cfg.Profile {
		dst = append(dst, Series{ID: SelfBuildInfo, Labels: []string{s.cfg.Version}, Value: 1})
	}
	return dst
}

func (s *State) appendGroup(dst []Series, g *group, scope Scope) []Series {
	for id := range NumMetrics {
		m := &catalogue[id]
		if m.Scope != scope {
			continue
		}
		if b := g.buckets[id]; b != nil {
			dst = append(dst, Series{ID: id, Labels: g.labels, Since: g.since, Buckets: b})
		}
		if !g.has[id] || m.Kind == Gauge && s.stale(g) {
			continue
		}
		for i, v := range g.values[id] {
			labels := g.labels
			if len(m.Values) > 0 {
				labels = append(slices.Clone(g.labels), m.Values[i])
			}
			dst = append(dst, Series{ID: id, Labels: labels, Since: g.since, Value: m.shown(v)})
		}
	}
	return dst
}

// stale reports whether cells of g stopped coming while others went on.
func (s *State) stale(g *group) bool { return s.newest.Sub(g.at) > staleAfter }

// targetName returns how series spell a target.
func targetName(name string) string { return cmp.Or(name, "unknown") }

// target returns the group of a target, made if need be.
func (s *State) target(name string, since timeline.Instant) *group {
	name = targetName(name)
	g := s.targets[name]
	if g == nil {
		g = s.newGroup(OfTarget, since, name)
		s.targets[name] = g
	}
	return g
}

// AddPhase takes in one finished request and says what becomes of its span.
func (s *State) AddPhase(p *correlate.Phase) Decision {
	r := &p.Request
	d := s.limiter.decide(p)
	g := s.target(r.Target, r.Over().Start)
	g.add(Requests, int(min(r.Status, timeline.StatusUnfinished)), 1)
	if r.Status != timeline.StatusOK || p.Warmup {
		return d
	}
	var e *Exemplar
	// Without spans of our own, a request that came with a trace still has one to point to: its caller's.
	if d.Export || !s.cfg.Spans.Enabled && r.Sampled && r.ParentID != "" {
		e = &Exemplar{At: r.Over().End, TraceID: r.TraceID, SpanID: r.SpanID}
		if !d.Export {
			e.SpanID = r.ParentID
		}
	}
	if p.Latency.TTFT.OK() {
		g.observe(TTFT, e, p.Latency.TTFT.Value)
	}
	if p.Latency.TPOT.OK() {
		g.observe(TPOT, e, p.Latency.TPOT.Value)
	}
	g.observe(ITL, e, p.Latency.ITL...)
	g.observe(ICL, e, p.Latency.ICL...)
	for _, st := range p.Latency.Stalls {
		g.add(StallTime, 0, st.Seconds)
	}
	return d
}

// observe counts values, and lets the largest be the exemplar.
func (g *group) observe(id ID, e *Exemplar, values ...float64) {
	b := g.buckets[id]
	if b == nil || len(values) == 0 {
		return
	}
	for _, v := range values {
		b.Observe(v)
	}
	if e != nil {
		largest := *e
		largest.Value = slices.Max(values)
		b.Attach(largest)
	}
}
