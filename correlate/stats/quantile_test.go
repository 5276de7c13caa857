package stats_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

func TestQuantileTypes(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, tt := range []struct {
		p    float64
		q    stats.QuantileType
		want float64
	}{
		{0.9, stats.Linear, 9.1},
		{0.9, stats.NearestRank, 9},
		{0.5, stats.Linear, 5.5},
		{0.5, stats.NearestRank, 5},
		{0.99, stats.Linear, 9.91},
		{0.99, stats.NearestRank, 10},
		{0, stats.Linear, 1},
		{0, stats.NearestRank, 1},
		{1, stats.Linear, 10},
		{1, stats.NearestRank, 10},
		{0.7, stats.NearestRank, 7}, // 0.7*10 is a hair above 7 in binary
	} {
		got, ok := stats.Quantile(ten, tt.p, tt.q)
		if !ok || math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("Quantile(1..10, %v, %v) = %v, %v, want %v", tt.p, tt.q, got, ok, tt.want)
		}
	}
	for _, p := range []float64{-0.1, 1.1, math.NaN()} {
		if _, ok := stats.Quantile(ten, p, stats.Linear); ok {
			t.Errorf("Quantile(%v) has a value", p)
		}
	}
	if _, ok := stats.Quantile(nil, 0.5, stats.Linear); ok {
		t.Error("Quantile of nothing has a value")
	}
}

func TestQuantileRanks(t *testing.T) {
	for _, tt := range []struct {
		n         int
		p         float64
		low, high int
		ok        bool
	}{
		// The median of 20 lies between the 6th and 15th value: P(B <= 5) = 0.0207 for B of 20 fair coins.
		{20, 0.5, 6, 15, true},
		{1000, 0.99, 983, 997, true},
		{100, 0.99, 97, 101, false},
		{368, 0.99, 0, 368, true},
		{367, 0.99, 0, 368, false},
	} {
		low, high, ok := stats.QuantileRanks(tt.n, tt.p, 0.95)
		if ok != tt.ok || high != tt.high || (tt.low > 0 && low != tt.low) {
			t.Errorf("ranks of (%d, %v) = %d, %d, %v, want %d, %d, %v", tt.n, tt.p, low, high, ok, tt.low, tt.high, tt.ok)
		}
	}
}

func TestAHundredValuesHaveNoIntervalForP99(t *testing.T) {
	xs := make([]float64, 1000)
	for i := range xs {
		xs[i] = float64(i + 1)
	}
	if iv, ok := stats.QuantileInterval(xs[:100], 0.99, 0.95); ok {
		t.Errorf("p99 of 100 values lies in %v", iv)
	}
	if iv, ok := stats.QuantileInterval(xs, 0.99, 0.95); !ok || iv.Low != 983 || iv.High != 997 {
		t.Errorf("p99 of 1..1000 = %v, %v, want 983 to 997", iv, ok)
	}
	for _, level := range []float64{0, 1, -1, math.NaN()} {
		if _, ok := stats.QuantileInterval(xs, 0.5, level); ok {
			t.Errorf("level %v has an interval", level)
		}
	}
}

func TestQuantileIntervalCovers(t *testing.T) {
	// The order statistics cover by the binomial law, whatever the distribution; here a heavy-tailed one.
	r := rng(11)
	const trials = 1500
	for _, tt := range []struct {
		n int
		p float64
	}{{50, 0.5}, {100, 0.9}, {1000, 0.99}} {
		truth := math.Exp(1.5 * math.Sqrt2 * math.Erfinv(2*tt.p-1))
		covered := 0
		xs := make([]float64, tt.n)
		for range trials {
			for i := range xs {
				xs[i] = math.Exp(1.5 * r.NormFloat64())
			}
			slices.Sort(xs)
			iv, ok := stats.QuantileInterval(xs, tt.p, 0.95)
			if !ok {
				t.Fatalf("no interval for n=%d p=%v", tt.n, tt.p)
			}
			if iv.Low <= truth && truth <= iv.High {
				covered++
			}
		}
		if got := float64(covered) / trials; got < 0.938 || got > 0.99 {
			t.Errorf("n=%d p=%v: covered %.3f, want at least 0.95 within noise, and not much more", tt.n, tt.p, got)
		}
	}
}

func TestQuantileNeedsIsTheLeastSampleWithAnInterval(t *testing.T) {
	for _, p := range []float64{0.1, 0.5, 0.9, 0.95, 0.99, 0.999} {
		bounds := func(n int) bool { _, ok := stats.QuantileInterval(make([]float64, n), p, 0.95); return ok }
		n := stats.QuantileNeeds(p, 0.95)
		if !bounds(n) {
			t.Errorf("p%v: %d values give no interval", p*100, n)
		}
		if bounds(n - 1) {
			t.Errorf("p%v: %d values give one already", p*100, n-1)
		}
	}
	if n := stats.QuantileNeeds(0.99, 0.95); n != 368 {
		t.Errorf("p99 needs %d, want 368", n)
	}
	if n := stats.QuantileNeeds(0.5, 0.95); n != 6 {
		t.Errorf("p50 needs %d, want 6", n)
	}
}
