package otlp_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

// receiver is an OTLP/HTTP endpoint that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	metrics []*metricspb.ResourceMetrics
	traces  []*tracepb.ResourceSpans
	posts   int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		z, err := gzip.NewReader(req.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.posts++
		switch req.URL.Path {
		case "/v1/metrics":
			var m colmetrics.ExportMetricsServiceRequest
			err = proto.Unmarshal(body, &m)
			r.metrics = append(r.metrics, m.GetResourceMetrics()...)
		case "/v1/traces":
			var m coltrace.ExportTraceServiceRequest
			err = proto.Unmarshal(body, &m)
			r.traces = append(r.traces, m.GetResourceSpans()...)
		default:
			err = fmt.Errorf("path %s", req.URL.Path)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// send runs an exporter over the batches and waits until all has arrived.
func send(t *testing.T, r *receiver, change func(*otlp.Config), batches ...*exporters.Batch) *otlp.Exporter {
	t.Helper()
	cfg := otlp.DefaultConfig()
	cfg.Endpoint.URL, cfg.Version, cfg.Host = r.URL, "1.2.3", "node-7"
	cfg.Resource = map[string]string{"k8s.node.name": "node-7", "k8s.pod.name": "tpotscope-x"}
	cfg.Services = map[string]string{"llama": "llama-prod"}
	if change != nil {
		change(&cfg)
	}
	e, err := otlp.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, drain := range e.Drains() {
		wg.Go(func() {
			if err := drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, b := range batches {
		if err := e.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	return e
}

// second returns one batch with second i of a target that decodes on one GPU.
func second(i int) *exporters.Batch {
	span := timeline.Span{Start: start.Add(time.Duration(i) * time.Second), End: start.Add(time.Duration(i+1) * time.Second)}
	g := correlate.GPUCell{UUID: "GPU-1", Windows: 10, CoveredS: 1, DRAMBytes: timeline.Known(2e12)}
	g.Counters[timeline.SMUtil] = correlate.Mean{Value: 0.5, CoveredS: 1}
	return &exporters.Batch{
		Anchor: timeline.Anchor{Mono: start, Real: wall + int64(i)*40}, // drifts, as clocks do
		GPUs:   []timeline.GPU{{UUID: "GPU-1", Name: "NVIDIA H100 80GB HBM3", Simulated: true}},
		Cells: []correlate.Cell{{
			Target: "llama", Span: span, Tokens: 100, OutputTokens: timeline.Known(100), PromptTokens: timeline.Known(10), Decode: true, Batch: timeline.Known(float64(i)),
			Verdict: verdict.Verdict{Label: timeline.Memory}, PerGPU: []correlate.GPUCell{g}, Level: timeline.L3, Coverage: timeline.Known(0.97),
			Waiting: timeline.Absent("x"), KVUsage: timeline.Absent("x"), WindowTPOT: timeline.Absent("x"), Preemptions: timeline.Absent("x"),
			Steps: timeline.Absent("x"), EngineTPOT: timeline.Absent("x"), DRAMBytes: timeline.Known(2e12), ModelledBytes: timeline.Absent("x"),
		}},
	}
}

// request returns a finished request that ends half a second into second i.
func request(i int, change ...func(*correlate.Phase)) correlate.Phase {
	sent := start.Add(time.Duration(i)*time.Second - 500*time.Millisecond)
	p := correlate.Phase{
		Request: timeline.Request{
			ID: "req", TraceID: fmt.Sprintf("0123456789abcdef%016x", i+1), SpanID: fmt.Sprintf("%016x", i+1), ParentID: "00000000000000aa", Sampled: true,
			Target: "llama", Upstream: "http://10.0.0.5:8000", Dialect: "openai", Operation: "chat", Model: "llama-3.1-8b", Streaming: true,
			Sent: sent, Head: sent + 1, First: sent.Add(200 * time.Millisecond), Last: sent.Add(900 * time.Millisecond), Done: sent.Add(time.Second),
			HTTPStatus: 200, Finish: "stop", PromptTokens: 64, PromptKnown: true, OutputTokens: 71, Counted: timeline.CountUsage, FirstTokens: 1, MaxTokens: 128, Choices: 1,
		},
		Label: timeline.Memory, Confidence: timeline.Medium, Grade: timeline.Shared, Windows: 6, ThrottledS: 0.25, ClockBoundS: 0.0001,
		Mixture: []correlate.Part{{Label: timeline.Memory, Share: 0.82}, {Label: timeline.Mixed, Share: 0.18}}, Shares: timeline.Shares{Memory: 0.8, Other: 0.2},
		Concurrency: timeline.Known(8), DRAMBytes: timeline.Absent("x"), Overlays: []timeline.Overlay{timeline.Throttled},
	}
	p.Latency.TTFT, p.Latency.TPOT = timeline.Known(0.2), timeline.Known(0.01)
	p.Latency.FirstGap, p.Latency.Slope = timeline.Absent("x"), timeline.Known(0.0099)
	p.Latency.ITL = []float64{0.01, 0.05}
	p.Latency.Stalls = []latency.Stall{{Over: timeline.Span{Start: sent.Add(300 * time.Millisecond), End: sent.Add(350 * time.Millisecond)}, Seconds: 0.05}}
	p.Counters[timeline.DRAMUtil] = correlate.Mean{Value: 0.85, CoveredS: 0.6}
	for _, c := range change {
		c(&p)
	}
	return p
}

func attrs(kvs []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		v := kv.GetValue()
		switch v.GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.GetKey()] = v.GetStringValue()
		case *commonpb.AnyValue_ArrayValue:
			var parts []string
			for _, e := range v.GetArrayValue().GetValues() {
				parts = append(parts, e.GetStringValue())
			}
			m[kv.GetKey()] = "[" + strings.Join(parts, " ") + "]"
		case *commonpb.AnyValue_IntValue:
			m[kv.GetKey()] = strconv.FormatInt(v.GetIntValue(), 10)
		case *commonpb.AnyValue_BoolValue:
			m[kv.GetKey()] = strconv.FormatBool(v.GetBoolValue())
		case *commonpb.AnyValue_DoubleValue:
			m[kv.GetKey()] = fmt.Sprint(v.GetDoubleValue())
		}
	}
	return m
}

// points returns the points of a metric in the order of their arrival, and the resource they came under.
func (r *receiver) points(name string, want map[string]string) (points []*metricspb.NumberDataPoint, resource map[string]string) {
	for _, rm := range r.metrics {
		for _, m := range rm.GetScopeMetrics()[0].GetMetrics() {
			if m.GetName() != name {
				continue
			}
			for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
				got := attrs(p.GetAttributes())
				match := true
				for k, v := range want {
					match = match && got[k] == v
				}
				if match {
					points, resource = append(points, p), attrs(rm.GetResource().GetAttributes())
				}
			}
		}
	}
	return points, resource
}
