package compare

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Config says what one side of a comparison is.
type Config struct {
	Name      string
	GPUs      []timeline.GPU // that positions in cells refer to
	Targets   []timeline.Target
	Target    string           // of one target alone; empty where there is but one
	Anchor    timeline.Anchor  // ties instants to the wall clock; the zero anchor leaves wall-clock times out
	Since     timeline.Instant // zero: from the beginning
	Until     timeline.Instant // zero: to the end
	Warmup    time.Duration    // left out from the first thing seen on, beside the first requests after a start
	Simulated bool
}

// Recording gathers what a comparison needs of one side. It is not safe for concurrent use.
type Recording struct {
	cfg      Config
	cells    thinned[cell]
	requests thinned[request]
	warm     []timeline.Span // of warm-up requests
	span     timeline.Span
	level    timeline.EvidenceLevel
	matched  correlate.Matched
	targets  []string
	gpu      string // UUID of the first of the target's
	model    string // by the requests, where no target tells
	faults   []string

	queries, hits   float64 // prefix cache, by the engine
	prompts, cached float64 // the same, by the requests
	scraped         map[string]timeline.EngineSample
	starts          int
}

// New returns a recording that has seen nothing.
func New(c Config) *Recording {
	return &Recording{cfg: c, scraped: map[string]timeline.EngineSample{}}
}

// thinned keeps at most so many things: of more, every second, every fourth and so on, evenly over time.
type thinned[T any] struct {
	kept   []T
	every  int
	passed int
}

const mostKept = 1 << 17

func (t *thinned[T]) add(v T) {
	t.every = max(1, t.every)
	t.passed++
	if (t.passed-1)%t.every != 0 {
		return
	}
	t.kept = append(t.kept, v)
	if len(t.kept) < mostKept {
		return
	}
	n := 0
	for i := 0; i < len(t.kept); i += 2 {
		t.kept[n] = t.kept[i]
		n++
	}
	t.kept, t.every = t.kept[:n], 2*t.every
}

// cell is one cell of decode. What is not known is NaN.
type cell struct {
	at      timeline.Span
	seconds float64
	x       [axes]float64
	engineT float64 // s per output token of a request, by the engine
	probeT  float64 // the same, by the probe
	littleT float64 // the same, as batch over output rate, of engines that tell no latency
	bytes   float64 // DRAM traffic of the group per step
	rate    float64 // output tokens per second
	told    bool    // the engine counts its steps
	byProbe bool    // the batch is that of the requests seen
	yield   float64 // output tokens a step and request
	stepS   float64 // from one step to the next
	prompts float64 // prompt tokens per second

	placed    bool
	mixed     bool // prompt work shared the steps, or may have
	shares    timeline.Shares
	roof      timeline.Interval
	d         float64 // DRAM bandwidth over the achievable
	throttled float64 // of the time
	bin       int
	block     int
}

// What a step's time depends on.
const (
	axisBatch = iota // requests
	axisKV           // tokens of context over the whole batch
	axisPrompt
	axes
)

// request is one request with a TPOT.
type request struct {
	at     timeline.Instant // the middle of its decode
	tpot   float64
	long   float64 // s, from sent to done
	output float64
	prompt float64 // NaN where it is not told
	trace  string
}

// Overlap returns how much of the time of r is that of o too, where both are of one recording.
func (r *Recording) Overlap(o *Recording) time.Duration { return r.span.Overlap(o.span) }

// AddCell takes one cell, if its middle lies in the span that is compared.
func (r *Recording) AddCell(c *correlate.Cell) {
	if !r.wants(c.Target, c.Span.Mid()) {
		return
	}
	if !slices.Contains(r.targets, c.Target) {
		r.targets = append(r.targets, c.Target)
	}
	r.span = r.span.Union(c.Data)
	r.level = max(r.level, c.Level)
	if c.Matched.Intervals > 0 {
		r.matched.Add(c.Matched)
	}
	if r.gpu == "" && len(c.PerGPU) > 0 {
		r.gpu = c.PerGPU[0].UUID
	}
	if k, ok := cellOf(c); ok {
		r.cells.add(k)
	}
}

// wholePart of a cell must have been read, and decoded in, for it to be one step after another.
const wholePart = 0.9

func cellOf(c *correlate.Cell) (cell, bool) {
	sec := c.Span.Duration().Seconds()
	if !c.Decode || c.Data.Duration().Seconds() < wholePart*sec || sec <= 0 {
		return cell{}, false
	}
	nan := math.NaN()
	k := cell{at: c.Span, seconds: sec, engineT: positive(c.EngineTPOT), probeT: positive(c.WindowTPOT), littleT: nan, bytes: nan, rate: nan, yield: nan, stepS: nan, prompts: nan}
	batch := c.Batch
	if !batch.OK() && c.Decoding > 0 {
		batch, k.byProbe = timeline.Known(c.Decoding), true
	}
	if !batch.OK() || batch.Value <= 0 {
		return cell{}, false
	}
	tokens := c.OutputTokens
	if !tokens.OK() && k.byProbe {
		tokens = timeline.Known(c.Tokens)
	}
	steps := 0.0
	if tokens.OK() && tokens.Value > 0 {
		k.rate = tokens.Value / sec
		k.littleT = batch.Value / k.rate
		steps = tokens.Value / max(1, batch.Value)
	}
	if c.Steps.OK() && c.Steps.Value > 0 {
		steps, k.told = c.Steps.Value, true
	}
	k.x = [axes]float64{batch.Value, value(c.ContextSum), nan}
	if steps > 0 {
		k.yield = k.rate * sec / steps / batch.Value
		k.stepS = sec / steps
		if c.PromptTokens.OK() {
			k.prompts = c.PromptTokens.Value / sec
		}
		if c.DRAMBytes.OK() && !k.byProbe {
			k.bytes = c.DRAMBytes.Value / steps
		}
	}
	v := &c.Verdict
	k.placed, k.mixed, k.shares, k.roof, k.d = v.Placed(), v.Mixed, v.Shares, v.Roof, v.D
	k.throttled = c.ThrottledS / sec / float64(max(1, len(c.PerGPU)))
	return k, true
}

// positive is value of what no ratio can be taken of unless it is above zero.
func positive(m timeline.Measure) float64 {
	if v := value(m); v > 0 && !math.IsInf(v, 0) {
		return v
	}
	return math.NaN()
}

func value(m timeline.Measure) float64 {
	if m.OK() {
		return m.Value
	}
	return math.NaN()
}

// AddPhase takes one finished request, if the middle of its decode lies in the span that is compared.
func (r *Recording) AddPhase(p *correlate.Phase) {
	q := &p.Request
	at := q.Decode()
	if at.Empty() || at.Start.IsZero() || !r.wants(q.Target, at.Mid()) {
		return
	}
	if r.model == "" {
		r.model = q.Model
	}
	if p.Warmup {
		if n := len(r.warm); n < mostWarm {
			r.warm = append(r.warm, q.Over())
		}
		return
	}
	if q.PromptKnown && q.CachedTokens >= 0 {
		r.prompts, r.cached = r.prompts+float64(q.PromptTokens), r.cached+float64(q.CachedTokens)
	}
	if q.Status != timeline.StatusOK || !p.Latency.TPOT.OK() {
		return
	}
	prompt := math.NaN()
	if q.PromptKnown {
		prompt = float64(q.PromptTokens)
	}
	r.requests.add(request{
		at: at.Mid(), tpot: p.Latency.TPOT.Value, long: q.Over().Duration().Seconds(), output: float64(p.Latency.N), prompt: prompt, trace: q.TraceID,
	})
}

// mostWarm bounds the warm-up requests that are kept: few come with each start of an engine.
const mostWarm = 4096

// AddEngine takes one scrape, for what cells do not tell: hits of the prefix cache, and starts of the engine.
func (r *Recording) AddEngine(s *timeline.EngineSample) {
	if !r.wants(s.Target, s.Over.Mid()) {
		return
	}
	last, ok := r.scraped[s.Target]
	r.scraped[s.Target] = *s
	if start, told := s.Get(timeline.StartTime); told {
		if before, had := last.Get(timeline.StartTime); !ok || had && before != start {
			r.starts++
		}
	}
	q0, ok0 := last.Get(timeline.PrefixQueries)
	q1, ok1 := s.Get(timeline.PrefixQueries)
	h0, ok2 := last.Get(timeline.PrefixHits)
	h1, ok3 := s.Get(timeline.PrefixHits)
	if ok && ok0 && ok1 && ok2 && ok3 && q1 >= q0 && h1 >= h0 {
		r.queries, r.hits = r.queries+q1-q0, r.hits+h1-h0
	}
}

// AddFault takes what is wrong with a file of the recording.
func (r *Recording) AddFault(text string) { r.faults = append(r.faults, text) }

func (r *Recording) wants(target string, at timeline.Instant) bool {
	c := &r.cfg
	return (c.Target == "" || target == c.Target) && (c.Since == 0 || at >= c.Since) && (c.Until == 0 || at < c.Until)
}
