package correlate_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// bench is one run of the checks of the verdict. The usual run is a part of the whole; TPOTSCOPE_BENCH=1 asks for all of it,
// and TPOTSCOPE_BENCH=holdout for other seeds, machines, models and values than those with which rules are mended.
type bench struct {
	t             *testing.T
	full, holdout bool
	rows          []row
}

// row is one figure beside its bar.
type row struct {
	check, figure, bar string
	pass               bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	asked := os.Getenv("TPOTSCOPE_BENCH")
	return &bench{t: t, full: asked != "", holdout: asked == "holdout"}
}

// seeds of the usual run and of the whole are the first and all of those for mending; those that are held out are apart.
func (b *bench) seeds() []uint64 {
	switch {
	case b.holdout:
		return []uint64{50001, 50002, 50003}
	case b.full:
		return []uint64{5, 6, 7}
	}
	return []uint64{5}
}

// some reports whether the usual run plays the i-th of the points: one of each so many.
func (b *bench) some(i, of int) bool { return b.full || i%of == 0 }

func (b *bench) row(check string, pass bool, bar, figure string, args ...any) {
	b.rows = append(b.rows, row{check, fmt.Sprintf(figure, args...), bar, pass})
}

// print writes the table, and fails for each bar that is missed.
func (b *bench) print() {
	b.t.Helper()
	var out strings.Builder
	kind := "development"
	if b.holdout {
		kind = "held out"
	}
	fmt.Fprintf(&out, "%s seeds %v\n", kind, b.seeds())
	width := 0
	for _, r := range b.rows {
		width = max(width, len(r.check))
	}
	for _, r := range b.rows {
		mark := "pass"
		if !r.pass {
			mark = "MISS"
			b.t.Errorf("%s: %s, want %s", r.check, r.figure, r.bar)
		}
		fmt.Fprintf(&out, "  %s  %-*s  %s  [%s]\n", mark, width, r.check, r.figure, r.bar)
	}
	b.t.Log("\n" + out.String())
}

// TestBenchVerdict holds what is said to the truth of the kernels, to published measurements and to counted trials.
func TestBenchVerdict(t *testing.T) {
	b := newBench(t)
	b.mixedGrid()
	b.decodeGrid()
	b.coverage()
	b.stragglers()
	b.bandwidth()
	b.intervals()
	b.published()
	b.decodeRuns()
	b.monteCarlo()
	b.print()
}

// point is one scenario of a grid, played through an engine.
type point struct {
	name string
	tl   *scenario.Timeline
	out  correlate.Output
}

func (b *bench) play(name, text string, noise, seen float64) point {
	b.t.Helper()
	tl := parse(b.t, text)
	p := player{tl: tl, seen: seen, targets: tl.Targets(), noise: noise}
	_, out := p.run()
	return point{name, tl, out}
}

// each calls f for the cells of the point that lie in its steady part, with their truth, and returns them as a run.
func (p *point) each(fromS float64, f func(c *correlate.Cell, tr scenario.Truth)) []verdict.Timed {
	var timed []verdict.Timed
	for i := range p.out.Cells {
		c := &p.out.Cells[i]
		from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
		if from.Seconds() < fromS || to > p.tl.Duration()-1e9 {
			continue
		}
		timed = append(timed, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
		if f != nil {
			f(c, p.tl.Truth(0, from, to))
		}
	}
	return timed
}

// score compares what is said with what is true, by cells and by runs of them.
type score struct {
	cells, inside, placed, determined, owned, named int
	off, width                                      float64
	wrong                                           [timeline.High + 1]int // cells by what they can reach
	runs, runsWrong                                 [timeline.High + 1]int // by the confidence that is said
	confused                                        map[string]int         // cells by truth, label and what they can reach
	outside                                         map[string]int         // cells by their point, whose truth the interval leaves out
}

// truthOf names what held 60 % of the time by the kernels, and else that nothing did.
func truthOf(tr *scenario.Truth) timeline.Label {
	if tr.Communication >= 0.6 {
		return timeline.Communication
	}
	return held(tr.Shares)
}

// wrong reports whether the label names something that took less of the time than another limiter.
func wrong(l timeline.Label, tr *scenario.Truth) bool {
	s := tr.Shares
	named := map[timeline.Label]float64{
		timeline.Memory: s.Memory, timeline.Compute: s.Compute, timeline.Host: s.Host + s.Launch, timeline.Launch: s.Host + s.Launch,
		timeline.HostOrLaunch: s.Host + s.Launch, timeline.Communication: tr.Communication,
	}
	share, ok := named[l]
	if !ok {
		return wrongLabel(l, s)
	}
	return share < max(s.Memory, s.Compute, s.Host+s.Launch, tr.Communication)
}

// tolerance of the interval: the error that the counters themselves have over a cell.
const tolerance = 0.02

func (s *score) take(p *point, c *correlate.Cell, tr *scenario.Truth) {
	v := &c.Verdict
	s.cells++
	if s.confused == nil {
		s.confused, s.outside = map[string]int{}, map[string]int{}
	}
	s.confused[fmt.Sprintf("%s\t%s\t%s", truthOf(tr), v.Label, v.Ceiling)]++
	if v.Placed() {
		roof := tr.Shares.Memory + tr.Shares.Compute
		s.placed++
		s.width += v.Roof.High - v.Roof.Low
		if roof >= v.Roof.Low-tolerance && roof <= v.Roof.High+tolerance {
			s.inside++
		} else {
			s.outside[fmt.Sprintf("%s (%.2f, said %.2f to %.2f)", p.name, roof, v.Roof.Low, v.Roof.High)]++
		}
	}
	if !v.OK() {
		return
	}
	s.determined++
	s.off += (abs(v.Shares.Memory-tr.Shares.Memory) + abs(v.Shares.Compute-tr.Shares.Compute)) / 2
	if m, k := tr.Shares.Memory >= 0.6, tr.Shares.Compute >= 0.6; m || k {
		s.owned++
		if m && v.Label == timeline.Memory || k && v.Label == timeline.Compute {
			s.named++
		}
	}
	if wrong(v.Label, tr) {
		s.wrong[v.Ceiling]++
	}
}

// run takes the verdict of a whole run, and the truth of the same time.
func (s *score) run(v *verdict.Verdict, tr *scenario.Truth) bool {
	if !v.OK() {
		return false
	}
	s.runs[v.Confidence]++
	if wrong(v.Label, tr) {
		s.runsWrong[v.Confidence]++
		return true
	}
	return false
}

func abs(x float64) float64 { return max(x, -x) }

func part(n, of int) float64 { return float64(n) / float64(max(1, of)) }

// mostOutside of the points are listed.
const mostOutside = 12

// matrix writes the confusion: truth by what was said by what the cell can reach.
func (s *score) matrix() string {
	var b strings.Builder
	last := ""
	for _, k := range slices.Sorted(maps.Keys(s.confused)) {
		f := strings.Split(k, "\t")
		if f[0] != last {
			fmt.Fprintf(&b, "\n  truth %-15s", f[0])
			last = f[0]
		}
		fmt.Fprintf(&b, " %s/%s %d", f[1], f[2], s.confused[k])
	}
	for i, k := range slices.Sorted(maps.Keys(s.outside)) {
		if i == mostOutside {
			fmt.Fprintf(&b, "\n  and %d more outside", len(s.outside)-mostOutside)
			break
		}
		fmt.Fprintf(&b, "\n  outside of the interval: %s, %d cells", k, s.outside[k])
	}
	return b.String()
}
