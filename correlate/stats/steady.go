package stats

import "math"

// mserBatch is the width of MSER-5's batches (White, Cobb and Spratt 2000).
const mserBatch = 5

// MSER5 returns how many leading values of a series belong to its warm-up: the truncation that makes the standard
// error of the rest smallest, over means of five. It is refused, with false, for fewer than ten batches and where the
// best truncation lies in the later half: then the series has not settled.
func MSER5(xs []float64) (int, bool) {
	n := len(xs) / mserBatch
	if n < MinBlocks {
		return 0, false
	}
	batches := make([]float64, n)
	for i := range batches {
		batches[i] = mean(xs[i*mserBatch : (i+1)*mserBatch])
	}
	// Walk from the end, so that each truncation's variance grows from the last one's (Welford's recurrence).
	best, bestAt := math.Inf(1), 0
	var m, ss float64
	for d := n - 1; d >= 0; d-- {
		k := float64(n - d)
		delta := batches[d] - m
		m += delta / k
		ss += delta * (batches[d] - m)
		// A few batches look steady by chance alone, so at least a quarter of them stays.
		if 4*(n-d) < n {
			continue
		}
		if v := ss / (k * k); v <= best {
			best, bestAt = v, d
		}
	}
	return bestAt * mserBatch, bestAt <= n/2
}
