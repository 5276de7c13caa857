package libnvml_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/libnvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// One process can load one driver library, and it maps one page. So all tests of this process share both, and what
// needs another library runs in a child: this binary again, with childVar set.
const (
	gpuCount   = 8
	childVar   = "TPOTSCOPE_TEST_CHILD"
	libraryVar = "TPOTSCOPE_TEST_LIBRARY" // of a child: the library that it uses, instead of one it builds
)

var (
	page    *sim.Page
	library string
)

var start = time.Now()

func now() timeline.Instant { return timeline.Instant(time.Second + time.Since(start)) }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvmlsim")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if _, err := exec.LookPath("gcc"); err != nil {
		fmt.Fprintln(os.Stderr, "skipping all tests of libnvml: no gcc to build the simulated driver with")
		return 0
	}
	library = os.Getenv(libraryVar)
	if library == "" {
		library = filepath.Join(dir, "libnvidia-ml.so.1")
		if err := compile(library, os.Getenv(childVar)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	path := filepath.Join(dir, "page")
	page, err = sim.NewPage(path, sim.Waves{Count: gpuCount, MIG: migCount()}, sim.Options{}, now)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.Setenv(sim.EnvPage, path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- page.Run(ctx) }()
	code := m.Run()
	stop()
	if err := errors.Join(<-done, page.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// migCount is how many instances the first GPU is cut into: some in the children that look at them.
func migCount() int {
	if os.Getenv(libraryVar) != "" {
		return 2
	}
	return 0
}

// compile builds the simulated driver, without what the OMIT macro of that name leaves out.
func compile(to, omit string) error {
	sources, err := filepath.Glob(filepath.Join("..", "sim", "driver", "*.c"))
	if err != nil {
		return err
	}
	args := []string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1", "-o", to}
	if omit != "" {
		args = append(args, "-D"+omit)
	}
	out, err := exec.Command("gcc", append(append(args, sources...), "-lm")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile driver: %w\n%s", err, out)
	}
	return nil
}

func open(t *testing.T) (*libnvml.Library, []nvml.Device) {
	t.Helper()
	lib, err := libnvml.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Errorf("close: %v", err) // the simulated driver says "in use" while snapshots are not freed
		}
	})
	devices, err := lib.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return lib, devices
}

func TestIdentityIsWhatTheDriverTells(t *testing.T) {
	lib, devices := open(t)
	if lib.Driver() != sim.DefaultDriver {
		t.Errorf("driver %q, want %q", lib.Driver(), sim.DefaultDriver)
	}
	if missing := lib.Missing(); len(missing) > 0 {
		t.Errorf("missing functions %v, want none", missing)
	}
	want := sim.Waves{Count: gpuCount}.GPUs()
	var have []timeline.GPU
	for _, d := range devices {
		have = append(have, d.GPU())
	}
	for i := range want {
		want[i].Driver = sim.DefaultDriver
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("devices (-want +have):\n%s", diff)
	}
}

func TestEveryCounterIsReadInItsUnit(t *testing.T) {
	_, devices := open(t)
	var r nvml.Reading
	for call := nvml.CallSMClock; call <= nvml.CallUtilization; call++ {
		devices[2].Read(call, &r)
	}
	world := sim.Waves{Count: gpuCount}
	s := page.Elapsed().Seconds()
	want := map[timeline.Counter]float64{
		timeline.MemClock: 2619e6, timeline.Power: 420, timeline.PowerLimit: 700, timeline.Temperature: 57,
		timeline.MemUsed: world.At(2, 0).MemUsedBytes, timeline.Energy: 420 * s,
		timeline.ThrottlePower: 0.25 * s, timeline.ThrottleSWThermal: 0.05 * s, timeline.ThrottleHWThermal: 0.02 * s,
		timeline.ThrottlePowerBrake: 0.01 * s, timeline.ThrottleSyncBoost: 0,
		timeline.MemTemperature: 70, timeline.TemperatureMargin: 28, timeline.PCIeGen: 5, timeline.PCIeWidth: 16,
		timeline.RowRemapPending: 0, timeline.RowRemapFailure: 0, timeline.PCIeTx: 1.5e9 * s, timeline.PCIeRx: 2.5e9 * s,
		timeline.NVLinkTx: float64(40<<30) * s, timeline.NVLinkRx: float64(41<<30) * s, timeline.ECCUncorrected: 0, timeline.RemappedCorrectable: 0,
	}
	for c, v := range want {
		late := 0.0
		if c >= timeline.Energy {
			late = 0.5 * v / s // a refresh is 0.1 s old, and more on a busy machine
		}
		if have := r.Value[c]; !r.Has.Has(c) || math.Abs(have-v) > late+1e-9*v {
			t.Errorf("%s: have %v (%v), want about %v", c, have, r.Err[c], v)
		}
	}
	if v := r.Value[timeline.SMClock]; v != 1980e6 && v != 1755e6 {
		t.Errorf("sm clock %v, want one of the two that the world has", v)
	}
	if v := r.Value[timeline.GPUDuty]; v < 0 || v > 1 || !r.Has.Has(timeline.GPUDuty) || !r.Has.Has(timeline.MemDuty) {
		t.Errorf("duty %v, has %b: want a fraction, and both", v, r.Has)
	}
}

func TestWindowIsTheMeanBetweenTwoRefreshes(t *testing.T) {
	_, devices := open(t)
	d := devices[5]
	if err := d.Take(0); err != nil {
		t.Fatal(err)
	}
	from := page.Elapsed()
	wait(t, 1200*time.Millisecond)
	if err := d.Take(1); err != nil {
		t.Fatal(err)
	}
	to := page.Elapsed()
	var r nvml.Reading
	d.Between(0, 1, &r)
	world := sim.Waves{Count: gpuCount}
	for _, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.TensorUtil, timeline.IMMAUtil, timeline.DRAMUtil} {
		want := (world.Integral(5, c, to) - world.Integral(5, c, from)) / (to - from).Seconds()
		if have := r.Value[c]; !r.Has.Has(c) || math.Abs(have-want) > 0.06 {
			t.Errorf("%s: have %v (%v), want about %v", c, have, r.Err[c], want)
		}
	}
}

func TestWindowWithinOneRefreshIsNoNumber(t *testing.T) {
	_, devices := open(t)
	var r nvml.Reading
	for range 50 { // two snapshots in a row fall into one refresh, but for bad luck
		if err := errors.Join(devices[0].Take(0), devices[0].Take(1)); err != nil {
			t.Fatal(err)
		}
		devices[0].Between(0, 1, &r)
		if math.IsNaN(r.Value[timeline.DRAMUtil]) {
			return
		}
	}
	t.Errorf("dram util of an empty window is %v, want NaN", r.Value[timeline.DRAMUtil])
}

func TestFailuresHaveTheirKind(t *testing.T) {
	_, devices := open(t)
	for code, want := range map[int]error{
		3: nvml.ErrNotSupported, 4: nvml.ErrNoPermission, 10: nvml.ErrTimeout, 15: nvml.ErrGPULost, 999: nvml.ErrDriver,
	} {
		fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallTake), Code: code})
		fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallMemory), Code: code})
		if err := devices[1].Take(0); !errors.Is(err, want) {
			t.Errorf("code %d of a snapshot: %v, want %v", code, err, want)
		}
		var r nvml.Reading
		devices[1].Read(nvml.CallMemory, &r)
		if err := r.Err[timeline.MemUsed]; !errors.Is(err, want) || r.Has != 0 {
			t.Errorf("code %d of memory: %v, want %v", code, err, want)
		}
		if err := devices[0].Take(0); err != nil {
			t.Errorf("another gpu: %v, want none of it", err)
		}
	}
	fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallTake)})
	fault(t, sim.Fault{GPU: 1, Call: int(nvml.CallMemory)})
}

func TestLostGPUDoesNotHideTheOthers(t *testing.T) {
	if err := page.SetOpen(2, 15); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.SetOpen(2, 0) }()
	lib, err := libnvml.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := lib.Devices()
	if !errors.Is(err, nvml.ErrGPULost) || !strings.Contains(err.Error(), "open gpu 2") || len(devices) != gpuCount-1 {
		t.Errorf("%d devices and %v, want seven, and that gpu 2 is lost", len(devices), err)
	}
	if err := lib.Close(); err != nil {
		t.Error(err)
	}
}

func TestOneMetricFailsAlone(t *testing.T) {
	_, devices := open(t)
	if err := page.SetMetricCode(3, timeline.IMMAUtil, 3); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.SetMetricCode(3, timeline.IMMAUtil, 0) }()
	if err := devices[3].Take(0); err != nil {
		t.Fatal(err)
	}
	wait(t, 250*time.Millisecond)
	if err := devices[3].Take(1); err != nil {
		t.Fatal(err)
	}
	var r nvml.Reading
	devices[3].Between(0, 1, &r)
	if want := timeline.GPM &^ timeline.Set(timeline.IMMAUtil); r.Has&timeline.GPM != want || !errors.Is(r.Err[timeline.IMMAUtil], nvml.ErrNotSupported) {
		t.Errorf("has %b with %v, want %b and not supported", r.Has, r.Err[timeline.IMMAUtil], want)
	}
}

func TestMissingLibraryNamesTheLoadersReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nothing.so")
	_, err := libnvml.Open(path)
	if !errors.Is(err, nvml.ErrNoLibrary) || !strings.Contains(err.Error(), "cannot open shared object file") {
		t.Errorf("open: %v, want no library, with the loader's reason", err)
	}
}

func TestDriverThatDoesNotStartHasItsKind(t *testing.T) {
	for code, want := range map[int]error{9: nvml.ErrNoDriver, 18: nvml.ErrVersionMismatch} {
		if err := page.SetInit(code, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := libnvml.Open(library); !errors.Is(err, want) {
			t.Errorf("code %d: %v, want %v", code, err, want)
		}
	}
	if err := page.SetInit(0, 0); err != nil {
		t.Fatal(err)
	}
}

// TestInChild holds what TestOlderDrivers runs in a process of its own.
func TestInChild(t *testing.T) {
	omit := os.Getenv(childVar)
	if omit == "" {
		t.Skip("runs only as a child of TestOlderDrivers")
	}
	if omit == "OMIT_COUNT" {
		if _, err := libnvml.Open(library); !errors.Is(err, nvml.ErrNoLibrary) || !strings.Contains(err.Error(), "nvmlDeviceGetCount_v2") {
			t.Errorf("open: %v, want an error that names what is missing", err)
		}
		return
	}
	lib, devices := open(t)
	switch omit {
	case "OMIT_LINK_FIELDS":
		linksFromWindows(t, devices[1])
		return
	case "OMIT_EVENTS":
		if one, other := lib.Tells(0), lib.Tells(1); one != nil || !errors.Is(other, nvml.ErrNoPermission) {
			t.Errorf("tells errors: %v and %v, want those of the first device alone", one, other)
		}
		return
	}
	var r nvml.Reading
	devices[0].Read(nvml.CallReasons, &r)
	if !r.Has.Has(timeline.EventReasons) {
		t.Errorf("event reasons: %v", r.Err[timeline.EventReasons])
	}
	gpm := omit != "OMIT_GPM"
	if err := devices[0].Take(0); gpm != (err == nil) || gpm != devices[0].GPU().GPM {
		t.Errorf("snapshot: %v, GPM %v", err, devices[0].GPU().GPM)
	}
	if len(lib.Missing()) == 0 {
		t.Error("nothing is missing, want what was left out")
	}
}

// linksFromWindows makes sure that a device that counts no bytes over NVLink tells them by its windows.
func linksFromWindows(t *testing.T, d nvml.Device) {
	t.Helper()
	s := &states{state: map[string]timeline.State{}, detail: map[string]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), 2600*time.Millisecond)
	defer cancel()
	if err := nvml.NewSampler(0, d, nvml.DefaultConfig(), now).Run(ctx, s); err != nil {
		t.Fatal(err)
	}
	for _, c := range []timeline.Counter{timeline.NVLinkTx, timeline.NVLinkRx} {
		v, ok := s.last.Get(c)
		if !ok || v < 20<<30 || v > 41<<30*page.Elapsed().Seconds() || !strings.Contains(s.detail[c.String()], "windows of activity, integrated") {
			t.Errorf("%s: %v after two seconds of 40 GiB/s (%s)", c, v, s.detail[c.String()])
		}
	}
}

func TestOlderDrivers(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, omit := range []string{"OMIT_GPM", "OMIT_EVENT_REASONS", "OMIT_COUNT", "OMIT_LINK_FIELDS", "OMIT_EVENTS"} {
		t.Run(omit, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestInChild$", "-test.v")
			cmd.Env = append(os.Environ(), childVar+"="+omit)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInChild") {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
}

func fault(t *testing.T, f sim.Fault) {
	t.Helper()
	if err := page.SetFault(f); err != nil {
		t.Fatal(err)
	}
}

// wait lets real time pass: the page is played in it.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

func BenchmarkCalls(b *testing.B) {
	lib, err := libnvml.Open(library)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = lib.Close() }()
	devices, err := lib.Devices()
	if err != nil {
		b.Fatal(err)
	}
	var r nvml.Reading
	for call := nvml.CallSMClock; call <= nvml.CallUtilization; call++ {
		b.Run(call.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				devices[0].Read(call, &r)
			}
		})
	}
	b.Run("gpm_sample", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = devices[0].Take(0)
		}
	})
	b.Run("gpm_metrics", func(b *testing.B) {
		b.ReportAllocs()
		_ = devices[0].Take(1)
		for b.Loop() {
			devices[0].Between(0, 1, &r)
		}
	})
}

func TestProcessesThatCannotBeAreNotBelieved(t *testing.T) {
	_, devices := open(t)
	var v timeline.Inventory
	page.SetProcesses(4, timeline.GPUProcess{PID: 4004, MemoryBytes: 1 << 30}, timeline.GPUProcess{PID: 1 << 23, MemoryBytes: 7})
	until(t, "garbage among the processes", func() bool {
		err := devices[4].Survey(nvml.CallProcesses, &v)
		return errors.Is(err, nvml.ErrDriver) && !v.ProcessesKnown && len(v.Processes) == 0
	})
	page.SetProcesses(4, timeline.GPUProcess{PID: 4004, MemoryBytes: 1<<64 - 1})
	until(t, "a process whose memory is not told", func() bool {
		err := devices[4].Survey(nvml.CallProcesses, &v)
		return err == nil && v.ProcessesKnown && len(v.Processes) == 1 && v.Processes[0] == timeline.GPUProcess{PID: 4004}
	})
}

// until polls for what the page takes its time for.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); wait(t, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 5 s for %s", what)
		}
	}
}
