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

// Statistic returns the interval of any statistic of a series in the order of time, and its value on the whole series.
// The statistic is handed the indices of the values to look at, from 0 to below len(like), an index several times over
// if need be; it must not keep the slice, and NaN says that it cannot tell. The series like is what the statistic is an
// average of, in whatever sense: the values themselves, or the residuals of a fit. Its correlation says how much blocks
// cut, for which the interval is widened about the statistic, and for few blocks, which tell their own spread poorly
// (Student's t).
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
	block := max(1, b.Block)
	p := 0.5 + b.level()/2
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: blockFreedom(len(xs), block)}.Quantile(p)
	return t / distuv.UnitNormal.Quantile(p) / math.Sqrt(blocksKeep(xs, block))
}
