package stats

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// defaultResamples is enough for the ends of a 95 % interval: its ends are the 25th and 975th of 1000.
const defaultResamples = 1000

// Bootstrap draws intervals for statistics of a series whose neighbours are alike. It resamples blocks of neighbours
// on a circle (Politis and Romano 1992), so that every value is drawn as often as any other. Fewer than [MinBlocks]
// blocks give no interval.
type Bootstrap struct {
	Block     int        // neighbours drawn together, at least one
	Resamples int        // 1000 if zero
	Level     float64    // 0.95 if zero
	Rand      *rand.Rand // the caller's, so that the same input gives the same interval
}

// Blocks returns how many whole blocks a series of n values makes.
func (b Bootstrap) Blocks(n int) int { return n / max(1, b.Block) }

// Mean returns the interval of the mean of xs. The percentile interval of the blocks is too narrow for two known
// reasons, and is widened for both: blocks cut correlations at their ends (by what a first-order autoregression with
// the series' own lag-1 correlation loses), and few blocks tell their own spread poorly (Student's t).
func (b Bootstrap) Mean(xs []float64) (timeline.Interval, bool) {
	n, block := len(xs), max(1, b.Block)
	if b.Rand == nil || b.Blocks(n) < MinBlocks {
		return timeline.Interval{}, false
	}
	sums := circularSums(xs, block)
	means := make([]float64, b.resamples())
	for i := range means {
		left := n
		var s float64
		for left >= block {
			s += sums.full[b.Rand.IntN(n)]
			left -= block
		}
		if left > 0 {
			s += sums.part[b.Rand.IntN(n)]
		}
		means[i] = s / float64(n)
	}
	iv, ok := b.ends(means)
	if !ok {
		return iv, false
	}
	return widen(iv, mean(xs), b.widening(xs)), true
}

// Statistic returns the interval of any statistic of a series in the order of time, and its value on the whole series.
// The statistic is handed the indices of the values to look at, from 0 to below len(like), an index several times over
// if need be; it must not keep the slice, and NaN says that it cannot tell. The series like is what the statistic is an
// average of, in whatever sense: the values themselves, or the residuals of a fit. Its correlation says how much blocks
// cut, for which the interval is widened about the statistic as that of [Bootstrap.Mean] is.
func (b Bootstrap) Statistic(like []float64, statistic func(idx []int) float64) (float64, timeline.Interval, bool) {
	n := len(like)
	idx := make([]int, n)
	for i := range idx {
		idx[i] = i
	}
	at := statistic(idx)
	if b.Rand == nil || b.Blocks(n) < MinBlocks || math.IsNaN(at) {
		return at, timeline.Interval{}, false
	}
	values := make([]float64, b.resamples())
	for i := range values {
		idx = b.blocks(idx[:0], n)
		values[i] = statistic(idx)
	}
	iv, ok := b.ends(values)
	if !ok {
		return at, iv, false
	}
	return at, widen(iv, at, b.widening(like)), true
}

// blocks appends n indices below n to dst, drawn as blocks of neighbours on a circle.
func (b Bootstrap) blocks(dst []int, n int) []int {
	block := max(1, b.Block)
	for left := n; left > 0; left -= block {
		start := b.Rand.IntN(n)
		for k := range min(block, left) {
			dst = append(dst, (start+k)%n)
		}
	}
	return dst
}

// widen returns the interval with its distances from the estimate at multiplied by factor.
func widen(iv timeline.Interval, at, factor float64) timeline.Interval {
	return timeline.Interval{Low: at + (iv.Low-at)*factor, High: at + (iv.High-at)*factor}
}

func (b Bootstrap) resamples() int {
	if b.Resamples <= 0 {
		return defaultResamples
	}
	return b.Resamples
}

func (b Bootstrap) level() float64 {
	if b.Level <= 0 || b.Level >= 1 {
		return 0.95
	}
	return b.Level
}

// ends sorts the resampled values and returns their outer quantiles.
func (b Bootstrap) ends(values []float64) (timeline.Interval, bool) {
	if slices.ContainsFunc(values, math.IsNaN) {
		return timeline.Interval{}, false
	}
	slices.Sort(values)
	tail := (1 - b.level()) / 2
	lo, _ := Quantile(values, tail, Linear)
	hi, _ := Quantile(values, 1-tail, Linear)
	return timeline.Interval{Low: lo, High: hi}, true
}

// widening is the product of the autoregressive and the small-sample correction.
func (b Bootstrap) widening(xs []float64) float64 {
	block := float64(max(1, b.Block))
	r := max(0, lag1Corrected(xs))
	// Variance of a mean of l values of an AR(1) series, times l over its limit for long l:
	// 1 - 2r(1-r^l)/(l(1-r^2)).
	kept := 1 - 2*r*(1-math.Pow(r, block))/(block*(1-r*r))
	// Blocks spread about the series' own mean, which takes the variance of that mean off: l/n of its limit.
	kept -= block / float64(len(xs))
	// Overlapping blocks tell their spread about as well as 1.5 times as many that do not overlap (Meketon and
	// Schmeiser 1984).
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: 1.5 * float64(b.Blocks(len(xs))-1)}
	p := 0.5 + b.level()/2
	return t.Quantile(p) / distuv.UnitNormal.Quantile(p) / math.Sqrt(max(kept, 0.05))
}

// blockSums are the sums of the blocks that start at each value, on a circle: whole ones, and those that fill up the
// rest of a series that is no multiple of the block.
type blockSums struct {
	full, part []float64
}

func circularSums(xs []float64, block int) blockSums {
	n := len(xs)
	return blockSums{full: windowSums(xs, block), part: windowSums(xs, n%block)}
}

// windowSums returns the sum of w neighbours from each start, on a circle. Each is summed afresh every few thousand
// steps so that rounding does not pile up.
func windowSums(xs []float64, w int) []float64 {
	n := len(xs)
	out := make([]float64, n)
	if w == 0 {
		return out
	}
	var s float64
	for i := range n {
		if i%1024 == 0 {
			s = 0
			for k := range w {
				s += xs[(i+k)%n]
			}
		} else {
			s += xs[(i+w-1)%n] - xs[i-1]
		}
		out[i] = s
	}
	return out
}
