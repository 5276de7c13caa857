package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
