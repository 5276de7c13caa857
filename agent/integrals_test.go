package agent_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// integrated are the scenarios whose integrals are compared: steady and not, one GPU and two, and one with a stall that comes
// back just as the driver's refreshes do.
var integrated = []string{"decode_b16", "prefill_mixed", "power_cap_mixed", "neighbour", "host_stall_periodic", "preemption", "two_targets"}

const (
	settled = 2 * time.Second  // from where on it is compared
	played  = 33 * time.Second // up to where
)

// TestWhatAnAgentMeasuresAddsUpToTheScenario plays scenarios at the speed of real time into pages that the driver's library
// answers from, and holds what an agent recorded of each GPU against the scenario's own integrals.
func TestWhatAnAgentMeasuresAddsUpToTheScenario(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 35 s of real time: scenarios are played at their own speed")
	}
	bin := buildBinaries(t)
	plays := make([]*play, len(integrated)) // all at once: each takes half a minute
	for i, name := range integrated {
		plays[i] = newPlay(t, bin, name)
	}
	for i, name := range integrated {
		p := plays[i]
		until(t, 3*played, "the scenario to be played", func() bool { return p.clock.Now() > p.epoch.Add(played) })
		p.ag.stop(t)
		compareIntegrals(t, name, p)
	}
}

// play is a scenario that is played, and an agent that measures it.
type play struct {
	tl    *scenario.Timeline
	clock *hostclock.Clock
	epoch timeline.Instant
	ag    *running
	dir   string // of the recording
}

func newPlay(t *testing.T, bin binaries, name string) *play {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "correlate", "scenario", "testdata", name+".scenario"))
	must(t, err)
	defer func() { _ = f.Close() }() // it was only read
	s, err := scenario.Parse(name, f)
	must(t, err)
	p := &play{}
	p.tl, err = s.Run()
	must(t, err)
	p.clock, err = hostclock.New()
	must(t, err)
	path := filepath.Join(t.TempDir(), "page")
	p.epoch = p.clock.Now()
	page, err := sim.NewPage(path, sim.Scenario(p.tl), sim.Options{}, p.clock.Now)
	must(t, err)
	inBackground(t, page.Run)
	cfg := quiet(t)
	cfg.NVML.Source, cfg.NVML.Helper, cfg.NVML.Library = agent.SourceHelper, bin.Helper, bin.Driver
	p.ag, p.dir = start(t, cfg, agent.Deps{HelperEnv: []string{sim.EnvPage + "=" + path}}), cfg.RecordDir()
	return p
}

// sums are what windows of one counter add up to, and what is there in the same time.
type sums struct{ measured, there float64 }

func compareIntegrals(t *testing.T, name string, p *play) {
	t.Helper()
	tl, epoch := p.tl, p.epoch
	counters := []timeline.Counter{timeline.DRAMUtil, timeline.SMUtil, timeline.TensorUtil}
	r, err := record.OpenReader(p.dir)
	must(t, err)
	gpus := tl.GPUs()
	all := make([]map[timeline.Counter]*sums, len(gpus))
	runs := make([]timeline.Span, len(gpus)) // windows without a hole
	covered := make([]time.Duration, len(gpus))
	for i := range all {
		all[i] = map[timeline.Counter]*sums{}
		for _, c := range counters {
			all[i][c] = &sums{}
		}
	}
	// Windows that follow each other without a hole are compared as one: what matters is what they add up to.
	end := func(gpu int) {
		from, to := runs[gpu].Start.Sub(epoch), runs[gpu].End.Sub(epoch)
		covered[gpu] += to - from
		for _, c := range counters {
			all[gpu][c].there += tl.Integral(gpu, c, to) - tl.Integral(gpu, c, from)
		}
		runs[gpu] = timeline.Span{}
	}
	for s, err := range r.Samples() {
		must(t, err)
		if !s.Has.Has(timeline.DRAMUtil) || s.Over.Start < epoch.Add(settled) || s.Over.End > epoch.Add(played) {
			continue
		}
		run := &runs[s.GPU]
		if !run.Start.IsZero() && run.End != s.Over.Start {
			end(s.GPU)
		}
		if run.Start.IsZero() {
			run.Start = s.Over.Start
		}
		run.End = s.Over.End
		for _, c := range counters {
			all[s.GPU][c].measured += s.Value[c] * s.Over.Duration().Seconds()
		}
	}
	for gpu := range gpus {
		end(gpu)
		if covered[gpu] < 25*time.Second {
			t.Skipf("this machine is too busy: only %v of %v could be measured of %s", covered[gpu], played-settled, name)
		}
		var line strings.Builder
		for _, c := range counters {
			s := all[gpu][c]
			off := (s.measured - s.there) / max(s.there, 1e-3)                      // one is idle
			_, _ = fmt.Fprintf(&line, "  %s %.2f s, %+.2f %%", c, s.there, 100*off) // into memory
			// A counter that reads little is in few windows, and what the driver's refresh cuts off of one is a larger part of
			// it: an error of a two-thousandth of the time is none either.
			if math.Abs(off) > 0.01 && math.Abs(s.measured-s.there) > covered[gpu].Seconds()/2000 {
				t.Errorf("%s, GPU %d: %s adds up to %.3f s, and was %.3f s: %+.2f %%", name, gpu, c, s.measured, s.there, 100*off)
			}
		}
		bandwidth := gpus[gpu].MaxMemClockHz * 2 * float64(gpus[gpu].BusWidthBits) / 8
		t.Logf("%-20s GPU %d over %v: %.3f TB%s", name, gpu, covered[gpu].Round(10*time.Millisecond), all[gpu][timeline.DRAMUtil].there*bandwidth/1e12, &line)
	}
}
