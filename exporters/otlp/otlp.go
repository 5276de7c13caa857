// Package otlp sends the catalogue's series and one span a request to an OpenTelemetry receiver. The encoding is that
// of the stock OTLP exporters; behind them stands a spool, so that a receiver that is down costs nothing but room. It
// never waits for the network: what waits are the drains, which the agent runs.
//
// Series carry exact times: each cell gives one point at its own end, by default every second, sent in batches of ten
// seconds. What requests feed (histograms, counts of requests) gives one point a batch. A series never has two points
// in one millisecond, which backends that store milliseconds would refuse along with everything else in the request.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
)

// Config says what is sent where. Without any endpoint nothing is.
type Config struct {
	Disabled bool     `yaml:"disabled"`
	Endpoint Endpoint `yaml:"endpoint"` // for all signals; each signal's path is added for HTTP
	Metrics  Endpoint `yaml:"metrics"`  // overrides for metrics; its URL is used as it stands
	Traces   Endpoint `yaml:"traces"`   // and for traces

	Profile    exporters.Profile    `yaml:"profile"`
	Interval   time.Duration        `yaml:"interval"`    // between batches
	Resolution time.Duration        `yaml:"resolution"`  // least time between points of a series; zero: one a cell
	Spans      exporters.SpanPolicy `yaml:"spans"`       // none go out where traces have no endpoint, whatever Enabled says
	Children   bool                 `yaml:"children"`    // spans for prefill and decode below the request's own
	QueueBytes int64                `yaml:"queue_bytes"` // of each signal, as compressed
	Flush      time.Duration        `yaml:"flush"`       // how long the drains go on at shutdown

	Resource map[string]string `yaml:"resource"` // attributes of the agent's resource; those of the host go on every target's, too
	Services map[string]string `yaml:"services"` // service.name of each target; the target's own name where none is given

	Origins map[string]string `yaml:"-"` // variables of the environment that values came from, by key; set by WithEnvironment
	Host    string            `yaml:"-"` // host.name
	Version string            `yaml:"-"` // of the agent
	Targets []timeline.Target `yaml:"-"`
}

// DefaultConfig returns a configuration that sends nothing until it has an endpoint.
func DefaultConfig() Config {
	spans := exporters.DefaultSpanPolicy()
	spans.Enabled = true
	return Config{
		Profile: exporters.Standard, Interval: defaultInterval, Spans: spans,
		QueueBytes: spool.DefaultConfig().MaxBytes, Flush: spool.DefaultConfig().FlushTimeout,
	}
}

const (
	defaultInterval = 10 * time.Second
	maxPending      = 5000 // points before a batch goes out ahead of its time; gRPC receivers take 4 MiB, about 42,000 points
	maxSpans        = 512  // likewise
)

// merged returns the endpoints of both signals.
func (c Config) merged() (metrics, traces Endpoint) {
	common := c.Endpoint
	common.base = true
	return c.Metrics.over(common), c.Traces.over(common)
}

// Enabled reports whether c sends anything.
func (c Config) Enabled() bool {
	metrics, traces := c.merged()
	return !c.Disabled && (metrics.URL != "" || traces.URL != "")
}

// TracesEnabled reports whether c sends spans: what [exporters.SpanPolicy] calls Enabled, for every way out alike.
func (c Config) TracesEnabled() bool {
	_, traces := c.merged()
	return !c.Disabled && traces.URL != ""
}

// Validate names every fault of c.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"interval", c.Interval}, {"resolution", c.Resolution}, {"flush", c.Flush}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.key, d.value))
		}
	}
	if c.QueueBytes <= 0 {
		errs = append(errs, fmt.Errorf("queue_bytes: %d is no room", c.QueueBytes))
	}
	if !c.Disabled {
		metrics, traces := c.merged()
		errs = append(errs, metrics.validate(spool.Metrics), traces.validate(spool.Traces))
	}
	return errors.Join(errs...)
}

// Exporter is the way out over OTLP. It is safe for concurrent use.
type Exporter struct {
	cfg     Config
	metrics *spool.Spool // nil: not sent
	traces  *spool.Spool
	points  sdkmetric.Exporter
	spans   *otlptrace.Exporter

	mu       sync.Mutex
	state    *exporters.State
	pending  *pending
	building *spanBuilder
	queued   []sdktrace.ReadOnlySpan
	newest   timeline.Instant // of any cell or request
	flushed  timeline.Instant // what newest was at the last flush
	exported uint64           // spans
	limited  uint64
	bad      uint64 // spans whose ids are none
}

var _ exporters.Sink = (*Exporter)(nil)

// New returns an exporter of what cfg gives an endpoint to. Its drains must be run for anything to leave.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure otlp: %w", err)
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	cfg.Spans.Enabled = cfg.Spans.Enabled && cfg.TracesEnabled()
	e := &Exporter{
		cfg: cfg, pending: newPending(cfg), building: newSpanBuilder(cfg),
		state: exporters.NewState(exporters.StateConfig{Profile: cfg.Profile, Targets: cfg.Targets, Spans: cfg.Spans, Version: cfg.Version}),
	}
	metrics, traces := cfg.merged()
	var err error
	if metrics.URL != "" && !cfg.Disabled {
		if e.metrics, err = cfg.open(spool.Metrics, metrics); err == nil {
			e.points, err = newPointExporter(ctx, e.metrics)
		}
		if err != nil {
			return nil, fmt.Errorf("configure otlp metrics: %w", err)
		}
	}
	if traces.URL != "" && !cfg.Disabled {
		if e.traces, err = cfg.open(spool.Traces, traces); err == nil {
			e.spans, err = newSpanExporter(ctx, e.traces)
		}
		if err != nil {
			return nil, fmt.Errorf("configure otlp traces: %w", err)
		}
	}
	return e, nil
}

// open returns the spool of one signal.
func (c Config) open(signal spool.Signal, e Endpoint) (*spool.Spool, error) {
	sc, err := e.spoolConfig(signal)
	if err != nil {
		return nil, err
	}
	sc.MaxBytes, sc.FlushTimeout, sc.UserAgent = c.QueueBytes, c.Flush, "tpotscope/"+c.Version
	return spool.New(sc)
}

// The stock exporters read the environment themselves. What they are given here wins over it: they speak to a spool,
// and where and how things leave is the drain's affair.
const spoolHost = "spool.invalid"

func newPointExporter(ctx context.Context, s *spool.Spool) (sdkmetric.Exporter, error) {
	return otlpmetrichttp.New(ctx,
		otlpmetrichttp.WithEndpoint(spoolHost), otlpmetrichttp.WithURLPath("/v1/metrics"), otlpmetrichttp.WithHeaders(map[string]string{}),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression), otlpmetrichttp.WithHTTPClient(&http.Client{Transport: s}),
		otlpmetrichttp.WithTimeout(defaultInterval), otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: false}))
}

func newSpanExporter(ctx context.Context, s *spool.Spool) (*otlptrace.Exporter, error) {
	return otlptracehttp.New(ctx,
		otlptracehttp.WithEndpoint(spoolHost), otlptracehttp.WithURLPath("/v1/traces"), otlptracehttp.WithHeaders(map[string]string{}),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithHTTPClient(&http.Client{Transport: s}),
		otlptracehttp.WithEncoding(otlptracehttp.EncodingProtobuf),
		otlptracehttp.WithTimeout(defaultInterval), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}))
}

// SetTargets hands over what is known of the targets.
func (e *Exporter) SetTargets(targets []timeline.Target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.SetTargets(targets)
}

// Drains returns the loops that send what is queued: each is run once, beside the others, and ends after [Exporter.Close]
// or, when its context ends, after the time to flush.
func (e *Exporter) Drains() []func(context.Context) error {
	var drains []func(context.Context) error
	for _, s := range []*spool.Spool{e.metrics, e.traces} {
		if s != nil {
			drains = append(drains, s.Run)
		}
	}
	return drains
}

// Consume takes a batch in, and queues what has become due.
func (e *Exporter) Consume(ctx context.Context, b *exporters.Batch) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Begin(b)
	for i := range b.Cells {
		c := &b.Cells[i]
		e.state.AddCell(c)
		e.building.note(c)
		e.newest = max(e.newest, c.Span.End)
		if e.metrics != nil {
			e.pending.addCell(e.state, c)
		}
	}
	for i := range b.Phases {
		p := &b.Phases[i]
		e.newest = max(e.newest, p.Request.Over().End)
		d := e.state.AddPhase(p)
		if d.Limited {
			e.limited++
		}
		if !d.Export || e.traces == nil {
			continue
		}
		if spans, ok := e.building.build(e.state, b, p, d); ok {
			e.queued = append(e.queued, spans...)
			e.exported++
		} else {
			e.bad++
		}
	}
	err := e.state.Finish(b)
	if e.flushed == 0 {
		e.flushed = e.newest
	}
	if e.newest.Sub(e.flushed) >= e.cfg.Interval || e.pending.count >= maxPending || len(e.queued) >= maxSpans {
		err = errors.Join(err, e.flush(ctx))
	}
	return err
}

// Flush queues everything that was taken in.
func (e *Exporter) Flush(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flush(ctx)
}

func (e *Exporter) flush(ctx context.Context) error {
	var errs []error
	if e.metrics != nil {
		e.pending.addRest(e.state, e.newest)
		for _, rm := range e.pending.take() {
			errs = append(errs, e.points.Export(ctx, rm))
		}
	}
	if len(e.queued) > 0 {
		errs = append(errs, e.spans.ExportSpans(ctx, e.queued))
		e.queued = nil
	}
	e.flushed = e.newest
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("encode otlp: %w", err)
	}
	return nil
}

// Close queues what is left and lets the drains end. The exporter takes nothing in any more.
func (e *Exporter) Close(ctx context.Context) error {
	err := e.Flush(ctx)
	if e.metrics != nil {
		err = errors.Join(err, e.points.Shutdown(ctx))
		e.metrics.Close()
	}
	if e.traces != nil {
		err = errors.Join(err, e.spans.Shutdown(ctx))
		e.traces.Close()
	}
	return err
}

// Stats returns what became of each signal's requests; a signal that is not sent is left out.
func (e *Exporter) Stats() map[spool.Signal]spool.Stats {
	stats := map[spool.Signal]spool.Stats{}
	if e.metrics != nil {
		stats[spool.Metrics] = e.metrics.Stats()
	}
	if e.traces != nil {
		stats[spool.Traces] = e.traces.Stats()
	}
	return stats
}

// Self returns the exporter's own readings, for the next batch.
func (e *Exporter) Self() []exporters.Self {
	var out []exporters.Self
	add := func(id exporters.ID, v float64, labels ...string) {
		out = append(out, exporters.Self{Name: exporters.Lookup(id).Name, Labels: labels, Value: v})
	}
	stats := e.Stats()
	for _, signal := range []spool.Signal{spool.Metrics, spool.Traces} {
		st, ok := stats[signal]
		if !ok {
			continue
		}
		queue := "otlp_" + string(signal)
		add(exporters.SelfQueueSize, float64(st.QueuedBytes), queue)
		add(exporters.SelfQueueDrops, float64(st.DroppedFull), queue, "full")
		add(exporters.SelfQueueDrops, float64(st.DroppedRefused), queue, "refused")
		add(exporters.SelfQueueDrops, float64(st.DroppedShutdown), queue, "shutdown")
		add(exporters.SelfExportErrors, float64(st.Retries), queue, "retried")
		add(exporters.SelfExportErrors, float64(st.RejectedItems), queue, "rejected_items")
	}
	if e.traces != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		add(exporters.SelfSpans, float64(e.exported), "exported")
		add(exporters.SelfSpans, float64(e.limited), "limited")
		add(exporters.SelfSpans, float64(e.bad), "bad_ids")
	}
	return out
}
