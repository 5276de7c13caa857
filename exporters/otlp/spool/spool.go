// Package spool holds encoded export requests until a receiver takes them. It stands in the place of the network: an
// OTLP exporter is given a Spool as the transport of its http.Client, hands over each encoded request and is told that
// all went well. A drain sends what is stored to the real endpoint, over OTLP/HTTP or OTLP/gRPC, for as long as it
// takes. A Spool knows requests and responses; of what is inside them it reads only how much a receiver rejected.
// Connections go through the proxy that the environment names (net/http, ProxyFromEnvironment), as those of any OTLP
// exporter do.
package spool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Signal is what a spool carries.
type Signal string

// The signals.
const (
	Metrics Signal = "metrics"
	Traces  Signal = "traces"
)

// Config says what a spool holds and where it sends it.
type Config struct {
	Signal    Signal
	GRPC      bool        // OTLP/gRPC; else OTLP/HTTP with protobuf
	Endpoint  string      // the whole URL for HTTP, host:port for gRPC
	Plaintext bool        // gRPC without TLS; for HTTP the URL's scheme says so
	TLS       *tls.Config // nil: the system's roots
	Gzip      bool        // compress on the wire
	UserAgent string

	// Headers go out with each request. They are never stored with one: a queue holds no credentials, and what it holds
	// goes out under those of its day.
	Headers map[string]string

	MaxBytes     int64         // of bodies as they are stored; beyond it the oldest go
	Timeout      time.Duration // of one attempt
	MinBackoff   time.Duration // after the first failed attempt; doubles with each
	MaxBackoff   time.Duration
	FlushTimeout time.Duration // how long the drain goes on at shutdown
}

// DefaultConfig returns a queue of 32 MiB and the specification's timeout. A node of eight GPUs queues about 9 MB of
// standard metrics an hour, at a point a second, and 6 MB of spans at ten requests a second, as gzip leaves them.
func DefaultConfig() Config {
	return Config{
		Gzip: true, MaxBytes: 32 << 20, Timeout: 10 * time.Second, // https://opentelemetry.io/docs/specs/otel/protocol/exporter/
		MinBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second, FlushTimeout: 5 * time.Second,
	}
}

// Stats counts what became of the requests.
type Stats struct {
	Queued          int   // requests that wait, the one under way among them
	QueuedBytes     int64 // of their bodies
	Accepted        uint64
	Sent            uint64
	SentBytes       uint64 // of bodies as they were stored
	DroppedFull     uint64 // requests that made room for younger ones, or were too big
	DroppedRefused  uint64 // requests that the receiver will never take
	DroppedShutdown uint64 // requests still there when the time to flush was over
	Retries         uint64 // attempts that failed and may be made again
	Partial         uint64 // requests of which the receiver took a part
	RejectedItems   uint64 // points or spans it did not take of those
	LastError       string // of the newest attempt that failed; empty after one that did not
}

// maxAfter bounds how long a receiver can make the drain wait.
const maxAfter = 15 * time.Minute

// record is one encoded request.
type record struct {
	body []byte
	gzip bool
}

// Spool is the queue and its drain. It is safe for concurrent use.
type Spool struct {
	cfg     Config
	open    func(Config) (sender, func(), error)
	wake    chan struct{} // of size one: something was queued, or the input closed
	ending  chan struct{} // closed when the flush begins
	expired chan struct{} // closed when its time is over

	mu     sync.Mutex
	queue  []record
	bytes  int64 // of the queue and of the request under way
	busy   bool  // a request is under way
	closed bool  // nothing more comes
	over   bool  // the drain has returned
	flush  *time.Timer
	cancel context.CancelFunc // cuts the attempt under way short
	stats  Stats
}

var _ http.RoundTripper = (*Spool)(nil)

var errClosed = errors.New("spool: closed")

// New returns an empty spool. The error says what is wrong with cfg.
func New(cfg Config) (*Spool, error) {
	var errs []error
	if cfg.Signal != Metrics && cfg.Signal != Traces {
		errs = append(errs, fmt.Errorf("signal %q: want metrics or traces", cfg.Signal))
	}
	if cfg.MaxBytes <= 0 || cfg.Timeout <= 0 || cfg.MinBackoff <= 0 || cfg.MaxBackoff < cfg.MinBackoff || cfg.FlushTimeout < 0 {
		errs = append(errs, errors.New("queue size, timeout and backoff must be positive"))
	}
	errs = append(errs, checkEndpoint(cfg))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configure spool: %w", err)
	}
	return &Spool{
		cfg: cfg, open: newSender, wake: make(chan struct{}, 1), ending: make(chan struct{}), expired: make(chan struct{}),
		cancel: func() {},
	}, nil
}

// RoundTrip stores the request's body and answers that it was taken. It waits for nothing.
func (s *Spool) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		if err := errors.Join(err, req.Body.Close()); err != nil {
			return nil, fmt.Errorf("read request: %w", err)
		}
	}
	if err := s.put(record{body: body, gzip: req.Header.Get("Content-Encoding") == "gzip"}); err != nil {
		return nil, err
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/x-protobuf"}}, Body: http.NoBody, Request: req,
	}, nil
}

// put queues r and drops the oldest beyond the size.
func (s *Spool) put(r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.over {
		s.stats.DroppedShutdown++
		return errClosed
	}
	s.stats.Accepted++
	if int64(len(r.body)) > s.cfg.MaxBytes {
		s.stats.DroppedFull++ // no room that others could make
		return nil
	}
	s.queue = append(s.queue, r)
	s.bytes += int64(len(r.body))
	for s.bytes > s.cfg.MaxBytes && len(s.queue) > 0 {
		s.bytes -= int64(len(s.queue[0].body))
		s.queue[0] = record{}
		s.queue = s.queue[1:]
		s.stats.DroppedFull++
	}
	s.signal()
	return nil
}

// signal wakes the drain. It does not block.
func (s *Spool) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close says that nothing more comes: the drain ends once the queue is empty, or when its time to flush is over.
func (s *Spool) Close() {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	s.end()
}

// end begins the flush.
func (s *Spool) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flush == nil && !s.over {
		close(s.ending)
		s.flush = time.AfterFunc(s.cfg.FlushTimeout, s.expire)
	}
}

// expire ends the flush.
func (s *Spool) expire() {
	close(s.expired)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
}

// Stats returns the counts as they are now.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued, st.QueuedBytes = len(s.queue), s.bytes
	if s.busy {
		st.Queued++
	}
	return st
}

// Run sends what is queued until Close was called and the queue is empty. When ctx ends first, or the receiver does
// not take the rest, it goes on for the time to flush and no longer; what is left then is counted as dropped. Run is
// called once.
func (s *Spool) Run(ctx context.Context) error {
	send, closeConn, err := s.open(s.cfg)
	if err != nil {
		return fmt.Errorf("open %s endpoint: %w", s.cfg.Signal, err)
	}
	defer func() {
		closeConn()
		s.finish()
	}()
	attempts, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	for {
		r, ok := s.next()
		if ok && s.deliver(attempts, send, r) {
			continue
		}
		if ok || !s.waitForMore() {
			return nil
		}
	}
}

// waitForMore blocks until something may be queued. It reports false when nothing will come any more.
func (s *Spool) waitForMore() bool {
	s.mu.Lock()
	closed := s.closed && len(s.queue) == 0
	s.mu.Unlock()
	if closed {
		return false
	}
	select {
	case <-s.wake:
		return true
	case <-s.expired:
		return false
	}
}

// next takes the oldest request out of the queue; it still counts as waiting.
func (s *Spool) next() (record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return record{}, false
	}
	r := s.queue[0]
	s.queue[0] = record{}
	s.queue = s.queue[1:]
	s.busy = true
	return r, true
}

// deliver sends r until the receiver has answered for good. It reports false if the time to flush is over.
func (s *Spool) deliver(ctx context.Context, send sender, r record) bool {
	backoff, ending := s.cfg.MinBackoff, s.ending
	for {
		res := s.attempt(ctx, send, r)
		if res.outcome != retry {
			s.settle(r, res)
			return true
		}
		s.noteRetry(res)
		wait := max(min(res.after, maxAfter), backoff/2+rand.N(backoff))
		backoff = min(2*backoff, s.cfg.MaxBackoff)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ending: // one more attempt at once, then at the pace of the first failure
			ending, backoff = nil, s.cfg.MinBackoff
		case <-s.expired:
		}
		timer.Stop()
		select {
		case <-s.expired:
			s.settle(r, result{outcome: abandoned})
			return false
		default:
		}
	}
}

// attempt sends r once. The end of the time to flush cuts it short.
func (s *Spool) attempt(ctx context.Context, send sender, r record) result {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return send(ctx, r)
}

func (s *Spool) noteRetry(res result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Retries++
	s.stats.LastError = res.why
}

// settle counts what became of the request under way.
func (s *Spool) settle(r record, res result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.bytes -= int64(len(r.body))
	switch res.outcome {
	case taken:
		s.stats.Sent++
		s.stats.SentBytes += uint64(len(r.body))
		s.stats.LastError = ""
		if res.rejected > 0 {
			s.stats.Partial++
			s.stats.RejectedItems += uint64(res.rejected)
			s.stats.LastError = res.why
		}
	case refused:
		s.stats.DroppedRefused++
		s.stats.LastError = res.why
	case retry, abandoned:
		s.stats.DroppedShutdown++
	}
}

// finish counts what is left.
func (s *Spool) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flush != nil {
		s.flush.Stop()
	}
	s.stats.DroppedShutdown += uint64(len(s.queue))
	s.queue, s.bytes, s.over = nil, 0, true
}
