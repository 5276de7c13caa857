// Package prom shows the catalogue's series to Prometheus: a sink that accumulates, and a handler for /metrics. It
// speaks the text format, OpenMetrics, and the protobuf format that carries native histograms. It listens nowhere;
// whoever mounts the handler decides on address, TLS and authentication.
package prom

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
)

// Config says what is shown.
type Config struct {
	State exporters.StateConfig

	// ClassicBuckets adds buckets at powers of two to each histogram, for servers that do not scrape native histograms:
	// 18 more series a histogram.
	ClassicBuckets bool
}

// Sink takes results in and shows them as /metrics. It is safe for concurrent use.
type Sink struct {
	classic bool
	descs   [exporters.NumMetrics]*prometheus.Desc
	handler http.Handler

	mu    sync.Mutex
	state *exporters.State
}

var (
	_ exporters.Sink       = (*Sink)(nil)
	_ prometheus.Collector = (*Sink)(nil)
)

// New returns a sink that has seen nothing.
func New(cfg Config) (*Sink, error) {
	s := &Sink{classic: cfg.ClassicBuckets, state: exporters.NewState(cfg.State)}
	for id := range exporters.NumMetrics {
		m := exporters.Lookup(id)
		s.descs[id] = prometheus.NewDesc(m.Prom, m.Help, m.PromLabels(), nil)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		return nil, fmt.Errorf("register series: %w", err)
	}
	s.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true,                     // the text format that carries exemplars
		ErrorHandling:     promhttp.ContinueOnError, // one bad series does not hide the rest
	})
	return s, nil
}

// Handler returns the handler for /metrics.
func (s *Sink) Handler() http.Handler { return s.handler }

// SetTargets hands over what is known of the targets.
func (s *Sink) SetTargets(targets []timeline.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.SetTargets(targets)
}

// Consume takes a batch in. The error names readings that are not in the catalogue; the rest is taken in all the same.
func (s *Sink) Consume(_ context.Context, b *exporters.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Consume(b)
}

// Describe sends the description of every metric of the catalogue.
func (s *Sink) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		ch <- d
	}
}

// Collect sends the present value of every series.
func (s *Sink) Collect(ch chan<- prometheus.Metric) {
	for _, m := range s.metrics() {
		ch <- m
	}
}

// metrics returns all series as they are now, so that the lock is not held while they are written.
func (s *Sink) metrics() []prometheus.Metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	series := s.state.Append(nil)
	metrics := make([]prometheus.Metric, 0, len(series))
	for i := range series {
		m, err := s.metric(&series[i])
		if err != nil {
			m = prometheus.NewInvalidMetric(s.descs[series[i].ID], err)
		}
		metrics = append(metrics, m)
	}
	return metrics
}
