package relay_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// badInput is one way in which an upstream can misbehave, what the client then sees, and what the record says.
type badInput struct {
	name   string
	pieces []string
	status int
	body   string // what the client must get; empty with a status of 502 stands for an error object
	cut    bool
	want   timeline.Status
	events int
	cause  string // in the one log line; empty if there must be none
}

func TestBadInput(t *testing.T) {
	big := `{"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("y", 1<<20) + `"}}]}`
	good := ev(text, finish, usage, done)
	crlf := strings.ReplaceAll(good, "\n", "\r\n")
	tests := []badInput{
		{name: "reset before the head", pieces: nil, status: 502, want: timeline.StatusUpstream, cause: "closed"},
		{name: "garbage instead of a head", pieces: []string{"SSH-2.0-secret\r\n\r\n"}, status: 502, want: timeline.StatusUpstream, cause: "malformed_response"},
		{
			name: "a status of nothing", pieces: []string{"HTTP/1.1 000 Huh\r\nContent-Length: 0\r\n\r\n"}, status: 502,
			want: timeline.StatusUpstream, cause: "malformed_response",
		},
		{
			name: "a change of protocol that nobody asked for", pieces: []string{"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"},
			status: 502, want: timeline.StatusUpstream, cause: "malformed_response",
		},
		{
			name: "an error status", pieces: []string{"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\noops!"}, status: 500, body: "oops!",
			want: timeline.StatusHTTPError, cause: "error_status",
		},
		{
			name: "an error object after success", pieces: []string{streamHead + chunked(ev(text)), chunked(ev(`{"error":{"message":"m"}}`, done)) + lastChunk},
			status: 200, body: ev(text, `{"error":{"message":"m"}}`, done), want: timeline.StatusInBand, events: 1, cause: "error_inband",
		},
		{
			name: "half an event", pieces: []string{streamHead + chunked(ev(text)), chunked(`data: {"choi`)}, status: 200, body: ev(text) + `data: {"choi`,
			cut: true, want: timeline.StatusTruncated, events: 1, cause: "closed",
		},
		{
			name: "half a chunk", pieces: []string{streamHead + chunked(ev(text)), "ff\r\ndata: {"}, status: 200, body: ev(text) + `data: {`,
			cut: true, want: timeline.StatusTruncated, events: 1, cause: "closed",
		},
		{
			name: "an event of a megabyte", pieces: []string{streamHead + chunked(ev(big)), chunked(ev(finish, done)) + lastChunk}, status: 200,
			body: ev(big, finish, done), want: timeline.StatusOK, events: 1,
		},
		{
			name: "CRLF cut by reads", pieces: append([]string{streamHead}, cutAfterCR(crlf)...), status: 200, body: crlf, want: timeline.StatusOK, events: 1,
		},
		{
			name: "comments", pieces: []string{streamHead + chunked(": ping\n\n"), chunked(": ping\n\n"), chunked(good) + lastChunk}, status: 200,
			body: ": ping\n\n: ping\n\n" + good, want: timeline.StatusOK, events: 1,
		},
		{
			name: "no terminal marker but a finish reason", pieces: []string{streamHead + chunked(ev(text, finish)) + lastChunk}, status: 200, body: ev(text, finish),
			want: timeline.StatusOK, events: 1,
		},
		{
			name: "no end at all", pieces: []string{streamHead + chunked(ev(text)) + lastChunk}, status: 200, body: ev(text), want: timeline.StatusTruncated,
			events: 1, cause: "truncated",
		},
		{
			name: "a body that ends with the connection", pieces: []string{"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + good}, status: 200, body: good,
			want: timeline.StatusOK, events: 1,
		},
		{
			name: "a reply shorter than it said", pieces: []string{"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"}, status: 200, body: "{",
			cut: true, want: timeline.StatusTruncated, cause: "closed",
		},
		{
			name: "payloads that are no JSON", pieces: []string{streamHead + chunked(ev("hello", text, finish, done)) + lastChunk}, status: 200, body: ev("hello", text, finish, done),
			want: timeline.StatusOK, events: 1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t) })
	}
}

func (tt *badInput) check(t *testing.T) {
	t.Helper()
	g := newRig(t, rawServer(t, tt.pieces...), nil)
	a := post(t, client(t), g.url+chatPath+"?q=secret", chatBody)
	if a.status != tt.status || a.cut != tt.cut {
		t.Errorf("client saw status %d, cut %v, want %d, %v", a.status, a.cut, tt.status, tt.cut)
	}
	if tt.status == http.StatusBadGateway {
		checkErrorObject(t, a)
	} else if a.body != tt.body {
		t.Errorf("client saw %d bytes, want %d, and the same", len(a.body), len(tt.body))
	}
	r := g.settle(t, 1)[0]
	if r.Status != tt.want || r.Events != tt.events {
		t.Errorf("record says %v with %d events, want %v with %d", r.Status, r.Events, tt.want, tt.events)
	}
	if n := g.relay.Stats().Requests[tt.want]; n != 1 {
		t.Errorf("stats count %d requests as %v, want 1", n, tt.want)
	}
	checkLine(t, g, tt.cause)
}

func checkErrorObject(t *testing.T, a answer) {
	t.Helper()
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error.Message == "" || !strings.HasPrefix(e.Error.Code, "upstream_") {
		t.Errorf("client saw %q, want an error object: %v", a.body, err)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
}

// checkLine wants one log line with the cause, or none.
func checkLine(t *testing.T, g *rig, cause string) {
	t.Helper()
	f := g.log.failures()
	switch {
	case cause == "" && len(f) != 0:
		t.Errorf("log tells of failures: %q", f)
	case cause != "" && (len(f) != 1 || !strings.Contains(f[0], "cause="+cause)):
		t.Errorf("log lines %q, want one with cause %s", f, cause)
	}
	if strings.Contains(g.log.String(), "secret") {
		t.Errorf("log holds content: %q", g.log.String())
	}
}

// cutAfterCR puts s into chunks that end after each CR.
func cutAfterCR(s string) []string {
	var out []string
	for part := range strings.SplitAfterSeq(s, "\r") {
		if part != "" {
			out = append(out, chunked(part))
		}
	}
	return append(out, lastChunk)
}

func TestARefusedConnectionIsAnUpstreamError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	g := newRig(t, "http://"+addr, nil)
	a := post(t, client(t), g.url+chatPath, chatBody)
	if a.status != http.StatusBadGateway {
		t.Errorf("status %d, want 502", a.status)
	}
	checkErrorObject(t, a)
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusUpstream || r.HTTPStatus != 0 {
		t.Errorf("record says %v, HTTP %d", r.Status, r.HTTPStatus)
	}
	checkLine(t, g, "refused")

	if a := post(t, client(t), g.url+"/v1/embeddings", "{}"); a.status != http.StatusBadGateway {
		t.Errorf("passed request: status %d, want 502", a.status)
	}
	if s := g.relay.Stats(); s.PassErrors != 1 || s.Passed != 1 {
		t.Errorf("stats: %d passed, %d without response, want one each", s.Passed, s.PassErrors)
	}
}

func TestTimeouts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		play   string
		status int
	}{
		{"no head in time", "", http.StatusGatewayTimeout},
		{"silence in a stream", streamHead + chunked(ev(text)), http.StatusOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			release := make(chan struct{})
			up := scripted(t, func(c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, tt.play)
				<-release
			})
			defer close(release)
			g := newRig(t, up, func(c *relay.Config) { c.HeadTimeout, c.StreamTimeout = 50*time.Millisecond, 50*time.Millisecond })
			a := post(t, client(t), g.url+chatPath, chatBody)
			if a.status != tt.status || a.cut != (tt.status == 200) {
				t.Errorf("client saw status %d, cut %v", a.status, a.cut)
			}
			if r := g.settle(t, 1)[0]; r.Status != timeline.StatusTimeout {
				t.Errorf("record says %v, want timeout", r.Status)
			}
			checkLine(t, g, "timeout")
		})
	}
}

func TestAHandshakeThatNeverEndsIsATimeout(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nobody answers on them
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	g := newRig(t, "https://"+ln.Addr().String(), func(c *relay.Config) { c.DialTimeout = 50 * time.Millisecond })
	if a := post(t, client(t), g.url+chatPath, chatBody); a.status != http.StatusGatewayTimeout {
		t.Errorf("client saw status %d, want 504", a.status)
	}
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusTimeout {
		t.Errorf("record says %v, want timeout", r.Status)
	}
	checkLine(t, g, "timeout")
}

func TestAClientThatLeavesIsCancelledUpstreamToo(t *testing.T) {
	gone := make(chan struct{})
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ev(text))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	g := newRig(t, up, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+chatPath, strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(ev(text)))); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the upstream did not learn that the client left")
	}
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusCancelled || r.Events != 1 {
		t.Errorf("record says %v with %d events, want cancelled with 1", r.Status, r.Events)
	}
	checkLine(t, g, "")
}

func TestAStoppedRelayLeavesRequestsUnfinished(t *testing.T) {
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ev(text))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := newRig(t, up, func(c *relay.Config) { c.Grace = 20 * time.Millisecond })
	resp, err := client(t).Post(g.url+chatPath, "application/json", strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	eventually(t, "token event", func() bool { return len(g.ledger.events()) == 1 })
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the client saw a whole body, want it cut")
	}
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusUnfinished {
		t.Errorf("record says %v, want unfinished", r.Status)
	}
}

func TestARequestInFlightEndsWithinTheGrace(t *testing.T) {
	g := newRig(t, server(t, streaming(20, 5*time.Millisecond)), nil)
	resp, err := client(t).Post(g.url+chatPath, "application/json", strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(b), ev(done)) {
		t.Errorf("client saw %d bytes, %v, want the whole stream", len(b), err)
	}
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusOK {
		t.Errorf("record says %v, want ok", r.Status)
	}
}

func TestAResetInTheMiddleOfAStreamIsTruncated(t *testing.T) {
	var g *rig
	up := scripted(t, func(c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, streamHead+chunked(ev(text)))
		for deadline := time.Now().Add(10 * time.Second); g.relay.Stats().Hold.Count() == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // until the event was passed on
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	})
	g = newRig(t, up, nil)
	if a := post(t, client(t), g.url+chatPath, chatBody); a.status != 200 || a.body != ev(text) || !a.cut {
		t.Errorf("client saw status %d, %q, cut %v", a.status, a.body, a.cut)
	}
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusTruncated || r.Events != 1 {
		t.Errorf("record says %v with %d events, want truncated with 1", r.Status, r.Events)
	}
	checkLine(t, g, "reset")
}

func TestAClientThatLeavesBeforeTheAnswerIsCancelled(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	up := server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	g := newRig(t, up, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+chatPath, strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-arrived; cancel() }()
	if resp, err := client(t).Do(req); err == nil {
		_ = resp.Body.Close()
		t.Errorf("client saw status %d, want none", resp.StatusCode)
	}
	<-gone
	if r := g.settle(t, 1)[0]; r.Status != timeline.StatusCancelled || !r.Head.IsZero() {
		t.Errorf("record says %v, head at %d, want cancelled before it", r.Status, r.Head)
	}
	checkLine(t, g, "")
}

func TestARelayThatHasStoppedRefuses(t *testing.T) {
	g := newRig(t, rawServer(t), nil)
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	g.relay.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chatBody)))
	if w.Code != http.StatusServiceUnavailable || len(g.ledger.records()) != 0 {
		t.Errorf("status %d and %d records, want 503 and none", w.Code, len(g.ledger.records()))
	}
}
