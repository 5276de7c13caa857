package stats

// Lag1Corrected is Lag1 with the bias of short series taken off.
func Lag1Corrected(xs []float64) float64 { return lag1Corrected(xs) }

// QuantileRanks are the ranks between which a quantile lies.
func QuantileRanks(n int, p, level float64) (low, high int, ok bool) {
	return quantileRanks(n, p, level)
}

// StudentQuantile is the quantile of Student's t.
func StudentQuantile(freedom, p float64) float64 { return studentQuantile(freedom, p) }
