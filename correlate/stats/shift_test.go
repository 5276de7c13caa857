package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

// Permeability of human chorioamnion to water at term and at 12 to 26 weeks (Hollander and Wolfe, Nonparametric
// Statistical Methods, table 4.1). The book's example gives the shift.
var (
	term  = []float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46}
	early = []float64{1.15, 0.88, 0.90, 0.74, 1.21}
)

func TestHodgesLehmannOnPublishedData(t *testing.T) {
	at, ok := stats.HodgesLehmann(early, term)
	if !ok {
		t.Fatal("absent")
	}
	near(t, "shift", at, 0.305, 1e-9)
}

// sample returns up to 40 values, many of them equal.
func sample(r *rand.Rand) []float64 {
	xs := make([]float64, 1+r.IntN(40))
	for i := range xs {
		xs[i] = math.Round(4*r.NormFloat64()) / 4
		if r.IntN(5) == 0 {
			xs[i] = 1e-3 * r.NormFloat64()
		}
	}
	return xs
}

func TestShiftsEqualThoseOverAllPairs(t *testing.T) {
	r := rng(51)
	for range 300 {
		a, b := sample(r), sample(r)
		var diffs []float64
		balance := 0
		for _, x := range a {
			for _, y := range b {
				diffs = append(diffs, y-x)
				switch {
				case y > x:
					balance++
				case y < x:
					balance--
				}
			}
		}
		slices.Sort(diffs)
		keepA, keepB := slices.Clone(a), slices.Clone(b)
		if got, ok := stats.HodgesLehmann(a, b); !ok || got != stats.Median(diffs) {
			// The mean of two middle values is summed in another order in Median.
			near(t, "HodgesLehmann", got, stats.Median(diffs), 1e-15)
		}
		got, ok := stats.CliffsDelta(a, b)
		if want := float64(balance) / float64(len(diffs)); !ok || got != want {
			t.Errorf("CliffsDelta = %v, %v, want %v", got, ok, want)
		}
		if !slices.Equal(a, keepA) || !slices.Equal(b, keepB) {
			t.Fatal("the samples were reordered")
		}
	}
}

func TestShiftsOfWhatIsNoSample(t *testing.T) {
	one := []float64{1}
	for _, bad := range [][]float64{nil, {math.NaN()}, {1, math.Inf(1)}, {math.Inf(-1), 1}, {2, math.NaN(), 1}} {
		if _, ok := stats.HodgesLehmann(bad, one); ok {
			t.Errorf("HodgesLehmann(%v, 1) has a value", bad)
		}
		if _, ok := stats.CliffsDelta(one, bad); ok {
			t.Errorf("CliffsDelta(1, %v) has a value", bad)
		}
	}
	if d, ok := stats.CliffsDelta([]float64{1, 2}, []float64{3, 4}); !ok || d != 1 {
		t.Errorf("CliffsDelta of a greater sample = %v, %v, want 1", d, ok)
	}
}

func TestTheilSenShrugsOffWildPoints(t *testing.T) {
	r := rng(53)
	for _, n := range []int{20, 200, 5000} {
		x, y := make([]float64, n), make([]float64, n)
		for i := range x {
			x[i] = 100 * r.Float64()
			y[i] = 7 + 0.25*x[i] + 0.5*r.NormFloat64()
			if r.IntN(5) == 0 {
				y[i] += 50 * r.Float64()
			}
		}
		got, ok := stats.TheilSen(x, y)
		if !ok {
			t.Fatalf("n=%d: absent", n)
		}
		near(t, "slope", got, 0.25, 0.05)
	}
	if _, ok := stats.TheilSen([]float64{3, 3, 3}, []float64{1, 2, 3}); ok {
		t.Error("a vertical line has a slope")
	}
	if _, ok := stats.TheilSen(nil, nil); ok {
		t.Error("no points have a slope")
	}
}
