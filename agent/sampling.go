package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// newBursts returns what begins bursts of the source of counters, where it has any.
func (a *Agent) newBursts() *burst.Control {
	cfg := burst.Config{Mode: burst.Mode(a.cfg.NVML.Burst), Now: a.clock.Now, Event: a.store.AddEvent, Logger: a.log}
	if src, ok := a.counters.(interface{ Burst(d time.Duration) error }); ok {
		cfg.Source = src.Burst
	}
	return burst.New(cfg)
}

// samplers returns what the samplers count of themselves, by the position of their GPU.
func (a *Agent) samplers() map[int]nvml.Stats {
	src, ok := a.counters.(interface{ Stats() remote.Stats })
	if !ok {
		return nil
	}
	all := map[int]nvml.Stats{}
	for i, st := range src.Stats().GPUs {
		at := i
		if a.router != nil {
			if at, ok = a.router.Position(i); !ok {
				continue
			}
		}
		all[at] = st
	}
	return all
}

// full reports whether any way out takes everything.
func (a *Agent) full() bool {
	return a.cfg.Metrics.Profile == exporters.Full.String() || a.cfg.OTLP.Enabled() && a.cfg.OTLP.Profile == exporters.Full
}

// capabilities returns the states of all calls, or nil where no way out wants them.
func (a *Agent) capabilities() []timeline.Capability {
	if !a.full() {
		return nil
	}
	return a.store.Health().Capabilities
}

// cost reads what sampling takes and gives, where a way out wants it.
func (a *Agent) cost() []exporters.Self {
	if !a.full() {
		return nil
	}
	var list []exporters.Self
	add := func(id exporters.ID, v float64, labels ...string) {
		list = append(list, exporters.Self{Name: exporters.Lookup(id).Name, Labels: labels, Value: v})
	}
	samplers, gpus := a.samplers(), a.store.GPUs()
	for i := range gpus {
		st, ok := samplers[i]
		if !ok {
			continue
		}
		uuid := gpus[i].UUID
		for _, p := range periods(st.Period, st.FastPeriod, st.SlowPeriod) {
			if p.length > 0 {
				add(exporters.SelfSamplerPeriod, p.length.Seconds(), uuid, p.tier)
			}
		}
		add(exporters.SelfSamplerDuty, st.Duty, uuid)
		for why, n := range st.Dropped {
			add(exporters.SelfSamplerDrops, float64(n), uuid, nvml.Drop(why).String())
		}
	}
	if len(samplers) > 0 {
		set := &a.cfg.NVML
		for _, p := range periods(set.Period, set.FastPeriod, set.SlowPeriod) {
			add(exporters.SelfSamplerPeriodSet, p.length.Seconds(), p.tier)
		}
	}
	calls(samplers, add)
	if c, ok := a.Cost(); ok && c.HelperRSS > 0 {
		add(exporters.SelfHelperCPU, c.HelperCPU)
		add(exporters.SelfHelperRSS, c.HelperRSS)
	}
	return list
}

// calls reads how long the driver's calls take.
func calls(samplers map[int]nvml.Stats, add func(exporters.ID, float64, ...string)) {
	for call := range nvml.Call(nvml.NumCalls) {
		for _, q := range []float64{0.5, 0.99} {
			if d, ok := slowest(samplers, call, q); ok {
				add(exporters.SelfCallLatency, d.Seconds(), call.String(), strconv.FormatFloat(q, 'g', -1, 64))
			}
		}
		for _, b := range took(samplers, call) {
			add(exporters.SelfCalls, float64(b.calls), call.String(), b.le)
		}
	}
}

// callBucket is how many calls took less than a time.
type callBucket struct {
	le    string // s
	calls uint64
}

// bucketStep is how many of the samplers' buckets, each twice as wide as the one before, make one that is exported.
const bucketStep = 2

// took adds up how long a call took on all GPUs; nothing where it was never made.
func took(samplers map[int]nvml.Stats, call nvml.Call) []callBucket {
	var sum [nvml.LatencyBuckets]uint64
	all := uint64(0)
	for _, st := range samplers {
		for i, n := range st.Calls[call].Latency {
			sum[i] += n
			all += n
		}
	}
	if all == 0 {
		return nil
	}
	var out []callBucket
	below := uint64(0)
	for i, n := range sum[:nvml.LatencyBuckets-1] {
		if below += n; i%bucketStep == 0 {
			out = append(out, callBucket{strconv.FormatFloat((time.Microsecond << i).Seconds(), 'g', -1, 64), below})
		}
	}
	return append(out, callBucket{"+Inf", all})
}

// period is how often one tier of a GPU is read.
type period struct {
	tier   string
	length time.Duration
}

// periods names the tiers in which a GPU is read: windows of activity, clocks and what holds them, and all else.
func periods(window, fast, slow time.Duration) [3]period {
	return [...]period{{"window", window}, {"fast", fast}, {"slow", slow}}
}

// slowest returns the longest of the GPUs' quantiles of a call, false if none has made it.
func slowest(samplers map[int]nvml.Stats, call nvml.Call, q float64) (time.Duration, bool) {
	var most time.Duration
	made := false
	for _, st := range samplers {
		if c := &st.Calls[call]; c.Count > 0 {
			most, made = max(most, c.Quantile(q)), true
		}
	}
	return most, made
}

// samplingHealth says how a GPU is read. Periods are as reached.
type samplingHealth struct {
	WindowPeriodS float64            `json:"window_period_s,omitempty"`
	FastPeriodS   float64            `json:"fast_period_s,omitempty"`
	SlowPeriodS   float64            `json:"slow_period_s,omitempty"`
	Duty          float64            `json:"duty"`
	Burst         bool               `json:"burst,omitempty"`
	Windows       uint64             `json:"windows"`
	Dropped       map[string]uint64  `json:"dropped_windows,omitempty"`  // by why
	Update        map[string]float64 `json:"update_periods_s,omitempty"` // how often the driver changes each counter
}

// inventoryHealth is what there is on and around a GPU.
type inventoryHealth struct {
	NUMANode      *int    `json:"numa_node,omitempty"`
	PCIeMaxGen    int     `json:"pcie_max_gen,omitempty"`
	PCIeMaxWidth  int     `json:"pcie_max_width,omitempty"`
	PCIeWidth     int     `json:"pcie_width,omitempty"`
	AppSMClockHz  float64 `json:"app_sm_clock_hz,omitempty"`
	AppMemClockHz float64 `json:"app_mem_clock_hz,omitempty"`
	StandingHz    float64 `json:"standing_sm_clock_hz,omitempty"` // below the highest, busy, and nothing told to hold it
	NVLinks       int     `json:"nvlinks,omitempty"`
	NVLinksUp     int     `json:"nvlinks_up,omitempty"`
	Processes     *int    `json:"processes,omitempty"` // that compute on it
}

// describeSampling adds to the health of each GPU how it is read and what is around it.
func (a *Agent) describeSampling(gpus []gpuHealth) {
	samplers, around := a.samplers(), a.store.inventories()
	for i := range gpus {
		if st, ok := samplers[i]; ok {
			gpus[i].Sampling = newSamplingHealth(&st)
		}
		if v, ok := around[i]; ok {
			gpus[i].Inventory = newInventoryHealth(&v)
		}
	}
}

func newSamplingHealth(st *nvml.Stats) *samplingHealth {
	h := &samplingHealth{
		WindowPeriodS: st.Period.Seconds(), FastPeriodS: st.FastPeriod.Seconds(), SlowPeriodS: st.SlowPeriod.Seconds(),
		Duty: st.Duty, Burst: st.Burst, Windows: st.Windows, Dropped: map[string]uint64{}, Update: map[string]float64{},
	}
	for why, n := range st.Dropped {
		if n > 0 {
			h.Dropped[nvml.Drop(why).String()] = n
		}
	}
	for c, d := range st.Update {
		if d > 0 {
			h.Update[timeline.Counter(c).String()] = d.Seconds()
		}
	}
	return h
}

func newInventoryHealth(v *timeline.Inventory) *inventoryHealth {
	h := &inventoryHealth{
		PCIeMaxGen: v.PCIeMaxGen, PCIeMaxWidth: v.PCIeMaxWidth, PCIeWidth: v.PCIeWidth, AppSMClockHz: v.AppSMClockHz, AppMemClockHz: v.AppMemClockHz,
		StandingHz: v.StandingHz, NVLinks: len(v.NVLinks),
	}
	if v.NUMANode != timeline.NoNUMANode {
		h.NUMANode = &v.NUMANode
	}
	if n := len(v.Processes); v.ProcessesKnown {
		h.Processes = &n
	}
	for _, l := range v.NVLinks {
		if l.Up {
			h.NVLinksUp++
		}
	}
	return h
}

// AddInventory takes what is on and around a GPU. It is recorded when it is first told, and when it changes in another way
// than the links do, which tell that by an event of their own. Processes are not recorded: their ids say nothing later.
func (s *Store) AddInventory(v timeline.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, told := s.around[v.GPU]
	s.around[v.GPU] = v
	if text := surroundings(&v); s.keep && (!told || surroundings(&before) != text && linkChanges(&before, &v) == "") {
		s.queue.events = push(s.queue.events, timeline.Event{At: v.At, Kind: timeline.EventInventory, GPU: v.GPU, Detail: text}, maxPendingOther, &s.drops.Other)
	}
}

// linkWatch is a sink that tells of each change of a GPU's links, once.
type linkWatch struct {
	timeline.GPUSink

	log *slog.Logger

	mu     sync.Mutex
	before map[int]timeline.Inventory
}

// watchLinks tells next, and the log, what changes about links.
func watchLinks(next timeline.GPUSink, log *slog.Logger) *linkWatch {
	return &linkWatch{GPUSink: next, log: log, before: map[int]timeline.Inventory{}}
}

// AddInventory looks for links that went down or lost lanes, or came back, and hands the inventory on.
func (w *linkWatch) AddInventory(v timeline.Inventory) {
	w.mu.Lock()
	before, told := w.before[v.GPU]
	w.before[v.GPU] = v
	w.mu.Unlock()
	if told {
		if change := linkChanges(&before, &v); change != "" {
			e := timeline.Event{At: v.At, Kind: timeline.EventInventory, GPU: v.GPU, Detail: change + ": " + surroundings(&v)}
			w.log.Warn("links of a gpu changed", slog.Int("gpu", v.GPU), slog.String("detail", e.Detail))
			w.AddEvent(e)
		}
	}
	if to, ok := w.GPUSink.(timeline.InventorySink); ok {
		to.AddInventory(v)
	}
}

// maxNamed is how many links are named one by one.
const maxNamed = 4

// linkChanges says which links went down or came up, and whether the PCIe link has other lanes; nothing where either
// inventory does not tell.
func linkChanges(before, now *timeline.Inventory) string {
	var parts, down, up []string
	for i := range min(len(before.NVLinks), len(now.NVLinks)) {
		was, is := before.NVLinks[i], now.NVLinks[i]
		switch {
		case was.Up && !is.Up && was.PeerBusID != "":
			down = append(down, fmt.Sprintf("%d to %s", was.Link, was.PeerBusID))
		case was.Up && !is.Up:
			down = append(down, strconv.Itoa(was.Link))
		case is.Up && !was.Up:
			up = append(up, strconv.Itoa(is.Link))
		}
	}
	for _, c := range []struct {
		links []string
		what  string
	}{{down, "down"}, {up, "up again"}} {
		switch n := len(c.links); {
		case n > maxNamed:
			parts = append(parts, fmt.Sprintf("%d NVLinks are %s", n, c.what))
		case n > 1:
			parts = append(parts, fmt.Sprintf("NVLinks %s are %s", strings.Join(c.links, ", "), c.what))
		case n == 1:
			parts = append(parts, fmt.Sprintf("NVLink %s is %s", c.links[0], c.what))
		}
	}
	if before.PCIeWidth > 0 && now.PCIeWidth > 0 && before.PCIeWidth != now.PCIeWidth {
		parts = append(parts, fmt.Sprintf("PCIe has %d lanes and had %d", now.PCIeWidth, before.PCIeWidth))
	}
	return strings.Join(parts, ", ")
}

// surroundings puts what is around a GPU into one line.
func surroundings(v *timeline.Inventory) string {
	h, parts := newInventoryHealth(v), []string(nil)
	if h.NUMANode != nil {
		parts = append(parts, fmt.Sprintf("NUMA node %d", *h.NUMANode))
	}
	if h.PCIeMaxGen > 0 {
		pcie := fmt.Sprintf("PCIe %d x%d at most", h.PCIeMaxGen, h.PCIeMaxWidth)
		if v.PCIeWidth > 0 && v.PCIeWidth < v.PCIeMaxWidth {
			pcie += fmt.Sprintf(", x%d now", v.PCIeWidth)
		}
		parts = append(parts, pcie)
	}
	if h.AppSMClockHz > 0 {
		parts = append(parts, fmt.Sprintf("application clocks %.0f and %.0f MHz", h.AppSMClockHz/1e6, h.AppMemClockHz/1e6))
	}
	if h.StandingHz > 0 {
		parts = append(parts, fmt.Sprintf("SM clock stands at %.0f MHz, for no reason that is told", h.StandingHz/1e6))
	}
	if h.NVLinks > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d NVLinks up", h.NVLinksUp, h.NVLinks))
	}
	if len(parts) == 0 {
		return "nothing is told"
	}
	return strings.Join(parts, ", ")
}

// inventories returns what is on and around each GPU, by the position of the GPU.
func (s *Store) inventories() map[int]timeline.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.around)
}
