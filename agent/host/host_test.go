package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a process file system that a test writes.
type machine struct {
	tb   testing.TB
	proc string
}

func newMachine(tb testing.TB) machine {
	tb.Helper()
	return machine{tb, tb.TempDir()}
}

func (m machine) write(path, text string) {
	m.tb.Helper()
	path = filepath.Join(m.proc, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.tb.Fatal(err)
	}
}

// cpu writes the totals in ticks of 10 ms.
func (m machine) cpu(user, system, idle, iowait, steal int) {
	line := fmt.Sprintf("cpu  %d 0 %d %d %d 0 0 %d 0 0\n", user, system, idle, iowait, steal)
	m.write("stat", line+"cpu0 0 0 0 0 0 0 0 0 0 0\nbtime 1790000000\n")
}

// process writes a process with its ticks and resident pages.
func (m machine) process(pid, ticks, pages int) {
	m.write(fmt.Sprintf("%d/stat", pid),
		fmt.Sprintf("%d (agent) S 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 100 0 %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", pid, ticks, pages))
	m.write(fmt.Sprintf("%d/statm", pid), fmt.Sprintf("%d %d 0 0 0 0 0\n", pages, pages))
}

// steps is a clock that moves when told.
type steps struct{ at timeline.Instant }

func (s *steps) now() timeline.Instant { return s.at }

func TestASampleCoversTheTimeSinceTheLast(t *testing.T) {
	m := newMachine(t)
	m.cpu(1000, 0, 9000, 0, 0)
	m.write("pressure/cpu", "some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	m.write("pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	m.write("loadavg", "3.25 2.00 1.00 2/300 4242\n")
	m.process(7, 100, 1000)
	m.process(8, 500, 500)
	clock := &steps{timeline.Instant(time.Hour)}
	pids := []int{7, 8, 99}
	r, err := host.New(host.Config{Interval: time.Second, Proc: m.proc, Own: func() []int { return pids }}, clock.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := r.Read(t.Context()); ok {
		t.Error("the first reading covers nothing, and gave a sample")
	}
	clock.at += 2e9
	m.cpu(1060, 40, 9060, 20, 20) // of 200 ticks: 100 busy, 80 idle or waiting, 20 stolen
	m.process(7, 130, 2000)       // 0.3 s
	m.process(8, 510, 500)        // 0.1 s
	s, ok := r.Read(t.Context())
	if !ok {
		t.Fatal("no sample")
	}
	want := map[timeline.HostCounter]float64{
		timeline.HostCPUUtil: 0.5, timeline.HostSteal: 0.1, timeline.HostCPUPressure: 0.125, timeline.HostMemPressure: 0,
		timeline.HostLoad1: 3.25, timeline.AgentCPU: 0.2, timeline.AgentRSS: float64(2500 * os.Getpagesize()),
	}
	for c := range timeline.HostCounter(timeline.NumHostCounters) {
		got, has := s.Get(c)
		if w, ok := want[c]; has != ok || math.Abs(got-w) > 1e-9 {
			t.Errorf("%s = %v, %v; want %v, %v", c, got, has, w, ok)
		}
	}
	if s.Over != (timeline.Span{Start: timeline.Instant(time.Hour), End: timeline.Instant(time.Hour) + 2e9}) {
		t.Errorf("sample over %v", s.Over)
	}
}

func TestWhatTheHostDoesNotTellIsMissing(t *testing.T) {
	m := newMachine(t)
	m.write("pressure/cpu", "some avg10=nan\n")
	clock := &steps{timeline.Instant(time.Hour)}
	r, err := host.New(host.Config{Interval: time.Second, Proc: m.proc, Own: func() []int { return []int{7} }}, clock.now)
	if err != nil {
		t.Fatal(err)
	}
	r.Read(t.Context())
	clock.at += 1e9
	s, ok := r.Read(t.Context())
	if !ok {
		t.Fatal("no sample")
	}
	for _, c := range []timeline.HostCounter{timeline.HostCPUUtil, timeline.HostSteal, timeline.HostCPUPressure, timeline.HostMemPressure, timeline.AgentCPU, timeline.AgentRSS} {
		if v, has := s.Get(c); has {
			t.Errorf("%s = %v on a host that does not tell it", c, v)
		}
	}
}

func TestAProcessThatStartsAgainAddsNoTimeOfTheOldOne(t *testing.T) {
	m := newMachine(t)
	m.cpu(1, 0, 1, 0, 0)
	m.process(7, 1000, 1)
	clock := &steps{timeline.Instant(time.Hour)}
	r, err := host.New(host.Config{Interval: time.Second, Proc: m.proc, Own: func() []int { return []int{7} }}, clock.now)
	if err != nil {
		t.Fatal(err)
	}
	r.Read(t.Context())
	clock.at += 1e9
	m.process(7, 10, 1)
	s, _ := r.Read(t.Context())
	if v, has := s.Get(timeline.AgentCPU); has {
		t.Errorf("agent used %v cores; its number belongs to another process", v)
	}
}

func TestRunReadsEachInterval(t *testing.T) {
	m := newMachine(t)
	m.cpu(1, 0, 1, 0, 0)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r, err := host.New(host.Config{Interval: time.Second, Proc: m.proc}, func() timeline.Instant {
			return timeline.Instant(time.Hour).Add(time.Since(start))
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		var ends []time.Duration
		if err := r.Run(ctx, func(s *timeline.HostSample) { ends = append(ends, time.Since(start)) }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ends, []time.Duration{1e9, 2e9, 3e9}) {
			t.Errorf("samples at %v, want each second", ends)
		}
	})
}

func TestThisHostTellsItsBusyCores(t *testing.T) {
	start := time.Now()
	r, err := host.New(host.DefaultConfig(), func() timeline.Instant { return timeline.Instant(time.Hour).Add(time.Since(start)) })
	if err != nil {
		t.Fatal(err)
	}
	r.Read(t.Context())
	deadline := time.Now().Add(10 * time.Second)
	for {
		s, ok := r.Read(t.Context())
		if v, has := s.Get(timeline.HostCPUUtil); ok && has {
			if v < 0 || v > 1 {
				t.Errorf("cpu util %v", v)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the kernel's totals do not move")
		}
	}
}

func TestAnIntervalThatIsTooShortIsRefused(t *testing.T) {
	if _, err := host.New(host.Config{Interval: time.Millisecond}, nil); err == nil {
		t.Error("an interval of 1ms was taken")
	}
}

func TestAPortLeadsToItsProcessAndThoseBelow(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait() // it was killed
	}()
	e, err := host.Listener(t.Context(), "/proc", addr.Port)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Listeners, []int{os.Getpid()}) {
		t.Errorf("listeners %v, want %d", e.Listeners, os.Getpid())
	}
	for _, pid := range []int{os.Getpid(), child.Process.Pid} {
		if !slices.Contains(e.Tree, pid) {
			t.Errorf("%d is not in the tree %v", pid, e.Tree)
		}
	}
	if slices.Contains(e.Tree, os.Getppid()) {
		t.Errorf("the parent %d is in the tree %v", os.Getppid(), e.Tree)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Listener(t.Context(), "/proc", addr.Port); !errors.Is(err, host.ErrNoListener) {
		t.Errorf("a closed port: %v, want %v", err, host.ErrNoListener)
	}
}

func FuzzParsePressure(f *testing.F) {
	f.Add([]byte("some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"))
	f.Add([]byte("some avg10=NaN"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := host.ParsePressure(text); err == nil && !(p >= 0 && p <= 1) {
			t.Errorf("fraction %v", p)
		}
	})
}

func TestAHiddenListenerIsNotNoListener(t *testing.T) {
	m := newMachine(t)
	m.write("net/tcp", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"+
		"   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000000000000000 100 0 0 10 0\n")
	m.write("net/tcp6", "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n")
	if _, err := host.Listener(t.Context(), m.proc, 8000); !errors.Is(err, host.ErrHiddenListener) {
		t.Errorf("got %v, want %v", err, host.ErrHiddenListener)
	}
}

func BenchmarkRead(b *testing.B) {
	start := time.Now()
	r, err := host.New(host.Config{Interval: time.Second, Own: func() []int { return []int{os.Getpid()} }}, func() timeline.Instant {
		return timeline.Instant(time.Hour).Add(time.Since(start))
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Read(b.Context())
	}
}
