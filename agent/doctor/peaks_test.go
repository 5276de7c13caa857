package doctor_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// streaming is a GPU that rests for three and a half seconds and streams from then on, with half its power.
type streaming struct{ gpu timeline.GPU }

func (s streaming) GPUs() []timeline.GPU                 { return []timeline.GPU{s.gpu} }
func (s streaming) Duration() time.Duration              { return time.Minute }
func (s streaming) At(int, time.Duration) (g sim.Gauges) { g.SMClockHz = 1.2e9; return g }
func (s streaming) Integral(_ int, c timeline.Counter, t time.Duration) float64 {
	if c == timeline.DRAMUtil {
		return 0.91 * max(0, t-3500*time.Millisecond).Seconds()
	}
	return 0
}

func TestCalibrationIsPrintedAndKept(t *testing.T) {
	t.Parallel()
	clock, err := hostclock.New()
	must(t, err)
	hw, err := hardware.LookupGPU("h100")
	must(t, err)
	g := hw.Describe(0, "GPU-7acc450c-351f-4087-abe7-4780eeb03fda")
	g.Simulated, g.Driver, g.PowerLimitW = true, sim.DefaultDriver, 350
	dir := t.TempDir()
	o := doctor.Options{
		Helper: answer(t, []timeline.GPU{g}, state(0, "dram_util", "ok")), Env: os.Environ(), Engines: []string{"http://127.0.0.1:9"}, StateDir: dir,
		Calibrate: true, Counters: remote.NewLocal(sim.NewLibrary(streaming{g}, sim.Options{}, clock.Now), nvml.DefaultConfig(), clock.Now),
		With: fmt.Sprintf("sh -c 'sleep 1.2; echo begin copy; sleep 2.5; echo end copy bytes=%.0f seconds=2.5'", 2.5*0.91*3350e9),
	}
	r := doctor.Run(t.Context(), o)
	if c := find(t, r, "calibration"); c.State != doctor.Fine || !strings.HasPrefix(c.Detail, "1 of 1 GPUs measured") {
		t.Errorf("check %+v", c)
	}
	if c := find(t, r, "peaks"); c.State != doctor.Warning || !strings.Contains(c.Detail, "limit 350 W, by default 700 W (50 %)") {
		t.Errorf("check %+v", c)
	}
	var b bytes.Buffer
	must(t, r.Text(&b))
	for _, want := range []string{
		"Peaks of GPU 7acc450c, NVIDIA H100 80GB HBM3:", "  - bandwidth: 3350 GB/s by data sheet",
		"  - calibrated: DRAM reaches 0.910 of its peak (3048 GB/s counted, 1.00 of what the counter tells)",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &b)
		}
	}
	f, err := calibration.Load(dir)
	must(t, err)
	if e, ok := f.Of(g); !ok || e.EtaBandwidth < 0.905 || e.EtaBandwidth > 0.915 {
		t.Errorf("kept %+v", f)
	}
	if st, err := os.Stat(calibration.Path(dir)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", st, err)
	}
}

func TestACalibrationThatFailsKeepsNothing(t *testing.T) {
	t.Parallel()
	clock, err := hostclock.New()
	must(t, err)
	hw, err := hardware.LookupGPU("h100")
	must(t, err)
	g := hw.Describe(0, "GPU-0")
	for name, with := range map[string]string{"refused": "exit 3", "without a load": ""} {
		dir := t.TempDir()
		r := doctor.Run(t.Context(), doctor.Options{
			Helper: answer(t, []timeline.GPU{g}, state(0, "dram_util", "ok")), Env: os.Environ(), Engines: []string{"http://127.0.0.1:9"}, StateDir: dir,
			Calibrate: true, Counters: remote.NewLocal(sim.NewLibrary(streaming{g}, sim.Options{}, clock.Now), nvml.DefaultConfig(), clock.Now), With: with,
		})
		if _, err := os.Stat(filepath.Join(dir, "calibration.json")); err == nil {
			t.Errorf("%s: something was kept", name)
		}
		if len(r.Calibration) != 1 || len(r.Calibration[0].Known) == 0 {
			t.Errorf("%s: %+v", name, r.Calibration)
		}
		if with != "" {
			if c := find(t, r, "calibration"); c.State != doctor.Failed || !strings.Contains(c.Detail, "not calibrated: ") {
				t.Errorf("%s: check %+v", name, c)
			}
		}
	}
}

func TestAnExporterIsLookedAt(t *testing.T) {
	t.Parallel()
	began := time.Now()
	serve := func(text func(n int) string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, text(int(time.Since(began)/time.Second)))
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	for name, tt := range map[string]struct {
		url, detail string
		state       doctor.State
	}{
		"one that collects each second": {serve(func(n int) string { return fmt.Sprintf("DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\"} 0.%d", 500+n) }), "windows of GPUs of which the driver gives none", doctor.Fine},
		"one that collects too seldom":  {serve(func(int) string { return "DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\"} 0.5" }), "shows no new values for 5s", doctor.Warning},
		"one without profiling fields":  {serve(func(n int) string { return fmt.Sprintf("DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-1\"} %d", 300+n) }), "tells no profiling fields", doctor.Warning},
		"none":                          {"http://127.0.0.1:9", "connection refused", doctor.Failed},
		"no URL":                        {"host:9400", "url: want http://HOST:9400", doctor.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := doctor.Run(t.Context(), doctor.Options{NoCounters: "not asked for", Engines: []string{"http://127.0.0.1:9"}, DCGM: tt.url})
			if c := find(t, r, "dcgm"); c.State != tt.state || !strings.Contains(c.Detail, tt.detail) {
				t.Errorf("check %+v, want %s, %q", c, tt.state, tt.detail)
			}
		})
	}
}

func TestWithoutAGPUItIsSaidWhyNothingCanBeCalibrated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o    doctor.Options
		want string
	}{
		"no library": {
			doctor.Options{Helper: script(t, "echo 'tpotscope-nvml: open driver: library not found' >&2; exit 1")},
			"nothing can be calibrated: libnvidia-ml.so.1 was not found: no NVIDIA driver on this host or in this container",
		},
		"no helper":    {doctor.Options{HelperDir: "/no/such/folder"}, "nothing can be calibrated: tpotscope-nvml is neither beside this program nor on PATH"},
		"counters off": {doctor.Options{NoCounters: "nvml.source is off"}, "nothing can be calibrated: nvml.source is off"},
		"no GPU":       {doctor.Options{Helper: answer(t, nil)}, "nothing can be calibrated: the driver lists no GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.o.Engines, tt.o.Env, tt.o.Calibrate = []string{"http://127.0.0.1:9"}, os.Environ(), true
			if c := find(t, doctor.Run(t.Context(), tt.o), "calibration"); c.State != doctor.Skipped || c.Detail != tt.want {
				t.Errorf("%s: %q, want %q", c.State, c.Detail, tt.want)
			}
		})
	}
}
