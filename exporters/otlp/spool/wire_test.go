package spool_test

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
)

// request returns an export request with a name to tell it by.
func request(name string) *colmetrics.ExportMetricsServiceRequest {
	return &colmetrics.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{SchemaUrl: name}}}
}

// deliver puts the requests through a spool and waits until it has ended.
func deliver(t *testing.T, cfg spool.Config, reqs ...proto.Message) spool.Stats {
	t.Helper()
	cfg.MinBackoff, cfg.MaxBackoff = time.Millisecond, 2*time.Millisecond
	cfg.Headers = map[string]string{"Authorization": "Bearer of-the-day"}
	s, err := spool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: s}
	for _, r := range reqs {
		body, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://spool/v1/x", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer of-an-exporter")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s.Stats()
}

func TestHTTPReceiverGetsTheStoredBodies(t *testing.T) {
	for _, zip := range []bool{true, false} {
		var got []string
		var header http.Header
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			header = r.Header
			body := io.Reader(r.Body)
			if r.Header.Get("Content-Encoding") == "gzip" {
				z, err := gzip.NewReader(r.Body)
				if err != nil {
					t.Error(err)
					return
				}
				body = z
			}
			b, err := io.ReadAll(body)
			if err != nil {
				t.Error(err)
			}
			var m colmetrics.ExportMetricsServiceRequest
			if err := proto.Unmarshal(b, &m); err != nil {
				t.Error(err)
				return
			}
			got = append(got, m.GetResourceMetrics()[0].GetSchemaUrl())
			answer, err := proto.Marshal(&colmetrics.ExportMetricsServiceResponse{PartialSuccess: &colmetrics.ExportMetricsPartialSuccess{RejectedDataPoints: 4}})
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(answer)
		}))
		defer srv.Close()
		cfg := spool.DefaultConfig()
		cfg.Signal, cfg.Endpoint, cfg.Gzip, cfg.UserAgent = spool.Metrics, srv.URL+"/v1/metrics", zip, "tpotscope/1"
		st := deliver(t, cfg, request("one"), request("two"))
		if diff := cmp.Diff([]string{"one", "two"}, got); diff != "" {
			t.Errorf("gzip %v: received (-want +got):\n%s", zip, diff)
		}
		if a := header.Get("Authorization"); a != "Bearer of-the-day" {
			t.Errorf("gzip %v: Authorization %q, want the one of the drain", zip, a)
		}
		if (header.Get("Content-Encoding") == "gzip") != zip || header.Get("User-Agent") != "tpotscope/1" {
			t.Errorf("gzip %v: header %v", zip, header)
		}
		if st.Sent != 2 || st.Partial != 2 || st.RejectedItems != 8 {
			t.Errorf("gzip %v: %+v, want two sent in part", zip, st)
		}
	}
}

func TestHTTPStatusesAreSortedByTheProtocol(t *testing.T) {
	for code, again := range map[int]bool{
		429: true, 502: true, 503: true, 504: true,
		400: false, 401: false, 404: false, 413: false, 500: false, 501: false, 307: false,
	} {
		n := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n++; n == 1 {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(code)
			}
		}))
		cfg := spool.DefaultConfig()
		cfg.Signal, cfg.Endpoint = spool.Metrics, srv.URL
		st := deliver(t, cfg, request("one"))
		srv.Close()
		if again && (st.Sent != 1 || st.Retries != 1 || n != 2) || !again && (st.DroppedRefused != 1 || n != 1) {
			t.Errorf("status %d: %d attempts, %+v; want a second attempt: %v", code, n, st, again)
		}
	}
}

// collector is an OTLP/gRPC receiver.
type collector struct {
	colmetrics.UnimplementedMetricsServiceServer
	coltrace.UnimplementedTraceServiceServer

	mu   sync.Mutex
	errs []error
	got  []proto.Message
	auth []string
}

func (c *collector) take(ctx context.Context, m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	c.auth = md.Get("authorization")
	if len(c.errs) > 0 {
		err := c.errs[0]
		c.errs = c.errs[1:]
		return err
	}
	c.got = append(c.got, m)
	return nil
}

type metricsService struct{ *collector }

func (s metricsService) Export(ctx context.Context, r *colmetrics.ExportMetricsServiceRequest) (*colmetrics.ExportMetricsServiceResponse, error) {
	return &colmetrics.ExportMetricsServiceResponse{}, s.take(ctx, r)
}

type traceService struct{ *collector }

func (s traceService) Export(ctx context.Context, r *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	return &coltrace.ExportTraceServiceResponse{PartialSuccess: &coltrace.ExportTracePartialSuccess{RejectedSpans: 2}}, s.take(ctx, r)
}

func serve(t *testing.T, c *collector, opts ...grpc.ServerOption) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(opts...)
	colmetrics.RegisterMetricsServiceServer(srv, metricsService{c})
	coltrace.RegisterTraceServiceServer(srv, traceService{c})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestGRPCReceiverGetsTheStoredBodies(t *testing.T) {
	for _, zip := range []bool{true, false} {
		c := &collector{}
		cfg := spool.DefaultConfig()
		cfg.Signal, cfg.GRPC, cfg.Plaintext, cfg.Gzip, cfg.Endpoint = spool.Metrics, true, true, zip, serve(t, c)
		st := deliver(t, cfg, request("one"), request("two"))
		want := []proto.Message{request("one"), request("two")}
		if diff := cmp.Diff(want, c.got, protocmp.Transform()); diff != "" {
			t.Errorf("gzip %v: received (-want +got):\n%s", zip, diff)
		}
		if diff := cmp.Diff([]string{"Bearer of-the-day"}, c.auth); diff != "" || st.Sent != 2 {
			t.Errorf("gzip %v: %+v, authorization (-want +got):\n%s", zip, st, diff)
		}
	}
}

func TestGRPCFailuresAreSortedByTheProtocol(t *testing.T) {
	pushback, err := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		err   error
		again bool
	}{
		"unavailable":             {status.Error(codes.Unavailable, ""), true},
		"aborted":                 {status.Error(codes.Aborted, ""), true},
		"exhausted with a delay":  {pushback.Err(), true},
		"exhausted without delay": {status.Error(codes.ResourceExhausted, ""), false},
		"invalid":                 {status.Error(codes.InvalidArgument, ""), false},
		"unauthenticated":         {status.Error(codes.Unauthenticated, ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &collector{errs: []error{tt.err}}
			cfg := spool.DefaultConfig()
			cfg.Signal, cfg.GRPC, cfg.Plaintext, cfg.Endpoint = spool.Traces, true, true, serve(t, c)
			st := deliver(t, cfg, &coltrace.ExportTraceServiceRequest{})
			if tt.again && (st.Sent != 1 || st.Retries != 1 || st.RejectedItems != 2) || !tt.again && st.DroppedRefused != 1 {
				t.Errorf("%+v, want a second attempt: %v", st, tt.again)
			}
		})
	}
}

func TestGRPCWaitsForAReceiverThatComesLate(t *testing.T) {
	c := &collector{}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil { // free, and refused until a server takes it
		t.Fatal(err)
	}
	cfg := spool.DefaultConfig()
	cfg.Signal, cfg.GRPC, cfg.Plaintext, cfg.Endpoint = spool.Metrics, true, true, addr
	cfg.MinBackoff, cfg.MaxBackoff, cfg.FlushTimeout = time.Millisecond, 10*time.Millisecond, 30*time.Second
	s, err := spool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(request("early"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://spool", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := s.RoundTrip(req); err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	for s.Stats().Retries == 0 {
		select {
		case err := <-done:
			t.Fatalf("Run() = %v before any receiver was there", err)
		case <-time.After(time.Millisecond):
		}
	}
	if l, err = lc.Listen(t.Context(), "tcp", addr); err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	colmetrics.RegisterMetricsServiceServer(srv, metricsService{c})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	s.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if len(c.got) != 1 || s.Stats().Sent != 1 {
		t.Errorf("received %d, %+v; want the early request", len(c.got), s.Stats())
	}
}

// identity returns a certificate for 127.0.0.1 and the pool that trusts it.
func identity(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return srv.TLS.Certificates[0], pool
}

func TestReceiversBehindTLSAreVerifiedAndSeeTheClientsCertificate(t *testing.T) {
	pair, pool := identity(t)
	server := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	posts := 0
	web.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts++ })
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.TLS = server.Clone()
	web.StartTLS()
	defer web.Close()
	c := &collector{}
	addr := serve(t, c, grpc.Creds(credentials.NewTLS(server)))
	for name, tt := range map[string]struct {
		client *tls.Config
		sent   uint64
	}{
		"trusted, with a certificate": {&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}, 1},
		"without a certificate":       {&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}, 0},
		"not trusted":                 {nil, 0},
	} {
		for _, overGRPC := range []bool{false, true} {
			cfg := spool.DefaultConfig()
			cfg.Signal, cfg.TLS, cfg.FlushTimeout = spool.Metrics, tt.client, 5*time.Second
			if tt.sent == 0 {
				cfg.FlushTimeout = 200 * time.Millisecond
			}
			cfg.GRPC, cfg.Endpoint = overGRPC, web.URL
			if overGRPC {
				cfg.Endpoint = addr
			}
			if st := deliver(t, cfg, request("one")); st.Sent != tt.sent || tt.sent == 0 && st.DroppedShutdown != 1 {
				t.Errorf("%s, grpc %v: %+v, want %d sent", name, overGRPC, st, tt.sent)
			}
		}
	}
	if posts != 1 || len(c.got) != 1 {
		t.Errorf("%d requests over HTTP and %d over gRPC came through, want one each", posts, len(c.got))
	}
}
