package exporters_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/exporters"
)

func TestBucketsHoldEachValueBetweenTheirBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		v := math.Exp(rng.Float64()*18 - 9)
		b := exporters.NewBuckets()
		b.Observe(v)
		if v <= exporters.ZeroThreshold {
			if b.Zero != 1 {
				t.Fatalf("%g is not in the zero bucket", v)
			}
			continue
		}
		base := math.Exp2(math.Exp2(-float64(b.Scale)))
		low, high := math.Pow(base, float64(b.Offset)), math.Pow(base, float64(b.Offset+1))
		if v < low*(1-1e-12) || v > high*(1+1e-12) {
			t.Fatalf("%g is counted in (%g, %g]", v, low, high)
		}
	}
}

func TestBucketsKeepCountWhenTheyMerge(t *testing.T) {
	b := exporters.NewBuckets()
	rng := rand.New(rand.NewPCG(3, 4))
	var values []float64
	for range 5000 {
		v := math.Exp2(rng.Float64()*60 - 12) // far more powers of two than the finest buckets can span
		values = append(values, v)
		b.Observe(v)
	}
	sum := b.Zero
	for _, c := range b.Counts {
		sum += c
	}
	if sum != b.Count || b.Count != uint64(len(values)) {
		t.Errorf("buckets hold %d, count is %d, want %d", sum, b.Count, len(values))
	}
	if b.Scale >= 4 || len(b.Counts) > 321 {
		t.Errorf("scale %d with %d buckets: nothing merged", b.Scale, len(b.Counts))
	}
	for _, power := range []int{-10, -3, 0, 5, 20, 47} {
		var want uint64
		for _, v := range values {
			if v <= math.Ldexp(1, power) {
				want++
			}
		}
		if got := b.AtMost(power); got != want {
			t.Errorf("AtMost(2^%d) = %d, want %d", power, got, want)
		}
	}
}

func TestPowersOfTwoBelongToTheBucketBelow(t *testing.T) {
	for _, power := range []int{-13, -1, 0, 1, 6} {
		b := exporters.NewBuckets()
		b.Observe(math.Ldexp(1, power))
		if b.AtMost(power) != 1 || b.AtMost(power-1) != 0 {
			t.Errorf("2^%d: at most 2^%d: %d, at most 2^%d: %d", power, power, b.AtMost(power), power-1, b.AtMost(power-1))
		}
	}
}

func TestBucketsLeaveOutWhatIsNoLatency(t *testing.T) {
	b := exporters.NewBuckets()
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.1} {
		b.Observe(v)
	}
	if b.Count != 0 || b.Sum != 0 {
		t.Errorf("count %d, sum %g, want nothing", b.Count, b.Sum)
	}
}

func TestExemplarsAreTheNewestOfEachPowerOfTwo(t *testing.T) {
	b := exporters.NewBuckets()
	for _, e := range []exporters.Exemplar{
		{Value: 0.010, At: 1, TraceID: "a"}, {Value: 0.012, At: 2, TraceID: "b"}, {Value: 0.9, At: 3, TraceID: "slow"}, {Value: 0.011, At: 4, TraceID: "c"},
	} {
		b.Attach(e)
	}
	var got []string
	for _, e := range b.Exemplars(0) {
		got = append(got, e.TraceID)
	}
	if want := []string{"slow", "c"}; !slices.Equal(got, want) {
		t.Errorf("exemplars %v, want %v", got, want)
	}
	if young := b.Exemplars(3); len(young) != 1 || young[0].TraceID != "c" || b.Attached() != 4 {
		t.Errorf("exemplars after the third: %v, want c alone", young)
	}
}

func BenchmarkObserve(bm *testing.B) {
	b := exporters.NewBuckets()
	bm.ReportAllocs()
	v := 0.001
	for bm.Loop() {
		b.Observe(v)
		if v *= 1.01; v > 1 {
			v = 0.001
		}
	}
}
