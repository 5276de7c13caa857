package stats_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

func TestSketchStaysWithinOnePercent(t *testing.T) {
	r := rng(21)
	const n = 1_000_000
	d := stats.NewDistribution(1000)
	xs := make([]float64, n)
	var sum float64
	for i := range xs {
		xs[i] = 0.02 * math.Exp(0.8*r.NormFloat64())
		sum += xs[i]
		d.Add(xs[i])
	}
	slices.Sort(xs)
	if d.Exact() || d.Len() != n {
		t.Fatalf("Exact %v, Len %d", d.Exact(), d.Len())
	}
	for _, p := range []float64{0.01, 0.1, 0.5, 0.9, 0.99, 0.999} {
		got, ok := d.Quantile(p)
		want, _ := stats.Quantile(xs, p, stats.Linear)
		if !ok || math.Abs(got/want-1) > 1.001*stats.Accuracy {
			t.Errorf("p%v: %v, exactly %v: %.2f %% off", 100*p, got, want, 100*(got/want-1))
		}
	}
	if m, _ := d.Mean(); math.Abs(m-sum/n) > 1e-12 {
		t.Errorf("mean %v, want %v: it is exact in both forms", m, sum/n)
	}
}

func TestMergeEqualsAddingAll(t *testing.T) {
	for _, tt := range []struct {
		name  string
		exact int
	}{{"both kept", 10_000}, {"one collapses on the way", 700}, {"both sketches", 100}} {
		t.Run(tt.name, func(t *testing.T) {
			r := rng(22)
			a, b, all := stats.NewDistribution(tt.exact), stats.NewDistribution(tt.exact), stats.NewDistribution(tt.exact)
			for i := range 1200 {
				x := math.Exp(r.NormFloat64())
				all.Add(x)
				if i%3 == 0 {
					a.Add(x)
				} else {
					b.Add(x)
				}
			}
			if err := a.Merge(b); err != nil {
				t.Fatal(err)
			}
			if a.Len() != all.Len() || a.Exact() != all.Exact() {
				t.Fatalf("merged has %d exact=%v, want %d exact=%v", a.Len(), a.Exact(), all.Len(), all.Exact())
			}
			for _, p := range []float64{0, 0.25, 0.5, 0.9, 0.99, 1} {
				x, _ := a.Quantile(p)
				y, _ := all.Quantile(p)
				if x != y {
					t.Errorf("p%v: merged %v, whole %v", 100*p, x, y)
				}
			}
		})
	}
}

func TestDistributionKeepsOutWhatIsNoNumber(t *testing.T) {
	var d stats.Distribution
	if _, ok := d.Quantile(0.5); ok {
		t.Error("the zero distribution has a median")
	}
	if _, ok := d.Mean(); ok {
		t.Error("the zero distribution has a mean")
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 3, 0} {
		d.Add(x)
	}
	if m, _ := d.Mean(); d.Len() != 2 || m != 1.5 {
		t.Errorf("Len %d, mean %v, want 2 and 1.5", d.Len(), m)
	}
}

func BenchmarkDistributionAdd(b *testing.B) {
	r := rng(1)
	xs := make([]float64, 4096)
	for i := range xs {
		xs[i] = 0.02 * (0.5 + r.Float64())
	}
	d := stats.NewDistribution(1000)
	for i := range 2000 {
		d.Add(xs[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d.Add(xs[i%len(xs)])
	}
}
