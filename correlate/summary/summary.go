// Package summary boils the cells and phases of a recording down to one report: how fast tokens came, over which
// requests, what bounded decode, and what is missing. It holds no samples and draws no pictures.
//
// A percentile is over requests, never over pooled gaps, and stands only where the sample bounds it on both sides.
// Whatever has no value says why.
package summary

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Schema names the JSON form of a Report.
const Schema = "tpotscope.report/1"

// Report is what a recording, or a span of it, says.
type Report struct {
	Schema          string                 `json:"schema"`
	Span            Span                   `json:"span"`
	Targets         []string               `json:"targets,omitempty"`
	Evidence        timeline.EvidenceLevel `json:"evidence"`
	TrafficCoverage timeline.Measure       `json:"traffic_coverage"`
	Simulated       bool                   `json:"simulated"`
	Empty           string                 `json:"empty,omitempty"`  // why there is nothing to say; nothing where there is
	Faults          []string               `json:"faults,omitempty"` // of the recording's files

	Requests Requests `json:"requests"`
	TTFT     Stat     `json:"ttft_s"`
	TPOT     Stat     `json:"tpot_s"`
	TPOTN1   Stat     `json:"tpot_n1_s"`
	ITL      Stat     `json:"itl_s"`
	ICL      Stat     `json:"icl_s"`
	E2E      Stat     `json:"e2e_s"`

	EngineTPOT timeline.Measure  `json:"engine_tpot_s"` // mean by the engine's own account
	Tokens     Tokens            `json:"tokens"`
	GPUs       []GPU             `json:"gpus"`
	Decode     Decode            `json:"decode"`
	Step       outlook.Step      `json:"step"`
	Help       []outlook.Help    `json:"help"`
	StepTimes  outlook.Testimony `json:"step_times"`
	SLO        []slo.Result      `json:"slo,omitempty"` // in the order in which they were asked for
	SLOOutcome slo.Outcome       `json:"slo_outcome,omitempty"`
	Goodput    *slo.Goodput      `json:"goodput,omitempty"`
	Steady     Steady            `json:"steady"`
	Groups     []Group           `json:"groups"`
	Warnings   []string          `json:"warnings"`
}

// ReasonNotCounted is the Reason of a Decode that is mixed because nobody counts prompt tokens, not because of what was
// measured.
const ReasonNotCounted = verdict.ReasonNotCounted

// HasEvidence reports whether the report rests on anything. Where it does not, its level says nothing.
func (r Report) HasEvidence() bool {
	return r.Empty == "" || r.Evidence > timeline.L0 || r.Tokens.Output.OK()
}

// reportFields is Report without its methods.
type reportFields Report

// MarshalJSON writes the report, without a level of evidence where there is none.
func (r Report) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // that is up to whoever writes the whole
	var v any = reportFields(r)
	if !r.HasEvidence() {
		v = struct {
			reportFields
			Evidence string `json:"evidence,omitempty"` // hides the other
		}{reportFields: reportFields(r)}
	}
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("write report: %w", err)
	}
	return b.Bytes(), nil
}

// Span is the time a report is about. Start and End are zero where no anchor ties the recording to the wall clock.
type Span struct {
	Start   time.Time `json:"start,omitzero"`
	End     time.Time `json:"end,omitzero"`
	Seconds float64   `json:"seconds"`
}

// Requests counts the requests of the span by how they ended. OK, Failed, Truncated, Cancelled and Unfinished sum to
// Total; the other counts are of classes that overlap them.
type Requests struct {
	Total      int `json:"total"`
	OK         int `json:"ok"`
	Failed     int `json:"failed"`
	Truncated  int `json:"truncated"`
	Cancelled  int `json:"cancelled"`
	Unfinished int `json:"unfinished"`
	EndUnknown int `json:"end_unknown,omitempty"` // of the unfinished, those whose end nobody recorded

	PrefillOnly int    `json:"prefill_only"` // asked for one token at most
	Warmup      int    `json:"warmup"`       // left out of all percentiles
	WarmupRule  string `json:"warmup_rule"`
	TPOTDefined int    `json:"tpot_defined"`
}

// Steady says whether what is left after the warm-up is steady, by MSER-5 over the TPOT of streams in flight, one value
// a cell: a check on the warm-up, which leaves nothing out by itself.
type Steady struct {
	Cells    int              `json:"cells"`
	SettledS timeline.Measure `json:"settled_after_s"` // since the start of the span; zero if steady throughout
	Differs  timeline.Measure `json:"differs"`         // mean TPOT before over after
}

// Tokens counts tokens. Output and prompt tokens are the engine's where it tells, else the probe's.
type Tokens struct {
	Output    timeline.Measure `json:"output"`
	Prompt    timeline.Measure `json:"prompt"`
	PerSecond timeline.Measure `json:"per_second"` // output tokens over the span
	Source    string           `json:"source"`     // of the output tokens: "engine" or "probe", empty if nobody counts

	PromptSource string `json:"prompt_source,omitempty"` // likewise; the probe knows the prompts of the requests it saw, and of no others
}

// GPU is one device over the decoding cells of the span.
type GPU struct {
	UUID      string `json:"uuid"`
	Name      string `json:"name,omitempty"`
	Index     int    `json:"index"`
	Simulated bool   `json:"simulated,omitempty"`

	DRAM        timeline.Measure   `json:"dram_bandwidth_utilization"`
	SM          timeline.Measure   `json:"sm_utilization"`
	Tensor      timeline.Measure   `json:"tensor_utilization"`
	Graphics    timeline.Measure   `json:"graphics_utilization"`
	SMClockHz   timeline.Measure   `json:"sm_clock_hz"`
	PowerW      timeline.Measure   `json:"power_w"`
	Temperature timeline.Measure   `json:"temperature_celsius"`
	ThrottledS  map[string]float64 `json:"throttled_s,omitempty"` // by reason
	Windows     int                `json:"windows"`
	CoveredS    float64            `json:"covered_s"`
}

// Decode is what bounded decode, over the cells in which something decoded.
type Decode struct {
	Shares     Maybe[timeline.Shares]   `json:"shares"`
	Roof       Maybe[timeline.Interval] `json:"roof_interval"`
	Bound      timeline.Label           `json:"bound"`
	Reason     string                   `json:"reason,omitempty"` // what the label rests on, or why it is withheld
	Confidence timeline.Confidence      `json:"confidence"`
	HeldDown   []string                 `json:"confidence_held_down_by,omitempty"`
	Refute     string                   `json:"refuted_if,omitempty"`
	Rank       string                   `json:"rank,omitempty"`           // UUID of the GPU that the others wait for, where that bounded decode
	Overlays   []timeline.Overlay       `json:"overlays,omitempty"`       // that held for a tenth of the decoding time or more
	Beside     []OverlayPart            `json:"overlay_shares,omitempty"` // all there were
	Mixture    []correlate.Part         `json:"mixture"`                  // of the decoding time
	OverTime   []Stretch                `json:"over_time,omitempty"`      // where what bounded decode changed; empty where it did not

	Windows     int              `json:"windows"`
	DecodeS     float64          `json:"decode_s"`
	CoveredS    float64          `json:"covered_s"`
	ResolutionS timeline.Measure `json:"resolution_s"` // mean length of a counter window

	DRAM          timeline.Measure `json:"dram_bandwidth_utilization"`
	SM            timeline.Measure `json:"sm_utilization"`
	Tensor        timeline.Measure `json:"tensor_utilization"`
	BytesPerStep  Bytes            `json:"bytes_per_step"`
	BytesPerToken Bytes            `json:"bytes_per_token"`
	MBU           timeline.Measure `json:"mbu"` // bytes the model must move over what the DRAM could

	// AgainstSheet is what the DRAM reached under memory-bound decode, of what is achievable of its kind; nothing without.
	AgainstSheet   *verdict.Sheet           `json:"against_sheet,omitempty"`
	ClockAtMost    timeline.Measure         `json:"clock_at_most"`         // of TPOT, what clocks below those of the data sheet may have added
	Rho            timeline.Measure         `json:"rho"`                   // measured DRAM bytes over modelled ones, of the same steps
	RhoBand        Maybe[timeline.Interval] `json:"rho_band"`              // where rho is no finding
	RhoReasons     []string                 `json:"rho_band_of,omitempty"` // what makes the band wide
	ThrottledShare timeline.Measure         `json:"throttled_share"`       // of the GPUs' decoding time
}

// Finding reports whether measured DRAM bytes lie outside of where the byte model and what it does not know allow.
func (d *Decode) Finding() bool {
	b := d.RhoBand.Value
	return d.Rho.OK() && d.RhoBand.OK() && (d.Rho.Value < b.Low || d.Rho.Value > b.High)
}

// OverlayPart is a circumstance and the part of the decoding time for which it held.
type OverlayPart struct {
	Overlay timeline.Overlay `json:"overlay"`
	Share   float64          `json:"share"`
}

// Stretch is a time over which one label held at least 60 % of the decode, or none did. Shorter ones are part of it.
type Stretch struct {
	Target  string         `json:"target,omitempty"` // where there are several
	Label   timeline.Label `json:"label"`
	StartS  float64        `json:"start_s"` // since the start of the report's span
	EndS    float64        `json:"end_s"`
	Seconds float64        `json:"seconds"` // of decode in between
	Share   float64        `json:"share"`   // of the target's decoding time
}

// Bytes is DRAM traffic as the counters measured it and as the byte model expects it.
type Bytes struct {
	Measured timeline.Measure `json:"measured"`
	Modelled timeline.Measure `json:"modelled"`
}

// Group is the requests of like output length and concurrency. TPOT depends on both, so that only like is compared
// with like.
type Group struct {
	OutputTokens Range        `json:"output_tokens"`
	Concurrency  Maybe[Range] `json:"concurrency"` // mean requests that decoded along
	Requests     int          `json:"requests"`
	TPOT         Stat         `json:"tpot_s"`
}

// Range is a bin: from Low up to and without High, or without end where High is zero.
type Range struct {
	Low  float64 `json:"low"`
	High float64 `json:"high,omitempty"`
}

// Maybe is a value, or the reason why there is none.
type Maybe[T any] struct {
	Value T
	Why   string // not empty: there is no value, and this is why
}

// OK reports whether there is a value.
func (m Maybe[T]) OK() bool { return m.Why == "" }

// MarshalJSON writes the value, or {"absent": "why"}.
func (m Maybe[T]) MarshalJSON() ([]byte, error) {
	if !m.OK() {
		return json.Marshal(absent{m.Why})
	}
	return json.Marshal(m.Value)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Maybe[T]) UnmarshalJSON(b []byte) error {
	*m = Maybe[T]{}
	var a absent
	if err := json.Unmarshal(b, &a); err == nil && a.Absent != "" {
		m.Why = a.Absent
		return nil
	}
	if err := json.Unmarshal(b, &m.Value); err != nil {
		return fmt.Errorf("read value: %w", err)
	}
	return nil
}

// absent is the JSON form of what has no value.
type absent struct {
	Absent string `json:"absent"`
}
