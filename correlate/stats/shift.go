package stats

import (
	"math"
	"slices"
	"sort"
)

// HodgesLehmann returns by how much values of b exceed values of a: the median of all differences of one of b less one
// of a, which a few wild values on either side hardly move. Neither slice needs an order, and both stay as they are. It
// is absent if either is empty or holds what is no finite number.
func HodgesLehmann(a, b []float64) (float64, bool) {
	d, ok := newDifferences(a, b)
	if !ok {
		return 0, false
	}
	n := d.count()
	lower := d.rank((n + 1) / 2)
	if n%2 == 1 {
		return lower, true
	}
	return (lower + d.rank(n/2+1)) / 2, true
}

// CliffsDelta returns how surely values of b exceed values of a: P(b > a) - P(b < a) over all pairs, from -1 to 1, and
// 0 where neither tends to be the greater. It is absent if either is empty or holds what is no finite number.
func CliffsDelta(a, b []float64) (float64, bool) {
	d, ok := newDifferences(a, b)
	if !ok {
		return 0, false
	}
	var less, more int
	for _, y := range d.b {
		less += len(d.a) - sort.Search(len(d.a), func(i int) bool { return d.a[i] > y })
		more += sort.SearchFloat64s(d.a, y)
	}
	return float64(more-less) / float64(d.count()), true
}

// differences are all b less a, without the room for them.
type differences struct {
	a, b []float64 // in ascending order
}

func newDifferences(a, b []float64) (differences, bool) {
	if len(a) == 0 || len(b) == 0 {
		return differences{}, false
	}
	d := differences{a: slices.Clone(a), b: slices.Clone(b)}
	slices.Sort(d.a)
	slices.Sort(d.b)
	// What is no number sorts to the front, and infinities to the ends.
	for _, s := range [][]float64{d.a, d.b} {
		if math.IsNaN(s[0]) || math.IsInf(s[0], 0) || math.IsInf(s[len(s)-1], 0) {
			return differences{}, false
		}
	}
	return d, true
}

func (d differences) count() int { return len(d.a) * len(d.b) }

// rank returns the k-th smallest difference, from one. It halves the range of floating-point numbers, of which there
// are 2^64, and counts the differences below each half in one walk along both samples.
func (d differences) rank(k int) float64 {
	lo := ordinal(d.b[0] - d.a[len(d.a)-1])
	hi := ordinal(d.b[len(d.b)-1] - d.a[0])
	for lo < hi {
		// The mean of two whole numbers, without overflow, rounded down.
		mid := lo&hi + (lo^hi)>>1
		if d.atMost(fromOrdinal(mid)) >= k {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return fromOrdinal(lo)
}

// atMost returns how many differences are x or less.
func (d differences) atMost(x float64) int {
	n, i := 0, len(d.a)
	for _, y := range slices.Backward(d.b) {
		// The smaller y, the more of a are within x of it.
		for i > 0 && y-d.a[i-1] <= x {
			i--
		}
		n += len(d.a) - i
	}
	return n
}

// ordinal numbers the finite floating-point numbers in their order; fromOrdinal is its inverse.
func ordinal(x float64) int64 {
	n := int64(math.Float64bits(x))
	if n < 0 {
		return math.MinInt64 - n
	}
	return n
}

func fromOrdinal(n int64) float64 {
	if n < 0 {
		n = math.MinInt64 - n
	}
	return math.Float64frombits(uint64(n))
}

// maxSlopePairs bounds the work of TheilSen: the median of as many slopes is sure to a few hundredths of their spread.
const maxSlopePairs = 1 << 12

// TheilSen returns the slope of y over x as the median of the slopes between pairs of points, which up to 29 % of wild
// points cannot carry away. Many points are paired at even distances instead of each with each. It is absent where
// fewer than two points differ in x.
func TheilSen(x, y []float64) (float64, bool) {
	n := min(len(x), len(y))
	stride := 1
	for n*(n-1)/2/stride > maxSlopePairs {
		stride++
	}
	slopes := make([]float64, 0, min(n*n/2, maxSlopePairs+n))
	for apart := 1; apart < n; apart += stride {
		for i := 0; i+apart < n; i++ {
			if dx := x[i+apart] - x[i]; dx != 0 {
				slopes = append(slopes, (y[i+apart]-y[i])/dx)
			}
		}
	}
	if len(slopes) == 0 || slices.ContainsFunc(slopes, math.IsNaN) {
		return 0, false
	}
	slices.Sort(slopes)
	return Median(slopes), true
}

// Equivalent reports whether the interval from lo to hi of a ratio lies within a margin of one, on the logarithmic
// scale so that a ratio and its inverse are judged alike: margin 0.03 allows 1/1.03 to 1.03. This is the test by two
// one-sided tests (Schuirmann 1987): an interval of level 0.90 decides at 5 %, one of 0.95 at 2.5 %. That an interval
// holds one says nothing of the kind, since a poor sample's always does.
func Equivalent(lo, hi, margin float64) bool {
	return lo > 0 && lo <= hi && margin > 0 && math.Log(lo) > -math.Log1p(margin) && math.Log(hi) < math.Log1p(margin)
}

// BenjaminiHochberg reports which of the p-values are discoveries, when among discoveries no more than the part q may
// be false on average (Benjamini and Hochberg 1995). What is no number from 0 to 1 is no test, and no discovery.
func BenjaminiHochberg(p []float64, q float64) []bool {
	valid := make([]float64, 0, len(p))
	for _, v := range p {
		if v >= 0 && v <= 1 {
			valid = append(valid, v)
		}
	}
	slices.Sort(valid)
	limit := math.Inf(-1)
	for i, v := range valid {
		if v <= q*float64(i+1)/float64(len(valid)) {
			limit = v
		}
	}
	out := make([]bool, len(p))
	for i, v := range p {
		out[i] = v >= 0 && v <= limit
	}
	return out
}
