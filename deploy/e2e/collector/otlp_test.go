package collector_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

const (
	seconds = 45
	boot    = timeline.Instant(7200 * time.Second)
	wall    = int64(1_790_000_000_123_456_789)
)

// unix returns the wall-clock time of an instant.
func unix(t timeline.Instant) int64 { return wall + int64(t-boot) }

// batches returns seconds of one target on two GPUs, one request a second, every third of them not sampled.
func batches() []*exporters.Batch {
	var out []*exporters.Batch
	for i := range seconds {
		b := &exporters.Batch{
			Anchor: timeline.Anchor{Mono: boot, Real: wall}, GPUs: []timeline.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}},
			Self: []exporters.Self{{Name: "tpotscope.agent.cpu_cores", Value: 0.03}},
		}
		span := timeline.Span{Start: boot.Add(time.Duration(i) * time.Second), End: boot.Add(time.Duration(i+1) * time.Second)}
		c := correlate.Cell{
			Target: "llama", Span: span, Tokens: 480, OutputTokens: timeline.Known(500), PromptTokens: timeline.Known(50), Decode: true,
			WindowTPOT: timeline.Known(0.02), Batch: timeline.Known(10), Waiting: timeline.Known(0), KVUsage: timeline.Known(0.5), Coverage: timeline.Known(0.96),
			Level: timeline.L3, Verdict: verdict.Verdict{Label: timeline.Memory}, Preemptions: timeline.Absent("x"), Steps: timeline.Absent("x"),
			EngineTPOT: timeline.Absent("x"), DRAMBytes: timeline.Known(4e12), ModelledBytes: timeline.Absent("x"),
		}
		for _, g := range b.GPUs {
			c.PerGPU = append(c.PerGPU, correlate.GPUCell{UUID: g.UUID, Windows: 10, CoveredS: 1, DRAMBytes: timeline.Known(2e12)})
		}
		p := correlate.Phase{
			Request: timeline.Request{
				TraceID: fmt.Sprintf("%032x", i+1), SpanID: fmt.Sprintf("%016x", i+1), ParentID: fmt.Sprintf("%016x", 0xa000+i), Sampled: i%3 != 0,
				Target: "llama", Operation: "chat", Model: "llama-3.1-8b", Dialect: "vllm", Streaming: true, HTTPStatus: 200, Counted: timeline.CountUsage, OutputTokens: 100,
				Sent: span.Start + 1, First: span.Start.Add(100 * time.Millisecond), Last: span.End - 2, Done: span.End - 1,
			},
			Label: timeline.Memory, Confidence: timeline.High, Grade: timeline.Shared, Mixture: []correlate.Part{{Label: timeline.Memory, Share: 1}},
		}
		p.Latency.TPOT, p.Latency.TTFT = timeline.Known(0.009), timeline.Known(0.1)
		p.Latency.Stalls = []latency.Stall{{Over: timeline.Span{Start: span.Start.Add(500 * time.Millisecond), End: span.End}, Seconds: 0.1}}
		b.Cells, b.Phases = []correlate.Cell{c}, []correlate.Phase{p}
		out = append(out, b)
	}
	return out
}

// export sends all batches to a collector; between is called before each.
func export(t *testing.T, protocol, url string, between func(i int)) {
	t.Helper()
	cfg := otlp.DefaultConfig()
	cfg.Endpoint = otlp.Endpoint{URL: url, Protocol: protocol}
	cfg.Host, cfg.Version, cfg.Flush, cfg.Services = "node-1", "1.2.3", 30*time.Second, map[string]string{"llama": "llama-prod"}
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
	for i, b := range batches() {
		between(i)
		if err := e.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	between(seconds)
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for signal, st := range e.Stats() {
		if st.Sent != st.Accepted || st.DroppedFull+st.DroppedRefused+st.DroppedShutdown+st.RejectedItems > 0 {
			t.Errorf("%s: %+v, want all of it taken", signal, st)
		}
	}
}

// points returns the number points of a metric by their time, and the service they came under. A point that came twice
// counts once: sending is at least once.
func (k *kept) points(t *testing.T, name string, attrs map[string]string) (points map[int64]float64, service string) {
	t.Helper()
	points = map[int64]float64{}
	for _, rm := range k.metrics {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != name {
					continue
				}
				list := pmetric.NewNumberDataPointSlice()
				switch m.Type() {
				case pmetric.MetricTypeSum:
					if !m.Sum().IsMonotonic() || m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative {
						t.Errorf("%s is no cumulative counter", name)
					}
					list = m.Sum().DataPoints()
				case pmetric.MetricTypeGauge:
					list = m.Gauge().DataPoints()
				default:
					t.Errorf("%s is a %s", name, m.Type())
				}
				for _, p := range list.All() {
					if !has(p.Attributes(), attrs) {
						continue
					}
					at := int64(p.Timestamp())
					if old, twice := points[at]; twice && old != p.DoubleValue() {
						t.Errorf("%s has two values at %d", name, at)
					}
					points[at] = p.DoubleValue()
					v, _ := rm.Resource().Attributes().Get("service.name")
					service = v.Str()
				}
			}
		}
	}
	return points, service
}

func has(m pcommon.Map, want map[string]string) bool {
	for k, v := range want {
		if got, ok := m.Get(k); !ok || got.Str() != v {
			return false
		}
	}
	return true
}

// check holds what came through to what went in.
func (k *kept) check(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tt := range []struct {
		name    string
		attrs   map[string]string
		value   func(i int) float64
		service string
	}{
		{"tpotscope.decode", map[string]string{"target": "llama", "bound": "memory"}, func(i int) float64 { return float64(i + 1) }, "llama-prod"},
		{"tpotscope.tokens", map[string]string{"target": "llama", "kind": "output"}, func(i int) float64 { return 500 * float64(i+1) }, "llama-prod"},
		{"tpotscope.batch", map[string]string{"target": "llama"}, func(int) float64 { return 10 }, "llama-prod"},
		{"tpotscope.gpu.dram", map[string]string{"hw.id": "GPU-b", "target": "llama"}, func(i int) float64 { return 2e12 * float64(i+1) }, "tpotscope"},
	} {
		points, service := k.points(t, tt.name, tt.attrs)
		want := map[int64]float64{}
		for i := range seconds {
			want[unix(boot.Add(time.Duration(i+1)*time.Second))] = tt.value(i)
		}
		if diff := cmp.Diff(want, points); diff != "" || service != tt.service {
			t.Errorf("%s of %s (-want +got):\n%s", tt.name, service, diff)
		}
	}
	k.checkHistogram(t)
	k.checkSpans(t)
}

func (k *kept) checkHistogram(t *testing.T) {
	t.Helper()
	var last uint64
	exemplars := map[string]bool{}
	for _, rm := range k.metrics {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != "tpotscope.tpot" {
					continue
				}
				p := m.ExponentialHistogram().DataPoints().At(0)
				last = max(last, p.Count())
				for _, e := range p.Exemplars().All() {
					exemplars[fmt.Sprintf("%s %s %d %g", e.TraceID(), e.SpanID(), int64(e.Timestamp()), e.DoubleValue())] = true
				}
			}
		}
	}
	if last != seconds {
		t.Errorf("TPOT counts %d requests, want %d", last, seconds)
	}
	if len(exemplars) < 3 {
		t.Errorf("%d exemplars, want one a batch", len(exemplars))
	}
	known := map[string]bool{}
	for i := range seconds {
		if i%3 != 0 {
			known[fmt.Sprintf("%032x %016x %d 0.009", i+1, i+1, unix(boot.Add(time.Duration(i+1)*time.Second)-1))] = true
		}
	}
	for e := range exemplars {
		if !known[e] {
			t.Errorf("exemplar %s is that of no exported span", e)
		}
	}
}

func (k *kept) checkSpans(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range k.spans {
		seen[s.SpanID().String()] = true
	}
	for i := range seconds {
		if id := fmt.Sprintf("%016x", i+1); seen[id] != (i%3 != 0) {
			t.Errorf("span of request %d is there: %v", i, seen[id])
		}
	}
	i := slices.IndexFunc(k.spans, func(s span) bool { return s.SpanID().String() == "0000000000000002" })
	if i < 0 {
		return
	}
	s, start := k.spans[i], boot.Add(time.Second)
	if s.Name() != "chat llama-3.1-8b" || s.Kind() != ptrace.SpanKindClient || s.service != "llama-prod" || s.scope != "tpotscope https://opentelemetry.io/schemas/1.41.0" {
		t.Errorf("span %s (%s) of %s, scope %s", s.Name(), s.Kind(), s.service, s.scope)
	}
	if s.TraceID().String() != fmt.Sprintf("%032x", 2) || s.ParentSpanID().String() != "000000000000a001" {
		t.Errorf("trace %s, parent %s", s.TraceID(), s.ParentSpanID())
	}
	if int64(s.StartTimestamp()) != unix(start+1) || int64(s.EndTimestamp()) != unix(start.Add(time.Second)-1) {
		t.Errorf("span from %d to %d, not to the nanosecond", s.StartTimestamp(), s.EndTimestamp())
	}
	for key, want := range map[string]string{
		"tpotscope.decode.bound": "memory", "tpotscope.decode.confidence": "high", "tpotscope.decode.grade": "shared", "tpotscope.evidence": "L3",
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "llama-3.1-8b", "gen_ai.usage.output_tokens": "100",
		"tpotscope.tpot": "0.009", "tpotscope.traffic.coverage": "0.96", "tpotscope.simulated": "false", "hw.id": `["GPU-a","GPU-b"]`,
	} {
		if v, _ := s.Attributes().Get(key); v.AsString() != want {
			t.Errorf("%s is %q, want %q", key, v.AsString(), want)
		}
	}
	if s.Events().Len() != 2 || int64(s.Events().At(0).Timestamp()) != unix(start.Add(100*time.Millisecond)) {
		t.Errorf("%d events, want the first token and a stall at their times", s.Events().Len())
	}
}

func TestEverythingArrivesExactly(t *testing.T) {
	for _, protocol := range []string{otlp.HTTPProtobuf, otlp.GRPC} {
		t.Run(protocol, func(t *testing.T) {
			k, p := &kept{}, freePorts(t)
			stop := startCollector(t, p, k)
			defer stop()
			export(t, protocol, url(protocol, p), func(int) {})
			k.check(t)
		})
	}
}

func url(protocol string, p ports) string {
	if protocol == otlp.GRPC {
		return "http://" + p.grpc
	}
	return "http://" + p.http
}

func TestACollectorThatComesLateAndRestartsLosesNothing(t *testing.T) {
	for _, protocol := range []string{otlp.HTTPProtobuf, otlp.GRPC} {
		t.Run(protocol, func(t *testing.T) {
			k, p := &kept{}, freePorts(t)
			stop := func() {}
			defer func() { stop() }()
			export(t, protocol, url(protocol, p), func(i int) {
				switch i {
				case 15: // one batch was made without a receiver
					stop = startCollector(t, p, k)
				case 30:
					stop()
				case seconds:
					stop = startCollector(t, p, k)
				}
			})
			k.check(t)
		})
	}
}
