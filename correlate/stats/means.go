package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// MeanInterval returns the interval of the mean of a series whose neighbours are alike, at the given level, over
// overlapping blocks of so many neighbours on a circle. Its variance is the one that resampling such blocks tends to,
// in closed form, so that it needs no draws. It is wider than that for what blocks cut of correlations, and by Student's
// t with the fewer of two counts: what so many blocks tell of their own spread, and what so many values would that are
// as alike as these. Fewer than [MinBlocks] blocks give no interval, and neither does what is no finite number.
func MeanInterval(xs []float64, block int, level float64) (timeline.Interval, bool) {
	n := len(xs)
	block = max(1, block)
	if n/block < MinBlocks || !(level > 0 && level < 1) {
		return timeline.Interval{}, false
	}
	at := mean(xs)
	rest := n % block
	variance := float64(n/block)*sumVariance(xs, at, block) + sumVariance(xs, at, rest)
	freedom := min(blockFreedom(n, block), max(2, EffectiveCount(xs)-1))
	half := studentQuantile(freedom, 0.5+level/2) * math.Sqrt(variance/blocksKeep(xs, block)) / float64(n)
	if math.IsNaN(half) || math.IsInf(half, 0) {
		return timeline.Interval{}, false
	}
	return timeline.Interval{Low: at - half, High: at + half}, true
}

// studentQuantile is the quantile of Student's t. From five degrees of freedom on it is the expansion about the normal law
// (Abramowitz and Stegun 26.7.5), which for the usual levels is right to a part in two thousand, and far quicker than
// to invert the law: a report asks for hundreds of thousands.
func studentQuantile(freedom, p float64) float64 {
	if freedom < 5 || p < 0.01 || p > 0.99 {
		return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(p)
	}
	z := distuv.UnitNormal.Quantile(p)
	y := z * z
	terms := [...]float64{
		(y + 1) / 4,
		((5*y+16)*y + 3) / 96,
		(((3*y+19)*y+17)*y - 15) / 384,
		((((79*y+776)*y+1482)*y-1920)*y - 945) / 92160,
	}
	t, scale := 1.0, 1.0
	for _, term := range terms {
		scale /= freedom
		t += term * scale
	}
	return z * t
}

// sumVariance is the variance of the sum of w neighbours over every start on a circle, about w times the mean at.
func sumVariance(xs []float64, at float64, w int) float64 {
	if w == 0 {
		return 0
	}
	n := len(xs)
	var s, squares float64
	for i := range n {
		if i%1024 == 0 { // afresh, so that rounding does not pile up
			s = 0
			for k := range w {
				s += xs[(i+k)%n] - at
			}
		} else {
			s += xs[(i+w-1)%n] - xs[i-1]
		}
		squares += s * s
	}
	return squares / float64(n)
}

// blockFreedom is how many degrees of freedom blocks of n values have in telling their own spread: those that overlap
// tell it about as well as 1.5 times as many that do not (Meketon and Schmeiser 1984).
func blockFreedom(n, block int) float64 { return 1.5 * float64(n/block-1) }

// blocksKeep is the part of the variance of a mean that blocks keep: what a first-order autoregression with the series'
// own lag-1 correlation loses at their ends, and the variance of the series' own mean, are taken off.
func blocksKeep(xs []float64, block int) float64 {
	l := float64(block)
	r := max(0, lag1Corrected(xs))
	// Variance of a mean of l values of an AR(1) series, times l over its limit for long l:
	// 1 - 2r(1-r^l)/(l(1-r^2)).
	kept := 1 - 2*r*(1-math.Pow(r, l))/(l*(1-r*r))
	// Blocks spread about the series' own mean, which takes the variance of that mean off: l/n of its limit.
	kept -= l / float64(len(xs))
	return max(kept, 0.05)
}
