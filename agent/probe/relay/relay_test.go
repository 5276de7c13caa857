package relay_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// streaming answers like an engine: n token events, each flushed, then finish, usage and the terminal marker.
func streaming(n int, gap time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for i := range n {
			_, _ = io.WriteString(w, ev(fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, i+1)))
			_ = flush.Flush()
			if gap > 0 {
				time.Sleep(gap)
			}
		}
		_, _ = io.WriteString(w, ev(finish, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, n), done))
	}
}

func TestAStreamIsRecorded(t *testing.T) {
	up := server(t, streaming(10, 2*time.Millisecond))
	g := newRig(t, up, nil)
	a := post(t, client(t), g.url+chatPath, chatBody)
	if a.status != 200 || !strings.HasSuffix(a.body, ev(done)) {
		t.Fatalf("status %d, body ends %.20q", a.status, a.body)
	}
	r := g.settle(t, 1)[0]
	want := timeline.Request{
		Ref: 1, Sampled: true, Target: "t0", Upstream: up, Dialect: "openai", Operation: "chat", Model: "m", Streaming: true, Client: "proxy",
		HTTPStatus: 200, Finish: "stop", PromptTokens: 3, PromptKnown: true, OutputTokens: 10, Counted: timeline.CountUsage, FirstTokens: 1,
		Choices: 1, Events: 10,
	}
	got := r
	got.ID, got.TraceID, got.SpanID = "", "", ""
	got.Sent, got.Head, got.First, got.Last, got.Done = 0, 0, 0, 0, 0
	got.KernelStamped, got.Coalesced, got.Flags = 0, 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record mismatch (-want +got):\n%s", diff)
	}
	if len(r.ID) != 32 || len(r.TraceID) != 32 || len(r.SpanID) != 16 || r.ParentID != "" {
		t.Errorf("ids: request %q, trace %q, span %q, parent %q", r.ID, r.TraceID, r.SpanID, r.ParentID)
	}
	if !slices.IsSorted([]timeline.Instant{1, r.Sent, r.Head, r.First, r.Last, r.Done}) {
		t.Errorf("times out of order: sent %d, head %d, first %d, last %d, done %d", r.Sent, r.Head, r.First, r.Last, r.Done)
	}
	if d := r.Last.Sub(r.First); d < 18*time.Millisecond {
		t.Errorf("decode took %v, want at least nine gaps of 2 ms", d)
	}
	if f := g.log.failures(); len(f) != 0 {
		t.Errorf("log tells of failures: %q", f)
	}
}

func TestADeadIdleConnectionFailsNoRequest(t *testing.T) {
	// This upstream says keep-alive but closes after each answer, without saying so.
	ok := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	var mu sync.Mutex
	bodies := 0
	up := scripted(t, func(c net.Conn, _ *http.Request) {
		mu.Lock()
		bodies++
		mu.Unlock()
		_, _ = io.WriteString(c, ok)
	})
	g := newRig(t, up, nil)
	c := client(t)
	const n = 50
	for range n {
		if a := post(t, c, g.url+chatPath, chatBody); a.status != 200 || a.body != "{}" {
			t.Fatalf("client saw %d %q", a.status, a.body)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if bodies != n {
		t.Errorf("the upstream answered %d requests, want %d", bodies, n)
	}
	g.settle(t, n)
}

func TestHeadersAndTracesPass(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	seen := make(chan *http.Request, 1)
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Set("X-Engine", "e")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`)
	})
	g := newRig(t, up+"/base", nil)
	a := post(t, client(t), g.url+chatPath+"?a=%20b&c;d", chatBody,
		"Authorization", "Bearer t", "X-Custom", "v", "Traceparent", parent, "Tracestate", "a=b", "X-Request-Id", "req-1", "Connection", "X-Hop", "X-Hop", "gone", "User-Agent", "ua")
	if a.header.Get("X-Engine") != "e" {
		t.Error("a header of the response is missing")
	}
	r := <-seen
	if got := r.URL.Path + "?" + r.URL.RawQuery; got != "/base"+chatPath+"?a=%20b&c;d" {
		t.Errorf("upstream saw %q", got)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer t", "X-Custom": "v", "Tracestate": "a=b", "X-Request-Id": "req-1", "X-Hop": "", "User-Agent": "ua",
		"Accept-Encoding": "", "X-Forwarded-For": "", "Idempotency-Key": "",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("upstream saw %s %q, want %q", name, got, want)
		}
	}
	rec := g.settle(t, 1)[0]
	if rec.ID != "req-1" || rec.TraceID != "0af7651916cd43dd8448eb211c80319c" || rec.ParentID != "b7ad6b7169203331" || rec.Sampled {
		t.Errorf("record: id %q, trace %q, parent %q, sampled %v", rec.ID, rec.TraceID, rec.ParentID, rec.Sampled)
	}
	if got, want := r.Header.Get("Traceparent"), "00-"+rec.TraceID+"-"+rec.SpanID+"-00"; got != want {
		t.Errorf("upstream saw traceparent %q, want %q", got, want)
	}
	if rec.SpanID == rec.ParentID {
		t.Error("the span sent upstream is the client's own")
	}
}

func TestWhatIsNotObservedPassesUntouched(t *testing.T) {
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Saw", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Traceparent")+r.Header.Get("X-Request-Id"))
		_, _ = w.Write(b)
	})
	g := newRig(t, up, nil)
	c := client(t)
	if a := post(t, c, g.url+"/v1/embeddings?x=1;2", "abc"); a.body != "abc" || a.header.Get("X-Saw") != "POST /v1/embeddings?x=1;2" {
		t.Errorf("client saw %q, upstream %q", a.body, a.header.Get("X-Saw"))
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		req, err := http.NewRequestWithContext(t.Context(), method, g.url+chatPath, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("X-Saw"); got != method+" "+chatPath {
			t.Errorf("%s: upstream saw %q", method, got)
		}
	}
	if n := len(g.ledger.records()); n != 0 {
		t.Errorf("%d records, want none", n)
	}
	if got := g.relay.Stats().Passed; got != 4 {
		t.Errorf("stats count %d passed, want 4", got)
	}
}

func TestTunnelsAreRefused(t *testing.T) {
	g := newRig(t, "http://127.0.0.1:1", nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("status %d, want 405", resp.StatusCode)
	}
}

func TestLongPromptsAreReadWhileTheyAreSent(t *testing.T) {
	g := newRig(t, server(t, streaming(3, 0)), nil)
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("long ", 100_000) + `"}],"model":"m","max_tokens":3,"stream":true}`
	for range 5 {
		if a := post(t, client(t), g.url+chatPath, body); a.status != 200 {
			t.Errorf("status %d", a.status)
		}
	}
	for _, r := range g.settle(t, 5) {
		if r.Model != "m" || r.MaxTokens != 3 || !r.Streaming || r.OutputTokens != 3 || r.Sent > r.Head {
			t.Errorf("record %+v", r)
		}
	}
	for _, r := range g.ledger.opened {
		if r.Model != "m" {
			t.Errorf("opened with model %q", r.Model)
		}
	}
}

func TestUpgradesPass(t *testing.T) {
	up := scripted(t, func(c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		b := make([]byte, 4)
		_, _ = io.ReadFull(c, b)
		_, _ = c.Write(b)
	})
	g := newRig(t, up, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", chatPath)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d, want 101", resp.StatusCode)
	}
	_, _ = io.WriteString(c, "ping")
	b := make([]byte, 4)
	if _, err := io.ReadFull(br, b); err != nil || string(b) != "ping" {
		t.Errorf("echo of %q, %v", b, err)
	}
}

func TestOldAndCarefulClients(t *testing.T) {
	g := newRig(t, server(t, streaming(3, 0)), nil)
	want := post(t, client(t), g.url+chatPath, chatBody).body
	for name, head := range map[string]string{
		"HTTP/1.0":            "POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n",
		"expect 100-continue": "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, head, chatPath, len(chatBody))
			br := bufio.NewReader(c)
			if strings.Contains(head, "Expect") {
				if line, err := br.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
					t.Fatalf("answer %q, %v, want 100 Continue", line, err)
				}
				_, _ = br.ReadString('\n')
			}
			_, _ = io.WriteString(c, chatBody)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			b, err := io.ReadAll(resp.Body)
			if err != nil || string(b) != want {
				t.Errorf("client saw %d bytes, %v, want %d", len(b), err, len(want))
			}
			if strings.HasPrefix(name, "HTTP/1.0") && len(resp.TransferEncoding) != 0 {
				t.Errorf("an HTTP/1.0 client got transfer coding %v", resp.TransferEncoding)
			}
		})
	}
}

func TestLongBodiesAreStreamed(t *testing.T) {
	sizes := make(chan int64, 1)
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		sizes <- n
		_, _ = io.WriteString(w, `{}`)
	})
	g := newRig(t, up, func(c *relay.Config) { c.MaxBodyBytes = 1000 })
	body := `{"model":"m","stream":false,"messages":"` + strings.Repeat("x", 5000) + `"}`
	if a := post(t, client(t), g.url+chatPath, body); a.status != 200 {
		t.Errorf("status %d", a.status)
	}
	if n := <-sizes; n != int64(len(body)) {
		t.Errorf("upstream saw %d bytes, want %d", n, len(body))
	}
	if r := g.settle(t, 1)[0]; r.Model != "m" {
		t.Errorf("model %q, want what the beginning of the body tells", r.Model)
	}
	if got := g.relay.Stats().StreamedReq; got != 1 {
		t.Errorf("stats count %d streamed requests, want 1", got)
	}
}

func TestHTTPSUpstream(t *testing.T) {
	up := httptest.NewUnstartedServer(streaming(20, time.Millisecond))
	up.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	up.EnableHTTP2 = true
	up.StartTLS()
	t.Cleanup(up.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	g := newRig(t, up.URL, func(c *relay.Config) { c.CAFile = ca })
	c := client(t)
	for range 3 {
		if a := post(t, c, g.url+chatPath, chatBody); a.status != 200 || !strings.HasSuffix(a.body, ev(done)) {
			t.Fatalf("client saw %d, %d bytes", a.status, len(a.body))
		}
	}
	events, kernel := 0, 0
	for _, r := range g.settle(t, 3) {
		if r.Status != timeline.StatusOK || r.Events != 20 || r.OutputTokens != 20 {
			t.Errorf("record says %v, %d events, %d tokens", r.Status, r.Events, r.OutputTokens)
		}
		events, kernel = events+r.Events, kernel+r.KernelStamped
	}
	t.Logf("below TLS %d of %d events carry kernel stamps", kernel, events)

	strict := newRig(t, up.URL, nil)
	if a := post(t, c, strict.url+chatPath, chatBody); a.status != http.StatusBadGateway {
		t.Errorf("untrusted upstream: status %d, want 502", a.status)
	}
	checkLine(t, strict, "tls")
}

func TestConfigFaultsAreAllTold(t *testing.T) {
	c := relay.DefaultConfig()
	c.Listen, c.Upstream, c.Grace, c.MaxBodyBytes, c.MaxEventBytes = "nowhere", "ftp://x", -1, -1, 1<<31
	err := c.Validate()
	if err == nil {
		t.Fatal("Validate() = nil")
	}
	for _, want := range []string{"listen", "upstream: not an http or https URL", "grace: -1ns is negative", "max_body_bytes: -1 is", "max_event_bytes: 2147483648 is"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to tell of %q", err, want)
		}
	}
	c = relay.DefaultConfig()
	c.Upstream = "http://user:hunter2@host"
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Validate() = %v, want an error without the password", err)
	}
}

func TestInjectedUsageIsCountedAndNotSeen(t *testing.T) {
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var q struct {
			Options struct {
				Usage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		_ = json.Unmarshal(b, &q)
		payloads := []string{text, text, finish}
		if q.Options.Usage {
			payloads = append(payloads, usage)
		}
		w.Header().Set("Content-Type", "Text/Event-Stream")
		if got := r.Header.Get("Accept-Encoding"); q.Options.Usage && got == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
		}
		_, _ = io.WriteString(w, ev(append(payloads, done)...))
	})
	asking := strings.Replace(chatBody, "{", `{"stream_options":{"include_usage":true},`, 1)
	without, with := ev(text, text, finish, done), ev(text, text, finish, usage, done)
	for _, tt := range []struct {
		name, body, accepts string
		inject              bool
		want                string
		counted             timeline.CountSource
	}{
		{"unasked, nothing is added", chatBody, "gzip", false, without, timeline.CountNone},
		{"asked, the count is taken and its event kept back", chatBody, "", true, without, timeline.CountFinal},
		{"asked, an engine that could compress does not", chatBody, "gzip", true, without, timeline.CountFinal},
		{"a client that asks itself sees it", asking, "", true, with, timeline.CountFinal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, up, func(c *relay.Config) { c.InjectUsage = tt.inject })
			if a := post(t, client(t), g.url+chatPath, tt.body, "Accept-Encoding", tt.accepts); a.body != tt.want || a.cut {
				t.Errorf("client saw %q, want %q", a.body, tt.want)
			}
			if r := g.settle(t, 1)[0]; r.Counted != tt.counted || r.Status != timeline.StatusOK {
				t.Errorf("record counts by %v and says %v, want %v", r.Counted, r.Status, tt.counted)
			}
		})
	}
}
