package compare

import (
	"math"

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
	grew, most := "", half*max(0, m.tB[0].binned-m.tA[0].binned)
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
		told := !mixed || p.name == "launch" || p.name == "host"
		if c := part.Change; told && c.Sure() && c.CI95.Value.Low > 0 && c.Value.Value > most {
			grew, most = p.name, c.Value.Value
		}
		out = append(out, part)
	}
	communication := Part{Name: "communication"}
	no := absent("waits between ranks are not read from the counters")
	if max(m.a.info.TP, m.b.info.TP) <= 1 {
		zero := Value{Value: timeline.Known(0)}
		no = zero // one rank waits for nobody
	}
	communication.A, communication.B, communication.Change = no, no, no
	return append(out, communication), grew
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
	direct := of(m.tA, m.tB, func(a, b *fit) float64 { return b.at(a.x) - a.y })
	through := of(m.tA, m.tB, func(a, b *fit) float64 { return b.at(grown(a.x, b.x)) - b.at(a.x) })
	work := of(m.tA, m.tB, func(a, b *fit) float64 { return b.y - b.at(grown(a.x, b.x)) })
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

// grown is the step from with the batch of to: context and prompt work of each request stay.
func grown(from, to [axes]float64) [axes]float64 {
	by := to[axisBatch] / from[axisBatch]
	for i := range from {
		from[i] *= by
	}
	return from
}
