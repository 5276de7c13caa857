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
	read     map[string]bool // GPUs that any cell speaks of
	counts   counts
	count    int
	warmed   float64 // s of decode in the warm-up
	probed   bool    // some cell had a request or token of the probe
}

// targetCells is one target's part.
type targetCells struct {
	seconds         float64
	probe           float64 // output tokens that came to clients
	engine, engineS float64 // output tokens by the engine, and the seconds in which it told
	prompt, promptS float64
	counted         float64 // s in which counters were read
	scraped         float64 // s in which the engine told anything
	timed           []verdict.Timed
	stride, skip    int
	stretches       stretches
	seen, told      paces // by the probe, and by the engine
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
		counts:   newCounts(),
		byTarget: map[string]*targetCells{}, byGPU: map[string]*gpuSums{}, read: map[string]bool{},
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
	over := dataOf(c)
	sec := over.Duration().Seconds()
	t.seconds += sec
	cs.noteReadings(c, t, sec)
	t.probe += c.Tokens
	cs.probed = cs.probed || c.Tokens > 0 || c.Active > 0
	if c.OutputTokens.OK() {
		t.engine, t.engineS = t.engine+c.OutputTokens.Value, t.engineS+sec
	}
	if c.PromptTokens.OK() {
		t.prompt, t.promptS = t.prompt+c.PromptTokens.Value, t.promptS+sec
	}
	if warm {
		if c.Decode {
			cs.warmed += sec
		}
		return
	}
	if c.EngineTPOT.OK() && c.OutputTokens.OK() {
		cs.engine.Add(c.EngineTPOT.Value, c.OutputTokens.Value)
	}
	if !c.Decode {
		return
	}
	t.keep(c)
	t.seen.add(over, c.WindowTPOT)
	t.told.add(over, c.EngineTPOT)
	t.stretches = t.stretches.with(labelOf(&c.Verdict), over)
	cs.d.add(c, sec)
	for i := range c.PerGPU {
		cs.gpu(&c.PerGPU[i])
	}
}

// noteReadings takes note of what was read at all.
func (cs *cells) noteReadings(c *correlate.Cell, t *targetCells, sec float64) {
	some := func(all *[timeline.NumCounters]correlate.Mean) bool {
		return slices.ContainsFunc(all[:], func(m correlate.Mean) bool { return m.OK() })
	}
	if some(&c.Counters) {
		t.counted += sec
	}
	if c.Waiting.OK() || c.Batch.OK() || c.OutputTokens.OK() || c.PromptTokens.OK() {
		t.scraped += sec
	}
	for i := range c.PerGPU {
		if g := &c.PerGPU[i]; !cs.read[g.UUID] && some(&g.Counters) {
			cs.read[g.UUID] = true
		}
	}
}

// dataOf returns the part of a cell that holds readings; all of it where the cell does not tell.
func dataOf(c *correlate.Cell) timeline.Span {
	if c.Data == (timeline.Span{}) {
		return c.Span
	}
	return c.Data
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

// addBytes takes the cell's DRAM traffic. What is measured per token or step is withheld by the coverage of the whole
// report, not by that of cells: at its ends and where little is generated a cell does not know its own.
func (d *decodeSums) addBytes(c *correlate.Cell) {
	steps, guessed := stepsOf(c)
	if c.DRAMBytes.OK() && c.OutputTokens.OK() {
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

// Whose counts of tokens stand.
const (
	byTheEngine = "engine"
	byTheProbe  = "probe"
)

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
	out := Tokens{Output: number(math.Round(engine)), PerSecond: number(rate), Source: byTheEngine}
	switch {
	case byEngine, engine > 0 && !cs.probed && p.counts.Total == 0: // with no probe the engine's is the only word
	case !cs.probed && p.counts.Total == 0:
		out = Tokens{Output: timeline.Absent(nobody), PerSecond: timeline.Absent(nobody)}
	default:
		out = Tokens{Output: number(math.Round(probe)), PerSecond: timeline.Absent("the span is empty"), Source: byTheProbe}
		if s := over.Duration().Seconds(); s > 0 {
			out.PerSecond = number(probe / s)
		}
		if cs.count == 0 {
			out.Output, out.PerSecond = timeline.Absent("no cells"), timeline.Absent("no cells")
		}
	}
	switch {
	case byPrompt:
		out.Prompt, out.PromptSource = number(math.Round(prompt)), byTheEngine
	case p.counts.Total == 0:
		out.Prompt = timeline.Absent("the engine does not tell, and no request was seen")
	case p.promptUnknown == 0:
		out.Prompt, out.PromptSource = timeline.Known(p.prompt), byTheProbe
	default:
		out.Prompt = timeline.Absent(fmt.Sprintf("not told by the engine, nor by %d of %d requests", p.promptUnknown, p.counts.Total))
	}
	return out
}

// gpuSums is one GPU over the decoding cells.
type gpuSums struct {
	at        int // position in the list of GPUs
	counters  [timeline.NumCounters]stats.WeightedMean
	throttled map[string]float64
	windows   int
	covered   float64
}

// gpu takes one GPU's part of a decoding cell.
func (cs *cells) gpu(g *correlate.GPUCell) {
	s := cs.byGPU[g.UUID]
	if s == nil {
		s = &gpuSums{at: g.GPU, throttled: map[string]float64{}}
		cs.byGPU[g.UUID] = s
	}
	for k := range g.Counters {
		s.counters[k].Add(g.Counters[k].Value, g.Counters[k].CoveredS)
	}
	for reason, sec := range g.ThrottledS {
		if sec > 0 {
			s.throttled[reason] += sec
		}
	}
	s.windows += g.Windows
	s.covered += g.CoveredS
}

// gpuList returns the known GPUs in their order, and after them those that only cells name. A recording knows all GPUs
// that ever were: of those, where cells speak of any, the ones of which no cell does are left out.
func (cs *cells) gpuList(known []timeline.GPU) []GPU {
	out := make([]GPU, 0, len(known))
	listed := map[string]bool{}
	for i := range known {
		g := &known[i]
		listed[g.UUID] = true
		if len(cs.read) > 0 && !cs.read[g.UUID] {
			continue
		}
		out = append(out, cs.gpuOf(GPU{UUID: g.UUID, Name: g.Name, Index: g.Index, Simulated: g.Simulated}))
	}
	for _, uuid := range slices.Sorted(maps.Keys(cs.byGPU)) {
		if !listed[uuid] {
			out = append(out, cs.gpuOf(GPU{UUID: uuid, Index: cs.byGPU[uuid].at}))
		}
	}
	return out
}

// gpuOf fills in what the cells say of g.
func (cs *cells) gpuOf(g GPU) GPU {
	s := cs.byGPU[g.UUID]
	mean := func(k timeline.Counter) timeline.Measure {
		if s == nil {
			return timeline.Absent("no decode ran on it")
		}
		if v, ok := s.counters[k].Value(); ok {
			return timeline.Known(v)
		}
		return timeline.Absent("not read")
	}
	g.DRAM, g.SM, g.Tensor, g.Graphics = mean(timeline.DRAMUtil), mean(timeline.SMUtil), mean(timeline.TensorUtil), mean(timeline.GraphicsUtil)
	g.SMClockHz, g.PowerW, g.Temperature = mean(timeline.SMClock), mean(timeline.Power), mean(timeline.Temperature)
	if s != nil {
		g.Windows, g.CoveredS = s.windows, s.covered
		if len(s.throttled) > 0 {
			g.ThrottledS = maps.Clone(s.throttled)
		}
	}
	return g
}
