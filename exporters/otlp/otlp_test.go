package otlp_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	start = timeline.Instant(5000 * time.Second)
	wall  = int64(1_800_000_000_000_000_000)
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
	middle := second(12)                        // queues the first
	late.Phases = []correlate.Phase{request(2)} // ended before the last flush, and was told of after it
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

func spans(r *receiver) (list []*tracepb.Span) {
	for _, rs := range r.traces {
		list = append(list, rs.GetScopeSpans()[0].GetSpans()...)
	}
	return list
}

func TestOneClientSpanARequestSaysWhatIsKnown(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{
		request(0), request(1, func(p *correlate.Phase) { p.Request.Sampled = false }),
		request(2, func(p *correlate.Phase) { p.Request.SpanID = "nonsense" }),
	}
	e := send(t, r, nil, b)
	got := spans(r)
	if len(got) != 1 {
		t.Fatalf("%d spans, want that of the sampled request alone", len(got))
	}
	s, sent := got[0], uint64(wall-int64(500*time.Millisecond))
	if s.GetName() != "chat llama-3.1-8b" || s.GetKind() != tracepb.Span_SPAN_KIND_CLIENT || s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET {
		t.Errorf("span %s of kind %v with %v", s.GetName(), s.GetKind(), s.GetStatus())
	}
	ids := hex.EncodeToString(s.GetTraceId()) + "/" + hex.EncodeToString(s.GetSpanId()) + "/" + hex.EncodeToString(s.GetParentSpanId())
	if want := "0123456789abcdef0000000000000001/0000000000000001/00000000000000aa"; ids != want {
		t.Errorf("ids %s, want those that went upstream, %s", ids, want)
	}
	if s.GetStartTimeUnixNano() != sent || s.GetEndTimeUnixNano() != sent+1e9 {
		t.Errorf("span from %d to %d, want %d and a second", s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), sent)
	}
	want := map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "llama-3.1-8b", "gen_ai.request.stream": "true",
		"gen_ai.request.max_tokens": "128", "gen_ai.response.finish_reasons": "[stop]", "gen_ai.usage.input_tokens": "64", "gen_ai.usage.output_tokens": "71",
		"gen_ai.response.time_to_first_chunk": "0.2", "http.response.status_code": "200", "server.address": "10.0.0.5", "server.port": "8000",
		"tpotscope.target": "llama", "tpotscope.status": "ok", "tpotscope.tokens.source": "usage", "tpotscope.ttft": "0.2", "tpotscope.tpot": "0.01",
		"tpotscope.slope": "0.0099", "tpotscope.decode.concurrency": "8", "tpotscope.decode.bound": "memory", "tpotscope.decode.confidence": "medium",
		"tpotscope.decode.grade": "shared", "tpotscope.decode.windows": "6", "tpotscope.decode.throttled": "0.25", "tpotscope.decode.mixture.memory": "0.82",
		"tpotscope.decode.mixture.mixed": "0.18", "tpotscope.decode.share.memory": "0.8", "tpotscope.decode.share.compute": "0", "tpotscope.decode.share.launch": "0",
		"tpotscope.decode.share.host": "0", "tpotscope.decode.share.other": "0.2", "tpotscope.decode.overlays": "[throttled]",
		"tpotscope.gpu.dram.bandwidth.utilization": "0.85", "hw.id": "[GPU-1]", "tpotscope.evidence": "L3", "tpotscope.simulated": "true",
		"tpotscope.clock.bound": "0.0001", "tpotscope.traffic.coverage": "0.97", "tpotscope.keep": "true",
	}
	if diff := cmp.Diff(want, attrs(s.GetAttributes())); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	var events []string
	for _, ev := range s.GetEvents() {
		events = append(events, fmt.Sprintf("%s+%dms %v", ev.GetName(), (ev.GetTimeUnixNano()-sent)/1e6, attrs(ev.GetAttributes())))
	}
	if want := []string{"tpotscope.first_token+200ms map[]", "tpotscope.stall+300ms map[tpotscope.stall.seconds:0.05]"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	rs := r.traces[0]
	if got := attrs(rs.GetResource().GetAttributes())["service.name"]; got != "llama-prod" {
		t.Errorf("the span belongs to %s, want the engine", got)
	}
	if sc := rs.GetScopeSpans()[0]; sc.GetScope().GetName() != "tpotscope" || sc.GetScope().GetVersion() != "1.2.3" || !strings.HasSuffix(sc.GetSchemaUrl(), "/1.41.0") {
		t.Errorf("scope %v, schema %s", sc.GetScope(), sc.GetSchemaUrl())
	}
	for _, self := range e.Self() {
		if self.Name == "tpotscope.spans" && self.Value != map[string]float64{"exported": 1, "limited": 0, "bad_ids": 1}[self.Labels[0]] {
			t.Errorf("%s %v = %g", self.Name, self.Labels, self.Value)
		}
	}
}

func TestAFailedRequestIsAnErrorAndIsKept(t *testing.T) {
	for kind, change := range map[string]func(*correlate.Phase){
		"503":       func(p *correlate.Phase) { p.Request.Status, p.Request.HTTPStatus = timeline.StatusHTTPError, 503 },
		"truncated": func(p *correlate.Phase) { p.Request.Status = timeline.StatusTruncated },
		"timeout":   func(p *correlate.Phase) { p.Request.Status, p.Request.HTTPStatus = timeline.StatusTimeout, 0 },
	} {
		r := newReceiver(t)
		b := second(0)
		b.Phases = []correlate.Phase{request(0, change, func(p *correlate.Phase) {
			p.ThrottledS, p.Overlays, p.Latency.TPOT = 0, nil, timeline.Absent("the stream did not end")
		})}
		send(t, r, nil, b)
		s := spans(r)[0]
		got := attrs(s.GetAttributes())
		if got["error.type"] != kind || s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || got["tpotscope.keep"] != "true" {
			t.Errorf("%s: status %v, attributes %v", kind, s.GetStatus(), got)
		}
		if got["tpotscope.tpot.absent"] != "the stream did not end" || got["tpotscope.tpot"] != "" {
			t.Errorf("%s: TPOT %q, absent %q", kind, got["tpotscope.tpot"], got["tpotscope.tpot.absent"])
		}
	}
}

func TestStallsOfOneSpanAreBoundedAndTheLongestStay(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{request(0, func(p *correlate.Phase) {
		p.Latency.Stalls = nil
		for i := range 40 {
			at := p.Request.First.Add(time.Duration(i) * time.Millisecond)
			p.Latency.Stalls = append(p.Latency.Stalls, latency.Stall{Over: timeline.Span{Start: at, End: at + 1}, Seconds: float64(i%20) + 1})
		}
	})}
	send(t, r, nil, b)
	s := spans(r)[0]
	if len(s.GetEvents()) != 17 || s.GetDroppedEventsCount() != 24 {
		t.Fatalf("%d events, %d dropped; want the first token and 16 stalls, 24 dropped", len(s.GetEvents()), s.GetDroppedEventsCount())
	}
	last := uint64(0)
	for _, ev := range s.GetEvents()[1:] {
		if v := attrs(ev.GetAttributes())["tpotscope.stall.seconds"]; len(v) < 2 { // 12 s to 20 s
			t.Errorf("a stall of %s s stays while longer ones are dropped", v)
		}
		if ev.GetTimeUnixNano() < last {
			t.Error("events are not in the order of time")
		}
		last = ev.GetTimeUnixNano()
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
