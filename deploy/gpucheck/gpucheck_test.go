package gpucheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// does is what a simulated GPU does while a fake load sleeps.
var does = map[string]map[timeline.Counter]float64{
	"stream":      {timeline.DRAMUtil: 0.9, timeline.TensorUtil: 0.05, timeline.SMUtil: 0.95, timeline.GraphicsUtil: 1},
	"stream_half": {timeline.DRAMUtil: 0.9, timeline.TensorUtil: 0.05, timeline.SMUtil: 0.95, timeline.GraphicsUtil: 1},
	"gemm":        {timeline.DRAMUtil: 0.3, timeline.TensorUtil: 0.9, timeline.SMUtil: 0.97, timeline.GraphicsUtil: 1},
	"gaps":        {timeline.DRAMUtil: 0.15, timeline.TensorUtil: 0.02, timeline.SMUtil: 0.2, timeline.GraphicsUtil: 0.25},
	"mixed":       {timeline.DRAMUtil: 0.5, timeline.TensorUtil: 0.5, timeline.SMUtil: 0.9, timeline.GraphicsUtil: 1},
}

// turn is a load from its begin on.
type turn struct {
	at   timeline.Instant
	name string
}

// follower is a GPU that does what the fake loads note that they would do. Its faults scale what it does.
type follower struct {
	gpu   timeline.GPU
	log   string
	begin timeline.Instant
	scale float64 // of the DRAM traffic under the larger of the streaming loads

	mu    sync.Mutex
	size  int64
	turns []turn
}

func (f *follower) GPUs() []timeline.GPU    { return []timeline.GPU{f.gpu} }
func (f *follower) Duration() time.Duration { return time.Hour }

func (f *follower) At(_ int, t time.Duration) sim.Gauges {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read(f.begin.Add(t))
	g := sim.Gauges{SMClockHz: 1.83e9, MemClockHz: 2.619e9, PowerW: 80, PowerLimitW: 700}
	for _, on := range f.turns {
		if g.PowerW = 80; does[on.name] != nil && on.at <= f.begin.Add(t) {
			g.PowerW = 550
		}
	}
	return g
}

func (f *follower) Integral(_ int, c timeline.Counter, t time.Duration) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, sum := f.begin.Add(t), 0.0
	f.read(at)
	for i, on := range f.turns {
		until := at
		if i+1 < len(f.turns) {
			until = min(at, f.turns[i+1].at)
		}
		v := does[on.name][c]
		if on.name == "stream" && c == timeline.DRAMUtil {
			v *= f.scale
		}
		sum += v * max(0, until.Sub(on.at)).Seconds()
	}
	return sum
}

// read takes what was noted since the last look, at that instant. What comes late because the load or this process had to
// wait for a core begins when it comes: a world that changed its past would tell several times as much as there was.
func (f *follower) read(at timeline.Instant) {
	st, err := os.Stat(f.log)
	if err != nil || st.Size() == f.size {
		return
	}
	raw, err := os.ReadFile(f.log)
	if err != nil || len(raw) == 0 || raw[len(raw)-1] != '\n' {
		return
	}
	fresh := raw[f.size:]
	f.size = int64(len(raw))
	for line := range strings.Lines(string(fresh)) {
		var n turn
		if _, err := fmt.Sscanf(line, "%d %s", &n.at, &n.name); err == nil {
			n.at = max(n.at, at)
			f.turns = append(f.turns, n)
		}
	}
}

// outcome is what is read of result.json.
type outcome struct {
	Fake      bool `json:"fake"`
	Simulated bool `json:"simulated"`
	Checks    []struct{ Name, State, Detail string }
}

func (o *outcome) state(name string) string {
	for _, c := range o.Checks {
		if c.Name == name {
			return c.State
		}
	}
	return "missing"
}

// place is where the script runs, and with what.
type place struct {
	dir, bin, driver string
	env              []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not there: the script is not tested")
	}
	bin, err := filepath.Abs("../../bin")
	must(t, err)
	p := &place{dir: t.TempDir(), bin: bin, driver: filepath.Join(bin, "nvmlsim", "libnvidia-ml.so.1")}
	for _, file := range []string{filepath.Join(bin, "tpotscope"), filepath.Join(bin, "tpotscope-nvml"), p.driver} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("%s is not there: `make build nvmlsim`, which needs gcc", file)
		}
	}
	p.env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return p
}

// check runs the script and returns its exit code and what it found.
func (p *place) check(t *testing.T, args ...string) (int, outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out := filepath.Join(p.dir, "out")
	cmd := exec.CommandContext(ctx, "python3", append([]string{"gpucheck.py", "--bin", p.bin, "--out", out, "--library", p.driver}, args...)...)
	cmd.Env = p.env
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	_ = cmd.Run() // its code is looked at
	t.Logf("gpucheck.py %s\n%s", strings.Join(args, " "), &text)
	raw, err := os.ReadFile(filepath.Join(out, "result.json"))
	must(t, err)
	var o outcome
	must(t, json.Unmarshal(raw, &o))
	page, err := os.ReadFile(filepath.Join(out, "result.md"))
	must(t, err)
	if o.Fake != strings.Contains(string(page), "FAKE") || o.Simulated != strings.Contains(string(page), "SIMULATED") {
		t.Errorf("result.md hides that it is fake or simulated:\n%s", page)
	}
	return cmd.ProcessState.ExitCode(), o
}

// simulated has a simulated driver follow the fake loads.
func (p *place) simulated(t *testing.T, name string, scale float64) string {
	t.Helper()
	clock, err := hostclock.New()
	must(t, err)
	hw, err := hardware.LookupGPU(name)
	must(t, err)
	f := &follower{gpu: hw.Describe(0, "GPU-7acc450c-351f-4087-abe7-4780eeb03fda"), log: filepath.Join(p.dir, "loads"), begin: clock.Now(), scale: scale}
	f.gpu.Simulated = true
	path := filepath.Join(p.dir, "page")
	page, err := sim.NewPage(path, f, sim.Options{}, clock.Now)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- page.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		must(t, page.Close())
	})
	p.env = append(p.env, sim.EnvPage+"="+path)
	return f.log
}

// A world in which a load is noted late goes on from there, and tells no more than there was.
func TestAWorldDoesNotChangeItsPast(t *testing.T) {
	t.Parallel()
	f := &follower{log: filepath.Join(t.TempDir(), "loads"), begin: timeline.Instant(time.Hour), scale: 1}
	note := func(text string) {
		log, err := os.OpenFile(f.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		_, err = log.WriteString(text)
		must(t, errors.Join(err, log.Close()))
	}
	before := 0.0
	for i := range 100 {
		at := time.Duration(i) * 100 * time.Millisecond
		switch i {
		case 20: // half a second late
			note(fmt.Sprintf("%d gaps\n", f.begin.Add(at-500*time.Millisecond)))
		case 70:
			note(fmt.Sprintf("%d rest\n", f.begin.Add(at-500*time.Millisecond)))
		}
		sum := f.Integral(0, timeline.DRAMUtil, at)
		if grown := sum - before; grown < 0 || grown > 0.1*0.15+1e-9 {
			t.Errorf("in the window before %v DRAM was active for %.3f s", at, grown)
		}
		before = sum
	}
	if before < 0.7 {
		t.Errorf("DRAM was active for %.3f s in all, want 0.75", before)
	}
}

// The whole script, with loads that only sleep and a simulated driver that follows them.
func TestAFakeRunFindsWhatItsLoadsWouldDo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.simulated(t, "h100", 1)
	code, o := p.check(t, "--fake", "--fake-log", log, "--seconds", "8")
	if code != 0 || !o.Fake || !o.Simulated {
		t.Errorf("exit %d, fake %v, simulated %v", code, o.Fake, o.Simulated)
	}
	for name, want := range map[string]string{
		"gpm": "ok", "calibration": "ok", "verdict stream": "ok", "verdict stream_half": "ok", "verdict gemm": "ok",
		"verdict gaps": "ok", "verdict mixed": "ok", "bytes stream": "ok", "bytes stream_half": "ok", "ratio of loads": "ok", "cost": "info",
	} {
		if got := o.state(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A GPU whose counters tell four fifths of the bytes is found out.
func TestCountersThatDisagreeWithKnownBytesAreOff(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.simulated(t, "h100", 0.8)
	code, o := p.check(t, "--fake", "--fake-log", log, "--seconds", "5", "--loads", "stream", "stream_half", "--skip", "cost")
	if code != 4 {
		t.Errorf("exit %d", code)
	}
	for name, want := range map[string]string{"calibration": "off", "bytes stream": "off", "bytes stream_half": "ok", "ratio of loads": "off", "cost": "missing"} {
		if got := o.state(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A GPU without windows of activity is a result, and no failure.
func TestAGPUWithoutWindowsIsAResult(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.simulated(t, "a100", 1)
	code, o := p.check(t, "--fake", "--fake-log", log)
	if code != 0 || o.state("gpm") != "info" || o.state("verdict stream") != "missing" {
		t.Errorf("exit %d, %+v", code, o.Checks)
	}
}

func TestAHostWithoutADriverIsAResult(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.driver = "/no/such/library"
	code, o := p.check(t)
	if code != 0 || o.state("doctor") != "info" || o.Fake {
		t.Errorf("exit %d, %+v", code, o.Checks)
	}
}
