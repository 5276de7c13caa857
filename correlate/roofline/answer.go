package roofline

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Schema names the JSON form of an answer.
const Schema = "tpotscope.roofline/1"

// Question is a step of which the bytes and the time are asked, and the conditions it runs under.
type Question struct {
	Setup      Setup
	Batch      float64 // decoding sequences
	Context    float64 // tokens of each
	Prompt     float64 // prompt tokens that share the step
	Shared     float64 // tokens of context that all sequences have in common
	Drafts     float64 // tokens drafted for each sequence; zero: no speculation
	Acceptance float64 // probability that a drafted token is accepted after those before it
	Draft      *Setup  // the draft model; nil: its traffic is not known
	Adapters   float64 // low-rank adapters in use
	Rank       float64 // of each
	Captures   []int   // batch sizes that graphs are captured for; empty: not known
	Eta        Eta
	SMClockHz  float64 // zero: the clock that the data sheet assumes
	HourUSD    float64 // price of an hour of one GPU; zero: not told

	Other       *hardware.GPU // to compare with; nil: none
	OtherEta    Eta
	LowClockHz  float64 // to compare with; zero: none
	TryDrafts   float64 // to compare with, where nothing is drafted; zero: none
	TryAccepted float64
}

// Eta is the part of the peaks that is achievable, and where the numbers come from: "calibrated", "table" or "assumed".
type Eta struct {
	Bandwidth       float64 `json:"bandwidth"`
	Tensor          float64 `json:"tensor"`
	BandwidthOrigin string  `json:"bandwidth_origin"`
	TensorOrigin    string  `json:"tensor_origin"`
}

// Answer is what a step has to move and to calculate, and how long that takes.
type Answer struct {
	Schema          string         `json:"schema"`
	Model           string         `json:"model"`
	GPU             string         `json:"gpu"`
	DType           string         `json:"dtype"`
	KVDType         string         `json:"kv_dtype"`
	Batch           float64        `json:"batch"`
	Context         float64        `json:"context"`
	TP              int            `json:"tp"`
	BytesPerStep    StepBytes      `json:"bytes_per_step"`
	FLOPsPerStep    float64        `json:"flops_per_step"`
	KVBytesPerToken float64        `json:"kv_bytes_per_token"`
	FloorS          float64        `json:"tpot_floor_s"`    // at the peaks
	ExpectedS       float64        `json:"tpot_expected_s"` // at what is achievable of them
	Limit           string         `json:"limit"`           // "memory", "compute", "communication" or "mixed"
	Ridge           float64        `json:"ridge_flops_per_byte"`
	CriticalBatch   float64        `json:"critical_batch"`
	CriticalContext *float64       `json:"critical_context"` // nil: the cache is read above the ridge
	TokensPerStep   float64        `json:"tokens_per_step"`  // of one sequence
	TokensPerSecond float64        `json:"tokens_per_second"`
	USDPerMillion   *float64       `json:"usd_per_million_output_tokens,omitempty"`
	PromptTokens    float64        `json:"prompt_tokens,omitempty"`
	Segments        []SegmentTimes `json:"segments"`
	Launch          Launch         `json:"launch_s"`
	Peaks           Peaks          `json:"peaks"`
	Eta             Eta            `json:"eta"`
	Memory          Memory         `json:"memory"`
	WhatIf          []WhatIf       `json:"what_if"`

	Simulated bool `json:"simulated"` // the GPU is one that a simulated driver tells

	Origins map[string]string `json:"origins"`  // of the inputs, by name
	Assumed []string          `json:"assumed"`  // what no source states, or sources do not agree on
	Notes   []string          `json:"notes"`    // what the figures leave out
	Warning []string          `json:"warnings"` // what cannot run as asked
}

// StepBytes is the traffic of one step over the whole group.
type StepBytes struct {
	Weights float64  `json:"weights"`
	KV      float64  `json:"kv"`
	Other   float64  `json:"other"` // adapters and the draft model
	Total   float64  `json:"total"`
	Low     float64  `json:"low"`
	High    float64  `json:"high"`
	Reasons []Reason `json:"reasons"`
}

// SegmentTimes is one part of a step. Limit is "memory", "compute" or "fixed".
type SegmentTimes struct {
	Name      Name    `json:"name"`
	Bytes     float64 `json:"bytes"`
	FLOPs     float64 `json:"flops"`
	FloorS    float64 `json:"floor_s"`
	ExpectedS float64 `json:"expected_s"`
	Limit     string  `json:"limit"`
}

// Launch is what launches and the host add to a step in engines that were measured. It is in no other figure.
type Launch struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Peaks are those of one GPU. The floor rests on Bandwidth, which is the sheet's unless there is none.
type Peaks struct {
	Bandwidth   float64 `json:"bandwidth_bytes_per_s"`
	Denominator string  `json:"denominator"` // "data sheet", or "memory clock and bus width"
	Sheet       float64 `json:"sheet_bytes_per_s"`
	Derived     float64 `json:"derived_bytes_per_s"`
	Rate        float64 `json:"flops_per_s"` // dense, at SMClockHz
	Arithmetic  string  `json:"arithmetic"`
	SMClockHz   float64 `json:"sm_clock_hz"`
	RateClockHz float64 `json:"rate_clock_hz"` // that the sheet's rates assume

	BandwidthAssumed bool `json:"bandwidth_assumed"` // sources differ
	RateAssumed      bool `json:"flops_assumed"`
}

// Memory is whether it fits: what the weights and the cache take of what engines use of the group's memory.
type Memory struct {
	Weights  float64 `json:"weights_bytes"`
	KV       float64 `json:"kv_bytes"`
	Usable   float64 `json:"usable_bytes"`
	Fits     bool    `json:"fits"`
	MaxBatch float64 `json:"max_batch"` // at this context
}

// usablePart of the memory is what engines take by default (vLLM: gpu_memory_utilization 0.9).
const usablePart = 0.9

// Time of launches and host in a step, for each layer: what measured engines take beyond the bytes. Llama-3.1-8B on
// H100 46 us and on B200 55 us, gpt-oss-20b 117 us (intercepts of vLLM's "State of FP8 KV-cache" fits, 2026-04-22, less
// the weights at 0.9 of the peak); A100 66 to 71 us (gpt-fast README, what does not shrink with more GPUs).
const (
	launchLow   = 40e-6
	launchHigh  = 70e-6
	launchMixed = 120e-6 // with experts
)

// Ask answers a question. The inputs must be ones that can run: a batch and a context above zero, heads that the degree
// divides.
func Ask(q Question) (*Answer, error) {
	if err := q.validate(); err != nil {
		return nil, fmt.Errorf("ask roofline: %w", err)
	}
	m, err := q.model()
	if err != nil {
		return nil, err
	}
	st, unknown := q.step()
	weights, kv := m.Formats()
	a := &Answer{
		Schema: Schema, Model: m.spec.Name, GPU: m.gpu.Name, DType: weights.Name, KVDType: kv.Name,
		Batch: q.Batch, Context: q.Context, TP: m.tp, PromptTokens: q.Prompt, KVBytesPerToken: m.KVBytesPerToken(),
		Ridge: m.Ridge(q.SMClockHz), CriticalBatch: m.CriticalBatchAt(q.SMClockHz), TokensPerStep: q.tokensPerStep(), Eta: q.Eta,
		Assumed: []string{}, Notes: []string{}, Warning: []string{}, Origins: map[string]string{},
	}
	if s, ok := m.CriticalContextAt(q.SMClockHz); ok {
		a.CriticalContext = &s
	}
	band := m.Bytes(st, unknown)
	rates := q.rates(m, st)
	cost := m.Cost(st, rates)
	a.BytesPerStep = StepBytes{
		Weights: cost.WeightBytes, KV: cost.KVBytes, Other: cost.OtherBytes, Total: cost.Bytes(),
		Low: band.Low, High: band.High, Reasons: band.Reasons,
	}
	if a.BytesPerStep.Reasons == nil {
		a.BytesPerStep.Reasons = []Reason{}
	}
	a.FLOPsPerStep, a.Limit = cost.FLOPs, limitOf(cost)
	a.Segments = segmentTimes(m, st, rates)
	a.Peaks = m.peaks(q.SMClockHz)
	a.Memory = m.memory(q)
	a.Launch = Launch{launchLow * float64(m.spec.Layers), launchHigh * float64(m.spec.Layers)}
	if m.spec.MoE() {
		a.Launch.High = launchMixed * float64(m.spec.Layers)
	}
	f := q.figures(m)
	a.FloorS, a.ExpectedS, a.TokensPerSecond, a.USDPerMillion = f.FloorS, f.ExpectedS, f.TokensPerSecond, f.USDPerMillion
	a.WhatIf = q.whatIf(f)
	a.say(q, m)
	return a, nil
}

// validate names everything that cannot be asked.
func (q *Question) validate() error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(!(q.Batch >= 1 && q.Batch <= 1e6), "batch: %.0f is absurd (want 1 to 1000000)", q.Batch)
	bad(!(q.Context >= 1 && q.Context <= 1e8), "context: %.0f is absurd (want 1 to 100000000)", q.Context)
	bad(!(q.Prompt >= 0 && q.Prompt <= 1e7), "prefill tokens: %.0f is absurd (want 0 to 10000000)", q.Prompt)
	bad(!(q.Shared >= 0 && q.Shared <= q.Context), "shared prefix: %.0f is not within a context of %.0f", q.Shared, q.Context)
	bad(!(q.Drafts >= 0 && q.Drafts <= 64), "drafts: %.0f is absurd (want 0 to 64)", q.Drafts)
	bad(!(q.Acceptance >= 0 && q.Acceptance <= 1), "acceptance: %g is no part of one", q.Acceptance)
	bad(!(q.Adapters >= 0 && q.Adapters <= 1e4), "adapters: %.0f is absurd (want 0 to 10000)", q.Adapters)
	bad(!(q.Rank >= 0 && q.Rank <= 4096), "adapter rank: %.0f is absurd (want 0 to 4096)", q.Rank)
	bad(!(q.Eta.Bandwidth > 0 && q.Eta.Bandwidth <= 1 && q.Eta.Tensor > 0 && q.Eta.Tensor <= 1), "achievable parts %g and %g: want parts of one", q.Eta.Bandwidth, q.Eta.Tensor)
	if tp, heads := q.Setup.TP, q.Setup.Spec.Heads; tp > 1 && heads > 0 {
		bad(heads%tp != 0, "tensor-parallel degree: %d does not divide the %d heads of %s", tp, heads, q.Setup.Spec.Name)
	}
	return errors.Join(errs...)
}

// model builds the model with its draft model, if that is known.
func (q *Question) model() (*Model, error) {
	m, err := Build(q.Setup)
	if err != nil || q.Draft == nil || q.Drafts <= 0 {
		return m, err
	}
	d, err := Build(*q.Draft)
	if err != nil {
		return nil, fmt.Errorf("draft model: %w", err)
	}
	return m.WithDraft(d), nil
}

// step is the step that is asked about, and what of it is not known.
func (q *Question) step() (Step, Unknown) {
	st := Decoding(q.Batch, q.Context)
	if q.Drafts > 0 {
		st = Speculating(q.Batch, q.Context, q.Drafts)
	}
	st.Prompt, st.Shared, st.Adapters, st.AdapterRank = q.Prompt, q.Shared, q.Adapters, q.Rank
	for _, size := range slices.Sorted(slices.Values(q.Captures)) {
		if float64(size) >= st.Decode && q.Prompt == 0 {
			st.Padded = float64(size)
			break
		}
	}
	return st, Unknown{Draft: q.Drafts > 0 && q.Draft == nil, Padding: len(q.Captures) == 0 && q.Prompt == 0}
}

func (q *Question) rates(m *Model, st Step) Rates {
	return Rates{Bandwidth: q.Eta.Bandwidth, Tensor: q.Eta.Tensor, SMClockHz: q.SMClockHz, ExpertPart: 1, SharedPart: m.sharedPart(st)}
}

func (q *Question) tokensPerStep() float64 {
	if q.Drafts <= 0 {
		return 1
	}
	return TokensPerStep(q.Acceptance, q.Drafts)
}

// limitPart of a step's time makes it limited by one thing.
const limitPart = 0.6

func limitOf(c Cost) string {
	switch {
	case c.MemoryS >= limitPart*c.Seconds:
		return "memory"
	case c.ComputeS >= limitPart*c.Seconds:
		return "compute"
	case c.FixedS >= limitPart*c.Seconds:
		return "communication"
	}
	return "mixed"
}

// segmentTimes lays the segments at the peaks beside those at what is achievable.
func segmentTimes(m *Model, st Step, rates Rates) []SegmentTimes {
	floor := m.Segments(nil, st, Rates{SharedPart: 1})
	out := make([]SegmentTimes, 0, len(floor))
	for i, s := range m.Segments(nil, st, rates) {
		limit := "compute"
		switch {
		case s.FixedS > 0 && s.MemoryS == 0 && s.ComputeS == 0:
			limit = "fixed"
		case s.memoryLimited():
			limit = "memory"
		}
		out = append(out, SegmentTimes{
			Name: s.Name, Bytes: s.Bytes, FLOPs: s.FLOPs, FloorS: floor[i].Seconds() - floor[i].FixedS, ExpectedS: s.Seconds(), Limit: limit,
		})
	}
	return out
}

func (m *Model) peaks(clockHz float64) Peaks {
	p := Peaks{
		Bandwidth: m.bandwidth, Denominator: "data sheet", Sheet: m.gpu.SheetBandwidth, Derived: m.gpu.DerivedBandwidth(),
		Rate: m.rateAt(clockHz), Arithmetic: "bf16", SMClockHz: clockHz, RateClockHz: m.gpu.RateClockHz,
	}
	if p.Sheet <= 0 {
		p.Denominator = "memory clock and bus width"
	}
	if _, ok := m.gpu.RateOf(m.weights); ok {
		p.Arithmetic = m.weights.Math
	}
	if p.SMClockHz <= 0 {
		p.SMClockHz = m.gpu.RateClockHz
	}
	p.BandwidthAssumed = m.gpu.Uncertain("SheetBandwidth")
	p.RateAssumed = m.gpu.Uncertain("Rates."+strings.ToUpper(p.Arithmetic)) || m.gpu.Uncertain("RateClockHz")
	return p
}

func (m *Model) memory(q Question) Memory {
	out := Memory{Weights: m.Footprint(), KV: q.Batch * m.CacheBytes(q.Context), Usable: usablePart * float64(m.gpu.MemoryBytes) * float64(m.tp)}
	one := m.CacheBytes(q.Context)
	if m.draft != nil {
		out.Weights += m.draft.Footprint()
		out.KV += q.Batch * m.draft.CacheBytes(q.Context)
		one += m.draft.CacheBytes(q.Context)
	}
	out.Fits = out.Weights+out.KV <= out.Usable
	out.MaxBatch = max(0, math.Floor((out.Usable-out.Weights)/one))
	return out
}
