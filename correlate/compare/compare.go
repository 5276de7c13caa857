// Package compare says what changed between two recordings of one model: another number format, engine, GPU or time.
// It compares bytes and time per engine step at the same batch, context and prompt work, because at a fixed arrival rate
// a faster build runs a smaller batch, and its bytes per token rise.
//
// Every word follows from intervals. A ratio is of B over A throughout.
package compare

import (
	"errors"
	"fmt"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Schema names the JSON form of a Report.
const Schema = "tpotscope.compare/1"

// Word is the verdict on a comparison.
type Word string

// The verdicts.
const (
	Realised     Word = "realised"             // bytes fell, and at least half of the time that they should save came
	NotTime      Word = "bytes_saved_not_time" // bytes fell, and less than half of that time came
	NotSaved     Word = "bytes_not_saved"      // less than half of the bytes that the format should save were
	Regression   Word = "regression"           // slower by more than the margin
	Improvement  Word = "improvement"          // faster by more than the margin, and no bytes explain it or none were measured
	NoDifference Word = "no_difference"        // the interval of the time ratio lies within the margin
	Refused      Word = "refused"              // the two cannot be compared
	Undetermined Word = "undetermined"         // they could, and the evidence does not decide
)

// Decided reports whether there is a verdict at all.
func (w Word) Decided() bool { return w != Refused && w != Undetermined }

// Options say how a comparison is made.
type Options struct {
	Margin float64 // within which a time ratio counts as one: 0.03 allows 1/1.03 to 1.03
	Seed   uint64  // of the resamples
}

// DefaultMargin is the margin of equivalence unless asked otherwise.
const DefaultMargin = 0.03

// maxMargin keeps a margin from calling everything equal.
const maxMargin = 0.5

// Validate returns the fault of the options.
func (o Options) Validate() error {
	if !(o.Margin > 0 && o.Margin <= maxMargin) {
		return errors.New("check margin: must be above 0 and at most 50 %")
	}
	return nil
}

// Value is an estimate with its 95 % interval. Either may be absent, and then says why.
type Value struct {
	Value timeline.Measure                 `json:"value"`
	CI95  summary.Maybe[timeline.Interval] `json:"ci95"`
}

// OK reports whether there is an estimate.
func (v Value) OK() bool { return v.Value.OK() }

// Sure reports whether there is an interval too.
func (v Value) Sure() bool { return v.Value.OK() && v.CI95.OK() }

func absent(why string) Value {
	return Value{Value: timeline.Absent(why), CI95: summary.Maybe[timeline.Interval]{Why: why}}
}

// Bytes are ratios of DRAM traffic per step.
type Bytes struct {
	Modelled Value `json:"modelled"` // by the byte model, at the matched steps; the interval is the model's own band
	Measured Value `json:"measured"`
}

// Report is the outcome of a comparison.
type Report struct {
	Schema     string              `json:"schema"`
	A          Arm                 `json:"a"`
	B          Arm                 `json:"b"`
	Simulated  bool                `json:"simulated"`
	Verdict    Word                `json:"verdict"`
	Reason     string              `json:"reason"`
	Remedy     string              `json:"remedy,omitempty"` // what would make a comparison possible, or decide it
	Refute     string              `json:"refute,omitempty"`
	Confidence timeline.Confidence `json:"confidence"`
	HeldDown   []string            `json:"held_down,omitempty"`
	Slower     bool                `json:"slower"` // the time ratio lies above the margin, whatever the verdict
	Margin     float64             `json:"margin"`
	Boundary   string              `json:"boundary"` // where time is taken: the engine, the probe, or the engine's batch over its output rate

	Bytes    Bytes `json:"bytes_ratio"`
	Time     Value `json:"time_ratio"`
	Expected Value `json:"expected_time_ratio"` // of the measured byte ratio, or of the modelled one where none is measured
	Gap      Value `json:"gap"`                 // time ratio less the expected one
	Came     Value `json:"saving_realised"`     // part of the expected time saving that came
	Memory   Value `json:"memory_share_a"`      // of A's time per token: the f of the expectation
	// Bandwidth is what B's DRAM can be expected to reach over A's: one where both are of a kind. The expectation allows for it.
	Bandwidth timeline.Measure `json:"bandwidth_ratio"`

	Rate Value `json:"achieved_rate_ratio"` // of DRAM bytes over time, launches, waits and kernel efficiency included

	TPOTA Value  `json:"matched_tpot_a_s"`
	TPOTB Value  `json:"matched_tpot_b_s"`
	Parts []Part `json:"parts"` // of the time per token, by what limited it
	Grew  string `json:"grew"`  // the part that grew by more than half of the rise, beyond its interval; empty if none did
	Split Split  `json:"split"`

	Matched  Matched  `json:"matched"`
	Requests Shift    `json:"requests"`
	Warnings []string `json:"warnings"`
}

// Arm is one of the two recordings.
type Arm struct {
	Name      string                 `json:"name"`
	Span      summary.Span           `json:"span"`
	Target    string                 `json:"target,omitempty"`
	Model     string                 `json:"model,omitempty"`
	DType     string                 `json:"dtype,omitempty"`
	KVDType   string                 `json:"kv_dtype,omitempty"`
	TP        int                    `json:"tp,omitempty"`
	GPU       string                 `json:"gpu,omitempty"`
	Evidence  timeline.EvidenceLevel `json:"evidence"`
	Coverage  timeline.Measure       `json:"traffic_coverage"`
	Simulated bool                   `json:"simulated"`
	DecodeS   float64                `json:"decode_s"` // seconds of decode that the comparison uses, warm-up left out
	Requests  int                    `json:"requests"` // with a TPOT, warm-up left out
	TPOT      timeline.Measure       `json:"tpot_s"`   // mean by token, unmatched
	Batch     timeline.Measure       `json:"batch"`
	Context   timeline.Measure       `json:"context"`         // tokens of each running request, mean
	Output    timeline.Measure       `json:"output_rate"`     // tokens per second of decode
	Hits      timeline.Measure       `json:"prefix_hit_rate"` // of the prompt tokens looked up
	Faults    []string               `json:"faults,omitempty"`
}

// Part is a share of the time per token.
type Part struct {
	Name   string `json:"name"` // memory, compute, launch, host, communication, other
	A      Value  `json:"a_s"`
	B      Value  `json:"b_s"`
	Change Value  `json:"change_s"`
}

// Split says where a change of the mean time per token comes from. At a fixed arrival rate a slower step raises the
// batch, which slows it further: that is amplification, not a cause.
type Split struct {
	Loop      string `json:"loop"`        // "fixed_rate", "fixed_concurrency", "load_changed" or "unknown"
	Total     Value  `json:"total_s"`     // the parts below add up to it
	Direct    Value  `json:"direct_s"`    // at A's batch, context and prompt work
	Amplified Value  `json:"amplified_s"` // through the batch, by the direct change itself
	Load      Value  `json:"load_s"`      // through the batch, by another arrival rate
	Work      Value  `json:"work_s"`      // by other context and prompt lengths
}

// Matched says over what the two were compared.
type Matched struct {
	Bins       int     `json:"bins"` // zero: no bin is shared, and both were carried to A's mean step
	RequestsA  int     `json:"requests_a"`
	RequestsB  int     `json:"requests_b"`
	SecondsA   float64 `json:"seconds_a"`
	SecondsB   float64 `json:"seconds_b"`
	BlocksA    int     `json:"blocks_a"` // of time, that are resampled
	BlocksB    int     `json:"blocks_b"`
	BlockS     float64 `json:"block_s"`
	Standard   string  `json:"standard"` // how the two were brought to the same step
	Table      []Bin   `json:"table"`
	Unmatched  float64 `json:"unmatched_share"` // of the decode time of both
	StepSource string  `json:"step_source"`     // "engine", or "output over batch" where the engine counts no steps
}

// Bin is one bin of batch, context and prompt work.
type Bin struct {
	Batch     float64          `json:"batch"`
	Context   float64          `json:"context"`
	Prompt    float64          `json:"prompt_per_step"`
	SecondsA  float64          `json:"seconds_a"`
	SecondsB  float64          `json:"seconds_b"`
	TPOTA     float64          `json:"tpot_a_s"`
	TPOTB     float64          `json:"tpot_b_s"`
	TimeRatio float64          `json:"time_ratio"`
	Bytes     timeline.Measure `json:"bytes_ratio"`
}

// Shift compares requests, each by its own TPOT.
type Shift struct {
	P50Ratio Value            `json:"p50_ratio"`
	Shift    Value            `json:"hodges_lehmann_s"` // B less A
	Delta    timeline.Measure `json:"cliffs_delta"`     // P(B slower) less P(B faster)
	Clusters string           `json:"clusters"`         // what was resampled: "sessions" or "blocks of time", then requests
}

// Of compares two recordings.
func Of(a, b *Recording, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	x, y := a.arm(), b.arm()
	r := blank(x.info, y.info, o)
	if why := unlike(x, y); why.reason != "" {
		r.Verdict, r.Reason, r.Remedy = Refused, why.reason, why.remedy
		r.Warnings = warnings(r, x, y, nil)
		return r, nil
	}
	m := match(x, y, o)
	m.fill(r)
	r.Requests, r.Matched.RequestsA, r.Matched.RequestsB = shift(x, y, m, o)
	decide(r, x, y, m)
	r.Warnings = warnings(r, x, y, m)
	return r, nil
}

// blank is a report that says nothing yet.
func blank(a, b Arm, o Options) *Report {
	no := absent("the two cannot be compared")
	return &Report{
		Schema: Schema, A: a, B: b, Simulated: a.Simulated || b.Simulated, Margin: o.Margin, Parts: []Part{}, Warnings: []string{},
		Bytes: Bytes{no, no}, Time: no, Expected: no, Gap: no, Came: no, Memory: no, Rate: no, Bandwidth: no.Value, TPOTA: no, TPOTB: no,
		Split:    Split{Loop: "unknown", Total: no, Direct: no, Amplified: no, Load: no, Work: no},
		Matched:  Matched{Table: []Bin{}},
		Requests: Shift{P50Ratio: no, Shift: no, Delta: timeline.Absent(no.Value.Why)},
	}
}
