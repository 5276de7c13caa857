package stats

import (
	"math"
	"slices"
)

// Equivalent reports whether the interval from lo to hi of a ratio lies within a margin of one, on the logarithmic
// scale so that a ratio and its inverse are judged alike: margin 0.03 allows 1/1.03 to 1.03. This is the test by two
// one-sided tests (Schuirmann 1987): an interval of level 0.90 decides at 5 %, one of 0.95 at 2.5 %. That an interval
// holds one says nothing of the kind, since a poor sample's always does.
func Equivalent(lo, hi, margin float64) bool {
	return lo > 0 && lo <= hi && margin > 0 && math.Log(lo) > -math.Log1p(margin) && math.Log(hi) < math.Log1p(margin)
}

// BenjaminiHochberg reports which of the p-values are discoveries, when among discoveries no more than the part q may
// be false on average (Benjamini and Hochberg 1995). What is no number from 0 to 1 is no test, and no discovery.
func BenjaminiHochberg(p []float64, q float64) []bool {
	valid := make([]float64, 0, len(p))
	for _, v := range p {
		if v >= 0 && v <= 1 {
			valid = append(valid, v)
		}
	}
	slices.Sort(valid)
	limit := math.Inf(-1)
	for i, v := range valid {
		if v <= q*float64(i+1)/float64(len(valid)) {
			limit = v
		}
	}
	out := make([]bool, len(p))
	for i, v := range p {
		out[i] = v >= 0 && v <= limit
	}
	return out
}
