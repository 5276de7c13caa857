package roofline

import (
	"errors"
	"math"
)

// Point is one measurement of a line.
type Point struct{ X, Y float64 }

// Line is a fitted straight line.
type Line struct {
	Intercept float64
	Slope     float64
	RMS       float64 // of the residuals
}

// At returns the line's value.
func (l Line) At(x float64) float64 { return l.Intercept + l.Slope*x }

var errOnePlace = errors.New("fit line: want points at two places at least")

// FitLine returns the line with the least squares through the points. Over context it separates the cache from all
// else: TPOT = fixed + (bytes a token of cache / bandwidth) x context. Over the bytes of the cache it gives the time a
// byte takes.
func FitLine(points []Point) (Line, error) {
	var mx, my float64
	for _, p := range points {
		mx += p.X / float64(len(points))
		my += p.Y / float64(len(points))
	}
	var xx, xy float64
	for _, p := range points {
		xx += (p.X - mx) * (p.X - mx)
		xy += (p.X - mx) * (p.Y - my)
	}
	if !(xx > 0) {
		return Line{}, errOnePlace
	}
	l := Line{Slope: xy / xx}
	l.Intercept = my - l.Slope*mx
	for _, p := range points {
		d := p.Y - l.At(p.X)
		l.RMS += d * d / float64(len(points))
	}
	l.RMS = math.Sqrt(l.RMS)
	return l, nil
}

// ParallelFit is T(n) = Divided/n + Fixed: the part of a step that n GPUs share, and what they do not.
type ParallelFit struct {
	Divided float64 // seconds on one GPU
	Fixed   float64 // seconds on any number: launches and collectives
	RMS     float64
}

// At returns the time of a step on n GPUs.
func (f ParallelFit) At(n float64) float64 { return f.Divided/n + f.Fixed }

// FitParallel fits the times of one step on several numbers of GPUs: X is the number, Y the time.
func FitParallel(points []Point) (ParallelFit, error) {
	inverse := make([]Point, len(points))
	for i, p := range points {
		if !(p.X > 0) {
			return ParallelFit{}, errors.New("fit parallel: want a number of GPUs above zero")
		}
		inverse[i] = Point{1 / p.X, p.Y}
	}
	l, err := FitLine(inverse)
	return ParallelFit{Divided: l.Slope, Fixed: l.Intercept, RMS: l.RMS}, err
}

// CacheBytesFromSlope returns the bytes that a token adds to the cache of one sequence, from the time that each token
// of context adds to a step and the bandwidth that is reached.
func CacheBytesFromSlope(secondsPerToken, bytesPerSecond float64) float64 {
	return secondsPerToken * bytesPerSecond
}

// ContextSlope returns the time that each token of context of one sequence adds to a step, at a part of the peak
// bandwidth: the slope of inter-token latency over context.
func (m *Model) ContextSlope(bandwidth float64) float64 {
	full, _ := m.kvElems()
	return full * m.kv.Bits / 8 * m.KVCopies() / (float64(m.tp) * m.bandwidth * bandwidth)
}
