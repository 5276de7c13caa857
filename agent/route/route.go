// Package route decides, GPU by GPU, whose windows of activity the correlation engine gets: the driver's where it has
// them, else dcgm-exporter's. The two never meet in one cell. Where the driver has windows the exporter's are a
// cross-check only, and a difference between the two is told.
package route

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Config says how the engine cuts time, and whether the driver is read at all.
type Config struct {
	Cell     time.Duration
	Lateness time.Duration
	Driver   bool
	Logger   *slog.Logger
}

// Router stands between the sources of counters and their sink. It is safe for concurrent use.
type Router struct {
	cfg  Config
	sink timeline.GPUSink

	mu      sync.Mutex
	gpus    []gpu
	driver  []int // position of each of the driver's GPUs
	listed  bool  // the driver has told its GPUs
	lost    bool  // the driver's reader was lost before it told any
	every   time.Duration
	warned  bool
	strange map[string]bool // GPUs that the exporter tells of and the driver does not list
}

// gpu is what is known of one GPU by its sources.
type gpu struct {
	spec    timeline.GPU
	driver  bool // the driver lists it
	windows bool // the driver gives windows of it
	told    bool // that the exporter's windows are used was said

	newestDriver   timeline.Instant // ends of the newest windows that were handed on
	newestExporter timeline.Instant
	check          check
}

// New returns a router in front of sink.
func New(cfg Config, sink timeline.GPUSink) *Router {
	return &Router{cfg: cfg, sink: sink, strange: map[string]bool{}}
}

// Every returns the collection interval of the exporter if it feeds any GPU, zero if it does not or is not known.
func (r *Router) Every() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.gpus {
		if !r.gpus[i].windows {
			return r.every
		}
	}
	return 0
}

// Position returns where the driver's GPU of that position stands in the list that the sink knows.
func (r *Router) Position(driver int) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.position(driver)
}

func (r *Router) position(driver int) (int, bool) {
	if driver < 0 || driver >= len(r.driver) {
		return 0, false
	}
	return r.driver[driver], true
}

// Driver returns what the driver's reader writes to.
func (r *Router) Driver() timeline.GPUSink { return driverSink{r} }

// driverSink takes what the driver tells.
type driverSink struct{ r *Router }

// SetGPUs takes the driver's list. A GPU that the exporter told before keeps its position.
func (d driverSink) SetGPUs(list []timeline.GPU) {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed, r.driver = true, r.driver[:0]
	for _, spec := range list {
		i := r.find(spec.UUID)
		if i < 0 {
			i = len(r.gpus)
			r.gpus = append(r.gpus, gpu{})
		}
		g := &r.gpus[i]
		if !g.driver {
			g.windows = spec.GPM
		}
		g.spec, g.driver = spec, true
		r.driver = append(r.driver, i)
	}
	r.publish()
}

func (r *Router) find(uuid string) int {
	for i := range r.gpus {
		if timeline.NormalizeUUID(r.gpus[i].spec.UUID) == timeline.NormalizeUUID(uuid) {
			return i
		}
	}
	return -1
}

// publish hands the list on. The lock is held.
func (r *Router) publish() {
	list := make([]timeline.GPU, len(r.gpus))
	for i := range r.gpus {
		list[i] = r.gpus[i].spec
	}
	r.sink.SetGPUs(list)
}

// AddSample takes one reading of the driver.
func (d driverSink) AddSample(s *timeline.Sample) {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.position(s.GPU)
	if !ok {
		return
	}
	out := *s
	out.GPU = i
	g := &r.gpus[i]
	if out.Has&timeline.GPM != 0 {
		g.windows = g.windows || out.Has.Has(timeline.DRAMUtil)
		g.check.driver(&out)
		if !g.newestExporter.IsZero() && (!g.windows || r.cell(out.Over.Start) <= r.cell(g.newestExporter)) {
			out.Has &^= timeline.GPM
		} else {
			g.newestDriver = out.Over.End
		}
	}
	if out.Has != 0 {
		r.sink.AddSample(&out)
	}
}

// AddCapability takes the state of a call. Whether windows can be had shows in that of DRAM traffic.
func (d driverSink) AddCapability(c timeline.Capability) {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.position(c.GPU)
	if !ok {
		return
	}
	c.GPU = i
	if c.Call == timeline.DRAMUtil.String() {
		switch c.State { //nolint:exhaustive // the other states pass
		case timeline.StateUnsupported, timeline.StateNoPermission:
			r.gpus[i].windows = false
		case timeline.StateOK:
			r.gpus[i].windows = true
		}
	}
	r.sink.AddCapability(c)
}

// AddEvent takes what happened to the driver's reader.
func (d driverSink) AddEvent(e timeline.Event) {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.position(e.GPU); ok {
		e.GPU = i
	}
	if e.Kind == timeline.EventSamplerLost {
		r.lost = true
		for i := range r.gpus {
			r.gpus[i].windows = false // until it tells one again
		}
	}
	r.sink.AddEvent(e)
}

// AddInventory takes what is on and around a GPU, for a sink that wants it.
func (d driverSink) AddInventory(v timeline.Inventory) {
	r := d.r
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.position(v.GPU)
	if sink, wants := r.sink.(timeline.InventorySink); ok && wants {
		v.GPU = i
		sink.AddInventory(v)
	}
}

var (
	_ timeline.GPUSink       = driverSink{}
	_ timeline.InventorySink = driverSink{}
)

// Exporter takes what dcgm-exporter told of one GPU.
func (r *Router) Exporter(in *scrape.DCGMReading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.admit(&in.GPU)
	if !ok {
		return
	}
	g := &r.gpus[i]
	if in.Every > 0 {
		r.every = in.Every
	}
	if !g.driver && in.Gauges.Has != 0 {
		s := in.Gauges
		s.GPU = i
		r.sink.AddSample(&s)
	}
	if in.Windows.Has == 0 {
		return
	}
	s := in.Windows
	s.GPU = i
	if g.windows {
		for _, text := range g.check.exporter(&s) {
			r.say(i, s.Over.End, timeline.EventCounterMismatch, text)
		}
		return
	}
	if !g.newestDriver.IsZero() && r.cell(s.Over.Start) <= r.cell(g.newestDriver) {
		return
	}
	r.tell(i, &s)
	g.newestExporter = s.Over.End
	r.sink.AddSample(&s)
}

// admit returns the position of a GPU that the exporter names. While the driver may still list it, or where the driver
// lists others, it has none: the exporter sees the whole host, this agent perhaps a part of it.
func (r *Router) admit(spec *timeline.GPU) (int, bool) {
	if i := r.find(spec.UUID); i >= 0 {
		return i, true
	}
	if unlisted := r.cfg.Driver && r.listed; unlisted || len(r.gpus) >= maxGPUs {
		if !r.strange[spec.UUID] && len(r.strange) < maxStrange {
			r.strange[spec.UUID] = true
			if unlisted {
				r.cfg.Logger.Info("dcgm-exporter tells of a gpu that the driver does not list", slog.String("uuid", spec.UUID))
			} else {
				r.cfg.Logger.Warn("dcgm-exporter has told of more gpus than are taken", slog.String("uuid", spec.UUID))
			}
		}
		return 0, false
	}
	if r.cfg.Driver && !r.lost {
		return 0, false
	}
	r.gpus = append(r.gpus, gpu{spec: *spec})
	r.publish()
	return len(r.gpus) - 1, true
}

// maxGPUs bounds the GPUs that have been there: each keeps its position, so that an exporter which makes names up must
// not add to them for ever.
const maxGPUs = 256

// maxStrange bounds the GPUs that are remembered for having been told.
const maxStrange = 64

// cell returns the number of the cell that t lies in.
func (r *Router) cell(t timeline.Instant) int64 { return int64(t) / int64(r.cfg.Cell) }

// Parts of a cell and of the lateness that a window may take: three whole windows fit in a cell wherever they begin, and
// a window that reaches over the end of a cell is there before the cell is closed.
const (
	windowsPerCell = 4
	latePart       = 1.2
)

// tell says once whose windows a GPU's are, and once that they are too long for the cells.
func (r *Router) tell(i int, s *timeline.Sample) {
	if !r.gpus[i].told {
		r.gpus[i].told = true
		r.say(i, s.Over.End, timeline.EventCounterSource,
			fmt.Sprintf("windows of activity come from dcgm-exporter, over %v", s.Over.Duration().Round(100*time.Millisecond)))
	}
	late := time.Duration(latePart * float64(r.every))
	if r.warned || r.every == 0 || windowsPerCell*r.every <= r.cfg.Cell && late <= r.cfg.Lateness {
		return
	}
	r.warned = true
	text := fmt.Sprintf("dcgm-exporter collects every %v: set correlation.cell to %v and correlation.lateness to %v at least, or its own interval (-c) lower",
		r.every.Round(100*time.Millisecond), (windowsPerCell * r.every).Round(time.Second), late.Round(time.Second)+time.Second)
	if windowsPerCell*r.every > time.Minute {
		text = fmt.Sprintf("dcgm-exporter collects every %v: too seldom for any cell; set its own interval (-c) to 10000 ms or less", r.every.Round(100*time.Millisecond))
	}
	r.say(i, s.Over.End, timeline.EventCapability, text)
}

// say tells an event of one GPU, and logs it.
func (r *Router) say(i int, at timeline.Instant, kind timeline.EventKind, detail string) {
	r.cfg.Logger.Warn("dcgm-exporter beside the driver", slog.String("event", string(kind)), slog.String("gpu", r.gpus[i].spec.UUID), slog.String("detail", detail))
	r.sink.AddEvent(timeline.Event{At: at, Kind: kind, GPU: i, Detail: detail})
}
