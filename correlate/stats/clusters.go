package stats

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// MinSessions is the least number of sessions on either side from which the spread between them can be told at all.
const MinSessions = 3

// ClusterBootstrap draws intervals for the ratio of a statistic between two builds whose values come in sessions: the
// requests of one server start, or of ten seconds, share its state and are not independent. It resamples sessions, then
// requests within each. The same input gives the same interval.
type ClusterBootstrap struct {
	Level     float64 // 0.95 if zero
	Resamples int     // 1000 if zero
	Seed      uint64
}

// Ratio returns the statistic of b over that of a, and its interval. The outer slices are sessions; empty ones do not
// count. The statistic is called with the values of all sessions together, which it may reorder and must not keep. The
// point is NaN where the statistic is not positive on either side; the interval is absent there, and with fewer than
// [MinSessions] sessions on either side.
//
// Percentiles of two-stage resamples are wrong in width twice over, and are put right on the logarithmic scale: the
// spread within sessions enters both stages, so that the width is set by that of sessions alone; and few sessions tell
// their own spread poorly (k/(k-1), and Student's t with the degrees of freedom of Welch and Satterthwaite).
func (c ClusterBootstrap) Ratio(a, b [][]float64, statistic func([]float64) float64) (point, lo, hi float64, ok bool) {
	rng := rand.New(rand.NewPCG(c.Seed, 0x636c7573746572)) // draws of a bootstrap, no secret
	x, okX := c.draw(a, statistic, rng)
	y, okY := c.draw(b, statistic, rng)
	point = math.Exp(y.log - x.log)
	if !okX || !okY {
		return point, 0, 0, false
	}
	diffs := make([]float64, len(x.both))
	for i := range diffs {
		diffs[i] = y.both[i] - x.both[i]
	}
	slices.Sort(diffs)
	level := Bootstrap{Level: c.Level}.level()
	low, _ := Quantile(diffs, (1-level)/2, Linear)
	high, _ := Quantile(diffs, (1+level)/2, Linear)
	at := y.log - x.log
	f := widenSessions(x, y, level)
	return point, math.Exp(at + (low-at)*f), math.Exp(at + (high-at)*f), true
}

// drawn is what the resamples of one side gave, as logarithms of the statistic.
type drawn struct {
	sessions int
	log      float64   // of all values
	both     []float64 // of sessions, then requests
	outer    []float64 // of the same sessions, whole
}

func (c ClusterBootstrap) draw(sessions [][]float64, statistic func([]float64) float64, rng *rand.Rand) (drawn, bool) {
	var kept [][]float64
	var all []float64
	for _, s := range sessions {
		if len(s) > 0 {
			kept = append(kept, s)
			all = append(all, s...)
		}
	}
	if len(all) == 0 {
		return drawn{log: math.NaN()}, false
	}
	d := drawn{sessions: len(kept), log: math.Log(statistic(all))}
	if len(kept) < MinSessions || !finite(d.log) {
		return d, false
	}
	whole, both := make([]float64, 0, len(all)), make([]float64, 0, len(all))
	for range (Bootstrap{Resamples: c.Resamples}).resamples() {
		whole, both = whole[:0], both[:0]
		for range kept {
			s := kept[rng.IntN(len(kept))]
			whole = append(whole, s...)
			for range s {
				both = append(both, s[rng.IntN(len(s))])
			}
		}
		u, v := math.Log(statistic(whole)), math.Log(statistic(both))
		if !finite(u) || !finite(v) {
			return d, false
		}
		d.outer, d.both = append(d.outer, u), append(d.both, v)
	}
	return d, true
}

// widenSessions returns the factor on the distances of the two-stage percentiles from the estimate.
func widenSessions(x, y drawn, level float64) float64 {
	outerX, outerY := x.outerVariance(), y.outerVariance()
	both := stat.PopVariance(x.both, nil) + stat.PopVariance(y.both, nil)
	outer := outerX + outerY
	if both <= 0 || outer <= 0 {
		return 1
	}
	kx, ky := float64(x.sessions), float64(y.sessions)
	freedom := outer * outer / (outerX*outerX/(kx-1) + outerY*outerY/(ky-1))
	p := 0.5 + level/2
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(p) / distuv.UnitNormal.Quantile(p)
	return t * math.Sqrt(outer/both)
}

// outerVariance is the variance between resamples of sessions, without its bias for few sessions.
func (d drawn) outerVariance() float64 {
	k := float64(d.sessions)
	return stat.PopVariance(d.outer, nil) * k / (k - 1)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
