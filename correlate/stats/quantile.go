package stats

import (
	"math"
	"sort"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// QuantileType says how a percentile that falls between two values is read. Tools differ, and a figure without its
// type cannot be compared: of 1..10, p90 is 9.1 as [Linear] and 9 as [NearestRank].
type QuantileType uint8

// The types of quantile.
const (
	Linear      QuantileType = iota // between the neighbours, R type 7: numpy's default, and vLLM's
	NearestRank                     // the smallest value with at least p of all values at or below it, R type 1
)

// String returns the type's name as outputs print it.
func (q QuantileType) String() string {
	if q == NearestRank {
		return "nearest_rank"
	}
	return "linear_r7"
}

// Quantile returns the p-quantile, p in [0, 1], of values in ascending order. It is absent for no values.
func Quantile(sorted []float64, p float64, q QuantileType) (float64, bool) {
	n := len(sorted)
	if n == 0 || math.IsNaN(p) || p < 0 || p > 1 {
		return 0, false
	}
	if q == NearestRank {
		// The product may miss a whole number by a rounding error; 0.07*100 is 7.000000000000001.
		return sorted[max(0, int(math.Ceil(p*float64(n)-1e-9))-1)], true
	}
	h := p * float64(n-1)
	i := int(h)
	if i >= n-1 {
		return sorted[n-1], true
	}
	return sorted[i] + (h-float64(i))*(sorted[i+1]-sorted[i]), true
}

// Median returns the median of values in ascending order, zero if there are none.
func Median(sorted []float64) float64 {
	m, _ := Quantile(sorted, 0.5, Linear)
	return m
}

// QuantileInterval returns an interval for the p-quantile of what the values, in ascending order, are drawn from. Its
// ends are two of the values: by the binomial law the quantile lies between them with at least the given level whatever
// the distribution, as long as the values are independent. It is absent where no value of the sample can bound the
// quantile on one side: 100 values have no interval for p99.
func QuantileInterval(sorted []float64, p, level float64) (timeline.Interval, bool) {
	low, high, ok := quantileRanks(len(sorted), p, level)
	if !ok {
		return timeline.Interval{}, false
	}
	return timeline.Interval{Low: sorted[low-1], High: sorted[high-1]}, true
}

// quantileRanks returns the one-based ranks of the order statistics between which the p-quantile lies with at least
// the given level, for n independent values: P(X_low <= q_p <= X_high) >= level.
func quantileRanks(n int, p, level float64) (low, high int, ok bool) {
	if n <= 0 || !(p > 0 && p < 1 && level > 0 && level < 1) {
		return 0, 0, false
	}
	b := distuv.Binomial{N: float64(n), P: p}
	tail := (1 - level) / 2
	// low is the greatest rank whose value exceeds the quantile with probability P(B <= low-1) <= tail.
	low = sort.Search(n, func(k int) bool { return b.CDF(float64(k)) > tail })
	// high is the smallest rank with P(B <= high-1) >= 1-tail.
	high = 1 + sort.Search(n, func(k int) bool { return b.CDF(float64(k)) >= 1-tail })
	return low, high, low >= 1 && high <= n
}

// QuantileNeeds returns the smallest sample that bounds the p-quantile on both sides at the given level: 6 for the
// median at 95 %, 36 for p90, 368 for p99. A percentile of fewer values is a guess at the edge of the sample.
func QuantileNeeds(p, level float64) int {
	if p <= 0 || p >= 1 || level <= 0 || level >= 1 {
		return math.MaxInt
	}
	// The outermost ranks are 1 and n: (1-p)^n and p^n must both fall to the tail.
	return int(math.Ceil(math.Log((1-level)/2)/math.Log(max(p, 1-p)) - 1e-9))
}
