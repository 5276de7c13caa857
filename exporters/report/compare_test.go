package report_test

import (
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// est is an estimate with an interval of so much either way.
func est(v, half float64) compare.Value {
	return compare.Value{Value: timeline.Known(v), CI95: summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: v - half, High: v + half}}}
}

// missing is an estimate that there is not.
func missing(why string) compare.Value {
	return compare.Value{Value: timeline.Absent(why), CI95: summary.Maybe[timeline.Interval]{Why: why}}
}

// quantised is a comparison in which fp8 kept its promise.
func quantised() *compare.Report {
	arm := func(name, dtype string) compare.Arm {
		return compare.Arm{
			Name: name, Model: "Llama-3.1-8B", DType: dtype, GPU: "NVIDIA H100 80GB HBM3", TP: 1, Evidence: timeline.L3, Coverage: timeline.Known(1),
			DecodeS: 58, Requests: 283, TPOT: timeline.Known(0.0067), Batch: timeline.Known(8), Context: timeline.Known(528),
			Output: timeline.Known(1195), Hits: timeline.Absent("nobody tells"),
		}
	}
	return &compare.Report{
		Schema: compare.Schema, A: arm("before", "bf16"), B: arm("after", "fp8"), Verdict: compare.Realised, Reason: "all of it came",
		Refute: "another pair of starts has a time ratio above 0.83", Confidence: timeline.Medium, HeldDown: []string{"one start a side"},
		Margin: 0.03, Boundary: "engine", Bytes: compare.Bytes{Modelled: est(0.552, 0), Measured: est(0.551, 0.01)}, Time: est(0.632, 0.004),
		Expected: est(0.657, 0.04), Gap: est(-0.025, 0.04), Came: est(1.07, 0.1), Memory: est(0.77, 0.1), Rate: est(0.87, 0.01), Bandwidth: timeline.Known(1),
		TPOTA: est(0.00668, 1e-5), TPOTB: est(0.00422, 1e-5),
		Parts: []compare.Part{
			{Name: "memory", A: est(0.00513, 1e-5), B: est(0.00283, 1e-5), Change: est(-0.0023, 1e-5)},
			{Name: "launch", A: est(0.00085, 1e-5), B: est(0.00075, 1e-5), Change: est(-0.0001, 1e-5)},
			{Name: "communication", A: est(0, 0), B: est(0, 0), Change: est(0, 0)},
		},
		Split: compare.Split{
			Loop: "fixed_rate", Total: est(-0.003, 1e-5), Direct: est(-0.002, 1e-5), Amplified: est(-0.001, 1e-5), Load: est(0, 1e-5), Work: est(0, 1e-5),
		},
		Matched: compare.Matched{
			Bins: 1, RequestsA: 202, RequestsB: 428, SecondsA: 41, SecondsB: 57,
			Table: []compare.Bin{{Batch: 8, Context: 530, Prompt: 12.8, SecondsA: 41, SecondsB: 57, TPOTA: 0.00668, TPOTB: 0.00422, TimeRatio: 0.632, Bytes: timeline.Known(0.552)}},
		},
		Requests: compare.Shift{P50Ratio: est(0.633, 0.01), Shift: est(-0.00246, 1e-5), Delta: timeline.Known(-1), Clusters: "blocks of time"},
		Warnings: []string{},
	}
}

// compared returns the page as it is and as one line.
func compared(t *testing.T, r *compare.Report, o report.Options) (page, line string) {
	t.Helper()
	var b strings.Builder
	if err := report.Compare(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.String(), strings.Join(strings.Fields(b.String()), " ")
}

func TestAComparisonBeginsWithItsAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(r *compare.Report)
		want   string
	}{
		"realised": {func(*compare.Report) {}, "B saves 45 % of A's DRAM bytes a step and 37 % of A's time a token (realised, medium confidence): TPOT 6.68 ms to 4.22 ms"},
		"not time": {func(r *compare.Report) { r.Verdict, r.Time = compare.NotTime, est(0.99, 0.01) }, "B saves 45 % of A's DRAM bytes a step, but no time a token (bytes saved not time,"},
		"some time": {
			func(r *compare.Report) { r.Verdict, r.Time = compare.NotTime, est(0.9, 0.01) },
			"B saves 45 % of A's DRAM bytes a step, but only 10 % of A's time a token",
		},
		"costs time": {
			func(r *compare.Report) { r.Verdict, r.Time, r.Slower = compare.NotTime, est(1.2, 0.01), true },
			"B saves 45 % of A's DRAM bytes a step, but costs 20 % of A's time a token more",
		},
		"not saved": {
			func(r *compare.Report) { r.Verdict, r.Bytes.Measured = compare.NotSaved, est(1, 0.001) },
			"B saves none of A's DRAM bytes a step, where its format should save 45 % (bytes not saved,",
		},
		"regression": {
			func(r *compare.Report) { r.Verdict, r.Time, r.Grew = compare.Regression, est(1.1, 0.01), "launch" },
			"B is slower than A by 10 % of A's time a token, most of it launch (regression,",
		},
		"improvement":   {func(r *compare.Report) { r.Verdict, r.Time = compare.Improvement, est(0.9, 0.01) }, "B is faster than A by 10 % of A's time a token (improvement,"},
		"no difference": {func(r *compare.Report) { r.Verdict, r.Time = compare.NoDifference, est(1, 0.01) }, "A and B take the same time a token, within 3 % of A's (no difference,"},
		"slightly more": {
			func(r *compare.Report) { r.Verdict, r.Time = compare.NoDifference, est(1.021, 0.002) },
			"B takes 2.1 % of A's time a token more, within the margin of 3 % (no difference,",
		},
		"refused": {func(r *compare.Report) {
			r.Verdict, r.Reason, r.Remedy = compare.Refused, "unlike models", "compare like ones"
		}, "Refused: unlike models. to decide compare like ones"},
		"undetermined": {
			func(r *compare.Report) { r.Verdict, r.Reason = compare.Undetermined, "too short" },
			"Undetermined: too short.",
		},
		"simulated": {func(r *compare.Report) { r.Simulated = true }, "SIMULATED B saves"},
	} {
		r := quantised()
		tt.change(r)
		if _, line := compared(t, r, report.Options{}); !strings.HasPrefix(line, tt.want) {
			t.Errorf("%s: got %q, want %q", name, line[:min(len(line), 200)], tt.want)
		}
	}
}

func TestAComparisonFitsItsTerminal(t *testing.T) {
	for _, width := range []int{60, 80, 120} {
		r := quantised()
		for range 5 {
			r.Warnings = append(r.Warnings, "a warning that takes its room on the page, and some more of it than one line of it holds")
		}
		page, _ := compared(t, r, report.Options{Width: width})
		lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
		if len(lines) > 24 && width >= 80 {
			t.Errorf("%d lines at %d columns:\n%s", len(lines), width, page)
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > width {
				t.Errorf("%d columns: %q", width, l)
			}
		}
	}
	page, _ := compared(t, quantised(), report.Options{Width: 80, Verbose: true})
	for l := range strings.Lines(page) {
		if utf8.RuneCountInString(strings.TrimSuffix(l, "\n")) > 80 {
			t.Errorf("with all of it: %q", l)
		}
	}
	if !strings.Contains(page, "context  prompt  s of A") {
		t.Errorf("no table of bins:\n%s", page)
	}
}

func TestAPercentageOfAComparisonNamesItsDenominator(t *testing.T) {
	_, line := compared(t, quantised(), report.Options{Verbose: true})
	for _, want := range []string{
		"0.551 [0.541 to 0.561] of A's a step; the model has 0.552", "0.632 [0.628 to 0.636] of A's by the engine",
		"0.657 [0.617 to 0.697] of A's TPOT, of which 77 % [67 to 87] is at memory", "107 % [97 to 117] of the expected saving came",
		"memory 5.13 to 2.83, launch 0.85 to 0.75", "-2.00 [-2.01 to -1.99] ms direct, -1.00 [-1.01 to -0.99] ms amplified by the batch",
		"median TPOT 0.633 [0.623 to 0.643] of A's; shift -2.46 [-2.47 to -2.45] ms; Cliff's delta -1.00",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %q", want, line)
		}
	}
}

func TestWhatAComparisonLacksItSays(t *testing.T) {
	r := quantised()
	r.Bytes, r.Expected, r.Memory, r.Gap, r.Came = compare.Bytes{Modelled: missing("no model"), Measured: missing("no counters")}, missing("x"), missing("x"), missing("x"), missing("x")
	r.Requests = compare.Shift{P50Ratio: missing("x"), Shift: missing("x"), Delta: timeline.Absent("x")}
	r.Time.CI95 = summary.Maybe[timeline.Interval]{Why: "too short"}
	r.Parts = nil
	if _, line := compared(t, r, report.Options{Verbose: true}); strings.Contains(line, "NaN") || strings.Contains(line, "0.000") || !strings.Contains(line, "no interval: too short") {
		t.Errorf("got %q", line)
	}
}

func TestAComparisonSurvivesItsJSON(t *testing.T) {
	var b strings.Builder
	if err := report.CompareJSON(&b, quantised()); err != nil {
		t.Fatal(err)
	}
	var got compare.Report
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quantised(), &got); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
}

func TestAComparisonsPageStandsForItself(t *testing.T) {
	r := quantised()
	r.A.Name, r.Warnings, r.Reason = `<script>alert(1)</script>`, []string{`<img src=x>`}, "\x1b[31m<b>"
	var b strings.Builder
	if err := report.CompareHTML(&b, r, report.Options{}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if m := regexp.MustCompile(`(?i)<(script|img|b|a|link)[ >]|https?://|\x1b`).FindString(page); m != "" {
		t.Errorf("the page holds %q", m)
	}
	for _, want := range []string{"B saves 45", "--memory:", "<td class=\"n\">0.632</td>", `class="memory"`, "&lt;img src=x&gt;"} {
		if !strings.Contains(page, want) && !strings.Contains(html.UnescapeString(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
