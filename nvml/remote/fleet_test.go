package remote

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// deaf is a library whose driver does not tell events for a while, or at all.
type deaf struct {
	*sim.Library
	until time.Time
	why   error
	asked int
}

func (d *deaf) Await(wait time.Duration) (nvml.Happening, bool, error) {
	d.asked++
	if time.Now().Before(d.until) {
		return nvml.Happening{Device: timeline.NoGPU}, false, d.why
	}
	return d.Library.Await(wait)
}

// mute is a library that cannot tell events.
type mute struct{ nvml.Library }

// local runs a library in this process for d.
func local(t *testing.T, d time.Duration, wrap func(*sim.Library) nvml.Library, during func(*Local)) *record {
	t.Helper()
	begin := time.Now()
	now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
	l := NewLocal(wrap(sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, now)), nvml.DefaultConfig(), now)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r := &record{}
	done := make(chan error)
	go func() { done <- l.Run(ctx, r) }()
	if during != nil {
		during(l)
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	return r
}

func TestDriverThatTellsNoEventsIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *deaf
		r := local(t, 2*time.Minute, func(l *sim.Library) nvml.Library {
			d = &deaf{Library: l, until: time.Now().Add(time.Minute), why: nvml.ErrNoPermission}
			return d
		}, nil)
		if diff := cmp.Diff([]string{"no_permission", "ok"}, r.statesOf(0, timeline.Xids)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if d.asked > 6+120+4 { // each minute may begin and end within a wait
			t.Errorf("asked %d times in a minute of refusals and one of waits of half a second", d.asked)
		}
		if n := len(r.windows(0, timeline.Xids)); n < 55 || n > 61 {
			t.Errorf("%d readings of errors, want those of the second minute: before, none was known", n)
		}
	})
}

func TestLibraryWithoutEventsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := local(t, 5*time.Second, func(l *sim.Library) nvml.Library { return mute{l} }, nil)
		if diff := cmp.Diff([]string{"not_supported"}, r.statesOf(0, timeline.Xids)); diff != "" || len(r.windows(0, timeline.Xids)) > 0 {
			t.Errorf("states (-want +have):\n%s", diff)
		}
	})
}

func TestErrorsOfADeviceThatTellsNoneAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := local(t, 5*time.Second, func(l *sim.Library) nvml.Library { return refusing{l} }, nil)
		if diff := cmp.Diff([]string{"no_permission"}, r.statesOf(0, timeline.Xids)); diff != "" || len(r.windows(0, timeline.Xids)) > 0 {
			t.Errorf("states (-want +have):\n%s", diff)
		}
	})
}

// refusing is a library that tells events, but not those of a device.
type refusing struct{ *sim.Library }

func (refusing) Tells(int) error { return nvml.ErrNoPermission }

func TestBurstOfALocalSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := local(t, 10*time.Second, func(l *sim.Library) nvml.Library { return l }, func(l *Local) {
			time.Sleep(4 * time.Second)
			for range 3 { // the newest counts, and none waits
				if err := l.Burst(3 * time.Second); err != nil {
					t.Error(err)
				}
			}
		})
		if n := r.rates(0, timeline.SMClock); n[2] != 10 || n[5] < 49 || n[9] > 11 {
			t.Errorf("readings of clocks a second %v, want 10, 50 in the burst, and 10", n)
		}
	})
}

func TestLibraryIsOpenedAgainWhenItListsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := local(t, 40*time.Second, func(l *sim.Library) nvml.Library {
			l.SetChanged("the driver lists 2 gpus, and listed 1")
			time.AfterFunc(15*time.Second, func() { l.SetChanged("") })
			return l
		}, nil)
		starts := 0
		for _, k := range r.kinds() {
			if k == string(timeline.EventSamplerStarted) {
				starts++
			}
		}
		if starts != 2 || strings.Contains(strings.Join(r.kinds(), " "), "lost") {
			t.Errorf("events %v, want a second start and no loss", r.kinds())
		}
	})
}

// late is a library whose driver takes longer to tell that nothing happened than it was asked to, as on a busy host.
type late struct{ *sim.Library }

func (l late) Await(wait time.Duration) (nvml.Happening, bool, error) {
	return l.Library.Await(5 * wait)
}

func TestWaitThatIsLateIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := func() timeline.Instant {
			return timeline.Instant(time.Hour + time.Duration(time.Now().UnixNano()%1e15))
		}
		f, err := Probe(t.Context(), late{sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, now)}, nvml.DefaultConfig(), now)
		if err != nil || len(f.GPUs) != 1 {
			t.Errorf("probe: %v, %d gpus", err, len(f.GPUs))
		}
	})
}

// hung is a library whose last device does not come back from taking a snapshot for a minute.
type hung struct{ *sim.Library }

func (h hung) Devices() ([]nvml.Device, error) {
	all, err := h.Library.Devices()
	all[len(all)-1] = hungDevice{all[len(all)-1]}
	return all, err
}

type hungDevice struct{ nvml.Device }

func (d hungDevice) Take(slot int) error {
	time.Sleep(time.Minute)
	return d.Device.Take(slot)
}

func TestAProbeTellsOfTheGPUsThatAnswerBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		f, err := Probe(t.Context(), hung{sim.NewLibrary(sim.Waves{Count: 2}, sim.Options{}, now)}, nvml.DefaultConfig(), now)
		if !errors.Is(err, ErrStuck) {
			t.Errorf("probe: %v", err)
		}
		states := map[int]string{}
		for _, c := range f.Capabilities {
			if c.Call == timeline.DRAMUtil.String() {
				states[c.GPU] = c.State
			}
		}
		if diff := cmp.Diff(map[int]string{0: "ok", 1: "timeout"}, states); diff != "" {
			t.Errorf("states of DRAM activity (-want +have):\n%s", diff)
		}
		time.Sleep(10*time.Minute + time.Second) // the call comes back, as do those that follow it before the end is seen
	})
}
