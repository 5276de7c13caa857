package summary

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

const (
	// fullCoverage is the part of the engine's output tokens from which on the probe's counts stand for all traffic.
	fullCoverage = 0.95
	// maxTimed bounds the cells of a target from which label and confidence are worked out. Of more, every second one
	// is kept, then every fourth, and so on; shares, mixture and means are always over all.
	maxTimed = 4096
)

// cells is what the cells say, over all targets.
type cells struct {
	byTarget map[string]*targetCells
	byGPU    map[string]*gpuSums
	level    timeline.EvidenceLevel
	engine   stats.WeightedMean // engine TPOT, by output tokens
	d        decodeSums
	count    int
	probed   bool // some cell had a request or token of the probe
}

// targetCells is one target's part.
type targetCells struct {
	seconds                 float64
	probe                   float64 // output tokens that came to clients
	engine, engineS         float64 // output tokens by the engine, and the seconds in which it told
	prompt, promptS         float64
	coveredProbe, coveredBy float64 // output tokens by either, where both told
	timed                   []verdict.Timed
	stride, skip            int
	stretches               stretches
}

// decodeSums is over the cells in which something decoded.
type decodeSums struct {
	seconds, determined float64
	placed              float64 // s, split into shares
	shares              timeline.Shares
	roof                timeline.Interval
	byLabel             map[timeline.Label]float64
	byOverlay           map[timeline.Overlay]float64
	windows             int
	covered             float64
	gpuWindows          int
	gpuCovered          float64
	counters            [timeline.NumCounters]stats.WeightedMean
	throttled, gpuS     float64

	perStep, perToken ratio // measured bytes
	modelStep         ratio // modelled ones
	modelToken        ratio
	useful            ratio // modelled over measured, where both are known
	stepsGuessed      bool
}

// ratio is a sum over a sum.
type ratio struct{ num, den float64 }

func (r *ratio) add(num, den float64) { r.num, r.den = r.num+num, r.den+den }

// measure returns the ratio, or why there is none.
func (r *ratio) measure(why string) timeline.Measure {
	if r.den <= 0 {
		return timeline.Absent(why)
	}
	return number(r.num / r.den)
}

// number returns the measure of v; what is no number is absent, for JSON cannot hold it and nobody can read it.
func number(v float64) timeline.Measure {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return timeline.Absent("its parts are no numbers")
	}
	return timeline.Known(v)
}

func newCells() *cells {
	return &cells{
		byTarget: map[string]*targetCells{}, byGPU: map[string]*gpuSums{},
		d: decodeSums{byLabel: map[timeline.Label]float64{}, byOverlay: map[timeline.Overlay]float64{}},
	}
}

// add takes one cell. Cells of the warm-up count for tokens and coverage, and not for what bounded decode.
func (cs *cells) add(c *correlate.Cell, warm bool) {
	cs.count++
	cs.level = max(cs.level, c.Level)
	t := cs.byTarget[c.Target]
	if t == nil {
		t = &targetCells{stride: 1}
		cs.byTarget[c.Target] = t
	}
	sec := c.Span.Duration().Seconds()
	t.seconds += sec
	t.probe += c.Tokens
	cs.probed = cs.probed || c.Tokens > 0 || c.Active > 0
	if c.OutputTokens.OK() {
		t.engine, t.engineS = t.engine+c.OutputTokens.Value, t.engineS+sec
		t.coveredProbe, t.coveredBy = t.coveredProbe+c.Tokens, t.coveredBy+c.OutputTokens.Value
	}
	if c.PromptTokens.OK() {
		t.prompt, t.promptS = t.prompt+c.PromptTokens.Value, t.promptS+sec
	}
	if warm {
		return
	}
	if c.EngineTPOT.OK() && c.OutputTokens.OK() {
		cs.engine.Add(c.EngineTPOT.Value, c.OutputTokens.Value)
	}
	if !c.Decode {
		return
	}
	t.keep(c)
	t.stretches = t.stretches.with(labelOf(&c.Verdict), c.Span)
	cs.d.add(c, sec)
	for i := range c.PerGPU {
		cs.gpu(&c.PerGPU[i])
	}
}

// keep puts the cell's verdict into the target's bounded sample.
func (t *targetCells) keep(c *correlate.Cell) {
	if t.skip++; t.skip < t.stride {
		return
	}
	t.skip = 0
	t.timed = append(t.timed, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
	if len(t.timed) < maxTimed {
		return
	}
	for i := range maxTimed / 2 {
		t.timed[i] = t.timed[2*i+1]
	}
	clear(t.timed[maxTimed/2:])
	t.timed = t.timed[:maxTimed/2]
	t.stride *= 2
}

// add takes one decoding cell of sec seconds.
func (d *decodeSums) add(c *correlate.Cell, sec float64) {
	v := &c.Verdict
	d.seconds += sec
	if v.OK() {
		d.determined += sec
	}
	if sum := v.Shares.Sum() + v.Roof.Low + v.Roof.High; v.Placed() && !math.IsNaN(sum) && !math.IsInf(sum, 0) {
		d.placed += sec
		d.shares = d.shares.Add(v.Shares, sec)
		d.roof.Low, d.roof.High = d.roof.Low+sec*v.Roof.Low, d.roof.High+sec*v.Roof.High
	}
	d.byLabel[labelOf(v)] += sec
	for _, o := range v.Overlays {
		d.byOverlay[o] += sec
	}
	d.windows += c.Windows
	d.covered += c.CoveredS
	for k := range c.Counters {
		d.counters[k].Add(c.Counters[k].Value, c.Counters[k].CoveredS)
	}
	for i := range c.PerGPU {
		d.gpuWindows += c.PerGPU[i].Windows
		d.gpuCovered += c.PerGPU[i].CoveredS
	}
	if c.Counters[timeline.EventReasons].OK() || c.Counters[timeline.ThrottlePower].OK() {
		d.throttled += c.ThrottledS
		d.gpuS += sec * float64(max(1, len(c.PerGPU)))
	}
	d.addBytes(c)
}

// labelOf is what a cell counts as.
func labelOf(v *verdict.Verdict) timeline.Label {
	if !v.OK() {
		return timeline.Undetermined
	}
	return v.Label
}

// addBytes takes the cell's DRAM traffic. Measured traffic per token or step counts only where the tokens are those of
// all traffic: where the probe saw it, or where the engine alone was asked.
func (d *decodeSums) addBytes(c *correlate.Cell) {
	steps, guessed := stepsOf(c)
	all := c.OutputTokens.OK() && (c.Coverage.OK() && c.Coverage.Value >= fullCoverage || c.Tokens == 0 && c.Active == 0)
	if c.DRAMBytes.OK() && all {
		if c.OutputTokens.Value > 0 {
			d.perToken.add(c.DRAMBytes.Value, c.OutputTokens.Value)
		}
		if steps > 0 {
			d.perStep.add(c.DRAMBytes.Value, steps)
			d.stepsGuessed = d.stepsGuessed || guessed
		}
		if c.ModelledBytes.OK() {
			d.useful.add(c.ModelledBytes.Value, c.DRAMBytes.Value)
		}
	}
	if !c.ModelledBytes.OK() {
		return
	}
	if c.OutputTokens.OK() && c.OutputTokens.Value > 0 {
		d.modelToken.add(c.ModelledBytes.Value, c.OutputTokens.Value)
	}
	if steps > 0 {
		d.modelStep.add(c.ModelledBytes.Value, steps)
		d.stepsGuessed = d.stepsGuessed || guessed
	}
}

// stepsOf returns the engine's steps, else those in which the batch made its tokens at one token a request and step.
func stepsOf(c *correlate.Cell) (steps float64, guessed bool) {
	switch {
	case c.Steps.OK():
		return c.Steps.Value, false
	case c.OutputTokens.OK() && c.Batch.OK() && c.Batch.Value > 0:
		return c.OutputTokens.Value / max(1, c.Batch.Value), true
	}
	return 0, false
}

// names returns the targets in the order of their names.
func (cs *cells) names() []string { return slices.Sorted(maps.Keys(cs.byTarget)) }

// coverage returns the probe's part of the engine's output tokens.
func (cs *cells) coverage(p *pool) timeline.Measure {
	var probe, engine float64
	for _, name := range cs.names() {
		t := cs.byTarget[name]
		probe, engine = probe+t.coveredProbe, engine+t.coveredBy
	}
	switch {
	case engine <= 0:
		return timeline.Absent("the engine's output tokens are not counted")
	case !cs.probed && p.counts.Total == 0:
		return timeline.Absent(noProbe)
	}
	return number(probe / engine)
}

// noProbe says that the engine alone was asked, so that no part of the traffic is missing.
const noProbe = "no probe: the engine's own counts cover all traffic"

// engineTPOT returns the engine's own mean.
func (cs *cells) engineTPOT() timeline.Measure {
	if v, ok := cs.engine.Value(); ok {
		return timeline.Known(v)
	}
	return timeline.Absent("the engine tells no inter-token latency")
}

// told is the part of the time in which an engine must have told for its counts to stand for the whole span.
const told = 0.9

// tokens returns what was generated and processed.
func (cs *cells) tokens(p *pool, over timeline.Span) Tokens {
	var probe, engine, prompt, rate float64
	byEngine, byPrompt := len(cs.byTarget) > 0, len(cs.byTarget) > 0
	for _, name := range cs.names() {
		t := cs.byTarget[name]
		probe += t.probe
		byEngine = byEngine && t.engineS >= told*t.seconds && t.engineS > 0
		byPrompt = byPrompt && t.promptS >= told*t.seconds && t.promptS > 0
		if t.engineS > 0 {
			engine += t.engine
			rate += t.engine / t.engineS
		}
		prompt += t.prompt
	}
	out := Tokens{Output: number(engine), PerSecond: number(rate), Source: "engine"}
	if !byEngine {
		out = Tokens{Output: number(probe), PerSecond: timeline.Absent("the span is empty"), Source: "probe"}
		if s := over.Duration().Seconds(); s > 0 {
			out.PerSecond = number(probe / s)
		}
		if cs.count == 0 {
			out.Output, out.PerSecond = timeline.Absent("no cells"), timeline.Absent("no cells")
		}
	}
	switch {
	case byPrompt:
		out.Prompt = number(prompt)
	case p.counts.Total > 0 && p.promptUnknown == 0:
		out.Prompt = timeline.Known(p.prompt)
	default:
		out.Prompt = timeline.Absent(fmt.Sprintf("not told by the engine, nor by %d of %d requests", p.promptUnknown, p.counts.Total))
	}
	return out
}
