package compare

import (
	"math"
	"math/rand/v2"
)

// resamples of the blocks of time, of which intervals are percentiles.
const resamples = 800

// moments are sums over cells, from which a line through them can be drawn.
type moments struct {
	n, y float64
	x    [axes]float64
	xx   [axes][axes]float64
	xy   [axes]float64
}

func (m *moments) take(x [axes]float64, y float64) {
	m.n++
	m.y += y
	for i := range axes {
		m.x[i] += x[i]
		m.xy[i] += x[i] * y
		for j := range axes {
			m.xx[i][j] += x[i] * x[j]
		}
	}
}

func (m *moments) add(o *moments, times float64) {
	m.n += times * o.n
	m.y += times * o.y
	for i := range axes {
		m.x[i] += times * o.x[i]
		m.xy[i] += times * o.xy[i]
		for j := range axes {
			m.xx[i][j] += times * o.xx[i][j]
		}
	}
}

func (m *moments) means() (x [axes]float64, y float64) {
	for i := range axes {
		x[i] = m.x[i] / m.n
	}
	return x, m.y / m.n
}

// The prior on a slope counts as so many cells that lie so far from the mean. Where batch and context hardly vary, as in
// a closed loop, or only together, as in a backlog, they do not tell their slopes, and those of the byte model stand.
const (
	priorCells  = 4
	priorPart   = 0.25 // and this part of the cells there are
	priorSpread = 0.05 // of the axis's mean
)

// slopes returns the least-squares slopes of y over x, drawn towards the prior ones.
func (m *moments) slopes(prior [axes]float64) [axes]float64 {
	mean, my := m.means()
	var a [axes][axes]float64
	var b [axes]float64
	for i := range axes {
		scale := priorSpread * mean[i]
		ridge := (priorCells + priorPart*m.n) * scale * scale
		for j := range axes {
			a[i][j] = m.xx[i][j] - m.n*mean[i]*mean[j]
		}
		a[i][i] += ridge
		b[i] = m.xy[i] - m.n*mean[i]*my + ridge*prior[i]
		if mean[i] == 0 { // an axis that is not known
			a[i] = [axes]float64{}
			a[i][i], b[i] = 1, 0
		}
	}
	return solve(a, b)
}

// solve returns the solution of a symmetric, positive system; what is singular has slope zero.
func solve(a [axes][axes]float64, b [axes]float64) [axes]float64 {
	for k := range axes {
		if math.Abs(a[k][k]) < 1e-300 {
			a[k][k], b[k] = 1, 0
		}
		for i := k + 1; i < axes; i++ {
			f := a[i][k] / a[k][k]
			for j := k; j < axes; j++ {
				a[i][j] -= f * a[k][j]
			}
			b[i] -= f * b[k]
		}
	}
	var x [axes]float64
	for k := axes - 1; k >= 0; k-- {
		x[k] = b[k]
		for j := k + 1; j < axes; j++ {
			x[k] -= a[k][j] * x[j]
		}
		x[k] /= a[k][k]
	}
	return x
}

// fit is a line through the cells of one side, of all of them or of one resample.
type fit struct {
	x      [axes]float64 // the mean step
	y      float64       // the mean
	slope  [axes]float64
	binned float64 // the mean over the bins, each carried to its centre
}

// at returns what the line says of another step.
func (f *fit) at(x [axes]float64) float64 {
	y := f.y
	for i := range axes {
		y += f.slope[i] * (x[i] - f.x[i])
	}
	return y
}

// inBlock is what one block of time holds of one bin.
type inBlock struct {
	bin int
	moments
}

// fits returns the line through all cells and that of each resample of the blocks, or nothing if the metric is absent
// from most cells. Bins below zero are not matched and count for the line alone.
func (s *side) fits(metric func(*cell) float64, prior [axes]float64, bins []center) []fit {
	blocks := make([][]inBlock, s.blocks)
	n := 0
	for i := range s.cells {
		c := &s.cells[i]
		y := metric(c)
		if math.IsNaN(y) || math.IsInf(y, 0) {
			continue
		}
		n++
		s.place(blocks, c).take(s.masked(c.x), y)
	}
	if 2*n < len(s.cells) || n == 0 {
		return nil
	}
	out := make([]fit, 0, len(s.draws)+1)
	whole := sums{bins: make([]moments, len(bins))}
	for b := range blocks {
		whole.add(blocks[b], 1)
	}
	all := whole.fit(prior, bins, nil)
	out = append(out, all)
	for _, times := range s.draws {
		r := sums{bins: make([]moments, len(bins))}
		for b, k := range times {
			if k > 0 {
				r.add(blocks[b], float64(k))
			}
		}
		if r.all.n == 0 {
			out = append(out, all)
			continue
		}
		out = append(out, r.fit(prior, bins, &whole))
	}
	return out
}

// place returns the moments of the cell's bin in its block.
func (s *side) place(blocks [][]inBlock, c *cell) *moments {
	list := blocks[c.block]
	for i := range list {
		if list[i].bin == c.bin {
			return &list[i].moments
		}
	}
	blocks[c.block] = append(list, inBlock{bin: c.bin})
	return &blocks[c.block][len(list)].moments
}

// sums are the moments of all cells, and of each bin.
type sums struct {
	all  moments
	bins []moments
}

func (s *sums) add(block []inBlock, times float64) {
	for i := range block {
		s.all.add(&block[i].moments, times)
		if k := block[i].bin; k >= 0 && k < len(s.bins) {
			s.bins[k].add(&block[i].moments, times)
		}
	}
}

// fit draws the line. A bin that a resample misses stands in it as it is in the whole.
func (s *sums) fit(prior [axes]float64, bins []center, whole *sums) fit {
	f := fit{slope: s.all.slopes(prior)}
	f.x, f.y = s.all.means()
	var sum, weight float64
	for k := range bins {
		m := &s.bins[k]
		if m.n == 0 {
			if whole == nil || whole.bins[k].n == 0 {
				continue
			}
			m = &whole.bins[k]
		}
		x, y := m.means()
		for i := range axes {
			y += f.slope[i] * (bins[k].x[i] - x[i])
		}
		sum, weight = sum+bins[k].weight*y, weight+bins[k].weight
	}
	if f.binned = f.y; weight > 0 {
		f.binned = sum / weight
	}
	return f
}

// draw returns how often each block is drawn in each resample.
func draw(blocks int, seed, stream uint64) [][]uint16 {
	rng := rand.New(rand.NewPCG(seed, stream)) // the draws of a bootstrap, no secret
	out := make([][]uint16, resamples)
	for r := range out {
		out[r] = make([]uint16, blocks)
		for range blocks {
			out[r][rng.IntN(blocks)]++
		}
	}
	return out
}
