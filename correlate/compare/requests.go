package compare

import (
	"math/rand/v2"
	"slices"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// sessionSize is how many requests a trace holds on average for traces to be sessions.
	sessionSize = 1.5
	// mostShifted bounds the requests of a side in one resample of the shift.
	mostShifted   = 400
	shiftResample = 300
)

// shift compares the requests of both sides whose decode lies in matched cells, each by its own TPOT.
func shift(x, y *arm, m *matching, o Options) (Shift, int, int) {
	a, b := m.a.matched(x.requests, m.shared), m.b.matched(y.requests, m.shared)
	no := absent("requests are not seen on both sides")
	s := Shift{P50Ratio: no, Shift: no, Delta: timeline.Absent(no.Value.Why)}
	if len(a) == 0 || len(b) == 0 {
		return s, len(a), len(b)
	}
	ca, sa := sessions(a, m.blockS)
	cb, sb := sessions(b, m.blockS)
	s.Clusters = "blocks of time"
	if sa && sb {
		s.Clusters = "sessions"
	}
	median := func(xs []float64) float64 {
		slices.Sort(xs)
		return stats.Median(xs)
	}
	few := "too few sessions or blocks of time"
	point, lo, hi, ok := stats.ClusterBootstrap{Seed: o.Seed}.Ratio(fewer(ca), fewer(cb), median)
	s.P50Ratio = Value{Value: timeline.Known(point), CI95: summary.Maybe[timeline.Interval]{Why: few}}
	if ok && min(len(ca), len(cb)) >= stats.MinBlocks {
		s.P50Ratio.CI95 = summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: lo, High: hi}}
	}
	ta, tb := slices.Concat(ca...), slices.Concat(cb...)
	if hl, ok := stats.HodgesLehmann(ta, tb); ok {
		s.Shift = Value{Value: timeline.Known(hl), CI95: shiftInterval(fewer(ca), fewer(cb), hl, o)}
	}
	if d, ok := stats.CliffsDelta(ta, tb); ok {
		s.Delta = timeline.Known(d)
	}
	return s, len(a), len(b)
}

// matched are the requests the middle of whose decode lies in a matched cell.
func (s *side) matched(all []request, bins bool) []request {
	if !bins {
		return all
	}
	var out []request
	for _, q := range all {
		i, ok := slices.BinarySearchFunc(s.cells, q.at, func(c cell, t timeline.Instant) int {
			switch {
			case c.at.End <= t:
				return -1
			case c.at.Start > t:
				return 1
			}
			return 0
		})
		if ok && s.cells[i].bin >= 0 {
			out = append(out, q)
		}
	}
	return out
}

// sessions groups requests: by their traces where those hold several, else by blocks of time. It reports which.
func sessions(of []request, block float64) ([][]float64, bool) {
	traces := map[string]int{}
	traced := 0
	for i := range of {
		if t := of[i].trace; t != "" {
			traced++
			traces[t]++
		}
	}
	byTrace := traced == len(of) && len(traces) >= stats.MinBlocks && float64(traced) >= sessionSize*float64(len(traces))
	type cluster struct {
		trace string
		block int64
	}
	number := map[cluster]int{}
	var out [][]float64
	for i := range of {
		q := &of[i]
		key := cluster{trace: q.trace}
		if !byTrace {
			key = cluster{block: int64(q.at.Seconds() / block)}
		}
		k, ok := number[key]
		if !ok {
			k, number[key] = len(out), len(out)
			out = append(out, nil)
		}
		out[k] = append(out[k], q.tpot)
	}
	return out, byTrace
}

// mostDrawn bounds the requests of a side that are resampled.
const mostDrawn = 5000

// fewer takes requests evenly out of each cluster until they are few enough to be resampled a thousand times.
func fewer(clusters [][]float64) [][]float64 {
	n := 0
	for _, c := range clusters {
		n += len(c)
	}
	every := (n + mostDrawn - 1) / mostDrawn
	if every <= 1 {
		return clusters
	}
	out := make([][]float64, len(clusters))
	for i, c := range clusters {
		for k := i % every; k < len(c); k += every {
			out[i] = append(out[i], c[k])
		}
	}
	return out
}

// shiftInterval is the interval of the shift over resampled clusters.
func shiftInterval(a, b [][]float64, at float64, o Options) summary.Maybe[timeline.Interval] {
	if min(len(a), len(b)) < stats.MinBlocks {
		return summary.Maybe[timeline.Interval]{Why: "too few sessions or blocks of time"}
	}
	rng := rand.New(rand.NewPCG(o.Seed, 3)) // the draws of a bootstrap, no secret
	all := make([]float64, 0, shiftResample)
	for range shiftResample {
		if hl, ok := stats.HodgesLehmann(some(a, rng), some(b, rng)); ok {
			all = append(all, hl)
		}
	}
	slices.Sort(all)
	lo, ok := stats.Quantile(all, (1-level)/2, stats.Linear)
	hi, _ := stats.Quantile(all, (1+level)/2, stats.Linear)
	if !ok {
		return summary.Maybe[timeline.Interval]{Why: "no request has a TPOT"}
	}
	f := student(float64(min(len(a), len(b)) - 1))
	return summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: at + (lo-at)*f, High: at + (hi-at)*f}}
}

// some draws clusters, and of many requests in them a part.
func some(clusters [][]float64, rng *rand.Rand) []float64 {
	var out []float64
	for range clusters {
		out = append(out, clusters[rng.IntN(len(clusters))]...)
	}
	if len(out) <= mostShifted {
		return out
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:mostShifted]
}
