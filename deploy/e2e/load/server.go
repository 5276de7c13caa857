package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds what is read of one message.
const maxBody = 32 << 20

// counts are what came to the receiver.
type counts struct {
	Requests, Points, Spans, Refused int
}

// server plays what stands around the agent: the engines' metrics, and an OTLP receiver that decodes and counts.
type server struct {
	ln      net.Listener
	traffic *traffic
	began   time.Time

	mu    sync.Mutex
	count counts
}

func newServer(ctx context.Context, t *traffic) (*server, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the engines and the receiver: %w", err)
	}
	return &server{ln: ln, traffic: t, began: time.Now()}, nil
}

func (s *server) url() string { return "http://" + s.ln.Addr().String() }

func (s *server) received() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// run serves until ctx ends.
func (s *server) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /engine/{i}/metrics", s.engine)
	mux.HandleFunc("POST /v1/metrics", s.metrics)
	mux.HandleFunc("POST /v1/traces", s.traces)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the engines and the receiver: %w", err)
	}
	return nil
}

// metrics takes in a message of metrics.
func (s *server) metrics(w http.ResponseWriter, r *http.Request) {
	var m metrics.ExportMetricsServiceRequest
	if !s.take(w, r, &m) {
		return
	}
	n := 0
	for _, rm := range m.GetResourceMetrics() {
		for _, sm := range rm.GetScopeMetrics() {
			for _, one := range sm.GetMetrics() {
				n += len(one.GetGauge().GetDataPoints()) + len(one.GetSum().GetDataPoints()) + len(one.GetExponentialHistogram().GetDataPoints())
			}
		}
	}
	s.add(n, 0)
}

// traces takes in a message of spans.
func (s *server) traces(w http.ResponseWriter, r *http.Request) {
	var m traces.ExportTraceServiceRequest
	if !s.take(w, r, &m) {
		return
	}
	n := 0
	for _, rs := range m.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			n += len(ss.GetSpans())
		}
	}
	s.add(0, n)
}

func (s *server) add(points, spans int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.Requests++
	s.count.Points += points
	s.count.Spans += spans
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, maxBody)) }

// take decodes a message, and answers.
func (s *server) take(w http.ResponseWriter, r *http.Request, m proto.Message) bool {
	body := io.Reader(r.Body)
	var err error
	if r.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			body = bytes.NewReader(nil)
		}
	}
	b, errRead := readAll(body)
	if err = errors.Join(err, errRead, proto.Unmarshal(b, m)); err != nil {
		s.mu.Lock()
		s.count.Refused++
		s.mu.Unlock()
		http.Error(w, "not an OTLP message", http.StatusBadRequest)
		return false
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	return true
}

// histograms are those of vLLM (docs.vllm.ai, "Production Metrics") that a busy server shows beside what is read of
// them: they make an answer as long as a real one.
var histograms = []string{
	"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
	"vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds",
	"vllm:request_decode_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
	"vllm:request_params_max_tokens", "vllm:request_params_n", "vllm:iteration_tokens_total",
}

// engine answers a scrape of one engine as vLLM would.
func (s *server) engine(w http.ResponseWriter, r *http.Request) {
	i, err := strconv.Atoi(r.PathValue("i"))
	if err != nil || i < 0 || i >= len(s.traffic.engines) {
		http.NotFound(w, r)
		return
	}
	e := &s.traffic.engines[i]
	began, prompts, output, steps, finished := e.life()
	if began.IsZero() {
		began = s.began
	}
	const labels = `engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"`
	var b bytes.Buffer
	one := func(kind, name string, v float64) {
		fmt.Fprintf(&b, "# HELP %s Simulated.\n# TYPE %s %s\n%s{%s} %v\n", name, name, kind, name, labels, v)
	}
	fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %d\n", began.Unix())
	one("gauge", "vllm:num_requests_running", float64(e.running.Load()))
	one("gauge", "vllm:num_requests_waiting", 0)
	one("gauge", "vllm:kv_cache_usage_perc", 0.25)
	one("counter", "vllm:prompt_tokens_total", float64(prompts))
	one("counter", "vllm:generation_tokens_total", float64(output))
	one("counter", "vllm:num_preemptions_total", 0)
	one("counter", "vllm:request_success_total", float64(finished))
	fmt.Fprintf(&b, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"27000\"} 1\n")
	for _, name := range histograms {
		count, sum := float64(finished), float64(finished)
		switch name {
		case "vllm:iteration_tokens_total":
			count, sum = float64(steps), float64(output+prompts)
		case "vllm:inter_token_latency_seconds":
			count, sum = float64(output), float64(output)/s.traffic.o.rate
		case "vllm:time_to_first_token_seconds":
			sum = count * firstToken.Seconds()
		}
		fmt.Fprintf(&b, "# HELP %s Simulated.\n# TYPE %s histogram\n", name, name)
		for le := 0.001; le < 300; le *= 2 {
			fmt.Fprintf(&b, "%s_bucket{%s,le=\"%g\"} %v\n", name, labels, le, count)
		}
		fmt.Fprintf(&b, "%s_bucket{%s,le=\"+Inf\"} %v\n%s_count{%s} %v\n%s_sum{%s} %v\n", name, labels, count, name, labels, count, name, labels, sum)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // the scraper went away
}
