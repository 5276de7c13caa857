package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
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
	for i, g := range gpus {
		p.before[i] = math.MinInt64
		p.writeIdentity(i, g)
	}
	p.writeGPUs()
	p.putText(offset(headerFields, "DRIVER"), p.meter.opts.Driver, 10)
	p.put(offset(headerFields, "THROTTLE_FIELD"), uint64(throttleField(p.meter.opts.Driver)))
	p.put(offset(headerFields, "GPUS"), uint64(len(gpus)))
	p.put(offset(headerFields, "VERSION"), pageVersion)
	p.put(offset(headerFields, "MAGIC"), pageMagic) // last: a reader that sees it sees the rest
	return p, nil
}

// throttleField returns the field id of the software thermal throttle time in a driver of that version. The ids moved
// between branches (headers of NVML 12.9 and 13.0 against 13.1).
func throttleField(driver string) int {
	major, _, _ := strings.Cut(driver, ".")
	switch branch, err := strconv.Atoi(major); {
	case err != nil || branch < 575:
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
	p.putFault(f)
	return nil
}

func (p *Page) putFault(f Fault) {
	p.put(block(f.GPU, "CALL_CODE")+f.Call, uint64(f.Code))
	p.put(block(f.GPU, "CALL_DELAY_US")+f.Call, uint64(f.Delay.Microseconds()))
}

// writeFaults writes what the world says is wrong with the instrument at t.
func (p *Page) writeFaults(gpu int, t time.Duration) {
	for call := range nvml.Call(nvml.NumCalls) {
		if !p.set[[2]int{gpu, int(call)}] {
			p.putFault(p.meter.fault(gpu, call, t))
		}
	}
	missing := p.meter.unsupported(gpu, t)
	for i, c := range activity {
		if missing.Has(c) {
			p.put(block(gpu, "METRIC_CODE")+i, codeNotSupported)
		}
	}
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
func (p *Page) SetOpen(gpu, code int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words == nil {
		return errClosed
	}
	if gpu < 0 || gpu >= MaxGPUs {
		return fmt.Errorf("set open: no gpu %d", gpu)
	}
	p.put(block(gpu, "OPEN_CODE"), uint64(code))
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
	p.put(block(gpu, "POWER_MW"), uint64(math.Round(g.PowerW*1e3)))
	p.put(block(gpu, "LIMIT_MW"), uint64(math.Round(g.PowerLimitW*1e3)))
	p.put(block(gpu, "MEMORY_USED"), uint64(g.MemUsedBytes))
	p.put(block(gpu, "TEMPERATURE"), uint64(max(0, math.Round(g.TemperatureC))))
	p.put(block(gpu, "GPU_DUTY"), p.meter.duty(gpu, timeline.GraphicsUtil, t))
	p.put(block(gpu, "MEM_DUTY"), p.meter.duty(gpu, timeline.DRAMUtil, t))
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
