// Package latency turns the stamps of one request into its latencies: TTFT, TPOT and their kin, each a number or the
// reason why there is none. It knows no GPU and no other request.
package latency

import "github.com/tpotscope/tpotscope/correlate/timeline"

// Record is what one request's stamps say. Times are in seconds.
type Record struct {
	TTFT     timeline.Measure // first token-bearing event minus sent
	TPOT     timeline.Measure // (t_last - t_first) / (n - k_first)
	TPOTN1   timeline.Measure // (t_last - t_first) / (n - 1), the form most tools print
	E2E      timeline.Measure // done minus sent
	FirstGap timeline.Measure // from the first to the second token-bearing event
	Slope    timeline.Measure // s per token, robust line through cumulative tokens over time, first gap left out

	N      int // output tokens on the stream, hidden ones taken off
	KFirst int // tokens in the first token-bearing event

	ITL    []float64 // gap of each token after the first event; only where every event tells its count
	ICL    []float64 // gap of each token-bearing event after the first
	Stalls []Stall   // gaps that stand out, in order of time

	CoalescedShare float64 // of the token-bearing events
	Flags          timeline.Flags
}

// Stall is a gap far above the request's own median.
type Stall struct {
	Over    timeline.Span // from the event before the gap to the event after
	Seconds float64
}
