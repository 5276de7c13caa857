package sim_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// record keeps what one sampler tells.
type record struct {
	windows []timeline.Sample
	states  []string // of dram_util
	gaps    int
}

func (r *record) SetGPUs([]timeline.GPU) {}

func (r *record) AddSample(s *timeline.Sample) {
	if s.Has&timeline.GPM != 0 {
		r.windows = append(r.windows, *s)
	}
}

func (r *record) AddCapability(c timeline.Capability) {
	if c.Call == timeline.DRAMUtil.String() {
		r.states = append(r.states, c.State.String())
	}
}

func (r *record) AddEvent(e timeline.Event) {
	if e.Kind == timeline.EventGap {
		r.gaps++
	}
}

const head = "seed 108\nduration 20s\ngpu h100\ntarget main model=Llama-3.1-8B dtype=bf16\nload streams=16 prompt=200..400 output=150..350 0s..20s\n"

func timelineOf(t *testing.T, faults string) *scenario.Timeline {
	t.Helper()
	s, err := scenario.Parse("test.scenario", strings.NewReader(head+faults))
	if err != nil {
		t.Fatal(err)
	}
	tl, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// measure samples a scenario from beginning to end, in the bubble of the caller.
func measure(t *testing.T, tl *scenario.Timeline) (*record, nvml.Stats) {
	t.Helper()
	start := time.Now()
	now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
	devices, err := sim.NewLibrary(sim.Scenario(tl), sim.Options{}, now).Devices()
	if err != nil {
		t.Fatal(err)
	}
	s := nvml.NewSampler(0, devices[0], nvml.DefaultConfig(), now)
	ctx, cancel := context.WithTimeout(t.Context(), tl.Duration())
	defer cancel()
	r := &record{}
	if err := s.Run(ctx, r); err != nil {
		t.Logf("run: %v", err)
	}
	return r, s.Stats()
}

// mean returns the mean of c between two moments of the scenario.
func (r *record) mean(c timeline.Counter, from, to time.Duration) float64 {
	sum, covered := 0.0, 0.0
	for _, w := range r.windows {
		if w.Has.Has(c) && w.Over.Start >= timeline.Instant(time.Hour+from) && w.Over.End <= timeline.Instant(time.Hour+to) {
			sum += w.Value[c] * w.Over.Duration().Seconds()
			covered += w.Over.Duration().Seconds()
		}
	}
	return sum / covered
}

func TestScenarioIsMeasuredAsItIs(t *testing.T) {
	tl := timelineOf(t, "")
	synctest.Test(t, func(t *testing.T) {
		r, stats := measure(t, tl)
		for _, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.TensorUtil, timeline.DRAMUtil} {
			want := (tl.Integral(0, c, 18*time.Second) - tl.Integral(0, c, 2*time.Second)) / 16
			if have := r.mean(c, 2*time.Second, 18*time.Second); math.Abs(have-want) > 0.01*want {
				t.Errorf("%s: %.4f measured, %.4f in the timeline", c, have, want)
			}
		}
		if stats.Windows < 170 || r.gaps != 0 {
			t.Errorf("%d windows and %d gaps, want 180 and none", stats.Windows, r.gaps)
		}
	})
}

func TestInstrumentFaultsShowAsWhatTheyAre(t *testing.T) {
	plain := timelineOf(t, "")
	dram := func(from, to time.Duration) float64 {
		return (plain.Integral(0, timeline.DRAMUtil, to) - plain.Integral(0, timeline.DRAMUtil, from)) / (to - from).Seconds()
	}
	from, to := 6*time.Second, 14*time.Second
	for name, c := range map[string]struct {
		fault  string
		states []string
		gaps   int
		drop   nvml.Drop
		mean   float64 // of DRAM utilization within the fault; zero: not looked at
	}{
		"denominator":   {"counter denominator=1.04 6s..14s", []string{"ok"}, 0, nvml.DropFirst, 1.04 * dram(from, to)},
		"zero":          {"counter zero counter=dram_util 6s..14s", []string{"ok"}, 0, nvml.DropFirst, 0},
		"frozen":        {"counter frozen 6s..14s", []string{"ok"}, 0, nvml.DropFirst, dram(5*time.Second, from)},
		"noise":         {"counter noise=0.05 6s..14s", []string{"ok"}, 0, nvml.DropFirst, dram(from, to)},
		"gap":           {"counter gap 6s..14s", []string{"ok", "stale", "ok"}, 1, nvml.DropFailed, 0},
		"no permission": {"counter no_permission 6s..14s", []string{"ok", "no_permission", "ok"}, 1, nvml.DropFailed, 0},
		"nan":           {"counter nan 6s..14s", []string{"ok"}, 1, nvml.DropNaN, 0},
		"hang":          {"counter hang=900ms 6s..14s", []string{"ok"}, 1, nvml.DropLong, 0},
		"jitter":        {"counter jitter=40ms 6s..14s", []string{"ok"}, 0, nvml.DropFirst, dram(from, to)},
		"unsupported":   {"counter unsupported 6s..14s", []string{"ok", "not_supported"}, 1, nvml.DropFailed, 0},
		"lost":          {"counter lost 6s..14s", []string{"ok", "lost"}, 1, nvml.DropFirst, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tl := timelineOf(t, c.fault)
			synctest.Test(t, func(t *testing.T) {
				r, stats := measure(t, tl)
				if diff := cmp.Diff(c.states, r.states); diff != "" {
					t.Errorf("states (-want +have):\n%s", diff)
				}
				if r.gaps != c.gaps || stats.Dropped[c.drop] == 0 {
					t.Errorf("%d gaps, dropped %v; want %d and some of %s", r.gaps, stats.Dropped, c.gaps, c.drop)
				}
				have := r.mean(timeline.DRAMUtil, from+200*time.Millisecond, to-200*time.Millisecond)
				if c.mean > 0 && !(math.Abs(have-c.mean) <= 0.02*c.mean) {
					t.Errorf("dram util %.4f within the fault, want %.4f", have, c.mean)
				}
			})
		})
	}
}

func TestOneCounterFailsAloneWhereTheScenarioSaysSo(t *testing.T) {
	for _, fault := range []string{"counter nan counter=dram_util", "counter unsupported counter=dram_util"} {
		tl := timelineOf(t, fault)
		synctest.Test(t, func(t *testing.T) {
			r, _ := measure(t, tl)
			if want := timeline.CounterSet(1<<timeline.DRAMUtil - 1); len(r.windows) < 170 || r.windows[50].Has != want {
				t.Errorf("%s: %d windows that hold %b, want 180 that hold %b", fault, len(r.windows), r.windows[50].Has, want)
			}
		})
	}
}

func TestFaultThatMakesNoSenseIsRefused(t *testing.T) {
	now := func() timeline.Instant { return 1 }
	for _, fault := range []string{"counter nan counter=power", "counter lag=soon", "counter hang=-1s"} {
		w := sim.Scenario(timelineOf(t, fault))
		if _, err := sim.NewLibrary(w, sim.Options{}, now).Devices(); err == nil {
			t.Errorf("%s: devices were made, want an error", fault)
		}
		if _, err := sim.NewPage(t.TempDir()+"/page", w, sim.Options{}, now); err == nil {
			t.Errorf("%s: a page was made, want an error", fault)
		}
	}
}

func TestShippedScenariosCanBePlayed(t *testing.T) {
	for _, name := range scenario.Library() {
		s, err := scenario.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		tl, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		p, err := sim.NewPage(t.TempDir()+"/page", sim.Scenario(tl), sim.Options{}, func() timeline.Instant { return 1 })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Contains(scenario.Library(), "bad_counters") {
		t.Error("the scenario of bad counters is gone, which this test is for")
	}
}
