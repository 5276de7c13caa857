// Package latency turns the stamps of one request into its latencies: TTFT, TPOT and their kin, each a number or the
// reason why there is none. It knows no GPU and no other request.
//
// Tools give one name to different figures, so here is what each means. TTFT ends at the first event that bore
// tokens, never at a role or an empty chunk. TPOT leaves out the tokens of the first event, for nobody saw how long
// they took. ICL are the gaps between events as they came. ITL are gaps by token: an event of k tokens that came g
// after the one before stands for k gaps of g/k, so that the series adds up to the time from first to last and no
// token has a gap of zero because it shared an event.
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

// Why a latency is absent.
const (
	WhyNotStreamed = "the reply was not streamed"
	WhyNoToken     = "no token came"
	WhyNotSent     = "the time of sending is not known"
	WhyNotDone     = "the request did not end"
	WhyOrder       = "its stamps are out of order"
	WhyNoCount     = "no token count was told"
	WhyHidden      = "hidden tokens were counted, and how many is not told"
	WhyReasoning   = "reasoning tokens were counted, and no event tells whether they were streamed"
	WhyOneToken    = "fewer than two output tokens"
	WhyAllInFirst  = "all tokens came in the first event"
	WhyCounts      = "token counts contradict each other"
	WhyOneStamp    = "all events share one stamp"
	WhyOneEvent    = "fewer than two events"
	WhyEventsLost  = "its events are not all kept"
	WhyEventCounts = "tokens per event are not told"
	WhyFewEvents   = "too few events for a line"
	WhyManyChoices = "several choices share the stream"
)

const (
	// coalescedLimit is the share of events without a stamp of their own above which gaps are flagged.
	coalescedLimit = 0.05
	// backlogShare of the median is the first gap under which tokens are held to have piled up behind the first event.
	backlogShare = 0.2
	// A stall is a gap over stallFactor medians: a prompt's chunk in the batch makes a step two or three times as
	// long, and that is interference, not a stall. It is also over stallFloor, half of the shortest window in which a
	// GPU's counters mean anything: what is shorter can be held against no counter, and is within the reach of a busy
	// client's scheduler.
	stallFactor = 5
	stallFloor  = 0.050
)

// Of returns what the stamps of r and of its token events say. Events that bear no tokens are passed over. Without
// events, or when some were dropped, it falls back to what r itself holds, and gaps are absent.
func Of(r *timeline.Request, events []timeline.TokenEvent) Record {
	s := read(r, events)
	rec := Record{Flags: r.Flags, N: s.n, KFirst: s.kFirst}
	rec.TTFT, rec.E2E = ttft(r, s.first), e2e(r)
	rec.FirstGap, rec.Slope = timeline.Absent(WhyOneEvent), timeline.Absent(WhyFewEvents)
	rec.TPOT, rec.TPOTN1 = s.tpot(s.kFirst), s.tpot(1)
	if !s.counted {
		rec.Flags |= timeline.FlagNoCount
	}
	if s.assumed {
		rec.Flags |= timeline.FlagFirstAssumed
	}
	if s.mismatch {
		rec.Flags |= timeline.FlagCountMismatch
	}
	if s.choices > 1 {
		rec.Flags |= timeline.FlagMultipleChoices
	}
	if seen := max(len(s.events), r.Events); seen > 0 {
		rec.CoalescedShare = min(1, float64(max(s.coalesced, r.Coalesced))/float64(seen))
	}
	if rec.CoalescedShare > coalescedLimit {
		rec.Flags |= timeline.FlagCoalesced
	}
	if s.whole {
		rec.addGaps(s)
	} else if len(s.events) > 0 || r.Events > 0 {
		rec.FirstGap, rec.Slope = timeline.Absent(WhyEventsLost), timeline.Absent(WhyEventsLost)
	}
	return rec
}

// ttft returns the time from sent to the first token.
func ttft(r *timeline.Request, first timeline.Instant) timeline.Measure {
	switch {
	case first.IsZero() && !r.Streaming && r.Status == timeline.StatusOK:
		return timeline.Absent(WhyNotStreamed)
	case first.IsZero():
		return timeline.Absent(WhyNoToken)
	case r.Sent.IsZero():
		return timeline.Absent(WhyNotSent)
	case first < r.Sent:
		return timeline.Absent(WhyOrder)
	}
	return timeline.Known(first.Sub(r.Sent).Seconds())
}

// e2e returns the time from sent to done.
func e2e(r *timeline.Request) timeline.Measure {
	switch {
	case r.Sent.IsZero():
		return timeline.Absent(WhyNotSent)
	case r.Done.IsZero():
		return timeline.Absent(WhyNotDone)
	case r.Done < r.Sent:
		return timeline.Absent(WhyOrder)
	}
	return timeline.Known(r.Done.Sub(r.Sent).Seconds())
}
