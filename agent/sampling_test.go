package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// shaky is a source whose GPU tells a critical error once it is told to.
type shaky struct {
	fail chan struct{}

	mu     sync.Mutex
	bursts []time.Duration
}

func (f *shaky) Run(ctx context.Context, sink timeline.GPUSink) error {
	sink.SetGPUs([]timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true}})
	if around, ok := sink.(timeline.InventorySink); ok {
		around.AddInventory(timeline.Inventory{At: 1, NUMANode: 1, NVLinks: []timeline.NVLink{{Up: true}}, ProcessesKnown: true})
	}
	select {
	case <-f.fail:
		sink.AddEvent(timeline.Event{At: 1, Kind: timeline.EventXid, Detail: "Xid 79"})
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

func (f *shaky) Burst(d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bursts = append(f.bursts, d)
	return nil
}

func (f *shaky) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bursts)
}

func TestBurstsBeginAtAnErrorAndWhenAskedForAndAreRecorded(t *testing.T) {
	t.Parallel()
	src := &shaky{fail: make(chan struct{})}
	cfg := quiet(t)
	ag := start(t, cfg, agent.Deps{Counters: src})
	until(t, 10*time.Second, "what is around the GPU", func() bool { return strings.Contains(ag.get(t, "/healthz"), `"numa_node"`) })
	must(t, burst.Ask(t.Context(), cfg.Socket, time.Second))
	if src.count() != 1 {
		t.Fatalf("%d bursts after one was asked for", src.count())
	}
	until(t, 5*time.Second, "the end of the burst", func() bool {
		return !strings.Contains(ag.get(t, "/healthz"), `"running_s"`)
	})
	close(src.fail)
	until(t, 10*time.Second, "a burst at the error", func() bool { return src.count() == 2 })
	page := ag.get(t, "/healthz")
	for _, want := range []string{`"last_why": "the driver told a critical error"`, `"numa_node": 1`, `"nvlinks_up": 1`, `"processes": 0`} {
		if !strings.Contains(page, want) {
			t.Errorf("health lacks %s:\n%s", want, page)
		}
	}
	if n := ag.log.count(`msg="burst begins"`); n != 2 {
		t.Errorf("the log tells of %d bursts, want 2", n)
	}
	ag.stop(t)
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	var why []string
	for e, err := range r.Events() {
		must(t, err)
		if e.Kind == timeline.EventBurst || e.Kind == timeline.EventInventory {
			why = append(why, e.Detail)
		}
	}
	if got := strings.Join(why, "; "); got != "NUMA node 1, 1 of 1 NVLinks up; 1s: asked for; 30s: the driver told a critical error" {
		t.Errorf("recorded: %s", got)
	}
}

func TestASourceThatKnowsNoBurstsSaysSo(t *testing.T) {
	t.Parallel()
	cfg := quiet(t)
	ag := start(t, cfg, agent.Deps{})
	if err := burst.Ask(t.Context(), cfg.Socket, time.Second); err == nil || !strings.Contains(err.Error(), burst.ErrNoSource.Error()) {
		t.Errorf("Ask() = %v, want %v", err, burst.ErrNoSource)
	}
	ag.stop(t)
}

func TestTheFullProfileTellsWhatSamplingTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, small)
	cfg := w.config(t)
	cfg.Metrics.Profile = "full"
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	page := ""
	until(t, 20*time.Second, "the series", func() bool {
		page = ag.get(t, "/metrics")
		return strings.Contains(page, `tpotscope_nvml_call_seconds{call="gpm_sample",quantile="0.99"}`) && strings.Contains(page, `,state="ok"} 1`)
	})
	uuid := w.tl.GPUs()[0].UUID
	for _, want := range []string{
		`tpotscope_gpu_capability{call="dram_util",hw_id="` + uuid + `",state="ok"} 1`,
		`tpotscope_sampler_period_seconds{hw_id="` + uuid + `",tier="window"} 0.1`,
		`tpotscope_sampler_period_configured_seconds{tier="slow"} 1`,
		`tpotscope_sampler_duty_ratio{hw_id="` + uuid + `"} 0`,
		`tpotscope_sampler_drops_total{hw_id="` + uuid + `",reason="first"} 1`,
		`tpotscope_nvml_call_seconds{call="event_reasons",quantile="0.5"} `,
		`tpotscope_nvml_calls_total{call="event_reasons",le="0.001024"} `, `tpotscope_nvml_calls_total{call="event_reasons",le="+Inf"} `,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("series lack %s", want)
		}
	}
	if strings.Count(page, `tpotscope_gpu_capability{call="dram_util",hw_id="`+uuid+`"`) != 1 {
		t.Error("a call has more than one state")
	}
	health := ag.get(t, "/healthz")
	for _, want := range []string{`"window_period_s": 0.1`, `"dropped_windows"`, `"mode": "auto"`} {
		if !strings.Contains(health, want) {
			t.Errorf("health lacks %s:\n%s", want, health)
		}
	}
	ag.stop(t)
}
