package correlate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// second is the request that test cases watch beside the steady streams.
const second = 1000

// watch feeds the steady state and one more request that decodes over the given span.
func watch(s steady, e *correlate.Engine, from, to, bound time.Duration) *correlate.Phase {
	q := timeline.Request{
		Ref: second, Target: "vllm", Client: "proxy", Streaming: true, Sent: at(from), Head: at(from), First: at(from), Last: at(to), Done: at(to),
		OutputTokens: 2, FirstTokens: 1, Counted: timeline.CountFinal, ClockBound: bound,
	}
	var out correlate.Output
	e.Close(&q)
	s.feed(e, &out, 12*time.Second)
	for i := range out.Phases {
		if out.Phases[i].Request.Ref == second {
			return &out.Phases[i]
		}
	}
	return nil
}

func TestGrades(t *testing.T) {
	tests := []struct {
		name     string
		from, to time.Duration
		bound    time.Duration
		prepare  func(s *steady, e *correlate.Engine)
		grade    timeline.Grade
		label    timeline.Label
		reason   string
	}{
		{"five seconds in a batch are shared", 3 * time.Second, 8 * time.Second, 0, nil, timeline.Shared, timeline.Memory, ""},
		{"two windows inherit", 3 * time.Second, 3230 * time.Millisecond, 0, nil, timeline.Inherited, timeline.Memory, ""},
		{"four windows are more than the batch's", 3 * time.Second, 3600 * time.Millisecond, 0, nil, timeline.Shared, timeline.Memory, ""},
		{"a foreign process contaminates", 3 * time.Second, 8 * time.Second, 0, func(_ *steady, e *correlate.Engine) {
			e.SetForeign(0, true)
		}, timeline.Contaminated, timeline.Undetermined, verdict.ReasonForeign},
		{"nothing to inherit is insufficient", 3 * time.Second, 8 * time.Second, 0, func(s *steady, _ *correlate.Engine) {
			s.window = 50 * time.Millisecond
		}, timeline.Insufficient, timeline.Undetermined, verdict.ReasonUntrusted},
		{"a clock bound above a quarter of a window is no join", 3 * time.Second, 8 * time.Second, 27 * time.Millisecond, nil, timeline.Insufficient, timeline.Undetermined, verdict.ReasonClock},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, e := memoryBound(), newEngine(timeline.Target{}, h100())
			if tt.prepare != nil {
				tt.prepare(&s, e)
			}
			p := watch(s, e, tt.from, tt.to, tt.bound)
			if p == nil {
				t.Fatal("no phase")
			}
			if p.Grade != tt.grade || p.Label != tt.label || p.Reason != tt.reason {
				t.Errorf("got %s, %s (%s); want %s, %s (%s)", p.Grade, p.Label, p.Reason, tt.grade, tt.label, tt.reason)
			}
		})
	}
}

func TestAPhaseCountsOnlyWholeWindows(t *testing.T) {
	p := watch(memoryBound(), newEngine(timeline.Target{}, h100()), 3*time.Second, 3500*time.Millisecond, 0)
	// Windows of 105 ms start at multiples of 105 ms: those from 3.045 to 3.465 s lie inside.
	if p.Windows != 4 {
		t.Errorf("got %d whole windows, want 4", p.Windows)
	}
	near(t, "covered", p.Counters[timeline.DRAMUtil].CoveredS, 0.42, 1e-9)
	near(t, "concurrency", p.Concurrency.Value, 9, 1e-6)
	near(t, "bytes", p.DRAMBytes.Value, 0.78*3350e9*0.5, 1e7)
}

func TestCoalescedTokensLowerTheCeiling(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	f := feeder{steady: memoryBound(), e: e}
	var out correlate.Output
	for k := range 60 {
		over := timeline.Span{Start: at(time.Duration(k) * 105 * time.Millisecond), End: at(time.Duration(k+1) * 105 * time.Millisecond)}
		f.sample(0, over)
		if k%9 == 0 {
			e.AddEngine(running(over.Start, k/9, 1))
		}
		e.Token(timeline.TokenEvent{Ref: 1, At: over.Start, Tokens: 12, Source: timeline.CountUsage, Kind: timeline.KindContent, Coalesced: k%5 == 0})
	}
	e.Flush(&out)
	if v := middle(out).Verdict; v.Ceiling != timeline.Medium || !slices.ContainsFunc(v.Caps, func(s string) bool { return s == "more than 5 % of the token events shared a read" }) {
		t.Errorf("ceiling %s, %v", v.Ceiling, v.Caps)
	}
}

func TestAnIdleGPUIsNotThrottled(t *testing.T) {
	s := memoryBound()
	s.streams, s.seen, s.clock = 0, 0, 345e6
	if o := middle(run(t, s, timeline.Target{}, 10*time.Second)).Verdict.Overlays; len(o) != 0 {
		t.Errorf("overlays %v", o)
	}
}

func TestTheHostIsNamedWhereItExplains(t *testing.T) {
	s := memoryBound()
	s.dram, s.tensor, s.sm, s.graphics = 0.2, 0.03, 0.25, 0.3
	e := newEngine(timeline.Target{}, h100())
	h := timeline.HostSample{Over: timeline.Span{Start: at(4 * time.Second), End: at(5 * time.Second)}}
	h.Put(timeline.HostCPUPressure, 0.4)
	e.AddHost(&h)
	var out correlate.Output
	s.feed(e, &out, 10*time.Second)
	v := middle(out).Verdict
	if want := "no kernel resident 70 % of the time; tasks waited for a core 40 % of the time"; v.Label != timeline.Host || v.Reason != want {
		t.Errorf("got %s (%s), want host (%s)", v.Label, v.Reason, want)
	}
}
