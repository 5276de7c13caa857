package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
	"github.com/tpotscope/tpotscope/exporters/prom"
)

// complainEvery bounds how often a way out that complains is logged.
const complainEvery = time.Minute

// ways are the agent's ways out. They share one policy of which spans go out, so that an exemplar shown by one points
// to a span that another sends.
type ways struct {
	log        *slog.Logger
	prom       *prom.Sink
	otlp       *otlp.Exporter // nil: off
	more       []exporters.Sink
	complained time.Time
	watch      *exportWatch // nil: off
}

// openWays makes the ways out that the configuration asks for.
func (a *Agent) openWays(ctx context.Context) (ways, error) {
	w := ways{log: a.log, more: a.deps.Sinks}
	var profile exporters.Profile
	if err := profile.UnmarshalText([]byte(a.cfg.Metrics.Profile)); err != nil {
		return w, fmt.Errorf("metrics.profile: %w", err)
	}
	cfg, warnings, err := a.cfg.OTLP.WithEnvironment()
	if err != nil {
		return w, fmt.Errorf("otlp: %w", err)
	}
	for _, text := range warnings {
		a.log.Warn("otlp setting", slog.String("warning", text))
	}
	cfg.Spans.Enabled = cfg.Spans.Enabled && cfg.TracesEnabled()
	cfg.Version, cfg.Targets = a.cfg.Version, a.cfg.Targets
	if cfg.Host == "" {
		if cfg.Host, err = os.Hostname(); err != nil {
			cfg.Host = "unknown"
		}
	}
	if w.prom, err = prom.New(prom.Config{State: exporters.StateConfig{
		Profile: profile, Targets: a.cfg.Targets, Spans: cfg.Spans, Version: a.cfg.Version,
	}}); err != nil {
		return w, fmt.Errorf("open metrics: %w", err)
	}
	if cfg.Enabled() {
		if w.otlp, err = otlp.New(ctx, cfg); err != nil {
			return w, fmt.Errorf("open otlp: %w", err)
		}
		w.watch = newExportWatch(a.log, map[spool.Signal]string{
			spool.Metrics: hostOf(cmp.Or(cfg.Metrics.URL, cfg.Endpoint.URL)), spool.Traces: hostOf(cmp.Or(cfg.Traces.URL, cfg.Endpoint.URL)),
		})
	}
	return w, nil
}

// start runs what the ways out need running.
func (w *ways) start(ctx context.Context, g *errgroup.Group) {
	if w.otlp == nil {
		return
	}
	for _, drain := range w.otlp.Drains() {
		g.Go(func() error { return drain(ctx) })
	}
}

// consume hands a batch to every way out. None of them waits for the network.
func (w *ways) consume(ctx context.Context, b *exporters.Batch) {
	if w.otlp != nil {
		w.watch.look(time.Now(), w.otlp.Stats())
		b.Self = append(b.Self, w.otlp.Self()...)
	}
	err := w.prom.Consume(ctx, b)
	if w.otlp != nil {
		err = errors.Join(err, w.otlp.Consume(ctx, b))
	}
	for _, s := range w.more {
		err = errors.Join(err, s.Consume(ctx, b))
	}
	if now := time.Now(); err != nil && now.Sub(w.complained) > complainEvery {
		w.complained = now
		w.log.Warn("export complains", slog.Any("err", err))
	}
}

// setTargets hands over what is known of the targets.
func (w *ways) setTargets(list []timeline.Target) {
	w.prom.SetTargets(list)
	if w.otlp != nil {
		w.otlp.SetTargets(list)
	}
}

// shutdown queues what is left and lets the drains end.
func (w *ways) shutdown(ctx context.Context) error {
	if w.otlp == nil {
		return nil
	}
	if err := w.otlp.Close(ctx); err != nil {
		return fmt.Errorf("close otlp: %w", err)
	}
	return nil
}

// hostOf returns the host and port of an endpoint, which may be no URL but just that.
func hostOf(endpoint string) string {
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		return u.Host
	}
	return endpoint
}

// exportHealth is what became of one signal's requests, in /healthz.
type exportHealth struct {
	Signal      string  `json:"signal"`
	Endpoint    string  `json:"endpoint"` // host and port
	Queued      int     `json:"queued"`   // requests that wait
	QueuedBytes int64   `json:"queued_bytes"`
	Sent        uint64  `json:"sent"`
	Retried     uint64  `json:"retried"` // attempts
	Dropped     uint64  `json:"dropped"` // for want of room, refused for good, or left at the end
	FailingS    float64 `json:"failing_s,omitempty"`
	LastError   string  `json:"last_error,omitempty"`
}

// exportWatch follows whether what is exported goes out, and tells people when it does not.
type exportWatch struct {
	log   *slog.Logger
	hosts map[spool.Signal]string

	mu      sync.Mutex
	outlets map[spool.Signal]*outlet
}

// outlet is what is known of one signal.
type outlet struct {
	sent, failed uint64 // requests sent, and attempts that failed, when last looked at

	since time.Time // when attempts began to fail; zero: they do not
	said  time.Time // when that was last logged
	told  bool      // that it fails was logged, and that it is over was not
}

func newExportWatch(log *slog.Logger, hosts map[spool.Signal]string) *exportWatch {
	return &exportWatch{log: log, hosts: hosts, outlets: map[spool.Signal]*outlet{}}
}

// look says that attempts fail, at most once a minute, and that requests go out again.
func (w *exportWatch) look(now time.Time, stats map[spool.Signal]spool.Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, signal := range slices.Sorted(maps.Keys(stats)) {
		st := stats[signal]
		o := w.outlets[signal]
		if o == nil {
			o = &outlet{}
			w.outlets[signal] = o
		}
		failures := st.Retries + st.DroppedRefused
		sent, failed := st.Sent > o.sent, failures > o.failed
		o.sent, o.failed = st.Sent, failures
		if st.LastError == "" || sent { // an error beside what was sent is that of a part
			if o.told {
				w.log.Info("exports go out again", slog.String("signal", string(signal)), slog.String("endpoint", w.hosts[signal]),
					slog.Duration("after", now.Sub(o.since).Round(time.Second)), slog.Int("queued", st.Queued))
			}
			o.since, o.told = time.Time{}, false
			continue
		}
		if o.since.IsZero() {
			if !failed {
				continue
			}
			o.since = now
		}
		if o.said.IsZero() || now.Sub(o.said) >= complainEvery {
			o.said, o.told = now, true
			w.log.Warn("exports fail", slog.String("signal", string(signal)), slog.String("endpoint", w.hosts[signal]),
				slog.String("cause", st.LastError), slog.Int("queued", st.Queued), slog.Uint64("dropped", dropped(&st)))
		}
	}
}

// health returns the state of every signal, and why exports are not well.
func (w *exportWatch) health(now time.Time, stats map[spool.Signal]spool.Stats) ([]exportHealth, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []exportHealth
	var why []string
	for _, signal := range slices.Sorted(maps.Keys(stats)) {
		st := stats[signal]
		one := exportHealth{
			Signal: string(signal), Endpoint: w.hosts[signal], Queued: st.Queued, QueuedBytes: st.QueuedBytes,
			Sent: st.Sent, Retried: st.Retries, Dropped: dropped(&st), LastError: st.LastError,
		}
		if o := w.outlets[signal]; o != nil && !o.since.IsZero() {
			one.FailingS = now.Sub(o.since).Seconds()
			if now.Sub(o.since) > complainEvery {
				why = append(why, fmt.Sprintf("no %s could be sent to %s for %.0f s: %s", signal, one.Endpoint, one.FailingS, st.LastError))
			}
		}
		list = append(list, one)
	}
	return list, why
}

func dropped(st *spool.Stats) uint64 { return st.DroppedFull + st.DroppedRefused + st.DroppedShutdown }

// lost returns how many requests were given up at the end. It may be asked once the drains have ended.
func (w *ways) lost() uint64 {
	n := uint64(0)
	for _, st := range w.otlp.Stats() {
		n += st.DroppedShutdown
	}
	return n
}
