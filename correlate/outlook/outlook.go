// Package outlook holds the steps of one target against the least that its model and GPU allow, and says what would make
// them shorter. What it expects comes from the byte model and what is achievable of the peaks; what it promises is never
// more than the measured share of time that a remedy acts on. Where the model, its number format or the GPU is not
// known, it says so and nothing else.
package outlook

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Facts are what is known beforehand of a target and its node.
type Facts struct {
	Target timeline.Target
	GPUs   []timeline.GPU
	Eta    map[string]verdict.Eta // calibrated on the node, by UUID
}

// Step is what a step of the target took, and what it should have. Times are means: measured ones over all steps, those
// of the model and their ratios over the steps whose context and prompt work are known.
type Step struct {
	MeasuredS timeline.Measure `json:"measured_s"`
	FloorS    timeline.Measure `json:"floor_s"`    // all peaks reached
	ExpectedS timeline.Measure `json:"expected_s"` // at what is achievable of the peaks, prompt work spread evenly over the steps
	// InChunksS is the same with prompt work in as few steps as a usual token budget allows: prompts may have been served
	// either way, or in between. It equals ExpectedS where there was no prompt work.
	InChunksS    timeline.Measure `json:"expected_in_chunks_s"`
	OverFloor    timeline.Measure `json:"over_floor"`
	OverExpected timeline.Measure `json:"over_expected"`

	Steps     float64 `json:"steps"`
	DecodeS   float64 `json:"decode_s"`   // that the steps are of
	StepsFrom string  `json:"steps_from"` // who counted them
	Batch     float64 `json:"batch"`      // tokens decoded a step
	Context   float64 `json:"context"`    // mean tokens of context
	Prompt    float64 `json:"prompt_tokens"`

	Model     string   `json:"model,omitempty"`
	DType     string   `json:"dtype,omitempty"`
	KVDType   string   `json:"kv_dtype,omitempty"`
	GPU       string   `json:"gpu,omitempty"`
	TP        int      `json:"tp,omitempty"`
	Bandwidth float64  `json:"achievable_bandwidth,omitempty"` // part of the peak
	Origin    string   `json:"achievable_from,omitempty"`      // "calibrated", "table" or "assumed"
	Assumed   []string `json:"assumed,omitempty"`              // what the times rest on that nobody told
}

// Absent returns a step of which nothing is known because of why.
func Absent(why string) Step {
	a := timeline.Absent(why)
	return Step{MeasuredS: a, FloorS: a, ExpectedS: a, InChunksS: a, OverFloor: a, OverExpected: a}
}

// Tally adds up the steps of one target. It is not safe for concurrent use.
type Tally struct {
	facts  Facts
	looked bool
	why    string // there is no model
	model  *roofline.Model
	eta    verdict.Eta
	other  []remedy // in other formats
	sums   sums
	missed map[string]float64 // s of decode that are in no sum, by reason

	history   *steps.History
	compared  int // cells whose steps are known from engine and arrivals
	conflicts int
	conflict  string
}

// sums are over steps.
type sums struct {
	seconds, steps, guessed float64
	arrived                 float64 // steps found in the arrivals of tokens
	floor, even, chunks     float64
	alone                   float64 // expected without the prompt work
	batch, context, prompt  float64
	sequences, tokens       float64 // requests that decoded and tokens that they got, times steps
	drafted                 float64 // steps that yielded more than a token for each
	clock, clockS           float64 // Hz times s, and the s
	modelled, modelledS     float64

	read, estimate   float64 // bytes, measured and modelled over the same steps
	low, lowShared   float64 // of the band, without and with a prefix that sequences may share
	high, highShared float64
	why, whyShared   causes // what makes the band wide
}

// New returns a tally of a target that has seen nothing.
func New(f Facts) *Tally { return &Tally{facts: f, missed: map[string]float64{}} }

// Add takes one cell in which the target decoded.
func (t *Tally) Add(c *correlate.Cell) {
	if len(c.PerGPU) > 0 && !t.looked {
		t.look(c)
	}
	t.witness(c)
	sec := c.Span.Duration().Seconds()
	switch {
	case c.Data != (timeline.Span{}) && c.Data.Duration().Seconds() < 0.9*sec:
		t.missed["the recording begins or ends in the cell"] += sec
		return
	case !c.OutputTokens.OK() || !c.Batch.OK():
		t.missed["batch or output tokens are not known"] += sec
		return
	case c.Batch.Value < 1:
		t.missed["no request ran for a part of the time"] += sec
		return
	case c.OutputTokens.Value <= 0:
		t.missed["no token came"] += sec
		return
	}
	n, guessed := c.Steps.Value, 0.0
	if !c.Steps.OK() || n <= 0 {
		n = c.OutputTokens.Value / c.Batch.Value
		guessed = n
	}
	if math.IsInf(n, 0) || math.IsNaN(n) || !(sec > 0) {
		return
	}
	t.sums.seconds, t.sums.steps, t.sums.guessed = t.sums.seconds+sec, t.sums.steps+n, t.sums.guessed+guessed
	if c.Step.Source == steps.Arrivals && guessed == 0 {
		t.sums.arrived += n
	}
	t.sums.batch += c.OutputTokens.Value
	t.expect(c, sec, n)
}

// expect adds what the model expects of a cell's steps.
func (t *Tally) expect(c *correlate.Cell, sec, n float64) {
	if t.model == nil {
		return
	}
	st, _, ok := correlate.MeanStep(c)
	if !ok {
		t.missed["context or prompt tokens are not known"] += sec
		return
	}
	s := &t.sums
	if st.Sequences > 0 {
		s.drafted += n
	}
	s.sequences, s.tokens = s.sequences+n*c.Batch.Value, s.tokens+n*st.Decode
	clock := 0.0
	if m := c.Counters[timeline.SMClock]; m.OK() {
		clock = m.Value
		s.clock, s.clockS = s.clock+clock*sec, s.clockS+sec
	}
	s.modelledS += sec
	s.modelled += n
	s.floor += n * t.model.Floor(st)
	even := t.expected(t.model, st, clock)
	s.even += n * even
	s.chunks += n * t.inChunks(st, clock, even)
	s.context += n * st.Context
	s.prompt += n * st.Prompt
	if c.DRAMBytes.OK() {
		t.bytes(c, st, n)
	}
	decode := st
	decode.Prompt = 0
	s.alone += n * t.expected(t.model, decode, clock)
	for i := range t.other {
		t.other[i].seconds += n * t.expected(t.other[i].model, st, clock)
	}
}

// Why says why the model is silent; nothing where it speaks.
func (t *Tally) Why() string { return t.why }

// expected is the time of a step of some model at what is achievable.
func (t *Tally) expected(m *roofline.Model, st roofline.Step, clock float64) float64 {
	return m.Expected(st, t.eta.Bandwidth, t.eta.Tensor, clock)
}

// inChunks is the mean time of a step when prompt tokens come in whole chunks and the other steps only decode. Spread
// evenly they can only take less, for a segment's time grows the faster the more tokens it holds.
func (t *Tally) inChunks(st roofline.Step, clock, even float64) float64 {
	room := max(1, roofline.UsualChunk-st.Decode)
	part := st.Prompt / room
	if part <= 0 || part >= 1 {
		return even
	}
	full, bare := st, st
	full.Prompt, bare.Prompt = room, 0
	return max(even, part*t.expected(t.model, full, clock)+(1-part)*t.expected(t.model, bare, clock))
}

// look finds the GPU and the model of the target's steps, once.
func (t *Tally) look(c *correlate.Cell) {
	t.looked = true
	hw, err := t.device(c.PerGPU[0].UUID)
	if t.why = t.unnamed(); t.why == "" && err != nil {
		t.why = err.Error()
	}
	if t.why != "" {
		return
	}
	spec, err := hardware.LookupModel(t.facts.Target.Model)
	if err != nil {
		t.why = "the model is in no table: " + t.facts.Target.Model
		return
	}
	tp := t.facts.Target.TP
	if tp <= 0 {
		tp = len(c.PerGPU)
	}
	build := func(dtype, kv string) (*roofline.Model, error) { return roofline.New(spec, hw, dtype, kv, tp) }
	if t.model, err = build(t.facts.Target.DType, t.facts.Target.KVDType); err != nil {
		t.model, t.why = nil, "the byte model does not know this: "+err.Error()
		return
	}
	t.other = remedies(t.facts.Target, hw, build)
}

// device finds the GPU with that identity, and what is achievable of its peaks.
func (t *Tally) device(uuid string) (hardware.GPU, error) {
	at := slices.IndexFunc(t.facts.GPUs, func(g timeline.GPU) bool { return g.UUID == uuid })
	if at < 0 {
		return hardware.GPU{}, errors.New("the GPU is not described")
	}
	hw, err := hardware.IdentifyGPU(t.facts.GPUs[at])
	if err != nil {
		return hw, errors.New("the GPU is in no table: " + t.facts.GPUs[at].Name)
	}
	t.eta = verdict.EtaOf(hw)
	if eta, ok := t.facts.Eta[uuid]; ok {
		t.eta = eta
	}
	return hw, nil
}

// unnamed says what is not known of the model by name.
func (t *Tally) unnamed() string {
	switch f := t.facts.Target; {
	case f.PP > 1 || f.DP > 1:
		return "the byte model knows no pipelines or copies in lockstep"
	case f.Model == "" && f.DType == "":
		return "neither model nor number format is known"
	case f.Model == "":
		return "the model is not known"
	case f.DType == "":
		return "the number format of the weights is not known"
	}
	return ""
}

// Eta returns what is achievable of the peaks of the target's GPUs; all zero where they are not known.
func (t *Tally) Eta() verdict.Eta { return t.eta }

// Step returns what the steps took and should have.
func (t *Tally) Step() Step {
	s := &t.sums
	if s.steps <= 0 {
		return Absent(t.reason("no step was seen"))
	}
	out := Step{
		MeasuredS: timeline.Known(s.seconds / s.steps), Steps: s.steps, DecodeS: s.seconds, StepsFrom: "engine", Batch: s.batch / s.steps,
	}
	if s.arrived > 0.5*s.steps {
		out.StepsFrom = "arrivals of tokens"
	}
	if s.guessed > 0.01*s.steps {
		out.StepsFrom = "output tokens over batch"
		out.Assumed = append(out.Assumed, "one token a request and step")
	}
	if t.model == nil || s.modelled <= 0 {
		why := t.why
		switch {
		case t.model != nil:
			why = t.reason("context or prompt tokens are not known")
		case why == "":
			why = "no GPU is known to serve it"
		}
		a := timeline.Absent(why)
		out.FloorS, out.ExpectedS, out.InChunksS, out.OverFloor, out.OverExpected = a, a, a, a, a
		return out
	}
	n := s.modelled
	out.FloorS, out.ExpectedS, out.InChunksS = timeline.Known(s.floor/n), timeline.Known(s.even/n), timeline.Known(s.chunks/n)
	sequences := s.tokens // one each; the gauge of the batch lags
	if t.drafts() {
		sequences = s.sequences
	}
	out.Prompt, out.Context = s.prompt/n, s.context/max(1, sequences)
	took := s.modelledS / n // of the steps that the model speaks of
	out.OverFloor, out.OverExpected = timeline.Known(took/out.FloorS.Value), timeline.Known(took/out.ExpectedS.Value)
	t.describe(&out)
	return out
}

// describe says what the expected times are of.
func (t *Tally) describe(out *Step) {
	f := t.facts.Target
	out.Model, out.DType, out.KVDType, out.GPU, out.TP = t.model.Spec().Name, f.DType, f.KVDType, t.model.GPU().Name, t.model.TP()
	out.Bandwidth, out.Origin = t.eta.Bandwidth, t.eta.BandwidthOrigin
	if f.KVDType == "" || f.KVDType == "auto" {
		out.KVDType = "bf16"
		out.Assumed = append(out.Assumed, "a 16-bit KV cache")
	}
	if t.eta.BandwidthOrigin == verdict.OriginAssumed {
		out.Assumed = append(out.Assumed, fmt.Sprintf("%.0f %% of peak bandwidth achievable", 100*t.eta.Bandwidth))
	}
	if t.eta.TensorOrigin == verdict.OriginAssumed && out.InChunksS.Value > 1.01*t.sums.alone/t.sums.modelled {
		out.Assumed = append(out.Assumed, fmt.Sprintf("%.0f %% of peak tensor rate achievable", 100*t.eta.Tensor))
	}
	if t.drafts() {
		out.Assumed = append(out.Assumed, "no time or traffic of drafts")
	}
	if t.model.Spec().MoE() {
		out.Assumed = append(out.Assumed, "tokens routed to experts independently")
	}
	if t.model.TP() > 1 {
		out.Assumed = append(out.Assumed, "all-reduces as on four H100")
	}
}

// drafts reports whether more than a few steps yielded more than a token for each request.
func (t *Tally) drafts() bool { return t.sums.drafted > fewSteps*t.sums.modelled }

// reason is why most of the decode is in no sum.
func (t *Tally) reason(otherwise string) string {
	why, most := otherwise, 0.0
	for r, sec := range t.missed {
		if sec > most || sec == most && r < why {
			why, most = r, sec
		}
	}
	return why
}
