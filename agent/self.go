package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// self reads the agent's own series, but for those of the ways out, which tell their own.
func (a *Agent) self() []exporters.Self {
	var list []exporters.Self
	add := func(id exporters.ID, v float64, labels ...string) {
		list = append(list, exporters.Self{Name: exporters.Lookup(id).Name, Labels: labels, Value: v})
	}
	add(exporters.SelfBuildInfo, 1, a.cfg.Version)
	drops := a.store.Drops()
	add(exporters.SelfRingDrops, float64(drops.Samples), "samples")
	add(exporters.SelfRingDrops, float64(drops.Tokens), "tokens")
	add(exporters.SelfRingDrops, float64(drops.Requests), "requests")
	add(exporters.SelfRingDrops, float64(drops.Other), "other")
	if a.recorder != nil {
		add(exporters.SelfRingDrops, float64(a.recorder.lost.Load()), "recording")
	}
	a.selfSampler(add)
	if a.relay != nil {
		st := a.relay.Stats()
		for _, s := range []timeline.StampSource{timeline.StampKernel, timeline.StampUser} {
			add(exporters.SelfProbeEvents, float64(st.Events[s]), s.String())
		}
		for _, q := range []float64{0.5, 0.99} {
			add(exporters.SelfProbeLag, (st.Wake.Quantile(q) + st.Hold.Quantile(q)).Seconds(), strconv.FormatFloat(q, 'g', -1, 64))
		}
	}
	if h, ok := a.hostNow(); ok {
		if v, ok := h.Get(timeline.AgentCPU); ok {
			add(exporters.SelfAgentCPU, v)
		}
		if v, ok := h.Get(timeline.AgentRSS); ok {
			add(exporters.SelfAgentRSS, v)
		}
	}
	return list
}

// selfSampler reads what the samplers count of themselves.
func (a *Agent) selfSampler(add func(exporters.ID, float64, ...string)) {
	var stats []nvml.Stats
	switch src := a.counters.(type) {
	case *remote.Source:
		st := src.Stats()
		stats = st.GPUs
		add(exporters.SelfHelperRestarts, float64(st.Restarts))
	case *remote.Local:
		stats = src.Stats().GPUs
	}
	gpus, unread := a.store.GPUs(), a.unread()
	for i, st := range stats {
		if a.router != nil {
			at, ok := a.router.Position(i)
			if !ok {
				continue
			}
			i = at
		}
		if i >= len(gpus) {
			break
		}
		rate := 0.0
		if st.Period > 0 && !slices.Contains(unread, i) {
			rate = 1 / st.Period.Seconds()
		}
		add(exporters.SelfSamplerRate, rate, gpus[i].UUID)
		add(exporters.SelfSamplerOverruns, float64(st.Missed), gpus[i].UUID)
	}
}

// unread returns the positions of the GPUs that the driver's reader knows and does not read at the moment. Where GPUs
// have a second source it is the router's to say.
func (a *Agent) unread() []int {
	if a.router != nil {
		return nil
	}
	return a.store.unread()
}

// state returns what is known of one call of one GPU.
func (h *Health) state(gpu int, call string) timeline.Capability {
	for _, c := range h.Capabilities {
		if c.GPU == gpu && c.Call == call {
			return c
		}
	}
	return timeline.Capability{GPU: gpu, Call: call}
}

// newest returns the end of the newest window of each GPU.
func (s *Store) newest() map[int]timeline.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.latest)
}

// unread returns the positions of the GPUs of which no counter can be read at the moment, though some could.
func (s *Store) unread() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	read, not := map[int]bool{}, map[int]bool{}
	for key, c := range s.caps {
		if _, counter := timeline.ParseCounter(key.call); !counter {
			continue
		}
		switch c.State { //nolint:exhaustive // the other states are of a GPU that answers
		case timeline.StateOK:
			read[key.gpu] = true
		case timeline.StateStale, timeline.StateTimeout, timeline.StateLost:
			not[key.gpu] = true
		}
	}
	maps.DeleteFunc(not, func(gpu int, _ bool) bool { return read[gpu] })
	return slices.Sorted(maps.Keys(not))
}

// gpuLog is what the store hears of GPUs, and tells people of it what they have to know, not too often.
type gpuLog struct {
	timeline.GPUSink

	log *slog.Logger
	now func() timeline.Instant

	mu     sync.Mutex
	said   map[toldOf]*told
	listed bool                   // the driver has listed GPUs
	helper string                 // why the helper was lost, which its own log says
	open   map[int]timeline.Event // gaps that windows have not ended, by GPU
	warned map[int]string         // GPUs of which it was said that counters are missing, and why
	faults map[int]timeline.Event // the last error that the driver told of each GPU
}

// toldOf is what is told once in a while.
type toldOf struct {
	kind   timeline.EventKind
	gpu    int
	detail string
}

type told struct {
	at       timeline.Instant
	repeated int
}

// isLost stands for the cause of a GPU whose loss was said: no gap adds to that.
const isLost = "is lost"

// maxSaid bounds what is remembered of what was said.
const maxSaid = 1 << 10

func newGPULog(next timeline.GPUSink, log *slog.Logger, now func() timeline.Instant) *gpuLog {
	return &gpuLog{
		GPUSink: next, log: log, now: now, said: map[toldOf]*told{}, open: map[int]timeline.Event{}, warned: map[int]string{},
		faults: map[int]timeline.Event{},
	}
}

// AddInventory hands an inventory on to a sink that wants it.
func (l *gpuLog) AddInventory(v timeline.Inventory) {
	if to, ok := l.GPUSink.(timeline.InventorySink); ok {
		to.AddInventory(v)
	}
}

// SetGPUs hands the list of GPUs on.
func (l *gpuLog) SetGPUs(gpus []timeline.GPU) {
	l.mu.Lock()
	l.listed = l.listed || len(gpus) > 0
	l.mu.Unlock()
	l.GPUSink.SetGPUs(gpus)
}

// neverRead begins what is told where the helper was lost because there never was a driver.
const neverRead = timeline.NeverRead

// reword says of a loss of the helper that there was nothing to lose.
func (l *gpuLog) reword(e *timeline.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == timeline.EventSamplerLost && !l.listed && strings.Contains(e.Detail, nvml.ErrNoLibrary.Error()) {
		e.Detail = neverRead + ": " + e.Detail
	}
}

// AddEvent hands an event on and says it. A gap waits: most are over with the next window.
func (l *gpuLog) AddEvent(e timeline.Event) {
	l.reword(&e)
	l.GPUSink.AddEvent(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind { //nolint:exhaustive // the other kinds are none of a driver's troubles
	case timeline.EventSamplerLost:
		l.helper = e.Detail
		clear(l.open) // that is said of all
	case timeline.EventGap:
		if e.Detail != l.helper && l.warned[e.GPU] != isLost {
			l.open[e.GPU] = e
		}
	case timeline.EventGPULost:
		delete(l.open, e.GPU)
		l.warned[e.GPU] = isLost
		l.say(l.log.Warn, "gpu is lost", &e)
	case timeline.EventXid, timeline.EventGPUFault:
		l.faults[e.GPU] = e
		l.say(l.log.Warn, "gpu tells an error", &e)
	case timeline.EventCapability:
		l.say(l.log.Warn, "gpu counters changed", &e)
	case timeline.EventMIGChange:
		l.say(l.log.Info, "gpu is cut anew", &e)
	case timeline.EventRate:
		l.say(l.log.Info, "gpu is read at another rate", &e)
	case timeline.EventDropped:
		l.say(l.log.Warn, "gpu readings were dropped", &e)
	}
}

// gapTime is how long counters have to be missing to be worth a word.
const gapTime = time.Second

// look says which gaps lasted, and which GPUs are read again, by the newest windows. What is so of several GPUs is one
// line.
func (l *gpuLog) look(latest map[int]timeline.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	missing, first := map[string][]int{}, map[string]timeline.Event{}
	for _, gpu := range slices.Sorted(maps.Keys(l.open)) {
		e := l.open[gpu]
		cause := strings.Map(withoutDigits, e.Detail)
		switch {
		case latest[gpu] > e.At:
			delete(l.open, gpu)
		case now.Sub(e.At) >= gapTime && l.warned[gpu] != cause:
			l.warned[gpu] = cause
			if missing[cause] == nil {
				first[cause] = e
			}
			missing[cause] = append(missing[cause], gpu)
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(missing)) {
		e := first[cause]
		l.say(l.log.Warn, "gpu counters are missing", &e, missing[cause]...)
	}
	var back []int
	for _, gpu := range slices.Sorted(maps.Keys(l.warned)) {
		if _, open := l.open[gpu]; !open && now.Sub(latest[gpu]) < gapTime {
			delete(l.warned, gpu)
			back = append(back, gpu)
		}
	}
	if len(back) > 0 {
		l.say(l.log.Info, "gpu counters are back", &timeline.Event{GPU: back[0]}, back...)
	}
}

// say logs one event, of several GPUs if they are named, and the same again once a minute with a count. The lock is held.
func (l *gpuLog) say(write func(string, ...any), message string, e *timeline.Event, gpus ...int) {
	key := toldOf{e.Kind, e.GPU, strings.Map(withoutDigits, e.Detail)}
	if e.Kind == timeline.EventXid {
		key.detail = e.Detail // the number is what it is about
	}
	now, repeated := l.now(), 0
	if len(l.said) > maxSaid {
		clear(l.said)
	}
	if t := l.said[key]; t != nil {
		if now.Sub(t.at) < sayAgainAfter {
			t.repeated++
			return
		}
		repeated = t.repeated
	}
	l.said[key] = &told{at: now}
	var attrs []any
	if len(gpus) > 1 {
		attrs = append(attrs, slog.Any("gpus", gpus))
	} else if e.GPU != timeline.NoGPU {
		attrs = append(attrs, slog.Int("gpu", e.GPU))
	}
	if e.Detail != "" {
		attrs = append(attrs, slog.String("cause", e.Detail))
	}
	if repeated > 0 {
		attrs = append(attrs, slog.Int("repeated", repeated))
	}
	write(message, attrs...)
}

// withoutDigits drops the digits of a text, so that times that differ make no other text.
func withoutDigits(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
}

// lastFault returns the last error that the driver told of a GPU.
func (l *gpuLog) lastFault(gpu int) (timeline.Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.faults[gpu]
	return e, ok
}

// watchHost reads the host until ctx ends.
func (a *Agent) watchHost(ctx context.Context) error {
	cfg := host.DefaultConfig()
	cfg.Interval = a.cfg.Host.Interval
	cfg.Own = a.pids
	r, err := host.New(cfg, a.clock.Now)
	if err != nil {
		return fmt.Errorf("watch host: %w", err)
	}
	return r.Run(ctx, func(s *timeline.HostSample) {
		a.host.Store(s)
		a.store.AddHost(s)
	})
}

// pids are the processes that the agent's cost is made of.
func (a *Agent) pids() []int {
	list := []int{os.Getpid()}
	if src, ok := a.counters.(*remote.Source); ok {
		if pid := src.Stats().PID; pid > 0 {
			list = append(list, pid)
		}
	}
	return list
}

// hostNow returns the newest reading of the host.
func (a *Agent) hostNow() (*timeline.HostSample, bool) {
	s := a.host.Load()
	return s, s != nil
}

// Cost is what the agent takes of the host.
type Cost struct {
	AgentCores float64 // cores used by agent and helper, over the last second
	RSSBytes   float64 // resident, both
	HelperRSS  float64
	HelperCPU  float64 // cores, mean since the helper's start
}

// Cost returns what the agent takes, once the host was read.
func (a *Agent) Cost() (Cost, bool) {
	s, ok := a.hostNow()
	if !ok {
		return Cost{}, false
	}
	var c Cost
	c.AgentCores, _ = s.Get(timeline.AgentCPU)
	c.RSSBytes, _ = s.Get(timeline.AgentRSS)
	src, ok := a.counters.(*remote.Source)
	if !ok {
		return c, true
	}
	pid := src.Stats().PID
	if pid <= 0 {
		return c, true // the helper is between two lives
	}
	p, err := process.NewProcess(int32(pid)) // a process id fits
	if err != nil {
		return c, true // it has just ended
	}
	if m, err := p.MemoryInfo(); err == nil {
		c.HelperRSS = float64(m.RSS)
	}
	if cpu, err := p.CPUPercent(); err == nil {
		c.HelperCPU = cpu / 100
	}
	return c, true
}
