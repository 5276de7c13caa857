package hostclock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClock(t *testing.T) *hostclock.Clock {
	t.Helper()
	c, err := hostclock.New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNowAgreesWithTheAnchorsMonotonicReading(t *testing.T) {
	c := newClock(t)
	before := c.Now()
	a, err := c.Anchor()
	if err != nil {
		t.Fatal(err)
	}
	after := c.Now()
	// A start-up reading is good to a few microseconds; 100 covers a busy machine.
	const slack = 100 * time.Microsecond
	if a.Mono < before.Add(-slack) || a.Mono > after.Add(slack) {
		t.Errorf("anchor at %d, want within [%d, %d]", a.Mono, before, after)
	}
	if a.Width < 0 {
		t.Errorf("anchor width = %v, want >= 0", a.Width)
	}
	if a.BootID != c.BootID() {
		t.Errorf("anchor boot id = %q, want %q", a.BootID, c.BootID())
	}
	if got := time.Duration(a.Unix(c.FromTime(time.Now())) - time.Now().UnixNano()).Abs(); got > 50*time.Millisecond {
		t.Errorf("wall clock by anchor is off by %v", got)
	}
}

func TestTwoClocksOfOneHostAgree(t *testing.T) {
	a, b := newClock(t), newClock(t)
	at := time.Now()
	if d := a.FromTime(at).Sub(b.FromTime(at)).Abs(); d > 100*time.Microsecond {
		t.Errorf("two clocks differ by %v", d)
	}
}

func TestNowFollowsFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(t)
		start := c.Now()
		for range 100 {
			time.Sleep(10 * time.Millisecond)
		}
		if got := c.Now().Sub(start); got != time.Second {
			t.Errorf("100 ticks of 10 ms took %v, want 1 s", got)
		}
	})
}

func TestFromKernelPlacesAReadingByItsLag(t *testing.T) {
	c := newClock(t)
	read := time.Now()
	got, ok := c.FromKernel(read.Add(-37*time.Microsecond).UnixNano(), read)
	if want := c.FromTime(read).Add(-37 * time.Microsecond); !ok || got != want {
		t.Errorf("FromKernel() = %d, %v, want %d, true", got, ok, want)
	}
	if got, ok := c.FromKernel(read.Add(time.Millisecond).UnixNano(), read); ok {
		t.Errorf("FromKernel() of a reading that is yet to come = %d, true, want false", got)
	}
}

func TestRunEmitsAnAnchorATickAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		anchors := 0
		err := c.Run(ctx, time.Second, func(timeline.Anchor) { anchors++ }, func(timeline.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		if anchors != 4 {
			t.Errorf("%d anchors in 3.5 s, want 4", anchors)
		}
	})
}

func TestRunRefusesAnIntervalOfZero(t *testing.T) {
	if err := newClock(t).Run(t.Context(), 0, nil, nil); err == nil {
		t.Error("Run() with interval 0 = nil, want an error")
	}
}

func BenchmarkNow(b *testing.B) {
	c, err := hostclock.New()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}
