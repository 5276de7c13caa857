// Package correlate joins counters, token events and what the engine tells on one clock: it cuts the time of each
// target into cells, says what bounded each, and gives every finished request its decode phase. It is a deterministic
// state machine: the same input in the same order gives the same output. It reads no clock and waits for nothing.
package correlate

import (
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/steps"
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
	Data   timeline.Span // from the first to the last that was read in Span, of any GPU and target; empty if nothing was

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
	Steps        timeline.Measure // iterations; from the arrivals of tokens where the engine does not count them
	EngineTPOT   timeline.Measure // s, growth of the engine's own ITL sum over its count
	Coverage     timeline.Measure // the probe's output tokens over the engine's, between the newest scrapes
	Matched      Matched          // both counts between the scrapes that end in the cell

	// Step is the mean step: of the engine's own count, else as tokens arrived. StepConflict says how the two contradict each
	// other, and is empty where they do not or only one is known.
	Step         steps.Reading
	StepConflict string

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
	Overlays    []timeline.Overlay // that held for a tenth of the decode or more
	DRAMBytes   timeline.Measure   // moved by the whole target during the decode, shared with the rest of the batch
	Warmup      bool
	ClockBoundS float64
}

// Matched is what the probe and the engine counted between the same scrapes: from the instant of one to the instant of
// the next, so that neither count has edges that the other has not.
type Matched struct {
	Over      timeline.Span // from the first scrape to the last
	Intervals int           // between neighbouring scrapes
	Probe     float64       // output tokens that came to clients
	Engine    float64       // output tokens that the engine counted
	Slack     float64       // tokens that may be counted and not have come at either end: one for each running request
}

// Add takes in another stretch.
func (m *Matched) Add(o Matched) {
	m.Over = m.Over.Union(o.Over)
	m.Intervals += o.Intervals
	m.Probe, m.Engine, m.Slack = m.Probe+o.Probe, m.Engine+o.Engine, max(m.Slack, o.Slack)
}

const (
	minIntervals = 2  // whole ones between scrapes, for a coverage
	minSteps     = 40 // so that what is on its way at the ends is at most one part in forty of all
	// coverageSpan is the span over which a cell compares the probe's tokens with the engine's; where it holds too few,
	// up to coverageMost.
	coverageSpan = 10 * time.Second
	coverageMost = time.Minute
)

// enough reports whether the counts say what part of the traffic the probe saw, whatever is on its way at the ends.
func (m *Matched) enough() bool {
	return m.Intervals >= minIntervals && m.Engine >= minSteps*m.Slack
}

// Coverage returns the probe's tokens over the engine's, or why that says nothing.
func (m *Matched) Coverage() timeline.Measure {
	switch {
	case m.Intervals < minIntervals:
		return timeline.Absent("fewer than two whole intervals between scrapes")
	case m.Engine <= 0:
		return timeline.Absent("the engine made no output tokens")
	case !m.enough():
		return timeline.Absent("too few output tokens between scrapes")
	}
	return timeline.Known(m.Probe / m.Engine)
}

// match places the scrapes of the cell among the tokens that came, and compares both counts between neighbours.
func (t *target) match(c *Cell, b *bin) Matched {
	var out Matched
	for i := range t.scrapes.ring.Len() {
		s := t.scrapes.ring.At(i)
		if !c.Span.Contains(s.at) {
			continue
		}
		s.came, s.placed = t.came+b.until(s.at.Sub(c.Span.Start).Seconds()/c.Span.Duration().Seconds()), true
		if i == 0 {
			continue
		}
		a := t.scrapes.ring.At(i - 1)
		whole := a.placed && !s.apart && !s.restart && s.at.Sub(a.at) <= maxScrapeGap
		if !whole || !a.told(timeline.OutputTotal) || !s.told(timeline.OutputTotal) {
			continue
		}
		slack := max(1, c.Decoding, a.v[timeline.Running], s.v[timeline.Running])
		out.Add(Matched{
			Over: timeline.Span{Start: a.at, End: s.at}, Intervals: 1, Slack: slack,
			Probe: s.came - a.came, Engine: s.v[timeline.OutputTotal] - a.v[timeline.OutputTotal],
		})
	}
	t.came += b.tokens
	return out
}

// coverage returns the probe's output over the engine's between the newest scrapes, before at.
func (t *target) coverage(now Matched, at timeline.Instant) timeline.Measure {
	if now.Intervals > 0 {
		t.seen = append(t.seen, now)
	}
	var sum Matched
	first := len(t.seen)
	for ; first > 0; first-- {
		m := &t.seen[first-1]
		if m.Over.End <= at.Add(-coverageMost) || m.Over.End <= at.Add(-coverageSpan) && sum.enough() {
			break
		}
		sum.Add(*m)
	}
	t.seen = slices.Delete(t.seen, 0, first)
	if t.scrapes.seen&(1<<timeline.OutputTotal) == 0 {
		return timeline.Absent("the engine tells no output tokens")
	}
	return sum.Coverage()
}

// bin is what came to clients in one cell that is not closed yet.
type bin struct {
	tokens, decoded   float64 // decoded leaves out the first event of each request
	events, estimated int
	coalesced         int
	fine              [finePerCell]float64 // tokens by their place in the cell
}

// tokensOf returns the tokens of an event, and whether that is a guess: an event that tells no count of its own counts as
// one until the request's total is known. An event that tells a count of zero bears nothing, as in [latency.Of].
func tokensOf(ev *timeline.TokenEvent) (float64, bool) {
	switch ev.Source {
	case timeline.CountIDs, timeline.CountUsage, timeline.CountLogprobs, timeline.CountPerEvent:
		return float64(ev.Tokens), false
	case timeline.CountFinal, timeline.CountEstimated:
		return max(1, float64(ev.Tokens)), true
	case timeline.CountNone:
	}
	return 1, true
}

// finePerCell is into how many parts a cell is cut to tell how many tokens had come when an engine was scraped.
const finePerCell = 50

// until returns the tokens that came in the first part of the cell.
func (b *bin) until(part float64) float64 {
	whole := min(finePerCell, max(0, int(part*finePerCell)))
	var n float64
	for _, f := range b.fine[:whole] {
		n += f
	}
	if whole < finePerCell {
		n += b.fine[whole] * max(0, part*finePerCell-float64(whole))
	}
	return n
}

// maxBins bounds how far ahead of the last closed cell tokens may lie.
const maxBins = 4096

// bins are the open cells' bins, the first of them for the cell with number base.
type bins struct {
	base   int64
	floor  int64 // cells below are closed; meaningless while nothing is
	closed bool
	bin    []bin
}

// at returns the bin of cell i, nil if that cell is closed or too far from the others.
func (b *bins) at(i int64) *bin {
	if b.closed && i < b.floor {
		return nil
	}
	if len(b.bin) == 0 {
		b.base = i
	}
	if i < b.base {
		if b.base-i+int64(len(b.bin)) > maxBins {
			return nil
		}
		b.bin = append(make([]bin, b.base-i), b.bin...)
		b.base = i
	}
	if i-b.base >= maxBins {
		return nil
	}
	for int64(len(b.bin)) <= i-b.base {
		b.bin = append(b.bin, bin{})
	}
	return &b.bin[i-b.base]
}

// pop returns the bin of cell i and closes that cell and all before.
func (b *bins) pop(i int64) bin {
	var out bin
	if k := i - b.base; len(b.bin) > 0 && k >= 0 {
		if k < int64(len(b.bin)) {
			out = b.bin[k]
		}
		n := copy(b.bin, b.bin[min(k+1, int64(len(b.bin))):])
		b.bin, b.base = b.bin[:n], i+1
	}
	b.floor, b.closed = i+1, true
	return out
}

// next returns the number of the first cell with an event.
func (b *bins) next() (int64, bool) {
	for i := range b.bin {
		if b.bin[i].events > 0 {
			return b.base + int64(i), true
		}
	}
	return 0, false
}

// fine returns in which part of its cell t lies.
func (e *Engine) fine(t timeline.Instant) int {
	return int(t.Sub(e.cellStart(e.index(t))) * finePerCell / e.cfg.Cell)
}

// cellSpan returns the span of the cell with number i.
func (e *Engine) cellSpan(i int64) timeline.Span {
	start := timeline.Instant(i * int64(e.cfg.Cell))
	return timeline.Span{Start: start, End: start.Add(e.cfg.Cell)}
}
