package prom_test

import (
	"errors"
	"flag"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/prom"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	openMetrics = "application/openmetrics-text;version=1.0.0"
	protobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// batch returns three seconds of one target and its requests.
func batch() *exporters.Batch {
	const start = timeline.Instant(1000 * time.Second)
	b := &exporters.Batch{
		Anchor: timeline.Anchor{Mono: start, Real: 1_800_000_000_000_000_000},
		GPUs:   []timeline.GPU{{UUID: "GPU-1", Name: "NVIDIA H100 80GB HBM3", Driver: "570.86.15", PCIBusID: "0000:18:00.0", Simulated: true}},
		Self: []exporters.Self{
			{Name: "tpotscope.sampler.rate", Labels: []string{"GPU-1"}, Value: 9.98},
			{Name: "tpotscope.ring.drops", Labels: []string{"tokens"}, Value: 0},
			{Name: "tpotscope.probe.events", Labels: []string{"kernel"}, Value: 1234},
		},
	}
	for i := range 3 {
		span := timeline.Span{Start: start.Add(time.Duration(i) * time.Second), End: start.Add(time.Duration(i+1) * time.Second)}
		g := correlate.GPUCell{UUID: "GPU-1", Windows: 10, CoveredS: 1, DRAMBytes: timeline.Known(2.5e12), ThrottledS: map[string]float64{"sw_power_cap": 0.5}}
		g.Counters[timeline.SMUtil] = correlate.Mean{Value: 0.75, CoveredS: 1}
		g.Counters[timeline.TensorUtil] = correlate.Mean{Value: 0.125, CoveredS: 1}
		g.Counters[timeline.SMClock] = correlate.Mean{Value: 1.755e9, CoveredS: 1}
		b.Cells = append(b.Cells, correlate.Cell{
			Target: "llama", Span: span, Tokens: 500, OutputTokens: timeline.Known(512), PromptTokens: timeline.Known(64), Decode: true,
			WindowTPOT: timeline.Known(0.015625), Batch: timeline.Known(8), Waiting: timeline.Known(0), KVUsage: timeline.Known(0.25),
			Coverage: timeline.Absent("the engine does not count"), Level: timeline.L3, PerGPU: []correlate.GPUCell{g},
			Verdict:     verdict.Verdict{Label: timeline.Memory, Confidence: timeline.Medium},
			Preemptions: timeline.Absent("not told"), Steps: timeline.Absent("not told"), EngineTPOT: timeline.Absent("not told"),
		})
	}
	for i, tpot := range []float64{0.014, 0.016, 0.25} {
		end := start.Add(time.Duration(i+1) * time.Second)
		p := correlate.Phase{Request: timeline.Request{
			Target: "llama", TraceID: strings.Repeat("0", 31) + string(rune('1'+i)), SpanID: strings.Repeat("0", 15) + string(rune('1'+i)), Sampled: i != 1,
			Sent: end.Add(-time.Second), First: end.Add(-time.Second / 2), Last: end, Done: end,
		}}
		p.Latency.TPOT, p.Latency.TTFT, p.Latency.ITL = timeline.Known(tpot), timeline.Known(0.5), []float64{tpot, 0.00001, tpot}
		b.Phases = append(b.Phases, p)
	}
	return b
}

func newSink(t *testing.T, profile exporters.Profile, classic bool) *prom.Sink {
	t.Helper()
	s, err := prom.New(prom.Config{ClassicBuckets: classic, State: exporters.StateConfig{
		Profile: profile, Version: "1.2.3", Targets: []timeline.Target{{Name: "llama", Model: "llama-3.1-8b", DType: "bf16"}},
		Spans: exporters.SpanPolicy{Enabled: true, PerSecond: 10, Burst: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(t *testing.T, s *prom.Sink, accept string) (body, contentType string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	req.Header.Set("Accept", accept)
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	if rec.Code != http.StatusOK {
		t.Fatalf("GET /metrics: %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String(), rec.Header().Get("Content-Type")
}

func TestMetricsAreAsTheyStandInTheGoldenFiles(t *testing.T) {
	for _, tt := range []struct {
		file, accept string
		profile      exporters.Profile
		classic      bool
	}{
		{"minimal.golden", "text/plain", exporters.Minimal, false},
		{"standard.golden", openMetrics, exporters.Standard, false},
		{"full.golden", openMetrics, exporters.Full, true},
	} {
		t.Run(tt.file, func(t *testing.T) {
			s := newSink(t, tt.profile, tt.classic)
			if err := s.Consume(t.Context(), batch()); err != nil {
				t.Fatal(err)
			}
			got, _ := get(t, s, tt.accept)
			file := filepath.Join("testdata", tt.file)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("GET /metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// families scrapes in the format that carries native histograms.
func families(t *testing.T, s *prom.Sink) map[string]*dto.MetricFamily {
	t.Helper()
	body, contentType := get(t, s, protobuf)
	if !strings.HasPrefix(contentType, "application/vnd.google.protobuf") {
		t.Fatalf("Content-Type %s, want protobuf", contentType)
	}
	dec, m := expfmt.NewDecoder(strings.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim)), map[string]*dto.MetricFamily{}
	for {
		var f dto.MetricFamily
		if err := dec.Decode(&f); errors.Is(err, io.EOF) {
			return m
		} else if err != nil {
			t.Fatal(err)
		}
		m[f.GetName()] = &f
	}
}

func TestProtobufCarriesNativeHistogramsWithExemplarsOfSampledRequestsOnly(t *testing.T) {
	s := newSink(t, exporters.Standard, false)
	if err := s.Consume(t.Context(), batch()); err != nil {
		t.Fatal(err)
	}
	h := families(t, s)["tpotscope_tpot_seconds"].GetMetric()[0].GetHistogram()
	if h.GetSampleCount() != 3 || math.Abs(h.GetSampleSum()-0.28) > 1e-12 || h.GetSchema() != 4 {
		t.Errorf("histogram %v, want 3 requests, 0.28 s, schema 4", h)
	}
	// Bucket i of schema 4 ends at 2^(i/16).
	populated := map[int]int64{}
	index, count, delta := int32(0), int64(0), 0
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range span.GetLength() {
			count += h.GetPositiveDelta()[delta]
			populated[int(index)] += count
			delta++
			index++
		}
	}
	for _, tpot := range []float64{0.014, 0.016, 0.25} {
		if i := int(math.Ceil(math.Log2(tpot) * 16)); populated[i] != 1 {
			t.Errorf("bucket %d of %g holds %d, want 1 (all: %v)", i, tpot, populated[i], populated)
		}
	}
	var traces []string
	for _, e := range h.GetExemplars() {
		traces = append(traces, e.GetLabel()[0].GetValue()[31:])
	}
	if diff := cmp.Diff([]string{"1", "3"}, traces); diff != "" {
		t.Errorf("traces of the exemplars (-want +got):\n%s", diff)
	}
	if at := h.GetExemplars()[1].GetTimestamp().AsTime(); !at.Equal(time.Unix(1_800_000_003, 0)) {
		t.Errorf("exemplar at %v, want the end of its request", at)
	}
	itl := families(t, s)["tpotscope_itl_seconds"].GetMetric()[0].GetHistogram()
	if itl.GetZeroCount() != 3 || itl.GetZeroThreshold() != exporters.ZeroThreshold {
		t.Errorf("ITL has %d in the zero bucket up to %g, want the three gaps of shared reads", itl.GetZeroCount(), itl.GetZeroThreshold())
	}
}

func TestGPUSeriesDisappearWhenTheSamplerIsLost(t *testing.T) {
	s := newSink(t, exporters.Full, false)
	b := batch()
	if err := s.Consume(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	lost := &exporters.Batch{Anchor: b.Anchor, GPUs: b.GPUs, Events: []timeline.Event{{At: b.Cells[2].Span.End, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU}}}
	if err := s.Consume(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	got := families(t, s)
	for name := range got {
		if strings.HasPrefix(name, "tpotscope_gpu_") {
			t.Errorf("%s is still there", name)
		}
	}
	if got["tpotscope_decode_seconds_total"] == nil {
		t.Error("the target's counters are gone as well")
	}
}

func TestALabelThatIsNoUTF8DoesNotBreakTheScrape(t *testing.T) {
	s := newSink(t, exporters.Standard, false)
	b := batch()
	b.GPUs[0].Name = "bad\xff"
	if err := s.Consume(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if body, _ := get(t, s, openMetrics); !strings.Contains(body, "bad\uFFFD") {
		t.Error("the label is not there in a readable form")
	}
}

func TestScrapesAndBatchesMayMeet(t *testing.T) {
	s := newSink(t, exporters.Full, true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if err := s.Consume(t.Context(), batch()); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				if body, _ := get(t, s, openMetrics); !strings.HasSuffix(body, "# EOF\n") {
					t.Error("a scrape was cut off")
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkScrape(b *testing.B) {
	s, err := prom.New(prom.Config{State: exporters.StateConfig{Profile: exporters.Standard}})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Consume(b.Context(), batch()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", http.NoBody)
		req.Header.Set("Accept", protobuf)
		s.Handler().ServeHTTP(httptest.NewRecorder(), req)
	}
}
