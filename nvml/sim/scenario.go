package sim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// played is a scenario's timeline as a world.
type played struct {
	*scenario.Timeline

	engines []int // the process of each target; none: no process is told
}

// Scenario returns a scenario's timeline as a world, with its faults of the instrument. If the process of each target's
// engine is given, it is told that they compute on its GPUs, and a stranger beside them while the scenario has one.
func Scenario(tl *scenario.Timeline, engines ...int) World { return played{tl, engines} }

// At returns a GPU's gauges at t.
func (p played) At(gpu int, t time.Duration) Gauges {
	st := p.State(gpu, t)
	return Gauges{
		SMClockHz: st.SMClockHz, MemClockHz: st.MemClockHz, Reasons: st.EventReasons, PowerW: st.Watts,
		PowerLimitW: st.LimitWatts, MemUsedBytes: st.MemUsedBytes, TemperatureC: st.Celsius,
		PCIeGen: pcieGen(p.Scenario().GPUs[gpu].Capability), PCIeWidth: pcieLanes,
	}
}

// Lacks returns the counters that a scenario does not play.
func (p played) Lacks(gpu int) timeline.CounterSet {
	var links timeline.CounterSet
	if p.HasNVLink(gpu) {
		links = timeline.Set(timeline.NVLinkTx, timeline.NVLinkRx)
	}
	return timeline.Set(timeline.IntegerUtil, timeline.FP32Util, timeline.FP16Util, timeline.DRAMCacheHit, timeline.MemTemperature,
		timeline.TemperatureMargin, timeline.RowRemapPending, timeline.RowRemapFailure) |
		timeline.Set(totals[:]...)&^links
}

// NVML's codes for what a call can end with.
const (
	codeNotSupported = 3
	codeNoPermission = 4
	codeTimeout      = 10
	codeLost         = 15
	codeUnknown      = 999
)

// instrument is one fault of the instrument: what is shown, not what is there.
type instrument struct {
	kind     string
	gpu      int // -1: all
	counters timeline.CounterSet
	number   float64
	length   time.Duration
	from, to time.Duration // in the world's time
}

// playedWindows are the windowed counters that a scenario plays.
const playedWindows = timeline.CounterSet(1<<(timeline.DRAMUtil+1) - 1)

// cell is the grid of noise and spikes: that of the refresh.
const cell = defaultRefresh

// instrumentOf returns the faults that a world asks for, if it is one that does.
func instrumentOf(w World) ([]instrument, error) {
	asks, ok := w.(interface {
		CounterFaults() []scenario.CounterFault
	})
	if !ok {
		return nil, nil
	}
	var all []instrument
	var errs []error
	for _, f := range asks.CounterFaults() {
		i, err := instrumentFrom(f)
		all, errs = append(all, i), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// instrumentFrom reads the arguments of a fault. What is not said has a value that shows.
func instrumentFrom(f scenario.CounterFault) (instrument, error) {
	i := instrument{kind: f.Name, gpu: f.GPU, counters: playedWindows, from: f.Over.From, to: f.Over.To}
	if name, ok := f.Arg("counter"); ok {
		c, known := timeline.ParseCounter(strings.TrimSpace(name))
		if !known || !c.Windowed() {
			return i, fmt.Errorf("counter fault %s: counter=%s: not a counter of a window", f.Name, name)
		}
		i.counters = timeline.Set(c)
	}
	var err error
	switch f.Name {
	case "lag", "jitter", "hang":
		i.length, err = f.Duration(f.Name, map[string]time.Duration{"lag": 300 * time.Millisecond, "jitter": 20 * time.Millisecond, "hang": time.Second}[f.Name])
		if err == nil && i.length < 0 {
			err = fmt.Errorf("counter fault %s: %v: want no less than nothing", f.Name, i.length)
		}
	case "denominator":
		i.number, err = f.Number(f.Name, 1.05)
		if _, ok := f.Arg("counter"); !ok {
			i.counters = timeline.Set(timeline.DRAMUtil) // the others have no denominator that could be off
		}
	case "noise":
		i.number, err = f.Number(f.Name, 0.02)
	case "spike":
		i.number, err = f.Number(f.Name, 0.5)
	}
	return i, err
}

// on reports whether the fault concerns a GPU, and the world's time w.
func (i *instrument) on(gpu int, w time.Duration) bool {
	return (i.gpu < 0 || i.gpu == gpu) && i.from <= w && w < i.to
}

// shown returns what c has added up to by the world's time w, as the instrument shows it.
func (m *meter) shown(gpu int, c timeline.Counter, w time.Duration) float64 {
	v := m.world.Integral(gpu, c, w)
	for n := range m.faults {
		i := &m.faults[n]
		if (i.gpu < 0 || i.gpu == gpu) && i.counters.Has(c) && w > i.from {
			v += m.shift(i, gpu, c, w)
		}
	}
	return v
}

// shift returns by how much a fault moves what is shown of c at w, which lies after the fault's start.
func (m *meter) shift(i *instrument, gpu int, c timeline.Counter, w time.Duration) float64 {
	there := func(t time.Duration) float64 { return m.world.Integral(gpu, c, t) }
	until := min(w, i.to)
	grown := there(until) - there(i.from)
	tick := uint64(w / cell)
	switch i.kind {
	case "denominator":
		return (i.number - 1) * grown
	case "zero":
		return -grown
	case "untrusted": // full scale, whatever happens
		return (until - i.from).Seconds() - grown
	case "frozen": // goes on as in the second before
		before := min(time.Second, i.from)
		if before <= 0 {
			return -grown
		}
		return (there(i.from)-there(i.from-before))/before.Seconds()*(until-i.from).Seconds() - grown
	}
	if w >= i.to {
		return 0 // what follows leaves nothing behind
	}
	switch i.kind {
	case "lag":
		return there(max(w-i.length, i.from)) - there(w)
	case "nan":
		return math.NaN()
	case "noise":
		return i.number * cell.Seconds() * (2*float64(mix(tick^uint64(gpu)<<40^uint64(c)<<48)>>11)/(1<<53) - 1)
	case "spike":
		if mix(tick^uint64(gpu)<<40)%50 == 0 {
			return i.number * cell.Seconds()
		}
	}
	return 0
}

// jitter returns how late the refresh at t can be by a fault of the instrument.
func (m *meter) jitter(gpu int, t time.Duration) time.Duration {
	var most time.Duration
	for n := range m.faults {
		if i := &m.faults[n]; i.kind == "jitter" {
			if w, _ := m.worldTime(t); i.on(gpu, w) {
				most = max(most, min(i.length, m.opts.Refresh/2))
			}
		}
	}
	return most
}

// fault returns how a call ends at t.
func (m *meter) fault(gpu int, call nvml.Call, t time.Duration) Fault {
	f := Fault{GPU: gpu, Call: int(call)}
	for n := range m.faults {
		i := &m.faults[n]
		if w, _ := m.worldTime(t); !i.on(gpu, w) {
			continue
		}
		switch {
		case i.kind == "lost":
			f.Code = codeLost
		case call != nvml.CallTake:
		case i.kind == "gap":
			f.Code = codeUnknown
		case i.kind == "no_permission":
			f.Code = codeNoPermission
		case i.kind == "unsupported" && i.counters == playedWindows:
			f.Code = codeNotSupported
		case i.kind == "hang":
			f.Delay = i.length
		}
	}
	return f
}

// unsupported returns the counters of a window that are not supported at t, one by one.
func (m *meter) unsupported(gpu int, t time.Duration) timeline.CounterSet {
	set := m.lacks[gpu] & timeline.GPM
	for n := range m.faults {
		i := &m.faults[n]
		if w, _ := m.worldTime(t); i.kind == "unsupported" && i.counters != playedWindows && i.on(gpu, w) {
			set |= i.counters
		}
	}
	return set
}

const (
	pcieLanes   = 16
	strangerPID = 1<<22 - 7 // close to the highest that a kernel gives out (proc(5)): not one of this host
	strangerMem = 4 << 30
)

// pcieGen returns the generation of PCIe of a GPU by its compute capability (data sheets: 3 up to 7.x, 4 for 8.x, 5 for
// Hopper and data center Blackwell).
func pcieGen(capability string) int {
	major, _, _ := strings.Cut(capability, ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil || n < 8:
		return 3
	case n == 8:
		return 4
	}
	return 5
}

// linkBps is what one NVLink carries, both directions together, by compute capability (data sheets: 50 GB/s up to Hopper,
// 100 GB/s from Blackwell on).
func linkBps(capability string) float64 {
	if major, _, _ := strings.Cut(capability, "."); len(major) > 1 {
		return 100e9
	}
	return 50e9
}

// Inventory returns what a scenario has around a GPU: a PCIe link as wide as it can be, the first four GPUs on one node
// and the next four on another, and NVLinks that join each GPU to each other.
func (p played) Inventory(gpu int, t time.Duration) timeline.Inventory {
	g, gpus := p.Scenario().GPUs[gpu], p.GPUs()
	v := timeline.Inventory{
		NUMANode: gpu / 4 % 2, PCIeMaxGen: pcieGen(g.Capability), PCIeMaxWidth: pcieLanes, PCIeWidth: pcieLanes,
		AppSMClockHz: g.MaxSMClockHz, AppMemClockHz: g.MaxMemClockHz,
	}
	if peers := slices.Delete(slices.Clone(gpus), gpu, gpu+1); len(peers) > 0 {
		for i := range min(int(g.NVLinkBps/linkBps(g.Capability)), maxLinks) {
			v.NVLinks = append(v.NVLinks, timeline.NVLink{Link: i, Up: true, PeerBusID: peers[i%len(peers)].PCIBusID})
		}
	}
	if len(p.engines) > 0 {
		v.Processes, v.ProcessesKnown = p.computing(gpu, t), true
	}
	return v
}

// computing lists the processes that compute on a GPU: the engines that have it, and a neighbour while there is one.
func (p played) computing(gpu int, t time.Duration) []timeline.GPUProcess {
	s := p.Scenario()
	own := map[int]bool{}
	for i := range s.Targets {
		if slices.Contains(s.Targets[i].GPUs, gpu) {
			own[p.engines[min(i, len(p.engines)-1)]] = true
		}
	}
	var list []timeline.GPUProcess
	for _, pid := range slices.Sorted(maps.Keys(own)) {
		list = append(list, timeline.GPUProcess{PID: pid, MemoryBytes: uint64(p.State(gpu, t).MemUsedBytes) / uint64(len(own))})
	}
	for _, f := range s.Faults {
		if f.Kind == scenario.Neighbour && (f.GPU < 0 || f.GPU == gpu) && f.Over.Contains(t) {
			return append(list, timeline.GPUProcess{PID: strangerPID, MemoryBytes: strangerMem})
		}
	}
	return list
}
