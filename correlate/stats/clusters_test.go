package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

func median(xs []float64) float64 {
	slices.Sort(xs)
	return stats.Median(xs)
}

// sessions returns k sessions of about m requests, about a level that each session misses by its own part.
func sessions(r *rand.Rand, k, m int, level, between, within float64) [][]float64 {
	out := make([][]float64, k)
	for i := range out {
		at := level * math.Exp(between*r.NormFloat64())
		for range m/2 + r.IntN(m+1) {
			out[i] = append(out[i], at*math.Exp(within*r.NormFloat64()))
		}
	}
	return out
}

func mean(xs []float64) float64 {
	var sum float64
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

func TestClusterBootstrapCovers(t *testing.T) {
	for _, tt := range []struct {
		name            string
		of              func([]float64) float64
		k               int
		between, within float64
		naiveFails      bool
	}{
		{"mean of 3 sessions", mean, 3, 0.02, 0.1, false},
		{"mean of 5 sessions", mean, 5, 0.02, 0.1, false},
		{"mean of 5 equal sessions", mean, 5, 0, 0.1, false},
		{"median of 6 sessions", median, 6, 0.02, 0.1, false},
		{"mean of 10 unequal sessions", mean, 10, 0.05, 0.1, true},
		{"mean of 20 noisy sessions", mean, 20, 0.02, 0.3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rng(61)
			const trials = 300
			covered, pooled := 0, 0
			for i := range trials {
				a := sessions(r, tt.k, 12, 20, tt.between, tt.within)
				b := sessions(r, tt.k, 12, 15, tt.between, tt.within)
				boot := stats.ClusterBootstrap{Resamples: 100, Seed: uint64(i)}
				at, lo, hi, ok := boot.Ratio(a, b, tt.of)
				if !ok || at < lo || hi < at {
					t.Fatalf("ratio %v has the interval %v to %v, %v", at, lo, hi, ok)
				}
				if lo <= 0.75 && 0.75 <= hi {
					covered++
				}
				if !tt.naiveFails {
					continue
				}
				// The normal interval of the ratio of two means of independent requests.
				half := 1.96 * math.Hypot(relativeError(a), relativeError(b))
				if math.Abs(math.Log(at/0.75)) <= half {
					pooled++
				}
			}
			t.Logf("covered %.3f", float64(covered)/trials)
			if got := float64(covered) / trials; got < 0.92 || got > 0.98 {
				t.Errorf("covered %.3f, want 0.92 to 0.98", got)
			}
			if got := float64(pooled) / trials; tt.naiveFails && got > 0.85 {
				t.Errorf("requests taken for independent cover %.3f: the test is too tame", got)
			}
		})
	}
}

// relativeError is the standard error of the mean of all requests, were they independent, over that mean.
func relativeError(sessions [][]float64) float64 {
	all := slices.Concat(sessions...)
	m := mean(all)
	var ss float64
	for _, x := range all {
		ss += (x - m) * (x - m)
	}
	return math.Sqrt(ss) / float64(len(all)) / m
}

func TestClusterBootstrapRepeatsAndKnowsItsLimits(t *testing.T) {
	r := rng(62)
	a, b := sessions(r, 4, 20, 1, 0.02, 0.1), sessions(r, 4, 20, 2, 0.02, 0.1)
	boot := stats.ClusterBootstrap{Level: 0.9, Resamples: 100, Seed: 3}
	_, lo, hi, ok := boot.Ratio(a, b, median)
	_, lo2, hi2, _ := boot.Ratio(a, b, median)
	if !ok || lo != lo2 || hi != hi2 {
		t.Errorf("same seed, other interval: %v to %v, %v to %v", lo, hi, lo2, hi2)
	}
	if at, _, _, ok := boot.Ratio(a[:2], b, median); ok || !(at > 1.8 && at < 2.2) {
		t.Errorf("two sessions: ratio %v, with an interval: %v; want the ratio alone", at, ok)
	}
	if at, _, _, ok := boot.Ratio([][]float64{{1}, nil, {}, {2}}, b, median); ok || math.IsNaN(at) {
		t.Errorf("empty sessions count: ratio %v, %v", at, ok)
	}
	if at, _, _, ok := boot.Ratio(nil, b, median); ok || !math.IsNaN(at) {
		t.Errorf("nothing has the ratio %v, %v", at, ok)
	}
	if at, _, _, ok := boot.Ratio([][]float64{{-1}, {-2}, {-3}}, b, median); ok || !math.IsNaN(at) {
		t.Errorf("a negative statistic has the ratio %v, %v", at, ok)
	}
	same := [][]float64{{5, 5}, {5, 5}, {5, 5}}
	if at, lo, hi, ok := boot.Ratio(same, same, median); !ok || at != 1 || lo != 1 || hi != 1 {
		t.Errorf("constants have the ratio %v (%v to %v), %v, want 1", at, lo, hi, ok)
	}
}

func TestEquivalenceErrsRarelyAndIsNotTheLackOfADifference(t *testing.T) {
	r := rng(63)
	const trials = 150
	found := func(ratio, between float64) float64 {
		n := 0
		for i := range trials {
			a := sessions(r, 6, 16, 20, between, 0.05)
			b := sessions(r, 6, 16, 20*ratio, between, 0.05)
			_, lo, hi, _ := stats.ClusterBootstrap{Level: 0.9, Resamples: 200, Seed: uint64(i)}.Ratio(a, b, mean)
			if stats.Equivalent(lo, hi, 0.03) {
				n++
			}
		}
		return float64(n) / trials
	}
	if got := found(1.03, 0.005); got > 0.09 {
		t.Errorf("a ratio at the margin is called equivalent in %.3f, want about 0.05 at most", got)
	}
	if got := found(1, 0.005); got < 0.9 {
		t.Errorf("equal builds are called equivalent in %.3f, want most", got)
	}
	if got := found(1, 0.1); got > 0.05 {
		t.Errorf("sessions of 10 %% spread are called equivalent in %.3f: so little cannot be known of them", got)
	}
}

func TestEquivalent(t *testing.T) {
	for _, tt := range []struct {
		name           string
		lo, hi, margin float64
		want           bool
	}{
		{"inside", 0.98, 1.02, 0.03, true},
		{"too high", 0.98, 1.031, 0.03, false},
		{"below the inverse of the margin", 0.9705, 1, 0.03, false},
		{"above the inverse of the margin", 0.9715, 1, 0.03, true},
		{"of a real but small difference", 1.01, 1.02, 0.03, true},
		{"no interval", 0, 0, 0.03, false},
		{"inverted", 1.01, 0.99, 0.03, false},
		{"no number", math.NaN(), 1, 0.03, false},
		{"no margin", 1, 1, 0, false},
	} {
		if got := stats.Equivalent(tt.lo, tt.hi, tt.margin); got != tt.want {
			t.Errorf("%s: Equivalent(%v, %v, %v) = %v", tt.name, tt.lo, tt.hi, tt.margin, got)
		}
	}
}

func TestBenjaminiHochberg(t *testing.T) {
	// The example of Benjamini and Hochberg 1995, section 3.1: four of fifteen at 0.05.
	p := []float64{
		0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1,
	}
	r := rng(64)
	r.Shuffle(len(p), func(i, k int) { p[i], p[k] = p[k], p[i] })
	for i, found := range stats.BenjaminiHochberg(p, 0.05) {
		if want := p[i] <= 0.0095; found != want {
			t.Errorf("p = %v: found %v", p[i], found)
		}
	}
	got := stats.BenjaminiHochberg([]float64{math.NaN(), 0.04, -1, 2}, 0.05)
	if !slices.Equal(got, []bool{false, true, false, false}) {
		t.Errorf("what is no p-value counts: %v", got)
	}
	if got := stats.BenjaminiHochberg(nil, 0.05); len(got) != 0 {
		t.Errorf("nothing gives %v", got)
	}
	// Of 40 true nulls beside 10 clear effects, few of the discoveries are false.
	var false0, all float64
	for range 400 {
		p := make([]float64, 50)
		for i := range p {
			p[i] = r.Float64()
			if i >= 40 {
				p[i] *= 1e-4
			}
		}
		n, bad := 0, 0
		for i, found := range stats.BenjaminiHochberg(p, 0.05) {
			if found {
				n++
				if i < 40 {
					bad++
				}
			}
		}
		all++
		false0 += float64(bad) / float64(max(1, n))
	}
	if got := false0 / all; got > 0.06 {
		t.Errorf("%.3f of discoveries are false, want 0.05 at most", got)
	}
}
