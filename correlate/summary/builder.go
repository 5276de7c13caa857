package summary

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Config says what a report is about.
type Config struct {
	Anchor timeline.Anchor  // ties instants to the wall clock; the zero anchor leaves wall-clock times out
	Since  timeline.Instant // zero: from the beginning
	Until  timeline.Instant // zero: to the end
	Target string           // of one target alone; empty for all
	Warmup time.Duration    // from the first thing seen: left out of percentiles and of the verdict
	Exact  int              // values kept as they are for each percentile, sketches beyond; 100,000 if zero
}

// Validate returns all faults of c.
func (c Config) Validate() error {
	var errs []error
	if c.Since != 0 && c.Until != 0 && c.Until <= c.Since {
		errs = append(errs, errors.New("check span: it ends before it starts"))
	}
	if c.Warmup < 0 {
		errs = append(errs, fmt.Errorf("check warm-up: %v is negative", c.Warmup))
	}
	if c.Exact < 0 {
		errs = append(errs, fmt.Errorf("check exact values: %d is negative", c.Exact))
	}
	return errors.Join(errs...)
}

// few is how many requests a report holds back, so that one with hardly any can still use those of the warm-up.
const few = 64

// Builder gathers cells, phases and events, and makes reports of them. Its memory does not grow with the number of
// requests; per target it keeps a bounded sample of cell verdicts. It is not safe for concurrent use.
type Builder struct {
	cfg    Config
	gpus   []timeline.GPU
	pool   *pool
	first  []correlate.Phase // all phases, while they are few
	cells  *cells
	events map[timeline.EventKind]int
	span   timeline.Span    // of all that was taken in
	start  timeline.Instant // of the warm-up
}

// New returns a builder that has seen nothing.
func New(c Config) *Builder {
	if c.Exact <= 0 {
		c.Exact = stats.DefaultExact
	}
	return &Builder{cfg: c, pool: newPool(c.Exact), cells: newCells(), events: map[timeline.EventKind]int{}, start: c.Since}
}

// SetGPUs tells which GPUs the positions in cells refer to.
func (b *Builder) SetGPUs(gpus []timeline.GPU) { b.gpus = slices.Clone(gpus) }

// AddCell takes one cell, if its middle lies in the span that the report is about.
func (b *Builder) AddCell(c *correlate.Cell) {
	if !b.wants(c.Target, c.Span.Mid()) {
		return
	}
	b.saw(c.Span)
	b.cells.add(c, b.warm(c.Span.Start))
}

// AddPhase takes one finished request, if the middle of its decode lies in the span that the report is about; a
// request without decode counts by its own middle. The builder may keep what p refers to.
func (b *Builder) AddPhase(p *correlate.Phase) {
	over := p.Request.Over()
	at := p.Request.Decode()
	if at.Empty() || at.Start.IsZero() {
		at = over
	}
	if !b.wants(p.Request.Target, at.Mid()) {
		return
	}
	if !over.Start.IsZero() {
		b.saw(over)
	}
	warm := p.Warmup || b.warm(p.Request.Sent)
	if b.pool.counts.Total < few {
		b.first = append(b.first, *p)
	} else {
		b.first = nil
	}
	b.pool.add(p, warm)
}

// AddEvent takes one event.
func (b *Builder) AddEvent(e *timeline.Event) {
	if b.wants(b.cfg.Target, e.At) {
		b.events[e.Kind]++
	}
}

// wants reports whether something of that target at that instant belongs to the report.
func (b *Builder) wants(target string, at timeline.Instant) bool {
	switch {
	case b.cfg.Target != "" && target != b.cfg.Target:
		return false
	case b.cfg.Since != 0 && at < b.cfg.Since:
		return false
	}
	return b.cfg.Until == 0 || at < b.cfg.Until
}

// saw widens the span, within what the report is about.
func (b *Builder) saw(s timeline.Span) {
	if b.cfg.Since != 0 {
		s.Start = max(s.Start, b.cfg.Since)
	}
	if b.cfg.Until != 0 {
		s.End = min(s.End, b.cfg.Until)
	}
	b.span = b.span.Union(s)
	if b.start == 0 {
		b.start = s.Start
	}
}

// warm reports whether t falls in the warm-up.
func (b *Builder) warm(t timeline.Instant) bool {
	return b.cfg.Warmup > 0 && b.start != 0 && t < b.start.Add(b.cfg.Warmup)
}

// Report returns the report of all that was taken in so far. The builder can go on.
func (b *Builder) Report() *Report {
	p, rule := b.pool, b.rule()
	if len(b.first) > 0 && p.usable() < p.counts.Warmup {
		// A recording of a handful of requests is nearly all warm-up; better those than nothing, and said.
		p = newPool(b.cfg.Exact)
		for i := range b.first {
			p.add(&b.first[i], false)
		}
		rule = "none left out: too few requests"
	}
	r := &Report{
		Schema: Schema, Span: b.wall(), Targets: b.cells.names(), Evidence: b.evidence(p),
		Requests: p.counts, GPUs: b.cells.gpuList(b.gpus), Groups: p.groupList(),
	}
	r.Requests.WarmupRule = rule
	r.Simulated = slices.ContainsFunc(b.gpus, func(g timeline.GPU) bool { return g.Simulated })
	r.TrafficCoverage = b.cells.coverage(p)
	p.fill(r)
	r.EngineTPOT = b.cells.engineTPOT()
	r.Tokens = b.cells.tokens(p, b.span)
	r.Decode = b.cells.decode(r.TrafficCoverage, b.span.Start)
	r.Warnings = b.warnings(r, p)
	return r
}

// rule states what is left out as warm-up.
func (b *Builder) rule() string {
	rule := "the first requests after an engine's start, as marked by the correlation"
	if b.cfg.Warmup > 0 {
		rule += fmt.Sprintf(", and all that was sent in the first %v", b.cfg.Warmup)
	}
	return rule
}

// wall returns the span on the wall clock.
func (b *Builder) wall() Span {
	s := Span{Seconds: b.span.Duration().Seconds()}
	if b.cfg.Anchor != (timeline.Anchor{}) && !b.span.Empty() {
		s.Start, s.End = b.cfg.Anchor.Time(b.span.Start), b.cfg.Anchor.Time(b.span.End)
	}
	return s
}

// evidence is the highest level that any cell or request stands on.
func (b *Builder) evidence(p *pool) timeline.EvidenceLevel { return max(b.cells.level, p.level) }
