package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// steadyWorld is plain decoding, to which the scenes below add what happens.
const steadyWorld = `seed 7
duration 90s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
engine budget=2048 chunk=1024
load streams=16 prompt=100..200 output=150..250 0s..90s
`

// cappedWorld is a smaller model whose decoding draws less than the board may, until it may less.
const cappedWorld = `seed 105
duration 90s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=16 prompt=200..400 output=150..350 0s..90s
`

// eventsOf tells the scenario's requests to an agent as a client's probe does: each token when it is due, stamped with
// when it was due, so that a host that is late changes nothing. It returns what ends that.
func (w *world) eventsOf(t *testing.T, socket string) (end func()) {
	t.Helper()
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process, cfg.BootID, cfg.Now = "unix:"+socket, "proxy", "p1", w.clock.BootID(), w.clock.Now
	c, err := ingest.NewClient(cfg)
	must(t, err)
	type due struct {
		at timeline.Instant
		do func()
	}
	var list []due
	for i, r := range w.tl.Requests() {
		if len(r.Tokens) == 0 {
			continue
		}
		ref, sent := uint64(i+1), w.epoch.Add(r.Arrival)
		first, last := w.epoch.Add(r.Tokens[0]), w.epoch.Add(r.Tokens[len(r.Tokens)-1])
		open := timeline.Request{Ref: ref, Sent: sent, Streaming: true, PromptTokens: r.PromptTokens, PromptKnown: true}
		list = append(list, due{sent, func() { c.OpenRequest(&open) }})
		for _, at := range r.Tokens {
			e := timeline.TokenEvent{Ref: ref, At: w.epoch.Add(at), After: w.epoch.Add(at), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent}
			list = append(list, due{e.At, func() { c.AddToken(e) }})
		}
		if r.Finish > 0 {
			closed := open
			closed.First, closed.Last, closed.Done = first, last, last
			closed.OutputTokens, closed.FirstTokens, closed.Events, closed.Counted = len(r.Tokens), 1, len(r.Tokens), timeline.CountIDs
			list = append(list, due{last, func() { c.CloseRequest(&closed) }})
		}
	}
	slices.SortStableFunc(list, func(a, b due) int { return int(a.at.Sub(b.at)) })
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for now := w.clock.Now(); len(list) > 0 && list[0].at <= now; list = list[1:] {
				list[0].do()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		return nil
	})
	end = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// clocksIn returns how many readings of the GPU's clock a recording has in a span, and how many of them came less than
// sixty milliseconds after the one before: in plain sampling few do, after one that was late.
func clocksIn(t *testing.T, dir string, from timeline.Instant, d time.Duration) (all, near int) {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	var last timeline.Instant
	for s, err := range r.Samples() {
		must(t, err)
		at := s.Over.Start
		if !s.Has.Has(timeline.SMClock) || at < from || at >= from.Add(d) {
			continue
		}
		if all++; all > 1 && at.Sub(last) < 60*time.Millisecond {
			near++
		}
		last = at
	}
	return all, near
}

// burstsOf returns the bursts that a recording tells of.
func burstsOf(t *testing.T, dir string) []timeline.Event {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	var list []timeline.Event
	for e, err := range r.Events() {
		must(t, err)
		if e.Kind == timeline.EventBurst {
			list = append(list, *e)
		}
	}
	return list
}

// What happens in a scenario begins one burst, by the real helper and the simulated driver, and what it read is
// recorded; a helper that dies in it is followed by one that goes on.
func TestWhatHappensInAScenarioBeginsOneBurst(t *testing.T) {
	t.Parallel()
	bin := buildBinaries(t)
	for name, tt := range map[string]struct {
		text, why string
		at        time.Duration // of what happens
		kill      bool
	}{
		"nothing happens":            {text: steadyWorld},
		"half of the bandwidth goes": {steadyWorld + "fault bandwidth_loss 50% 36s..90s\n", "30s: time per output token rose", 36 * time.Second, false},
		"the host stalls":            {steadyWorld + "fault host_stall 25ms 36s..90s\n", "30s: time per output token rose", 36 * time.Second, true},
		"power is capped":            {cappedWorld + "fault power_cap 320W 25s..90s\n", "30s: throttling began", 25 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "half of the bandwidth goes" && os.Getenv(allVar) != "all" {
				t.Skipf("takes another minute, and is much like a host that stalls: set %s=all to run it too", allVar)
			}
			w := newWorld(t, tt.text)
			path := filepath.Join(t.TempDir(), "page")
			page, err := sim.NewPage(path, sim.Scenario(w.tl), sim.Options{}, w.clock.Now)
			must(t, err)
			inBackground(t, page.Run)
			cfg := w.config(t)
			cfg.Proxy.Listen, cfg.Proxy.Upstream = "", ""
			cfg.Engine.Cell, cfg.Engine.Lateness = 500*time.Millisecond, 5*time.Second
			cfg.NVML.Source, cfg.NVML.Helper, cfg.NVML.Library = agent.SourceHelper, bin.Helper, bin.Driver
			ag := start(t, cfg, agent.Deps{HelperEnv: []string{sim.EnvPage + "=" + path}})
			end := w.eventsOf(t, cfg.Socket)
			until(t, time.Minute, "what happens, and then some", func() bool {
				return w.clock.Now().Sub(w.epoch) > max(tt.at+6*time.Second, 45*time.Second)
			})
			began := func() bool { return ag.log.count(`msg="burst begins"`) > 0 }
			if tt.why != "" {
				until(t, time.Minute, "a burst", began)
				begin := w.clock.Now()
				if tt.kill {
					until(t, 10*time.Second, "the burst", func() bool { return w.clock.Now().Sub(begin) > 2*time.Second })
					must(t, syscall.Kill(helperOf(t, ag), syscall.SIGKILL))
				}
				until(t, time.Minute, "more of the burst", func() bool { return w.clock.Now().Sub(begin) > 11*time.Second })
			}
			end()
			ag.stop(t)
			bursts := burstsOf(t, cfg.RecordDir())
			if tt.why == "" {
				if len(bursts) != 0 {
					t.Errorf("bursts %v, want none", bursts)
				}
				return
			}
			if len(bursts) != 1 || bursts[0].Detail != tt.why || bursts[0].Target != "main" || bursts[0].At < w.epoch.Add(tt.at) {
				t.Fatalf("bursts %v, want one %q of main after %v", bursts, tt.why, tt.at)
			}
			at := bursts[0].At
			all, before := clocksIn(t, cfg.RecordDir(), at.Add(-15*time.Second), 14*time.Second)
			_, within := clocksIn(t, cfg.RecordDir(), at.Add(time.Second), 3*time.Second)
			_, late := clocksIn(t, cfg.RecordDir(), at.Add(5*time.Second), 6*time.Second)
			if all == 0 || before > all/4 || within < 10 || late < 10 {
				t.Errorf("clocks were read closely %d times of %d before the burst, %d times in it, %d times later on; want few, then most", before, all, within, late)
			}
			t.Logf("clocks were read closely %d times of %d before the burst, %d times in 3 s of it, %d times in 6 s later on; it began %v after what happened",
				before, all, within, late, at.Sub(w.epoch)-tt.at)
		})
	}
}

// helperOf returns the process of the helper.
func helperOf(t *testing.T, ag *running) int {
	t.Helper()
	var pid int
	_, rest, _ := strings.Cut(ag.get(t, "/healthz"), `"helper": {`)
	_, rest, _ = strings.Cut(rest, `"pid": `)
	if _, err := fmt.Sscan(rest, &pid); err != nil || pid <= 0 {
		t.Fatalf("no helper runs: %v", err)
	}
	return pid
}
