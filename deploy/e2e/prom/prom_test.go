// Package prom_test holds tpotscope's two ways into Prometheus against Prometheus itself: its scraper, its OTLP
// receiver, its storage and its query engine run inside the test.
package prom_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
	"github.com/tpotscope/tpotscope/exporters/prom"
)

const (
	seconds = 60
	boot    = timeline.Instant(3600 * time.Second)
)

// bound returns what bounds second i: 40 s of memory, 15 s of host, 5 s of nothing said.
func bound(i int) timeline.Label {
	switch {
	case i%12 < 8:
		return timeline.Memory
	case i%12 < 11:
		return timeline.Host
	}
	return timeline.Undetermined
}

// tpot returns the TPOT of request i in seconds: 10 ms to 109 ms, each once.
func tpot(i int) float64 { return 0.010 + 0.001*float64(i) }

// requests is how many requests a target serves.
const requests = 100

// batches returns a minute of two targets of one GPU each; its first cell begins at wall.
func batches(wall time.Time) []*exporters.Batch {
	var out []*exporters.Batch
	for i := range seconds {
		b := &exporters.Batch{
			Anchor: timeline.Anchor{Mono: boot, Real: wall.UnixNano()},
			GPUs:   []timeline.GPU{{UUID: "GPU-a", Name: "NVIDIA H100 80GB HBM3"}, {UUID: "GPU-b", Name: "NVIDIA H100 80GB HBM3"}},
			Self:   []exporters.Self{{Name: "tpotscope.agent.cpu_cores", Value: 0.03}, {Name: "tpotscope.ring.drops", Labels: []string{"tokens"}, Value: 0}},
		}
		span := timeline.Span{Start: boot.Add(time.Duration(i) * time.Second), End: boot.Add(time.Duration(i+1) * time.Second)}
		for t, name := range []string{"llama", "qwen"} {
			g := correlate.GPUCell{UUID: b.GPUs[t].UUID, Windows: 10, CoveredS: 1, DRAMBytes: timeline.Known(2.1e12), ThrottledS: map[string]float64{"sw_power_cap": 0.25}}
			g.Counters[timeline.SMUtil] = correlate.Mean{Value: 0.5, CoveredS: 1}
			g.Counters[timeline.TensorUtil] = correlate.Mean{Value: 0.125, CoveredS: 1}
			b.Cells = append(b.Cells, correlate.Cell{
				Target: name, Span: span, Tokens: 480, OutputTokens: timeline.Known(500), PromptTokens: timeline.Known(50), Decode: true,
				WindowTPOT: timeline.Known(0.02), Batch: timeline.Known(10), Waiting: timeline.Known(0), KVUsage: timeline.Known(0.5), Coverage: timeline.Known(0.96),
				PerGPU: []correlate.GPUCell{g}, Level: timeline.L3, Verdict: verdict.Verdict{Label: bound(i)},
				Preemptions: timeline.Absent("x"), Steps: timeline.Absent("x"), EngineTPOT: timeline.Absent("x"),
				DRAMBytes: timeline.Known(2.1e12), ModelledBytes: timeline.Absent("x"),
			})
			for n := i * requests / seconds; n < (i+1)*requests/seconds; n++ {
				p := correlate.Phase{Request: timeline.Request{
					Target: name, TraceID: fmt.Sprintf("%032x", 1000*t+n+1), SpanID: fmt.Sprintf("%016x", 1000*t+n+1), Sampled: n%2 == 0,
					Sent: span.Start, First: span.Start.Add(100 * time.Millisecond), Last: span.End, Done: span.End,
				}}
				p.Latency.TPOT, p.Latency.TTFT, p.Latency.ITL = timeline.Known(tpot(n)), timeline.Known(0.1), []float64{tpot(n), tpot(n)}
				b.Phases = append(b.Phases, p)
			}
		}
		out = append(out, b)
	}
	return out
}

var stateConfig = exporters.StateConfig{
	Profile: exporters.Full, Version: "1.2.3", Targets: []timeline.Target{{Name: "llama", Model: "llama-3.1-8b", DType: "bf16"}},
	Spans: exporters.SpanPolicy{Enabled: true, PerSecond: 1000, Burst: 1000},
}

// server is a Prometheus: storage and query engine.
type server struct {
	db     *tsdb.DB
	engine *promql.Engine
}

func newServer(t *testing.T) *server {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.EnableExemplarStorage, opts.MaxExemplars, opts.OutOfOrderTimeWindow = true, 10_000, 0
	db, err := tsdb.Open(t.TempDir(), nil, prometheus.NewRegistry(), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{db: db, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})}
	t.Cleanup(func() {
		if err := s.engine.Close(); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// query returns the value of each series of an instant query, by its labels other than the scrape's own.
func (s *server) query(t *testing.T, q string, at time.Time) map[string]float64 {
	t.Helper()
	query, err := s.engine.NewInstantQuery(t.Context(), s.db, nil, q, at)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	defer query.Close()
	res := query.Exec(t.Context())
	if res.Err != nil {
		t.Fatalf("%s: %v", q, res.Err)
	}
	vector, err := res.Vector()
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	values := map[string]float64{}
	for _, sample := range vector {
		v := sample.F
		if sample.H != nil {
			v = sample.H.Count
		}
		values[labels.NewBuilder(sample.Metric).Del("job", "instance").Labels().String()] = v
	}
	return values
}

func (s *server) want(t *testing.T, q string, at time.Time, want map[string]float64) {
	t.Helper()
	got := s.query(t, q, at)
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("%s has series %v, want %v", q, got, want)
	}
	for k, w := range want {
		if g := got[k]; math.Abs(g-w) > 1e-9*math.Abs(w) {
			t.Errorf("%s: %s is %g, want %g", q, k, g, w)
		}
	}
}

// traces returns the trace ids of the exemplars of a histogram.
func (s *server) traces(t *testing.T, name string) map[string]bool {
	t.Helper()
	eq, err := s.db.ExemplarQuerier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	results, err := eq.Select(0, math.MaxInt64, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", name)})
	if err != nil {
		t.Fatal(err)
	}
	traces := map[string]bool{}
	for _, r := range results {
		for _, e := range r.Exemplars {
			if e.Labels.Get("span_id") != e.Labels.Get("trace_id")[16:] {
				t.Errorf("exemplar %v: the span is not that of the trace", e)
			}
			traces[e.Labels.Get("trace_id")] = true
		}
	}
	return traces
}

// checkExemplars holds the exemplars to spans that were exported: those of sampled requests.
func (s *server) checkExemplars(t *testing.T) {
	t.Helper()
	traces := s.traces(t, "tpotscope_tpot_seconds")
	sampled := map[string]bool{}
	for target := range 2 {
		for n := 0; n < requests; n += 2 {
			sampled[fmt.Sprintf("%032x", 1000*target+n+1)] = true
		}
	}
	if len(traces) < 4 {
		t.Errorf("%d exemplars, want several powers of two of two targets", len(traces))
	}
	for id := range traces {
		if !sampled[id] {
			t.Errorf("an exemplar points to %s, of which no span was exported", id)
		}
	}
}

// checkTotals holds what the counters say at the end to what went in.
func (s *server) checkTotals(t *testing.T, at time.Time) {
	t.Helper()
	both := func(v float64) map[string]float64 {
		return map[string]float64{`{target="llama"}`: v, `{target="qwen"}`: v}
	}
	perGPU := func(v float64) map[string]float64 {
		return map[string]float64{`{hw_id="GPU-a"}`: v, `{hw_id="GPU-b"}`: v}
	}
	s.want(t, `sum by (bound) (tpotscope_decode_seconds_total{target="llama"}) > 0`, at,
		map[string]float64{`{bound="memory"}`: 40, `{bound="host"}`: 15, `{bound="undetermined"}`: 5})
	s.want(t, `sum by (hw_id) (tpotscope_gpu_dram_bytes_total)`, at, perGPU(2.1e12*seconds))
	s.want(t, `sum by (hw_id) (tpotscope_gpu_sm_active_seconds_total / tpotscope_gpu_covered_seconds_total)`, at, perGPU(0.5))
	s.want(t, `sum by (hw_id) (tpotscope_gpu_throttled_seconds_total{reason="sw_power_cap"})`, at, perGPU(15))
	s.want(t, `sum by (target) (tpotscope_tokens_total{kind="output"})`, at, both(500*seconds))
	s.want(t, `sum by (target) (tpotscope_requests_total{status="ok"})`, at, both(requests))
	s.want(t, `sum by (target) (histogram_count(tpotscope_tpot_seconds))`, at, both(requests))
	s.want(t, `sum by (target) (histogram_count(tpotscope_itl_seconds))`, at, both(2*requests))
	s.want(t, `sum by (target) (histogram_sum(tpotscope_tpot_seconds))`, at, both(5.95))
	s.want(t, `max by (target) (tpotscope_traffic_coverage_ratio)`, at, both(0.96))
	// DRAM bytes per token, joined over what the GPUs and the target count.
	s.want(t, `sum by (target) (tpotscope_gpu_dram_bytes_total) / on (target) sum by (target) (tpotscope_tokens_total{kind="output"})`, at, both(2.1e12/500))
	// The name of the device comes from the info series.
	s.want(t, `sum by (hw_model) (tpotscope_gpu_covered_seconds_total * on (hw_id, target) group_left (hw_model) tpotscope_gpu_info)`, at,
		map[string]float64{`{hw_model="NVIDIA H100 80GB HBM3"}`: 2 * seconds})
	for q, exact := range map[float64]float64{0.5: 0.0595, 0.9: 0.0995, 0.99: 0.1085} {
		query := fmt.Sprintf(`histogram_quantile(%g, sum by (target) (tpotscope_tpot_seconds))`, q)
		for k, got := range s.query(t, query, at) {
			if math.Abs(got/exact-1) > 0.045 { // a bucket is 4.4 % wide
				t.Errorf("%s: %s is %g, want %g within a bucket", query, k, got, exact)
			}
		}
	}
}

func TestScraping(t *testing.T) {
	sink, err := prom.New(prom.Config{State: stateConfig})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(sink.Handler())
	defer web.Close()
	s := newServer(t)
	startScraping(t, s, web.Listener.Addr().String(), "PrometheusProto")

	for _, b := range batches(time.Now().Add(-seconds * time.Second)) {
		if err := sink.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, s, `tpotscope_tokens_total{target="qwen",kind="output"} == 30000`)
	at := time.Now()
	s.checkTotals(t, at)
	s.checkExemplars(t)

	lost := &exporters.Batch{Events: []timeline.Event{{At: boot.Add(seconds * time.Second), Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU}}}
	if err := sink.Consume(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	// A series that a scrape does not show is marked stale: it is gone from the next query on.
	waitFor(t, s, `absent(tpotscope_gpu_dram_bytes_total) and on () sum(tpotscope_tokens_total) > 0`)
}

// startScraping lets Prometheus' own scraper read a target until the test ends.
func startScraping(t *testing.T, s *server, address, format string) {
	t.Helper()
	cfg, err := config.Load(fmt.Sprintf(`
scrape_configs:
  - job_name: tpotscope
    scrape_interval: 200ms
    scrape_timeout: 200ms
    scrape_native_histograms: true
    scrape_protocols: [%s]
`, format), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m, err := scrape.NewManager(&scrape.Options{DiscoveryReloadInterval: model.Duration(10 * time.Millisecond)}, nil, nil, nil, s.db, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ApplyConfig(cfg); err != nil {
		t.Fatal(err)
	}
	targets, done := make(chan map[string][]*targetgroup.Group), make(chan error, 1)
	go func() { done <- m.Run(targets) }()
	targets <- map[string][]*targetgroup.Group{"tpotscope": {{Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(address)}}}}}
	t.Cleanup(func() {
		m.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Servers that do not scrape native histograms see the classic buckets, in text.
func TestScrapingText(t *testing.T) {
	sink, err := prom.New(prom.Config{State: stateConfig, ClassicBuckets: true})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(sink.Handler())
	defer web.Close()
	for _, b := range batches(time.Now().Add(-seconds * time.Second)) {
		if err := sink.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	s := newServer(t)
	startScraping(t, s, web.Listener.Addr().String(), "OpenMetricsText1.0.0")
	waitFor(t, s, `tpotscope_build_info`)
	both := func(v float64) map[string]float64 {
		return map[string]float64{`{target="llama"}`: v, `{target="qwen"}`: v}
	}
	at := time.Now()
	s.want(t, `sum by (target) (tpotscope_tpot_seconds_count)`, at, both(requests))
	s.want(t, `sum by (target) (tpotscope_tpot_seconds_bucket{le="0.03125"})`, at, both(22)) // 10 ms to 31 ms
	for k, got := range s.query(t, `histogram_quantile(0.5, sum by (target, le) (tpotscope_tpot_seconds_bucket))`, at) {
		if got < 0.03125 || got > 0.0625 { // the power of two that holds 59.5 ms
			t.Errorf("median of %s is %g", k, got)
		}
	}
	if traces := s.traces(t, "tpotscope_tpot_seconds_bucket"); len(traces) < 4 {
		t.Errorf("%d exemplars on classic buckets", len(traces))
	}
}

// waitFor waits until a query has a result.
func waitFor(t *testing.T, s *server, q string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(s.query(t, q, time.Now())) == 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s has no result in 30 s", q)
		}
	}
}

// push sends all batches over OTLP into s, and returns how many requests it took and how many it refused.
func push(t *testing.T, s *server, all []*exporters.Batch) {
	t.Helper()
	receiver := remote.NewOTLPWriteHandler(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), s.db, func() config.Config { return config.DefaultConfig }, remote.OTLPOptions{})
	var mu sync.Mutex
	refused := map[int]string{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		receiver.ServeHTTP(rec, r)
		if rec.Code >= 300 {
			mu.Lock()
			refused[rec.Code] = rec.Body.String()
			mu.Unlock()
		}
		w.WriteHeader(rec.Code)
	}))
	defer web.Close()
	cfg := otlp.DefaultConfig()
	cfg.Metrics.URL, cfg.Host, cfg.Version = web.URL+"/api/v1/otlp/v1/metrics", "node-1", "1.2.3"
	cfg.Profile, cfg.Targets = stateConfig.Profile, stateConfig.Targets
	// Traces have a receiver, so that exemplars point to spans; what it does with them is not looked at.
	cfg.Traces.URL, cfg.Spans = web.URL+"/traces", stateConfig.Spans
	e, err := otlp.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, drain := range e.Drains()[:1] {
		wg.Go(func() {
			if err := drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, b := range all {
		if err := e.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if st := e.Stats()["metrics"]; len(refused) > 0 || st.Sent == 0 || st.DroppedRefused > 0 || st.RejectedItems > 0 {
		t.Errorf("Prometheus refused %v: %+v", refused, st)
	}
}

func TestPushOverOTLP(t *testing.T) {
	s := newServer(t)
	wall := time.Now().Add(-5 * time.Minute).Truncate(time.Second).Add(123456789)
	push(t, s, batches(wall))
	end := wall.Add(seconds * time.Second)
	s.checkTotals(t, end)
	s.checkExemplars(t)

	// Every second is a point at the end of its cell, and nowhere else.
	s.want(t, `count_over_time(tpotscope_decode_seconds_total{target="llama",bound="memory"}[70s])`, end, map[string]float64{`{bound="memory", target="llama"}`: seconds})
	first := wall.Add(time.Second)
	s.want(t, `timestamp(tpotscope_decode_seconds_total{target="llama",bound="memory"})`, first.Add(900*time.Millisecond),
		map[string]float64{`{bound="memory", target="llama"}`: float64(first.UnixMilli()) / 1000})

	// Over any span of whole cells the seconds by bound are those of its cells.
	for _, span := range [][2]int{{1, 60}, {1, 13}, {7, 31}, {24, 25}} {
		want := map[string]float64{}
		for i := span[0]; i < span[1]; i++ {
			want[fmt.Sprintf(`{bound="%s"}`, bound(i))]++
		}
		at := func(i int) string {
			return fmt.Sprintf("%.3f", float64(wall.Add(time.Duration(i)*time.Second).UnixMilli())/1000)
		}
		s.want(t, fmt.Sprintf(`sum by (bound) (tpotscope_decode_seconds_total{target="qwen"} @ %s - tpotscope_decode_seconds_total{target="qwen"} @ %s) > 0`,
			at(span[1]), at(span[0])), end, want)
	}
	s.want(t, `count by (job) (tpotscope_decode_seconds_total{bound="memory"}) * 0 + on (job) group_left () count by (job) (target_info)`, end, map[string]float64{`{}`: 1})
}

func TestBothWaysGiveTheSameSeries(t *testing.T) {
	wall := time.Now().Add(-5 * time.Minute).Truncate(time.Second)
	all := batches(wall)
	pushed := newServer(t)
	push(t, pushed, all)

	sink, err := prom.New(prom.Config{State: stateConfig})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if err := sink.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	web := httptest.NewServer(sink.Handler())
	defer web.Close()
	scraped := newServer(t)
	startScraping(t, scraped, web.Listener.Addr().String(), "PrometheusProto")
	waitFor(t, scraped, `tpotscope_build_info`)

	const everything = `{__name__=~"tpotscope_.+"}`
	a, b := pushed.query(t, everything, wall.Add(seconds*time.Second)), scraped.query(t, everything, time.Now())
	if len(a) < 80 {
		t.Errorf("%d series, want the whole full profile", len(a))
	}
	if diff := cmp.Diff(b, a, cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) <= 1e-12*math.Abs(x) })); diff != "" {
		t.Errorf("pushed and scraped series differ (-scraped +pushed):\n%s", diff)
	}
	for k := range a {
		if strings.Contains(k, "le=") {
			t.Errorf("%s is a classic bucket", k)
		}
	}
}
