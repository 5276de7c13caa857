package stats_test

import (
	"math"
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

func TestQuantileNeedsIsTheLeastSampleWithAnInterval(t *testing.T) {
	for _, p := range []float64{0.1, 0.5, 0.9, 0.95, 0.99, 0.999} {
		// All of n values fall on one side of the quantile with probability p^n or (1-p)^n: neither may exceed a tail.
		bounds := func(n int) bool { return max(math.Pow(p, float64(n)), math.Pow(1-p, float64(n))) <= 0.025 }
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
