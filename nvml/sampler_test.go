package nvml_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record keeps what a sampler tells. The sampler of these tests is the only one who calls it.
type record struct {
	samples []timeline.Sample
	caps    []timeline.Capability
	events  []timeline.Event
}

func (r *record) SetGPUs([]timeline.GPU)              {}
func (r *record) AddSample(s *timeline.Sample)        { r.samples = append(r.samples, *s) }
func (r *record) AddCapability(c timeline.Capability) { r.caps = append(r.caps, c) }
func (r *record) AddEvent(e timeline.Event)           { r.events = append(r.events, e) }

// windows returns the samples that hold c.
func (r *record) with(c timeline.Counter) []timeline.Sample {
	return slices.DeleteFunc(slices.Clone(r.samples), func(s timeline.Sample) bool { return !s.Has.Has(c) })
}

func (r *record) statesOf(c timeline.Counter) []string {
	var states []string
	for _, k := range r.caps {
		if k.Call == c.String() {
			states = append(states, k.State.String())
		}
	}
	return states
}

func (r *record) kinds() []string {
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}

// fake is a device whose calls take time and fail as a test asks for.
type fake struct {
	nvml.Device
	clock *clock
	took  func(call nvml.Call, at time.Duration) time.Duration
	fail  func(call nvml.Call, at time.Duration) error
	alter func(r *nvml.Reading)
	calls [nvml.NumCalls]int
}

func (f *fake) enter(call nvml.Call) error {
	at := time.Since(f.clock.start)
	f.calls[call]++
	if f.took != nil {
		time.Sleep(f.took(call, at))
	}
	if f.fail != nil {
		return f.fail(call, at)
	}
	return nil
}

func (f *fake) Read(call nvml.Call, r *nvml.Reading) {
	if err := f.enter(call); err != nil {
		r.FailAll(call.Counters(), err)
		return
	}
	f.Device.Read(call, r)
	if f.alter != nil {
		f.alter(r)
	}
}

func (f *fake) Survey(call nvml.Call, v *timeline.Inventory) error {
	if err := f.enter(call); err != nil {
		return err
	}
	return f.Device.Survey(call, v)
}

func (f *fake) Take(slot int) error {
	if err := f.enter(nvml.CallTake); err != nil {
		return err
	}
	return f.Device.Take(slot)
}

func (f *fake) Between(older, newer int, r *nvml.Reading) {
	if err := f.enter(nvml.CallBetween); err != nil {
		r.FailAll(timeline.GPM, err)
		return
	}
	f.Device.Between(older, newer, r)
	if f.alter != nil {
		f.alter(r)
	}
}

type clock struct{ start time.Time }

func (c *clock) now() timeline.Instant { return timeline.Instant(time.Hour + time.Since(c.start)) }

// newSampler makes a sampler of a simulated GPU, in the bubble of the caller.
func newSampler(t *testing.T, cfg nvml.Config) (*nvml.Sampler, *fake) {
	t.Helper()
	c := &clock{start: time.Now()}
	devices, err := sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, c.now).Devices()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Device: devices[0], clock: c}
	return nvml.NewSampler(0, f, cfg, c.now), f
}

// sample runs a sampler of a simulated GPU for d, in the bubble of the caller.
func sample(t *testing.T, cfg nvml.Config, d time.Duration, set func(f *fake)) (*record, nvml.Stats, error) {
	t.Helper()
	s, f := newSampler(t, cfg)
	if set != nil {
		set(f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r := &record{}
	err := s.Run(ctx, r)
	return r, s.Stats(), err
}

func TestWindowsFollowEachOtherWithoutAHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stats, err := sample(t, nvml.DefaultConfig(), 30*time.Second, nil)
		if err != nil {
			t.Fatal(err)
		}
		windows := r.with(timeline.DRAMUtil)
		if len(windows) < 270 || stats.Windows != uint64(len(windows)) {
			t.Fatalf("%d windows in 30 s, stats say %d; want 272 or so", len(windows), stats.Windows)
		}
		sum := 0.0
		for i, w := range windows {
			if w.Has != timeline.GPM {
				t.Errorf("window %d has %b, want all of GPM and nothing else", i, w.Has)
			}
			// What lies between two calls 110 ms apart is one refresh of 100 ms or two; that a length is known to 5 % is enough.
			if d := w.Over.Duration(); d < nvml.MinWindow*95/100 || d > nvml.MaxWindow {
				t.Errorf("window %d covers %v", i, d)
			}
			if i > 0 && windows[i-1].Over.End != w.Over.Start {
				t.Errorf("window %d starts at %v, the one before ends at %v", i, w.Over.Start, windows[i-1].Over.End)
			}
			sum += w.Value[timeline.DRAMUtil] * w.Over.Duration().Seconds()
		}
		over := timeline.Span{Start: windows[0].Over.Start, End: windows[len(windows)-1].Over.End}
		world := sim.Waves{Count: 1}
		at := func(i timeline.Instant) float64 {
			return world.Integral(0, timeline.DRAMUtil, i.Sub(timeline.Instant(time.Hour)))
		}
		if want := at(over.End) - at(over.Start); math.Abs(sum-want) > 0.01*want {
			t.Errorf("windows add up to %.3f, the world to %.3f: more than 1 %% apart", sum, want)
		}
	})
}

func TestTiersKeepTheirPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := nvml.DefaultConfig()
		cfg.FastPeriod = 20 * time.Millisecond
		r, _, err := sample(t, cfg, 10*time.Second, nil)
		if err != nil {
			t.Fatal(err)
		}
		fast, slow := len(r.with(timeline.SMClock)), len(r.with(timeline.Power))
		if fast < 498 || fast > 501 || slow < 10 || slow > 11 {
			t.Errorf("in 10 s: %d fast and %d slow samples, want 500 and 10", fast, slow)
		}
		first := r.with(timeline.Power)[0]
		var want timeline.CounterSet
		for call := nvml.CallFields; call <= nvml.CallUtilization; call++ {
			want |= call.Counters()
		}
		if first.Has != want || first.Over.Empty() {
			t.Errorf("slow sample has %b over %v, want %b over a span", first.Has, first.Over, want)
		}
	})
}

func TestUntrustworthyWindowsAreDropped(t *testing.T) {
	from, to := 3*time.Second, 4*time.Second
	within := func(at time.Duration) bool { return at >= from && at < to }
	for name, c := range map[string]struct {
		set  func(f *fake)
		drop nvml.Drop
		gaps int
	}{
		"a call that takes long places its window badly": {
			set: func(f *fake) {
				f.took = func(call nvml.Call, at time.Duration) time.Duration {
					if call == nvml.CallTake && within(at) {
						return 40 * time.Millisecond
					}
					return 0
				}
			},
			drop: nvml.DropBracket, gaps: 0, // the next window spans both
		},
		"a stall makes the window too long": {
			set: func(f *fake) {
				f.took = func(call nvml.Call, at time.Duration) time.Duration {
					if call == nvml.CallSMClock && at >= from && at < from+100*time.Millisecond {
						return 600 * time.Millisecond
					}
					return 0
				}
			},
			drop: nvml.DropLong, gaps: 1,
		},
		"no number": {
			set:  func(f *fake) { f.alter = spoil(f, within, math.NaN()) },
			drop: nvml.DropNaN, gaps: 1,
		},
		"out of range": {
			set:  func(f *fake) { f.alter = spoil(f, within, 1.4) },
			drop: nvml.DropRange, gaps: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, stats, err := sample(t, nvml.DefaultConfig(), 6*time.Second, c.set)
				if err != nil {
					t.Fatal(err)
				}
				if stats.Dropped[c.drop] == 0 || stats.Gaps != uint64(c.gaps) || len(r.events) != c.gaps {
					t.Errorf("dropped %v, gaps %d, events %v; want some of %s and %d gaps", stats.Dropped, stats.Gaps, r.kinds(), c.drop, c.gaps)
				}
				for _, w := range r.with(timeline.SMUtil) {
					if v := w.Value[timeline.SMUtil]; !(v >= 0 && v <= 1) || w.Over.Duration() > nvml.MaxWindow {
						t.Errorf("window over %v with %v was handed on", w.Over.Duration(), v)
					}
				}
				last := r.with(timeline.SMUtil)
				if end := last[len(last)-1].Over.End.Sub(timeline.Instant(time.Hour)); end < 5800*time.Millisecond {
					t.Errorf("windows end at %v, want them back after the fault", end)
				}
			})
		})
	}
}

func spoil(f *fake, within func(time.Duration) bool, v float64) func(*nvml.Reading) {
	return func(r *nvml.Reading) {
		if !within(time.Since(f.clock.start)) {
			return
		}
		for c := range timeline.Counter(timeline.NumCounters) {
			if c.Windowed() && r.Has.Has(c) {
				r.Value[c] = v
			}
		}
	}
}

func TestRoundingIsClamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), time.Second, func(f *fake) {
			f.alter = func(r *nvml.Reading) {
				if r.Has.Has(timeline.SMUtil) {
					r.Value[timeline.SMUtil], r.Value[timeline.DRAMUtil] = 1.01, -0.01
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		w := r.with(timeline.SMUtil)[0]
		if w.Value[timeline.SMUtil] != 1 || w.Value[timeline.DRAMUtil] != 0 {
			t.Errorf("have %v and %v, want 1 and 0", w.Value[timeline.SMUtil], w.Value[timeline.DRAMUtil])
		}
	})
}

func TestStatesAreSaidWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), 10*time.Second, func(f *fake) {
			f.fail = func(call nvml.Call, at time.Duration) error {
				switch {
				case call == nvml.CallMemClock:
					return nvml.ErrNotSupported
				case call == nvml.CallTake && at > 3*time.Second && at < 6*time.Second:
					return nvml.ErrNoPermission
				}
				return nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ok", "no_permission", "ok"}, r.statesOf(timeline.DRAMUtil)); diff != "" {
			t.Errorf("states of dram_util (-want +have):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"not_supported"}, r.statesOf(timeline.MemClock)); diff != "" {
			t.Errorf("states of mem_clock (-want +have):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"capability", "gap"}, r.kinds()); diff != "" {
			t.Errorf("events (-want +have):\n%s", diff)
		}
		if at := r.events[1].At.Sub(timeline.Instant(time.Hour)); at > 3200*time.Millisecond {
			t.Errorf("the gap was said at %v, want at once", at)
		}
	})
}

func TestUnsupportedIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fake
		if _, _, err := sample(t, nvml.DefaultConfig(), 5*time.Second, func(g *fake) {
			f = g
			f.fail = func(call nvml.Call, _ time.Duration) error {
				if call == nvml.CallMemory || call == nvml.CallTake {
					return nvml.ErrNotSupported
				}
				return nil
			}
		}); err != nil {
			t.Fatal(err)
		}
		if f.calls[nvml.CallMemory] != 1 || f.calls[nvml.CallTake] != 1 {
			t.Errorf("asked %d times for memory and %d for snapshots, want once", f.calls[nvml.CallMemory], f.calls[nvml.CallTake])
		}
	})
}

func TestLostGPUEndsItsSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), 10*time.Second, func(f *fake) {
			f.fail = func(call nvml.Call, at time.Duration) error {
				if call == nvml.CallReasons && at > 2*time.Second {
					return nvml.ErrGPULost
				}
				return nil
			}
		})
		if !errors.Is(err, nvml.ErrGPULost) {
			t.Fatalf("run: %v, want gpu lost", err)
		}
		if diff := cmp.Diff([]string{"gpu_lost", "gap"}, r.kinds()); diff != "" {
			t.Errorf("events (-want +have):\n%s", diff)
		}
		for _, c := range []timeline.Counter{timeline.DRAMUtil, timeline.Power, timeline.SMClock} {
			if states := r.statesOf(c); states[len(states)-1] != "lost" {
				t.Errorf("%s ends %v, want lost", c, states)
			}
		}
	})
}

func TestDutyStaysNearItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := nvml.DefaultConfig()
		cfg.FastPeriod = 20 * time.Millisecond
		_, stats, err := sample(t, cfg, time.Minute, func(f *fake) {
			f.took = func(call nvml.Call, _ time.Duration) time.Duration {
				if call <= nvml.CallReasons {
					return time.Millisecond // 3 ms each 20 ms is 15 %
				}
				return 200 * time.Microsecond
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if stats.Duty > 1.5*cfg.DutyBudget || stats.FastPeriod < 100*time.Millisecond {
			t.Errorf("duty %.3f at a fast period of %v, want near %.3f", stats.Duty, stats.FastPeriod, cfg.DutyBudget)
		}
		if stats.Missed != 0 {
			t.Errorf("%d missed ticks, want none", stats.Missed)
		}
	})
}

func TestMissedTicksAreCountedNotCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stats, err := sample(t, nvml.DefaultConfig(), 5*time.Second, func(f *fake) {
			once := false
			f.took = func(call nvml.Call, at time.Duration) time.Duration {
				if call == nvml.CallReasons && at > 3*time.Second && !once {
					once = true
					return 950 * time.Millisecond
				}
				return 0
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		fast := r.with(timeline.SMClock)
		if stats.Missed < 9 || len(fast) > 42 {
			t.Errorf("%d missed, %d fast samples, want 9 or more and about 41", stats.Missed, len(fast))
		}
	})
}

func TestThrottleTimeThatCannotBeIsUntrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := sample(t, nvml.DefaultConfig(), 5*time.Second, func(f *fake) {
			f.alter = func(r *nvml.Reading) {
				if r.Has.Has(timeline.ThrottleHWThermal) {
					r.Value[timeline.ThrottleHWThermal] = 3 * time.Since(f.clock.start).Seconds()
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ok", "untrusted"}, r.statesOf(timeline.ThrottleHWThermal)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"ok"}, r.statesOf(timeline.ThrottlePower)); diff != "" {
			t.Errorf("states of its neighbour (-want +have):\n%s", diff)
		}
	})
}

func TestZeroWindowsOfABusyGPUAreUntrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stats, err := sample(t, nvml.DefaultConfig(), 8*time.Second, func(f *fake) {
			f.alter = func(r *nvml.Reading) {
				if r.Has.Has(timeline.GPUDuty) {
					r.Value[timeline.GPUDuty] = 0.97
				}
				if r.Has.Has(timeline.SMUtil) && time.Since(f.clock.start) > 2*time.Second {
					for c := range timeline.Counter(timeline.NumCounters) {
						if c.Windowed() {
							r.Value[c] = 0
						}
					}
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ok", "untrusted"}, r.statesOf(timeline.DRAMUtil)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if stats.Dropped[nvml.DropContradicted] < 30 {
			t.Errorf("dropped %v, want about 40 contradicted windows", stats.Dropped)
		}
	})
}

func TestStuckCallIsSaidAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		lib := sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, c.now)
		devices, err := lib.Devices()
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{Device: devices[0], clock: c, took: func(call nvml.Call, at time.Duration) time.Duration {
			if call == nvml.CallTake && at > time.Second && at < 2*time.Second {
				return 20 * time.Second
			}
			return 0
		}}
		s := nvml.NewSampler(0, f, nvml.DefaultConfig(), c.now)
		r := &record{}
		done := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- s.Run(ctx, r) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if in := s.Stats().InCall; in < 8*time.Second {
			t.Errorf("in a call for %v, want about 9 s", in)
		}
		s.MarkStuck(r)
		s.MarkStuck(r) // says nothing twice
		time.Sleep(20 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ok", "timeout", "ok"}, r.statesOf(timeline.DRAMUtil)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"gap", "gap"}, r.kinds()); diff != "" { // while stuck, and for the long window
			t.Errorf("events (-want +have):\n%s", diff)
		}
	})
}

func TestOlderGPUHasNoWindowsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		devices, err := sim.NewLibrary(sim.Waves{Count: 1, NoGPM: true}, sim.Options{}, c.now).Devices()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r := &record{}
		if err := nvml.NewSampler(0, devices[0], nvml.DefaultConfig(), c.now).Run(ctx, r); err != nil {
			t.Fatal(err)
		}
		if len(r.with(timeline.DRAMUtil)) != 0 || len(r.with(timeline.SMClock)) < 25 {
			t.Errorf("%d windows and %d clocks, want none and 30", len(r.with(timeline.DRAMUtil)), len(r.with(timeline.SMClock)))
		}
		if diff := cmp.Diff([]string{"not_supported"}, r.statesOf(timeline.DRAMUtil)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
	})
}

func TestSamplingAllocatesNothing(t *testing.T) {
	c := &clock{start: time.Now()}
	devices, err := sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, c.now).Devices()
	if err != nil {
		t.Fatal(err)
	}
	if n := nvml.AllocsPerTick(devices[0], c.now); n != 0 {
		t.Errorf("%v allocations a tick, want none", n)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	if err := nvml.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	err := nvml.Config{Period: 50 * time.Millisecond, FastPeriod: time.Millisecond, SlowPeriod: time.Hour}.Validate()
	for _, want := range []string{"period 50ms", "plausible, wrong numbers", "fast_period", "slow_period", "duty_budget"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not hold %q", err, want)
		}
	}
}

func TestACallThatFailsTakesNothingElseWithIt(t *testing.T) {
	all := func(t *testing.T, broken nvml.Call, why error) timeline.CounterSet {
		t.Helper()
		r, _, err := sample(t, nvml.DefaultConfig(), 3*time.Second, func(f *fake) {
			f.fail = func(call nvml.Call, _ time.Duration) error {
				if call == broken {
					return why
				}
				return nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		var has timeline.CounterSet
		for i := range r.samples {
			has |= r.samples[i].Has
		}
		return has
	}
	synctest.Test(t, func(t *testing.T) {
		whole := all(t, nvml.NumCalls, nil)
		for call := nvml.CallSMClock; call <= nvml.CallUtilization; call++ {
			for _, why := range []error{nvml.ErrDriver, nvml.ErrNotSupported} {
				want := whole &^ call.Counters()
				if call == nvml.CallFields && errors.Is(why, nvml.ErrNotSupported) {
					want = whole&^timeline.Set(timeline.Power, timeline.Energy) | throttles // by the reasons that hold clocks
				}
				if have := all(t, call, why); have&^traffic != want&^traffic {
					t.Errorf("%s fails with %v: %b are read, want %b", call, why, have, want)
				}
			}
		}
	})
}

const (
	throttles = timeline.CounterSet(1<<timeline.ThrottlePower | 1<<timeline.ThrottleSWThermal | 1<<timeline.ThrottleHWThermal |
		1<<timeline.ThrottlePowerBrake | 1<<timeline.ThrottleSyncBoost)
	traffic = timeline.CounterSet(1<<timeline.PCIeTx | 1<<timeline.PCIeRx | 1<<timeline.NVLinkTx | 1<<timeline.NVLinkRx)
)
