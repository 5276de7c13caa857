package correlate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func load(t *testing.T, path string) *scenario.Timeline {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := scenario.Parse(filepath.Base(path), f)
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
	all := append(tests, library...)
	if len(all) < 20 {
		t.Fatalf("only %d scenarios found", len(all))
	}
	return all
}

// TestVerdictsAgreeWithTheKernels plays every scenario and compares each cell's label with what limited its kernels.
func TestVerdictsAgreeWithTheKernels(t *testing.T) {
	var all tally
	for _, path := range scenarios(t) {
		tl := load(t, path)
		var one tally
		_, out := play(tl, 1)
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
	t.Logf("all: %d cells, determined %.3f, inside %.3f, shares off by %.3f, wrong by reach %v", all.cells, all.share(all.determined),
		all.share(all.inside), all.off/float64(max(1, all.determined)), all.wrong)
	if all.cells < 500 {
		t.Errorf("got %d cells, want 500", all.cells)
	}
	if all.share(all.wrong[timeline.High]) > 0.005 || all.share(all.wrong[timeline.Medium]) > 0.03 {
		t.Errorf("wrong by reach %v of %d, want at most 0.5 %% at high and 3 %% at medium", all.wrong, all.cells)
	}
}

// TestPhasesKeepTheRequests plays every scenario and compares each phase with the request that it is of.
func TestPhasesKeepTheRequests(t *testing.T) {
	for _, path := range scenarios(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tl := load(t, path)
			e, out := play(tl, 1)
			requests := tl.Requests()
			if len(out.Phases) != len(requests) {
				t.Fatalf("%d phases of %d requests; %+v", len(out.Phases), len(requests), e.Stats())
			}
			seen := map[uint64]bool{}
			for i := range out.Phases {
				p := &out.Phases[i]
				if seen[p.Request.Ref] {
					t.Fatalf("two phases of request %d", p.Request.Ref)
				}
				seen[p.Request.Ref] = true
				r := &requests[p.Request.Ref-1]
				if n := len(r.Tokens); n > 2 {
					near(t, "TPOT", p.Latency.TPOT.Value, (r.Tokens[n-1]-r.Tokens[0]).Seconds()/float64(n-1), 1e-9)
				}
			}
			checkCells(t, out.Cells, tl)
		})
	}
}
