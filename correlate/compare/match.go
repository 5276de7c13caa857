package compare

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/stats"
)

// Bins are so wide, as ratios of their ends: what is left within one is put right by the slopes.
const (
	batchBin   = 1.25
	contextBin = 1.5
	promptBin  = 2.0
	promptLow  = 4.0 // prompt tokens a step, below which the least of the prompt bins lies
	leastCells = 2   // of a bin, on either side
	// matchedPart of each side must lie in shared bins, or the two are carried to one step by the slopes alone.
	matchedPart = 0.25
)

const (
	leastBlock = 2 * time.Second
	mostBlocks = 400
	goodBlocks = 12 // at which blocks are made shorter than requests, so that a short recording has an interval
)

// center is the step at which a bin compares, and how much it counts.
type center struct {
	x      [axes]float64
	weight float64
}

// side is one arm as it is matched.
type side struct {
	*arm
	cells  []cell
	use    [axes]bool
	blocks int
	draws  [][]uint16
}

// masked leaves out the axes that are not known of both sides.
func (s *side) masked(x [axes]float64) [axes]float64 {
	for i := range axes {
		if !s.use[i] {
			x[i] = 0
		}
	}
	return x
}

// matching is both arms on common bins.
type matching struct {
	a, b     side
	opts     Options
	boundary string
	bins     []center
	blockS   float64
	factor   float64 // on the distances of percentiles from their estimate
	shared   bool    // there are bins that both sides have
	covered  [2]float64
	tA, tB   []fit
}

// match brings the two sides to common bins, blocks and resamples.
func match(x, y *arm, o Options) *matching {
	m := &matching{opts: o, boundary: boundary(x, y)}
	m.a, m.b = side{arm: x, cells: m.usable(x)}, side{arm: y, cells: m.usable(y)}
	for i := range axes {
		use := known(m.a.cells, i) && known(m.b.cells, i)
		m.a.use[i], m.b.use[i] = use, use
	}
	m.a.cells, m.b.cells = m.a.whole(), m.b.whole()
	m.bin()
	m.blockS = blockLength(x, y).Seconds()
	m.a.cut(m.blockS)
	m.b.cut(m.blockS)
	m.a.draws, m.b.draws = draw(max(1, m.a.blocks), o.Seed, 1), draw(max(1, m.b.blocks), o.Seed, 2)
	pa, _ := m.a.priors(m.time)
	pb, _ := m.b.priors(m.time)
	m.tA, m.tB = m.a.fits(m.time, pa, m.bins), m.b.fits(m.time, pb, m.bins)
	m.factor = max(m.a.widening(m.time), m.b.widening(m.time))
	return m
}

// time is the time per output token of a request at the boundary that both sides have.
func (m *matching) time(c *cell) float64 {
	switch m.boundary {
	case byProbe:
		return c.probeT
	case byLittle:
		return c.littleT
	}
	return c.engineT
}

// usable are the cells with a time.
func (m *matching) usable(x *arm) []cell {
	out := make([]cell, 0, len(x.cells))
	for _, c := range x.cells {
		if !math.IsNaN(m.time(&c)) {
			out = append(out, c)
		}
	}
	return out
}

// known reports whether most cells know an axis.
func known(cells []cell, axis int) bool {
	n := 0
	for i := range cells {
		if !math.IsNaN(cells[i].x[axis]) {
			n++
		}
	}
	return 10*n >= 9*len(cells) && n > 0
}

// whole are the cells that know all axes in use.
func (s *side) whole() []cell {
	return slices.DeleteFunc(s.cells, func(c cell) bool {
		for i := range axes {
			if s.use[i] && math.IsNaN(c.x[i]) {
				return true
			}
		}
		return false
	})
}

// key is the place of a cell in the grid of bins.
type key [axes]int

func (s *side) key(c *cell) key {
	grid := func(v, ratio float64) int { return int(math.Floor(math.Log(max(v, 1e-9)) / math.Log(ratio))) }
	k := key{grid(c.x[axisBatch], batchBin)}
	if s.use[axisKV] {
		k[axisKV] = grid(c.x[axisKV]/c.x[axisBatch], contextBin)
	}
	if s.use[axisPrompt] && c.x[axisPrompt] > promptLow {
		k[axisPrompt] = 1 + grid(c.x[axisPrompt]/promptLow, promptBin)
	}
	return k
}

// tally is what both sides have in one bin.
type tally struct {
	n [2]int
	x [2][axes]float64
}

// tallies are the cells of both sides by their place in the grid.
func (m *matching) tallies() map[key]*tally {
	found := map[key]*tally{}
	for i, s := range []*side{&m.a, &m.b} {
		for k := range s.cells {
			c := &s.cells[k]
			t := found[s.key(c)]
			if t == nil {
				t = &tally{}
				found[s.key(c)] = t
			}
			t.n[i]++
			for a, v := range s.masked(c.x) {
				t.x[i][a] += v
			}
		}
	}
	return found
}

// bin finds the bins that both sides share, and gives each cell its own. Where they share too little, all cells make one
// bin whose centre is A's mean step.
func (m *matching) bin() {
	found := m.tallies()
	var keys []key
	var in [2]float64
	for k, t := range found {
		if min(t.n[0], t.n[1]) >= leastCells {
			keys = append(keys, k)
			in[0], in[1] = in[0]+float64(t.n[0]), in[1]+float64(t.n[1])
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return slices.Compare(a[:], b[:]) })
	na, nb := float64(len(m.a.cells)), float64(len(m.b.cells))
	m.shared = len(keys) > 0 && in[0] >= matchedPart*na && in[1] >= matchedPart*nb
	if !m.shared {
		m.together()
		return
	}
	number := map[key]int{}
	for i, k := range keys {
		m.bins = append(m.bins, found[k].center())
		number[k] = i
	}
	for _, s := range []*side{&m.a, &m.b} {
		for k := range s.cells {
			c := &s.cells[k]
			c.bin = -1
			if i, ok := number[s.key(c)]; ok {
				c.bin = i
			}
		}
	}
	m.covered = [2]float64{in[0] / na, in[1] / nb}
}

// center is the step half way between both sides' means, with the weight that makes the least of the noise.
func (t *tally) center() center {
	na, nb := float64(t.n[0]), float64(t.n[1])
	c := center{weight: na * nb / (na + nb)}
	for a := range axes {
		c.x[a] = (t.x[0][a]/na + t.x[1][a]/nb) / 2
	}
	return c
}

// together makes one bin of all cells.
func (m *matching) together() {
	one := center{weight: 1}
	for k := range m.a.cells {
		m.a.cells[k].bin = 0
		for i, v := range m.a.masked(m.a.cells[k].x) {
			one.x[i] += v / float64(len(m.a.cells))
		}
	}
	for k := range m.b.cells {
		m.b.cells[k].bin = 0
	}
	m.bins = []center{one}
}

// blockLength is over how long cells are resampled together: about a request, so that blocks hardly share any.
func blockLength(x, y *arm) time.Duration {
	var mean, span float64
	for i, a := range []*arm{x, y} {
		var sum float64
		for k := range a.requests {
			sum += a.requests[k].long
		}
		if n := len(a.requests); n > 0 {
			mean = max(mean, sum/float64(n))
		}
		if i == 0 || a.info.DecodeS < span {
			span = a.info.DecodeS
		}
	}
	w := max(mean, leastBlock.Seconds())
	w = max(min(w, span/goodBlocks), 1, max(x.info.Span.Seconds, y.info.Span.Seconds)/mostBlocks)
	return time.Duration(w * float64(time.Second))
}

// cut numbers the blocks of time that hold cells.
func (s *side) cut(width float64) {
	last := int64(math.MinInt64)
	for i := range s.cells {
		c := &s.cells[i]
		if k := int64(c.at.Start.Seconds() / width); k != last {
			last = k
			s.blocks++
		}
		c.block = s.blocks - 1
	}
}

// widening is how much too narrow the percentiles of resampled blocks are: few blocks tell their spread poorly
// (Student's t, and k/(k-1)), and neighbours are alike (a first-order autoregression's 1+r over 1-r).
func (s *side) widening(metric func(*cell) float64) float64 {
	sum, n := make([]float64, s.blocks), make([]float64, s.blocks)
	for i := range s.cells {
		c := &s.cells[i]
		sum[c.block] += metric(c)
		n[c.block]++
	}
	means := make([]float64, 0, len(sum))
	for i := range sum {
		means = append(means, sum[i]/n[i])
	}
	k := float64(len(means))
	if k < 3 {
		return 1
	}
	r := min(max(0, stats.Lag1(means)), 0.8)
	return student(k-1) * math.Sqrt(k/(k-1)*(1+r)/(1-r))
}

// priors are the slopes of time and bytes that the byte model expects at the side's mean step, the first in the side's
// own measure of time. Without a model they are zero.
func (s *side) priors(metric func(*cell) float64) (seconds, bytes [axes]float64) {
	if s.model == nil || len(s.cells) == 0 {
		return seconds, bytes
	}
	var x [axes]float64
	var t float64
	for i := range s.cells {
		for a, v := range s.masked(s.cells[i].x) {
			x[a] += v / float64(len(s.cells))
		}
		t += metric(&s.cells[i]) / float64(len(s.cells))
	}
	eff := hardware.PracticalEfficiency(s.model.GPU())
	cost := func(x [axes]float64) (float64, float64) {
		st := stepOf(x)
		return s.model.Expected(st, eff.Bandwidth, eff.Tensor, 0), s.model.Cost(st, roofline.Rates{ExpertPart: 1}).Bytes()
	}
	base, _ := cost(x)
	if base <= 0 {
		return seconds, bytes
	}
	for i := range axes {
		if !s.use[i] || x[i] <= 0 {
			continue
		}
		h := 0.1 * x[i]
		up, down := x, x
		up[i], down[i] = x[i]+h, x[i]-h
		tu, bu := cost(up)
		td, bd := cost(down)
		seconds[i], bytes[i] = (tu-td)/(2*h)*t/base, (bu-bd)/(2*h)
	}
	return seconds, bytes
}

// stepOf is the step at a place of the grid.
func stepOf(x [axes]float64) roofline.Step {
	return roofline.Step{Decode: x[axisBatch], Context: x[axisKV], Prompt: x[axisPrompt]}
}

// table lists the bins, the longest first.
func (m *matching) table() []Bin {
	type sum struct{ sec, t, bytes, bytesN [2]float64 }
	sums := make([]sum, len(m.bins))
	for i, s := range []*side{&m.a, &m.b} {
		for k := range s.cells {
			c := &s.cells[k]
			if c.bin < 0 {
				continue
			}
			u := &sums[c.bin]
			u.sec[i] += c.seconds
			u.t[i] += m.time(c) * c.seconds
			if !math.IsNaN(c.bytes) {
				u.bytes[i], u.bytesN[i] = u.bytes[i]+c.bytes, u.bytesN[i]+1
			}
		}
	}
	out := make([]Bin, 0, len(m.bins))
	for k := range sums {
		u, x := &sums[k], m.bins[k].x
		b := Bin{
			Batch: x[axisBatch], Context: x[axisKV] / max(1, x[axisBatch]), Prompt: x[axisPrompt], SecondsA: u.sec[0], SecondsB: u.sec[1],
			TPOTA: u.t[0] / u.sec[0], TPOTB: u.t[1] / u.sec[1], Bytes: notMeasured(),
		}
		b.TimeRatio = b.TPOTB / b.TPOTA
		if u.bytesN[0] > 0 && u.bytesN[1] > 0 && u.bytes[0] > 0 {
			b.Bytes.Why, b.Bytes.Value = "", u.bytes[1]/u.bytesN[1]/(u.bytes[0]/u.bytesN[0])
		}
		out = append(out, b)
	}
	slices.SortStableFunc(out, func(a, b Bin) int { return cmp.Compare(b.SecondsA+b.SecondsB, a.SecondsA+a.SecondsB) })
	return out
}

// enough reports whether both sides have blocks for an interval.
func (m *matching) enough() bool { return min(m.a.blocks, m.b.blocks) >= stats.MinBlocks }
