package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// EnvPage is the variable that tells the simulated driver library where its page is.
const EnvPage = "TPOTSCOPE_NVML_SIM"

// writePeriod is how often the page is brought up to date: well below the refresh of any counter.
const writePeriod = 5 * time.Millisecond

// activityBase is what the time that activity counters stand for begins with: the first refreshes lie before the start
// of the world.
const activityBase = time.Minute

// errClosed is what a page says after Close.
var errClosed = errors.New("page is closed")

// Page is a shared page, and its only writer. It is safe for concurrent use.
type Page struct {
	meter meter
	now   func() timeline.Instant
	start timeline.Instant

	mu     sync.Mutex
	words  []uint64 // nil after Close
	unmap  func() error
	before []time.Duration // of each GPU: the refresh that its block holds
	set    map[[2]int]bool // calls whose faults were set, and are no longer the world's
	later  []Fault         // faults that are set, and wait for their time

	surroundings
}

// NewPage creates the page's file at path and writes the GPUs of w as they are at the start of the world. Run plays
// the world; the present instant is its start.
func NewPage(path string, w World, opts Options, now func() timeline.Instant) (*Page, error) {
	gpus := w.GPUs()
	if len(gpus) > MaxGPUs {
		return nil, fmt.Errorf("write page: %d GPUs: at most %d", len(gpus), MaxGPUs)
	}
	m := newMeter(w, opts)
	if m.err != nil {
		return nil, fmt.Errorf("write page: %w", m.err)
	}
	words, unmap, err := mapPage(path)
	if err != nil {
		return nil, err
	}
	p := &Page{
		meter: m, now: now, start: now(),
		words: words, unmap: unmap, before: make([]time.Duration, len(gpus)), set: map[[2]int]bool{},
	}
	devices := 0
	for i, g := range gpus {
		p.before[i] = math.MinInt64
		p.writeIdentity(i, g)
		if g.ParentUUID == "" {
			devices++
			continue
		}
		if err := p.writeInstance(i, g, gpus[:devices]); err != nil {
			return nil, errors.Join(err, unmap())
		}
	}
	p.writeGPUs()
	p.putDriver(p.meter.opts.Driver)
	p.put(offset(headerFields, "GPUS"), uint64(devices))
	p.put(offset(headerFields, "BLOCKS"), uint64(len(gpus)))
	p.put(offset(headerFields, "VERSION"), pageVersion)
	p.put(offset(headerFields, "MAGIC"), pageMagic) // last: a reader that sees it sees the rest
	return p, nil
}

// throttleField returns the field id of the software thermal throttle time in a driver of that version. The ids moved
// between branches (headers of NVML 12.9 and 13.0 against 13.1).
func throttleField(driver string) int {
	switch branch := branchOf(driver); {
	case branch < 575:
		return 0
	case branch < 590:
		return 251
	}
	return 269
}

// Run plays the world until ctx ends.
func (p *Page) Run(ctx context.Context) error {
	ticker := time.NewTicker(writePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := p.Write(); err != nil {
				return err
			}
		}
	}
}

// Write brings the page up to date with the present instant.
func (p *Page) Write() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	p.writeGPUs()
	return nil
}

// Elapsed returns the time since the start.
func (p *Page) Elapsed() time.Duration { return p.now().Sub(p.start) }

// putLater puts the faults whose time has come.
func (p *Page) putLater(t time.Duration) {
	p.later = slices.DeleteFunc(p.later, func(f Fault) bool {
		if f.After <= t {
			p.putFault(f)
		}
		return f.After <= t
	})
}

func (p *Page) putFault(f Fault) {
	p.put(block(f.GPU, "CALL_CODE")+f.Call, uint64(f.Code))
	p.put(block(f.GPU, "CALL_DELAY_US")+f.Call, uint64(f.Delay.Microseconds()))
	p.put(block(f.GPU, "CALL_MODE")+f.Call, uint64(f.Mode))
}

// writeFaults writes what the world says is wrong with the instrument at t.
func (p *Page) writeFaults(gpu int, t time.Duration) {
	for call := range nvml.Call(nvml.NumCalls) {
		if !p.set[[2]int{gpu, int(call)}] {
			p.putFault(p.meter.fault(gpu, call, t))
		}
	}
	missing := p.meter.unsupported(gpu, t) &^ p.meter.lacks[gpu]
	for i, c := range activity {
		if missing.Has(c) {
			p.put(block(gpu, "METRIC_CODE")+i, codeNotSupported)
		}
	}
}

func (p *Page) putDriver(version string) {
	p.putText(offset(headerFields, "DRIVER"), version, 10)
	p.put(offset(headerFields, "THROTTLE_FIELD"), uint64(throttleField(version)))
}

// Close ends the mapping. The file stays: whoever has it open reads on.
func (p *Page) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return nil
	}
	p.words = nil
	return p.unmap()
}

func block(gpu int, name string) int {
	return size(headerFields) + gpu*size(blockFields) + offset(blockFields, name)
}

func (p *Page) put(word int, v uint64) { atomic.StoreUint64(&p.words[word], v) }

func (p *Page) putText(word int, s string, words int) {
	text := make([]byte, 8*words)
	copy(text[:len(text)-1], s)
	for i := range words {
		p.put(word+i, binary.NativeEndian.Uint64(text[8*i:]))
	}
}

func (p *Page) writeIdentity(gpu int, g timeline.GPU) {
	major, minor := 9, 0
	if n, err := fmt.Sscanf(g.ComputeCapability, "%d.%d", &major, &minor); n != 2 || err != nil {
		major, minor = 9, 0 // a world that does not say is of Hopper
	}
	p.putText(block(gpu, "NAME"), g.Name, 12)
	p.putText(block(gpu, "UUID"), g.UUID, 12)
	p.putText(block(gpu, "BUS_ID"), g.PCIBusID, 4)
	p.put(block(gpu, "CC_MAJOR"), uint64(major))
	p.put(block(gpu, "CC_MINOR"), uint64(minor))
	p.put(block(gpu, "MEMORY_TOTAL"), g.MemoryBytes)
	p.put(block(gpu, "BUS_WIDTH"), uint64(g.BusWidthBits))
	p.put(block(gpu, "CORES"), uint64(g.SMs*nvml.CoresPerSM(major, minor)))
	p.put(block(gpu, "MAX_SM_MHZ"), uint64(math.Round(g.MaxSMClockHz/1e6)))
	p.put(block(gpu, "MAX_MEM_MHZ"), uint64(math.Round(g.MaxMemClockHz/1e6)))
	p.put(block(gpu, "DEFAULT_LIMIT_MW"), uint64(math.Round(g.DefaultLimitW*1e3)))
	p.put(block(gpu, "GPM"), flag(g.GPM))
	p.put(block(gpu, "MIG"), flag(g.MIG))
	p.put(block(gpu, "LACKS"), uint64(untold(p.meter.world, gpu)))
}

// writeInventory writes what is on and around a GPU.
func (p *Page) writeInventory(gpu int, t time.Duration) {
	v, _ := p.inventory(&p.meter, gpu, t)
	p.put(block(gpu, "NUMA"), uint64(v.NUMANode+1))
	p.put(block(gpu, "PCIE_MAX_GEN"), uint64(v.PCIeMaxGen))
	p.put(block(gpu, "PCIE_MAX_WIDTH"), uint64(v.PCIeMaxWidth))
	p.put(block(gpu, "APP_SM_MHZ"), uint64(math.Round(v.AppSMClockHz/1e6)))
	p.put(block(gpu, "APP_MEM_MHZ"), uint64(math.Round(v.AppMemClockHz/1e6)))
	links := v.NVLinks[:min(len(v.NVLinks), maxLinks)]
	p.put(block(gpu, "LINKS"), uint64(len(links)))
	var up uint64
	for i, l := range links {
		up |= flag(l.Up) << i
		p.putText(block(gpu, "PEER_BUS_ID")+busIDWords*i, l.PeerBusID, busIDWords)
	}
	p.put(block(gpu, "LINKS_UP"), up)
	shown := v.Processes[:min(len(v.Processes), maxProcesses)]
	for i, proc := range shown {
		p.put(block(gpu, "PROCESS")+2*i, uint64(proc.PID))
		p.put(block(gpu, "PROCESS")+2*i+1, proc.MemoryBytes)
	}
	p.put(block(gpu, "PROCESSES"), flag(v.ProcessesKnown)*uint64(len(shown)+1))
}

// writeInstance writes what an instance of one of the devices has that a device has not.
func (p *Page) writeInstance(gpu int, g timeline.GPU, devices []timeline.GPU) error {
	parent := slices.IndexFunc(devices, func(d timeline.GPU) bool { return d.UUID == g.ParentUUID })
	if parent < 0 {
		return fmt.Errorf("write page: instance %s comes before its device, or has none", g.UUID)
	}
	p.put(block(gpu, "PARENT"), uint64(parent+1))
	p.put(block(gpu, "INSTANCE_ID"), uint64(gpu-len(devices)+1))
	p.put(block(gpu, "SLICES"), uint64(max(1, math.Round(8*g.PeakShare))))
	p.put(block(gpu, "PRESENT"), 1)
	return nil
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// writeGPUs writes every block's readings, each under its seq word.
func (p *Page) writeGPUs() {
	t := p.Elapsed()
	p.putLater(t)
	for gpu := range p.before {
		seq := block(gpu, "SEQ")
		n := atomic.LoadUint64(&p.words[seq])
		p.put(seq, n+1)
		if len(p.meter.faults) > 0 {
			p.writeFaults(gpu, t)
		}
		p.writeReadings(gpu, t)
		p.put(seq, n+2)
	}
}

func (p *Page) writeReadings(gpu int, t time.Duration) {
	g := p.meter.gauges(gpu, t)
	p.put(block(gpu, "SM_MHZ"), uint64(math.Round(g.SMClockHz/1e6)))
	p.put(block(gpu, "MEM_MHZ"), uint64(math.Round(g.MemClockHz/1e6)))
	p.put(block(gpu, "REASONS"), g.Reasons)
	refreshed := p.meter.refreshed(gpu, t)
	if refreshed == p.before[gpu] {
		return // all else is refreshed ten times a second
	}
	p.before[gpu] = refreshed
	p.writeInventory(gpu, t)
	p.put(block(gpu, "POWER_MW"), uint64(math.Round(g.PowerW*1e3)))
	p.put(block(gpu, "LIMIT_MW"), uint64(math.Round(g.PowerLimitW*1e3)))
	p.put(block(gpu, "MEMORY_USED"), uint64(g.MemUsedBytes))
	p.put(block(gpu, "TEMPERATURE"), uint64(max(0, math.Round(g.TemperatureC))))
	p.put(block(gpu, "GPU_DUTY"), p.meter.duty(gpu, timeline.GraphicsUtil, t))
	p.put(block(gpu, "MEM_DUTY"), p.meter.duty(gpu, timeline.DRAMUtil, t))
	p.put(block(gpu, "MEM_TEMPERATURE"), uint64(max(0, math.Round(g.MemTemperatureC))))
	p.put(block(gpu, "MARGIN"), uint64(max(0, math.Round(g.MarginC))))
	p.put(block(gpu, "PCIE_GEN"), uint64(g.PCIeGen))
	p.put(block(gpu, "PCIE_WIDTH"), uint64(p.width(gpu, g.PCIeWidth)))
	p.put(block(gpu, "ROW_PENDING"), flag(g.RowRemapPending))
	p.put(block(gpu, "ROW_FAILURE"), flag(g.RowRemapFailure))
	for i, c := range totals {
		p.put(block(gpu, "TOTALS")+i, uint64(p.meter.integral(gpu, c, t)))
	}
	p.put(block(gpu, "ENERGY_MJ"), uint64(p.meter.integral(gpu, timeline.Energy, t)*1e3))
	for i, c := range throttles {
		p.put(block(gpu, "THROTTLE_NS")+i, uint64(p.meter.integral(gpu, c, t)*1e9))
	}
	s := p.meter.snapshot(gpu, t)
	p.put(block(gpu, "ACTIVITY_NS"), uint64(activityBase+s.at))
	for i, v := range s.integral {
		p.put(block(gpu, "ACTIVITY")+i, math.Float64bits(v))
	}
}
