package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/summary"
)

func TestReportJudgesWhatItIsAsked(t *testing.T) {
	p := newPlace(t)
	dir := filepath.Join(t.TempDir(), "run")
	p.run(t, "import", "memory_bound", "-o", dir).want(t, exitOK)
	for _, tt := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"met", []string{"--slo", "tpot.p90<50ms", "--slo", "ttft.max<1s"}, exitOK, ""},
		{"missed", []string{"--slo", "tpot.p90<50ms", "--slo", "tpot.p50<1ms"}, exitNegative, "missed: tpot.p50<1ms"},
		{"too few to say", []string{"--slo", "tpot.p99.99<50ms"}, exitEvidence, "not enough evidence: tpot.p99.99<50ms (too few: p99.99 needs 36887 values"},
		{"a miss outweighs a doubt", []string{"--slo", "tpot.p99.99<50ms", "--slo", "e2e.mean<1ms"}, exitNegative, "missed: e2e.mean<1ms"},
		{"too few in a part of it", []string{"--until", "10s", "--slo", "tpot.p99<50ms"}, exitEvidence, "too few: p99 needs 368 values, there are "},
		{"goodput has no exit code of its own", []string{"--goodput", "ttft<1ms,tpot<1ms"}, exitOK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := p.run(t, append([]string{"report", dir, "--json"}, tt.args...)...).want(t, tt.code)
			if !strings.Contains(got.err, tt.err) || tt.err == "" && got.err != "" {
				t.Errorf("stderr %q, want %q", got.err, tt.err)
			}
			var r summary.Report
			must(t, json.Unmarshal([]byte(got.out), &r))
			asked := map[string]bool{}
			for i := range r.SLO {
				asked[r.SLO[i].Objective] = true
			}
			for i, a := range tt.args {
				if i > 0 && tt.args[i-1] == "--slo" && !asked[a] {
					t.Errorf("%s is not in %v", a, r.SLO)
				}
			}
			if want := map[int]slo.Outcome{exitNegative: slo.Missed, exitEvidence: slo.Undecided}[tt.code]; want != "" && r.SLOOutcome != want {
				t.Errorf("outcome %s, want %s", r.SLOOutcome, want)
			}
			if asksGoodput := strings.Contains(strings.Join(tt.args, " "), "--goodput"); asksGoodput != (r.Goodput != nil) {
				t.Errorf("goodput %+v", r.Goodput)
			}
			if !r.Step.OverExpected.OK() || r.Step.Model == "" || len(r.Help) == 0 {
				t.Errorf("step %+v, help %+v: want both, of a model that is known", r.Step, r.Help)
			}
		})
	}
}

func TestBadObjectivesAreToldAtOnceWithTheFormsThereAre(t *testing.T) {
	p := newPlace(t)
	for _, command := range []string{"report", "record"} {
		args := []string{command, "--slo", "tpot<50ms", "--slo", "itl.p90<50", "--goodput", "itl<1s"}
		if command == "report" {
			args = append(args, "@last")
		}
		got := p.run(t, args...).want(t, exitUsage)
		for _, want := range []string{`--slo: "tpot<50ms" names no statistic`, `--slo: "itl.p90<50": "50" is no limit`, slo.Forms, `--goodput: "itl<1s"`, slo.BoundForms} {
			if !strings.Contains(got.err, want) {
				t.Errorf("%s says %q, want %q in it", command, got.err, want)
			}
		}
	}
}

func TestRecordAsksItsReportToo(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		command string
		code    int
	}{{"true", exitEvidence}, {"false", 1}} {
		dir := filepath.Join(t.TempDir(), "run")
		got := p.run(t, "record", "--nvml", "off", "--engine", "http://127.0.0.1:1", "--slo", "tpot.p90<50ms", "-o", dir, "--", tt.command).want(t, tt.code)
		if !strings.Contains(got.err, "not enough evidence") {
			t.Errorf("%s: stderr %q", tt.command, got.err)
		}
	}
}

func TestReportWritesAPage(t *testing.T) {
	p := newPlace(t)
	dir, page := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "report.html")
	p.run(t, "import", "memory_bound", "-o", dir).want(t, exitOK)
	got := p.run(t, "report", dir, "--html", page).want(t, exitOK)
	raw, err := os.ReadFile(page)
	must(t, err)
	if text := string(raw); !strings.Contains(text, "SIMULATED") || !strings.Contains(text, "What would help") || !strings.Contains(got.err, "wrote "+page) {
		t.Errorf("page of %d bytes, stderr %q", len(text), got.err)
	}
	if got := p.run(t, "report", dir, "--html", filepath.Join(page, "x")); got.code != exitError || !strings.Contains(got.err, "write page: ") {
		t.Errorf("code %d, stderr %q, want that the page was not written", got.code, got.err)
	}
}
