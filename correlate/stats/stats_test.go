package stats_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

// rng returns a source that gives the same numbers in every run.
func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// ar1 returns n values of a stationary first-order autoregression about mean with unit variance.
func ar1(r *rand.Rand, n int, rho, mean float64) []float64 {
	xs := make([]float64, n)
	x := r.NormFloat64()
	for i := range xs {
		xs[i] = mean + x
		x = rho*x + math.Sqrt(1-rho*rho)*r.NormFloat64()
	}
	return xs
}

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > tol {
		t.Errorf("%s = %v, want %v within %v", what, got, want, tol)
	}
}

func TestLag1(t *testing.T) {
	r := rng(1)
	near(t, "Lag1 of an AR(1) series of 0.6", stats.Lag1(ar1(r, 20_000, 0.6, 3)), 0.6, 0.03)
	near(t, "Lag1 of a constant", stats.Lag1([]float64{2, 2, 2, 2}), 0, 0)
	near(t, "Lag1 of two values", stats.Lag1([]float64{1, 2}), 0, 0)
	near(t, "Lag1 of an alternating series", stats.Lag1([]float64{1, -1, 1, -1, 1, -1, 1, -1}), -7.0/8, 1e-12)
	var plain, corrected float64
	for range 2000 {
		xs := ar1(r, 30, 0.5, 0)
		plain += stats.Lag1(xs) / 2000
		corrected += stats.Lag1Corrected(xs) / 2000
	}
	if math.Abs(corrected-0.5) > 0.03 || plain > 0.44 {
		t.Errorf("mean of Lag1 over short series of 0.5 is %.3f, corrected %.3f: the correction should take the bias off", plain, corrected)
	}
}

func TestEffectiveCount(t *testing.T) {
	r := rng(31)
	near(t, "of 20000 independent values", stats.EffectiveCount(ar1(r, 20_000, 0, 0))/20_000, 1, 0.03)
	near(t, "of 20000 values of correlation 0.5", stats.EffectiveCount(ar1(r, 20_000, 0.5, 0))/20_000, 1.0/3, 0.03)
	near(t, "of opposed neighbours, no more than whole", stats.EffectiveCount([]float64{1, -1, 1, -1, 1, -1, 1, -1}), 8, 0)
	near(t, "of nothing", stats.EffectiveCount(nil), 0, 0)
	trend := make([]float64, 400)
	for i := range trend {
		trend[i] = float64(i)
	}
	if n := stats.EffectiveCount(trend); n > 11 {
		t.Errorf("a trend of 400 values counts as %v, want next to nothing", n)
	}
}

func TestWilson(t *testing.T) {
	// Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611.
	iv, ok := stats.Wilson(81, 263, 0.95)
	if !ok {
		t.Fatal("Wilson(81, 263) is absent")
	}
	near(t, "low of 81/263", iv.Low, 0.2553, 5e-5)
	near(t, "high of 81/263", iv.High, 0.3662, 5e-5)
	iv, _ = stats.Wilson(0, 20, 0.95)
	near(t, "low of 0/20", iv.Low, 0, 1e-12)
	near(t, "high of 0/20", iv.High, 0.1611, 5e-5)
	for _, bad := range []struct {
		k, n  int
		level float64
	}{{0, 0, 0.95}, {-1, 3, 0.95}, {4, 3, 0.95}, {1, 3, 0}, {1, 3, 1}, {1, 3, math.NaN()}} {
		if _, ok := stats.Wilson(bad.k, bad.n, bad.level); ok {
			t.Errorf("Wilson(%d, %d, %v) has a value", bad.k, bad.n, bad.level)
		}
	}
}

func TestWeightedMean(t *testing.T) {
	var m stats.WeightedMean
	if _, ok := m.Value(); ok {
		t.Error("the zero mean has a value")
	}
	m.Add(1, 3)
	m.Add(9, 0)
	m.Add(math.NaN(), 1)
	m.Add(math.Inf(1), 1)
	m.Add(5, -2)
	m.Add(5, math.Inf(1))
	m.Add(5, math.NaN())
	m.Add(5, 1)
	v, ok := m.Value()
	if !ok || v != 2 {
		t.Errorf("Value() = %v, %v, want 2", v, ok)
	}
}
