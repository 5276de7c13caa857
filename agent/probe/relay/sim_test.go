package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestASimulatedEngineIsUnderstood puts the relay in front of a simulated engine, whose writer shares no code with the
// reader here, so that a misreading of either shows.
func TestASimulatedEngineIsUnderstood(t *testing.T) {
	clock, err := hostclock.New()
	if err != nil {
		t.Fatal(err)
	}
	sim, err := llmsim.New(llmsim.Config{Model: "sim", Now: clock.Now, Epoch: clock.Now(), Free: llmsim.Pace{TTFT: 20 * time.Millisecond, TPOT: 5 * time.Millisecond, Tokens: 20}})
	if err != nil {
		t.Fatal(err)
	}
	g := newRig(t, server(t, sim.ServeHTTP), nil)
	const (
		jitter     = time.Millisecond // between the two clocks that the kernel's stamps go by
		final      = `"stream_options":{"include_usage":true}`
		continuous = `"stream_options":{"include_usage":true,"continuous_usage_stats":true}`
		ids        = `"return_token_ids":true`
	)
	tests := []struct {
		name, path, ask, fault string
		want                   timeline.Status
		counted                timeline.CountSource
		tokens, first, events  int
	}{
		{"a final usage", chatPath, final, "", timeline.StatusOK, timeline.CountFinal, 20, 1, 20},
		{"a cumulative usage", chatPath, continuous, "", timeline.StatusOK, timeline.CountUsage, 20, 1, 20},
		{"token ids", chatPath, ids, "", timeline.StatusOK, timeline.CountIDs, 20, 1, 20},
		{"no count", chatPath, `"user":"u"`, "", timeline.StatusOK, timeline.CountNone, 0, 0, 20},
		{"a completion", "/v1/completions", `"prompt":"p",` + continuous, "", timeline.StatusOK, timeline.CountUsage, 20, 1, 20},
		{"an early role chunk", chatPath, continuous, "earlyrole", timeline.StatusOK, timeline.CountUsage, 20, 1, 20},
		{"merged tokens", chatPath, continuous, "merge=4", timeline.StatusOK, timeline.CountUsage, 20, 4, 5},
		{"merged tokens with ids", chatPath, ids, "merge=4", timeline.StatusOK, timeline.CountIDs, 20, 4, 5},
		{"an error after five tokens", chatPath, continuous, "error=5", timeline.StatusInBand, timeline.CountUsage, 5, 1, 5},
		{"a cut after five tokens", chatPath, continuous, "cut=5", timeline.StatusTruncated, timeline.CountUsage, 5, 1, 5},
		{"no terminal marker", chatPath, continuous, "nodone", timeline.StatusOK, timeline.CountUsage, 20, 1, 20},
		{"an error status", chatPath, continuous, "status=503", timeline.StatusHTTPError, timeline.CountNone, 0, 0, 0},
	}
	c := client(t)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := clock.Now()
			body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":20,%s}`, tt.ask)
			post(t, c, g.url+tt.path, body, llmsim.FaultHeader, tt.fault)
			r := g.settle(t, i+1)[i]
			if r.Status != tt.want || r.Counted != tt.counted {
				t.Errorf("record says %v, counted by %v, want %v, %v", r.Status, r.Counted, tt.want, tt.counted)
			}
			if r.OutputTokens != tt.tokens || r.FirstTokens != tt.first || r.Events != tt.events {
				t.Errorf("tokens %d, first %d, events %d, want %d, %d, %d", r.OutputTokens, r.FirstTokens, r.Events, tt.tokens, tt.first, tt.events)
			}
			if tt.want != timeline.StatusOK || tt.events != 20 {
				return
			}
			// The engine's pace counts from when the request came, which is after it was sent: a busy machine makes any
			// token late, but none early, so that no gap between two of them tells anything.
			if first, last := r.First.Sub(before), r.Last.Sub(before); first < 20*time.Millisecond-jitter || last < 115*time.Millisecond-jitter {
				t.Errorf("first and last token came %v and %v after the request, want 20 and 115 ms at least", first, last)
			}
		})
	}
}
