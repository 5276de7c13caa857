package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/exporters/report"
)

func TestASimulationSaysSoInItsHeadline(t *testing.T) {
	for _, width := range []int{60, 80, 110} {
		if page := text(t, simulated(), report.Options{Width: width}); !strings.HasPrefix(page, "SIMULATED  Decode is bound by") {
			t.Errorf("at %d columns the page starts %.80q", width, page)
		}
	}
}

func TestAnEmptyReportPrintsWhyAndNoMore(t *testing.T) {
	r := engineOnly()
	r.Empty, r.Span.Seconds, r.Targets = "nothing decoded: counters were read for 4s, and no engine told of work", 4, []string{""}
	r.Span.End = r.Span.Start.Add(4 * time.Second)
	r.Decode.Reason, r.Decode.DecodeS = r.Empty, 0
	want := `What bounds decode is undetermined (nothing decoded: counters were read for 4s, and no engine told of work).

  span        2026-11-30 12:00:00.000 to 12:00:04.000 UTC, 4 s
  evidence    L0, the engine's own metrics

  ! only duty cycles are read on this GPU: they say nothing of bandwidth
`
	if diff := cmp.Diff(want, text(t, r, report.Options{Width: 110})); diff != "" {
		t.Errorf("page mismatch (-want +got):\n%s", diff)
	}
}

func TestShortSpansShowMilliseconds(t *testing.T) {
	r := memory()
	r.Span.Start = r.Span.Start.Add(20*time.Second + 100*time.Millisecond)
	r.Span.End, r.Span.Seconds = r.Span.Start.Add(640*time.Millisecond), 0.64
	if page := text(t, r, report.Options{}); !strings.Contains(page, "12:00:20.100 to 12:00:20.740 UTC, 0.64 s") {
		t.Errorf("the page does not tell the ends of its span apart:\n%s", page)
	}
}

func TestEndsThatNobodyRecordedComeFirst(t *testing.T) {
	r := memory()
	r.Requests = summary.Requests{Total: 541, Unfinished: 541, EndUnknown: 541}
	r.Faults = []string{"read requests-000001.arrows: torn"}
	r.Warnings = []string{"the ends of 541 of 541 requests are not recorded: these are in no percentile", "read requests-000001.arrows: torn"}
	page := text(t, r, report.Options{Width: 110})
	if !strings.Contains(page, "  requests    541: ends not recorded for 541 (the recording is torn)\n") {
		t.Errorf("the page does not say that ends are missing:\n%s", page)
	}
	if lines := strings.Split(page, "\n"); !strings.Contains(strings.Join(lines[:3], " "), "! the ends of 541 of 541") || strings.Count(page, "the ends of 541") != 1 {
		t.Errorf("the warning does not stand at the top, once:\n%s", page)
	}
	r.Requests = summary.Requests{Total: 10, OK: 7, Unfinished: 3, EndUnknown: 2}
	if page := text(t, r, report.Options{Width: 110}); !strings.Contains(page, "10: ends not recorded for 2 (the recording is torn), 7 ok, 1 unfinished") {
		t.Errorf("the ends of some are missing:\n%s", page)
	}
}

func TestOverlaysAreToldWithTheirShare(t *testing.T) {
	page := text(t, memory(), report.Options{Width: 110})
	page = strings.Join(strings.Fields(page), " ")
	if !strings.Contains(page, "prefill interference in 31 % of decode time") || strings.Contains(page, "preempted") {
		t.Errorf("overlays have no share, or a blip is told:\n%s", page)
	}
}
