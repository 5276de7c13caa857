package sim

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// Library is a simulated driver in this process.
type Library struct {
	meter meter
	now   func() timeline.Instant
	start timeline.Instant

	told chan nvml.Happening

	mu      sync.Mutex
	faults  map[[2]int]Fault
	changed string

	surroundings
}

var (
	_ nvml.Library = (*Library)(nil)
	_ nvml.Watcher = (*Library)(nil)
)

// maxTold is how many happenings wait to be taken. What comes on top is not told.
const maxTold = 16

// NewLibrary returns a driver whose GPUs do what w says, from the present instant on.
func NewLibrary(w World, opts Options, now func() timeline.Instant) *Library {
	return &Library{meter: newMeter(w, opts), now: now, start: now(), told: make(chan nvml.Happening, maxTold), faults: map[[2]int]Fault{}}
}

// Tell makes the driver tell something. It reports false if too much waits to be told.
func (l *Library) Tell(h nvml.Happening) bool {
	select {
	case l.told <- h:
		return true
	default:
		return false
	}
}

// Await waits for what Tell tells.
func (l *Library) Await(d time.Duration) (nvml.Happening, bool, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case h := <-l.told:
		return h, true, nil
	case <-timer.C:
		return nvml.Happening{Device: timeline.NoGPU}, false, nil
	}
}

// Tells returns an error for an instance: the driver tells the errors of a device alone.
func (l *Library) Tells(device int) error {
	if l.meter.world.GPUs()[device].ParentUUID != "" {
		return fmt.Errorf("events are of the device, not of an instance: %w", nvml.ErrNotSupported)
	}
	return nil
}

// SetChanged makes the driver list other GPUs from here on, for that reason; none if it is empty.
func (l *Library) SetChanged(why string) {
	l.mu.Lock()
	l.changed = why
	l.mu.Unlock()
}

// Changed reports what SetChanged said.
func (l *Library) Changed() (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.changed != ""
}

// SetFault makes a call fail or wait from here on, or succeed at once if f has neither code nor delay.
func (l *Library) SetFault(f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[[2]int{f.GPU, f.Call}] = f
}

// maxDelay bounds the delays that are played in this process, where nothing can be ended from outside.
const maxDelay = 3 * time.Second

// codes are the errors that stand for NVML's codes.
var codes = map[int]error{
	codeNotSupported: nvml.ErrNotSupported, codeNoPermission: nvml.ErrNoPermission, codeTimeout: nvml.ErrTimeout, codeLost: nvml.ErrGPULost,
}

// fault plays the delay of a call, and returns the error that it has to end with.
func (l *Library) fault(gpu int, call nvml.Call) error {
	l.mu.Lock()
	f, set := l.faults[[2]int{gpu, int(call)}]
	l.mu.Unlock()
	if !set || f.After > l.now().Sub(l.start) {
		f = l.meter.fault(gpu, call, l.now().Sub(l.start))
	}
	if f.Delay > 0 {
		time.Sleep(min(f.Delay, maxDelay))
	}
	if f.Code == 0 {
		return nil
	}
	sentinel, known := codes[f.Code]
	if !known {
		sentinel = nvml.ErrDriver
	}
	return fmt.Errorf("%s: simulated code %d: %w", call, f.Code, sentinel)
}

// Devices lists the GPUs of the world.
func (l *Library) Devices() ([]nvml.Device, error) {
	if l.meter.err != nil {
		return nil, l.meter.err
	}
	gpus := l.meter.world.GPUs()
	devices := make([]nvml.Device, len(gpus))
	for i, g := range gpus {
		g.Simulated, g.Driver, g.Index = true, l.meter.opts.Driver, i
		devices[i] = &device{lib: l, gpu: i, info: g}
	}
	return devices, nil
}

// Close does nothing: a simulated driver holds nothing.
func (l *Library) Close() error { return nil }

// device is one simulated GPU.
type device struct {
	lib   *Library
	gpu   int
	info  timeline.GPU
	slots [nvml.Slots]snapshot
}

// GPU returns what is fixed about the device.
func (d *device) GPU() timeline.GPU { return d.info }

func (d *device) elapsed() time.Duration { return d.lib.now().Sub(d.lib.start) }

// Read makes one call.
func (d *device) Read(call nvml.Call, r *nvml.Reading) {
	if err := d.lib.fault(d.gpu, call); err != nil {
		r.FailAll(call.Counters(), err)
		return
	}
	m, t := &d.lib.meter, d.elapsed()
	g := m.gauges(d.gpu, t)
	g.PCIeWidth = d.lib.width(d.gpu, g.PCIeWidth)
	asked, lacks := call.Counters(), m.lacks[d.gpu]
	if asked == 0 || call >= nvml.CallTake {
		r.FailAll(asked, nvml.ErrNotSupported)
		return
	}
	for c := timeline.SMClock; c < timeline.NumCounters; c++ {
		switch {
		case !asked.Has(c):
		case lacks.Has(c):
			r.Fail(c, nvml.ErrNotSupported)
		case c.Cumulative():
			r.Put(c, m.integral(d.gpu, c, t))
		default:
			r.Put(c, m.gauge(d.gpu, c, &g, t))
		}
	}
}

// gauge returns what a counter that is not cumulative shows at t.
func (m *meter) gauge(gpu int, c timeline.Counter, g *Gauges, t time.Duration) float64 {
	//nolint:exhaustive // the rest are averages and cumulative
	switch c {
	case timeline.GPUDuty:
		return float64(m.duty(gpu, timeline.GraphicsUtil, t)) / 100
	case timeline.MemDuty:
		return float64(m.duty(gpu, timeline.DRAMUtil, t)) / 100
	}
	return g.of(c)
}

// of returns the gauge of a counter.
func (g *Gauges) of(c timeline.Counter) float64 {
	//nolint:exhaustive // the rest are averages and cumulative
	switch c {
	case timeline.SMClock:
		return g.SMClockHz
	case timeline.MemClock:
		return g.MemClockHz
	case timeline.EventReasons:
		return float64(g.Reasons)
	case timeline.Power:
		return g.PowerW
	case timeline.PowerLimit:
		return g.PowerLimitW
	case timeline.MemUsed:
		return g.MemUsedBytes
	case timeline.Temperature:
		return g.TemperatureC
	case timeline.MemTemperature:
		return g.MemTemperatureC
	case timeline.TemperatureMargin:
		return g.MarginC
	case timeline.PCIeGen:
		return float64(g.PCIeGen)
	case timeline.PCIeWidth:
		return float64(g.PCIeWidth)
	case timeline.RowRemapPending:
		return float64(flag(g.RowRemapPending))
	case timeline.RowRemapFailure:
		return float64(flag(g.RowRemapFailure))
	}
	return 0
}

// Survey tells what the world tells of a GPU's surroundings.
func (d *device) Survey(call nvml.Call, v *timeline.Inventory) error {
	if err := d.lib.fault(d.gpu, call); err != nil {
		return err
	}
	all, told := d.lib.inventory(&d.lib.meter, d.gpu, d.elapsed())
	if call == nvml.CallProcesses {
		v.Processes, v.ProcessesKnown = all.Processes, all.ProcessesKnown
		told = all.ProcessesKnown
	}
	if !told {
		return fmt.Errorf("%s: the world does not tell: %w", call, nvml.ErrNotSupported)
	}
	if call == nvml.CallProcesses {
		return nil
	}
	processes, known := v.Processes, v.ProcessesKnown
	*v = all
	v.Processes, v.ProcessesKnown = processes, known
	return nil
}

// Take fills a slot.
func (d *device) Take(slot int) error {
	if err := d.lib.fault(d.gpu, nvml.CallTake); err != nil {
		return err
	}
	d.slots[slot] = d.lib.meter.snapshot(d.gpu, d.elapsed())
	return nil
}

// Between compares two slots.
func (d *device) Between(older, newer int, r *nvml.Reading) {
	if err := d.lib.fault(d.gpu, nvml.CallBetween); err != nil {
		r.FailAll(timeline.GPM, err)
		return
	}
	a, b := &d.slots[older], &d.slots[newer]
	passed := (b.at - a.at).Seconds()
	for i, c := range activity {
		if passed == 0 {
			r.Put(c, math.NaN())
			continue
		}
		r.Put(c, (b.integral[i]-a.integral[i])/passed)
	}
	if missing := d.lib.meter.unsupported(d.gpu, d.elapsed()); missing != 0 {
		r.FailAll(missing, nvml.ErrNotSupported)
	}
}
