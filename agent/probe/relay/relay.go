// Package relay is an HTTP/1.1 reverse proxy that measures token streams without changing them. Each read of an
// observed response is stamped, written to the client at once, and only then parsed; what the client receives is what
// the engine sent. Everything else passes through.
//
// The stamp is the kernel's receive time where the kernel tells it, taken below TLS, and it is called a kernel stamp
// only then. Clients are served by net/http, so that bodies are identical byte for byte while the chunks they travel in
// are cut anew: one per read. Parsing happens in the stream's own goroutine after the write. It costs about a
// microsecond an event, less than handing bytes to another goroutine, and needs no queue that could overflow.
//
// A goroutine per stream, parked in the runtime's poller, costs about 20 us of CPU an event. One loop of our own over
// epoll was measured at about 15 us, and given up: the goroutine that waits in it cannot be joined, and since it serves
// all streams in turn, it reads late under load, so that reads merge and tokens share stamps.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Relay is one proxy in front of one upstream. It is an [http.Handler], safe for concurrent use.
type Relay struct {
	cfg       Config
	upstream  *url.URL
	origin    string // of the upstream, as records carry it
	clock     *hostclock.Clock
	sink      timeline.RequestSink
	ref       func() uint64
	log       *slog.Logger
	transport *http.Transport
	pass      *httputil.ReverseProxy
	stamping  io.Closer // keeps the kernel noting receive times
	buffers   sync.Pool
	stats     counters
	failures  scarce // log lines of requests that failed

	mu      sync.Mutex     // guards stopped
	stopped bool           // nothing enters any more
	serving sync.WaitGroup // grows only under mu, and not once the relay has stopped
}

// New returns a relay that hands what it observes to sink. ref numbers the requests; nil counts from one.
func New(cfg Config, clock *hostclock.Clock, sink timeline.RequestSink, ref func() uint64, log *slog.Logger) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	u, err := cfg.upstream()
	if err != nil {
		return nil, err
	}
	if ref == nil {
		var n atomic.Uint64
		ref = func() uint64 { return n.Add(1) }
	}
	r := &Relay{
		cfg: cfg, upstream: u, origin: u.Scheme + "://" + u.Host, clock: clock, sink: sink, ref: ref, log: log,
		failures: scarce{limit: rate.NewLimiter(failureLines, failureBurst)},
	}
	if r.transport, err = newTransport(&r.cfg, clock, &r.stats); err != nil {
		return nil, err
	}
	if r.stamping, err = keepStamping(); err != nil {
		return nil, fmt.Errorf("ask for receive times: %w", err)
	}
	r.buffers.New = func() any { return new([readBuffer]byte) }
	silent := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.pass = &httputil.ReverseProxy{
		Rewrite: r.rewrite, Transport: r.transport, FlushInterval: -1, ErrorHandler: r.passFailed, ErrorLog: silent,
	}
	return r, nil
}

// Run listens and serves until ctx ends, then gives requests in flight the configured grace.
func (r *Relay) Run(ctx context.Context) error {
	if r.cfg.Listen == "" {
		return errors.New("run relay: no address to listen on")
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", r.cfg.Listen)
	if err != nil {
		return fmt.Errorf("run relay: %w", err)
	}
	return r.Serve(ctx, ln)
}

// Serve serves ln until ctx ends, as Run does, and closes it.
func (r *Relay) Serve(ctx context.Context, ln net.Listener) error {
	// Requests outlive ctx by the grace, so that they get a context of their own.
	base, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	srv := &http.Server{
		Handler:           r,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       r.cfg.IdleTimeout,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	r.log.Info("relay listening", slog.String("address", ln.Addr().String()), slog.String("upstream", r.origin))
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(base, r.cfg.Grace)
		_ = srv.Shutdown(grace) // what it leaves is ended below
		cancel()
		err = <-served
	}
	stop(errStopped)
	closing := srv.Close() // frees the writes to clients that do not read
	r.leave()
	r.Close()
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve relay: %w", err)
	}
	if closing != nil {
		return fmt.Errorf("close relay: %w", closing)
	}
	return nil
}

// Close lets go of what the relay holds between requests. Serve does so itself at its end; a relay that is used as a
// handler alone needs it.
func (r *Relay) Close() {
	r.transport.CloseIdleConnections()
	_ = r.stamping.Close() // a socket that carries nothing
}

// enter counts a request in, unless the relay has stopped: the server does not wait for a request that it has only just
// read, and one that nobody waits for could report after the end.
func (r *Relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.serving.Add(1)
	}
	return !r.stopped
}

// leave lets no request enter any more, and waits for those inside.
func (r *Relay) leave() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.serving.Wait()
}

// ServeHTTP relays one request. Once Serve has returned it refuses them.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !r.enter() {
		refuse(w, faultStopped)
		return
	}
	defer r.serving.Done()
	if req.Method == http.MethodPost && probe.Observes(req.URL.Path) && !upgrades(req.Header) {
		r.observe(w, req)
		return
	}
	if req.Method == http.MethodConnect {
		http.Error(w, "this relay has one upstream, and opens no tunnels", http.StatusMethodNotAllowed)
		return
	}
	r.stats.passed.Add(1)
	r.pass.ServeHTTP(w, req)
}

// rewrite points a request that passes unobserved at the upstream, and otherwise leaves it as it is.
func (r *Relay) rewrite(p *httputil.ProxyRequest) {
	p.SetURL(r.upstream)
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
}

// passFailed answers a request that passed unobserved and got no response.
func (r *Relay) passFailed(w http.ResponseWriter, req *http.Request, err error) {
	r.stats.passErrors.Add(1)
	f := classify(req.Context(), err)
	if f != faultClient {
		if held, ok := r.failures.admit(); ok {
			r.log.LogAttrs(req.Context(), slog.LevelWarn, "passed request failed",
				slog.String("cause", string(f)), slog.String("upstream", r.origin), slog.Uint64("more_not_logged", held))
		}
	}
	refuse(w, f)
}
