package agent_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
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

// until polls for what real time is needed for.
func until(t *testing.T, atMost time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(atMost)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", atMost, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// world is a simulated node: GPUs in this process, and a server behind a socket.
type world struct {
	tl    *scenario.Timeline
	clock *hostclock.Clock
	epoch timeline.Instant
	lib   *sim.Library
	url   string
}

// newWorld plays a scenario from this moment on.
func newWorld(t *testing.T, text string) *world {
	t.Helper()
	s, err := scenario.Parse("test", strings.NewReader(text))
	must(t, err)
	w := &world{}
	w.tl, err = s.Run()
	must(t, err)
	w.clock, err = hostclock.New()
	must(t, err)
	w.epoch = w.clock.Now()
	w.lib = sim.NewLibrary(sim.Scenario(w.tl), sim.Options{}, w.clock.Now)
	llm, err := llmsim.New(llmsim.Config{
		Model: w.tl.Targets()[0].Model, Now: w.clock.Now, Epoch: w.epoch, Plan: w.tl, Free: llmsim.DefaultPace(), Precise: true,
	})
	must(t, err)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	w.url = "http://" + ln.Addr().String()
	inBackground(t, func(ctx context.Context) error { return llm.Run(ctx, ln) })
	return w
}

// inBackground runs f until the test is over, and waits for it.
func inBackground(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// counters is a source that reads the world's GPUs.
func (w *world) counters(cfg *agent.Config) nvml.Source {
	return remote.NewLocal(w.lib, agent.Sampling(cfg), w.clock.Now)
}

// play sends the scenario's requests to url and fails the test if one is not answered whole.
func (w *world) play(t *testing.T, url string) []llmsim.Played {
	t.Helper()
	played, err := llmsim.Play(t.Context(), llmsim.PlayerConfig{
		BaseURL: url, Model: w.tl.Targets()[0].Model, Now: w.clock.Now, Epoch: w.epoch, MaxInFlight: llmsim.DefaultInFlight,
		Usage: true, Continuous: true,
	}, w.tl.Requests())
	must(t, err)
	if len(played) == 0 {
		t.Fatal("the scenario has no requests")
	}
	for i := range played {
		if p := &played[i]; p.Err != nil || !p.Terminal {
			t.Fatalf("request %d was not answered whole: %v", i, p.Err)
		}
	}
	return played
}

// config is that of an agent of the world, with every door open on a port of its own.
func (w *world) config(t *testing.T) agent.Config {
	t.Helper()
	cfg := quiet(t)
	target := w.tl.Targets()[0]
	target.EngineURL, target.GPUs = w.url, nil
	cfg.Targets = []timeline.Target{target}
	cfg.Proxy.Listen, cfg.Proxy.Upstream = "127.0.0.1:0", w.url
	return cfg
}

// quiet is the configuration of an agent that measures the host alone.
func quiet(t *testing.T) agent.Config {
	t.Helper()
	cfg := agent.DefaultConfig()
	cfg.Version = "test"
	cfg.StateDir, cfg.Socket = t.TempDir(), socketPath(t)
	cfg.NVML.Source = "off"
	cfg.Metrics.Listen = "127.0.0.1:0"
	cfg.OTLP.Disabled = true // whatever the environment says
	return cfg
}

// socketPath is a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // that of the test is too long for one
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "agent.sock")
}

// running is an agent that runs.
type running struct {
	doors  agent.Doors
	cancel context.CancelFunc
	done   chan error
	log    *lines
}

// start runs an agent until stop is called or the test is over.
func start(t *testing.T, cfg agent.Config, deps agent.Deps) *running {
	t.Helper()
	r, err := tryStart(t, cfg, deps)
	must(t, err)
	return r
}

// tryStart returns the error of an agent that does not come up.
func tryStart(t *testing.T, cfg agent.Config, deps agent.Deps) (*running, error) {
	t.Helper()
	must(t, cfg.Validate())
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1), log: &lines{}}
	ready := make(chan agent.Doors, 1)
	deps.Ready = func(d agent.Doors) { ready <- d }
	ag, err := agent.New(ctx, cfg, deps, slog.New(slog.NewTextHandler(r.log, nil)))
	if err != nil {
		cancel()
		return nil, err
	}
	go func() { r.done <- ag.Run(ctx); close(r.done) }()
	t.Cleanup(func() {
		cancel()
		for range r.done { // closed once the agent has ended
		}
	})
	select {
	case r.doors = <-ready:
		return r, nil
	case err := <-r.done:
		if err == nil {
			err = errors.New("the agent ended before it was ready")
		}
		return nil, err
	}
}

// stop ends the agent and returns how long that took.
func (r *running) stop(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	r.cancel()
	if err := <-r.done; err != nil {
		t.Errorf("Run() = %v, want no error after a stop that was asked for", err)
	}
	return time.Since(began)
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// count returns how many lines hold text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// get reads a page of the agent's metrics door.
func (r *running) get(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.doors.Metrics+path, http.NoBody)
	must(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer func() { must(t, resp.Body.Close()) }()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, resp.Status)
	}
	return string(b)
}

// collector is an OTLP receiver that counts.
type collector struct {
	*httptest.Server

	mu    sync.Mutex
	spans int
	names map[string]bool
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{names: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/metrics", func(_ http.ResponseWriter, r *http.Request) {
		var m metrics.ExportMetricsServiceRequest
		decode(t, r, &m)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rm := range m.GetResourceMetrics() {
			for _, sm := range rm.GetScopeMetrics() {
				for _, one := range sm.GetMetrics() {
					c.names[one.GetName()] = true
				}
			}
		}
	})
	mux.HandleFunc("/v1/traces", func(_ http.ResponseWriter, r *http.Request) {
		var m traces.ExportTraceServiceRequest
		decode(t, r, &m)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range m.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				c.spans += len(ss.GetSpans())
			}
		}
	})
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	return c
}

// received returns the number of spans, and whether a metric of that name came.
func (c *collector) received(name string) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans, c.names[name]
}

func decode(t *testing.T, r *http.Request, m proto.Message) {
	t.Helper()
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			t.Error(err)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		t.Error(err)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
