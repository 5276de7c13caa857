package steps

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Term is one part of a step's time.
type Term struct {
	Slope    float64           // s per sequence, token of context or prompt token; s for the fixed term
	Interval timeline.Interval // of Slope, at 95 %
	Share    float64           // of the mean step, without its prompt work
	Fitted   bool              // Slope and Interval are there
	Why      string            // it is not fitted
}

// Fit is step time as a sum of terms: fixed, for each sequence, for each token of context, for each prompt token.
type Fit struct {
	Fixed, Batch, Context, Prompt Term
	Observations                  int
	Effective                     float64 // independent observations that residuals are worth
	mean                          Observation
	decode                        float64 // s, mean step without its prompt work
	together                      bool    // batch and context move together, and the term of the context stands for both
	drifted                       bool    // the context moves with time itself
}

const (
	minObservations = 30
	// minVariation is the least standard deviation over mean of what a slope is drawn over: a line over less is drawn by
	// noise.
	minVariation = 0.04
	// maxTogether is the correlation of batch and context above which their terms cannot be told apart: at 0.97 the
	// standard error of either is four times that of a lone one.
	maxTogether   = 0.97
	fitResamples  = 200
	huber         = 1.345 // 95 % efficient for normal errors (Huber 1981)
	madToDeviance = 1.4826

	rounds         = 6
	resampleRounds = 2
)

const (
	whyConstant     = "it hardly varies"
	whyTogether     = "it moves together with the context"
	whyNone         = "there is none"
	whyNoSpread     = "too few independent stretches for an interval"
	whyUnsolved     = "the stretches do not determine it"
	whyFewStretches = "fewer than 30 stretches with known steps, batch and context"
)

// columns are the observations by what they hold. Slopes are drawn over the columns in use.
type columns struct {
	time  []float64
	use   [][]float64
	term  []*Term   // of each column in use
	rows  []float64 // one and the columns by their means, for each observation
	unit  [4]float64
	scale float64   // of residuals, of all observations; zero while not known
	whole []float64 // weights of all observations' fit
	w     []float64
	beta  []float64
	x, y  []float64 // room for a line
}

// fit draws the slopes. It reports false where nothing can be drawn, and the terms say why.
func (h *History) fit() (Fit, bool) {
	obs := h.ordered()
	n := len(obs)
	f := Fit{Observations: n}
	if n < minObservations {
		for _, t := range []*Term{&f.Fixed, &f.Batch, &f.Context, &f.Prompt} {
			t.Why = whyFewStretches
		}
		return f, false
	}
	c := f.columns(obs)
	if f.Batch.Why != "" && f.Context.Why != "" { // prompts alone tell nothing of memory
		f.Fixed.Why = "neither batch nor context varies"
		return f, false
	}
	if !f.intervals(c) {
		return f, false
	}
	f.decode = f.mean.Time - f.Prompt.Slope*f.mean.Prompt
	if !(f.decode > 0) {
		f.Fixed.Why = "prompt work takes all of the steps"
		return f, false
	}
	f.Fixed.Share = f.Fixed.Slope / f.decode
	f.Batch.Share = f.Batch.Slope * f.mean.Batch / f.decode
	f.Context.Share = f.Context.Slope * f.mean.Context / f.decode
	f.Prompt.Share = f.Prompt.Slope * f.mean.Prompt / f.decode
	return f, true
}

// columns chooses what slopes can be drawn over.
func (f *Fit) columns(obs []Observation) *columns {
	n := len(obs)
	all := [4][]float64{}
	for i := range all {
		all[i] = make([]float64, n)
	}
	for i, o := range obs {
		all[0][i], all[1][i], all[2][i], all[3][i] = o.Time, o.Batch, o.Context, o.Prompt
	}
	f.mean = Observation{stat.Mean(all[0], nil), stat.Mean(all[1], nil), stat.Mean(all[2], nil), stat.Mean(all[3], nil)}
	c := &columns{time: all[0], w: make([]float64, n), x: make([]float64, n), y: make([]float64, n)}
	f.together = varies(all[1]) && varies(all[2]) && math.Abs(stat.Correlation(all[1], all[2], nil)) > maxTogether
	for i := range c.x {
		c.x[i] = float64(i)
	}
	f.drifted = varies(all[2]) && math.Abs(stat.Correlation(c.x, all[2], nil)) > maxTogether
	for i, t := range []*Term{&f.Batch, &f.Context, &f.Prompt} {
		switch {
		case i == 0 && f.together:
			t.Why = whyTogether
		case stat.Mean(all[i+1], nil) == 0:
			t.Why = whyNone
		case !varies(all[i+1]):
			t.Why = whyConstant
		default:
			c.use, c.term = append(c.use, all[i+1]), append(c.term, t)
		}
	}
	c.unit[0] = 1
	for j, col := range c.use {
		c.unit[j+1] = stat.Mean(col, nil)
	}
	for k := range n {
		c.rows = append(c.rows, 1)
		for j, col := range c.use {
			c.rows = append(c.rows, col[k]/c.unit[j+1])
		}
	}
	return c
}

func varies(xs []float64) bool {
	mean, dev := stat.MeanStdDev(xs, nil)
	return mean > 0 && dev >= minVariation*mean
}

// intervals fits all observations and then resamples of them, in blocks of time.
func (f *Fit) intervals(c *columns) bool {
	n := len(c.time)
	idx := make([]int, n)
	for i := range idx {
		idx[i] = i
	}
	if !c.solve(idx) {
		f.Fixed.Why = whyUnsolved
		return false
	}
	resid := make([]float64, n)
	for i := range resid {
		resid[i] = c.residual(i)
	}
	f.Effective = stats.EffectiveCount(resid)
	if f.Effective < stats.MinBlocks {
		f.Fixed.Why = whyNoSpread
		return false
	}
	// Every term is drawn with the same resamples, so that each of them is fitted once.
	var drawn [][]float64 // nil where a resample has no fit
	block := max(1, n/(stats.MinBlocks+4))
	// Each fitted term uses up one of the blocks that tell the spread.
	blocks := float64(n / block)
	wider := math.Sqrt(blocks / (blocks - float64(1+len(c.use))))
	for k, t := range append([]*Term{&f.Fixed}, c.term...) {
		call := 0
		boot := stats.Bootstrap{
			Block: block, Resamples: fitResamples,
			Rand: rand.New(rand.NewPCG(uint64(n), math.Float64bits(f.mean.Time))), // draws of a bootstrap, no secret
		}
		at, iv, ok := boot.Statistic(resid, func(idx []int) float64 {
			if call++; call > len(drawn) {
				var beta []float64
				if c.solve(idx) {
					beta = slices.Clone(c.beta)
				}
				drawn = append(drawn, beta)
			}
			if drawn[call-1] == nil {
				return math.NaN()
			}
			return drawn[call-1][k]
		})
		if !ok {
			f.Fixed.Why, f.Fixed.Fitted = whyNoSpread, false
			return false
		}
		t.Slope, t.Fitted = at, true
		t.Interval = timeline.Interval{Low: at + (iv.Low-at)*wider, High: at + (iv.High-at)*wider}
	}
	return true
}

// solve fits the observations numbered by idx: beta is the fixed term and a slope for each column.
func (c *columns) solve(idx []int) bool {
	if len(c.use) == 1 {
		return c.line(idx)
	}
	return c.plane(idx)
}

// line draws a line through one column by the median of slopes, which wild stretches do not carry away wherever they
// lie.
func (c *columns) line(idx []int) bool {
	x, y := c.x[:len(idx)], c.y[:len(idx)]
	for i, k := range idx {
		x[i], y[i] = c.use[0][k], c.time[k]
	}
	slope, ok := stats.TheilSen(x, y)
	if !ok {
		return false
	}
	for i := range y {
		y[i] -= slope * x[i]
	}
	slices.Sort(y)
	c.beta = append(c.beta[:0], stats.Median(y), slope)
	return true
}

// plane fits several columns by least squares in which far observations weigh less (Huber's weights, in rounds). The
// first fit is of all observations and settles what is far; resamples begin from it, and need few rounds.
func (c *columns) plane(idx []int) bool {
	first := c.whole == nil
	more := rounds
	if first {
		for i := range c.w {
			c.w[i] = 1
		}
	} else {
		copy(c.w, c.whole)
		more = resampleRounds
	}
	for range more {
		if !c.squares(idx) {
			return false
		}
		if first {
			for k := range c.y {
				c.y[k] = math.Abs(c.residual(k))
			}
			slices.Sort(c.y)
			c.scale = madToDeviance * stats.Median(c.y)
		}
		for k := range c.w {
			c.w[k] = 1
			if far := math.Abs(c.residual(k)); far > huber*c.scale {
				c.w[k] = huber * c.scale / far
			}
		}
	}
	if first {
		c.whole = slices.Clone(c.w)
	}
	return true
}

// squares solves the weighted normal equations.
func (c *columns) squares(idx []int) bool {
	p := len(c.use) + 1
	var a [16]float64
	var b [4]float64
	for _, k := range idx {
		row, w, y := c.rows[k*p:k*p+p], c.w[k], c.time[k]
		for i, x := range row {
			x *= w
			b[i] += x * y
			for j := i; j < p; j++ {
				a[i*p+j] += x * row[j]
			}
		}
	}
	var chol mat.Cholesky
	if !chol.Factorize(mat.NewSymDense(p, a[:p*p])) || chol.Cond() > 1e12 {
		return false
	}
	var beta mat.VecDense
	if chol.SolveVecTo(&beta, mat.NewVecDense(p, b[:p])) != nil {
		return false
	}
	c.beta = c.beta[:0]
	for i := range p {
		c.beta = append(c.beta, beta.AtVec(i)/c.unit[i])
	}
	return true
}

func (c *columns) residual(k int) float64 {
	y := c.time[k] - c.beta[0]
	for j, slope := range c.beta[1:] {
		y -= slope * c.use[j][k]
	}
	return y
}
