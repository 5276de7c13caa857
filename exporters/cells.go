package exporters

import (
	"math"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// gauges ties each gauge of a GPU to the counter it shows.
var gauges = map[ID]timeline.Counter{
	GPUOccupancy: timeline.SMOccupancy, GPUSMClock: timeline.SMClock, GPUMemClock: timeline.MemClock, GPUPower: timeline.Power,
	GPUPowerLimit: timeline.PowerLimit, GPUMemUsed: timeline.MemUsed, GPUTemperature: timeline.Temperature,
	GPUDRAMCacheHit:      timeline.DRAMCacheHit,
	GPUMemTemperature:    timeline.MemTemperature,
	GPUTemperatureMargin: timeline.TemperatureMargin,
	GPUPCIeGen:           timeline.PCIeGen,
	GPUPCIeWidth:         timeline.PCIeWidth,
	GPURowRemapPending:   timeline.RowRemapPending,
	GPURowRemapFailure:   timeline.RowRemapFailure,
}

// integrals ties each counter of a GPU to the counter that it integrates: the mean over a cell is a fraction or a growth a
// second.
var integrals = map[ID]timeline.Counter{
	GPUSMActive: timeline.SMUtil, GPUTensorActive: timeline.TensorUtil, GPUGraphicsActive: timeline.GraphicsUtil,
	GPUEnergy:            timeline.Energy,
	GPUPCIeSent:          timeline.PCIeTx,
	GPUPCIeReceived:      timeline.PCIeRx,
	GPUNVLinkSent:        timeline.NVLinkTx,
	GPUNVLinkReceived:    timeline.NVLinkRx,
	GPUIntegerActive:     timeline.IntegerUtil,
	GPUFP32Active:        timeline.FP32Util,
	GPUFP16Active:        timeline.FP16Util,
	GPUPCIeReplays:       timeline.PCIeReplays,
	GPUECCCorrected:      timeline.ECCCorrected,
	GPUECCUncorrected:    timeline.ECCUncorrected,
	GPURowsCorrectable:   timeline.RemappedCorrectable,
	GPURowsUncorrectable: timeline.RemappedUncorrectable,
	GPUXids:              timeline.Xids,
}

// AddCell takes in one cell: its target's series and those of its GPUs.
func (s *State) AddCell(c *correlate.Cell) {
	s.newest = max(s.newest, c.Span.End)
	g := s.target(c.Target, c.Span.Start)
	g.at, g.evidence = max(g.at, c.Span.End), c.Level
	if c.Decode {
		seconds := c.Span.Duration().Seconds()
		g.add(Decode, boundIndex(c.Verdict.Label), seconds)
		if c.Verdict.Label != timeline.Undetermined {
			sh := c.Verdict.Shares
			for i, v := range []float64{sh.Memory, sh.Compute, sh.Launch, sh.Host, sh.Other} {
				g.add(DecodeShare, i, v*seconds)
			}
		}
	}
	g.add(Tokens, tokensObserved, c.Tokens)
	g.addMeasure(Tokens, tokensOutput, c.OutputTokens)
	g.addMeasure(Tokens, tokensPrompt, c.PromptTokens)
	g.addMeasure(Preemptions, 0, c.Preemptions)
	g.addMeasure(Steps, 0, c.Steps)
	g.add(Throttled, 0, c.ThrottledS)
	if c.DRAMBytes.OK() && c.ModelledBytes.OK() {
		g.add(DRAMBytes, 0, c.DRAMBytes.Value)
		g.add(ModelledBytes, 0, c.ModelledBytes.Value)
	}
	g.setMeasure(WindowTPOT, c.WindowTPOT)
	g.setMeasure(BatchSize, c.Batch)
	g.setMeasure(Waiting, c.Waiting)
	g.setMeasure(KVUsage, c.KVUsage)
	g.setMeasure(Coverage, c.Coverage)
	g.setMeasure(EngineTPOT, c.EngineTPOT)
	for i := range c.PerGPU {
		s.addGPUCell(c, &c.PerGPU[i])
	}
}

// boundIndex returns the position of l among the bounds; a label that is not one of them is undetermined.
func boundIndex(l timeline.Label) int {
	labels := timeline.Labels()
	if i := slices.Index(labels, l); i >= 0 {
		return i
	}
	return slices.Index(labels, timeline.Undetermined)
}

// addGPUCell takes in one GPU's part of a cell. A GPU that two targets share is accounted once, under the target whose
// cell came first: its traffic exists once.
func (s *State) addGPUCell(c *correlate.Cell, p *correlate.GPUCell) {
	if c.Span.Start < s.owned[p.UUID] {
		return
	}
	key := gpuKey{p.UUID, targetName(c.Target)}
	g := s.byGPU[key]
	if g == nil {
		g = s.newGroup(OfGPU, c.Span.Start, key.uuid, key.target)
		s.byGPU[key] = g
	}
	s.owned[p.UUID], g.at = c.Span.End, max(g.at, c.Span.End)
	// A GPU without windows of activity is back with its first readings.
	if p.CoveredS > 0 || slices.ContainsFunc(p.Counters[:], correlate.Mean.OK) {
		g.covered = c.Span.Start
		if c.Span.Start >= g.lost {
			g.lost = 0
		}
	}
	g.add(GPUCovered, 0, p.CoveredS)
	g.addMeasure(GPUDRAMBytes, 0, p.DRAMBytes)
	for id, counter := range integrals {
		if m := p.Counters[counter]; m.OK() {
			g.add(id, 0, m.Value*m.CoveredS)
		}
	}
	for i, reason := range catalogue[GPUThrottled].Values {
		g.add(GPUThrottled, i, p.ThrottledS[reason])
	}
	for id, counter := range gauges {
		m := p.Counters[counter]
		g.set(id, m.Value, m.OK())
	}
}

// shown returns what a series reads. What a GPU counts one by one is whole: cells spread it over the time between two
// readings.
func (m *Metric) shown(v float64) float64 {
	if m.Scope == OfGPU && m.Kind == Counter && strings.HasPrefix(m.Unit, "{") {
		return math.Round(v)
	}
	return v
}
