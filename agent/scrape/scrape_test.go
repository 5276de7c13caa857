package scrape_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a sink that keeps everything.
type recorder struct {
	mu      sync.Mutex
	samples []timeline.EngineSample
	events  []string
	ids     []scrape.Identity
}

func (r *recorder) sink() scrape.Sink {
	return scrape.Sink{
		Sample: func(s *timeline.EngineSample) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.samples = append(r.samples, *s)
		},
		Event: func(e timeline.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, strings.TrimSuffix(string(e.Kind)+" "+e.Detail, " "))
		},
		Identity: func(id scrape.Identity) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ids = append(r.ids, id)
		},
	}
}

func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...) // the client may be gone: that is what some tests are about
}

func clock() func() timeline.Instant {
	start := time.Now()
	return func() timeline.Instant { return timeline.Instant(time.Hour).Add(time.Since(start)) }
}

func newScraper(t *testing.T, url string, timeout time.Duration, rec *recorder) *scrape.Scraper {
	t.Helper()
	cfg := scrape.DefaultConfig()
	cfg.Target, cfg.URL, cfg.Timeout = "t", url, timeout
	s, err := scrape.New(cfg, clock(), rec.sink())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

func TestIdentityIsAskedOnceAStart(t *testing.T) {
	var start atomic.Int64
	var asked atomic.Int64
	start.Store(1000)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			say(w, "process_start_time_seconds %d\nvllm:num_requests_running{model_name=\"served\"} 2\n", start.Load())
		case "/v1/models":
			asked.Add(1)
			say(w, `{"data":[{"id":"adapter","parent":"served"},{"id":"served","root":"org/sim-8b","parent":null,"max_model_len":4096}]}`)
		case "/version":
			say(w, `{"version":"0.0-sim"}`)
		default:
			http.NotFound(w, r)
		}
	})
	var rec recorder
	s := newScraper(t, srv.URL+"/", time.Second, &rec)
	for range 3 {
		if err := s.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start.Store(2000)
	if err := s.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := scrape.Identity{Engine: "vllm", Model: "served", Root: "org/sim-8b", MaxContext: 4096, Version: "0.0-sim"}
	if diff := cmp.Diff([]scrape.Identity{want, want}, rec.ids); diff != "" {
		t.Errorf("identities (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"engine_up", "engine_restart start time changed"}, rec.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if asked.Load() != 2 {
		t.Errorf("asked for models %d times, want 2", asked.Load())
	}
	for _, smp := range rec.samples {
		if smp.Target != "t" || smp.Over.Empty() {
			t.Errorf("sample of %q over %v: want a target and a bracket", smp.Target, smp.Over)
		}
	}
}

func TestLlamaTellsItsSlotsAndSizes(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			say(w, "llamacpp:requests_processing 3\n")
		case "/v1/models":
			say(w, `{"data":[{"id":"sim.gguf","meta":{"n_params":8e9,"size":4.9e9,"n_ctx_train":131072}}]}`)
		case "/props":
			say(w, `{"total_slots":4,"build_info":"b1-sim","chat_template":"not read"}`)
		}
	})
	var rec recorder
	s := newScraper(t, srv.URL, time.Second, &rec)
	for range 2 {
		if err := s.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []scrape.Identity{{Engine: "llama.cpp", Model: "sim.gguf", Version: "b1-sim", MaxContext: 131072, Slots: 4, Parameters: 8e9, WeightBytes: 4.9e9}}
	if diff := cmp.Diff(want, rec.ids); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	if busy, ok := rec.samples[1].Get(timeline.BusyFraction); !ok || busy != 0.75 {
		t.Errorf("busy fraction = %v, %v, want 0.75", busy, ok)
	}
}

func TestACounterThatFallsIsARestart(t *testing.T) {
	var out atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			say(w, "vllm:generation_tokens_total %d\n", out.Load())
		}
	})
	var rec recorder
	s := newScraper(t, srv.URL, time.Second, &rec)
	for _, n := range []int64{10, 20, 5, 6} {
		out.Store(n)
		if err := s.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"engine_up", "engine_restart output_tokens_total fell"}, rec.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestAFailingEngineIsDownAfterThreeScrapes(t *testing.T) {
	var mode atomic.Value
	mode.Store("fine")
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch mode.Load() {
		case "fine":
			say(w, "vllm:num_requests_running 1\n")
		case "500":
			http.Error(w, "secret prompt", http.StatusInternalServerError)
		case "slow":
			<-r.Context().Done()
		}
	})
	for m, detail := range map[string]string{"500": "status 500", "slow": "no answer in time"} {
		t.Run(m, func(t *testing.T) {
			timeout := 2 * time.Second
			if m == "slow" {
				timeout = 50 * time.Millisecond
			}
			var rec recorder
			s := newScraper(t, srv.URL, timeout, &rec)
			mode.Store("fine")
			for i := range 5 {
				if i > 0 {
					mode.Store(m)
				}
				err := s.Once(t.Context())
				if (err != nil) != (i > 0) {
					t.Fatalf("scrape %d: %v", i, err)
				}
				if i > 0 && err.Error() != detail {
					t.Errorf("scrape %d: %v, want %s", i, err, detail)
				}
			}
			mode.Store("fine")
			if err := s.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"engine_up", "engine_down " + detail, "engine_up"}, rec.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if len(rec.samples) != 2 {
				t.Errorf("got %d samples, want 2", len(rec.samples))
			}
		})
	}
}

func TestAnEngineThatTellsNoMetricsIsNotDown(t *testing.T) {
	for detail, answer := range map[string]http.HandlerFunc{
		"status 302": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"status 501": func(w http.ResponseWriter, r *http.Request) { http.Error(w, "off", http.StatusNotImplemented) },
		"answer too large": func(w http.ResponseWriter, _ *http.Request) {
			for range 5 << 10 {
				say(w, "# %1022s\n", "")
			}
		},
		"metrics of no known engine": func(w http.ResponseWriter, _ *http.Request) { say(w, "up 1\n") },
	} {
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/metrics":
				answer(w, r)
			case "/v1/models":
				say(w, `{"data":[{"id":"sim"}]}`)
			default:
				t.Errorf("asked for %s", r.URL.Path)
			}
		})
		var rec recorder
		s := newScraper(t, srv.URL, 2*time.Second, &rec)
		for range 5 {
			if err := s.Once(t.Context()); err == nil || err.Error() != detail {
				t.Errorf("%v, want %s", err, detail)
			}
		}
		if diff := cmp.Diff([]string{"capability engine metrics: " + detail}, rec.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]scrape.Identity{{Model: "sim"}}, rec.ids); diff != "" {
			t.Errorf("identities (-want +got):\n%s", diff)
		}
	}
}

func TestMetricsThatComeBackAreSaid(t *testing.T) {
	var off atomic.Bool
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if off.Load() {
			http.Error(w, "off", http.StatusNotFound)
			return
		}
		say(w, "vllm:num_requests_running 1\n")
	})
	var rec recorder
	s := newScraper(t, srv.URL, time.Second, &rec)
	for _, mute := range []bool{false, true, true, false, false} {
		off.Store(mute)
		if err := s.Once(t.Context()); (err != nil) != mute {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"engine_up", "capability engine metrics: status 404", "capability engine metrics: ok"}, rec.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestARefusedConnectionIsDownAtOnce(t *testing.T) {
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	url := srv.URL
	srv.Close()
	var rec recorder
	s := newScraper(t, url, time.Second, &rec)
	for range 3 {
		if err := s.Once(t.Context()); err == nil {
			t.Fatal("a closed port answered")
		}
	}
	if diff := cmp.Diff([]string{"engine_down connection refused"}, rec.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	scrapes := make(chan struct{}, 16)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			say(w, "vllm:num_requests_running 1\n")
			scrapes <- struct{}{}
		}
	})
	var rec recorder
	cfg := scrape.DefaultConfig()
	cfg.URL, cfg.Interval = srv.URL, 100*time.Millisecond
	s, err := scrape.New(cfg, clock(), rec.sink())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-scrapes
	<-scrapes
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if len(rec.samples) == 0 {
		t.Error("no sample reached the sink")
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	err := scrape.Config{URL: "ftp://x"}.Validate()
	for _, want := range []string{"engine url", "scrape interval", "scrape timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to name %s", err, want)
		}
	}
}
