package compare

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const level = 0.95

// student is how much wider the ends of a 95 % interval lie than those of a normal law.
func student(freedom float64) float64 {
	p := 0.5 + level/2
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(p) / distuv.UnitNormal.Quantile(p)
}

// series is a figure of all cells, and then that of each resample.
type series []float64

// of makes a series of two lists of fits.
func of(a, b []fit, figure func(a, b *fit) float64) series {
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	out := make(series, min(len(a), len(b)))
	for i := range out {
		out[i] = figure(&a[i], &b[i])
	}
	return out
}

// with combines two series.
func (s series) with(o series, figure func(a, b float64) float64) series {
	if len(s) == 0 || len(o) == 0 {
		return nil
	}
	out := make(series, min(len(s), len(o)))
	for i := range out {
		out[i] = figure(s[i], o[i])
	}
	return out
}

// value returns the estimate of a series and its interval.
func (m *matching) value(s series, why string) Value {
	if len(s) == 0 || math.IsNaN(s[0]) || math.IsInf(s[0], 0) {
		return absent(why)
	}
	v := Value{Value: timeline.Known(s[0])}
	v.CI95 = m.interval(s)
	return v
}

func (m *matching) tooShort() string {
	return fmt.Sprintf("fewer than %d blocks of %.0f s on a side", stats.MinBlocks, math.Ceil(m.blockS))
}

// interval is the 95 % interval of a series, widened about its estimate.
func (m *matching) interval(s series) summary.Maybe[timeline.Interval] {
	if !m.enough() {
		return summary.Maybe[timeline.Interval]{Why: m.tooShort()}
	}
	sorted := slices.Clone(s[1:])
	sorted = slices.DeleteFunc(sorted, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if 10*len(sorted) < 9*len(s[1:]) {
		return summary.Maybe[timeline.Interval]{Why: "the resamples scatter too much"}
	}
	slices.Sort(sorted)
	lo, _ := stats.Quantile(sorted, (1-level)/2, stats.Linear)
	hi, _ := stats.Quantile(sorted, (1+level)/2, stats.Linear)
	return summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: s[0] + (lo-s[0])*m.factor, High: s[0] + (hi-s[0])*m.factor}}
}

// ratio is B over A, on the matched steps.
func ratio(a, b *fit) float64 { return b.binned / a.binned }

// why something is missing.
const whyNotMeasured = "DRAM traffic, steps or batch are not known of both sides"

func notMeasured() timeline.Measure { return timeline.Absent(whyNotMeasured) }

// fill puts all figures of the matching into the report.
func (m *matching) fill(r *Report) {
	r.Boundary = m.boundary
	r.Matched.Table, r.Matched.BlockS, r.Matched.BlocksA, r.Matched.BlocksB = m.table(), m.blockS, m.a.blocks, m.b.blocks
	r.Matched.Standard = "bins of batch, context and prompt work, each carried to its centre"
	if m.shared {
		r.Matched.Bins = len(m.bins)
		r.Matched.Unmatched = 1 - (m.covered[0]*m.a.info.DecodeS+m.covered[1]*m.b.info.DecodeS)/max(1e-9, m.a.info.DecodeS+m.b.info.DecodeS)
	} else {
		r.Matched.Standard = "no bin is shared: both carried to A's mean step by their own slopes"
		r.Matched.Unmatched = 1
	}
	for _, b := range r.Matched.Table {
		r.Matched.SecondsA, r.Matched.SecondsB = r.Matched.SecondsA+b.SecondsA, r.Matched.SecondsB+b.SecondsB
	}
	r.Matched.StepSource = m.stepSource()
	if len(m.tA) == 0 || len(m.tB) == 0 {
		return
	}
	why := "nothing decoded on one of the sides"
	r.A.TPOT, r.B.TPOT = timeline.Known(m.tA[0].y), timeline.Known(m.tB[0].y)
	t := of(m.tA, m.tB, ratio)
	r.Time = m.value(t, why)
	r.TPOTA = m.value(of(m.tA, m.tB, func(a, _ *fit) float64 { return a.binned }), why)
	r.TPOTB = m.value(of(m.tA, m.tB, func(_, b *fit) float64 { return b.binned }), why)
	measured := m.bytes()
	r.Bytes.Measured = m.value(measured, whyNotMeasured)
	r.Bytes.Modelled = m.modelled()
	r.Rate = m.value(measured.with(t, func(b, t float64) float64 { return b / t }), whyNotMeasured)
	r.Bandwidth = m.bandwidth()
	m.expect(r, t, measured)
	r.Parts, r.Grew = m.parts()
	r.Split = m.split()
}

// stepSource says where steps are counted.
func (m *matching) stepSource() string {
	for _, s := range []*side{&m.a, &m.b} {
		for i := range s.cells {
			if !s.cells[i].told {
				return "output over batch"
			}
		}
	}
	return "engine"
}

// bytes is the ratio of measured DRAM traffic per step.
func (m *matching) bytes() series {
	_, pa := m.a.priors(m.time)
	_, pb := m.b.priors(m.time)
	traffic := func(c *cell) float64 { return c.bytes }
	return of(m.a.fits(traffic, pa, m.bins), m.b.fits(traffic, pb, m.bins), ratio)
}

// modelled is the ratio that the byte model expects of the matched steps. Its interval is the model's own band: where
// the experts touched lie between their floor and their estimate.
func (m *matching) modelled() Value {
	switch {
	case m.a.model == nil:
		return absent(m.a.noModel)
	case m.b.model == nil:
		return absent(m.b.noModel)
	case !m.a.use[axisKV] || !m.a.use[axisPrompt]:
		return absent("context or prompt work is not known of both sides")
	}
	at := func(experts float64) float64 {
		var a, b float64
		for _, c := range m.bins {
			a += c.weight * m.a.model.Cost(stepOf(c.x), roofline.Rates{ExpertPart: experts}).Bytes()
			b += c.weight * m.b.model.Cost(stepOf(c.x), roofline.Rates{ExpertPart: experts}).Bytes()
		}
		return b / a
	}
	v := Value{Value: timeline.Known(at(1))}
	x, y := at(0), at(1)
	v.CI95.Value = timeline.Interval{Low: min(x, y), High: max(x, y)}
	return v
}

// share is the part of a side's time per token that counters put at the DRAM roof, with the ends between which averaged
// counters leave it: that of the peak rather than what is achievable, and all of the roofs' time.
func (m *matching) share(s *side) (point, low, high series) {
	eta := 1.0
	if s.model != nil {
		eta = hardware.PracticalEfficiency(s.model.GPU()).Bandwidth
	}
	var none [axes]float64
	part := func(of func(*cell) float64) series {
		fits := s.fits(func(c *cell) float64 {
			if !c.placed {
				return math.NaN()
			}
			return of(c)
		}, none, m.bins)
		out := make(series, len(fits))
		for i := range fits {
			out[i] = min(1, max(0, fits[i].binned))
		}
		return out
	}
	point = part(func(c *cell) float64 { return c.shares.Memory })
	low = part(func(c *cell) float64 { return min(c.shares.Memory, c.d*eta) })
	high = part(func(c *cell) float64 { return max(c.shares.Memory, min(1, c.roof.High-c.shares.Compute)) })
	return point, low, high
}

// bandwidth is the ratio of what the groups' DRAM can be expected to reach, by their data sheets and the efficiency that is
// usual with their memory.
func (m *matching) bandwidth() timeline.Measure {
	var reach [2]float64
	for i, s := range []*side{&m.a, &m.b} {
		if s.model == nil {
			return timeline.Absent(s.noModel)
		}
		g := s.model.GPU()
		reach[i] = roofline.Bandwidth(g) * hardware.PracticalEfficiency(g).Bandwidth * float64(s.model.TP())
	}
	return timeline.Known(reach[1] / reach[0])
}

// Expected returns the time ratio that a byte ratio should bring where the part f of the time before was at the memory
// roof, and the rest stays as it is.
func Expected(bytes, f float64) float64 { return bytes*f + 1 - f }

// Came returns the part of the expected time saving that a time ratio holds; NaN where none is expected.
func Came(seconds, expected float64) float64 {
	if expected == 1 {
		return math.NaN()
	}
	return (1 - seconds) / (1 - expected)
}

// expect fills in the time ratio that the bytes should bring, and what is between that and the one seen.
func (m *matching) expect(r *Report, t, measured series) {
	f, low, high := m.share(&m.a)
	why := "the memory share of A is not known"
	if len(f) == 0 {
		no := absent(why)
		r.Memory, r.Expected, r.Gap, r.Came = no, no, no, no
		return
	}
	r.Memory = m.value(f, why)
	if r.Memory.Sure() {
		r.Memory.CI95.Value = join(r.Memory.CI95.Value, m.interval(low).Value, m.interval(high).Value)
	}
	bytes := measured
	if len(bytes) == 0 && r.Bytes.Modelled.OK() {
		bytes = slices.Repeat(series{r.Bytes.Modelled.Value.Value}, len(t))
	}
	if len(bytes) == 0 {
		no := absent("bytes are neither measured nor modelled")
		r.Expected, r.Gap, r.Came = no, no, no
		return
	}
	faster := 1.0
	if r.Bandwidth.OK() {
		faster = r.Bandwidth.Value
	}
	figures := func(f series) (series, series, series) {
		e := bytes.with(f, func(b, f float64) float64 { return Expected(b/faster, f) })
		if y := m.yields(); y != 0 {
			for i := range e {
				e[i] /= y
			}
		}
		return e, t.with(e, func(t, e float64) float64 { return t - e }), t.with(e, Came)
	}
	e, gap, came := figures(f)
	r.Expected, r.Gap = m.value(e, why), m.value(gap, why)
	none := "the bytes promise no saving of time beyond the margin"
	r.Came = absent(none)
	if r.Expected.below(1-m.opts.Margin) == yes {
		r.Came = m.value(came, none)
	}
	for _, end := range []series{low, high} {
		e, gap, came = figures(end)
		for _, p := range []struct {
			v *Value
			s series
		}{{&r.Expected, e}, {&r.Gap, gap}, {&r.Came, came}} {
			if iv := m.interval(p.s); p.v.Sure() && iv.OK() {
				p.v.CI95.Value = join(p.v.CI95.Value, iv.Value)
			}
		}
	}
}

// join is the smallest interval that holds all.
func join(iv timeline.Interval, more ...timeline.Interval) timeline.Interval {
	for _, o := range more {
		iv.Low, iv.High = min(iv.Low, o.Low), max(iv.High, o.High)
	}
	return iv
}

// yieldMatters is from which ratio on tokens a step and request change what bytes a step mean for time: below it is the
// blur of a batch that is scraped once a second.
const yieldMatters = 1.15

// yieldBatch is from which batch on an engine is taken to have run all the time, so that tokens over steps and batch are
// those that each request got of a step.
const yieldBatch = 4

// yields is the ratio of tokens a step and request, B over A, where drafts are accepted on a side; zero where none are, or
// steps are not counted.
func (m *matching) yields() float64 {
	var mean [2]float64
	for i, s := range []*side{&m.a, &m.b} {
		var tokens, chances float64
		n := 0
		for k := range s.cells {
			if c := &s.cells[k]; c.told && c.x[axisBatch] >= yieldBatch && c.yield > 0 {
				tokens, chances, n = tokens+c.rate*c.seconds, chances+c.rate*c.seconds/c.yield, n+1
			}
		}
		if 2*n < len(s.cells) || chances <= 0 {
			return 0
		}
		mean[i] = tokens / chances
	}
	y := mean[1] / mean[0]
	if max(mean[0], mean[1]) < yieldMatters || max(y, 1/y) < yieldMatters {
		return 0
	}
	return y
}
