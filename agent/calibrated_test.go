package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// What a node was calibrated to is used, said, and recorded, so that a replay says the same.
func TestAnAgentJudgesByItsCalibration(t *testing.T) {
	t.Parallel()
	w, live := newWorld(t, small), &kept{}
	cfg := w.config(t)
	g := w.tl.GPUs()[0]
	var f calibration.File
	f.Put(calibration.Entry{UUID: g.UUID, Driver: sim.DefaultDriver, EtaBandwidth: 0.95, Time: time.Now()})
	must(t, f.Save(cfg.StateDir))
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg), Sinks: []exporters.Sink{live}, Simulated: true})
	w.play(t, "http://"+ag.doors.Proxy)
	ag.stop(t)
	if ag.log.count("gpu calibrated") == 0 {
		t.Error("the log does not say that the GPU is calibrated")
	}
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	replayed := &kept{}
	_, err = replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		replayed.cells = append(replayed.cells, o.Cells...)
		return nil
	}, nil)
	must(t, err)
	for name, cells := range map[string][]correlate.Cell{"live": live.cells, "replayed": replayed.cells} {
		said := 0
		for i := range cells {
			if strings.HasSuffix(cells[i].Verdict.Reason, " (calibrated)") {
				said++
			}
		}
		if said == 0 {
			t.Errorf("%s: none of %d cells rests on the calibration", name, len(cells))
		}
	}
}
