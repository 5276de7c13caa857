package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
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
