package correlate_test

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// full plays the whole grids, as go test -run Grid ./correlate -args -full does: the usual run plays a part of them in which
// each value of each axis stands.
var full = flag.Bool("full", false, "play the whole grids")

func parse(t *testing.T, text string) *scenario.Timeline {
	t.Helper()
	s, err := scenario.Parse("grid.scenario", strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	tl, err := s.Run()
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return tl
}

// tally compares verdicts with the truth of the kernels.
type tally struct {
	cells, inside, determined int
	wrong                     [timeline.High + 1]int // by what the cell can reach
	reach                     [timeline.High + 1]int
	labels                    map[timeline.Label]int
	caps                      map[string]int
	owned, named              int     // cells in which one roof holds 60 % of the time, and those of them that say so
	off                       float64 // sum of the shares' distance from the truth, by memory and compute
	confused                  map[confusion]int
}

// confusion is what held 60 % of a cell's time by its kernels, beside what is said of it.
type confusion struct{ truth, said timeline.Label }

// held returns what holds 60 % of the time by the kernels, if anything does.
func held(s timeline.Shares) timeline.Label {
	const most = 0.6
	switch {
	case s.Memory >= most:
		return timeline.Memory
	case s.Compute >= most:
		return timeline.Compute
	case s.Host >= most:
		return timeline.Host
	case s.Launch >= most:
		return timeline.Launch
	case s.Host+s.Launch >= most:
		return timeline.HostOrLaunch
	}
	return "nothing"
}

// matrix writes the confusion, a row for each truth.
func (a *tally) matrix() string {
	var b strings.Builder
	for _, truth := range append(timeline.Labels(), "nothing") {
		var row []string
		for _, said := range timeline.Labels() {
			if n := a.confused[confusion{truth, said}]; n > 0 {
				row = append(row, fmt.Sprintf("%s %d", said, n))
			}
		}
		if len(row) > 0 {
			fmt.Fprintf(&b, "\n\ttruth %-15s said %s", truth, strings.Join(row, ", "))
		}
	}
	return b.String()
}

// take compares one cell. A label that names a roof is wrong if the other roof took more of the time.
func (a *tally) take(t *testing.T, name string, c *correlate.Cell, tr scenario.Truth) {
	t.Helper()
	v := &c.Verdict
	a.cells++
	if a.confused == nil {
		a.confused = map[confusion]int{}
	}
	a.confused[confusion{held(tr.Shares), v.Label}]++
	if !v.OK() {
		return
	}
	a.determined++
	if a.labels == nil {
		a.labels, a.caps = map[timeline.Label]int{}, map[string]int{}
	}
	a.labels[v.Label]++
	for _, why := range v.Caps {
		a.caps[strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return '#'
			}
			return r
		}, why)]++
	}
	a.off += (math.Abs(v.Shares.Memory-tr.Shares.Memory) + math.Abs(v.Shares.Compute-tr.Shares.Compute)) / 2
	if m, c := tr.Shares.Memory >= 0.6, tr.Shares.Compute >= 0.6; m || c {
		a.owned++
		if m && v.Label == timeline.Memory || c && v.Label == timeline.Compute {
			a.named++
		}
	}
	a.reach[v.Ceiling]++
	roof := tr.Shares.Memory + tr.Shares.Compute
	if roof >= v.Roof.Low-0.02 && roof <= v.Roof.High+0.02 {
		a.inside++
	}
	if wrongLabel(v.Label, tr.Shares) {
		a.wrong[v.Ceiling]++
		if v.Ceiling < timeline.Medium {
			return
		}
		t.Logf("%s: %s (%s) where truth is %+v, shares %+v D %.2f C %.2f", name, v.Label, v.Ceiling, tr.Shares, v.Shares, v.D, v.C)
	}
}

// wrongLabel reports whether the label names something that took less time than another limiter.
func wrongLabel(l timeline.Label, s timeline.Shares) bool {
	switch l {
	case timeline.Memory:
		return s.Memory < s.Compute || s.Memory < s.Host+s.Launch
	case timeline.Compute:
		return s.Compute < s.Memory || s.Compute < s.Host+s.Launch
	case timeline.Host, timeline.Launch, timeline.HostOrLaunch:
		return s.Host+s.Launch < max(s.Memory, s.Compute)
	case timeline.Balanced:
		return s.Memory+s.Compute < 0.5
	case timeline.Mixed, timeline.Busy, timeline.Communication, timeline.Undetermined:
	}
	return false
}

func (a *tally) add(o *tally) {
	a.cells, a.inside, a.determined, a.off = a.cells+o.cells, a.inside+o.inside, a.determined+o.determined, a.off+o.off
	if a.confused == nil {
		a.confused = map[confusion]int{}
	}
	for k, n := range o.confused {
		a.confused[k] += n
	}
	for k := range a.wrong {
		a.wrong[k] += o.wrong[k]
		a.reach[k] += o.reach[k]
	}
}

func (a *tally) share(n int) float64 { return float64(n) / float64(max(1, a.cells)) }

func TestMixedStepGrid(t *testing.T) {
	var all tally
	for i, machine := range []string{"h100 Llama-3.1-8B bf16", "h200 Qwen2.5-7B fp8"} {
		for k, chunk := range []int{128, 176, 256, 512, 1024, 2048} {
			for m, batch := range []int{8, 48, 256} {
				for n, context := range []int{256, 2048, 8192} {
					some := *full || (3*i+k+m+2*n)%6 == 0
					if some && batch*context < 420000 { // what the cache of one board holds
						mixedCells(t, &all, machine, chunk, batch, context)
					}
				}
			}
		}
	}
	t.Logf("%d mixed cells: inside the interval %.3f, determined %.3f, reach %v, wrong by reach %v; labels %v; a roof holds 60 %% in %d, named in %d; shares off by %.3f; caps %v%s",
		all.cells, all.share(all.inside), all.share(all.determined), all.reach, all.wrong, all.labels, all.owned, all.named,
		all.off/float64(all.determined), all.caps, all.matrix())
	if all.cells < 100 || all.share(all.inside) < 0.95 || all.share(all.determined) < 0.60 {
		t.Errorf("want 100 cells, 95 %% inside, 60 %% determined")
	}
	if wrong := all.wrong[timeline.Medium] + all.wrong[timeline.High]; all.share(wrong) > 0.01 {
		t.Errorf("%d of %d cells name the wrong roof at medium or more, want at most 1 %%", wrong, all.cells)
	}
}

// mixedCells plays one point of the grid: streams that decode at a context, beside prompts that come in chunks.
func mixedCells(t *testing.T, all *tally, machine string, chunk, batch, context int) {
	t.Helper()
	m := strings.Fields(machine)
	tl := parse(t, fmt.Sprintf(`
seed 5
duration 18s
gpu %s
target main model=%s dtype=%s
engine max_batch=%d budget=%d chunk=%d
load streams=%d prompt=%d output=4000 0s..18s
load streams=3 prompt=%d output=1 3s..18s
`, m[0], m[1], m[2], batch+3, chunk+batch, chunk, batch, context, 4*chunk))
	p := player{tl: tl, seen: 1, targets: tl.Targets(), noise: 0.02}
	_, out := p.run()
	for i := range out.Cells {
		c := &out.Cells[i]
		from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
		tr := tl.Truth(0, from, to)
		if from < 6e9 || to > tl.Duration()-1e9 || tr.OutputTokens < batch || tr.PromptTokens == 0 {
			continue
		}
		all.take(t, fmt.Sprintf("%s chunk %d batch %d context %d", machine, chunk, batch, context), c, tr)
	}
}

func TestDecodeOnlyGrid(t *testing.T) {
	engines := map[string]string{
		"healthy":   "engine max_batch=256",
		"slow host": "engine max_batch=256 host=8ms",
		"eager":     "engine max_batch=256 graphs=off launch=9us",
	}
	models := []struct {
		gpu, model, dtype string
		count             int
	}{
		{"h100", "Llama-3.2-1B", "bf16", 1},
		{"h100", "Llama-3.1-8B", "bf16", 1},
		{"h100", "Llama-3.1-8B", "fp8", 1},
		{"h200", "Qwen3-30B-A3B", "fp8", 1},
		{"h100", "Llama-3.1-70B", "fp8", 2},
	}
	all := map[string]*tally{}
	var sum tally
	for k, kind := range slices.Sorted(maps.Keys(engines)) {
		engine := engines[kind]
		all[kind] = &tally{}
		for i, m := range models {
			for n, batch := range []int{1, 8, 32, 192} {
				if !*full && (k+i+n)%3 != 0 {
					continue
				}
				name := fmt.Sprintf("%s, %s %s on %d, batch %d", kind, m.model, m.dtype, m.count, batch)
				tp := ""
				if m.count > 1 {
					tp = fmt.Sprintf(" tp=%d", m.count)
				}
				tl := parse(t, fmt.Sprintf(`
seed 9
duration 13s
gpu %s count=%d
target main model=%s dtype=%s%s
%s
load streams=%d prompt=200 output=8000 0s..13s
`, m.gpu, m.count, m.model, m.dtype, tp, engine, batch))
				_, out := play(tl, 1)
				for i := range out.Cells {
					c := &out.Cells[i]
					from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
					tr := tl.Truth(0, from, to)
					if from < 4e9 || to > tl.Duration()-1e9 || tr.PromptTokens > 0 || c.Verdict.Mixed {
						continue
					}
					all[kind].take(t, name, c, tr)
				}
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		a := all[kind]
		sum.add(a)
		t.Logf("%s: %d cells, determined %.3f, inside %.3f, reach %v, wrong by reach %v, labels %v%s", kind, a.cells, a.share(a.determined), a.share(a.inside), a.reach, a.wrong, a.labels, a.matrix())
	}
	t.Logf("all: %d cells, determined %.3f, wrong by reach %v, shares off by %.3f%s", sum.cells, sum.share(sum.determined), sum.wrong, sum.off/float64(max(1, sum.determined)), sum.matrix())
	if sum.cells < 100 || sum.share(sum.determined) < 0.70 {
		t.Errorf("want 100 cells and 70 %% determined")
	}
	if sum.share(sum.wrong[timeline.High]) > 0.005 || sum.share(sum.wrong[timeline.Medium]) > 0.03 {
		t.Errorf("wrong by reach %v of %d, want at most 0.5 %% at high and 3 %% at medium", sum.wrong, sum.cells)
	}
}
