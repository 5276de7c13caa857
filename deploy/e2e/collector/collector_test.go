// Package collector_test holds tpotscope's OTLP output against an OpenTelemetry Collector that runs inside the test:
// its real receiver takes what the exporter sends, and an exporter of the test's own keeps what came through.
package collector_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// kept is what came through a collector. It outlives the collector, so that one may be stopped and another started.
type kept struct {
	mu      sync.Mutex
	metrics []pmetric.ResourceMetrics
	spans   []span
}

// span is a span and the resource it came under.
type span struct {
	ptrace.Span
	service string
	scope   string
}

func (k *kept) takeMetrics(_ context.Context, md pmetric.Metrics) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		c := pmetric.NewResourceMetrics()
		rm.CopyTo(c)
		k.metrics = append(k.metrics, c)
	}
	return nil
}

func (k *kept) takeTraces(_ context.Context, td ptrace.Traces) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, rs := range td.ResourceSpans().All() {
		service, _ := rs.Resource().Attributes().Get("service.name")
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				c := ptrace.NewSpan()
				s.CopyTo(c)
				k.spans = append(k.spans, span{c, service.Str(), ss.Scope().Name() + " " + ss.SchemaUrl()})
			}
		}
	}
	return nil
}

// sink is the collector's component that hands on to kept.
type sink struct {
	component.StartFunc
	component.ShutdownFunc
	consumer.Metrics
	consumer.Traces
}

// Capabilities says that nothing is changed.
func (sink) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (k *kept) factory() exporter.Factory {
	create := func() (sink, error) {
		m, err1 := consumer.NewMetrics(k.takeMetrics)
		t, err2 := consumer.NewTraces(k.takeTraces)
		return sink{Metrics: m, Traces: t}, errors.Join(err1, err2)
	}
	return exporter.NewFactory(component.MustNewType("kept"), func() component.Config { return &struct{}{} },
		exporter.WithMetrics(func(context.Context, exporter.Settings, component.Config) (exporter.Metrics, error) { return create() }, component.StabilityLevelStable),
		exporter.WithTraces(func(context.Context, exporter.Settings, component.Config) (exporter.Traces, error) { return create() }, component.StabilityLevelStable))
}

// ports are where a collector listens.
type ports struct{ http, grpc string }

func freePorts(t *testing.T) ports {
	t.Helper()
	free := func() string {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	return ports{free(), free()}
}

// startCollector runs a collector until the returned function is called.
func startCollector(t *testing.T, p ports, k *kept) (stop func()) {
	t.Helper()
	conf := fmt.Sprintf(`yaml:
receivers: {otlp: {protocols: {http: {endpoint: "%s"}, grpc: {endpoint: "%s"}}}}
exporters: {kept: {}}
service:
  telemetry: {metrics: {level: none}, logs: {level: error}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [kept]}
    traces: {receivers: [otlp], exporters: [kept]}
`, p.http, p.grpc)
	col, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Version: "test"},
		Factories: func() (otelcol.Factories, error) {
			receivers, err1 := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
			exporters, err2 := otelcol.MakeFactoryMap(k.factory())
			return otelcol.Factories{Receivers: receivers, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory()}, errors.Join(err1, err2)
		},
		DisableGracefulShutdown: true, // signals are the test's own affair
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{conf}, ProviderFactories: []confmap.ProviderFactory{yamlprovider.NewFactory()},
		}},
		LoggingOptions: []zap.Option{zap.WrapCore(func(zapcore.Core) zapcore.Core { return zapcore.NewNopCore() })},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- col.Run(context.WithoutCancel(t.Context())) }()
	waitFor(t, "the collector runs", func() bool { return col.GetState() == otelcol.StateRunning })
	return sync.OnceFunc(func() {
		col.Shutdown()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// waitFor waits until ok.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}
