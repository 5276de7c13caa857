package sim

import (
	"fmt"
	"strings"
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
