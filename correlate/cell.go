// Package correlate joins counters, token events and what the engine tells on one clock: it cuts the time of each
// target into cells, says what bounded each, and gives every finished request its decode phase. It is a deterministic
// state machine: the same input in the same order gives the same output. It reads no clock and waits for nothing.
package correlate

import (
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Mean is the average of one counter over a cell, over the seconds in which trusted readings covered it. A counter
// that was never covered has no value. A cumulative counter's mean is its growth per second. Event reasons have no
// mean: their time is in ThrottledS.
type Mean struct {
	Value    float64
	CoveredS float64
}

// OK reports whether the mean rests on anything.
func (m Mean) OK() bool { return m.CoveredS > 0 }

// Cell is what is known of one target over one cell of time (a second by default).
type Cell struct {
	Target string
	Span   timeline.Span

	// From the probe.
	Tokens     float64 // output tokens that came to clients
	Active     float64 // mean requests in flight
	Decoding   float64 // mean requests between their first and last token
	WindowTPOT timeline.Measure

	TokensEstimated bool // some tokens had no count or no time of their own: an event counts as one, a whole reply is spread out

	// From the engine, or from the probe where it sees all traffic; Why says what is missing.
	Batch        timeline.Measure // mean running requests
	Waiting      timeline.Measure
	OutputTokens timeline.Measure // generated
	PromptTokens timeline.Measure // processed
	ContextSum   timeline.Measure // tokens of context over the whole batch
	KVUsage      timeline.Measure
	Preemptions  timeline.Measure
	Steps        timeline.Measure
	EngineTPOT   timeline.Measure // s, growth of the engine's own ITL sum over its count
	Coverage     timeline.Measure // the probe's output tokens over the engine's

	// From the counters, averaged over the target's GPUs.
	Counters      [timeline.NumCounters]Mean
	PerGPU        []GPUCell
	Windows       int     // trusted windows inside the cell
	CoveredS      float64 // seconds of the cell that trusted windows cover
	DRAMBytes     timeline.Measure
	ThrottledS    float64          // GPU-seconds under a throttle reason, over the target's GPUs
	ModelledBytes timeline.Measure // DRAM traffic that the byte model expects

	// Said.
	Decode  bool // at least one request decoded in the cell, by the probe or the engine
	Verdict verdict.Verdict
	Level   timeline.EvidenceLevel
}

// GPUCell is one GPU's part of a cell.
type GPUCell struct {
	GPU        int // position in the list of GPUs
	UUID       string
	Counters   [timeline.NumCounters]Mean
	Windows    int
	CoveredS   float64
	DRAMBytes  timeline.Measure
	ThrottledS map[string]float64 // by reason
}

// Part is a label's part of a phase.
type Part struct {
	Label timeline.Label `json:"label"`
	Share float64        `json:"share"`
}

// Phase is one finished request and its decode.
type Phase struct {
	Request timeline.Request
	Latency latency.Record

	Concurrency timeline.Measure // mean requests decoding with it on its target
	Counters    [timeline.NumCounters]Mean
	Windows     int    // whole windows inside the decode
	Mixture     []Part // time-weighted verdicts of the cells the decode spans, largest first
	Label       timeline.Label
	Reason      string // why Label is undetermined
	Confidence  timeline.Confidence
	Shares      timeline.Shares
	Grade       timeline.Grade
	ThrottledS  float64
	Overlays    []timeline.Overlay
	DRAMBytes   timeline.Measure // moved by the whole target during the decode, shared with the rest of the batch
	Warmup      bool
	ClockBoundS float64
}
