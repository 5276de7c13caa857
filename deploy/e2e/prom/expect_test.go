package prom_test

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// window is what a rate over a range sees: the cells between its oldest and its newest sample.
type window struct {
	from, to time.Duration // of the scenario
	length   time.Duration // of the range
}

// seen returns what a range of a query at the given offset sees. A range is open at its start, so that the sample there
// is not in it.
func seen(at, length time.Duration) window { return window{at - length + scrapeEvery, at, length} }

func (w window) span() timeline.Span {
	return timeline.Span{Start: origin.Add(w.from), End: origin.Add(w.to)}
}

// edge is what Prometheus may add by extrapolation to the start of its range, as a fraction of it; it adds nothing to a
// counter that began at zero.
func (w window) edge() float64 { return scrapeEvery.Seconds() / w.length.Seconds() }

// in returns the cells of a window.
func (p *play) in(w window) []correlate.Cell {
	var out []correlate.Cell
	for i := range p.cells {
		if c := &p.cells[i]; c.Span.Start >= w.span().Start && c.Span.End <= w.span().End {
			out = append(out, *c)
		}
	}
	return out
}

// band is what a value may be.
type band struct{ low, high float64 }

func near(v, by float64) band { return band{v - by, v + by} }

// expectation returns the bands of each series of a query over a window. A series that is not in it must be zero.
type expectation func(p *play, w window) map[string]band

// expectations are by the words above the query in the README. The first of each rests on the cells of the recording, and
// the second on the truth of the scenario.
var expectations = map[string][]expectation{
	"Share of decode time by what bounded it, over five minutes":                    {sharesOfCells, sharesOfTruth},
	"Achieved DRAM bandwidth of each GPU while it was covered, in bytes per second": {bandwidthOfCells, bandwidthOfTruth},
	"TPOT over requests, 90th percentile, by target (native histogram)":             {tpotOfTruth},
	"Share of time under the software power cap":                                    {throttleOfCells, throttleOfTruth},
}

func series(pairs ...string) string { return labels.FromStrings(pairs...).String() }

func sharesOfCells(p *play, w window) map[string]band {
	seconds, total := map[timeline.Label]float64{}, 0.0
	for _, c := range p.in(w) {
		if c.Decode {
			seconds[c.Verdict.Label] += c.Span.Duration().Seconds()
			total += c.Span.Duration().Seconds()
		}
	}
	want := map[string]band{}
	for l, s := range seconds {
		want[series("bound", string(l))] = near(s/total, w.edge())
	}
	return want
}

// sharesOfTruth counts the seconds of each target that the scenario itself gives to one limiter. Near the line at which
// one label is right both are; a twentieth of all seconds may be other than that.
func sharesOfTruth(p *play, w window) map[string]band {
	want, total := map[string]band{}, 0.0
	names := map[scenario.Limiter]timeline.Label{scenario.LimitMemory: timeline.Memory, scenario.LimitHost: timeline.Host}
	sure, perhaps := map[timeline.Label]float64{}, map[timeline.Label]float64{}
	for i := range p.truth.Targets() {
		for s := w.from; s < w.to; s += time.Second {
			tr := p.truth.Truth(i, s, s+time.Second)
			total++
			l, ok := names[tr.Dominant]
			switch {
			case ok && tr.Share > 0.7:
				sure[l]++
			case ok && tr.Share > 0.5:
				perhaps[l]++
			}
		}
	}
	for _, l := range names {
		want[series("bound", string(l))] = band{sure[l]/total - 0.05, (sure[l]+perhaps[l])/total + 0.05}
	}
	// What is said where no one limiter holds most of the time is the verdict's own matter.
	for _, l := range timeline.Labels() {
		if l != timeline.Memory && l != timeline.Host {
			want[series("bound", string(l))] = band{0, 1 - (sure[timeline.Memory]+sure[timeline.Host])/total + 0.05}
		}
	}
	return want
}

func bandwidthOfCells(p *play, w window) map[string]band {
	type sums struct{ bytes, covered float64 }
	got := map[string]sums{}
	for _, c := range p.in(w) {
		for _, g := range c.PerGPU {
			k := series("hw_id", g.UUID, "target", c.Target)
			got[k] = sums{got[k].bytes + g.DRAMBytes.Value, got[k].covered + g.CoveredS}
		}
	}
	want := map[string]band{}
	for k, s := range got {
		want[k] = near(s.bytes/s.covered, 1e-9*s.bytes/s.covered)
	}
	return want
}

func bandwidthOfTruth(p *play, w window) map[string]band {
	want := map[string]band{}
	for i, target := range p.truth.Targets() {
		v := p.truth.Truth(i, w.from, w.to).DRAMBytes / (w.to - w.from).Seconds()
		want[series("hw_id", target.GPUs[0], "target", target.Name)] = near(v, 0.03*v)
	}
	return want
}

// tpotOfTruth is the percentile over the requests that ended in the window, by the schedule of their own engine. A
// histogram tells it to a bucket, which is 4.4 % wide.
func tpotOfTruth(p *play, w window) map[string]band {
	want := map[string]band{}
	requests := p.truth.Requests()
	for i, target := range p.truth.Targets() {
		var tpots []float64
		for j := range requests {
			if r := &requests[j]; r.Target == i && r.Finish > w.from && r.Finish <= w.to && len(r.Tokens) > 1 {
				tpots = append(tpots, r.TPOT().Seconds())
			}
		}
		slices.Sort(tpots)
		v := tpots[int(math.Ceil(0.9*float64(len(tpots))))-1]
		want[series("target", target.Name)] = band{v / 1.0443, v * 1.0443}
	}
	return want
}

func throttleOfCells(p *play, w window) map[string]band {
	seconds := map[string]float64{}
	for _, c := range p.in(w) {
		for _, g := range c.PerGPU {
			seconds[series("hw_id", g.UUID, "reason", "sw_power_cap", "target", c.Target)] += g.ThrottledS["sw_power_cap"]
		}
	}
	want := map[string]band{}
	for k, s := range seconds {
		share := s / (w.to - w.from).Seconds()
		want[k] = near(share, share*w.edge()+1e-9)
	}
	return want
}

func throttleOfTruth(p *play, w window) map[string]band {
	want := map[string]band{}
	for i, target := range p.truth.Targets() {
		share := p.truth.Truth(i, w.from, w.to).Throttled.Seconds() / (w.to - w.from).Seconds()
		want[series("hw_id", target.GPUs[0], "reason", "sw_power_cap", "target", target.Name)] = near(share, 0.03)
	}
	return want
}
