package demo

import (
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// laterWorld is a scenario's world that begins with a time of rest, in which agents come up, and which has the boards that
// its instances are cut from: a driver lists those too.
type laterWorld struct {
	sim.World

	rest   time.Duration
	boards []timeline.GPU // listed before all else
}

var (
	_ sim.World        = laterWorld{}
	_ sim.Surroundings = laterWorld{}
	_ sim.Partial      = laterWorld{}
)

// newLaterWorld returns the world of a scenario whose engines are that process.
func newLaterWorld(tl *scenario.Timeline, rest time.Duration, pid int) laterWorld {
	w := laterWorld{World: sim.Scenario(tl, pid), rest: rest}
	for _, g := range tl.GPUs() {
		if g.ParentUUID == "" || slices.ContainsFunc(w.boards, func(b timeline.GPU) bool { return b.UUID == g.ParentUUID }) {
			continue
		}
		g.UUID, g.ParentUUID, g.PeakShare, g.MIG = g.ParentUUID, "", 0, true
		w.boards = append(w.boards, g)
	}
	return w
}

// at returns a position and a time of the scenario. A board does what the first GPU does.
func (w laterWorld) at(gpu int, t time.Duration) (int, time.Duration) {
	return max(0, gpu-len(w.boards)), max(0, t-w.rest)
}

func (w laterWorld) GPUs() []timeline.GPU { return slices.Concat(w.boards, w.World.GPUs()) }

func (w laterWorld) Duration() time.Duration { return w.rest + w.World.Duration() }

func (w laterWorld) Integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	g, at := w.at(gpu, t)
	return w.World.Integral(g, c, at)
}

func (w laterWorld) At(gpu int, t time.Duration) sim.Gauges { return w.World.At(w.at(gpu, t)) }

func (w laterWorld) Inventory(gpu int, t time.Duration) timeline.Inventory {
	s, ok := w.World.(sim.Surroundings)
	if !ok {
		return timeline.Inventory{}
	}
	return s.Inventory(w.at(gpu, t))
}

func (w laterWorld) Lacks(gpu int) timeline.CounterSet {
	s, ok := w.World.(sim.Partial)
	if !ok {
		return 0
	}
	g, _ := w.at(gpu, 0)
	return s.Lacks(g)
}

// CounterFaults returns the faults of the instrument, which begin with the scenario and not before.
func (w laterWorld) CounterFaults() []scenario.CounterFault {
	s, ok := w.World.(interface {
		CounterFaults() []scenario.CounterFault
	})
	if !ok {
		return nil
	}
	all := s.CounterFaults()
	for i := range all {
		all[i].Over.From += w.rest
		all[i].Over.To += w.rest
		if all[i].GPU >= 0 {
			all[i].GPU += len(w.boards)
		}
	}
	return all
}

// noticed is the longest that it takes an agent to know of a stranger: it asks every 10 s who computes on a GPU, and looks
// at the answer every 10 s.
const noticed = 20 * time.Second

// inTime makes a scenario one that can be played in real time: no phase is longer than longest, all of it ends after the
// last, and where a stranger comes phases wait until an agent can know.
func inTime(s *scenario.Scenario, longest time.Duration) {
	length := s.Length
	stranger := time.Duration(-1)
	for _, f := range s.Faults {
		if f.Kind == scenario.Neighbour {
			stranger = f.Over.From
		}
	}
	var end time.Duration
	for i := range s.Phases {
		p := &s.Phases[i].Span
		if stranger >= 0 && p.From >= stranger {
			p.From, p.To = p.From+noticed, p.To+noticed
		}
		p.To = min(p.To, p.From+longest)
		end = max(end, p.To)
	}
	s.Length = end + time.Second
	until := func(over *scenario.Span) {
		if over.To >= length || over.To > s.Length {
			over.To = s.Length
		}
	}
	s.Loads = slices.DeleteFunc(s.Loads, func(l scenario.Load) bool { return l.Over.From >= s.Length })
	for i := range s.Loads {
		until(&s.Loads[i].Over)
	}
	s.Faults = slices.DeleteFunc(s.Faults, func(f scenario.Fault) bool { return f.Over.From >= s.Length })
	for i := range s.Faults {
		until(&s.Faults[i].Over)
	}
	s.Counters = slices.DeleteFunc(s.Counters, func(f scenario.CounterFault) bool { return f.Over.From >= s.Length })
	for i := range s.Counters {
		until(&s.Counters[i].Over)
	}
}
