package scrape_test

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	uuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// told lists a row's readings by name.
func told(get func(timeline.Counter) (float64, bool)) map[string]float64 {
	m := map[string]float64{}
	for c := range timeline.Counter(timeline.NumCounters) {
		if v, ok := get(c); ok {
			m[c.String()] = v
		}
	}
	return m
}

func TestDCGMPageBecomesCountersInBaseUnits(t *testing.T) {
	rows, refused, err := scrape.TranslateDCGM(page(t, "dcgm.prom"))
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	want := timeline.GPU{UUID: uuidA, Name: "NVIDIA A100-SXM4-80GB", PCIBusID: "00000000:07:00.0", Driver: "550.1"}
	if g := rows[0].GPU; g.UUID != want.UUID || g.Index != 0 || rows[1].GPU.Index != 1 {
		t.Errorf("gpus %+v, %+v", g, rows[1].GPU)
	}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-6*max(1, math.Abs(a)) })
	if diff := cmp.Diff(map[string]float64{
		"sm_clock": 1.41e9, "power": 312.504, "gpu_duty": 0.98, "energy": 2500, "dram_util": 0.731204, "sm_util": 0.902114,
		"tensor_util": 0.110237, "graphics_util": 1,
	}, told(rows[0].Get), near); diff != "" {
		t.Errorf("first GPU (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"sm_clock": 1.41e9, "tensor_util": 0}, told(rows[1].Get), near); diff != "" {
		t.Errorf("second GPU (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(scrape.DCGMRefused{OutOfRange: 2, NotNumbers: 1, Blank: 1}, refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}

func TestDCGMLabelsAreSpeltEitherWay(t *testing.T) {
	old, _, err := scrape.TranslateDCGM(page(t, "dcgm.prom"))
	if err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer("UUID=", "uuid=", "Hostname=", "hostname=", "modelName=", "modelname=", "gpu=", "GPU=").Replace(string(page(t, "dcgm.prom")))
	got, _, err := scrape.TranslateDCGM([]byte(other))
	if err != nil || len(got) != len(old) {
		t.Fatalf("%d rows, %v", len(got), err)
	}
	for i := range got {
		if diff := cmp.Diff(told(old[i].Get), told(got[i].Get)); diff != "" || got[i].GPU.UUID != old[i].GPU.UUID {
			t.Errorf("row %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestDCGMPagesThatSayNothing(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no page of metrics":    {"<html>", "metrics not readable"},
		"no GPU":                {"go_goroutines 3\n", "no GPU in its metrics"},
		"no UUID":               {"DCGM_FI_PROF_DRAM_ACTIVE{gpu=\"0\"} 0.5\n", "no GPU in its metrics"},
		"several hosts":         {"DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\",Hostname=\"a\"} 0.5\nDCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-2\",Hostname=\"b\"} 0.5\n", "metrics of several hosts"},
		"parts of a GPU only":   {"DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\",GPU_I_ID=\"3\",GPU_I_PROFILE=\"1g.10gb\"} 0.5\n", ""},
		"integer blanks":        {"DCGM_FI_DEV_FB_USED{UUID=\"GPU-1\"} 2147483632\n", ""},
		"reasons of having non": {"DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\"} 140737488355330\n", ""},
	} {
		rows, refused, err := scrape.TranslateDCGM([]byte(tt.text))
		if tt.want != "" {
			if err == nil || err.Error() != tt.want {
				t.Errorf("%s: %v, want %s", name, err, tt.want)
			}
			continue
		}
		if err != nil || len(rows) != 1 || len(told(rows[0].Get)) != 0 || refused == (scrape.DCGMRefused{}) {
			t.Errorf("%s: %v, %v, %+v", name, err, rows, refused)
		}
		if rows[0].GPU.MIG != strings.Contains(tt.text, "GPU_I_ID") {
			t.Errorf("%s: MIG is %v", name, rows[0].GPU.MIG)
		}
	}
}

func FuzzTranslateDCGM(f *testing.F) {
	f.Add("DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\",GPU_I_ID=\"3\"} 0.5\nDCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-1\"} 1e999\n")
	f.Add("DCGM_FI_DEV_GPU_UTIL{uuid=\"GPU-1\",gpu=\"99999999999999999999\"} -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		rows, _, err := scrape.TranslateDCGM([]byte(text))
		if err != nil && len(err.Error()) > 64 {
			t.Errorf("error %q may hold what was sent", err)
		}
		for i := range rows {
			if !strings.HasPrefix(rows[i].GPU.UUID, "GPU-") {
				t.Errorf("a row of %q", rows[i].GPU.UUID)
			}
			for name, v := range told(rows[i].Get) {
				if v != v || v-v != 0 || v < 0 {
					t.Errorf("%s = %v", name, v)
				}
			}
		}
	})
}

// exporter is a dcgm-exporter of one A100 in made time: it collects every so often, and shows what it collected last.
type exporter struct {
	now     atomic.Int64 // of the clock that reader and exporter share
	every   time.Duration
	dram    func(n int) string // of the n-th collection
	extra   string
	offset  time.Duration
	refuses atomic.Bool
}

func (e *exporter) clock() timeline.Instant { return timeline.Instant(e.now.Load()) }

func (e *exporter) collections() int { return int((time.Duration(e.now.Load()) - e.offset) / e.every) }

func (e *exporter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if e.refuses.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	n := e.collections()
	say(w, "DCGM_FI_PROF_DRAM_ACTIVE{UUID=%q,gpu=\"0\"} %s\nDCGM_FI_DEV_POWER_USAGE{UUID=%q} %d.5\n%s", uuidA, e.dram(n), uuidA, 300+n%7, e.extra)
}

// watched is a reader of e and what it handed on.
type watched struct {
	*scrape.DCGM
	got    []scrape.DCGMReading
	events []string
}

func watch(t *testing.T, e *exporter, interval time.Duration) *watched {
	t.Helper()
	w := &watched{}
	srv := serve(t, e.ServeHTTP)
	d, err := scrape.NewDCGM(scrape.DCGMConfig{URL: srv.URL, Interval: interval}, e.clock, scrape.DCGMSink{
		Reading: func(r *scrape.DCGMReading) { w.got = append(w.got, *r) },
		Event:   func(ev timeline.Event) { w.events = append(w.events, ev.Detail) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.DCGM = d
	return w
}

// run looks as Run does, in made time.
func (w *watched) run(t *testing.T, e *exporter, d time.Duration) (looks int) {
	t.Helper()
	for end := e.clock().Add(d); e.clock() < end; looks++ {
		if err := w.Once(t.Context()); err != nil && !e.refuses.Load() {
			t.Fatal(err)
		}
		e.now.Add(int64(scrape.Wait(w.DCGM, e.clock())))
	}
	return looks
}

func rising(n int) string { return "0." + strings.Repeat("5", 1+n%3) + string(rune('0'+n%10)) }

func TestDCGMWindowsAreTheExportersOwn(t *testing.T) {
	for name, tt := range map[string]struct {
		every    time.Duration
		interval time.Duration
		looks    float64 // most a collection, once the interval is known
	}{
		"collected every second":     {time.Second, 10 * time.Second, 6},
		"collected every 5 s":        {5 * time.Second, 10 * time.Second, 6},
		"collected every 30 s":       {30 * time.Second, 10 * time.Second, 8},
		"collected faster than read": {200 * time.Millisecond, 10 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := &exporter{every: tt.every, offset: 123 * time.Millisecond, dram: rising}
			e.now.Store(int64(time.Hour))
			w := watch(t, e, tt.interval)
			w.run(t, e, 8*max(tt.every, time.Second))
			w.got = nil
			span := 20 * max(tt.every, time.Second)
			looks := w.run(t, e, span)
			least := max(tt.every, time.Second)
			if n := len(w.got); n < int(span/least)-2 || n > int(span/(least*8/10)) {
				t.Errorf("%d windows in %v", n, span)
			}
			for i := range w.got {
				s := &w.got[i].Windows
				if s.Over.Duration() < least*8/10 || s.Over.Duration() > least*5/4 {
					t.Errorf("window of %v", s.Over.Duration())
				}
				if 2*time.Duration(s.Slack) > s.Over.Duration()/5 && tt.every >= time.Second {
					t.Errorf("slack of %v over %v", time.Duration(s.Slack), s.Over.Duration())
				}
				if i > 0 && s.Over.Start != w.got[i-1].Windows.Over.End {
					t.Errorf("hole or overlap between %v and %v", w.got[i-1].Windows.Over, s.Over)
				}
				// The true end of a collection lies within the slack.
				if tt.every >= time.Second {
					off := (time.Duration(s.Over.End) - e.offset) % tt.every
					if off > tt.every/2 {
						off -= tt.every
					}
					if off.Abs() > time.Duration(s.Slack)+time.Millisecond {
						t.Errorf("end is off by %v, known to %v", off, time.Duration(s.Slack))
					}
				}
			}
			if got := float64(looks) / (float64(span) / float64(least)); got > tt.looks {
				t.Errorf("%.1f looks a collection", got)
			}
			if st := w.Stats(); st.Collections == 0 || st.Failed != 0 || st.Every < least*8/10 || st.Every > least*5/4 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestDCGMTrust(t *testing.T) {
	for name, tt := range map[string]struct {
		dram, extra string
		kept        bool
	}{
		"a value that stays to its last digit is frozen": {"0.123456", "", false},
		"rest at zero is an idle GPU":                    {"0.000000", "", true},
		"one is a full second":                           {"1.000000", "", true},
		"zero while the GPU is busy is a contradiction":  {"0.000000", "DCGM_FI_DEV_GPU_UTIL{UUID=\"" + uuidA + "\"} 97\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := &exporter{every: time.Second, dram: func(int) string { return tt.dram }, extra: tt.extra}
			e.now.Store(int64(time.Hour))
			w := watch(t, e, time.Second)
			w.run(t, e, 20*time.Second)
			last := w.got[len(w.got)-1]
			if _, ok := last.Windows.Get(timeline.DRAMUtil); ok != tt.kept {
				t.Errorf("kept: %v, stats %+v", ok, w.Stats())
			}
			if frozen := w.Stats().Frozen; tt.kept != (frozen == 0) {
				t.Errorf("%d frozen", frozen)
			}
			if _, ok := last.Gauges.Get(timeline.Power); !ok {
				t.Error("power was lost with it")
			}
		})
	}
}

func TestAnExporterThatGoesAndComesIsTold(t *testing.T) {
	e := &exporter{every: time.Second, dram: rising}
	e.now.Store(int64(time.Hour))
	w := watch(t, e, time.Second)
	w.run(t, e, 6*time.Second)
	e.refuses.Store(true)
	w.run(t, e, 5*time.Second)
	before := len(w.got)
	e.refuses.Store(false)
	w.run(t, e, 3*time.Second)
	if diff := cmp.Diff([]string{"dcgm-exporter: status 503", "dcgm-exporter: ok"}, w.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(w.got) <= before {
		t.Fatal("nothing came after it was back")
	}
	// What was collected meanwhile was not seen: the first window after may not be used, and its slack says so.
	if s := w.got[before].Windows; 2*time.Duration(s.Slack) <= s.Over.Duration()/5 {
		t.Errorf("first window after: %v known to %v", s.Over.Duration(), time.Duration(s.Slack))
	}
	if w.Stats().Failed == 0 {
		t.Error("failed looks are not counted")
	}
}

func TestDCGMConfig(t *testing.T) {
	if err := scrape.DefaultDCGMConfig().Validate(); err != nil || scrape.DefaultDCGMConfig().Enabled() {
		t.Errorf("default: %v", err)
	}
	for _, c := range []scrape.DCGMConfig{
		{URL: "host:9400", Interval: time.Second}, {URL: "http://u:p@host:9400", Interval: time.Second}, {URL: "http://host:9400"}, {Interval: time.Millisecond},
	} {
		if _, err := scrape.NewDCGM(c, nil, scrape.DCGMSink{}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func TestDCGMRunEndsWithItsContext(t *testing.T) {
	e := &exporter{every: time.Second, dram: rising}
	e.now.Store(int64(time.Hour))
	var pages []string
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) { pages = append(pages, r.URL.Path); e.ServeHTTP(w, r) })
	ctx, cancel := context.WithCancel(t.Context())
	d, err := scrape.NewDCGM(scrape.DCGMConfig{URL: srv.URL + "/metrics", Interval: time.Second}, func() timeline.Instant {
		if len(pages) > 0 {
			cancel()
		}
		return e.clock()
	}, scrape.DCGMSink{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(ctx); err != nil {
		t.Error(err)
	}
	if slices.Contains(pages, "/metrics/metrics") {
		t.Errorf("asked for %v", pages)
	}
}
