package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
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
	a.selfProbes(add)
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

// selfProbes reads what the proxy inside the agent counts, and what probes elsewhere were refused.
func (a *Agent) selfProbes(add func(exporters.ID, float64, ...string)) {
	refused := a.refused.Counts()
	for _, why := range []string{"old", "before_boot", "future"} {
		add(exporters.SelfIngestRefused, float64(refused[why]), why)
	}
	if a.relay == nil {
		return
	}
	st := a.relay.Stats()
	for _, s := range []timeline.StampSource{timeline.StampKernel, timeline.StampUser} {
		add(exporters.SelfProbeEvents, float64(st.Events[s]), s.String())
	}
	for _, q := range []float64{0.5, 0.99} {
		add(exporters.SelfProbeLag, (st.Wake.Quantile(q) + st.Hold.Quantile(q)).Seconds(), strconv.FormatFloat(q, 'g', -1, 64))
	}
	add(exporters.SelfProbeInFlight, float64(st.InFlight))
	add(exporters.SelfProbePassed, float64(st.Passed-min(st.Passed, st.PassErrors)), "ok")
	add(exporters.SelfProbePassed, float64(st.PassErrors), "error")
	add(exporters.SelfProbeStreamed, float64(st.StreamedReq))
}

// selfSampler reads what the samplers count of themselves.
func (a *Agent) selfSampler(add func(exporters.ID, float64, ...string)) {
	if src, ok := a.counters.(*remote.Source); ok {
		st := src.Stats()
		add(exporters.SelfHelperRestarts, float64(st.Restarts))
		add(exporters.SelfHelperAbandoned, float64(st.AbandonedNow))
	}
	samplers, unread, now := a.samplers(), a.unread(), a.clock.Now()
	for i, g := range a.store.GPUs() {
		st, ok := samplers[i]
		if !ok {
			continue
		}
		rate, ok := a.told.rate(i, now)
		if !ok || slices.Contains(unread, i) {
			rate = 0
		}
		add(exporters.SelfSamplerRate, rate, g.UUID)
		add(exporters.SelfSamplerOverruns, float64(st.Missed), g.UUID)
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
