package relay_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger keeps what a relay observes.
type ledger struct {
	mu     sync.Mutex
	opened []timeline.Request
	tokens []timeline.TokenEvent
	closed []timeline.Request
}

func (l *ledger) OpenRequest(r *timeline.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = append(l.opened, *r)
}

func (l *ledger) AddToken(e timeline.TokenEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens = append(l.tokens, e)
}

func (l *ledger) CloseRequest(r *timeline.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = append(l.closed, *r)
}

func (l *ledger) records() []timeline.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.closed)
}

func (l *ledger) events() []timeline.TokenEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.tokens)
}

// lines keeps log lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// failures returns the lines that tell of failed requests.
func (l *lines) failures() []string {
	var out []string
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "failed") {
			out = append(out, line)
		}
	}
	return out
}

// rig is a relay in front of an upstream, on loopback.
type rig struct {
	url    string
	relay  *relay.Relay
	ledger *ledger
	log    *lines
	stop   func() error
}

func newRig(tb testing.TB, upstream string, change func(*relay.Config)) *rig {
	tb.Helper()
	clock, err := hostclock.New()
	if err != nil {
		tb.Fatal(err)
	}
	cfg := relay.DefaultConfig()
	cfg.Upstream = upstream
	cfg.Target = "t0"
	cfg.Grace = 5 * time.Second
	if change != nil {
		change(&cfg)
	}
	g := &rig{ledger: &ledger{}, log: &lines{}}
	g.relay, err = relay.New(cfg, clock, g.ledger, nil, slog.New(slog.NewTextHandler(g.log, nil)))
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	g.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- g.relay.Serve(ctx, ln) }()
	g.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	tb.Cleanup(func() {
		if err := g.stop(); err != nil {
			tb.Errorf("Serve() = %v", err)
		}
	})
	return g
}

// settle waits until n requests are closed.
func (g *rig) settle(tb testing.TB, n int) []timeline.Request {
	tb.Helper()
	eventually(tb, fmt.Sprintf("%d closed requests", n), func() bool { return len(g.ledger.records()) >= n && g.relay.Stats().InFlight == 0 })
	records := g.ledger.records()
	if len(records) != n {
		tb.Fatalf("%d closed requests, want %d", len(records), n)
	}
	return records
}

func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("no %s in 10 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// client is one that keeps nothing to itself: no compression, no redirects, its own connections.
func client(tb testing.TB) *http.Client {
	tb.Helper()
	tr := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}
	tb.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// server is an upstream that handles as it is told.
func server(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	s := httptest.NewServer(h)
	tb.Cleanup(s.Close)
	return s.URL
}

// rawServer is an upstream that answers each request with raw bytes, piece by piece, and closes the connection.
func rawServer(tb testing.TB, pieces ...string) string {
	tb.Helper()
	return scripted(tb, func(c net.Conn, _ *http.Request) {
		for i, p := range pieces {
			if i > 0 {
				time.Sleep(5 * time.Millisecond) // so that each piece is a read of its own
			}
			_, _ = io.WriteString(c, p)
		}
	})
}

// scripted is an upstream that reads one request a connection, plays, and closes.
func scripted(tb testing.TB, play func(c net.Conn, req *http.Request)) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				play(c, req)
			})
		}
	})
	tb.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return "http://" + ln.Addr().String()
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// chunked puts pieces into chunks of the chunked transfer coding.
func chunked(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

const lastChunk = "0\r\n\r\n"

func ev(payloads ...string) string {
	return "data: " + strings.Join(payloads, "\n\ndata: ") + "\n\n"
}

const (
	text   = `{"choices":[{"index":0,"delta":{"content":"x"}}]}`
	finish = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usage  = `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	done   = `[DONE]`
)

const (
	chatPath = "/v1/chat/completions"
	chatBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// answer is what a client saw.
type answer struct {
	status int
	body   string
	header http.Header
	cut    bool // the body broke off
}

func post(tb testing.TB, c *http.Client, url, body string, header ...string) answer {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(b), resp.Header, err != nil}
}

// follow reads one stream and returns how long each of its events took from the upstream's write to here. The length
// of the slot header tells the upstream where to put the times of its writes.
func follow(tb testing.TB, c *http.Client, url string, slot int, origin time.Time, sent *[50]atomic.Int64) []time.Duration {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, url, strings.NewReader(chatBody))
	if err != nil {
		tb.Error(err)
		return nil
	}
	req.Header.Set("X-Slot", strings.Repeat("s", slot))
	resp, err := c.Do(req)
	if err != nil {
		tb.Error(err)
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	var lags []time.Duration
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		now := time.Since(origin)
		for range bytes.Count(buf[:n], []byte(`"usage"`)) {
			lags = append(lags, now-time.Duration(sent[len(lags)].Load()))
		}
		if err != nil {
			return lags
		}
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}
