package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/clock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bootID = "0f3c8f52-0000-4000-8000-5a6b7c8d9e0f"

// journal is a sink that keeps everything, in order.
type journal struct {
	mu     sync.Mutex
	lines  []string
	opened []timeline.Request
	tokens []timeline.TokenEvent
	closed []timeline.Request
}

func (j *journal) OpenRequest(r *timeline.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines, j.opened = append(j.lines, fmt.Sprintf("open %d", r.Ref)), append(j.opened, *r)
}

func (j *journal) AddToken(e timeline.TokenEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines, j.tokens = append(j.lines, fmt.Sprintf("token %d", e.Ref)), append(j.tokens, e)
}

func (j *journal) CloseRequest(r *timeline.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines, j.closed = append(j.lines, fmt.Sprintf("close %d", r.Ref)), append(j.closed, *r)
}

func (j *journal) count() (opened, tokens, closed int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.opened), len(j.tokens), len(j.closed)
}

// host is a clock of a host whose boot was an hour ago.
type host struct{ start time.Time }

func (h host) now() timeline.Instant { return timeline.Instant(time.Hour).Add(time.Since(h.start)) }

func (h host) anchor() timeline.Anchor {
	return timeline.Anchor{Mono: h.now(), Real: time.Now().UnixNano(), Width: time.Microsecond, BootID: bootID}
}

// aligner ties a peer by the estimator of the clock room.
type aligner struct {
	est *clock.Estimator
	now clock.Estimate
	ok  bool
}

func (a *aligner) Add(x ingest.Exchange) {
	if _, err := a.est.Add(clock.Exchange(x)); err == nil {
		a.now, a.ok = a.est.Estimate()
	}
}

func (a *aligner) Local(peer timeline.Instant) (timeline.Instant, time.Duration, bool) {
	at, bound := a.now.Local(peer)
	return at, bound, a.ok
}

func config(h host, sink timeline.RequestSink) ingest.Config {
	return ingest.Config{
		Sink: func(s ingest.Source) timeline.RequestSink {
			if s.Name == "stranger" {
				return nil
			}
			return sink
		},
		Now: h.now, Anchor: h.anchor,
		Aligner: func(ingest.Source) ingest.Aligner { return &aligner{est: clock.NewEstimator(clock.DefaultConfig())} },
	}
}

// serve runs a handler on a unix socket until the returned function is called.
func serve(tb testing.TB, socket string, cfg ingest.Config) (stop func()) {
	tb.Helper()
	path, h, err := ingest.NewHandler(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(path, h)
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: mux, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			// What was taken is answered: otherwise it would be sent again to the next server, which cannot know it.
			if err := srv.Shutdown(context.Background()); err != nil {
				tb.Error(err)
			}
			if err := <-done; !errors.Is(err, http.ErrServerClosed) {
				tb.Error(err)
			}
		})
	}
	tb.Cleanup(stop)
	return stop
}

// dial returns an HTTP client of a unix socket.
func dial(t *testing.T, socket string, http2 bool) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// full returns a request in which no field is zero.
func full(ref uint64, at timeline.Instant) timeline.Request {
	ms := timeline.Instant(time.Millisecond)
	return timeline.Request{
		Ref: ref, ID: "req-1", TraceID: "0af7651916cd43dd8448eb211c80319c", SpanID: "b7ad6b7169203331", ParentID: "00f067aa0ba902b7",
		Sampled: true, Target: "t", Upstream: "http://127.0.0.1:8000", Dialect: "openai", Operation: "chat", Model: "org/sim-8b",
		Streaming: true, Client: "router", Sent: at, Head: at + ms, First: at + 2*ms, Last: at + 9*ms, Done: at + 10*ms,
		ClockBound: 3, Status: timeline.StatusTruncated, HTTPStatus: 200, Finish: "length", PromptTokens: 7, PromptKnown: true,
		CachedTokens: 5, OutputTokens: 9, Counted: timeline.CountUsage, ReasoningTokens: 4, FirstTokens: 2, MaxTokens: 64, Choices: 1,
		Events: 8, KernelStamped: 6, Coalesced: 1, Flags: timeline.FlagNoTerminal | timeline.FlagMultipleChoices,
		Engine: timeline.EngineTimings{
			PromptTokens: 2, PromptTime: 1, OutputTokens: 9, OutputTime: 2, TimeToFirst: 3, QueueTime: 4, PerOutputMean: 5,
		},
	}
}

func events(ref uint64, at timeline.Instant) []timeline.TokenEvent {
	ms := timeline.Instant(time.Millisecond)
	return []timeline.TokenEvent{
		{Ref: ref, At: at + 2*ms, After: at + ms, Tokens: 2, Choice: 1, Source: timeline.CountIDs, Kind: timeline.KindReasoning, Stamp: timeline.StampKernel, Coalesced: true},
		{Ref: ref, At: at + 3*ms, After: at + 3*ms, Tokens: 0, Source: timeline.CountNone, Kind: timeline.KindEmpty, Stamp: timeline.StampUser},
		{Ref: ref, At: at + 9*ms, After: at + 9*ms, Tokens: 1, Source: timeline.CountPerEvent, Kind: timeline.KindContent, Stamp: timeline.StampClient},
	}
}

// eventually polls until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in 20 s: %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// reporter returns a client of the socket.
func reporter(t *testing.T, socket string, h host, change func(*ingest.ClientConfig)) *ingest.Client {
	t.Helper()
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process, cfg.BootID, cfg.Now = "unix:"+socket, "router", "p1", bootID, h.now
	cfg.Interval, cfg.MaxBackoff = 10*time.Millisecond, 50*time.Millisecond
	if change != nil {
		change(&cfg)
	}
	c, err := ingest.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts a client, and returns what ends it and gives Run's result.
func run(t *testing.T, c *ingest.Client) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var err error
	end = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	t.Cleanup(func() { _ = end() })
	return end
}

// lots is a journal that takes a report's tokens at once.
type lots struct {
	journal
	calls int
}

func (l *lots) AddTokens(events []timeline.TokenEvent) {
	l.calls++
	for _, e := range events {
		l.AddToken(e)
	}
	clear(events) // they may be changed
}

func TestWhatAClientTakesArrivesAsItIs(t *testing.T) {
	t.Run("event by event", func(t *testing.T) {
		var got journal
		arrives(t, &got, &got)
	})
	t.Run("a report's tokens at once", func(t *testing.T) {
		var got lots
		arrives(t, &got, &got.journal)
		if got.calls != 1 {
			t.Errorf("tokens of one report came in %d calls", got.calls)
		}
	})
}

// arrives sends what sink takes, which is then in got.
func arrives(t *testing.T, sink timeline.RequestSink, got *journal) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	serve(t, socket, config(h, sink))
	c := reporter(t, socket, h, nil)
	var want journal
	for ref := uint64(1); ref <= 3; ref++ {
		at := timeline.Instant(time.Hour) - timeline.Instant(ref*1e9)
		for _, sink := range []timeline.RequestSink{c, &want} {
			r := full(ref, at)
			open := timeline.Request{Ref: ref, Sent: at, Client: "router"}
			sink.OpenRequest(&open)
			for _, e := range events(ref, at) {
				sink.AddToken(e)
			}
			sink.CloseRequest(&r)
		}
	}
	if err := run(t, c)(); err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"opened": {want.opened, got.opened}, "tokens": {want.tokens, got.tokens}, "closed": {want.closed, got.closed},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	inOrder(t, got.lines)
}

// inOrder checks that each request was opened, got tokens and was closed, in that order.
func inOrder(t *testing.T, lines []string) {
	t.Helper()
	stage := map[string]int{}
	for _, line := range lines {
		verb, ref, _ := strings.Cut(line, " ")
		next := map[string]int{"open": 1, "token": 2, "close": 3}[verb]
		if was := stage[ref]; next < was || next == was && verb != "token" {
			t.Errorf("%s after stage %d", line, was)
		}
		stage[ref] = next
	}
}
