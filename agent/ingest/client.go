package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// ClientConfig says who reports what to whom. What [DefaultClientConfig] does not set is needed, but for HTTP and Token.
type ClientConfig struct {
	URL     string // of the agent: unix:/path/of/socket, http://HOST:PORT or https://HOST:PORT
	Source  string // a short name of the reporter
	Process string // anything that is new with each start of it
	BootID  string // of the host; empty if it has none
	Now     func() timeline.Instant

	HTTP  *http.Client // for http and https; nil: one with the defaults
	Token string       // sent as a bearer token if not empty

	Interval    time.Duration // between two reports
	Rows        int           // token events that make a report due before its time; no report holds more
	MaxTokens   int           // token events kept while the agent is away
	MaxRequests int           // opened and closed requests, each, kept while the agent is away
	Timeout     time.Duration // of one call
	MaxBackoff  time.Duration // between two attempts
	Flush       time.Duration // at the end, for what is left
}

// DefaultClientConfig returns the defaults: a report each 200 ms, and about ten seconds of 256 streams of 50 tokens a
// second kept, which is some 10 MB.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{
		Interval: 200 * time.Millisecond, Rows: 8192, MaxTokens: 1 << 17, MaxRequests: 4096,
		Timeout: 5 * time.Second, MaxBackoff: 5 * time.Second, Flush: 2 * time.Second,
	}
}

// Validate names everything that is wrong with c.
func (c ClientConfig) Validate() error {
	var errs []error
	unix := strings.HasPrefix(c.URL, "unix:/")
	if !unix && !strings.HasPrefix(c.URL, "http://") && !strings.HasPrefix(c.URL, "https://") {
		errs = append(errs, fmt.Errorf("agent url %q: want unix:/PATH, http://HOST:PORT or https://HOST:PORT", c.URL))
	}
	if c.Now == nil {
		errs = append(errs, errors.New("clock: missing"))
	}
	if err := checkOrigin(c.origin(), true); err != nil {
		errs = append(errs, err)
	}
	if c.Rows < 1 || c.Rows > maxTokenRows {
		errs = append(errs, fmt.Errorf("rows %d: want 1 to %d", c.Rows, maxTokenRows))
	}
	if c.MaxTokens < 1 || c.MaxRequests < 1 {
		errs = append(errs, fmt.Errorf("max tokens %d, max requests %d: want at least one", c.MaxTokens, c.MaxRequests))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"interval", c.Interval}, {"timeout", c.Timeout}, {"max backoff", c.MaxBackoff}, {"flush", c.Flush}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %v: want more than zero", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

func (c ClientConfig) origin() *pb.Origin {
	return &pb.Origin{Source: c.Source, Process: c.Process, Clock: pb.Clock_CLOCK_MONOTONIC, BootId: c.BootID}
}

// apartSuffix makes of a boot's id that of a clock which is not the boot's: containers can have time namespaces, in
// which CLOCK_MONOTONIC has an offset of its own (time_namespaces(7)).
const apartSuffix = ".apart"

// origin says on which clock this client's times are.
func (c *Client) origin() *pb.Origin {
	o := c.cfg.origin()
	if c.apart {
		o.BootId += apartSuffix
	}
	return o
}

// Client reports requests to an agent. Its sink methods are safe for concurrent use, never block and never fail: what
// does not fit is dropped and counted. Run sends.
type Client struct {
	cfg  ClientConfig
	http *http.Client
	rpc  pb.IngestClient
	buf  *buffer
	due  chan struct{} // holds one: a report is due before its time

	// The goroutine of Run alone uses these.
	sequence  uint64
	pending   *pb.ReportRequest // taken from the buffer, not yet accepted
	agentBoot string            // as the agent told; empty while that is unknown
	apart     bool              // the agent's boot is this one, and its clock is another: a time namespace
	exchanges []*pb.Stamps      // not yet handed over
	synced    timeline.Instant  // when exchanges were last made
}

var _ timeline.RequestSink = (*Client)(nil)

// NewClient returns a client of the agent that cfg names.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make ingest client: %w", err)
	}
	h, base := cfg.HTTP, cfg.URL
	if path, ok := strings.CutPrefix(cfg.URL, "unix:"); ok {
		base = "http://agent"
		h = &http.Client{Transport: &http.Transport{
			Proxy: nil,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			},
		}}
	} else if h == nil {
		h = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}}
	}
	c := &Client{cfg: cfg, http: h, buf: newBuffer(cfg.MaxTokens, cfg.MaxRequests), due: make(chan struct{}, 1)}
	c.rpc = pb.NewIngestClient(h, base, connect.WithReadMaxBytes(1<<20), connect.WithInterceptors(bearer(cfg.Token)))
	return c, nil
}

func bearer(token string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if token != "" {
				req.Header().Set("Authorization", "Bearer "+token)
			}
			return next(ctx, req)
		}
	}
}

// OpenRequest takes a request that was sent.
func (c *Client) OpenRequest(r *timeline.Request) { c.buf.open(r) }

// AddToken takes a token event.
func (c *Client) AddToken(e timeline.TokenEvent) {
	if c.buf.add(e) >= c.cfg.Rows {
		select {
		case c.due <- struct{}{}:
		default:
		}
	}
}

// CloseRequest takes the whole record of a request that ended.
func (c *Client) CloseRequest(r *timeline.Request) { c.buf.close(r) }

// Dropped returns how many token events and how many opened or closed requests were lost since the client was made.
func (c *Client) Dropped() (tokens, requests uint64) { return c.buf.dropped() }

// firstBackoff is the wait after a first failed attempt; each further one doubles it.
const firstBackoff = 100 * time.Millisecond

// Run sends reports until ctx ends, then what is left, within the time set for that. It returns an error only if rows
// were left over then; an agent that is away is no error.
func (c *Client) Run(ctx context.Context) error {
	defer c.http.CloseIdleConnections()
	timer := time.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	backoff := time.Duration(0)
	for {
		due := c.due
		if backoff > 0 {
			due = nil // an agent that is away is not asked more often because there is more to tell
		}
		select {
		case <-ctx.Done():
			return c.flush(ctx)
		case <-due:
		case <-timer.C:
		}
		wait := c.cfg.Interval
		if c.drain(ctx) != nil {
			backoff = min(max(2*backoff, firstBackoff), c.cfg.MaxBackoff)
			wait = backoff
		} else {
			backoff = 0
		}
		timer.Reset(wait)
	}
}

// flush sends what is left after ctx has ended.
func (c *Client) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Flush)
	defer cancel()
	err := error(nil)
	if c.foreign() { // what is left is told by how the clocks stand now
		err = c.exchange(ctx)
	}
	if err == nil {
		err = c.drain(ctx)
	}
	if err == nil {
		return nil
	}
	left := c.buf.waiting()
	if c.pending != nil {
		left += len(c.pending.GetOpened()) + len(c.pending.GetTokens().GetRef()) + len(c.pending.GetClosed())
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("flush %d rows: %w", left, err)
}
