package compare

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/summary"
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
	k := cell{at: c.Span, seconds: sec, engineT: value(c.EngineTPOT), probeT: value(c.WindowTPOT), littleT: nan, bytes: nan, rate: nan, yield: nan, stepS: nan, prompts: nan}
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

// arm is one side, ready to be compared.
type arm struct {
	info     Arm
	cells    []cell
	requests []request
	model    *roofline.Model
	spec     hardware.Model // with known
	known    bool
	noModel  string // why there is no byte model
	targets  []string
	starts   int
	thinned  bool
}

// arm leaves the warm-up out and looks up what the names mean.
func (r *Recording) arm() *arm {
	x := &arm{targets: r.targets, starts: r.starts, thinned: r.cells.every > 1 || r.requests.every > 1}
	from := r.span.Start.Add(r.cfg.Warmup)
	for i := range r.cells.kept {
		c := r.cells.kept[i]
		warm := slices.ContainsFunc(r.warm, func(w timeline.Span) bool { return w.Overlap(c.at) > 0 })
		if !warm && c.at.Start >= from {
			x.cells = append(x.cells, c)
		}
	}
	if len(x.cells) == 0 && r.cfg.Warmup == 0 { // nearly all of a short recording is warm-up
		x.cells = slices.Clone(r.cells.kept)
	}
	for i := range r.requests.kept {
		if q := r.requests.kept[i]; q.at >= from {
			x.requests = append(x.requests, q)
		}
	}
	if told := slices.DeleteFunc(slices.Clone(x.cells), func(c cell) bool { return c.byProbe }); 2*len(told) >= len(x.cells) {
		x.cells = told // the others lie before the first scrapes, or between two lives of the engine
	}
	slices.SortStableFunc(x.cells, func(a, b cell) int { return int(min(1, max(-1, a.at.Start-b.at.Start))) })
	promptWork(x.cells)
	r.describe(x)
	return x
}

// beside is how near in time cells are neighbours.
const beside = 5 * time.Second

// promptWork places the cells on the axis of prompt work: their prompt tokens per second, times the time that a step takes
// in the cells beside them. With a cell's own step, what disturbs its time would disturb its place alike, and pass for the
// work's doing.
func promptWork(cells []cell) {
	for i := range cells {
		c := &cells[i]
		step, n := 0.0, 0.0
		for _, k := range []int{i - 1, i + 1} {
			if k >= 0 && k < len(cells) && !math.IsNaN(cells[k].stepS) && max(c.at.Start.Sub(cells[k].at.End), cells[k].at.Start.Sub(c.at.End)) < beside {
				step, n = step+cells[k].stepS, n+1
			}
		}
		if n == 0 {
			step, n = c.stepS, 1
		}
		c.x[axisPrompt] = c.prompts * step / n
	}
}

// describe fills in what the side is.
func (r *Recording) describe(x *arm) {
	a := &x.info
	*a = Arm{
		Name: r.cfg.Name, Evidence: r.level, Simulated: r.cfg.Simulated, Requests: len(x.requests), Faults: slices.Clone(r.faults),
		Span: summary.Span{Seconds: r.span.Duration().Seconds()},
	}
	if r.cfg.Anchor != (timeline.Anchor{}) && !r.span.Empty() {
		a.Span.Start, a.Span.End = r.cfg.Anchor.Time(r.span.Start), r.cfg.Anchor.Time(r.span.End)
	}
	a.Coverage = r.matched.Coverage()
	if r.level == timeline.L0 {
		a.Coverage = timeline.Absent("no probe: the engine's own counts cover all traffic")
	}
	a.Hits = timeline.Absent("neither the engine nor the requests tell it")
	switch {
	case r.queries > 0:
		a.Hits = timeline.Known(r.hits / r.queries)
	case r.cached > 0 && r.prompts > 0:
		a.Hits = timeline.Known(r.cached / r.prompts)
	}
	r.means(x)
	r.identify(x)
}

// means fills in the unmatched means.
func (r *Recording) means(x *arm) {
	a := &x.info
	var sec, batch, kv, kvSec, tokens, tokenSec float64
	for i := range x.cells {
		c := &x.cells[i]
		sec, batch = sec+c.seconds, batch+c.x[axisBatch]*c.seconds
		if v := c.x[axisKV]; !math.IsNaN(v) {
			kv, kvSec = kv+v*c.seconds, kvSec+c.x[axisBatch]*c.seconds
		}
		if !math.IsNaN(c.rate) {
			tokens, tokenSec = tokens+c.rate*c.seconds, tokenSec+c.seconds
		}
	}
	a.DecodeS = sec
	over := func(sum, weight float64, why string) timeline.Measure {
		if weight <= 0 {
			return timeline.Absent(why)
		}
		return timeline.Known(sum / weight)
	}
	a.Batch = over(batch, sec, "nothing decoded")
	a.Context = over(kv, kvSec, "context is not known")
	a.Output = over(tokens, tokenSec, "output tokens are not counted")
	a.TPOT = timeline.Absent("nothing decoded")
}

// identify looks up model and GPU.
func (r *Recording) identify(x *arm) {
	a := &x.info
	name := r.cfg.Target
	if name == "" && len(r.targets) == 1 {
		name = r.targets[0]
	}
	a.Target, a.Model = name, r.model
	var t timeline.Target
	for _, o := range r.cfg.Targets {
		if o.Name == name || name == "" && len(r.cfg.Targets) == 1 {
			t = o
		}
	}
	if t.Model != "" {
		a.Model = t.Model
	}
	a.DType, a.KVDType, a.TP = t.DType, t.KVDType, max(1, t.TP)
	var gpu timeline.GPU
	for _, g := range r.cfg.GPUs {
		if g.UUID == r.gpu || r.gpu == "" && len(r.cfg.GPUs) == 1 {
			gpu = g
		}
	}
	a.GPU = gpu.Name
	var err error
	if x.spec, err = hardware.LookupModel(a.Model); err != nil {
		x.noModel = "the model is not in the table"
		return
	}
	x.known = true
	g, err := hardware.IdentifyGPU(gpu)
	switch {
	case err != nil:
		x.noModel = "the GPU is not in the table"
	case a.DType == "":
		x.noModel = "the number format is not known"
	default:
		if x.model, err = roofline.New(x.spec, g, a.DType, a.KVDType, a.TP); err != nil {
			x.noModel = "the byte model does not know this format"
		}
	}
}
