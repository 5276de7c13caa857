package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/clock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// staleAfter is how old the newest window of a GPU may be before health says that its counters stopped.
const staleAfter = 3 * time.Second

// listen opens every door, or none.
func (a *Agent) listen(ctx context.Context) (doors, error) {
	var d doors
	if err := freeSocket(ctx, a.cfg.Socket); err != nil {
		return d, err
	}
	var err error
	if a.relay, err = a.openRelay(); err != nil {
		return d, err
	}
	var lc net.ListenConfig
	open := func(dst *net.Listener, network, address, what, key string) error {
		if address == "" {
			return nil
		}
		l, err := lc.Listen(ctx, network, address)
		if err != nil {
			return fmt.Errorf("open %s: %w (%s says where it is)", what, err, key)
		}
		*dst = l
		return nil
	}
	err = errors.Join(
		open(&d.metrics, "tcp", a.cfg.Metrics.Listen, "metrics door", "metrics.listen"),
		open(&d.proxy, "tcp", a.cfg.Proxy.Listen, "proxy door", "proxy.listen"),
		open(&d.socket, "unix", a.cfg.Socket, "agent socket", "socket"),
	)
	if err == nil && d.socket != nil {
		if err = os.Chmod(a.cfg.Socket, 0o660); err != nil {
			err = fmt.Errorf("open agent socket: %w", err)
		}
	}
	if err != nil {
		d.close()
		return doors{}, err
	}
	return d, nil
}

// freeSocket makes the socket's folder and removes a socket that nobody answers on any more.
func freeSocket(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make folder of the agent socket: %w", err)
	}
	st, err := os.Lstat(path)
	if err != nil {
		return nil //nolint:nilerr // there is none, or the listener will say what is wrong
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("open agent socket: %s is there and is no socket", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close() // only asked whether somebody answers
		return fmt.Errorf("open agent socket: an agent runs on %s already", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // only that says that nobody listens
		return fmt.Errorf("open agent socket: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove dead agent socket: %w", err)
	}
	return nil
}

// Bounds of what a door lends: a peer that is slow, or many that do nothing, must not take the files and the memory that
// measuring needs.
const (
	maxScrapers  = 256  // connections to the metrics door
	maxReporters = 2048 // connections to the socket: each source that is known may have two
	maxStreams   = 16   // at once, of a connection of HTTP/2
	maxServed    = 16   // requests of one kind at once, where each takes memory; others wait
	readTimeout  = 10 * time.Second
	writeTimeout = 20 * time.Second
)

// lent returns how many of most connections a door may hold: so many that a part of the files which this process may have
// open is left for what measures.
func lent(most, files int) int { return max(1, min(most, files/8)) }

// openFiles returns how many files this process may have open.
func openFiles() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024 // the least that systems are set to
	}
	return int(min(l.Cur, 1<<20))
}

// inTurn has h serve at most so many requests at once. Others wait for their turn as long as they are waited for.
func inTurn(h http.Handler, most int) http.Handler {
	turns := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

// serve runs an HTTP server on l until ctx ends. webConfig is a file of the exporter toolkit's form, for TLS and
// authentication, or empty. It holds at most so many connections.
func serve(ctx context.Context, l net.Listener, most int, h http.Handler, webConfig string, log *slog.Logger) error {
	l = netutil.LimitListener(l, lent(most, openFiles()))
	defer func() { _ = l.Close() }() // the server has closed it, if it came to serve
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: h, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := web.Serve(l, srv, &web.FlagConfig{WebConfigFile: &webConfig}, slog.New(slog.DiscardHandler)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := srv.Shutdown(grace); err != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}

// serveMetrics serves scrapes and health checks.
func (a *Agent) serveMetrics(ctx context.Context, l net.Listener) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", inTurn(a.ways.prom.Handler(), maxServed))
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("tpotscope: /metrics /healthz /readyz\n"))
	})
	return serve(ctx, l, maxScrapers, mux, a.cfg.Metrics.WebConfig, a.log)
}

// serveSocket serves what probes report.
func (a *Agent) serveSocket(ctx context.Context, l net.Listener) error {
	path, h, err := ingest.NewHandler(ingest.Config{
		Sink:    func(s ingest.Source) timeline.RequestSink { return a.store.Source(a.targets.only()) },
		Now:     a.clock.Now,
		Anchor:  a.store.Anchor,
		Aligner: func(ingest.Source) ingest.Aligner { return newAligner(&a.suspends) },
		Refused: &a.refused,
	})
	if err != nil {
		return fmt.Errorf("open ingest: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(path, inTurn(h, maxServed))
	mux.Handle("POST "+burst.Path, a.bursts)
	mux.HandleFunc("GET /healthz", a.healthz)
	return serve(ctx, l, maxReporters, mux, "", a.log)
}

// aligner ties the clock of one reporter elsewhere to this host's.
type aligner struct {
	est      *clock.Estimator
	suspends *atomic.Uint64 // of this host: its clock stood still, which the reporter's did not
	epoch    uint64         // suspends at the newest exchange
	now      clock.Estimate
	ok       bool
}

func newAligner(suspends *atomic.Uint64) *aligner {
	return &aligner{est: clock.NewEstimator(clock.DefaultConfig()), suspends: suspends, epoch: suspends.Load()}
}

// Add takes an exchange.
func (a *aligner) Add(x ingest.Exchange) {
	a.forget()
	if _, err := a.est.Add(clock.Exchange(x)); err == nil {
		a.now, a.ok = a.est.Estimate()
	}
}

// Local returns a reporter's instant on this host's timeline, and the bound of its error.
func (a *aligner) Local(peer timeline.Instant) (timeline.Instant, time.Duration, bool) {
	a.forget()
	at, bound := a.now.Local(peer)
	return at, bound, a.ok
}

// forget drops what was known before this host was suspended.
func (a *aligner) forget() {
	if n := a.suspends.Load(); n != a.epoch {
		a.est.CloseEpoch()
		a.epoch, a.ok = n, false
	}
}

// health is the JSON form of /healthz.
type health struct {
	Status       string             `json:"status"` // "ok" or "degraded"
	Simulated    bool               `json:"simulated,omitempty"`
	UptimeS      float64            `json:"uptime_s"`
	GPUs         []gpuHealth        `json:"gpus"`
	Why          []string           `json:"why,omitempty"`
	Capabilities []capabilityHealth `json:"capabilities,omitempty"` // those that are not ok
	Drops        Drops              `json:"drops"`
	Helper       *helperHealth      `json:"helper,omitempty"`
	DCGM         *scrape.DCGMStats  `json:"dcgm,omitempty"`
	Exports      []exportHealth     `json:"exports,omitempty"`
	Bursts       burst.State        `json:"bursts"`
	Targets      []targetHealth     `json:"targets"`
}

type gpuHealth struct {
	UUID  string  `json:"uuid"`
	Name  string  `json:"name"`
	AgeS  float64 `json:"newest_window_age_s"`
	State string  `json:"state"`

	LastFault     string  `json:"last_fault,omitempty"` // an error that the driver told
	LastFaultAgeS float64 `json:"last_fault_age_s,omitempty"`

	Sampling  *samplingHealth  `json:"sampling,omitempty"`
	Inventory *inventoryHealth `json:"inventory,omitempty"`
}

type helperHealth struct {
	PID       int    `json:"pid"` // zero while none runs
	Restarts  uint64 `json:"restarts"`
	Abandoned int    `json:"abandoned"` // that do not die, and are still there
	LastLoss  string `json:"last_loss,omitempty"`
}

type capabilityHealth struct {
	GPU    string `json:"gpu"`
	Call   string `json:"call"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// healthz tells the state of the agent. It answers 200 while the agent runs, degraded or not: what is missing is said
// in the body, and is no reason to restart it.
func (a *Agent) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(a.health()) // an error says that the client went away
}

func (a *Agent) health() *health {
	now, known, gpus := a.clock.Now(), a.store.Health(), a.store.GPUs()
	h := &health{
		Status: "ok", Simulated: a.deps.Simulated, UptimeS: now.Sub(a.started).Seconds(), GPUs: []gpuHealth{},
		Drops: a.store.Drops(), Bursts: a.bursts.State(), Targets: a.targets.health(len(gpus)),
	}
	if src, ok := a.counters.(*remote.Source); ok {
		st := src.Stats()
		h.Helper = &helperHealth{st.PID, st.Restarts, st.AbandonedNow, st.LastLoss}
	}
	stale := staleAfter
	if a.dcgm != nil {
		st := a.dcgm.Stats()
		h.DCGM = &st
		stale = max(stale, 3*a.router.Every())
	}
	for i, g := range gpus {
		h.Simulated = h.Simulated || g.Simulated
		one, why := a.gpuHealth(&g, i, &known, now, stale)
		if why != "" {
			h.Why = append(h.Why, why)
		}
		h.GPUs = append(h.GPUs, one)
	}
	a.describeSampling(h.GPUs)
	for _, c := range known.Capabilities {
		if c.State != timeline.StateOK && c.GPU >= 0 && c.GPU < len(gpus) {
			h.Capabilities = append(h.Capabilities, capabilityHealth{gpus[c.GPU].UUID, c.Call, c.State.String(), c.Detail})
		}
	}
	switch {
	case a.counters == nil && a.dcgm == nil:
		h.Why = append(h.Why, "no counters: nvml.source is off")
	case known.Lost && strings.HasPrefix(known.Why, neverRead):
		h.Why = append(h.Why, known.Why)
	case known.Lost && len(gpus) == 0:
		h.Why = append(h.Why, "no counters: "+known.Why)
	case known.Lost:
		h.Why = append(h.Why, "counters stopped: "+known.Why)
	case len(gpus) == 0 && now.Sub(a.started) > staleAfter:
		h.Why = append(h.Why, "no counters: no GPU was listed yet")
	}
	if a.recorder != nil && a.recorder.failing.Load() {
		h.Why = append(h.Why, "the recording loses rows: see the log")
	}
	if a.ways.otlp != nil {
		var why []string
		h.Exports, why = a.ways.watch.health(time.Now(), a.ways.otlp.Stats())
		h.Why = append(h.Why, why...)
	}
	if len(h.Why) > 0 {
		h.Status = "degraded"
	}
	return h
}

// gpuHealth returns the state of one GPU, and why it is not well if nothing else says so.
func (a *Agent) gpuHealth(g *timeline.GPU, i int, known *Health, now timeline.Instant, stale time.Duration) (gpuHealth, string) {
	// A GPU that was never read has been silent for as long as the agent has run.
	age := now.Sub(max(known.Latest[i], a.started))
	one := gpuHealth{UUID: g.UUID, Name: g.Name, AgeS: age.Seconds(), State: timeline.StateOK.String()}
	if f, ok := a.told.lastFault(i); ok {
		one.LastFault, one.LastFaultAgeS = f.Detail, now.Sub(f.At).Seconds()
	}
	call := timeline.SMClock
	if g.GPM {
		call = timeline.DRAMUtil // stands for the windows
	}
	c := known.state(i, call.String())
	gone := c.State == timeline.StateLost || c.State == timeline.StateTimeout
	if age <= stale && (!gone || a.router != nil) {
		return one, ""
	}
	one.State = timeline.StateStale.String()
	why := fmt.Sprintf("no counters of GPU %s for %.0f s", timeline.ShortUUID(g.UUID), one.AgeS)
	if c.State != timeline.StateOK && c.State != timeline.StateUnknown {
		one.State = c.State.String()
		why += ": " + strings.ReplaceAll(one.State, "_", " ")
		if c.Detail != "" {
			why += ": " + c.Detail
		}
	}
	if known.Lost {
		why = "" // that says it for all
	}
	return one, why
}
