package clock_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/clock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// link simulates a peer and the way to it. Time is the host's.
type link struct {
	rng        *rand.Rand
	offset     time.Duration // host minus peer at the start
	ppm        float64       // how much faster the host's clock runs
	forth      time.Duration // shortest leg from peer to host
	back       time.Duration
	jitter     time.Duration // mean of the exponential part of each leg
	queued     float64       // part of the forward legs that wait
	queue      time.Duration // mean of that wait
	now        timeline.Instant
	peerOrigin timeline.Instant
}

const hostStart = timeline.Instant(5e15)

func newLink(seed uint64, offset time.Duration, ppm float64) *link {
	return &link{
		rng: rand.New(rand.NewPCG(seed, 1)), offset: offset, ppm: ppm, now: hostStart, peerOrigin: hostStart - timeline.Instant(offset),
		forth: 50 * time.Microsecond, back: 50 * time.Microsecond, jitter: 40 * time.Microsecond, queued: 0.1, queue: 2 * time.Millisecond,
	}
}

// peer returns the host's instant t as the peer's clock reads it.
func (l *link) peer(t timeline.Instant) timeline.Instant {
	return l.peerOrigin + timeline.Instant(float64(t-hostStart)/(1+l.ppm*1e-6))
}

// exchange runs one round trip and moves time on by the given pause.
func (l *link) exchange(pause time.Duration) clock.Exchange {
	leg := func(base time.Duration) time.Duration {
		return base + time.Duration(l.rng.ExpFloat64()*float64(l.jitter))
	}
	forth := leg(l.forth)
	if l.rng.Float64() < l.queued {
		forth += time.Duration(l.rng.ExpFloat64() * float64(l.queue))
	}
	t2 := l.now.Add(forth)
	t3 := t2.Add(20 * time.Microsecond)
	t4 := t3.Add(leg(l.back))
	x := clock.Exchange{T1: l.peer(l.now), T2: t2, T3: t3, T4: l.peer(t4)}
	l.now = t4.Add(pause)
	return x
}

func mustAdd(t *testing.T, e *clock.Estimator, x clock.Exchange) bool {
	t.Helper()
	stepped, err := e.Add(x)
	if err != nil {
		t.Fatal(err)
	}
	return stepped
}

func TestLANHoldsItsBoundAndFindsSkew(t *testing.T) {
	// A peer 3.2 s and 12 ppm away, one exchange every five seconds.
	var late []float64
	for seed := range uint64(20) {
		l := newLink(seed, 3200*time.Millisecond, 12)
		e := clock.NewEstimator(clock.DefaultConfig())
		for i := range 120 {
			if mustAdd(t, e, l.exchange(5*time.Second)) {
				t.Fatalf("seed %d: exchange %d opened an epoch without a step", seed, i)
			}
			est, _ := e.Estimate()
			// Instants before, at and after the exchanges known so far.
			for _, ago := range []time.Duration{20 * time.Second, time.Second, 0, -2 * time.Second} {
				truth := max(hostStart, l.now.Add(-ago))
				got, bound := est.Local(l.peer(truth))
				off := got.Sub(truth).Abs()
				if off > bound+2 {
					t.Fatalf("seed %d, exchange %d: off by %v, bound %v", seed, i, off, bound)
				}
				if i >= 60 {
					late = append(late, float64(off))
				}
			}
			if i == 60 && (!est.SkewKnown || math.Abs(est.SkewPPM-12) > 1) {
				t.Errorf("seed %d: skew %.2f ppm after five minutes, want 12 within 1", seed, est.SkewPPM)
			}
		}
	}
	slices.Sort(late)
	if p95 := time.Duration(late[len(late)*95/100]); p95 > 40*time.Microsecond {
		t.Errorf("p95 of the error is %v, want at most 40 us", p95)
	}
	t.Logf("error p50 %v, p95 %v", time.Duration(late[len(late)/2]), time.Duration(late[len(late)*95/100]))
}

func TestAFreshPeerIsKnownToHalfItsRoundTrip(t *testing.T) {
	l := newLink(3, -7*time.Hour, 0)
	e := clock.NewEstimator(clock.DefaultConfig())
	if _, ok := e.Estimate(); ok {
		t.Error("an estimate without exchanges")
	}
	x := l.exchange(0)
	mustAdd(t, e, x)
	est, ok := e.Estimate()
	if !ok || est.N != 1 || est.SkewKnown || est.Epoch != 0 {
		t.Fatalf("Estimate() = %+v, %v", est, ok)
	}
	if d := est.Offset - x.Offset(); d.Abs() > time.Microsecond {
		t.Errorf("offset %v, the exchange says %v", est.Offset, x.Offset())
	}
	if est.Bound < x.RTT()/2 || est.Bound > x.RTT()/2+time.Microsecond {
		t.Errorf("bound %v, half the round trip is %v", est.Bound, x.RTT()/2)
	}
	_, soon := est.Local(est.At)
	_, later := est.Local(est.At.Add(time.Minute))
	if grown := later - soon; grown < 1700*time.Microsecond || grown > 1900*time.Microsecond {
		t.Errorf("a minute of up to 30 ppm widens the bound by %v, want 1.8 ms", grown)
	}
}

func TestAStepOpensAnEpochAndLeavesDurationsAlone(t *testing.T) {
	for _, step := range []time.Duration{time.Second, -time.Second} {
		l := newLink(9, 3200*time.Millisecond, 8)
		e := clock.NewEstimator(clock.DefaultConfig())
		for range 40 {
			mustAdd(t, e, l.exchange(5*time.Second))
		}
		before, _ := e.Estimate()
		// Tokens of a request that is under way while the peer's clock is set: stamped on its steady clock, so that
		// they map by the epoch in which it began.
		first := l.peer(l.now)
		var last timeline.Instant
		for i := range 101 {
			at, _ := before.Local(first.Add(time.Duration(i) * 20 * time.Millisecond))
			if i > 0 && at <= last {
				t.Fatalf("token %d is mapped before its predecessor", i)
			}
			last = at
		}
		start, _ := before.Local(first)
		if tpot := last.Sub(start) / 100; (tpot - 20*time.Millisecond).Abs() > 600*time.Nanosecond {
			t.Errorf("TPOT became %v of 20 ms: more than the clocks drift", tpot)
		}
		l.peerOrigin = l.peerOrigin.Add(step)
		l.now = l.now.Add(5 * time.Second)
		if !mustAdd(t, e, l.exchange(5*time.Second)) || e.Epoch() != 1 {
			t.Fatalf("step of %v went unseen, epoch %d", step, e.Epoch())
		}
		est, _ := e.Estimate()
		truth := l.now
		got, bound := est.Local(l.peer(truth))
		if got.Sub(truth).Abs() > bound+2 || est.N != 1 || est.Epoch != 1 {
			t.Errorf("after a step of %v: off by %v, bound %v, %d exchanges", step, got.Sub(truth), bound, est.N)
		}
		// What was handed out before still holds for what came before.
		past := hostStart.Add(30 * time.Second)
		l.peerOrigin = l.peerOrigin.Add(-step)
		if got, bound := before.Local(l.peer(past)); got.Sub(past).Abs() > bound+2 {
			t.Errorf("the old estimate is off by %v, bound %v", got.Sub(past), bound)
		}
	}
}

func TestAsymmetryStaysInsideTheBound(t *testing.T) {
	l := newLink(4, 90*time.Second, -6)
	l.forth, l.back, l.jitter = 44*time.Millisecond, 36*time.Millisecond, 3*time.Millisecond
	e := clock.NewEstimator(clock.DefaultConfig())
	var worst time.Duration
	for range 150 {
		mustAdd(t, e, l.exchange(5*time.Second))
		est, _ := e.Estimate()
		got, bound := est.Local(l.peer(l.now))
		off := got.Sub(l.now).Abs()
		if off > bound+2 {
			t.Fatalf("off by %v, bound %v", off, bound)
		}
		worst = max(worst, off)
	}
	// Half the asymmetry cannot be seen from the ends.
	if worst < 3*time.Millisecond {
		t.Errorf("worst error %v: the test's path is not asymmetric", worst)
	}
}

func TestLocalKeepsOrder(t *testing.T) {
	l := newLink(6, time.Hour, 14)
	e := clock.NewEstimator(clock.DefaultConfig())
	for range 30 {
		mustAdd(t, e, l.exchange(3*time.Second))
		est, _ := e.Estimate()
		var last timeline.Instant
		for p := est.At.Add(-time.Minute); p < est.At.Add(time.Minute); p = p.Add(7 * time.Millisecond) {
			at, _ := est.Local(p)
			if at <= last {
				t.Fatalf("instant %d maps to %d after %d", p, at, last)
			}
			last = at
		}
	}
}

func TestImpossibleStampsAreRefused(t *testing.T) {
	for name, x := range map[string]clock.Exchange{
		"answer received before it was asked": {T1: 100, T2: 10, T3: 11, T4: 99},
		"answered before it was asked":        {T1: 100, T2: 11, T3: 10, T4: 120},
		"held longer than the round trip":     {T1: 100, T2: 10, T3: 500, T4: 120},
		"never sent":                          {T2: 10, T3: 11, T4: 12},
	} {
		t.Run(name, func(t *testing.T) {
			e := clock.NewEstimator(clock.Config{})
			if _, err := e.Add(x); !errors.Is(err, clock.ErrStamps) {
				t.Errorf("Add() = %v, want ErrStamps", err)
			}
			if e.Refused() != 1 {
				t.Errorf("Refused() = %d", e.Refused())
			}
		})
	}
}

func TestKeepsNoMoreThanItShould(t *testing.T) {
	l := newLink(7, time.Second, 0)
	e := clock.NewEstimator(clock.Config{Keep: 5, MaxAge: 30 * time.Second})
	for range 20 {
		mustAdd(t, e, l.exchange(time.Second))
	}
	if est, _ := e.Estimate(); est.N != 5 {
		t.Errorf("%d exchanges kept, want 5", est.N)
	}
	l.now = l.now.Add(time.Minute)
	mustAdd(t, e, l.exchange(0))
	if est, _ := e.Estimate(); est.N != 1 {
		t.Errorf("%d exchanges kept after a minute of silence, want the newest alone", est.N)
	}
	e.CloseEpoch()
	e.CloseEpoch()
	if _, ok := e.Estimate(); ok || e.Epoch() != 1 {
		t.Errorf("a closed epoch has an estimate: %v, epoch %d", ok, e.Epoch())
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	if err := clock.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is at fault: %v", err)
	}
	want := "check max_drift_ppm: 2000 is not in (0, 1000]\ncheck keep: 0 is less than one\ncheck max_age: 0s is not positive"
	if err := (clock.Config{MaxDriftPPM: 2000}).Validate(); err == nil || err.Error() != want {
		t.Errorf("Validate() = %v, want %s", err, want)
	}
}

func BenchmarkLocal(b *testing.B) {
	l := newLink(1, time.Second, 3)
	e := clock.NewEstimator(clock.DefaultConfig())
	for range 64 {
		if _, err := e.Add(l.exchange(5 * time.Second)); err != nil {
			b.Fatal(err)
		}
	}
	est, _ := e.Estimate()
	b.ReportAllocs()
	for b.Loop() {
		est.Local(est.At)
	}
}
