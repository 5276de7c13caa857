package stats_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// coverage returns the part of series of n values of an AR(1) process whose interval holds the true mean.
func coverage(t *testing.T, seed uint64, trials, n, block int, rho float64) float64 {
	t.Helper()
	r := rng(seed)
	covered := 0
	for range trials {
		xs := ar1(r, n, rho, 10)
		iv, ok := stats.MeanInterval(xs, block, 0.95)
		if !ok {
			t.Fatalf("no interval for n=%d block=%d", n, block)
		}
		if iv.Low <= 10 && 10 <= iv.High {
			covered++
		}
	}
	return float64(covered) / float64(trials)
}

func TestBlockMeansCoverWhereTheNaiveIntervalFails(t *testing.T) {
	if got := coverage(t, 2, 1000, 400, 20, 0.6); got < 0.92 || got > 0.97 {
		t.Errorf("blocks of 20 cover %.3f, want 0.92 to 0.97", got)
	}
	r := rng(3)
	naive := 0
	for range 500 {
		xs := ar1(r, 400, 0.6, 10)
		var sum, squares float64
		for _, x := range xs {
			sum += x
			squares += x * x
		}
		n := float64(len(xs))
		mean := sum / n
		if math.Abs(mean-10) <= 1.96*math.Sqrt((squares/n-mean*mean)/n) {
			naive++
		}
	}
	if got := float64(naive) / 500; got >= 0.85 {
		t.Errorf("an interval for independent values covers %.3f: the test series is too tame to tell the two apart", got)
	}
}

func TestBlockMeansCoverOverLengthAndCorrelation(t *testing.T) {
	for _, n := range []int{50, 100, 300} {
		for _, rho := range []float64{0, 0.4, 0.8} {
			block := max(5, min(n/10, 15))
			t.Run(fmt.Sprintf("n=%d r=%v block=%d", n, rho, block), func(t *testing.T) {
				got := coverage(t, uint64(n)+uint64(100*rho), 1500, n, block, rho)
				t.Logf("covered %.3f", got)
				if got < 0.90 || got > 0.98 {
					t.Errorf("covered %.3f, want 0.90 to 0.98", got)
				}
			})
		}
	}
}

func TestFewerThanTenBlocksGiveNoInterval(t *testing.T) {
	xs := make([]float64, 99)
	if _, ok := stats.MeanInterval(xs, 10, 0.95); ok {
		t.Error("a mean of 9 blocks has an interval")
	}
	if _, ok := stats.MeanInterval(make([]float64, 100), 10, 0.95); !ok {
		t.Error("a mean of 10 blocks has none")
	}
	xs = ar1(rng(1), 100, 0.3, 0)
	for _, odd := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		xs[40] = odd
		if iv, ok := stats.MeanInterval(xs, 10, 0.95); ok {
			t.Errorf("a mean over %v has the interval %v", odd, iv)
		}
	}
}

// TestMeanIntervalIsThatOfResampledBlocks holds the closed form to the draws that it stands for.
func TestMeanIntervalIsThatOfResampledBlocks(t *testing.T) {
	for _, n := range []int{300, 307} { // whole blocks, and a rest
		xs := ar1(rng(uint64(n)), n, 0.4, 10)
		_, drawn, ok := stats.Bootstrap{Block: 10, Resamples: 20_000, Rand: rng(46)}.Statistic(xs, func(idx []int) float64 {
			var s float64
			for _, i := range idx {
				s += xs[i]
			}
			return s / float64(len(idx))
		})
		closed, closedOK := stats.MeanInterval(xs, 10, 0.95)
		if !ok || !closedOK {
			t.Fatalf("no interval of %d values", n)
		}
		width := drawn.High - drawn.Low
		if math.Abs(closed.Low-drawn.Low) > 0.04*width || math.Abs(closed.High-drawn.High) > 0.04*width {
			t.Errorf("%d values: closed form %v, drawn %v", n, closed, drawn)
		}
	}
}

// medianOf returns a statistic: the median of the values at the indices, the lower one of two. It counts instead of
// sorting, since it is called very often.
func medianOf(xs []float64) func(idx []int) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	rank := make([]int, len(xs))
	for i, x := range xs {
		rank[i], _ = slices.BinarySearch(sorted, x)
	}
	count := make([]int, len(xs))
	return func(idx []int) float64 {
		clear(count)
		for _, i := range idx {
			count[rank[i]]++
		}
		below := 0
		for r, c := range count {
			if below += c; 2*below >= len(idx) {
				return sorted[r]
			}
		}
		return math.NaN()
	}
}

func TestBootstrapOfAnyStatisticCoversWhereTheNaiveOneFails(t *testing.T) {
	r := rng(41)
	const trials = 500
	var blocks, naive int
	for range trials {
		xs := ar1(r, 300, 0.6, 10)
		at, iv, ok := stats.Bootstrap{Block: 20, Resamples: 200, Rand: r}.Statistic(xs, medianOf(xs))
		if !ok || at < iv.Low || iv.High < at {
			t.Fatalf("the median %v has the interval %v, %v", at, iv, ok)
		}
		if iv.Low <= 10 && 10 <= iv.High {
			blocks++
		}
		slices.Sort(xs)
		if iv, ok := stats.QuantileInterval(xs, 0.5, 0.95); ok && iv.Low <= 10 && 10 <= iv.High {
			naive++
		}
	}
	t.Logf("covered %.3f by blocks, %.3f as if independent", float64(blocks)/trials, float64(naive)/trials)
	if got := float64(blocks) / trials; got < 0.92 || got > 0.97 {
		t.Errorf("blocks of 20 cover the median %.3f, want 0.92 to 0.97", got)
	}
	if got := float64(naive) / trials; got >= 0.85 {
		t.Errorf("an interval for independent values covers %.3f: the test series is too tame to tell the two apart", got)
	}
}

func TestBootstrapOfAnyStatisticKnowsItsLimits(t *testing.T) {
	xs := ar1(rng(42), 99, 0.3, 0)
	b := stats.Bootstrap{Block: 10, Rand: rng(43)}
	if _, _, ok := b.Statistic(xs, medianOf(xs)); ok {
		t.Error("nine blocks have an interval")
	}
	if _, _, ok := b.Statistic(nil, func([]int) float64 { return math.NaN() }); ok {
		t.Error("nothing has an interval")
	}
	xs = ar1(rng(42), 200, 0.3, 0)
	calls := 0
	if _, _, ok := b.Statistic(xs, func([]int) float64 {
		if calls++; calls == 50 {
			return math.NaN() // a resample that cannot tell
		}
		return 1
	}); ok {
		t.Error("a statistic that is no number on a resample has an interval")
	}
	seen := make([]int, 23)
	series := ar1(rng(44), 23, 0, 0)
	stats.Bootstrap{Block: 2, Resamples: 4000, Rand: rng(45)}.Statistic(series, func(idx []int) float64 {
		if len(idx) != 23 {
			t.Fatalf("%d indices, want 23", len(idx))
		}
		for i, k := range idx {
			if i%2 == 1 && k != (idx[i-1]+1)%23 {
				t.Fatalf("index %d does not follow its neighbour: %v", i, idx)
			}
			seen[k]++
		}
		return 0
	})
	if lo, hi := slices.Min(seen), slices.Max(seen); lo < 3600 || hi > 4400 {
		t.Errorf("indices drawn between %d and %d times, want about 4000 each", lo, hi)
	}
}

func TestBootstrapRepeats(t *testing.T) {
	xs := ar1(rng(8), 200, 0.3, 0)
	_, a, _ := stats.Bootstrap{Block: 7, Rand: rng(9)}.Statistic(xs, medianOf(xs))
	_, b, _ := stats.Bootstrap{Block: 7, Rand: rng(9)}.Statistic(xs, medianOf(xs))
	if a != b {
		t.Errorf("same source, other interval: %v and %v", a, b)
	}
}

func TestTimeMeanCovers(t *testing.T) {
	// Requests share the state of the second they fall in, so that they are not independent: a naive interval fails.
	r := rng(12)
	covered, naive, none := 0, 0, 0
	const trials = 800
	for range trials {
		var m stats.TimeMean
		state := ar1(r, 120, 0.5, 10)
		var xs []float64
		for s, level := range state {
			for range 1 + r.IntN(6) {
				x := level + 0.3*r.NormFloat64()
				xs = append(xs, x)
				m.Add(timeline.Instant(s)*timeline.Instant(time.Second)+timeline.Instant(r.Int64N(1e9)), x)
			}
		}
		iv, ok := m.Interval(0.95, 4*time.Second)
		switch {
		case !ok:
			none++
		case iv.Low <= 10 && 10 <= iv.High:
			covered++
		}
		at, _ := m.Mean()
		var ss float64
		for _, x := range xs {
			ss += (x - at) * (x - at)
		}
		if math.Abs(at-10) <= 1.96*math.Sqrt(ss)/float64(len(xs)) {
			naive++
		}
	}
	if got := float64(covered) / float64(trials-none); got < 0.92 || got > 0.98 {
		t.Errorf("covered %.3f, want 0.92 to 0.98", got)
	}
	if none > trials/20 {
		t.Errorf("%d of %d steady series have no interval", none, trials)
	}
	if got := float64(naive) / trials; got > 0.85 {
		t.Errorf("the naive interval covers %.3f: the test is too tame", got)
	}
}

func TestTimeMeanKeepsBoundedMemoryAndItsSum(t *testing.T) {
	var m stats.TimeMean
	r := rng(13)
	var sum float64
	for range 20_000 {
		x := r.Float64()
		sum += x
		m.Add(timeline.Instant(r.Int64N(int64(400*time.Hour)))-timeline.Instant(200*time.Hour), x)
	}
	if got, _ := m.Mean(); math.Abs(got-sum/20_000) > 1e-12 {
		t.Errorf("mean %v, want %v", got, sum/20_000)
	}
	iv, ok := m.Interval(0.95, 0)
	if !ok || iv.High-iv.Low > 0.02 || iv.Low > 0.5 || iv.High < 0.5 {
		t.Errorf("interval %v, %v of uniform values", iv, ok)
	}
	var few stats.TimeMean
	for i := range 9 {
		few.Add(timeline.Instant(i)*timeline.Instant(time.Second), 1)
	}
	if _, ok := few.Interval(0.95, 0); ok {
		t.Error("nine seconds of values give an interval")
	}
}

func TestADriftingMeanHasNoInterval(t *testing.T) {
	var m stats.TimeMean
	r := rng(14)
	for s := range 120 {
		for range 4 {
			x := 10 + 0.2*r.NormFloat64()
			if s >= 60 {
				x += 5 // a level of its own, not noise about one
			}
			m.Add(timeline.Instant(s)*timeline.Instant(time.Second)+timeline.Instant(r.Int64N(1e9)), x)
		}
	}
	if iv, ok := m.Interval(0.95, time.Second); ok {
		t.Errorf("a mean over two levels has the interval %v", iv)
	}
}

func TestStudentQuantileIsThatOfTheLaw(t *testing.T) {
	for _, p := range []float64{0.975, 0.95, 0.05, 0.99, 0.995} {
		for _, freedom := range []float64{2, 4.9, 5, 7.3, 13.5, 43, 1000} {
			got, want := stats.StudentQuantile(freedom, p), distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(p)
			if math.Abs(got/want-1) > 5e-4 {
				t.Errorf("quantile %v at %v degrees of freedom is %v, want %v", p, freedom, got, want)
			}
		}
	}
}

func BenchmarkMeanInterval(b *testing.B) {
	xs := ar1(rng(1), 32, 0.4, 10)
	b.ReportAllocs()
	for b.Loop() {
		stats.MeanInterval(xs, 1, 0.95)
	}
}
