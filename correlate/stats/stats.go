// Package stats holds the statistics that the rooms above share: percentiles of a stated type, intervals that know of
// autocorrelation and of sessions, shifts between two builds, the end of a warm-up, and a mergeable sketch for what
// does not fit in memory. It knows numbers and instants; what they mean is said elsewhere. Every function that can lack
// an answer says so instead of inventing one.
package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// MinBlocks is the least number of blocks from which an interval is drawn: with fewer, the spread between blocks is
// itself too uncertain to print.
const MinBlocks = 10

// maxAutocorrelation keeps corrections for autocorrelation finite: a series closer to one than this is a trend, and no
// interval from it means anything.
const maxAutocorrelation = 0.95

// Lag1 returns the lag-1 autocorrelation of xs about its mean, in [-1, 1]. It is zero for fewer than three values and
// for a constant series. Short series bias it towards zero by about (1+4r)/n; see lag1Corrected.
func Lag1(xs []float64) float64 {
	if len(xs) < 3 {
		return 0
	}
	m := mean(xs)
	var num, den float64
	for i, x := range xs {
		d := x - m
		den += d * d
		if i > 0 {
			num += d * (xs[i-1] - m)
		}
	}
	if den <= 0 || math.IsNaN(num/den) {
		return 0
	}
	return num / den
}

// lag1Corrected returns Lag1 with the first-order bias of short series taken off (Kendall 1954: r + (1+4r)/n), never
// above 0.95.
func lag1Corrected(xs []float64) float64 {
	n := float64(len(xs))
	if n < 3 {
		return 0
	}
	r := Lag1(xs)
	if r == 0 {
		return 0
	}
	return min(r+(1+4*r)/n, maxAutocorrelation)
}

// EffectiveCount returns how many independent values say as much of their mean as the series xs does: n(1-r)/(1+r) with
// its lag-1 autocorrelation r, the bias of short series taken off. A negative r counts as none, so that the result
// never exceeds n.
func EffectiveCount(xs []float64) float64 {
	r := max(0, lag1Corrected(xs))
	return float64(len(xs)) * (1 - r) / (1 + r)
}

// Wilson returns the score interval of a proportion of which k in n independent trials were seen, at the given level.
// It is absent for no trials.
func Wilson(k, n int, level float64) (timeline.Interval, bool) {
	if n <= 0 || k < 0 || k > n || !(level > 0 && level < 1) {
		return timeline.Interval{}, false
	}
	z := distuv.UnitNormal.Quantile(0.5 + level/2)
	f, p := float64(n), float64(k)/float64(n)
	mid := (p + z*z/(2*f)) / (1 + z*z/f)
	half := z / (1 + z*z/f) * math.Sqrt(p*(1-p)/f+z*z/(4*f*f))
	return timeline.Interval{Low: max(0, mid-half), High: min(1, mid+half)}, true
}

// WeightedMean is a running mean in which every value has a weight. The zero WeightedMean holds nothing.
type WeightedMean struct {
	sum, weight float64
}

// Add takes the value x with weight w. Weights that are not positive, and what is no finite number, count as absent.
func (m *WeightedMean) Add(x, w float64) {
	if w > 0 && !math.IsInf(w, 0) && !math.IsNaN(x) && !math.IsInf(x, 0) {
		m.sum += x * w
		m.weight += w
	}
}

// Value returns the mean, and false if nothing was added.
func (m *WeightedMean) Value() (float64, bool) {
	if m.weight <= 0 {
		return 0, false
	}
	return m.sum / m.weight, true
}

// mean returns the arithmetic mean of xs, which must not be empty.
func mean(xs []float64) float64 {
	var s float64
	for _, x := range xs {
		s += x
	}
	return s / float64(len(xs))
}
