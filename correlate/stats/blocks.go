package stats

import (
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// maxTimeBlocks bounds the memory of a TimeMean: when there would be more, blocks merge in pairs.
const maxTimeBlocks = 4096

// TimeMean is a running mean of values that come at instants, with an interval that allows for values near in time
// being alike, as requests that share a batch are. It keeps sums by block of time, so that its memory is bounded. The
// zero TimeMean has blocks of one second.
type TimeMean struct {
	width  time.Duration
	first  int64 // number of the first block, in widths since instant zero
	blocks []timeBlock
	sum    timeBlock
}

type timeBlock struct {
	n, sum float64
}

// Add takes the value x that came at instant t. What is no number is ignored.
func (m *TimeMean) Add(t timeline.Instant, x float64) { m.AddSum(t, 1, x) }

// AddSum takes n values that came at about instant t and add up to sum.
func (m *TimeMean) AddSum(t timeline.Instant, n int, sum float64) {
	if n <= 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return
	}
	if m.width == 0 {
		m.width = time.Second
	}
	if len(m.blocks) == 0 {
		m.first, m.blocks = m.number(t), []timeBlock{{}}
	}
	for {
		k := m.number(t)
		if lo, hi := min(k, m.first), max(k, m.first+int64(len(m.blocks))-1); hi-lo >= maxTimeBlocks {
			m.double()
			continue
		}
		if k < m.first {
			m.blocks = slices.Insert(m.blocks, 0, make([]timeBlock, m.first-k)...)
			m.first = k
		}
		for k >= m.first+int64(len(m.blocks)) {
			m.blocks = append(m.blocks, timeBlock{})
		}
		m.blocks[k-m.first].add(timeBlock{float64(n), sum})
		m.sum.add(timeBlock{float64(n), sum})
		return
	}
}

// Mean returns the mean, and false for no values.
func (m *TimeMean) Mean() (float64, bool) {
	if m.sum.n == 0 {
		return 0, false
	}
	return m.sum.sum / m.sum.n, true
}

// maxBlockCorrelation is how alike neighbouring blocks may be. Above it the correction for it is a guess, and the
// blocks must be longer.
const maxBlockCorrelation = 0.6

// Interval returns the interval of the mean at the given level, over blocks of at least atLeast (pass about the time
// over which values are alike, such as the mean length of a request). It treats blocks as clusters of unequal size,
// makes them longer while neighbours are much alike, and widens for what correlation is left. Fewer than [MinBlocks]
// blocks give none: the values are too near in time, or their mean drifts so that it is no one thing.
func (m *TimeMean) Interval(level float64, atLeast time.Duration) (timeline.Interval, bool) {
	if len(m.blocks) == 0 || level <= 0 || level >= 1 {
		return timeline.Interval{}, false
	}
	at := m.sum.sum / m.sum.n
	for width := max(m.width, atLeast); ; width *= 2 {
		bs := m.merged(width)
		if len(bs) < MinBlocks {
			return timeline.Interval{}, false
		}
		resid := make([]float64, len(bs))
		var ss float64
		for i, b := range bs {
			resid[i] = b.sum - at*b.n
			ss += resid[i] * resid[i]
		}
		r := max(0, lag1Corrected(resid))
		if r > maxBlockCorrelation {
			continue
		}
		k := float64(len(bs))
		se := math.Sqrt(ss*k/(k-1)*(1+r)/(1-r)) / m.sum.n
		half := se * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: k - 1}.Quantile(0.5+level/2)
		return timeline.Interval{Low: at - half, High: at + half}, true
	}
}

// merged returns the blocks that hold values, in order, put together to at least the given width.
func (m *TimeMean) merged(atLeast time.Duration) []timeBlock {
	if len(m.blocks) == 0 {
		return nil
	}
	by := int(max(1, (atLeast+m.width-1)/m.width))
	var out []timeBlock
	for i := 0; i < len(m.blocks); i += by {
		var b timeBlock
		for _, o := range m.blocks[i:min(i+by, len(m.blocks))] {
			b.add(o)
		}
		if b.n > 0 {
			out = append(out, b)
		}
	}
	return out
}

// double makes blocks twice as wide.
func (m *TimeMean) double() {
	first := m.first >> 1
	var out []timeBlock
	for i, b := range m.blocks {
		k := int((m.first+int64(i))>>1 - first)
		if k == len(out) {
			out = append(out, timeBlock{})
		}
		out[k].add(b)
	}
	m.width, m.first, m.blocks = m.width*2, first, out
}

// number returns which block t falls in, rounding down for instants before zero too.
func (m *TimeMean) number(t timeline.Instant) int64 {
	w := int64(m.width)
	k := int64(t) / w
	if int64(t)%w < 0 {
		k--
	}
	return k
}

func (b *timeBlock) add(o timeBlock) { b.n, b.sum = b.n+o.n, b.sum+o.sum }

// MeanInterval returns the interval of the mean of a series whose neighbours are alike, at the given level, over
// overlapping blocks of so many neighbours on a circle. Its variance is the one that resampling such blocks tends to,
// in closed form, so that it needs no draws. It is wider than that for what blocks cut of correlations, and by Student's
// t with the fewer of two counts: what so many blocks tell of their own spread, and what so many values would that are
// as alike as these. Fewer than [MinBlocks] blocks give no interval, and neither does what is no finite number.
func MeanInterval(xs []float64, block int, level float64) (timeline.Interval, bool) {
	n := len(xs)
	block = max(1, block)
	if n/block < MinBlocks || !(level > 0 && level < 1) {
		return timeline.Interval{}, false
	}
	at := mean(xs)
	rest := n % block
	variance := float64(n/block)*sumVariance(xs, at, block) + sumVariance(xs, at, rest)
	freedom := min(blockFreedom(n, block), max(2, EffectiveCount(xs)-1))
	half := studentQuantile(freedom, 0.5+level/2) * math.Sqrt(variance/blocksKeep(xs, block)) / float64(n)
	if math.IsNaN(half) || math.IsInf(half, 0) {
		return timeline.Interval{}, false
	}
	return timeline.Interval{Low: at - half, High: at + half}, true
}

// studentQuantile is the quantile of Student's t. From five degrees of freedom on it is the expansion about the normal law
// (Abramowitz and Stegun 26.7.5), which for the usual levels is right to a part in two thousand, and far quicker than
// to invert the law: a report asks for hundreds of thousands.
func studentQuantile(freedom, p float64) float64 {
	if freedom < 5 || p < 0.01 || p > 0.99 {
		return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(p)
	}
	z := distuv.UnitNormal.Quantile(p)
	y := z * z
	terms := [...]float64{
		(y + 1) / 4,
		((5*y+16)*y + 3) / 96,
		(((3*y+19)*y+17)*y - 15) / 384,
		((((79*y+776)*y+1482)*y-1920)*y - 945) / 92160,
	}
	t, scale := 1.0, 1.0
	for _, term := range terms {
		scale /= freedom
		t += term * scale
	}
	return z * t
}

// sumVariance is the variance of the sum of w neighbours over every start on a circle, about w times the mean at.
func sumVariance(xs []float64, at float64, w int) float64 {
	if w == 0 {
		return 0
	}
	n := len(xs)
	var s, squares float64
	for i := range n {
		if i%1024 == 0 { // afresh, so that rounding does not pile up
			s = 0
			for k := range w {
				s += xs[(i+k)%n] - at
			}
		} else {
			s += xs[(i+w-1)%n] - xs[i-1]
		}
		squares += s * s
	}
	return squares / float64(n)
}

// blockFreedom is how many degrees of freedom blocks of n values have in telling their own spread: those that overlap
// tell it about as well as 1.5 times as many that do not (Meketon and Schmeiser 1984).
func blockFreedom(n, block int) float64 { return 1.5 * float64(n/block-1) }

// blocksKeep is the part of the variance of a mean that blocks keep: what a first-order autoregression with the series'
// own lag-1 correlation loses at their ends, and the variance of the series' own mean, are taken off.
func blocksKeep(xs []float64, block int) float64 {
	l := float64(block)
	r := max(0, lag1Corrected(xs))
	// Variance of a mean of l values of an AR(1) series, times l over its limit for long l:
	// 1 - 2r(1-r^l)/(l(1-r^2)).
	kept := 1 - 2*r*(1-math.Pow(r, l))/(l*(1-r*r))
	// Blocks spread about the series' own mean, which takes the variance of that mean off: l/n of its limit.
	kept -= l / float64(len(xs))
	return max(kept, 0.05)
}
