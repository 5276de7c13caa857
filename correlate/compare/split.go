package compare

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// mixed reports whether prompt work shares most steps: the time at the roofs is then split by a model of the step, and a
// slower memory shows as other time. What launches and the host take is told apart all the same.
func (s *side) mixed() bool {
	var mixed, all float64
	for i := range s.cells {
		if c := &s.cells[i]; c.placed {
			all += c.seconds
			if c.mixed {
				mixed += c.seconds
			}
		}
	}
	return mixed > half*all
}

// parts split the matched time per token by what limited it, and name the part that explains most of a rise.
func (m *matching) parts() ([]Part, string) {
	type portion struct {
		name string
		of   func(s *timeline.Shares) float64
	}
	list := []portion{
		{"memory", func(s *timeline.Shares) float64 { return s.Memory }},
		{"compute", func(s *timeline.Shares) float64 { return s.Compute }},
		{"launch", func(s *timeline.Shares) float64 { return s.Launch }},
		{"host", func(s *timeline.Shares) float64 { return s.Host }},
		{"other", func(s *timeline.Shares) float64 { return s.Other }},
	}
	var none [axes]float64
	out := []Part{}
	mixed := m.a.mixed() || m.b.mixed()
	why := "what limited the time is not known of both sides"
	for _, p := range list {
		seconds := func(c *cell) float64 {
			if !c.placed {
				return math.NaN()
			}
			return p.of(&c.shares) * m.time(c)
		}
		a, b := m.a.fits(seconds, none, m.bins), m.b.fits(seconds, none, m.bins)
		part := Part{
			Name:   p.name,
			A:      m.value(of(a, b, func(a, _ *fit) float64 { return a.binned }), why),
			B:      m.value(of(a, b, func(_, b *fit) float64 { return b.binned }), why),
			Change: m.value(of(a, b, func(a, b *fit) float64 { return b.binned - a.binned }), why),
		}
		out = append(out, part)
	}
	grew := grown(out, half*max(0, m.tB[0].binned-m.tA[0].binned), func(name string) bool {
		return !mixed || name == "launch" || name == "host"
	})
	communication := Part{Name: "communication"}
	no := absent("waits between ranks are not read from the counters")
	if max(m.a.info.TP, m.b.info.TP) <= 1 {
		zero := Value{Value: timeline.Known(0)}
		no = zero // one rank waits for nobody
	}
	communication.A, communication.B, communication.Change = no, no, no
	return append(out, communication), grew
}

// falsePart of the parts that are said to have grown may have done so by chance.
const falsePart = 0.05

// grown names the part that grew most, by more than so many seconds and beyond its interval, of those that are told apart.
// Of several parts one may seem to grow by chance, so that all are tested together (Benjamini and Hochberg).
func grown(parts []Part, most float64, told func(name string) bool) string {
	chances := make([]float64, len(parts))
	for i := range parts {
		if chances[i] = math.NaN(); told(parts[i].Name) {
			chances[i] = parts[i].Change.chance()
		}
	}
	name := ""
	for i, found := range stats.BenjaminiHochberg(chances, falsePart) {
		if c := parts[i].Change; found && c.CI95.Value.Low > 0 && c.Value.Value > most {
			name, most = parts[i].Name, c.Value.Value
		}
	}
	return name
}

// chance is how likely a change of nothing is to look as great as this one, by its interval; NaN where it has none.
func (v Value) chance() float64 {
	if !v.Sure() {
		return math.NaN()
	}
	deviation := (v.CI95.Value.High - v.CI95.Value.Low) / 2 / distuv.UnitNormal.Quantile(0.5+level/2)
	if v.Value.Value == 0 {
		return 1
	}
	return 2 * distuv.UnitNormal.Survival(math.Abs(v.Value.Value)/deviation)
}

const (
	sameBatch = 0.03 // between which mean batches count as one
	sameRate  = 0.03 // and output rates
)

// split takes the change of the mean time apart.
func (m *matching) split() Split {
	rate := func(c *cell) float64 { return c.rate }
	var none [axes]float64
	ra, rb := m.a.fits(rate, none, m.bins), m.b.fits(rate, none, m.bins)
	batch := of(m.tA, m.tB, func(a, b *fit) float64 { return b.x[axisBatch] / a.x[axisBatch] })
	rates := of(ra, rb, func(a, b *fit) float64 { return b.y / a.y })
	s := Split{Loop: m.loop(batch, rates)}
	why := "nothing decoded on one of the sides"
	total := of(m.tA, m.tB, func(a, b *fit) float64 { return b.y - a.y })
	direct := m.direct()
	work := of(m.tA, m.tB, func(a, b *fit) float64 { return b.y - b.at(withBatch(a.x, b.x)) })
	through := total.with(direct, func(t, d float64) float64 { return t - d }).with(work, func(r, w float64) float64 { return r - w })
	s.Total, s.Direct, s.Work = m.value(total, why), m.value(direct, why), m.value(work, why)
	// By Little's law the batch is the rate times the time: what of its growth the rate does not explain is the time's.
	own := make(series, len(through))
	for i := range own {
		switch own[i] = 1; {
		case s.Loop != loadChanged || i >= len(rates):
		case math.Abs(math.Log(batch[i])) < 0.01:
		default:
			own[i] = min(1, max(0, 1-math.Log(rates[i])/math.Log(batch[i])))
		}
	}
	s.Amplified = m.value(through.with(own, func(t, o float64) float64 { return t * o }), why)
	s.Load = m.value(through.with(own, func(t, o float64) float64 { return t * (1 - o) }), why)
	return s
}

// direct is what the change would be at A's own steps: by the line through B's, or by the ratio of the shared bins,
// whichever is known better. The line has more cells to rest on, and far from them it is no guide.
func (m *matching) direct() series {
	line := of(m.tA, m.tB, func(a, b *fit) float64 { return b.at(a.x) - a.y })
	if !m.shared {
		return line
	}
	bins := of(m.tA, m.tB, func(a, b *fit) float64 { return (b.binned/a.binned - 1) * a.y })
	x, y := m.interval(line), m.interval(bins)
	if x.OK() && y.OK() && y.Value.High-y.Value.Low < x.Value.High-x.Value.Low {
		return bins
	}
	return line
}

// The loops.
const (
	fixedRate        = "fixed_rate"
	fixedConcurrency = "fixed_concurrency"
	loadChanged      = "load_changed"
	unknownLoop      = "unknown"
)

// loop says what stayed: the batch, the rate at which tokens are asked for, or neither.
func (m *matching) loop(batch, rates series) string {
	near := func(s series, within float64) bool { return len(s) > 0 && math.Abs(math.Log(s[0])) <= within }
	switch {
	case near(batch, sameBatch):
		return fixedConcurrency
	case len(rates) == 0:
		return unknownLoop
	case near(rates, sameRate):
		return fixedRate
	}
	if iv := m.interval(rates); iv.OK() && iv.Value.Low <= 1 && iv.Value.High >= 1 {
		return fixedRate
	}
	return loadChanged
}

// withBatch is the step from with the batch of to: context and prompt work of each request stay.
func withBatch(from, to [axes]float64) [axes]float64 {
	by := to[axisBatch] / from[axisBatch]
	for i := range from {
		from[i] *= by
	}
	return from
}

const (
	// sessionSize is how many requests a trace holds on average for traces to be sessions.
	sessionSize = 1.5
	// mostShifted bounds the requests of a side in one resample of the shift.
	mostShifted   = 400
	shiftResample = 300
)

// shift compares the requests of both sides whose decode lies in matched cells, each by its own TPOT.
func shift(x, y *arm, m *matching, o Options) (Shift, int, int) {
	a, b := m.a.matched(x.requests, m.shared), m.b.matched(y.requests, m.shared)
	no := absent("requests are not seen on both sides")
	s := Shift{P50Ratio: no, Shift: no, Delta: timeline.Absent(no.Value.Why)}
	if len(a) == 0 || len(b) == 0 {
		return s, len(a), len(b)
	}
	ca, sa := sessions(a, m.blockS)
	cb, sb := sessions(b, m.blockS)
	s.Clusters = "blocks of time"
	if sa && sb {
		s.Clusters = "sessions"
	}
	median := func(xs []float64) float64 {
		slices.Sort(xs)
		return stats.Median(xs)
	}
	few := "too few sessions or blocks of time"
	point, lo, hi, ok := stats.ClusterBootstrap{Seed: o.Seed}.Ratio(fewer(ca), fewer(cb), median)
	s.P50Ratio = Value{Value: timeline.Known(point), CI95: summary.Maybe[timeline.Interval]{Why: few}}
	if ok && min(len(ca), len(cb)) >= stats.MinBlocks {
		s.P50Ratio.CI95 = summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: lo, High: hi}}
	}
	ta, tb := slices.Concat(ca...), slices.Concat(cb...)
	if hl, ok := stats.HodgesLehmann(ta, tb); ok {
		s.Shift = Value{Value: timeline.Known(hl), CI95: shiftInterval(fewer(ca), fewer(cb), hl, o)}
	}
	if d, ok := stats.CliffsDelta(ta, tb); ok {
		s.Delta = timeline.Known(d)
	}
	return s, len(a), len(b)
}

// matched are the requests the middle of whose decode lies in a matched cell.
func (s *side) matched(all []request, bins bool) []request {
	if !bins {
		return all
	}
	var out []request
	for _, q := range all {
		i, ok := slices.BinarySearchFunc(s.cells, q.at, func(c cell, t timeline.Instant) int {
			switch {
			case c.at.End <= t:
				return -1
			case c.at.Start > t:
				return 1
			}
			return 0
		})
		if ok && s.cells[i].bin >= 0 {
			out = append(out, q)
		}
	}
	return out
}

// sessions groups requests: by their traces where those hold several, else by blocks of time. It reports which.
func sessions(of []request, block float64) ([][]float64, bool) {
	traces := map[string]int{}
	traced := 0
	for i := range of {
		if t := of[i].trace; t != "" {
			traced++
			traces[t]++
		}
	}
	byTrace := traced == len(of) && len(traces) >= stats.MinBlocks && float64(traced) >= sessionSize*float64(len(traces))
	type cluster struct {
		trace string
		block int64
	}
	number := map[cluster]int{}
	var out [][]float64
	for i := range of {
		q := &of[i]
		key := cluster{trace: q.trace}
		if !byTrace {
			key = cluster{block: int64(q.at.Seconds() / block)}
		}
		k, ok := number[key]
		if !ok {
			k, number[key] = len(out), len(out)
			out = append(out, nil)
		}
		out[k] = append(out[k], q.tpot)
	}
	return out, byTrace
}

// mostDrawn bounds the requests of a side that are resampled.
const mostDrawn = 5000

// fewer takes requests evenly out of each cluster until they are few enough to be resampled a thousand times.
func fewer(clusters [][]float64) [][]float64 {
	n := 0
	for _, c := range clusters {
		n += len(c)
	}
	every := (n + mostDrawn - 1) / mostDrawn
	if every <= 1 {
		return clusters
	}
	out := make([][]float64, len(clusters))
	for i, c := range clusters {
		for k := i % every; k < len(c); k += every {
			out[i] = append(out[i], c[k])
		}
	}
	return out
}

// shiftInterval is the interval of the shift over resampled clusters.
func shiftInterval(a, b [][]float64, at float64, o Options) summary.Maybe[timeline.Interval] {
	if min(len(a), len(b)) < stats.MinBlocks {
		return summary.Maybe[timeline.Interval]{Why: "too few sessions or blocks of time"}
	}
	rng := rand.New(rand.NewPCG(o.Seed, 3)) // the draws of a bootstrap, no secret
	all := make([]float64, 0, shiftResample)
	for range shiftResample {
		if hl, ok := stats.HodgesLehmann(some(a, rng), some(b, rng)); ok {
			all = append(all, hl)
		}
	}
	slices.Sort(all)
	lo, ok := stats.Quantile(all, (1-level)/2, stats.Linear)
	hi, _ := stats.Quantile(all, (1+level)/2, stats.Linear)
	if !ok {
		return summary.Maybe[timeline.Interval]{Why: "no request has a TPOT"}
	}
	f := student(float64(min(len(a), len(b)) - 1))
	return summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: at + (lo-at)*f, High: at + (hi-at)*f}}
}

// some draws clusters, and of many requests in them a part.
func some(clusters [][]float64, rng *rand.Rand) []float64 {
	var out []float64
	for range clusters {
		out = append(out, clusters[rng.IntN(len(clusters))]...)
	}
	if len(out) <= mostShifted {
		return out
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:mostShifted]
}
