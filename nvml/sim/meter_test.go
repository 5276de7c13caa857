package sim

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRefreshKeepsItsCadence(t *testing.T) {
	for _, jitter := range []time.Duration{0, 30 * time.Millisecond} {
		m := newMeter(Waves{Count: 8}, Options{Jitter: jitter})
		for gpu := range 8 {
			seen := map[time.Duration]bool{}
			for at := time.Duration(0); at < 10*time.Second; at += time.Millisecond {
				r := m.refreshed(gpu, at)
				if r > at || at-r > m.opts.Refresh+jitter {
					t.Fatalf("gpu %d at %v: refreshed at %v", gpu, at, r)
				}
				seen[r] = true
			}
			if n := len(seen); n < 100 || n > 102 {
				t.Errorf("gpu %d, jitter %v: %d refreshes in 10 s, want 100", gpu, jitter, n)
			}
		}
	}
}

func TestSnapshotsAddUpToTheWorld(t *testing.T) {
	for _, o := range []Options{{}, {Jitter: 40 * time.Millisecond}, {Lag: 80 * time.Millisecond}, {Speed: 3}, {Loop: true, Speed: 2}} {
		w := Waves{Count: 2, For: 8 * time.Second}
		m := newMeter(w, o)
		for i, c := range activity {
			sum := 0.0
			last := m.snapshot(1, 0)
			for at := 110 * time.Millisecond; at < 2*time.Second; at += 110 * time.Millisecond {
				s := m.snapshot(1, at)
				sum += s.integral[i] - last.integral[i]
				last = s
			}
			want := m.integral(1, c, last.at) - m.integral(1, c, 0)
			if math.Abs(sum-want) > 1e-9+1e-6*want {
				t.Errorf("%+v: %s adds up to %v, want %v", o, c, sum, want)
			}
		}
	}
}

func TestLoopedWorldGoesOn(t *testing.T) {
	w := Waves{Count: 1, For: 2 * time.Second}
	m := newMeter(w, Options{Loop: true})
	one := m.integral(0, timeline.SMUtil, 2*time.Second)
	if have := m.integral(0, timeline.SMUtil, 10*time.Second); math.Abs(have-5*one) > 1e-9 {
		t.Errorf("five rounds hold %v, want five times %v", have, one)
	}
	still := newMeter(w, Options{})
	if have := still.integral(0, timeline.SMUtil, 10*time.Second); have != one {
		t.Errorf("a world that ended holds %v, want %v", have, one)
	}
}

func TestPageHoldsWhatDevicesOfThisProcessShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Second + time.Since(start)) }
		w := Waves{Count: 3}
		opts := Options{Jitter: 20 * time.Millisecond, Lag: 10 * time.Millisecond}
		p, err := NewPage(filepath.Join(t.TempDir(), "page"), w, opts, now)
		if err != nil {
			t.Fatal(err)
		}
		lib := NewLibrary(w, opts, now)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(3*time.Second + writePeriod/2)
		m := &lib.meter
		for gpu := range 3 {
			s := m.snapshot(gpu, now().Sub(lib.start)-writePeriod/2)
			if have := p.words[block(gpu, "ACTIVITY_NS")]; have != uint64(activityBase+s.at) {
				t.Errorf("gpu %d: activity of %d, want %d", gpu, have, activityBase+s.at)
			}
			for i := range activity {
				if have := math.Float64frombits(p.words[block(gpu, "ACTIVITY")+i]); have != s.integral[i] {
					t.Errorf("gpu %d: %s %v, want %v", gpu, activity[i], have, s.integral[i])
				}
			}
			if seq := p.words[block(gpu, "SEQ")]; seq%2 != 0 || seq == 0 {
				t.Errorf("gpu %d: seq %d, want even and counting", gpu, seq)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p.Write() == nil || p.SetInit(1, 0) == nil || p.SetFault(Fault{}) == nil {
			t.Error("a closed page was written, want an error")
		}
	})
}

func TestPageRefusesWhatItCannotHold(t *testing.T) {
	now := func() timeline.Instant { return 1 }
	path := filepath.Join(t.TempDir(), "page")
	if _, err := NewPage(path, Waves{Count: MaxGPUs + 1}, Options{}, now); err == nil {
		t.Error("a page for 17 GPUs was made, want an error")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a refused page left a file")
	}
	p, err := NewPage(path, Waves{Count: MaxGPUs}, Options{}, now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if err := p.SetFault(Fault{GPU: MaxGPUs}); err == nil {
		t.Error("a fault of gpu 16 was taken, want an error")
	}
	if err := p.SetMetricCode(0, timeline.Power, 3); err == nil {
		t.Error("a code for a metric that is none was taken, want an error")
	}
}

func TestFaultsOfDevicesHaveTheirKind(t *testing.T) {
	now := func() timeline.Instant { return timeline.Instant(time.Second) }
	lib := NewLibrary(Waves{Count: 1}, Options{}, now)
	devices, err := lib.Devices()
	if err != nil {
		t.Fatal(err)
	}
	lib.SetFault(Fault{Call: int(nvml.CallTake), Code: 4})
	if err := devices[0].Take(0); nvml.StateOf(err) != timeline.StateNoPermission {
		t.Errorf("snapshot: %v, want no permission", err)
	}
	lib.SetFault(Fault{Call: int(nvml.CallTake)})
	if err := devices[0].Take(0); err != nil {
		t.Errorf("snapshot: %v, want none", err)
	}
}
