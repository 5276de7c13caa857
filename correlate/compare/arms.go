package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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

// Where time per token is taken.
const (
	byEngine = "engine"
	byProbe  = "probe"
	byLittle = "engine's batch over its output rate" // Little's law, of engines that tell no latency
)

// refusal is why two recordings are not compared, and what would help.
type refusal struct{ reason, remedy string }

// mostPart of the cells must know a time for the whole to be compared by it.
const mostPart = 0.8

// boundary is where both sides take the time per token, empty if nowhere: at the engine if both can, for the path to a
// client is neither side's.
func boundary(x, y *arm) string {
	engine := func(c *cell) float64 { return c.engineT }
	probe := func(c *cell) float64 { return c.probeT }
	little := func(c *cell) float64 {
		if c.byProbe {
			return math.NaN()
		}
		return c.littleT
	}
	switch {
	case x.tells(engine) && y.tells(engine):
		return byEngine
	case x.tells(probe) && y.tells(probe):
		return byProbe
	case x.info.Evidence == timeline.L0 && y.info.Evidence == timeline.L0 && x.tells(little) && y.tells(little) && !x.tells(engine) && !y.tells(engine):
		return byLittle
	}
	return ""
}

// tells reports whether most cells have a value.
func (x *arm) tells(of func(*cell) float64) bool {
	n := 0
	for i := range x.cells {
		if !math.IsNaN(of(&x.cells[i])) {
			n++
		}
	}
	return n > 0 && float64(n) >= mostPart*float64(len(x.cells))
}

// unlike says why the two cannot be compared.
func unlike(x, y *arm) refusal {
	for i, a := range []*arm{x, y} {
		name := string(rune('A' + i))
		if a.info.Target == "" && len(a.targets) > 1 {
			slices.Sort(a.targets)
			return refusal{fmt.Sprintf("%s holds %d targets: %s", name, len(a.targets), strings.Join(a.targets, ", ")), "name one with --target"}
		}
		if len(a.cells) == 0 {
			return refusal{name + " holds no decode to compare", "record while the engine is under load, for a minute or more"}
		}
	}
	if why := unlikeModels(x, y); why.reason != "" {
		return why
	}
	if boundary(x, y) == "" {
		return refusal{
			fmt.Sprintf("unlike boundaries: A has times from %s, B from %s", x.boundaries(), y.boundaries()),
			"record both with the engine's metrics, or both through the proxy",
		}
	}
	return unlikeLengths(x, y)
}

// boundaries names where a side takes its times.
func (x *arm) boundaries() string {
	var out []string
	if x.tells(func(c *cell) float64 { return c.engineT }) {
		out = append(out, "the engine")
	}
	if x.tells(func(c *cell) float64 { return c.probeT }) {
		out = append(out, "the probe")
	}
	if len(out) == 0 {
		return "neither engine nor probe throughout"
	}
	return strings.Join(out, " and ")
}

// formats are parts of published names that say how the weights are stored, not which model they are of.
var formats = []string{
	"fp8", "bf16", "fp16", "awq", "gptq", "int8", "int4", "w4a16", "w8a8", "w8a16", "fp4", "nvfp4", "mxfp4", "nf4", "bnb", "4bit", "8bit",
	"quantized", "dynamic", "quant", "marlin", "gguf",
}

// baseName is a model's name without its owner and without what says how its weights are stored.
func baseName(name string) string {
	name = strings.ToLower(strings.TrimRight(strings.TrimSpace(name), "/"))
	name = name[strings.LastIndexByte(name, '/')+1:]
	words := strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-_ .:", r) })
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(formats, w) })
	return strings.Join(words, "-")
}

// unlikeModels compares base models: other tokens, other work.
func unlikeModels(x, y *arm) refusal {
	a, b := x.info.Model, y.info.Model
	same := a == "" || b == "" || baseName(a) == baseName(b)
	if x.known && y.known {
		same = x.spec.Name == y.spec.Name
	}
	if same {
		return refusal{}
	}
	return refusal{
		fmt.Sprintf("unlike models: %s against %s; their tokens and their work differ", a, b),
		"compare two builds of one base model; if these are, name it alike under targets in the configuration",
	}
}

// leastOverlap is the part of two mixes that must be alike, as the overlap of their distributions.
const leastOverlap = 0.05

// unlikeLengths compares what was asked for: prompt and output lengths, and by the engine's word contexts.
func unlikeLengths(x, y *arm) refusal {
	remedy := "record both under the same prompts and output limits"
	for _, mix := range []struct {
		name string
		of   func(*request) float64
	}{{"prompt", func(q *request) float64 { return q.prompt }}, {"output", func(q *request) float64 { return q.output }}} {
		a, b := values(x.requests, mix.of), values(y.requests, mix.of)
		if few(a) || few(b) || overlap(a, b) >= leastOverlap {
			continue
		}
		return refusal{fmt.Sprintf("%s lengths do not overlap: %s against %s tokens", mix.name, extent(a), extent(b)), remedy}
	}
	context := func(c *cell) float64 { return c.x[axisKV] / c.x[axisBatch] }
	a, b := values(x.cells, context), values(y.cells, context)
	if !few(a) && !few(b) && (a[len(a)-1]*contextBin < b[0] || b[len(b)-1]*contextBin < a[0]) {
		return refusal{fmt.Sprintf("contexts do not overlap: %s against %s tokens", extent(a), extent(b)), remedy}
	}
	return refusal{}
}

// values are what is known, in ascending order.
func values[T any](of []T, f func(*T) float64) []float64 {
	var out []float64
	for i := range of {
		if v := f(&of[i]); !math.IsNaN(v) && v > 0 {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

func few(sorted []float64) bool { return len(sorted) < 5 }

// extent writes where nine of ten values lie.
func extent(sorted []float64) string {
	lo, _ := stats.Quantile(sorted, 0.05, stats.Linear)
	hi, _ := stats.Quantile(sorted, 0.95, stats.Linear)
	if math.Round(lo) == math.Round(hi) {
		return fmt.Sprintf("%.0f", lo)
	}
	return fmt.Sprintf("%.0f to %.0f", lo, hi)
}

// overlap is the common area of two distributions of lengths, in bins of a third of an octave.
func overlap(a, b []float64) float64 {
	bins := func(xs []float64) map[int]float64 {
		m := map[int]float64{}
		for _, x := range xs {
			m[int(math.Floor(3*math.Log2(x)))] += 1 / float64(len(xs))
		}
		return m
	}
	// Neighbouring bins count half, so that two narrow mixes on either side of an edge are not called strangers.
	spread := func(m map[int]float64) map[int]float64 {
		out := map[int]float64{}
		for k, v := range m {
			out[k-1] += v / 4
			out[k] += v / 2
			out[k+1] += v / 4
		}
		return out
	}
	x, y := spread(bins(a)), spread(bins(b))
	var common float64
	for k := -3; k < 3*40; k++ {
		common += min(x[k], y[k])
	}
	return common
}

// likeHits is how far apart hit rates of the prefix cache may lie: a tenth more found is a tenth less prompt work, and
// as much that is read once for all who share it.
const likeHits = 0.10

// hitsDiffer says why the hit rates of the prefix cache forbid a verdict, or nothing.
func hitsDiffer(x, y *arm) string {
	a, b := x.info.Hits, y.info.Hits
	if zero := timeline.Known(0); a.OK() != b.OK() { // who finds nothing in its cache may not tell of one
		if !a.OK() {
			a = zero
		} else {
			b = zero
		}
	}
	if !a.OK() || math.Abs(a.Value-b.Value) <= likeHits {
		return ""
	}
	return fmt.Sprintf("prefix-hit rates differ: %.0f %% against %.0f %% of prompt tokens", 100*a.Value, 100*b.Value)
}
