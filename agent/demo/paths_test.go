package demo

import (
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent/importer"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// Two phases with one clear limiter each: the DRAM, and then a host that needs 40 ms more between two steps.
const twoLimits = `seed 11
duration 20s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=8 prompt=60..100 output=50..80 0s..20s
phase decode 1s..10s
fault host_stall 40ms 10s..20s
phase host_stall 11s..20s
`

// said is what came out of one way for one phase.
type said struct {
	label    timeline.Label
	shares   timeline.Shares
	grades   map[timeline.Grade]bool // of requests that decoded in the phase alone
	reasons  map[string]bool         // of cells that lie in the phase
	requests int
	cells    int // of the phase
	starved  int // of them, cells whose windows the host was too busy to read
}

// coveredPart is the part of a cell's time that windows must cover for the cell to speak of the scenario, and not of a
// host that was too busy to read them.
const coveredPart = 0.85

// One scenario, three ways: what a perfect observer would have recorded; devices in this process, with a server, clients
// and a proxy in real time; and the same through the helper process and a simulated driver library in C. They share no
// code between the physics and the counters, and say the same.
func TestOneScenarioSaysTheSameThreeWays(t *testing.T) {
	pure, local := options(t, twoLimits), options(t, twoLimits)
	stages := map[string]*stage{"in process": {o: local}}
	if dir, missing := built(t); missing != "" {
		t.Logf("SKIPPED: the way through the helper and the C library: %s", missing)
	} else {
		lib := options(t, twoLimits)
		lib.HelperDir, lib.Library = dir, filepath.Join(dir, "nvmlsim", "libnvidia-ml.so.1")
		stages["C library"] = &stage{o: lib}
	}
	var g errgroup.Group
	for _, st := range stages {
		t.Cleanup(st.tearDown)
		must(t, st.setUp(t.Context()))
		g.Go(func() error { return st.play(t.Context(), &Result{}) })
	}
	tl := stages["in process"].tl
	must(t, importer.FromScenario(t.Context(), tl, pure.Dir, importer.ScenarioOptions{}))
	must(t, g.Wait())

	want := sayings(t, pure.Dir, firstInstant(t, pure.Dir), stages["in process"])
	for way, st := range stages {
		if through := "helper process"; (way == "C library") != strings.Contains(st.path, through) {
			t.Fatalf("%s went through %s", way, st.path)
		}
		got := sayings(t, st.o.Dir, st.epoch, st)
		for _, p := range tl.Phases() {
			compareSayings(t, way+", "+p.Name, want[p.Name], got[p.Name])
			truth := tl.Truth(0, p.Span.From, p.Span.To)
			if !agrees(got[p.Name].label, &truth) {
				t.Errorf("%s, %s: %s is not right", way, p.Name, got[p.Name].label)
			}
		}
	}
	if want["decode"].label == want["host_stall"].label {
		t.Error("both phases say the same: the comparison tells nothing")
	}
}

var numbers = regexp.MustCompile(`\d+`)

// reasonCode is a reason without its numbers, and without what the host on which the test runs adds to it.
func reasonCode(reason string) string {
	code, _, _ := strings.Cut(reason, ";")
	return numbers.ReplaceAllString(code, "N")
}

func compareSayings(t *testing.T, where string, want, got said) {
	t.Helper()
	t.Logf("%s: %s, shares %.3f, grades %v, reasons %v, %d requests", where, got.label, got.shares,
		slices.Sorted(maps.Keys(got.grades)), slices.Sorted(maps.Keys(got.reasons)), got.requests)
	if got.label != want.label || !maps.Equal(got.grades, want.grades) || !maps.Equal(got.reasons, want.reasons) {
		t.Errorf("%s: says %s, grades %v, reasons %v; a perfect observer: %s, %v, %v", where,
			got.label, got.grades, got.reasons, want.label, want.grades, want.reasons)
	}
	a, b := got.shares, want.shares
	for _, d := range []float64{a.Memory - b.Memory, a.Compute - b.Compute, a.Launch - b.Launch, a.Host - b.Host, a.Other - b.Other} {
		if math.Abs(d) > 0.05 {
			t.Errorf("%s: shares %+v, a perfect observer's %+v", where, a, b)
		}
	}
	if got.starved > 0 {
		t.Logf("%s: %d of %d cells left out: the host was too busy to read their windows", where, got.starved, got.cells)
	}
	if got.starved*2 > got.cells {
		t.Errorf("%s: in %d of %d cells the host was too busy to read the counters", where, got.starved, got.cells)
	}
	if got.requests < 3 || want.requests < 3 {
		t.Errorf("%s: %d requests decoded in the phase alone, of a perfect observer %d: too few to tell anything", where, got.requests, want.requests)
	}
}

// firstInstant is where the scenario begins in a recording of the importer, whose first anchor is taken there.
func firstInstant(t *testing.T, dir string) timeline.Instant {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	for a, err := range r.Anchors() {
		must(t, err)
		return a.Mono
	}
	t.Fatal("no anchor")
	return 0
}

// sayings replays a recording of a scenario that began at epoch.
func sayings(t *testing.T, dir string, epoch timeline.Instant, st *stage) map[string]said {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	phases := st.tl.Phases()
	spans, out, reports := make([]timeline.Span, len(phases)), make([]said, len(phases)), make([]*summary.Builder, len(phases))
	for i, p := range phases {
		spans[i] = timeline.Span{Start: epoch.Add(p.Span.From), End: epoch.Add(p.Span.To)}
		out[i] = said{grades: map[timeline.Grade]bool{}, reasons: map[string]bool{}}
		reports[i] = summary.New(summary.Config{Since: spans[i].Start, Until: spans[i].End})
		reports[i].SetGPUs(r.Meta().GPUs)
	}
	var lost []timeline.Span // starved cells
	_, err = replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		for i, over := range spans {
			for j := range o.Cells {
				c := &o.Cells[j]
				starved := c.CoveredS < coveredPart*c.Span.Duration().Seconds()
				if starved {
					lost = append(lost, c.Span)
				} else {
					reports[i].AddCell(c)
				}
				if !c.Decode || c.Span.Start < over.Start || c.Span.End > over.End {
					continue
				}
				if out[i].cells++; starved {
					out[i].starved++
				} else {
					out[i].reasons[reasonCode(c.Verdict.Reason)] = true
				}
			}
			for j := range o.Phases {
				p := &o.Phases[j]
				reports[i].AddPhase(p)
				whole := p.Request.Over()
				if whole.Start >= over.Start && whole.End <= over.End && p.Request.OutputTokens > 1 && p.Request.Status != timeline.StatusUnfinished && !slices.ContainsFunc(lost, func(s timeline.Span) bool { return whole.Overlap(s) > 0 }) {
					out[i].requests++
					out[i].grades[p.Grade] = true
				}
			}
		}
		return nil
	}, nil)
	must(t, err)
	byName := map[string]said{}
	for i, p := range phases {
		d := reports[i].Report().Decode
		if !d.Shares.OK() {
			t.Fatalf("%s: no shares: %s", p.Name, d.Shares.Why)
		}
		out[i].label, out[i].shares = d.Bound, d.Shares.Value
		byName[p.Name] = out[i]
	}
	return byName
}

// built returns the folder of the helper and the simulated driver library, which are built if they can be.
func built(t *testing.T) (dir, missing string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", "there is no gcc to build them with"
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	must(t, err)
	dir = t.TempDir()
	out, err := exec.CommandContext(t.Context(), "make", "-C", root, "BIN="+dir, "nvmlsim", filepath.Join(dir, "tpotscope-nvml")).CombinedOutput()
	if err != nil {
		t.Fatalf("make nvmlsim: %v\n%s", err, out)
	}
	return dir, ""
}
