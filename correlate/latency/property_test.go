package latency_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestAnyRecordIsSound feeds arbitrary stamps and counts.
func TestAnyRecordIsSound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for trial := range 20_000 {
		r, events := arbitrary(rng)
		got := latency.Of(&r, events)
		for name, m := range map[string]timeline.Measure{
			"TTFT": got.TTFT, "TPOT": got.TPOT, "TPOTN1": got.TPOTN1, "E2E": got.E2E, "FirstGap": got.FirstGap, "Slope": got.Slope,
		} {
			if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || m.Value < 0 || !m.OK() && m.Value != 0 {
				t.Fatalf("trial %d: %s = %+v", trial, name, m)
			}
		}
		if got.TPOT.OK() && (got.TPOT.Value == 0 || got.N < 2 || got.N == got.KFirst) {
			t.Fatalf("trial %d: TPOT %v of %d tokens, %d in the first event", trial, got.TPOT.Value, got.N, got.KFirst)
		}
		sum := 0.0
		for _, g := range append(got.ITL, got.ICL...) {
			if g < 0 || math.IsNaN(g) {
				t.Fatalf("trial %d: gap %v", trial, g)
			}
		}
		for _, g := range got.ITL {
			sum += g
		}
		if r.Choices <= 1 && len(got.ITL) > 0 && got.TPOT.OK() {
			if want := got.TPOT.Value * float64(got.N-got.KFirst); math.Abs(sum-want) > 1e-9 || len(got.ITL) != got.N-got.KFirst {
				t.Fatalf("trial %d: %d token gaps sum to %v, want %d and %v", trial, len(got.ITL), sum, got.N-got.KFirst, want)
			}
		}
		for _, s := range got.Stalls {
			if s.Over.Empty() || math.Abs(s.Over.Duration().Seconds()-s.Seconds) > 1e-9 {
				t.Fatalf("trial %d: stall %+v", trial, s)
			}
		}
		if got.CoalescedShare < 0 || got.CoalescedShare > 1 {
			t.Fatalf("trial %d: coalesced share %v", trial, got.CoalescedShare)
		}
	}
}

// arbitrary returns a request and events as a broken observer might hand them over.
func arbitrary(rng *rand.Rand) (timeline.Request, []timeline.TokenEvent) {
	stamp := func() timeline.Instant {
		if rng.IntN(8) == 0 {
			return 0
		}
		return at(float64(rng.IntN(2000)))
	}
	r := timeline.Request{
		Sent: stamp(), First: stamp(), Last: stamp(), Done: stamp(), Streaming: rng.IntN(4) > 0,
		OutputTokens: rng.IntN(12) - 1, Counted: timeline.CountSource(rng.IntN(7)), ReasoningTokens: rng.IntN(3) * rng.IntN(8),
		FirstTokens: rng.IntN(3), Events: rng.IntN(10), Coalesced: rng.IntN(12), Choices: 1 + rng.IntN(2)*rng.IntN(2),
		Flags: timeline.Flags(1<<rng.IntN(16)) * timeline.Flags(rng.IntN(2)), Status: timeline.Status(rng.IntN(8)),
	}
	source := timeline.CountSource(rng.IntN(7))
	var events []timeline.TokenEvent
	clock := 100.0
	for range rng.IntN(12) {
		e := timeline.TokenEvent{
			At: at(clock), Tokens: rng.Int32N(5) - 1, Source: source, Kind: timeline.TokenKind(rng.IntN(11)), Coalesced: rng.IntN(5) == 0,
		}
		if r.Choices > 1 {
			e.Choice = rng.Int32N(2)
		}
		switch rng.IntN(10) {
		case 0:
			e.At = stamp()
		case 1:
			e.Source = timeline.CountSource(rng.IntN(7))
		}
		events = append(events, e)
		clock += float64(rng.IntN(100))
	}
	return r, events
}
