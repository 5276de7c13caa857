package remote

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// These tests run the real helper, which runs the real binding against the simulated driver library, in real time.

// built is the helper and the driver library, built once for all tests.
type built struct {
	helper, driver string
	skip           string
	err            error
}

// buildDir is the folder that TestMain removes.
func buildDir() string {
	return filepath.Join(os.TempDir(), "tpotscope-helper-test-"+strconv.Itoa(os.Getpid()))
}

var build = sync.OnceValue(func() built {
	if _, err := exec.LookPath("gcc"); err != nil {
		return built{skip: "no gcc to build the helper and the simulated driver with"}
	}
	dir := buildDir()
	b := built{helper: filepath.Join(dir, HelperName), driver: filepath.Join(dir, "libnvidia-ml.so.1")}
	sources, err := filepath.Glob(filepath.Join("..", "sim", "driver", "*.c"))
	if err != nil {
		return built{err: err}
	}
	gcc := []string{"-std=c11", "-O2", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1", "-o", b.driver}
	for _, cmd := range []*exec.Cmd{
		exec.Command("mkdir", "-p", dir),
		exec.Command("gcc", append(append(gcc, sources...), "-lm")...),
		exec.Command("go", "build", "-ldflags", "-linkmode external -extldflags -Wl,-z,lazy", "-o", b.helper, "../../cmd/tpotscope-nvml"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return built{err: fmt.Errorf("%s: %w\n%s", cmd, err, out)}
		}
	}
	return b
})

// rig is a page, what plays it, and the clock of both.
type rig struct {
	built
	clock *hostclock.Clock
	page  *sim.Page
	path  string
	start timeline.Instant
	world sim.Waves
}

func newRig(tb testing.TB, gpus int) *rig {
	tb.Helper()
	return newRigOf(tb, sim.Waves{Count: gpus})
}

func newRigOf(tb testing.TB, world sim.Waves) *rig {
	tb.Helper()
	b := build()
	if b.skip != "" {
		tb.Skip(b.skip)
	}
	if b.err != nil {
		tb.Fatal(b.err)
	}
	clock, err := hostclock.New()
	if err != nil {
		tb.Fatal(err)
	}
	r := &rig{built: b, clock: clock, path: filepath.Join(tb.TempDir(), "page"), world: world}
	r.start = clock.Now()
	if r.page, err = sim.NewPage(r.path, r.world, sim.Options{}, clock.Now); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.page.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		if err := r.page.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

func (r *rig) options() Options {
	return Options{
		Helper: r.helper, Library: r.driver, Env: []string{sim.EnvPage + "=" + r.path}, Config: nvml.DefaultConfig(), Now: r.clock.Now,
	}
}

// run runs a source until the test is over.
func (r *rig) run(tb testing.TB, o Options) (*Source, *record) {
	tb.Helper()
	s, rec := NewSource(o), &record{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx, rec) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		if st := s.Stats(); st.Killed > 0 && !tb.Failed() {
			tb.Errorf("the helper had to be killed: %+v", st.LastLoss)
		}
	})
	return s, rec
}

// until polls for what real processes take their time for.
func until(tb testing.TB, atMost time.Duration, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(atMost)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %v for %s", atMost, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *rig) hang(t *testing.T, gpu int, d time.Duration) {
	t.Helper()
	if err := r.page.SetFault(sim.Fault{GPU: gpu, Call: int(nvml.CallTake), Delay: d}); err != nil {
		t.Fatal(err)
	}
}

func TestEightGPUsAddUpToTheWorld(t *testing.T) {
	const span = 10 * time.Second
	r := newRig(t, 8)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(7, timeline.DRAMUtil)) > 0 })
	for range 3 {
		over := timeline.Span{Start: r.clock.Now(), End: r.clock.Now().Add(span)}
		until(t, 2*span, "windows", func() bool { return r.clock.Now() > over.End.Add(500*time.Millisecond) })
		covered := span
		for gpu := range 8 {
			covered = min(covered, r.covered(rec, gpu, over))
		}
		t.Logf("%v of %v covered; of gpu 0: dropped %v, missed %d", covered, span, s.Stats().GPUs[0].Dropped, s.Stats().GPUs[0].Missed)
		if covered > span*96/100 { // a window at each end lies half outside
			r.judge(t, rec, over)
			return
		}
	}
	t.Skip("this machine is too busy: the processes did not run for so long that windows are missing")
}

// within returns the windows of a GPU that lie in a span.
func within(rec *record, gpu int, c timeline.Counter, over timeline.Span) []timeline.Sample {
	return slices.DeleteFunc(rec.windows(gpu, c), func(w timeline.Sample) bool {
		return w.Over.Start < over.Start || w.Over.End > over.End
	})
}

func (r *rig) covered(rec *record, gpu int, over timeline.Span) time.Duration {
	var sum time.Duration
	for _, w := range within(rec, gpu, timeline.DRAMUtil, over) {
		sum += w.Over.Duration()
	}
	return sum
}

// judge holds what was measured over a span against what was there.
func (r *rig) judge(t *testing.T, rec *record, over timeline.Span) {
	t.Helper()
	// A snapshot holds what was counted up to the last refresh: half of 100 ms ago, on average.
	from := r.start.Add(50 * time.Millisecond)
	worst := 0.0
	for gpu := range 8 {
		for c := timeline.GraphicsUtil; c.Windowed(); c++ {
			measured, there := 0.0, 0.0
			for _, w := range within(rec, gpu, c, over) {
				measured += w.Value[c] * w.Over.Duration().Seconds()
				there += r.world.Integral(gpu, c, w.Over.End.Sub(from)) - r.world.Integral(gpu, c, w.Over.Start.Sub(from))
			}
			off := math.Abs(measured-there) / there
			worst = max(worst, off)
			if !(off <= 0.01) {
				t.Errorf("gpu %d %s: %.4f measured, %.4f in the world: %.2f %% apart", gpu, c, measured, there, 100*off)
			}
		}
		slow := within(rec, gpu, timeline.Energy, over)
		first, last := slow[0], slow[len(slow)-1]
		watts := (last.Value[timeline.Energy] - first.Value[timeline.Energy]) / last.Over.Mid().Sub(first.Over.Mid()).Seconds()
		if math.Abs(watts-420) > 0.03*420 { // the energy counter is refreshed ten times a second
			t.Errorf("gpu %d: energy grows by %.1f W, want 420", gpu, watts)
		}
	}
	t.Logf("worst of 56 counters: %.2f %% apart", 100*worst)
}

func TestKilledHelperComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > 3 })
	before := r.clock.Now()
	if err := syscall.Kill(s.Stats().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, 5*time.Second, "the loss", func() bool { return slices.Contains(rec.kinds(), string(timeline.EventSamplerLost)) })
	rec.mu.Lock()
	lost := rec.events[1]
	rec.mu.Unlock()
	if at := lost.At.Sub(before); at > time.Second || !strings.Contains(lost.Detail, "killed") {
		t.Errorf("loss %q said %v after the kill, want within 1 s, with how it ended", lost.Detail, at)
	}
	n := len(rec.windows(1, timeline.DRAMUtil))
	until(t, 10*time.Second, "windows of the next helper", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > n+3 })
	if diff := rec.statesOf(1, timeline.DRAMUtil); strings.Join(diff, " ") != "ok stale ok" {
		t.Errorf("states %v, want ok, stale, ok", diff)
	}
}

func TestHangOfOneGPULeavesTheOthersAndOfAllEndsTheHelper(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	s, rec := r.run(t, r.options())
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > 3 })
	r.hang(t, 1, time.Hour)
	until(t, 6*time.Second, "gpu 1 to be timed out", func() bool {
		return strings.Join(rec.statesOf(1, timeline.DRAMUtil), " ") == "ok timeout"
	})
	if st := s.Stats(); st.Restarts > 0 || strings.Join(rec.statesOf(0, timeline.DRAMUtil), " ") != "ok" {
		t.Errorf("gpu 0 is %v after %d restarts, want it untouched", rec.statesOf(0, timeline.DRAMUtil), st.Restarts)
	}
	r.hang(t, 0, time.Hour)
	until(t, 12*time.Second, "the helper to be given up", func() bool {
		return slices.Contains(rec.kinds(), string(timeline.EventSamplerLost))
	})
	r.hang(t, 0, 0)
	r.hang(t, 1, 0)
	n := len(rec.windows(1, timeline.DRAMUtil))
	until(t, 15*time.Second, "windows of the next helper", func() bool { return len(rec.windows(1, timeline.DRAMUtil)) > n+3 })
}

func TestHelperThatBindsAtStartNamesTheCause(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	o := r.options()
	o.Env = append(o.Env, "LD_BIND_NOW=1")
	s, rec := r.run(t, o)
	until(t, 10*time.Second, "the loss", func() bool { return len(rec.kinds()) > 0 })
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if d := rec.events[0].Detail; !strings.Contains(d, "127") || !strings.Contains(d, "symbol lookup error") {
		t.Errorf("loss %q, want the exit status and the loader's words; stats %+v", d, s.Stats())
	}
}

func TestHelperEndsWithStdinAndOnSIGTERM(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	for name, end := range map[string]func(*process) error{
		"stdin": func(p *process) error { return p.stdin.Close() },
		"term":  func(p *process) error { return p.signal(syscall.SIGTERM) },
	} {
		p, err := spawn(r.helper, helperArgs(r.options()), r.options().Env)
		if err != nil {
			t.Fatal(err)
		}
		f := newFrameReader(p.frames)
		for k := kind(0); k != kindSample; {
			if k, _, err = f.next(); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, p.frames) }()
		stderr, err := io.ReadAll(p.stderr)
		if err != nil {
			t.Fatal(err)
		}
		if !waitEnd(p, 5*time.Second) {
			_ = p.signal(os.Kill)
			t.Fatalf("%s: the helper did not end within 5 s", name)
		}
		// The simulated driver refuses to shut down while snapshots are not freed, so this also says that they were.
		if err := p.exit(); err != nil || len(stderr) > 0 {
			t.Errorf("%s: %v, stderr %q; want a clean end", name, err, stderr)
		}
		p.release()
	}
}

const parentVar = "TPOTSCOPE_TEST_PARENT"

// TestParent is the agent in TestHelperEndsWithItsAgent: a process of its own that can be killed.
func TestParent(t *testing.T) {
	args := strings.Split(os.Getenv(parentVar), "|")
	if len(args) != 3 {
		t.Skip("runs only as a child of TestHelperEndsWithItsAgent")
	}
	clock, err := hostclock.New()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSource(Options{
		Helper: args[0], Library: args[1], Env: []string{sim.EnvPage + "=" + args[2]}, Config: nvml.DefaultConfig(), Now: clock.Now,
	})
	rec := &record{}
	go func() { _ = s.Run(context.Background(), rec) }()
	until(t, 10*time.Second, "windows", func() bool { return len(rec.windows(0, timeline.DRAMUtil)) > 1 })
	fmt.Printf("pid %d\n", s.Stats().PID)
	time.Sleep(time.Minute) // killed in it
}

func TestHelperEndsWithItsAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestParent$")
	// The variable must not reach the helper, which could not start with it.
	cmd.Env = append(os.Environ(), parentVar+"="+strings.Join([]string{r.helper, r.driver, r.path}, "|"), "LD_BIND_NOW=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, perr := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid ")))
	if err != nil || perr != nil {
		t.Fatalf("the agent said %q: %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	until(t, 5*time.Second, "the helper to end", func() bool { return !alive(pid) })
}

// alive reports whether a process runs: one that ended and was not waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return !bytes.HasPrefix(rest, []byte("Z"))
}

// BenchmarkHelper prints what the helper takes for eight GPUs at default rates: run it with -benchtime 1x.
func BenchmarkHelper(b *testing.B) {
	r := newRig(b, 8)
	s, rec := r.run(b, r.options())
	until(b, 10*time.Second, "windows", func() bool { return len(rec.windows(7, timeline.DRAMUtil)) > 10 })
	pid := s.Stats().PID
	for b.Loop() {
		cpu, began := cpuTime(b, pid), time.Now()
		time.Sleep(20 * time.Second)
		b.ReportMetric((cpuTime(b, pid)-cpu).Seconds()/time.Since(began).Seconds(), "cores")
		b.ReportMetric(rss(b, pid), "MB-rss")
		b.ReportMetric(float64(s.Stats().GPUs[0].Duty), "duty")
	}
}

func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest))
	user, uerr := strconv.Atoi(fields[11])
	system, serr := strconv.Atoi(fields[12])
	if uerr != nil || serr != nil {
		b.Fatalf("cpu time of %q", stat)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // in ticks of USER_HZ, 100 a second
}

func rss(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb / 1024
}
