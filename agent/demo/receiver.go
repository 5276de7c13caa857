package demo

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds what the receiver reads of one request.
const maxBody = 16 << 20

// Received counts what came to an OTLP receiver.
type Received struct {
	Requests int `json:"requests"`
	Metrics  int `json:"metrics"` // names of series
	Points   int `json:"points"`
	Spans    int `json:"spans"`
}

// receiver is a least OTLP/HTTP receiver: it decodes what comes, counts it and forgets it.
type receiver struct {
	ln net.Listener

	mu    sync.Mutex
	count Received
	names map[string]bool
}

func newReceiver(ctx context.Context) (*receiver, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the OTLP receiver: %w", err)
	}
	return &receiver{ln: ln, names: map[string]bool{}}, nil
}

func (r *receiver) url() string { return "http://" + r.ln.Addr().String() }

func (r *receiver) close() { _ = r.ln.Close() }

func (r *receiver) received() Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Metrics = len(r.names)
	return r.count
}

// run serves until ctx ends.
func (r *receiver) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, req *http.Request) {
		var m metrics.ExportMetricsServiceRequest
		if take(w, req, &m) {
			r.countMetrics(&m)
		}
	})
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, req *http.Request) {
		var m traces.ExportTraceServiceRequest
		if take(w, req, &m) {
			r.countSpans(&m)
		}
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(r.ln); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve the OTLP receiver: %w", err)
	}
	return nil
}

// take decodes a request into m.
func take(w http.ResponseWriter, req *http.Request, m proto.Message) bool {
	body := io.Reader(http.MaxBytesReader(w, req.Body, maxBody))
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, "not gzip", http.StatusBadRequest)
			return false
		}
		body = io.LimitReader(z, maxBody)
	}
	b, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		http.Error(w, "not an OTLP request", http.StatusBadRequest)
		return false
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	return true
}

func (r *receiver) countMetrics(m *metrics.ExportMetricsServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Requests++
	for _, rm := range m.GetResourceMetrics() {
		for _, sm := range rm.GetScopeMetrics() {
			for _, one := range sm.GetMetrics() {
				r.names[one.GetName()] = true
				r.count.Points += len(one.GetGauge().GetDataPoints()) + len(one.GetSum().GetDataPoints()) +
					len(one.GetExponentialHistogram().GetDataPoints()) + len(one.GetHistogram().GetDataPoints())
			}
		}
	}
}

func (r *receiver) countSpans(m *traces.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Requests++
	for _, rs := range m.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			r.count.Spans += len(ss.GetSpans())
		}
	}
}
