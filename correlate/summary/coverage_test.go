package summary_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// cutOff returns a report of eight seconds, in the last of which the probe saw so many of 800 tokens, and whose last
// request ended so at the given second.
func cutOff(end timeline.Status, at, last float64, later bool) *summary.Report {
	rng := rand.New(rand.NewPCG(1, 1))
	b := summary.New(summary.Config{})
	for i := range 8 {
		c := memoryCell(rng, i, 1)
		if i == 7 {
			c.Matched.Probe = last
		}
		b.AddCell(&c)
		p := phase(float64(i), 20, 0.02)
		b.AddPhase(&p)
	}
	p := phase(1, 20, 0.02)
	p.Request.Status, p.Request.Done = end, second(at)
	b.AddPhase(&p)
	if later {
		p := phase(8, 20, 0.02)
		b.AddPhase(&p)
	}
	return b.Report()
}

func TestTokensOfRequestsCutOffAtTheEndAreNotMissedTraffic(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   timeline.Status
		at    float64
		later bool
		want  float64
	}{
		{"clients cut off at the end", timeline.StatusCancelled, 8.2, false, 1},
		{"requests in flight at the observer's end", timeline.StatusUnfinished, 8.9, false, 1},
		{"a client that left while others went on", timeline.StatusCancelled, 7.9, true, 0.9375},
		{"an end like any other", timeline.StatusOK, 8.2, false, 0.9375},
		{"an end long after the last count", timeline.StatusCancelled, 10, false, 0.9375},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := cutOff(tt.end, tt.at, 400, tt.later).TrafficCoverage; !got.OK() || got.Value != tt.want {
				t.Errorf("got %+v, want %v", got, tt.want)
			}
		})
	}
}

func TestMoreCellsThanAreHeldBackAllCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	b := summary.New(summary.Config{})
	for i := range 200 {
		c := memoryCell(rng, i, 1)
		if i < 100 {
			c.Matched.Probe = 400
		}
		b.AddCell(&c)
	}
	if got := b.Report().TrafficCoverage; !got.OK() || got.Value != 0.75 {
		t.Errorf("half of 100 seconds and all of 100: got %+v, want 0.75", got)
	}
}

func TestCoverageBelowALimitIsNotWrittenAsIt(t *testing.T) {
	r := cutOff(timeline.StatusOK, 8.2, 478, false) // 6078 of 6400
	if why, want := r.Decode.MBU.Why, "traffic coverage is 0.9497, below 0.95"; why != want {
		t.Errorf("got %q, want %q", why, want)
	}
	if all, want := strings.Join(r.Warnings, "\n"), "the probe saw 94.97 % of the engine's output tokens"; !strings.Contains(all, want) {
		t.Errorf("got %q, want %q in it", all, want)
	}
}

func TestAnEmptyReportHasNoLevelOfEvidence(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    *summary.Report
		want bool
	}{
		{"nothing", summary.New(summary.Config{}).Report(), false},
		{"seconds of decode", cutOff(timeline.StatusOK, 8.2, 800, false), true},
		{"an engine alone", engineAlone(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := json.Marshal(tt.r)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if _, has := got["evidence"]; has != tt.want || tt.r.HasEvidence() != tt.want {
				t.Errorf("evidence %v, in JSON %v; want %v", tt.r.HasEvidence(), has, tt.want)
			}
			if got["schema"] != summary.Schema || got["decode"] == nil {
				t.Errorf("the rest is missing: %s", b)
			}
		})
	}
}

// engineAlone is a report of an engine without a probe.
func engineAlone() *summary.Report {
	b := summary.New(summary.Config{})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 8 {
		c := memoryCell(rng, i, 0)
		c.Level, c.Active = timeline.L0, 0
		b.AddCell(&c)
	}
	return b.Report()
}

func TestPromptTokensSayWhoCountedThem(t *testing.T) {
	b := summary.New(summary.Config{})
	rng := rand.New(rand.NewPCG(1, 1))
	c, p := memoryCell(rng, 0, 1), phase(0, 20, 0.02)
	c.PromptTokens = timeline.Absent("the engine is not scraped")
	b.AddCell(&c)
	b.AddPhase(&p)
	if got := b.Report().Tokens; got.Prompt.Value != 100 || got.PromptSource != "probe" {
		t.Errorf("got %+v, want 100 by the probe", got)
	}
	if got := recording(summary.Config{}, 1).Report().Tokens; got.PromptSource != "engine" {
		t.Errorf("got %+v, want the engine's", got)
	}
}
