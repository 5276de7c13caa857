package summary

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Config says what a report is about.
type Config struct {
	Anchor timeline.Anchor  // ties instants to the wall clock; the zero anchor leaves wall-clock times out
	Since  timeline.Instant // zero: from the beginning
	Until  timeline.Instant // zero: to the end
	Target string           // of one target alone; empty for all
	Warmup time.Duration    // from the first thing seen: left out of percentiles and of the verdict
	Exact  int              // values kept as they are for each percentile, sketches beyond; 100,000 if zero

	Targets    []timeline.Target      // what is known of them, for the byte model
	Eta        map[string]verdict.Eta // calibrated on the node, by UUID
	Objectives []slo.Objective        // to judge
	Goodput    []slo.Bound            // that a request must keep to be good; none: not asked for
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
	all    timeline.Span    // of all that came in, also outside of what the report is about
	named  map[string]bool  // targets that came in, likewise
	faults []string

	tallies map[string]*outlook.Tally // by target
}

// New returns a builder that has seen nothing.
func New(c Config) *Builder {
	if c.Exact <= 0 {
		c.Exact = stats.DefaultExact
	}
	return &Builder{cfg: c, pool: newPool(&c), cells: newCells(), events: map[timeline.EventKind]int{}, named: map[string]bool{}, start: c.Since, tallies: map[string]*outlook.Tally{}}
}

// SetGPUs tells which GPUs the positions in cells refer to.
func (b *Builder) SetGPUs(gpus []timeline.GPU) { b.gpus = slices.Clone(gpus) }

// AddCell takes one cell, if its middle lies in the span that the report is about.
func (b *Builder) AddCell(c *correlate.Cell) {
	over := dataOf(c)
	b.named[c.Target], b.all = true, b.all.Union(over)
	b.match(c)
	if !b.wants(c.Target, c.Span.Mid()) {
		return
	}
	b.saw(over)
	warm := b.warm(over.Start)
	b.cells.add(c, warm)
	if c.Decode && !warm {
		b.tally(c.Target).Add(c)
	}
}

// tally returns where a target's steps add up.
func (b *Builder) tally(target string) *outlook.Tally {
	t := b.tallies[target]
	if t == nil {
		f := outlook.Facts{GPUs: b.gpus, Eta: b.cfg.Eta}
		if at := slices.IndexFunc(b.cfg.Targets, func(t timeline.Target) bool { return t.Name == target }); at >= 0 {
			f.Target = b.cfg.Targets[at]
		}
		t = outlook.New(f)
		b.tallies[target] = t
	}
	return t
}

// match takes what probe and engine counted between the scrapes that end in the cell.
func (b *Builder) match(c *correlate.Cell) {
	m := c.Matched
	since, until := b.cfg.Since, b.cfg.Until
	if m.Intervals == 0 || b.cfg.Target != "" && c.Target != b.cfg.Target {
		return
	}
	b.cells.counts.add(&counted{
		target: c.Target, m: m,
		inside:   (since == 0 || m.Over.Start >= since) && (until == 0 || m.Over.End <= until),
		touching: (since == 0 || m.Over.End > since) && (until == 0 || m.Over.Start < until),
	})
}

// AddPhase takes one finished request, if the middle of its decode lies in the span that the report is about; a
// request without decode counts by its own middle. The builder may keep what p refers to.
func (b *Builder) AddPhase(p *correlate.Phase) {
	over := p.Request.Over()
	at := p.Request.Decode()
	if at.Empty() || at.Start.IsZero() {
		at = over
	}
	b.named[p.Request.Target] = true
	b.cells.counts.end(&p.Request)
	if !over.Start.IsZero() {
		b.all = b.all.Union(over)
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
	if !b.wants(b.cfg.Target, e.At) {
		return
	}
	kind := e.Kind
	if kind == timeline.EventSamplerLost && strings.HasPrefix(e.Detail, timeline.NeverRead) {
		kind = neverRead
	}
	b.events[kind]++
	if t := b.tallies[e.Target]; t != nil && kind == timeline.EventEngineRestart {
		t.Restarted()
	}
}

// neverRead stands among the kinds for the loss of a reader that never had anything to read.
const neverRead timeline.EventKind = "never_read"

// AddFault takes what is wrong with a file of the recording: what it lost is in no figure.
func (b *Builder) AddFault(text string) { b.faults = append(b.faults, text) }

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
		p = newPool(&b.cfg)
		for i := range b.first {
			p.add(&b.first[i], b.warm(b.first[i].Request.Sent)) // what was asked for is done
		}
		if rule = "none left out: too few requests"; b.cfg.Warmup > 0 {
			rule = fmt.Sprintf("what was sent in the first %v alone: too few requests", b.cfg.Warmup)
		}
	}
	r := &Report{
		Schema: Schema, Span: b.wall(), Targets: b.targets(), Evidence: b.evidence(p), Faults: slices.Clone(b.faults),
		Requests: p.counts, GPUs: b.cells.gpuList(b.gpus), Groups: p.groupList(),
	}
	r.Requests.WarmupRule = rule
	r.Simulated = slices.ContainsFunc(b.gpus, func(g timeline.GPU) bool { return g.Simulated })
	inside, touching := b.cells.counts.all()
	r.TrafficCoverage = b.cells.coverage(p, &inside, &touching)
	p.fill(r)
	r.EngineTPOT = b.cells.engineTPOT()
	r.Tokens = b.cells.tokens(p, b.span)
	r.Decode = b.cells.decode(r.TrafficCoverage, b.span.Start, b.eta())
	b.outlook(r, p)
	r.Decode.ClockAtMost = b.clockAtMost(r)
	p.judge(r, &b.cfg, b.measured())
	r.Steady = b.cells.steady(b.span.Start)
	if r.Empty = b.empty(r, p); r.Empty != "" && r.Decode.DecodeS <= 0 {
		r.Decode = noDecode(r.Empty)
	}
	r.Warnings = b.warnings(r, p, inside.tooMany())
	return r
}

// eta is what is achievable of the peaks of the only target's GPUs; zero where that is not known.
func (b *Builder) eta() verdict.Eta {
	if len(b.tallies) != 1 {
		return verdict.Eta{}
	}
	for _, t := range b.tallies {
		return t.Eta()
	}
	return verdict.Eta{}
}

// targets returns the names of the targets, without that of one that has none.
func (b *Builder) targets() []string {
	return slices.DeleteFunc(b.cells.names(), func(name string) bool { return name == "" })
}

// rule states what is left out as warm-up.
func (b *Builder) rule() string {
	rule := "the first after an engine's start"
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

// empty says why the report has nothing to say, or nothing where it has.
func (b *Builder) empty(r *Report, p *pool) string {
	d := &b.cells.d
	c := &p.counts
	switch {
	case len(b.named) == 0:
		return "the recording holds no readings"
	case b.cfg.Target != "" && !b.named[b.cfg.Target]:
		return b.noTarget()
	case b.cells.count == 0 && c.Total == 0:
		return "nothing lies in the span that was asked for: " + b.extent()
	case b.cfg.Warmup > 0 && d.seconds <= 0 && p.usable() == 0 && c.Warmup == c.Total && (c.Total > 0 || b.cells.warmed > 0):
		return fmt.Sprintf("the warm-up of %v left nothing of %s", b.cfg.Warmup, length(b.span.Duration()))
	case c.Total > 0:
		return ""
	case d.seconds <= 0:
		return "nothing decoded: " + b.cells.readings()
	case d.gpuWindows == 0 && d.windows == 0 && !r.EngineTPOT.OK():
		return fmt.Sprintf("of %s of decode neither counters nor requests were read", length(seconds(d.seconds)))
	}
	return ""
}

// noTarget names the targets that there are.
func (b *Builder) noTarget() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(b.named)) {
		if name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fmt.Sprintf("no target %s: the recording names none", b.cfg.Target)
	}
	return fmt.Sprintf("no target %s: there is %s", b.cfg.Target, strings.Join(names, ", "))
}

// extent says from when to when the recording runs.
func (b *Builder) extent() string {
	long := length(b.all.Duration())
	if b.cfg.Anchor == (timeline.Anchor{}) {
		return "the recording is " + long + " long"
	}
	from, to := b.cfg.Anchor.Time(b.all.Start), b.cfg.Anchor.Time(b.all.End)
	const layout = "2006-01-02 15:04:05"
	return fmt.Sprintf("the recording runs from %s to %s UTC, %s", from.Format(layout), to.Format(layout), long)
}

// readings says for how long what was read.
func (cs *cells) readings() string {
	var counted, scraped float64
	for _, t := range cs.byTarget {
		counted, scraped = max(counted, t.counted), max(scraped, t.scraped)
	}
	out := "no counters were read"
	if counted > 0 {
		out = "counters were read for " + length(seconds(counted))
	}
	if scraped <= 0 {
		return out + ", and no engine told of work"
	}
	return out + ", and the engine told of no work for " + length(seconds(scraped))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// length writes how long something took.
func length(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}
