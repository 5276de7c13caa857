package agent

import (
	"context"
	"fmt"
	"os"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

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
	p, err := process.NewProcess(int32(src.Stats().PID)) //nolint:gosec // a process id fits
	if err != nil {
		return c, true // the helper is between two lives
	}
	if m, err := p.MemoryInfo(); err == nil {
		c.HelperRSS = float64(m.RSS)
	}
	if cpu, err := p.CPUPercent(); err == nil {
		c.HelperCPU = cpu / 100
	}
	return c, true
}
