package agent

import (
	"strconv"

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
	gpus := a.store.GPUs()
	for i, st := range stats {
		if i >= len(gpus) {
			break
		}
		rate := 0.0
		if st.Period > 0 {
			rate = 1 / st.Period.Seconds()
		}
		add(exporters.SelfSamplerRate, rate, gpus[i].UUID)
		add(exporters.SelfSamplerOverruns, float64(st.Missed), gpus[i].UUID)
	}
}
