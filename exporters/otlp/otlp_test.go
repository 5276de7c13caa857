package otlp_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	start = timeline.Instant(5000 * time.Second)
	wall  = int64(1_800_000_000_000_000_000)
)

func TestEachCellIsOnePointAtItsOwnEnd(t *testing.T) {
	r := newReceiver(t)
	var batches []*exporters.Batch
	for i := range 25 {
		batches = append(batches, second(i))
	}
	send(t, r, nil, batches...)
	if r.posts < 4 || r.posts > 8 {
		t.Errorf("%d requests, want one a resource every 10 s", r.posts)
	}
	for _, tt := range []struct {
		name     string
		attrs    map[string]string
		value    func(i int) float64
		resource map[string]string
	}{
		{
			"tpotscope.decode",
			map[string]string{"target": "llama", "bound": "memory"},
			func(i int) float64 { return float64(i + 1) },
			map[string]string{"service.name": "llama-prod", "service.instance.id": "node-7/llama", "host.name": "node-7", "k8s.node.name": "node-7"},
		},
		{
			"tpotscope.gpu.dram",
			map[string]string{"hw.id": "GPU-1", "target": "llama"},
			func(i int) float64 { return 2e12 * float64(i+1) },
			map[string]string{
				"service.name": "tpotscope", "service.instance.id": "node-7", "service.version": "1.2.3", "host.name": "node-7",
				"k8s.node.name": "node-7", "k8s.pod.name": "tpotscope-x",
			},
		},
		{
			"tpotscope.batch",
			map[string]string{"target": "llama"},
			func(i int) float64 { return float64(i) },
			map[string]string{"service.name": "llama-prod", "service.instance.id": "node-7/llama", "host.name": "node-7", "k8s.node.name": "node-7"},
		},
	} {
		points, resource := r.points(tt.name, tt.attrs)
		if len(points) != 25 {
			t.Errorf("%s has %d points, want 25", tt.name, len(points))
			continue
		}
		for i, p := range points {
			at := uint64(wall + int64(i)*40 + int64(i+1)*int64(time.Second))
			if p.GetTimeUnixNano() != at || p.GetAsDouble() != tt.value(i) || p.GetStartTimeUnixNano() != points[0].GetStartTimeUnixNano() {
				t.Errorf("%s point %d is %g at %d since %d, want %g at %d", tt.name, i, p.GetAsDouble(), p.GetTimeUnixNano(), p.GetStartTimeUnixNano(), tt.value(i), at)
			}
		}
		if diff := cmp.Diff(tt.resource, resource); diff != "" {
			t.Errorf("%s: resource (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestPointsAreThinnedToTheResolution(t *testing.T) {
	r := newReceiver(t)
	var batches []*exporters.Batch
	for i := range 31 {
		batches = append(batches, second(i))
	}
	send(t, r, func(c *otlp.Config) { c.Resolution = 10 * time.Second }, batches...)
	points, _ := r.points("tpotscope.decode", map[string]string{"bound": "memory"})
	var values []float64
	for _, p := range points {
		values = append(values, p.GetAsDouble())
	}
	if want := []float64{1, 11, 21, 31}; !slices.Equal(values, want) {
		t.Errorf("points %v, want %v: nothing is lost of what counts", values, want)
	}
}

func TestNoSeriesHasTwoPointsInAMillisecondOrGoesBack(t *testing.T) {
	r := newReceiver(t)
	again, back := second(1), second(2)
	back.Anchor.Real -= 3 * int64(time.Second) // the wall clock was set back
	send(t, r, nil, second(0), second(1), again, back, second(3))
	points, _ := r.points("tpotscope.decode", map[string]string{"bound": "memory"})
	var ms []uint64
	for _, p := range points {
		ms = append(ms, p.GetTimeUnixNano()/1e6)
	}
	if !slices.IsSorted(ms) || len(slices.Compact(slices.Clone(ms))) != len(ms) {
		t.Errorf("times %v repeat or go back", ms)
	}
	if last := points[len(points)-1].GetAsDouble(); last != 5 {
		t.Errorf("the last point says %g s, want all 5 cells", last)
	}
}

func TestHistogramsCarryExemplarsOnce(t *testing.T) {
	r := newReceiver(t)
	first, late := second(0), second(20)
	first.Phases = []correlate.Phase{request(0), request(1, func(p *correlate.Phase) { p.Request.Sampled = false })}
	middle := second(12)                                                                                            // queues the first
	late.Phases = []correlate.Phase{request(2, func(p *correlate.Phase) { p.Latency.TPOT = timeline.Known(0.05) })} // ended before the last flush, and was told of after it
	send(t, r, nil, first, middle, late, second(21))
	var traces []string
	var counts []uint64
	for _, rm := range r.metrics {
		for _, m := range rm.GetScopeMetrics()[0].GetMetrics() {
			if m.GetName() != "tpotscope.tpot" {
				continue
			}
			p := m.GetExponentialHistogram().GetDataPoints()[0]
			counts = append(counts, p.GetCount())
			for _, e := range p.GetExemplars() {
				traces = append(traces, hex.EncodeToString(e.GetTraceId()[8:])+"/"+hex.EncodeToString(e.GetSpanId()))
			}
			sum := p.GetZeroCount()
			for _, c := range p.GetPositive().GetBucketCounts() {
				sum += c
			}
			if sum != p.GetCount() || m.GetExponentialHistogram().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
				t.Errorf("histogram %v does not add up", p)
			}
		}
	}
	if want := []string{"0000000000000001/0000000000000001", "0000000000000003/0000000000000003"}; !slices.Equal(traces, want) {
		t.Errorf("exemplars %v, want %v", traces, want)
	}
	if !slices.IsSorted(counts) || counts[len(counts)-1] != 3 {
		t.Errorf("counts %v, want them to grow to 3", counts)
	}
}

func TestTheStockExportersEnvironmentDoesNotReachTheWire(t *testing.T) {
	r := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
	b := second(0)
	b.Phases = []correlate.Phase{request(0)}
	send(t, r, nil, b) // the receiver takes nothing but gzip and protobuf
	if points, _ := r.points("tpotscope.decode", nil); len(points) != 10 || len(spans(r)) != 1 {
		t.Errorf("%d points, %d spans arrived", len(points), len(spans(r)))
	}
}

func TestASignalWithoutEndpointIsNotSent(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{request(0)}
	e := send(t, r, func(c *otlp.Config) {
		c.Metrics, c.Endpoint = otlp.Endpoint{URL: r.URL + "/v1/metrics"}, otlp.Endpoint{}
	}, b)
	if len(r.traces) != 0 || len(r.metrics) == 0 || len(e.Stats()) != 1 {
		t.Errorf("%d traces, %d metrics, signals %v", len(r.traces), len(r.metrics), e.Stats())
	}
}

func TestLossOfTheSamplerEndsTheGPUsPoints(t *testing.T) {
	r := newReceiver(t)
	lost := second(1)
	lost.Cells[0].PerGPU[0] = correlate.GPUCell{UUID: "GPU-1", DRAMBytes: timeline.Absent("no windows")}
	lost.Events = []timeline.Event{{At: start.Add(time.Second + 1), Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU}}
	send(t, r, nil, second(0), lost, second(2))
	points, _ := r.points("tpotscope.gpu.dram", nil)
	var values []float64
	for _, p := range points {
		values = append(values, p.GetAsDouble())
	}
	if want := []float64{2e12, 4e12}; !slices.Equal(values, want) {
		t.Errorf("points %v, want %v", values, want)
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, gpus := range []int{1, 8} {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			cfg := otlp.DefaultConfig()
			cfg.Endpoint.URL = "http://127.0.0.1:1" // no drain runs
			e, err := otlp.New(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				batch := second(i)
				batch.Cells[0].PerGPU = nil
				for g := range gpus {
					cell := correlate.GPUCell{UUID: fmt.Sprint("GPU-", g), CoveredS: 1, DRAMBytes: timeline.Known(1.2345e12)}
					batch.Cells[0].PerGPU = append(batch.Cells[0].PerGPU, cell)
				}
				i++
				if err := e.Consume(context.Background(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
