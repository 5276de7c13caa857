package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
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
	for _, tt := range []struct {
		name    string
		n       int
		r, want float64
	}{
		{"independent values count whole", 100, 0, 100},
		{"half correlation leaves a third", 90, 0.5, 30},
		{"opposed neighbours count no more than whole", 100, -0.4, 100},
		{"a trend counts nothing", 100, 1, 0},
		{"nothing counts nothing", 0, 0.3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) { near(t, "EffectiveCount", stats.EffectiveCount(tt.n, tt.r), tt.want, 1e-9) })
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
	for _, bad := range [][2]int{{0, 0}, {-1, 3}, {4, 3}} {
		if _, ok := stats.Wilson(bad[0], bad[1], 0.95); ok {
			t.Errorf("Wilson(%d, %d) has a value", bad[0], bad[1])
		}
	}
}

func TestWeightedMean(t *testing.T) {
	var m, o stats.WeightedMean
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
	o.Add(5, 1)
	m.Merge(o)
	v, ok := m.Value()
	if !ok || v != 2 || m.Weight() != 4 {
		t.Errorf("Value() = %v, %v with weight %v, want 2 with weight 4", v, ok, m.Weight())
	}
}

func TestMSER5(t *testing.T) {
	t.Run("a ramp over a fifth is cut within two batches", func(t *testing.T) {
		r := rng(5)
		const trials = 400
		offs := make([]float64, 0, trials)
		within, refused := 0, 0
		for range trials {
			xs := make([]float64, 500)
			for i := range xs {
				xs[i] = 10 + 0.5*r.NormFloat64()
				if i < 100 {
					xs[i] += 20 * float64(100-i) / 100
				}
			}
			cut, ok := stats.MSER5(xs)
			if !ok {
				refused++
				continue
			}
			off := float64(cut/5 - 20)
			offs = append(offs, off)
			if math.Abs(off) <= 2 {
				within++
			}
		}
		slices.Sort(offs)
		// The rule errs to one side by chance: it cuts more than it must in about one of ten, never less.
		if stats.Median(offs) != 0 || offs[0] < -2 {
			t.Errorf("cuts are off by %v batches in the median and %v at least", stats.Median(offs), offs[0])
		}
		if within < trials*85/100 || refused > trials/50 {
			t.Errorf("%d of %d cuts are within two batches, %d refused", within, trials, refused)
		}
	})
	t.Run("a series that never settles is refused", func(t *testing.T) {
		xs := make([]float64, 200)
		for i := range xs {
			xs[i] = float64(i)
		}
		if cut, ok := stats.MSER5(xs); ok {
			t.Errorf("MSER5 cut a trend at %d", cut)
		}
	})
	t.Run("a steady series keeps its start", func(t *testing.T) {
		xs := make([]float64, 100)
		if cut, ok := stats.MSER5(xs); !ok || cut != 0 {
			t.Errorf("MSER5 of a constant = %d, %v", cut, ok)
		}
	})
	t.Run("too few values are refused", func(t *testing.T) {
		if _, ok := stats.MSER5(make([]float64, 49)); ok {
			t.Error("MSER5 of 49 values has an answer")
		}
	})
}
