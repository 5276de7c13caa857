package correlate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

func load(t *testing.T, path string) *scenario.Timeline {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := scenario.Parse(filepath.Base(path), bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	tl, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func scenarios(t *testing.T) []string {
	t.Helper()
	tests, err := filepath.Glob("scenario/testdata/*.scenario")
	if err != nil {
		t.Fatal(err)
	}
	library, err := filepath.Glob("scenario/library/*.scenario")
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(tests, library)
	if len(all) < 20 {
		t.Fatalf("only %d scenarios found", len(all))
	}
	if *full {
		return all
	}
	var half []string // the others are played with -full
	for i := 0; i < len(all); i += 2 {
		half = append(half, all[i])
	}
	return half
}

// TestPhasesOfScenariosHaveTheirLabel holds what a user sees of a fault to what the fault is.
func TestPhasesOfScenariosHaveTheirLabel(t *testing.T) {
	tests := []struct {
		path     string
		from, to time.Duration
		want     []timeline.Label
	}{
		{"library/demo", 3 * time.Second, 14 * time.Second, []timeline.Label{timeline.Memory}},
		{"library/demo", 45 * time.Second, 57 * time.Second, []timeline.Label{timeline.Host}},
		{"library/demo", 60 * time.Second, 72 * time.Second, []timeline.Label{timeline.Memory}},
		{"library/eager", 32 * time.Second, 60 * time.Second, []timeline.Label{timeline.Launch, timeline.HostOrLaunch}},
		{"testdata/launch_eager", 3 * time.Second, 19 * time.Second, []timeline.Label{timeline.Launch, timeline.HostOrLaunch}},
		{"testdata/host_bound", 3 * time.Second, 19 * time.Second, []timeline.Label{timeline.Host}},
	}
	played := map[string]correlate.Output{}
	for _, tt := range tests {
		out, ok := played[tt.path]
		if !ok {
			_, out = play(load(t, "scenario/"+tt.path+".scenario"), 1)
			played[tt.path] = out
		}
		var timed []verdict.Timed
		for i := range out.Cells {
			if c := &out.Cells[i]; c.Span.Start.Sub(t0) >= tt.from && c.Span.End.Sub(t0) <= tt.to {
				timed = append(timed, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
			}
		}
		if got := verdict.Run(timed); !slices.Contains(tt.want, got.Label) || got.Confidence < timeline.Medium {
			t.Errorf("%s from %v to %v: got %s, %s (%s; %v), want %v at medium", tt.path, tt.from, tt.to, got.Label, got.Confidence, got.Reason, got.Caps, tt.want)
		}
	}
}

// TestVerdictsAgreeWithTheKernels plays every scenario, compares each cell's label with what limited its kernels, and
// holds cells and phases to what is true of all.
func TestVerdictsAgreeWithTheKernels(t *testing.T) {
	var all tally
	for _, path := range scenarios(t) {
		tl := load(t, path)
		var one tally
		_, out := play(tl, 1)
		checkCells(t, out.Cells, tl)
		checkPhases(t, out.Phases, tl)
		at := map[string]int{}
		for i, x := range tl.Targets() {
			at[x.Name] = i
		}
		for i := range out.Cells {
			c := &out.Cells[i]
			from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
			if from < 2e9 || to > tl.Duration()-1e9 || !c.Decode {
				continue
			}
			one.take(t, filepath.Base(path), c, tl.Truth(at[c.Target], from, to))
		}
		if one.cells > 0 {
			t.Logf("%-28s %3d cells, determined %.2f, inside %.2f, shares off by %.3f, reach %v, wrong by reach %v, labels %v", filepath.Base(path), one.cells,
				one.share(one.determined), one.share(one.inside), one.off/float64(max(1, one.determined)), one.reach, one.wrong, one.labels)
		}
		all.add(&one)
	}
	t.Logf("all: %d cells, determined %.3f, inside %.3f, shares off by %.3f, wrong by reach %v%s", all.cells, all.share(all.determined),
		all.share(all.inside), all.off/float64(max(1, all.determined)), all.wrong, all.matrix())
	if all.cells < 400 {
		t.Errorf("got %d cells, want 400", all.cells)
	}
	if all.share(all.wrong[timeline.High]) > 0.005 || all.share(all.wrong[timeline.Medium]) > 0.03 {
		t.Errorf("wrong by reach %v of %d, want at most 0.5 %% at high and 3 %% at medium", all.wrong, all.cells)
	}
}

// TestTheLabelNeedsNoProbe holds what counters and the engine's own metrics say to what they say beside a probe.
func TestTheLabelNeedsNoProbe(t *testing.T) {
	for _, path := range []string{"decode_b16", "host_bound"} {
		tl := load(t, "scenario/testdata/"+path+".scenario")
		_, with := play(tl, 1)
		_, none := play(tl, 0)
		for i := 10; i < min(len(with.Cells), len(none.Cells))-3; i++ { // by then coverage has seen whole seconds alone
			a, b := &with.Cells[i], &none.Cells[i]
			if b.Level != timeline.L0 || b.Coverage.OK() {
				t.Fatalf("%s: cell %d is %s, coverage %v", path, i, b.Level, b.Coverage)
			}
			if a.Verdict.Label != b.Verdict.Label || a.Verdict.Ceiling != b.Verdict.Ceiling {
				t.Errorf("%s: cell %d: %s up to %s (%v), without a probe %s up to %s (%v)", path, i, a.Verdict.Label, a.Verdict.Ceiling, a.Verdict.Caps,
					b.Verdict.Label, b.Verdict.Ceiling, b.Verdict.Caps)
			}
		}
	}
}

// checkPhases compares each phase with the request that it is of.
func checkPhases(t *testing.T, phases []correlate.Phase, tl *scenario.Timeline) {
	t.Helper()
	requests := tl.Requests()
	if len(phases) != len(requests) {
		t.Fatalf("%s: %d phases of %d requests", tl.Name(), len(phases), len(requests))
	}
	seen := map[uint64]bool{}
	for i := range phases {
		p := &phases[i]
		if seen[p.Request.Ref] {
			t.Fatalf("%s: two phases of request %d", tl.Name(), p.Request.Ref)
		}
		seen[p.Request.Ref] = true
		r := &requests[p.Request.Ref-1]
		if n := len(r.Tokens); n > 2 {
			near(t, "TPOT", p.Latency.TPOT.Value, (r.Tokens[n-1]-r.Tokens[0]).Seconds()/float64(n-1), 1e-9)
		}
	}
}
