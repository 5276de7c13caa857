package route_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/route"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink keeps what it is given.
type sink struct {
	gpus      []timeline.GPU
	samples   []timeline.Sample
	caps      []timeline.Capability
	events    []timeline.Event
	inventory []timeline.Inventory
}

func (s *sink) SetGPUs(l []timeline.GPU)            { s.gpus = l }
func (s *sink) AddSample(x *timeline.Sample)        { s.samples = append(s.samples, *x) }
func (s *sink) AddCapability(c timeline.Capability) { s.caps = append(s.caps, c) }
func (s *sink) AddEvent(e timeline.Event)           { s.events = append(s.events, e) }
func (s *sink) AddInventory(v timeline.Inventory)   { s.inventory = append(s.inventory, v) }
func (s *sink) kinds(k timeline.EventKind) (n []string) {
	for _, e := range s.events {
		if e.Kind == k {
			n = append(n, e.Detail)
		}
	}
	return n
}

// windowsOf returns the ends of the windows of one GPU.
func (s *sink) windowsOf(gpu int) (ends []float64) {
	for i := range s.samples {
		if x := &s.samples[i]; x.GPU == gpu && x.Has&timeline.GPM != 0 {
			ends = append(ends, x.Over.End.Seconds())
		}
	}
	return ends
}

const begin = timeline.Instant(1000 * time.Second)

func at(s float64) timeline.Instant { return begin.Add(time.Duration(s * 1e9)) }

func describe(t *testing.T, name, uuid string) timeline.GPU {
	t.Helper()
	g, err := hardware.LookupGPU(name)
	if err != nil {
		t.Fatal(err)
	}
	return g.Describe(0, uuid)
}

func window(gpu int, from, to, dram float64) *timeline.Sample {
	s := &timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(from), End: at(to)}, Slack: int64(time.Millisecond)}
	s.Put(timeline.DRAMUtil, dram)
	s.Put(timeline.TensorUtil, 0.1)
	return s
}

func told(uuid string, from, to, dram float64) *scrape.DCGMReading {
	r := &scrape.DCGMReading{GPU: timeline.GPU{UUID: uuid, Name: "NVIDIA A100-SXM4-80GB"}, Every: at(to).Sub(at(from)), Windows: *window(timeline.NoGPU, from, to, dram)}
	r.Gauges = timeline.Sample{GPU: timeline.NoGPU, Over: timeline.Span{Start: at(to), End: at(to)}}
	r.Gauges.Put(timeline.Power, 300)
	return r
}

func newRouter(driver bool) (*route.Router, *sink, *bytes.Buffer) {
	s, log := &sink{}, &bytes.Buffer{}
	return route.New(route.Config{Cell: 5 * time.Second, Lateness: 3 * time.Second, Driver: driver, Logger: slog.New(slog.NewTextHandler(log, nil))}, s), s, log
}

func TestEachGPUHasOneSourceOfWindows(t *testing.T) {
	r, s, _ := newRouter(true)
	r.Exporter(told("GPU-b", 0, 1, 0.5)) // before the driver has told its list: whose position would it take?
	d := r.Driver()
	d.SetGPUs([]timeline.GPU{describe(t, "h100", "GPU-a"), describe(t, "a100", "GPU-b")})
	for i := range 4 {
		f := float64(i)
		d.AddSample(window(0, f, f+0.1, 0.5))
		r.Exporter(told("gpu-A", f, f+1, 0.5))
		r.Exporter(told("GPU-b", f, f+1, 0.5))
		r.Exporter(told("GPU-elsewhere", f, f+1, 0.5))
	}
	if len(s.gpus) != 2 {
		t.Errorf("gpus %+v", s.gpus)
	}
	if diff := cmp.Diff([]float64{1000.1, 1001.1, 1002.1, 1003.1}, s.windowsOf(0)); diff != "" {
		t.Errorf("windows of the GPU with its own (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{1001, 1002, 1003, 1004}, s.windowsOf(1)); diff != "" {
		t.Errorf("windows of the GPU without (-want +got):\n%s", diff)
	}
	for i := range s.samples {
		if s.samples[i].Has.Has(timeline.Power) {
			t.Error("the exporter's power was taken beside the driver's")
		}
	}
	if got := s.kinds(timeline.EventCounterSource); len(got) != 1 || got[0] != "windows of activity come from dcgm-exporter, over 1s" {
		t.Errorf("source events %q", got)
	}
	if r.Every() != time.Second {
		t.Errorf("every %v", r.Every())
	}
}

// A driver that loses its right to read windows, as it does in some containers, hands over between two cells, and so
// does the exporter back.
func TestNoCellHoldsWindowsOfBoth(t *testing.T) {
	r, s, _ := newRouter(true)
	d := r.Driver()
	d.SetGPUs([]timeline.GPU{describe(t, "h100", "GPU-a")})
	state := func(st timeline.State) {
		d.AddCapability(timeline.Capability{Call: timeline.DRAMUtil.String(), State: st})
	}
	for i := range 75 {
		f := float64(i)
		switch i {
		case 12:
			state(timeline.StateNoPermission)
		case 28:
			state(timeline.StateOK)
		case 45: // the reader is lost for a while, and comes back without a word on states
			d.AddEvent(timeline.Event{At: at(45), Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
		}
		if i < 12 || i >= 28 && i < 45 || i >= 60 {
			for k := range 10 {
				d.AddSample(window(0, f+float64(k)/10, f+float64(k+1)/10, 0.5))
			}
		}
		r.Exporter(told("GPU-a", f, f+1, 0.5))
	}
	byCell := map[int]map[bool]int{}
	for i := range s.samples {
		x := &s.samples[i]
		for _, edge := range []timeline.Instant{x.Over.Start, x.Over.End - 1} {
			c := int(edge.Sub(0) / (5 * time.Second))
			if byCell[c] == nil {
				byCell[c] = map[bool]int{}
			}
			byCell[c][x.Over.Duration() > 500*time.Millisecond]++
		}
	}
	short, long := 0, 0
	for c, n := range byCell {
		if n[true] > 0 && n[false] > 0 {
			t.Errorf("cell %d holds windows of both", c)
		}
		short, long = short+n[false], long+n[true]
	}
	if short < 2*10*(10+15+10) || long < 2*(10+10) {
		t.Errorf("%d windows of the driver, %d of the exporter", short/2, long/2)
	}
}

// Windows without DRAM traffic decide nothing: they do not keep the exporter's out, and do not mix with them.
func TestWindowsWithoutDRAMGiveWay(t *testing.T) {
	r, s, _ := newRouter(true)
	d := r.Driver()
	d.SetGPUs([]timeline.GPU{describe(t, "h100", "GPU-a")})
	d.AddCapability(timeline.Capability{Call: timeline.DRAMUtil.String(), State: timeline.StateUnsupported})
	for i := range 30 {
		f := float64(i)
		r.Exporter(told("GPU-a", f, f+1, 0.5))
		x := timeline.Sample{Over: timeline.Span{Start: at(f + 1), End: at(f + 1.1)}}
		x.Put(timeline.SMUtil, 0.5)
		d.AddSample(&x)
	}
	for i := range s.samples {
		if s.samples[i].Over.Duration() < time.Second && s.samples[i].Has&timeline.GPM != 0 {
			t.Fatalf("window %+v of the driver came through", s.samples[i].Over)
		}
	}
	if n := len(s.windowsOf(0)); n != 30 {
		t.Errorf("%d windows of the exporter", n)
	}
}

func TestWithoutADriverTheExporterListsTheGPUs(t *testing.T) {
	r, s, _ := newRouter(false)
	r.Exporter(told("GPU-b", 0, 1, 0.5))
	if len(s.gpus) != 1 || s.gpus[0].UUID != "GPU-b" || len(s.windowsOf(0)) != 1 {
		t.Fatalf("gpus %+v, windows %v", s.gpus, s.windowsOf(0))
	}
	if !slices.ContainsFunc(s.samples, func(x timeline.Sample) bool { return x.Has.Has(timeline.Power) }) {
		t.Error("nobody tells its power")
	}
	// A driver's reader that comes up after all finds the GPU in its place.
	r, s, _ = newRouter(true)
	d := r.Driver()
	d.AddEvent(timeline.Event{Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
	r.Exporter(told("GPU-b", 0, 1, 0.5))
	d.SetGPUs([]timeline.GPU{describe(t, "a100", "GPU-a"), describe(t, "a100", "GPU-b")})
	d.AddSample(&timeline.Sample{GPU: 1, Has: timeline.Set(timeline.SMClock)})
	d.(timeline.InventorySink).AddInventory(timeline.Inventory{GPU: 1}) // it is what a source looks for
	d.AddEvent(timeline.Event{Kind: timeline.EventXid, GPU: 0})
	if len(s.gpus) != 2 || s.gpus[0].UUID != "GPU-b" || s.gpus[0].SMs == 0 {
		t.Errorf("gpus %+v", s.gpus)
	}
	if last := s.samples[len(s.samples)-1]; last.GPU != 0 || s.inventory[0].GPU != 0 || s.events[len(s.events)-1].GPU != 1 {
		t.Errorf("positions of sample %d, inventory %d, event %d", last.GPU, s.inventory[0].GPU, s.events[len(s.events)-1].GPU)
	}
	if p, ok := r.Position(0); !ok || p != 1 {
		t.Errorf("position of the driver's first: %d, %v", p, ok)
	}
	d.AddSample(&timeline.Sample{GPU: 7})
	if _, ok := r.Position(7); ok {
		t.Error("a GPU that nobody listed has a position")
	}
}

func TestMeansThatComeApartAreToldOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		driver, exporter float64
		want             int
	}{
		"4 % apart":             {0.50, 0.52, 0},
		"6 % apart":             {0.50, 0.5325, 1},
		"both next to nothing":  {0.01, 0.03, 0},
		"the exporter is at 0":  {0.50, 0, 1},
		"the driver is at zero": {0, 0.5, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, s, log := newRouter(true)
			d := r.Driver()
			d.SetGPUs([]timeline.GPU{describe(t, "h100", "GPU-a")})
			for i := range 200 {
				f := float64(i)
				for k := range 10 {
					d.AddSample(window(0, f+float64(k)/10, f+float64(k+1)/10, tt.driver))
				}
				r.Exporter(told("GPU-a", f, f+1, tt.exporter))
			}
			got := s.kinds(timeline.EventCounterMismatch)
			if len(got) != tt.want || tt.want > 0 && !strings.HasPrefix(got[0], "dram_util over 60 s: driver ") {
				t.Errorf("events %q, want %d", got, tt.want)
			}
			if n := strings.Count(log.String(), "event=counter_mismatch"); n != tt.want {
				t.Errorf("%d lines in the log", n)
			}
		})
	}
}

func TestWindowsTooLongForTheCellsAreToldOnceAndHow(t *testing.T) {
	for every, want := range map[float64]string{
		1:  "",
		2:  "dcgm-exporter collects every 2s: set correlation.cell to 8s and correlation.lateness to 3s at least, or its own interval (-c) lower",
		30: "dcgm-exporter collects every 30s: too seldom for any cell; set its own interval (-c) to 10000 ms or less",
	} {
		r, s, _ := newRouter(false)
		for i := range 5 {
			r.Exporter(told("GPU-a", float64(i)*every, float64(i+1)*every, 0.5))
		}
		if got := strings.Join(s.kinds(timeline.EventCapability), ";"); got != want {
			t.Errorf("every %v s: %q, want %q", every, got, want)
		}
	}
}

// page shows what an exporter of one A100 that streams weights collected last.
type page struct{ now timeline.Instant }

func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := int64(p.now) / int64(time.Second)
	for name, v := range map[string]float64{"DRAM_ACTIVE": 0.76, "PIPE_TENSOR_ACTIVE": 0.08, "SM_ACTIVE": 0.93, "GR_ENGINE_ACTIVE": 0.99} {
		_, _ = fmt.Fprintf(w, "DCGM_FI_PROF_%s{UUID=\"GPU-b\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"node\"} %.6f\n", name, v+float64(n%5)/1e4)
	}
}

// From the exporter's page to a verdict: scrape, route, engine, in made time.
func TestAnA100IsJudgedFromItsExporter(t *testing.T) {
	for name, tt := range map[string]struct {
		cell, lateness time.Duration
		want           timeline.Label
		reason         string
	}{
		"cells of 5 s hold enough windows": {5 * time.Second, 3 * time.Second, timeline.Memory, "DRAM at 89 % of achievable"},
		"cells of 1 s do not":              {time.Second, 3 * time.Second, timeline.Undetermined, "too few windows"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := correlate.DefaultConfig()
			cfg.Cell, cfg.Lateness, cfg.Targets = tt.cell, tt.lateness, []timeline.Target{{Name: "chat"}}
			e := correlate.New(cfg)
			p := &page{now: begin.Add(300 * time.Millisecond)}
			srv := httptest.NewServer(p)
			defer srv.Close()
			r := route.New(route.Config{Cell: tt.cell, Lateness: tt.lateness, Logger: slog.New(slog.DiscardHandler)}, e)
			d, err := scrape.NewDCGM(scrape.DCGMConfig{URL: srv.URL, Interval: time.Second}, func() timeline.Instant { return p.now }, scrape.DCGMSink{Reading: r.Exporter})
			if err != nil {
				t.Fatal(err)
			}
			var out correlate.Output
			for i := range 900 {
				if err := d.Once(t.Context()); err != nil {
					t.Fatal(err)
				}
				if i%10 == 0 {
					s := &timeline.EngineSample{Target: "chat", Over: timeline.Span{Start: p.now, End: p.now}}
					s.Put(timeline.Running, 16)
					s.Put(timeline.PromptTotal, 1000)
					s.Put(timeline.OutputTotal, 500*p.now.Seconds())
					e.AddEngine(s)
					e.Advance(&out, p.now.Add(-tt.lateness))
				}
				p.now = p.now.Add(100 * time.Millisecond)
			}
			cells := out.Cells[2 : len(out.Cells)-1]
			if len(cells) < 10 {
				t.Fatalf("%d cells", len(cells))
			}
			for i := range cells {
				c := &cells[i]
				if c.Verdict.Label != tt.want || !strings.HasPrefix(c.Verdict.Reason, tt.reason) {
					t.Errorf("cell %d: %s, %s", i, c.Verdict.Label, c.Verdict.Reason)
				}
				if m := c.Counters[timeline.DRAMUtil]; m.Value < 0.7600 || m.Value > 0.7604 || c.CoveredS < 0.9*tt.cell.Seconds() {
					t.Errorf("cell %d: DRAM %v, covered %.1f s", i, m, c.CoveredS)
				}
				if c.Verdict.OK() && c.Verdict.Ceiling != timeline.Medium {
					t.Errorf("cell %d: ceiling %s, %v", i, c.Verdict.Ceiling, c.Verdict.Caps)
				}
			}
			if n := e.Stats().UntrustedSamples; n > 1 {
				t.Errorf("the engine trusted %d windows not", n)
			}
		})
	}
}
