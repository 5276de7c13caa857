package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// SetFault makes a call of the C library fail or wait from here on, or succeed at once if f has neither code nor delay.
func (p *Page) SetFault(f Fault) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	if f.GPU < 0 || f.GPU >= MaxGPUs || f.Call < 0 || f.Call >= nvml.NumCalls {
		return fmt.Errorf("set fault: no gpu %d or no call %d", f.GPU, f.Call)
	}
	p.set[[2]int{f.GPU, f.Call}] = true
	if f.After > p.Elapsed() {
		p.later = append(p.later, f)
		return nil
	}
	p.putFault(f)
	return nil
}

// SetMetricCode makes one counter of every window of a GPU fail with a code of NVML.
func (p *Page) SetMetricCode(gpu int, c timeline.Counter, code int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, a := range activity {
		if a == c && p.words != nil && gpu >= 0 && gpu < MaxGPUs {
			p.put(block(gpu, "METRIC_CODE")+i, uint64(code))
			return nil
		}
	}
	return fmt.Errorf("set metric code: no gpu %d or no counter %s", gpu, c)
}

// SetOpen makes a GPU that cannot be opened from here on, by a code of NVML, or can be again.
func (p *Page) SetOpen(gpu, code int) error { return p.putWord(gpu, "OPEN_CODE", uint64(code)) }

// SetFrozen makes the windows of a GPU repeat what the last one said, bit by bit.
func (p *Page) SetFrozen(gpu int, frozen bool) error { return p.putWord(gpu, "FROZEN", flag(frozen)) }

// SetPresent takes an instance away or puts it back, as an administrator who cuts the device anew would.
func (p *Page) SetPresent(gpu int, present bool) error {
	return p.putWord(gpu, "PRESENT", flag(present))
}

func (p *Page) putWord(gpu int, name string, v uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	if gpu < 0 || gpu >= MaxGPUs {
		return fmt.Errorf("set %s: no gpu %d", strings.ToLower(name), gpu)
	}
	p.put(block(gpu, name), v)
	return nil
}

// SetCount unplugs all devices but the first n, or plugs them in again. The page must have no instances.
func (p *Page) SetCount(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	blocks := offset(headerFields, "BLOCKS")
	if n < 0 || n > len(p.before) || p.words[blocks] != p.words[offset(headerFields, "GPUS")] {
		return fmt.Errorf("set count: %d of %d gpus, or there are instances", n, len(p.before))
	}
	p.put(offset(headerFields, "GPUS"), uint64(n))
	p.put(blocks, uint64(n))
	return nil
}

// Tell makes the driver tell an event of a GPU, by NVML's type (8 is a critical error, 0x100 a device that is cut into
// other instances) with its number (of a critical error: the Xid).
func (p *Page) Tell(gpu int, kind, number uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	count := offset(headerFields, "EVENTS")
	n := p.words[count]
	at := offset(headerFields, "EVENT") + 3*int(n%maxEvents)
	p.put(at, uint64(gpu))
	p.put(at+1, kind)
	p.put(at+2, number)
	p.put(count, n+1)
	return nil
}

// SetDriver makes the page that of another driver, as after an upgrade: a library that is opened from here on tells its
// version, and has its fields.
func (p *Page) SetDriver(version string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	p.putDriver(version)
	return nil
}

// SetInit makes opening the driver fail or wait from here on.
func (p *Page) SetInit(code int, delay time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	p.put(offset(headerFields, "INIT_CODE"), uint64(code))
	p.put(offset(headerFields, "INIT_DELAY_US"), uint64(delay.Microseconds()))
	return nil
}

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
