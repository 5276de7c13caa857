package calibration

import (
	"log/slog"
	"maps"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Match returns a sink in front of next that puts into eta, before next gets a list of GPUs, what f says of the GPUs in
// it. Nothing else may write to eta, and next reads it nowhere but when it gets a list. Lists come one at a time.
func Match(f File, eta map[string]verdict.Eta, next timeline.GPUSink, log *slog.Logger) timeline.GPUSink {
	return &matched{GPUSink: next, file: f, eta: eta, log: log, said: map[string]string{}}
}

// matched passes all but lists of GPUs.
type matched struct {
	timeline.GPUSink
	file File
	eta  map[string]verdict.Eta
	log  *slog.Logger
	said map[string]string // by GPU: what was said of it, so that a helper that starts again and again says it once
}

// SetGPUs fills in the calibration of the GPUs in the list. What was measured under another driver does not count.
func (m *matched) SetGPUs(gpus []timeline.GPU) {
	clear(m.eta)
	maps.Copy(m.eta, m.file.Eta(gpus))
	for _, g := range gpus {
		e, ok := m.file.Of(g)
		if m.said[g.UUID] == g.Driver {
			continue
		}
		m.said[g.UUID] = g.Driver
		switch {
		case ok:
			m.log.Info("gpu calibrated", slog.String("gpu", g.UUID), slog.Float64("eta_bandwidth", e.EtaBandwidth), slog.Time("measured", e.Time))
		case e.UUID != "":
			m.log.Warn("calibration is of another driver and not used", slog.String("gpu", g.UUID),
				slog.String("driver", g.Driver), slog.String("calibrated", e.Driver))
		}
	}
	m.GPUSink.SetGPUs(gpus)
}

// AddInventory passes what is on and around a GPU, to a sink that wants it.
func (m *matched) AddInventory(v timeline.Inventory) {
	if sink, ok := m.GPUSink.(timeline.InventorySink); ok {
		sink.AddInventory(v)
	}
}

var _ timeline.InventorySink = (*matched)(nil)
