package spool

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxResponse bounds what is read of a response. An export response holds two numbers and a message.
const maxResponse = 64 << 10

// maxInflated bounds a stored body once inflated; exporters refuse to make a bigger one.
const maxInflated = 64 << 20

// outcome says what became of an attempt.
type outcome uint8

const (
	taken     outcome = iota
	refused           // for good
	retry             // may be made again
	abandoned         // the time was over
)

// result is the answer to one attempt.
type result struct {
	outcome  outcome
	rejected int64         // items that the receiver did not take of a request it took
	after    time.Duration // the receiver asks to wait so long
	why      string        // the kind of failure; never a receiver's own words
}

// sender makes one attempt.
type sender func(ctx context.Context, r record) result

func checkEndpoint(cfg Config) error {
	if cfg.GRPC {
		if cfg.Endpoint == "" {
			return errors.New("endpoint is empty: want host:port")
		}
		return nil
	}
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return fmt.Errorf("parse endpoint: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("endpoint %q: want http://host or https://host", u.Redacted())
	}
	return nil
}

// newSender opens the way to the receiver. The returned function closes it.
func newSender(cfg Config) (sender, func(), error) {
	if cfg.GRPC {
		return newGRPCSender(cfg)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: cfg.TLS, ForceAttemptHTTP2: true,
		MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second,
	}
	client := &http.Client{
		Transport: transport,
		// A redirect could carry the headers elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	send := func(ctx context.Context, r record) result { return sendHTTP(ctx, client, cfg, r) }
	return send, transport.CloseIdleConnections, nil
}

func sendHTTP(ctx context.Context, client *http.Client, cfg Config, r record) result {
	body, err := r.encoded(cfg.Gzip)
	if err != nil {
		return result{outcome: refused, why: "stored request is damaged"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return result{outcome: refused, why: "request cannot be made"}
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", cfg.UserAgent)
	if cfg.Gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	for k, v := range cfg.Headers {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return result{outcome: retry, why: "connection failed"}
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-protobuf") {
			return result{} // taken, and nothing is said of parts
		}
		return partial(cfg.Signal, answer)
	case retryable(resp.StatusCode):
		return result{outcome: retry, after: retryAfter(resp.Header), why: "status " + strconv.Itoa(resp.StatusCode)}
	}
	return result{outcome: refused, why: "status " + strconv.Itoa(resp.StatusCode)}
}

// retryable reports whether the protocol lets a client try again after a status:
// https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes
func retryable(code int) bool {
	switch code {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter reads how long the receiver asks to wait, in seconds or as a date. A date counts from the response's own.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	until, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return max(0, until.Sub(now))
}

// encoded returns the body in the encoding that goes over the wire.
func (r record) encoded(wantGzip bool) ([]byte, error) {
	switch {
	case r.gzip == wantGzip:
		return r.body, nil
	case r.gzip:
		z, err := gzip.NewReader(bytes.NewReader(r.body))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(io.LimitReader(z, maxInflated))
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(r.body); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// raw lets bytes that are a protobuf message already pass through gRPC.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("marshal %T: want encoded bytes", v)
	}
	return *b, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal %T: want room for encoded bytes", v)
	}
	*b = bytes.Clone(data)
	return nil
}

// Name returns the name that stands in the content type, which is that of the messages inside.
func (raw) Name() string { return "proto" }

var methods = map[Signal]string{
	Metrics: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
	Traces:  "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}

func newGRPCSender(cfg Config) (sender, func(), error) {
	creds := insecure.NewCredentials()
	if !cfg.Plaintext {
		tlsConfig := cfg.TLS
		if tlsConfig == nil {
			tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		creds = credentials.NewTLS(tlsConfig)
	}
	call := []grpc.CallOption{grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxResponse)}
	if cfg.Gzip {
		call = append(call, grpc.UseCompressor(grpcgzip.Name))
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = cfg.MinBackoff, cfg.MaxBackoff
	conn, err := grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(creds), grpc.WithUserAgent(cfg.UserAgent),
		grpc.WithDefaultCallOptions(call...), grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: cfg.Timeout}))
	if err != nil {
		return nil, nil, err
	}
	send := func(ctx context.Context, r record) result { return sendGRPC(ctx, conn, cfg, r) }
	return send, func() { _ = conn.Close() }, nil // nothing can be done about a connection that does not close
}

func sendGRPC(ctx context.Context, conn *grpc.ClientConn, cfg Config, r record) result {
	body, err := r.encoded(false)
	if err != nil {
		return result{outcome: refused, why: "stored request is damaged"}
	}
	if len(cfg.Headers) > 0 {
		ctx = metadata.NewOutgoingContext(ctx, metadata.New(cfg.Headers))
	}
	var answer []byte
	if err := conn.Invoke(ctx, methods[cfg.Signal], &body, &answer); err != nil {
		return grpcFailure(status.Convert(err))
	}
	return partial(cfg.Signal, answer)
}

// grpcFailure sorts a failure by the protocol's table: https://opentelemetry.io/docs/specs/otlp/#failures
func grpcFailure(st *status.Status) result {
	res := result{outcome: refused, why: "grpc " + st.Code().String()}
	pushback := false
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			pushback, res.after = true, info.GetRetryDelay().AsDuration()
		}
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		res.outcome = retry
	case codes.ResourceExhausted:
		if pushback {
			res.outcome = retry
		}
	default:
	}
	return res
}
