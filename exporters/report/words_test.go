package report_test

import (
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// written returns the page as one line.
func written(t *testing.T, r *summary.Report, o report.Options) string {
	t.Helper()
	var b strings.Builder
	if err := report.Text(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestTheHeadlineClaimsNoMixtureThatNobodyMeasured(t *testing.T) {
	const shared = "Prompts share the decode steps, and no limit dominates (mixed, low confidence)"
	const unknown = "What bounds decode is not told apart from prompt work: prompt tokens are not counted (mixed, low confidence)"
	for reason, want := range map[string]string{
		summary.ReasonNotCounted: unknown,
		"prompt work shares the steps; the most time goes to memory, 50 %": shared,
	} {
		r := memory()
		r.Decode.Bound, r.Decode.Confidence, r.Decode.Reason = timeline.Mixed, timeline.Low, reason
		r.Decode.Mixture = []correlate.Part{{Label: timeline.Mixed, Share: 1}}
		if got := written(t, r, report.Options{}); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", reason, got[:min(len(got), 120)], want)
		}
	}
}

func TestPromptTokensAreNotWithoutTheirCounter(t *testing.T) {
	r := memory()
	r.Tokens.Prompt, r.Tokens.PromptSource = timeline.Known(168), "probe"
	if got := written(t, r, report.Options{Verbose: true}); !strings.Contains(got, "168 in prompts by the probe") {
		t.Errorf("got %q", got)
	}
}

// TestANoteGoesWithItsRow keeps why a percentile is missing off a page that does not show the row.
func TestANoteGoesWithItsRow(t *testing.T) {
	const note = "p99 needs 368 values, there are 236"
	short := func(warnings int) *summary.Report {
		r := memory()
		r.E2E.N, r.E2E.P99 = 236, timeline.Absent(note)
		for range warnings {
			r.Warnings = append(r.Warnings, "a warning that takes its room on the page, and some more of it than one line holds")
		}
		return r
	}
	if got := written(t, short(0), report.Options{Verbose: true}); !strings.Contains(got, note) || !strings.Contains(got, "E2E") {
		t.Errorf("all of it: got %q, want the row and its note", got)
	}
	hidden := 0
	for warnings := range 12 {
		got := written(t, short(warnings), report.Options{Width: 60})
		if strings.Contains(got, "E2E") {
			continue
		}
		hidden++
		if strings.Contains(got, note) {
			t.Errorf("%d warnings: the note is there without its row: %q", warnings, got)
		}
	}
	if hidden == 0 {
		t.Error("the row was never hidden")
	}
}

func TestCoverageJustBelowEnoughIsNotWrittenAsEnough(t *testing.T) {
	r := memory()
	r.TrafficCoverage = timeline.Known(0.9496)
	if got := written(t, r, report.Options{}); !strings.Contains(got, "94.96 % of the output tokens seen") {
		t.Errorf("got %q", got)
	}
}

func TestAStepIsHeldAgainstWhatIsExpected(t *testing.T) {
	r := memory()
	want := "step 20.4 ms, 1.23 to 1.29x the expected 15.8 to 16.6 ms, as prompts were spread; floor 14.2 ms (1.44x), at peak"
	if got := written(t, r, report.Options{Width: 110}); !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Step.InChunksS = r.Step.ExpectedS
	if got := written(t, r, report.Options{Width: 110}); !strings.Contains(got, "step 20.4 ms, 1.29x the expected 15.8 ms; floor") {
		t.Errorf("without prompts: got %q", got)
	}
	if got := written(t, engineOnly(), report.Options{Width: 110}); !strings.Contains(got, "step 20.4 ms; what to expect is unknown (neither model nor number format is known)") {
		t.Errorf("without a model: got %q", got)
	}
}

func TestWhatHelpsSaysHowMuchAtMost(t *testing.T) {
	got := written(t, memory(), report.Options{Width: 110, Verbose: true})
	for _, want := range []string{
		"fp8 KV cache: -2.6 of 20.4 ms a step, -13 % (byte model, expected)",
		"4-bit weights (awq): -2.4 of 20.4 ms a step, at most -12 % (byte model, expected, held to the memory share of 86 %)",
		"host gaps closed: -1.4 of 20.4 ms a step, at most -7 % (measured share)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestObjectivesSayTheirOutcome(t *testing.T) {
	got := written(t, asked(), report.Options{Width: 110})
	for _, want := range []string{
		"ttft.p99<200ms missed: it is 294 ms; 88 % of 4,194 below (95 %: 86.1 to 89.5 %)",
		"tpot.p99.9<50ms undecided: too few: p99.9 needs 3688 values, there are 1200",
		"goodput ttft<200ms, tpot<25ms: 82 % of 4,197 requests (95 %: 79.0 to 84.6 %); 5.74 of 7 requests a second, 1,809 of 2,206 tokens a second",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestManyObjectivesFitAPage(t *testing.T) {
	r := asked()
	for range 6 {
		r.SLO = append(r.SLO, r.SLO...)
		if n := strings.Count(text(t, r, report.Options{}), "\n"); n > 24 {
			t.Errorf("%d objectives take %d lines", len(r.SLO), n)
		}
	}
}
