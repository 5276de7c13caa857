package latency_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const start = timeline.Instant(1e12)

// at returns the instant ms milliseconds after the start.
func at(ms float64) timeline.Instant { return start.Add(time.Duration(ms * float64(time.Millisecond))) }

// ids returns an event of k tokens, counted by their ids.
func ids(ms float64, k int32) timeline.TokenEvent {
	return timeline.TokenEvent{At: at(ms), Tokens: k, Source: timeline.CountIDs, Kind: timeline.KindContent}
}

// text returns an event that does not tell its count.
func text(ms float64) timeline.TokenEvent {
	return timeline.TokenEvent{At: at(ms), Kind: timeline.KindContent}
}

// request returns a finished request of n tokens that was sent at the start and ended at ms.
func request(n int, src timeline.CountSource, ms float64) timeline.Request {
	return timeline.Request{Sent: start, Done: at(ms), Streaming: true, OutputTokens: n, Counted: src, Choices: 1}
}

// steady returns n events of one token, every gap ms long, the first at 100 ms.
func steady(n int, gap float64) []timeline.TokenEvent {
	out := make([]timeline.TokenEvent, n)
	for i := range out {
		out[i] = ids(100+gap*float64(i), 1)
	}
	return out
}

var approx = cmpopts.EquateApprox(0, 1e-9)

func TestWorkedStream(t *testing.T) {
	// A role chunk at 10 ms, tokens at 100, 120, 160 (two) and 180, usage at 181, the end at 182. Tools print a TTFT of
	// 10 or 100 ms and a TPOT of 20, 20.5, 36 or 42.5 ms for it, by what they take for the first token and for the end.
	r := request(5, timeline.CountFinal, 182)
	events := []timeline.TokenEvent{
		{At: at(10), Kind: timeline.KindRole},
		ids(100, 1), ids(120, 1), ids(160, 2), ids(180, 1),
		{At: at(181), Kind: timeline.KindUsage},
		{At: at(182), Kind: timeline.KindDone},
	}
	got := latency.Of(&r, events)
	want := latency.Record{
		TTFT: timeline.Known(0.100), TPOT: timeline.Known(0.020), TPOTN1: timeline.Known(0.020), E2E: timeline.Known(0.182),
		FirstGap: timeline.Known(0.020), Slope: timeline.Absent(latency.WhyFewEvents),
		N: 5, KFirst: 1,
		ITL: []float64{0.02, 0.02, 0.02, 0.02}, ICL: []float64{0.02, 0.04, 0.02},
	}
	if diff := cmp.Diff(want, got, approx); diff != "" {
		t.Errorf("Of() mismatch (-want +got):\n%s", diff)
	}
}

func TestTPOT(t *testing.T) {
	final := timeline.CountFinal
	for _, tt := range []struct {
		name   string
		r      timeline.Request
		events []timeline.TokenEvent
		want   timeline.Measure
		n1     timeline.Measure
		kFirst int
		flags  timeline.Flags
	}{
		{
			name: "tokens of the first event are left out", r: request(9, final, 300),
			events: []timeline.TokenEvent{ids(100, 5), ids(140, 1), ids(180, 1), ids(220, 2)},
			want:   timeline.Known(0.030), n1: timeline.Known(0.015), kFirst: 5,
		},
		{
			name: "the first event is assumed to bear one token where nothing tells", r: request(7, final, 300),
			events: []timeline.TokenEvent{text(100), text(130), text(160)},
			want:   timeline.Known(0.010), n1: timeline.Known(0.010), kFirst: 1, flags: timeline.FlagFirstAssumed,
		},
		{
			name: "as many events as tokens bear one each", r: request(3, final, 300),
			events: []timeline.TokenEvent{text(100), text(130), text(160)},
			want:   timeline.Known(0.030), n1: timeline.Known(0.030), kFirst: 1,
		},
		{
			name: "one token has no time per token", r: request(1, final, 110), events: []timeline.TokenEvent{ids(100, 1)},
			want: timeline.Absent(latency.WhyOneToken), n1: timeline.Absent(latency.WhyOneToken), kFirst: 1,
		},
		{
			name: "a reply in one event has none", r: request(8, final, 110), events: []timeline.TokenEvent{ids(100, 8)},
			want: timeline.Absent(latency.WhyAllInFirst), n1: timeline.Absent(latency.WhyAllInFirst), kFirst: 8,
		},
		{
			name: "no count, no time per token", r: request(0, timeline.CountNone, 300),
			events: []timeline.TokenEvent{text(100), text(130), text(160)},
			want:   timeline.Absent(latency.WhyNoCount), n1: timeline.Absent(latency.WhyNoCount), flags: timeline.FlagNoCount,
		},
		{
			name: "hidden reasoning of known length comes off", r: with(request(105, final, 300), func(r *timeline.Request) { r.ReasoningTokens = 100 }),
			events: []timeline.TokenEvent{text(100), text(120), text(140), text(160), text(180)},
			want:   timeline.Known(0.020), n1: timeline.Known(0.020), kFirst: 1,
		},
		{
			name:   "hidden reasoning that the observer took off already stays off",
			r:      with(request(5, final, 300), func(r *timeline.Request) { r.ReasoningTokens = 100 }),
			events: []timeline.TokenEvent{text(100), text(120), text(140), text(160), text(180)},
			want:   timeline.Known(0.020), n1: timeline.Known(0.020), kFirst: 1,
		},
		{
			name:   "hidden tokens withhold it where the stream tells its own counts too",
			r:      with(request(3, timeline.CountIDs, 300), func(r *timeline.Request) { r.Flags = timeline.FlagHiddenTokens }),
			events: []timeline.TokenEvent{ids(100, 1), ids(120, 1), ids(140, 1)},
			want:   timeline.Absent(latency.WhyHidden), n1: timeline.Absent(latency.WhyHidden), kFirst: 1, flags: timeline.FlagHiddenTokens,
		},
		{
			name: "streamed reasoning stays", r: with(request(5, final, 300), func(r *timeline.Request) { r.ReasoningTokens = 2 }),
			events: []timeline.TokenEvent{reasoning(100), reasoning(120), text(140), text(160), text(180)},
			want:   timeline.Known(0.020), n1: timeline.Known(0.020), kFirst: 1,
		},
		{
			name: "hidden tokens of unknown number withhold it", r: with(request(105, final, 300), func(r *timeline.Request) { r.Flags = timeline.FlagHiddenTokens }),
			events: []timeline.TokenEvent{text(100), text(120)},
			want:   timeline.Absent(latency.WhyHidden), n1: timeline.Absent(latency.WhyHidden), kFirst: 1,
			flags: timeline.FlagHiddenTokens | timeline.FlagFirstAssumed,
		},
		{
			name: "counts on the stream beat the total", r: request(6, final, 300),
			events: []timeline.TokenEvent{ids(100, 1), ids(120, 1), ids(140, 1)},
			want:   timeline.Known(0.020), n1: timeline.Known(0.020), kFirst: 1, flags: timeline.FlagCountMismatch,
		},
		{
			name: "events of one stamp say nothing of pace", r: request(3, final, 300),
			events: []timeline.TokenEvent{ids(100, 1), ids(100, 1), ids(100, 1)},
			want:   timeline.Absent(latency.WhyOneStamp), n1: timeline.Absent(latency.WhyOneStamp), kFirst: 1,
		},
		{
			name: "without events the request's own stamps serve",
			r: with(request(11, final, 300), func(r *timeline.Request) {
				r.First, r.Last, r.FirstTokens, r.Events = at(100), at(200), 1, 11
			}),
			want: timeline.Known(0.010), n1: timeline.Known(0.010), kFirst: 1,
		},
		{
			name: "without events nobody knows whether reasoning was streamed",
			r: with(request(11, final, 300), func(r *timeline.Request) {
				r.First, r.Last, r.FirstTokens, r.Events, r.ReasoningTokens = at(100), at(200), 1, 11, 4
			}),
			want: timeline.Absent(latency.WhyReasoning), n1: timeline.Absent(latency.WhyReasoning), kFirst: 1,
		},
		{
			name: "a request that failed before its first token has none",
			r:    with(request(0, timeline.CountNone, 5), func(r *timeline.Request) { r.Status = timeline.StatusHTTPError }),
			want: timeline.Absent(latency.WhyNoToken), n1: timeline.Absent(latency.WhyNoToken), flags: timeline.FlagNoCount,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := latency.Of(&tt.r, tt.events)
			if diff := cmp.Diff(tt.want, got.TPOT, approx); diff != "" {
				t.Errorf("TPOT mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.n1, got.TPOTN1, approx); diff != "" {
				t.Errorf("TPOTN1 mismatch (-want +got):\n%s", diff)
			}
			if got.KFirst != tt.kFirst {
				t.Errorf("KFirst = %d, want %d", got.KFirst, tt.kFirst)
			}
			if got.Flags != tt.flags {
				t.Errorf("Flags = %v, want %v", got.Flags.Names(), tt.flags.Names())
			}
		})
	}
}

func with(r timeline.Request, change func(*timeline.Request)) timeline.Request {
	change(&r)
	return r
}

func reasoning(ms float64) timeline.TokenEvent {
	return timeline.TokenEvent{At: at(ms), Kind: timeline.KindReasoning}
}

func TestTTFTAndE2E(t *testing.T) {
	for _, tt := range []struct {
		name      string
		r         timeline.Request
		events    []timeline.TokenEvent
		ttft, e2e timeline.Measure
	}{
		{
			"a whole reply has no first token",
			timeline.Request{Sent: start, Done: at(50)},
			nil,
			timeline.Absent(latency.WhyNotStreamed), timeline.Known(0.050),
		},
		{
			"a request that was never sent has neither",
			timeline.Request{Streaming: true},
			steady(3, 10),
			timeline.Absent(latency.WhyNotSent), timeline.Absent(latency.WhyNotSent),
		},
		{
			"a first token before the sending is refused",
			timeline.Request{Sent: at(500), Done: at(10), Streaming: true},
			steady(3, 10),
			timeline.Absent(latency.WhyOrder), timeline.Absent(latency.WhyOrder),
		},
		{
			"an open request has no end",
			timeline.Request{Sent: start, Streaming: true},
			steady(3, 10),
			timeline.Known(0.100), timeline.Absent(latency.WhyNotDone),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := latency.Of(&tt.r, tt.events)
			if diff := cmp.Diff([]timeline.Measure{tt.ttft, tt.e2e}, []timeline.Measure{got.TTFT, got.E2E}, approx); diff != "" {
				t.Errorf("TTFT, E2E mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStallIsLocatedInTime(t *testing.T) {
	events := steady(60, 12)
	for i := 30; i < len(events); i++ {
		events[i].At += timeline.Instant(300 * time.Millisecond)
	}
	r := request(60, timeline.CountIDs, 2000)
	got := latency.Of(&r, events)
	if len(got.Stalls) != 1 {
		t.Fatalf("%d stalls, want one", len(got.Stalls))
	}
	if s := got.Stalls[0]; s.Over.Start != events[29].At || s.Over.End != events[30].At || math.Abs(s.Seconds-0.312) > 1e-9 {
		t.Errorf("stall %+v, want 312 ms between events 29 and 30", s)
	}
	if !got.Slope.OK() || math.Abs(got.Slope.Value-0.012) > 1e-9 {
		t.Errorf("slope %+v, want the 12 ms that hold outside the stall", got.Slope)
	}
	if got.TPOT.Value < 0.016 {
		t.Errorf("TPOT %v does not hold the stall", got.TPOT.Value)
	}
}

func TestBurstsOfOneReadAreNoStalls(t *testing.T) {
	var events []timeline.TokenEvent
	for i := range 80 {
		e := ids(100+80*float64(i/4), 1)
		e.Coalesced = i%4 != 3
		events = append(events, e)
	}
	r := request(80, timeline.CountIDs, 2000)
	got := latency.Of(&r, events)
	if len(got.Stalls) != 0 {
		t.Errorf("%d stalls in a stream that came four tokens a read", len(got.Stalls))
	}
	if got.CoalescedShare != 0.75 || got.Flags&timeline.FlagCoalesced == 0 {
		t.Errorf("coalesced share %v, flags %v", got.CoalescedShare, got.Flags.Names())
	}
}

func TestBacklogIsFlaggedAndLeftOutOfTheSlope(t *testing.T) {
	// Nine tokens piled up behind a late first event, and drained within a few milliseconds.
	events := []timeline.TokenEvent{ids(100, 1), ids(101, 4), ids(102, 4)}
	for i := range 40 {
		events = append(events, ids(102+20*float64(i+1), 1))
	}
	r := request(49, timeline.CountIDs, 2000)
	got := latency.Of(&r, events)
	if got.Flags&timeline.FlagBacklog == 0 {
		t.Errorf("flags %v lack the backlog", got.Flags.Names())
	}
	if math.Abs(got.Slope.Value-0.020) > 1e-9 {
		t.Errorf("slope %v, want 20 ms", got.Slope.Value)
	}
	if got.TPOT.Value > 0.0175 {
		t.Errorf("TPOT %v should be low: that is what the flag is for", got.TPOT.Value)
	}
}

func TestSpeculationKeepsSlopeAndTPOTTogether(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var events []timeline.TokenEvent
	n := 0
	for i := range 200 {
		k := 1 + r.Int32N(4)
		events = append(events, ids(100+30*float64(i), k))
		n += int(k)
	}
	req := request(n, timeline.CountIDs, 9000)
	got := latency.Of(&req, events)
	if ratio := got.Slope.Value / got.TPOT.Value; math.Abs(ratio-1) > 0.05 {
		t.Errorf("slope %v and TPOT %v part by more than 5 %%", got.Slope.Value, got.TPOT.Value)
	}
	if len(got.ICL) != 199 || len(got.ITL) != n-got.KFirst {
		t.Errorf("%d ICL and %d ITL, want 199 and %d", len(got.ICL), len(got.ITL), n-got.KFirst)
	}
}

func TestChoicesAreTimedApart(t *testing.T) {
	var events []timeline.TokenEvent
	for i := range 10 {
		for c := range 2 {
			e := ids(100+20*float64(i)+5*float64(c), 1)
			e.Choice = int32(c)
			events = append(events, e)
		}
	}
	r := request(20, timeline.CountIDs, 500)
	r.Choices = 2
	got := latency.Of(&r, events)
	for _, g := range got.ICL {
		if math.Abs(g-0.020) > 1e-9 {
			t.Fatalf("gap %v between choices, want the 20 ms within each", g)
		}
	}
	if got.Flags&timeline.FlagMultipleChoices == 0 || got.Slope.OK() {
		t.Errorf("flags %v, slope %+v", got.Flags.Names(), got.Slope)
	}
}

func BenchmarkOf(b *testing.B) {
	events := steady(500, 12)
	r := request(500, timeline.CountIDs, 9000)
	b.ReportAllocs()
	for b.Loop() {
		latency.Of(&r, events)
	}
}
