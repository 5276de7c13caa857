package calibration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func device(t *testing.T, name string) timeline.GPU {
	t.Helper()
	hw, err := hardware.LookupGPU(name)
	must(t, err)
	g := hw.Describe(0, "GPU-7acc450c-351f-4087-abe7-4780eeb03fda")
	g.Driver, g.Simulated = sim.DefaultDriver, true
	return g
}

// world is a GPU that rests, then streams, then multiplies.
type world struct {
	gpu                timeline.GPU
	rest, dram, tensor float64
}

const (
	streams    = 3500 * time.Millisecond
	multiplies = 6500 * time.Millisecond
	end        = 9500 * time.Millisecond
)

func (w world) GPUs() []timeline.GPU    { return []timeline.GPU{w.gpu} }
func (w world) Duration() time.Duration { return time.Minute }

func (w world) At(int, time.Duration) sim.Gauges {
	return sim.Gauges{SMClockHz: 1.7e9, MemClockHz: 2.619e9, PowerW: 600, PowerLimitW: 700}
}

func (w world) Integral(_ int, c timeline.Counter, t time.Duration) float64 {
	part := func(from, to time.Duration) float64 { return max(0, min(t, to)-from).Seconds() }
	switch c { //nolint:exhaustive // the others rest
	case timeline.DRAMUtil:
		return w.rest*part(0, streams) + w.dram*part(streams, multiplies) + 0.3*part(multiplies, end)
	case timeline.TensorUtil:
		return w.tensor * part(multiplies, end)
	}
	return 0
}

// loads is a command that runs what the world does, and counts that part of its bytes.
func loads(peak float64, w world, counts float64) []string {
	script := fmt.Sprintf("echo warming up; sleep 1; echo begin read; sleep 3; echo end read bytes=%.0f seconds=3\n", 3*w.dram*peak*counts)
	if w.tensor > 0 {
		script += fmt.Sprintf("echo begin gemm dtype=bf16; sleep 2.8; echo end gemm flops=%.0f seconds=2.8\n", 2.8*w.tensor*989.4e12*1.7/1.83)
	}
	return []string{"/bin/sh", "-c", script}
}

func run(t *testing.T, w world, command []string) calibration.Finding {
	t.Helper()
	clock, err := hostclock.New()
	must(t, err)
	found, err := calibration.Run(t.Context(), calibration.Options{
		Source: remote.NewLocal(sim.NewLibrary(w, sim.Options{}, clock.Now), nvml.DefaultConfig(), clock.Now), Now: clock.Now,
		Command: command, Env: os.Environ(), Wall: func() time.Time { return time.Unix(1.8e9, 0) },
	})
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("%d findings", len(found))
	}
	return found[0]
}

func TestKnownLoadsCalibrateAGPU(t *testing.T) {
	t.Parallel()
	const peak = 3350e9
	h100 := world{gpu: device(t, "h100"), dram: 0.92, tensor: 0.88}
	busy, faulty, slow, lazy := h100, h100, h100, h100
	busy.rest, faulty.dram, faulty.tensor, lazy.tensor = 0.2, 0.7, 0, 0.3
	plain := h100
	plain.tensor = 0
	slow.gpu.PowerLimitW = 500
	a100 := world{gpu: device(t, "a100"), dram: 0.85}
	for name, tt := range map[string]struct {
		w       world
		command []string
		refused string
	}{
		"a healthy GPU":                     {h100, loads(peak, h100, 1), ""},
		"a GPU that something else uses":    {busy, loads(peak, busy, 1), "the GPU is not at rest: DRAM at 20 %"},
		"a GPU with a fault":                {faulty, loads(peak, faulty, 1), "DRAM reaches 0.70 where this model reaches 0.90: find out why before calibrating"},
		"bytes that the counter never saw":  {plain, loads(peak, plain, 2), "the load counts 2.0"},
		"a product that is none":            {lazy, loads(peak, lazy, 1), "the product keeps the tensor cores active for 30 %"},
		"a command that fails":              {h100, []string{"/bin/sh", "-c", "echo no torch here >&2; exit 3"}, "exit status 3: no torch here"},
		"a command that says nothing":       {h100, []string{"/bin/sh", "-c", "true"}, "it ran no load"},
		"a command that is not there":       {h100, []string{"/no/such/command"}, "no such file"},
		"a load that is over at once":       {h100, []string{"/bin/sh", "-c", "echo begin copy; sleep 1.2; echo end copy bytes=1 seconds=1"}, "copy lasted for "},
		"a GPU without windows of activity": {a100, loads(peak, a100, 1), "no windows of activity on this GPU"},
		"a GPU with a lower power limit":    {slow, loads(peak, slow, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := run(t, tt.w, tt.command)
			if tt.refused != "" {
				if !strings.Contains(f.Refused, tt.refused) || f.Entry != nil {
					t.Errorf("refused because %q, want %q; %+v", f.Refused, tt.refused, f.Entry)
				}
				return
			}
			e := f.Entry
			if f.Refused != "" || e == nil {
				t.Fatalf("refused because %q", f.Refused)
			}
			if math.Abs(e.EtaBandwidth-0.92) > 0.005 || math.Abs(e.EtaTensor-0.88) > 0.01 || math.Abs(f.Scale-1) > 0.01 || math.Abs(f.MFU-0.88) > 0.01 {
				t.Errorf("entry %+v, scale %v, mfu %v", e, f.Scale, f.MFU)
			}
			if e.SMClockHz != 1.7e9 || e.MemClockHz != 2.619e9 || e.Driver != sim.DefaultDriver || !e.Simulated || e.Windows < 10 || e.Time.Unix() != 1.8e9 {
				t.Errorf("entry %+v", e)
			}
			var warned []string
			for _, k := range f.Known {
				if k.Warning {
					warned = append(warned, k.Name+": "+k.Text)
				}
			}
			if want := map[bool]string{true: "power: limit 500 W, by default 700 W (71 %)"}[strings.Contains(name, "power")]; strings.Join(warned, ";") != want {
				t.Errorf("warned of %q, want %q", warned, want)
			}
		})
	}
}

func TestWithoutACommandOnlyFactsAreTold(t *testing.T) {
	t.Parallel()
	f := run(t, world{gpu: device(t, "h200")}, nil)
	if f.Entry != nil || f.Refused != "" {
		t.Errorf("finding %+v", f)
	}
	want := []calibration.Fact{
		{Name: "bandwidth", Text: "4800 GB/s by data sheet, 4917 GB/s from memory clock and bus width (+2.4 %)"},
		{Name: "denominator", Text: "DRAM utilisation is taken as a part of 4800 GB/s"},
		{Name: "tensor", Text: "989 TFLOP/s dense in bf16 at 1830 MHz; tensor activity is a part of cycles, whatever the clock"},
		{Name: "sm clock", Text: "at most 1980 MHz, the model's is 1980 MHz"},
		{Name: "memory clock", Text: "at most 3201 MHz, the model's is 3201 MHz"},
		{Name: "power", Text: "limit 700 W, by default 700 W (100 %)"},
		{Name: "achievable", Text: "without calibration: 0.90 of the bandwidth (table), tensor cores active 0.93 of the time (assumed)"},
	}
	if diff := cmp.Diff(want, f.Known); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	// Clocks that are held low, and a GPU that nobody knows.
	low := calibration.Facts(device(t, "h100"), timeline.Inventory{AppSMClockHz: 1.2e9})
	if i := 3; !low[i].Warning || low[i].Text != "at most 1980 MHz, the model's is 1980 MHz, application clocks ask for 1200 MHz" {
		t.Errorf("held low: %+v", low[i])
	}
	if unknown := calibration.Facts(timeline.GPU{Name: "a GPU", MaxMemClockHz: 1e9, BusWidthBits: 1024}, timeline.Inventory{}); !unknown[0].Warning || unknown[1].Text != "256 GB/s from memory clock and bus width" {
		t.Errorf("unknown: %+v", unknown)
	}
}

func TestASourceThatEndsIsAnError(t *testing.T) {
	t.Parallel()
	_, err := calibration.Run(t.Context(), calibration.Options{Source: source(func(context.Context, timeline.GPUSink) error { return os.ErrNotExist }), Now: func() timeline.Instant { return 1 }})
	if err == nil || !strings.Contains(err.Error(), "the source ended") {
		t.Errorf("Run() = %v", err)
	}
}

func TestACommandIsNotWaitedForByWhatItHasStarted(t *testing.T) {
	t.Parallel()
	clock, err := hostclock.New()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	began := time.Now()
	w := world{gpu: device(t, "h100"), dram: 0.92}
	_, err = calibration.Run(ctx, calibration.Options{
		Source: remote.NewLocal(sim.NewLibrary(w, sim.Options{}, clock.Now), nvml.DefaultConfig(), clock.Now), Now: clock.Now,
		Command: []string{"/bin/sh", "-c", "sleep 40 & wait"}, Env: os.Environ(), Wall: time.Now,
	})
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 30*time.Second {
		t.Errorf("Run() = %v after %v, want it to end with its context", err, took)
	}
}

type source func(context.Context, timeline.GPUSink) error

func (s source) Run(ctx context.Context, sink timeline.GPUSink) error { return s(ctx, sink) }

func TestTheFileIsKeptPerGPUAndDriver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if f, err := calibration.Load(dir); err != nil || len(f.GPUs) != 0 {
		t.Errorf("no file: %+v, %v", f, err)
	}
	g := device(t, "h100")
	var f calibration.File
	f.Put(calibration.Entry{UUID: "GPU-other", Driver: "1", EtaBandwidth: 0.8})
	f.Put(calibration.Entry{UUID: g.UUID, Driver: "1", EtaBandwidth: 0.5})
	f.Put(calibration.Entry{UUID: g.UUID, Driver: g.Driver, EtaBandwidth: 0.93})
	must(t, f.Save(dir+"/below"))
	got, err := calibration.Load(dir + "/below")
	must(t, err)
	if diff := cmp.Diff(f, got); diff != "" || len(got.GPUs) != 2 {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	want := map[string]verdict.Eta{g.UUID: {Bandwidth: 0.93, Tensor: 0.93, BandwidthOrigin: "calibrated", TensorOrigin: "assumed"}}
	if diff := cmp.Diff(want, got.Eta([]timeline.GPU{g})); diff != "" {
		t.Errorf("eta (-want +got):\n%s", diff)
	}
	raw, err := json.Marshal(calibration.Recorded{Calibration: got})
	must(t, err)
	if diff := cmp.Diff(want, calibration.OfRecording(raw, []timeline.GPU{g})); diff != "" {
		t.Errorf("eta of a recording (-want +got):\n%s", diff)
	}
	if calibration.OfRecording(nil, nil) != nil || calibration.OfRecording([]byte("{}"), []timeline.GPU{g}) != nil {
		t.Error("a recording without calibration has one")
	}
	g.Driver = "another"
	if eta := got.Eta([]timeline.GPU{g}); len(eta) != 0 {
		t.Errorf("under another driver: %+v", eta)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema":"tpotscope.calibration/1","gpus":[{"uuid":"GPU-1","eta_bandwidth":0.9}]}`))
	f.Add([]byte(`{"schema":"tpotscope.calibration/1","gpus":[{"uuid":"GPU-1","eta_bandwidth":9}]}`))
	f.Add([]byte(`{"schema":"x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, err := calibration.Parse(raw)
		if err != nil {
			return
		}
		for _, e := range file.GPUs {
			if !(e.EtaBandwidth > 0 && e.EtaBandwidth <= 1 && e.EtaTensor >= 0 && e.EtaTensor <= 1) || e.UUID == "" {
				t.Errorf("taken: %+v", e)
			}
		}
	})
}

func FuzzReadKernels(f *testing.F) {
	f.Add("begin copy\nend copy bytes=1e12 seconds=3\nbegin gemm\nend gemm flops=1e15 seconds=2\n")
	f.Add("end copy bytes=1\nbegin begin\n")
	f.Add("begin gemm\nend gemm bytes=NaN seconds=-1 flops=+Inf\n")
	f.Fuzz(func(t *testing.T, text string) {
		at := timeline.Instant(0)
		list, _ := calibration.ReadKernels(strings.NewReader(text), func() timeline.Instant { at++; return at })
		for _, k := range list {
			if k.Over.End <= k.Over.Start || !(k.Seconds > 0) || (k.Ops > 0) != (k.Name == "gemm") || (k.Bytes > 0) == (k.Name == "gemm") && k.Name != "gemm" {
				t.Errorf("taken: %+v", k)
			}
		}
	})
}

// sink is an engine behind a sink.
type sink struct {
	*correlate.Engine
	inventories int
}

func (s *sink) AddInventory(timeline.Inventory) { s.inventories++ }

func TestWhatIsMatchedIsSaidToBeCalibrated(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{sim.DefaultDriver: " (calibrated)", "535.1": ""} {
		g := device(t, "h100")
		var f calibration.File
		f.Put(calibration.Entry{UUID: g.UUID, Driver: driver, EtaBandwidth: 0.95})
		eta := map[string]verdict.Eta{}
		cfg := correlate.DefaultConfig()
		cfg.Eta, cfg.Targets = eta, []timeline.Target{{Name: "chat"}}
		s := &sink{Engine: correlate.New(cfg)}
		m := calibration.Match(f, eta, s, slog.New(slog.DiscardHandler))
		m.SetGPUs([]timeline.GPU{g})
		m.(timeline.InventorySink).AddInventory(timeline.Inventory{}) // it is what a source looks for
		if s.inventories != 1 {
			t.Error("the inventory was lost")
		}
		const begin = timeline.Instant(1000 * time.Second)
		for i := range 100 {
			at := begin.Add(time.Duration(i) * 100 * time.Millisecond)
			x := timeline.Sample{Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}}
			for c, v := range map[timeline.Counter]float64{timeline.DRAMUtil: 0.81, timeline.TensorUtil: 0.1, timeline.SMUtil: 0.9, timeline.GraphicsUtil: 1} {
				x.Put(c, v)
			}
			m.AddSample(&x)
			e := timeline.EngineSample{Target: "chat", Over: timeline.Span{Start: at, End: at}}
			e.Put(timeline.Running, 8)
			e.Put(timeline.PromptTotal, 100)
			e.Put(timeline.OutputTotal, 300*at.Seconds())
			s.AddEngine(&e)
		}
		var out correlate.Output
		s.Advance(&out, begin.Add(8*time.Second))
		reason := out.Cells[len(out.Cells)-1].Verdict.Reason
		part := map[bool]string{true: "85", false: "90"}[want != ""]
		if reason != "DRAM at "+part+" % of achievable"+want {
			t.Errorf("driver %s: %q", driver, reason)
		}
	}
}

func TestAListThatComesAgainSaysNothingNew(t *testing.T) {
	t.Parallel()
	g := device(t, "h100")
	var f calibration.File
	f.Put(calibration.Entry{UUID: g.UUID, Driver: sim.DefaultDriver, EtaBandwidth: 0.95})
	var log strings.Builder
	cfg := correlate.DefaultConfig()
	m := calibration.Match(f, map[string]verdict.Eta{}, correlate.New(cfg), slog.New(slog.NewTextHandler(&log, nil)))
	for _, driver := range []string{g.Driver, g.Driver, "535.1", "535.1", g.Driver, g.Driver} {
		g.Driver = driver
		m.SetGPUs([]timeline.GPU{g})
	}
	if is, not := strings.Count(log.String(), "gpu calibrated"), strings.Count(log.String(), "calibration is of another driver"); is != 2 || not != 1 {
		t.Errorf("said %d times that the gpu is calibrated and %d times that it is not, want twice and once:\n%s", is, not, &log)
	}
}
