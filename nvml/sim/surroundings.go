package sim

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// surroundings is what was set of what is around GPUs, in place of what the world says. It is safe for concurrent use.
type surroundings struct {
	aroundMu  sync.Mutex
	links     map[[2]int]bool               // by GPU and link: up
	lanes     map[int]int                   // by GPU
	processes map[int][]timeline.GPUProcess // by GPU
}

// SetNVLink takes a link of a GPU down from here on, or brings it up.
func (s *surroundings) SetNVLink(gpu, link int, up bool) {
	s.aroundMu.Lock()
	defer s.aroundMu.Unlock()
	s.links = with(s.links, [2]int{gpu, link}, up)
}

// SetPCIeWidth gives the PCIe link of a GPU so many lanes from here on.
func (s *surroundings) SetPCIeWidth(gpu, lanes int) {
	s.aroundMu.Lock()
	defer s.aroundMu.Unlock()
	s.lanes = with(s.lanes, gpu, lanes)
}

// SetProcesses makes these processes all that compute on a GPU from here on.
func (s *surroundings) SetProcesses(gpu int, all ...timeline.GPUProcess) {
	s.aroundMu.Lock()
	defer s.aroundMu.Unlock()
	s.processes = with(s.processes, gpu, all)
}

func with[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	m[k] = v
	return m
}

// width returns how many lanes a GPU's link has that the world gives so many.
func (s *surroundings) width(gpu, lanes int) int {
	s.aroundMu.Lock()
	defer s.aroundMu.Unlock()
	if set, ok := s.lanes[gpu]; ok {
		return set
	}
	return lanes
}

// inventory returns what is on and around a GPU at a time on the clock, and whether there is anything to tell but
// processes.
func (s *surroundings) inventory(m *meter, gpu int, t time.Duration) (timeline.Inventory, bool) {
	v := timeline.Inventory{NUMANode: timeline.NoNUMANode}
	w, told := m.world.(Surroundings)
	if told {
		at, _ := m.worldTime(t)
		v = w.Inventory(gpu, at)
	}
	v.PCIeWidth = s.width(gpu, v.PCIeWidth)
	s.aroundMu.Lock()
	defer s.aroundMu.Unlock()
	if len(s.links) > 0 {
		v.NVLinks = slices.Clone(v.NVLinks)
		for i := range v.NVLinks {
			if up, set := s.links[[2]int{gpu, v.NVLinks[i].Link}]; set {
				v.NVLinks[i].Up = up
			}
		}
	}
	if list, set := s.processes[gpu]; set {
		v.Processes, v.ProcessesKnown = list, true
	}
	return v, told
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
