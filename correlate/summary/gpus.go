package summary

import (
	"maps"
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// gpuSums is one GPU over the decoding cells.
type gpuSums struct {
	at        int // position in the list of GPUs
	counters  [timeline.NumCounters]stats.WeightedMean
	throttled map[string]float64
	windows   int
	covered   float64
}

// gpu takes one GPU's part of a decoding cell.
func (cs *cells) gpu(g *correlate.GPUCell) {
	s := cs.byGPU[g.UUID]
	if s == nil {
		s = &gpuSums{at: g.GPU, throttled: map[string]float64{}}
		cs.byGPU[g.UUID] = s
	}
	for k := range g.Counters {
		s.counters[k].Add(g.Counters[k].Value, g.Counters[k].CoveredS)
	}
	for reason, sec := range g.ThrottledS {
		if sec > 0 {
			s.throttled[reason] += sec
		}
	}
	s.windows += g.Windows
	s.covered += g.CoveredS
}

// gpuList returns the known GPUs in their order, and after them those that only cells name. A recording knows all GPUs
// that ever were: of those, where cells speak of any, the ones of which no cell does are left out.
func (cs *cells) gpuList(known []timeline.GPU) []GPU {
	out := make([]GPU, 0, len(known))
	listed := map[string]bool{}
	for i := range known {
		g := &known[i]
		listed[g.UUID] = true
		if len(cs.read) > 0 && !cs.read[g.UUID] {
			continue
		}
		out = append(out, cs.gpuOf(GPU{UUID: g.UUID, Name: g.Name, Index: g.Index, Simulated: g.Simulated}))
	}
	for _, uuid := range slices.Sorted(maps.Keys(cs.byGPU)) {
		if !listed[uuid] {
			out = append(out, cs.gpuOf(GPU{UUID: uuid, Index: cs.byGPU[uuid].at}))
		}
	}
	return out
}

// gpuOf fills in what the cells say of g.
func (cs *cells) gpuOf(g GPU) GPU {
	s := cs.byGPU[g.UUID]
	mean := func(k timeline.Counter) timeline.Measure {
		if s == nil {
			return timeline.Absent("no decode ran on it")
		}
		if v, ok := s.counters[k].Value(); ok {
			return timeline.Known(v)
		}
		return timeline.Absent("not read")
	}
	g.DRAM, g.SM, g.Tensor, g.Graphics = mean(timeline.DRAMUtil), mean(timeline.SMUtil), mean(timeline.TensorUtil), mean(timeline.GraphicsUtil)
	g.SMClockHz, g.PowerW, g.Temperature = mean(timeline.SMClock), mean(timeline.Power), mean(timeline.Temperature)
	if s != nil {
		g.Windows, g.CoveredS = s.windows, s.covered
		if len(s.throttled) > 0 {
			g.ThrottledS = maps.Clone(s.throttled)
		}
	}
	return g
}
