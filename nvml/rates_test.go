package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func TestCalibrationLearnsCostAndCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := nvml.DefaultConfig()
		cfg.FastPeriod = 20 * time.Millisecond
		r, stats, err := sample(t, cfg, 10*time.Second, func(f *fake) {
			f.took = func(call nvml.Call, _ time.Duration) time.Duration {
				if call == nvml.CallFields {
					return 300 * time.Microsecond
				}
				return 10 * time.Microsecond
			}
			f.alter = func(r *nvml.Reading) { // a driver that refreshes clocks each 50 ms and power each 100 ms
				at := time.Since(f.clock.start)
				if r.Has.Has(timeline.SMClock) {
					r.Value[timeline.SMClock] = 1e9 + float64(at/(50*time.Millisecond))
				}
				if r.Has.Has(timeline.Power) {
					r.Value[timeline.Power] = 400 + float64(at/(100*time.Millisecond))
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if !stats.Calibrated || !about(stats.Update[timeline.SMClock], 50*time.Millisecond) || !about(stats.Update[timeline.Power], 100*time.Millisecond) {
			t.Errorf("clocks change each %v and power each %v, want 50 and 100 ms", stats.Update[timeline.SMClock], stats.Update[timeline.Power])
		}
		if u := stats.Update[timeline.MemClock]; u != 0 {
			t.Errorf("the memory clock, which is steady, changes each %v", u)
		}
		fields := stats.Calls[nvml.CallFields]
		if p50, p99 := fields.Quantile(0.5), fields.Quantile(0.99); fields.Count < 60 || p50 < 256*time.Microsecond || p99 > 512*time.Microsecond {
			t.Errorf("%d calls, p50 %v, p99 %v; want 60 or more of 300 us", fields.Count, p50, p99)
		}
		late := 0
		for _, s := range r.with(timeline.SMClock) {
			if s.Over.Start.Sub(timeline.Instant(time.Hour)) > 5*time.Second {
				late++
			}
		}
		if late < 95 || late > 105 || !about(stats.FastPeriod, 50*time.Millisecond) {
			t.Errorf("%d readings in 5 s at a period of %v: want no faster than clocks change", late, stats.FastPeriod)
		}
	})
}

func about(have, want time.Duration) bool { return math.Abs(float64(have-want)) <= 0.1*float64(want) }

func TestSlowRateIsSaidAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stats, err := sample(t, nvml.DefaultConfig(), 2*time.Minute, func(f *fake) {
			f.took = func(call nvml.Call, at time.Duration) time.Duration {
				if call <= nvml.CallReasons && at > 10*time.Second && at < 40*time.Second {
					return 3 * time.Millisecond
				}
				return 0
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"sampling_rate", "sampling_rate"}, r.kinds()); diff != "" {
			t.Fatalf("events (-want +have):\n%s", diff)
		}
		if d := r.events[0].Detail; !strings.Contains(d, "of a thread") || stats.Stretch != 1 {
			t.Errorf("said %q, stretch at the end %v", d, stats.Stretch)
		}
	})
}

func TestADriverThatIsSlowInEveryCallIsAskedWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy time.Duration
		r, _, err := sample(t, nvml.DefaultConfig(), 7*time.Minute, func(f *fake) {
			f.took = func(call nvml.Call, at time.Duration) time.Duration {
				if at < 10*time.Second || at > 6*time.Minute {
					return 0
				}
				took := 50 * time.Millisecond
				if call == nvml.CallTopology {
					took = 2 * time.Second // a call a link
				}
				if at > time.Minute {
					busy += took
				}
				return took
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if share := busy.Minutes() / 5; share > 0.04 {
			t.Errorf("calls take %.1f %% of a thread, want some 2 %%", 100*share)
		}
		windows := r.with(timeline.DRAMUtil)
		if last := windows[len(windows)-1].Over.End.Sub(timeline.Instant(time.Hour)); last < 7*time.Minute-time.Second {
			t.Errorf("the last window ends %v after the start: windows do not come back", last)
		}
	})
}

func TestBurstIsBoundAndKeepsItsOwnBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		devices, err := sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, c.now).Devices()
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{Device: devices[0], clock: c, took: func(call nvml.Call, _ time.Duration) time.Duration {
			if call <= nvml.CallReasons {
				return 400 * time.Microsecond // 1.2 % at 10 Hz, 6 % at 50 Hz
			}
			return 0
		}}
		s := nvml.NewSampler(0, f, nvml.DefaultConfig(), c.now)
		r := &record{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx, r) }()
		time.Sleep(5 * time.Second)
		s.Burst(24 * time.Hour)
		time.Sleep(10 * time.Second)
		if st := s.Stats(); !st.Burst || st.Stretch != 1 || st.Duty < 0.05 {
			t.Errorf("in the burst: %v, stretch %v, duty %v; want 6 %% and no stretch", st.Burst, st.Stretch, st.Duty)
		}
		time.Sleep(5 * time.Minute)
		if st := s.Stats(); st.Burst {
			t.Error("a burst lasts for more than five minutes")
		}
		s.Burst(time.Minute)
		time.Sleep(time.Second)
		s.Burst(0)
		time.Sleep(2 * time.Second)
		if st := s.Stats(); st.Burst || st.FastPeriod != nvml.DefaultConfig().FastPeriod {
			t.Errorf("a burst that was ended goes on: %v", st.FastPeriod)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeniedCallsAreRetriedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fake
		r, _, err := sample(t, nvml.DefaultConfig(), 10*time.Minute, func(g *fake) {
			f = g
			f.fail = func(call nvml.Call, at time.Duration) error {
				if at > 3*time.Minute && (call == nvml.CallTake || call == nvml.CallMemory) {
					return fmt.Errorf("code 4: %w", nvml.ErrNoPermission)
				}
				return nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := f.calls[nvml.CallMemory]; n > 180+5+15 {
			t.Errorf("memory was asked for %d times, want once a second for three minutes, then each 30 s", n)
		}
		var said []string
		for _, e := range r.events {
			if e.Kind == timeline.EventCapability {
				said = append(said, e.Detail)
			}
		}
		want := []string{
			"gpm_sample: permission lost after 3m0s: code 4: no permission", "memory: permission lost after 3m1s: code 4: no permission",
		}
		if diff := cmp.Diff(want, said); diff != "" {
			t.Errorf("said (-want +have):\n%s", diff)
		}
	})
}

func TestGPUThatAnswersNothingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), 5*time.Minute, func(f *fake) {
			f.fail = func(call nvml.Call, at time.Duration) error {
				switch {
				case call == nvml.CallMemory && at < 2*time.Minute: // one call that answers is an answer
					return nil
				case at > time.Minute:
					return nvml.ErrDriver
				}
				return nil
			}
		})
		if !errors.Is(err, nvml.ErrGPULost) || !strings.Contains(err.Error(), "no call was answered for 3") {
			t.Fatalf("run: %v, want the GPU given up", err)
		}
		e := r.events[len(r.events)-1]
		if at := e.At.Sub(timeline.Instant(time.Hour)); at < 145*time.Second || at > 155*time.Second {
			t.Errorf("given up at %v, want half a minute after the last call that answered, at two minutes", at)
		}
	})
}

func TestThrottleTimeWithoutAFieldComesFromTheReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), 30*time.Second, func(f *fake) {
			f.alter = func(r *nvml.Reading) {
				if r.Has.Has(timeline.ThrottlePower) {
					r.Fail(timeline.ThrottlePower, nvml.ErrNotSupported)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		all := r.with(timeline.ThrottlePower)
		first, last := all[1], all[len(all)-1]
		grown := last.Value[timeline.ThrottlePower] - first.Value[timeline.ThrottlePower]
		passed := last.Over.Start.Sub(first.Over.Start).Seconds()
		if share := grown / passed; math.Abs(share-0.5) > 0.05 { // the waves hold clocks half of the time
			t.Errorf("held for %.2f of the time, want half", share)
		}
		for _, c := range r.caps {
			if c.Call == "throttle_power" && (c.State != timeline.StateOK || !strings.Contains(c.Detail, "integrated")) {
				t.Errorf("capability %+v does not say where the time comes from", c)
			}
		}
	})
}

func TestNonsenseIsDroppedByName(t *testing.T) {
	for name, c := range map[string]struct {
		alter func(r *nvml.Reading)
		drop  nvml.Drop
		gone  timeline.Counter
	}{
		"a clock of 100 GHz":          {func(r *nvml.Reading) { r.Value[timeline.SMClock] = 1e11 }, nvml.DropRange, timeline.SMClock},
		"power that is no number":     {func(r *nvml.Reading) { r.Value[timeline.Power] = math.NaN() }, nvml.DropNaN, timeline.Power},
		"more memory than there is":   {func(r *nvml.Reading) { r.Value[timeline.MemUsed] = 1e12 }, nvml.DropRange, timeline.MemUsed},
		"a duty of 300 %":             {func(r *nvml.Reading) { r.Value[timeline.GPUDuty] = 3 }, nvml.DropRange, timeline.GPUDuty},
		"bytes that are less than no": {func(r *nvml.Reading) { r.Value[timeline.PCIeTx] = -1 }, nvml.DropRange, timeline.PCIeTx},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, stats, err := sample(t, nvml.DefaultConfig(), 5*time.Second, func(f *fake) { f.alter = c.alter })
				if err != nil {
					t.Fatal(err)
				}
				if n := len(r.with(c.gone)); n > 0 || stats.Dropped[c.drop] < 4 {
					t.Errorf("%d readings were handed on, dropped %v", n, stats.Dropped)
				}
				if len(r.with(timeline.MemClock)) < 40 {
					t.Error("its neighbours are gone too")
				}
			})
		})
	}
}

func TestZeroWindowsAtHighPowerAndFrozenOnesAreUntrusted(t *testing.T) {
	for name, c := range map[string]struct {
		window float64
		moves  bool
		want   []string
		drop   nvml.Drop
	}{
		"zero at high power":           {0, false, []string{"ok", "untrusted"}, nvml.DropContradicted},
		"the same while clocks move":   {0.125, true, []string{"ok", "untrusted"}, nvml.DropFrozen},
		"the same while nothing moves": {0.125, false, []string{"ok"}, nvml.DropFirst},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, stats, err := sample(t, nvml.DefaultConfig(), 10*time.Second, func(f *fake) {
					f.alter = func(r *nvml.Reading) {
						at := time.Since(f.clock.start)
						r.Value[timeline.GPUDuty], r.Value[timeline.SMClock] = 0.1, 1e9
						if c.moves {
							r.Value[timeline.SMClock] += float64(at / time.Second)
						}
						if r.Has&timeline.GPM == 0 || at < 2*time.Second {
							return
						}
						for w := range timeline.SMClock {
							r.Value[w] = c.window
						}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, r.statesOf(timeline.DRAMUtil)); diff != "" || stats.Dropped[c.drop] == 0 {
					t.Errorf("states (-want +have):\n%s\ndropped %v", diff, stats.Dropped)
				}
			})
		})
	}
}

func TestAClockThatStandsIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		clock, power float64
		reasons      uint64
		moves        bool
		want         float64
	}{
		"a busy GPU below its highest clock":     {1200e6, 600, 0, false, 1200e6},
		"as an administrator's lock may show":    {1200e6, 600, timeline.ReasonAppClocks, false, 1200e6},
		"at the highest clock":                   {1980e6, 600, 0, false, 0},
		"held by the power limit":                {1200e6, 690, timeline.ReasonSWPowerCap, false, 0},
		"a GPU at rest":                          {345e6, 70, timeline.ReasonIdle, false, 0},
		"a clock that moves by its own boosting": {1200e6, 600, 0, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var last float64
			r, _, err := sampleAround(t, 55*time.Second, func(f *fake) {
				f.alter = func(r *nvml.Reading) {
					r.Value[timeline.SMClock], r.Value[timeline.EventReasons], r.Value[timeline.Power] = c.clock, float64(c.reasons), c.power
					if r.Has.Has(timeline.GPUDuty) && c.power < 100 {
						r.Value[timeline.GPUDuty] = 0
					}
					if c.moves && time.Since(f.clock.start)%(9*time.Second) < 2*time.Second {
						r.Value[timeline.SMClock] += 15e6
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(r.around); n > 0 {
				last = r.around[n-1].StandingHz
			}
			if last != c.want || r.around[1].StandingHz != 0 {
				t.Errorf("%s: %v Hz stand after 50 s and %v after 10, want %v and none", name, last, r.around[1].StandingHz, c.want)
			}
		})
	}
}

// surveyed is a record that takes inventories too.
type surveyed struct {
	record
	around []timeline.Inventory
}

func (s *surveyed) AddInventory(v timeline.Inventory) { s.around = append(s.around, v) }

// sampleAround runs a sampler for d, and keeps what it tells of the surroundings.
func sampleAround(t *testing.T, d time.Duration, set func(f *fake)) (*surveyed, nvml.Stats, error) {
	t.Helper()
	s, f := newSampler(t, nvml.DefaultConfig())
	set(f)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r := &surveyed{}
	err := s.Run(ctx, r)
	return r, s.Stats(), err
}

func TestThrottleTimeThatWasMissingForAWhileIsStillTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = timeline.ThrottleHWThermal
		r, _, err := sample(t, nvml.DefaultConfig(), 20*time.Second, func(f *fake) {
			f.alter = func(r *nvml.Reading) {
				if !r.Has.Has(c) {
					return
				}
				at := time.Since(f.clock.start)
				r.Put(c, 0.9*at.Seconds())
				if at > 5*time.Second && at < 15*time.Second {
					r.Fail(c, nvml.ErrDriver)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ok", "stale", "ok"}, r.statesOf(c)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
	})
}

// TestDRAMThatStandsAtFullScaleIsUntrusted lets one counter stick where no memory can be, while the others go on.
func TestDRAMThatStandsAtFullScaleIsUntrusted(t *testing.T) {
	for name, c := range map[string]struct {
		dram float64
		want []string
	}{
		"full scale":   {1, []string{"ok", "untrusted"}},
		"busy as ever": {0.93, []string{"ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, err := sample(t, nvml.DefaultConfig(), 10*time.Second, func(f *fake) {
					f.alter = func(r *nvml.Reading) {
						if r.Has&timeline.GPM != 0 && time.Since(f.clock.start) > 2*time.Second {
							r.Value[timeline.DRAMUtil] = c.dram
						}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, r.statesOf(timeline.DRAMUtil)); diff != "" {
					t.Errorf("states of DRAM bandwidth (-want +have):\n%s", diff)
				}
				if diff := cmp.Diff([]string{"ok"}, r.statesOf(timeline.SMUtil)); diff != "" {
					t.Errorf("states of SM activity (-want +have):\n%s", diff)
				}
			})
		})
	}
}
