package sim_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// timelineFrom plays one of the scenarios that the physics is tested with.
func timelineFrom(t *testing.T, name string) *scenario.Timeline {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "correlate", "scenario", "testdata", name+".scenario"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	s, err := scenario.Parse(name, f)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// coarse is a device whose averages are rounded.
type coarse struct {
	nvml.Device
	to float64
}

func (c coarse) Between(older, newer int, r *nvml.Reading) {
	c.Device.Between(older, newer, r)
	for i, v := range r.Value {
		r.Value[i] = math.Round(v/c.to) * c.to
	}
}

// worstOff returns how far the windows' integrals are off the timeline's between the first and the last window after two
// seconds, and the windows.
func worstOff(t *testing.T, tl *scenario.Timeline, opts sim.Options, round float64) (float64, []timeline.Sample) {
	t.Helper()
	start := time.Now()
	now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
	devices, err := sim.NewLibrary(sim.Scenario(tl), opts, now).Devices()
	if err != nil {
		t.Fatal(err)
	}
	dev := devices[0]
	if round > 0 {
		dev = coarse{dev, round}
	}
	ctx, cancel := context.WithTimeout(t.Context(), min(tl.Duration(), 34*time.Second))
	defer cancel()
	r := &record{}
	if err := nvml.NewSampler(0, dev, nvml.DefaultConfig(), now).Run(ctx, r); err != nil {
		t.Fatal(err)
	}
	windows := r.windows
	for len(windows) > 0 && windows[0].Over.Start < timeline.Instant(time.Hour+2*time.Second) {
		windows = windows[1:]
	}
	worst := 0.0
	for _, c := range []timeline.Counter{timeline.SMUtil, timeline.TensorUtil, timeline.DRAMUtil} {
		at := func(i timeline.Instant) float64 { return tl.Integral(0, c, i.Sub(timeline.Instant(time.Hour))) }
		sum := 0.0
		for _, w := range windows {
			sum += w.Value[c] * w.Over.Duration().Seconds()
		}
		want := at(windows[len(windows)-1].Over.End) - at(windows[0].Over.Start)
		worst = max(worst, math.Abs(sum-want)/want)
	}
	return worst, windows
}

func TestWindowsAddUpHoweverTheDriverRefreshes(t *testing.T) {
	for _, name := range []string{"decode_b16", "prefill_mixed", "power_cap_mixed", "neighbour", "host_stall_periodic"} {
		tl := timelineFrom(t, name)
		line := ""
		for _, opts := range []sim.Options{
			{Refresh: time.Millisecond},
			{Refresh: 97 * time.Millisecond},
			{},
			{Jitter: 10 * time.Millisecond},
			{Refresh: 103 * time.Millisecond},
			{Refresh: 103 * time.Millisecond, Jitter: 10 * time.Millisecond},
		} {
			synctest.Test(t, func(t *testing.T) {
				off, windows := worstOff(t, tl, opts, 0)
				line += fmt.Sprintf("  %.2f", 100*off)
				if !(off <= 0.005) {
					t.Errorf("%s, refreshed every %v with %v jitter: %.2f %% off", name, opts.Refresh, opts.Jitter, 100*off)
				}
				for i, w := range windows[1:] {
					if w.Over.Start != windows[i].Over.End {
						t.Errorf("%s: a window starts at %v, the one before ends at %v", name, w.Over.Start, windows[i].Over.End)
					}
				}
			})
		}
		t.Logf("%-20s percent off, refreshed every 1, 97, 100, 100 (jitter 10), 103, 103 ms (jitter 10):%s", name, line)
	}
}

func TestWindowsOfADriverWithoutStepsAreAsLongAsTheCallsAreApart(t *testing.T) {
	tl := timelineFrom(t, "prefill_mixed")
	synctest.Test(t, func(t *testing.T) {
		_, windows := worstOff(t, tl, sim.Options{Refresh: time.Millisecond}, 0)
		for _, w := range windows {
			if d := w.Over.Duration() - nvml.DefaultConfig().Period; d.Abs() > 12*time.Millisecond {
				t.Errorf("a window of %v, and the calls are %v apart", w.Over.Duration(), nvml.DefaultConfig().Period)
			}
		}
	})
}

func TestCoarseAveragesDoNotMisleadTheLengths(t *testing.T) {
	tl := timelineFrom(t, "prefill_mixed")
	for _, to := range []float64{0.0001, 0.001} {
		synctest.Test(t, func(t *testing.T) {
			off, _ := worstOff(t, tl, sim.Options{}, to)
			t.Logf("averages rounded to %v: %.2f %% off", to, 100*off)
			if !(off <= 0.01) {
				t.Errorf("averages rounded to %v: %.2f %% off, want 1 %% at most", to, 100*off)
			}
		})
	}
}
