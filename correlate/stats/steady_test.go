package stats_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/stats"
)

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
