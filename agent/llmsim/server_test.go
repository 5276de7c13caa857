package llmsim_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// plan is a fixed plan.
type plan struct {
	requests []scenario.Request
	state    scenario.EngineState
	length   time.Duration
}

func (p plan) Requests() []scenario.Request                       { return p.requests }
func (p plan) Engine(_ int, _ time.Duration) scenario.EngineState { return p.state }
func (p plan) Duration() time.Duration                            { return p.length }

// clock returns a clock that starts at one hour.
func clock() func() timeline.Instant {
	start := time.Now()
	return func() timeline.Instant { return timeline.Instant(time.Hour).Add(time.Since(start)) }
}

func newServer(t *testing.T, cfg llmsim.Config) *llmsim.Server {
	t.Helper()
	if cfg.Now == nil {
		cfg.Now = clock()
		cfg.Epoch = cfg.Now()
	}
	if cfg.Model == "" {
		cfg.Model = "sim-8b"
	}
	s, err := llmsim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// piece is one flushed write of a reply.
type piece struct {
	at   time.Duration
	text string
}

// tape is a response writer that keeps each flush with its time.
type tape struct {
	start  time.Time
	header http.Header
	status int
	open   strings.Builder
	pieces []piece
}

func newTape() *tape { return &tape{start: time.Now(), header: http.Header{}, status: http.StatusOK} }

func (t *tape) Header() http.Header         { return t.header }
func (t *tape) WriteHeader(status int)      { t.status = status }
func (t *tape) Write(b []byte) (int, error) { return t.open.Write(b) }
func (t *tape) Flush() {
	t.pieces = append(t.pieces, piece{time.Since(t.start), t.open.String()})
	t.open.Reset()
}

func (t *tape) all() string {
	var b strings.Builder
	for _, p := range t.pieces {
		b.WriteString(p.text)
	}
	return b.String() + t.open.String()
}

func (t *tape) times() []time.Duration {
	var at []time.Duration
	for _, p := range t.pieces {
		at = append(at, p.at)
	}
	return at
}

func ask(ctx context.Context, path, body string, header ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

const chatBody = `{"model":"sim-8b","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`

// events returns the payloads of a stream.
func events(t *testing.T, stream string) []string {
	t.Helper()
	var list []string
	for block := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(block, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("%q is not one event", block)
		}
		if data != "[DONE]" && !json.Valid([]byte(data)) {
			t.Errorf("%q is not JSON", data)
		}
		list = append(list, data)
	}
	return list
}

func TestTokensLeaveAtThePlansTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan{requests: []scenario.Request{
			{Index: 0, PromptTokens: 7, OutputTokens: 4, Tokens: []time.Duration{100 * ms, 120 * ms, 150 * ms, 150 * ms}, Finish: 150 * ms},
		}}
		s := newServer(t, llmsim.Config{Plan: p})
		w := newTape()
		s.ServeHTTP(w, ask(t.Context(), "/v1/chat/completions", chatBody))
		if diff := cmp.Diff([]time.Duration{100 * ms, 120 * ms, 150 * ms, 150 * ms}, w.times()); diff != "" {
			t.Errorf("times of writes (-want +got):\n%s", diff)
		}
		got := events(t, w.all())
		if len(got) != 6 {
			t.Fatalf("got %d events, want role, three chunks, usage, marker:\n%s", len(got), w.all())
		}
		for i, want := range []string{`"delta":{"role":"assistant","content":""}`, `"content":" alpha"`, `"content":" bravo"`, `"content":" charlie delta"`, `"choices":[],"usage":{"prompt_tokens":7,"total_tokens":11,"completion_tokens":4}`, "[DONE]"} {
			if !strings.Contains(got[i], want) {
				t.Errorf("event %d = %s, want it to hold %s", i, got[i], want)
			}
		}
		if !strings.Contains(got[3], `"finish_reason":"length"`) || strings.Contains(got[2], `"finish_reason":"length"`) {
			t.Error("the reason of finishing is not on the last token's chunk alone")
		}
		if w.header.Get(llmsim.SimulatedHeader) == "" {
			t.Error("the reply does not say that it is simulated")
		}
	})
}

func TestCountsRideOnChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, llmsim.Config{Free: llmsim.Pace{TTFT: 30 * ms, TPOT: 10 * ms, Tokens: 3}})
		w := newTape()
		s.ServeHTTP(w, ask(t.Context(), "/v1/completions",
			`{"prompt":"hi","stream":true,"return_token_ids":true,"stream_options":{"continuous_usage_stats":true}}`))
		if diff := cmp.Diff([]time.Duration{30 * ms, 40 * ms, 50 * ms, 50 * ms}, w.times()); diff != "" {
			t.Errorf("times of writes (-want +got):\n%s", diff)
		}
		for i, data := range events(t, w.all())[:3] {
			var c struct {
				Object  string `json:"object"`
				Choices []struct {
					Text string `json:"text"`
					IDs  []int  `json:"token_ids"`
				} `json:"choices"`
				Usage struct {
					Completion int `json:"completion_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				t.Fatal(err)
			}
			if c.Object != "text_completion" || len(c.Choices) != 1 || len(c.Choices[0].IDs) != 1 || c.Usage.Completion != i+1 || c.Choices[0].Text == "" {
				t.Errorf("chunk %d = %s", i, data)
			}
		}
	})
}

func TestFaults(t *testing.T) {
	tests := []struct {
		name, fault string
		times       []time.Duration // of the writes
		events      int
		last        string
		absent      string
	}{
		{"an error in the stream ends with the marker", "error=2", []time.Duration{30 * ms, 40 * ms, 40 * ms}, 5, "[DONE]", "usage"},
		{"the marker may be missing", "nodone", []time.Duration{30 * ms, 40 * ms, 50 * ms, 60 * ms, 60 * ms}, 6, `"completion_tokens":4`, "[DONE]"},
		{"merged tokens leave with the last of them", "merge=3", []time.Duration{50 * ms, 60 * ms, 60 * ms}, 5, "[DONE]", ""},
		{"an early role chunk leaves at once", "earlyrole", []time.Duration{0, 30 * ms, 40 * ms, 50 * ms, 60 * ms, 60 * ms}, 7, "[DONE]", ""},
		{"a slow server is late by as much", "slow=5ms", []time.Duration{35 * ms, 45 * ms, 55 * ms, 65 * ms, 65 * ms}, 7, "[DONE]", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, llmsim.Config{Free: llmsim.Pace{TTFT: 30 * ms, TPOT: 10 * ms, Tokens: 4}})
				w := newTape()
				s.ServeHTTP(w, ask(t.Context(), "/v1/chat/completions", chatBody, llmsim.FaultHeader, tt.fault))
				if diff := cmp.Diff(tt.times, w.times()); diff != "" {
					t.Errorf("times of writes (-want +got):\n%s", diff)
				}
				got := events(t, w.all())
				if len(got) != tt.events || !strings.Contains(got[len(got)-1], tt.last) {
					t.Errorf("got %d events, want %d, the last with %s:\n%s", len(got), tt.events, tt.last, w.all())
				}
				if tt.absent != "" && strings.Contains(w.all(), tt.absent) {
					t.Errorf("%s is in the stream:\n%s", tt.absent, w.all())
				}
			})
		})
	}
}

func TestARequestWithoutAnEndIsAbortedWithThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan{length: time.Second, requests: []scenario.Request{{Index: 0, PromptTokens: 1, OutputTokens: 9, Tokens: []time.Duration{100 * ms}}}}
		s := newServer(t, llmsim.Config{Plan: p})
		w := newTape()
		s.ServeHTTP(w, ask(t.Context(), "/v1/chat/completions", chatBody))
		if diff := cmp.Diff([]time.Duration{100 * ms, time.Second}, w.times()); diff != "" {
			t.Errorf("times of writes (-want +got):\n%s", diff)
		}
		if !strings.Contains(w.all(), `"finish_reason":"abort"`) || !strings.Contains(w.all(), `"completion_tokens":1}`) {
			t.Errorf("the reply does not say that it was aborted after one token:\n%s", w.all())
		}
	})
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req := func(i int) scenario.Request {
			return scenario.Request{Index: i, PromptTokens: 100 + i, Tokens: []time.Duration{ms}, OutputTokens: 1, Finish: ms}
		}
		other := req(9)
		other.Target = 1
		s := newServer(t, llmsim.Config{Plan: plan{requests: []scenario.Request{req(0), req(1), req(2), other}}})
		play := func(header ...string) (int, string) {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, ask(t.Context(), "/v1/completions", `{"prompt":"a prompt of forty characters, in JSON.."}`, header...))
			var v struct {
				Usage struct {
					Prompt int `json:"prompt_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Fatal(err)
			}
			return v.Usage.Prompt, w.Result().Status
		}
		want := func(name string, prompt int, status string, header ...string) {
			t.Helper()
			if p, st := play(header...); p != prompt || st != status {
				t.Errorf("%s: prompt of %d tokens, %s; want %d, %s", name, p, st, prompt, status)
			}
		}
		want("by name", 101, "200 OK", llmsim.RequestHeader, "1")
		want("played before", 0, "409 Conflict", llmsim.RequestHeader, "1")
		want("of another target", 0, "409 Conflict", llmsim.RequestHeader, "9")
		want("free", 10, "200 OK", llmsim.RequestHeader, "none")
		want("next", 100, "200 OK")
		want("next but the named", 102, "200 OK")
		want("none left", 10, "200 OK")
	})
}

func TestBadRequestsNameTheFault(t *testing.T) {
	s := newServer(t, llmsim.Config{})
	for body, want := range map[string]string{
		`{`:                                 "JSON",
		`{"messages":[]}`:                   "",
		`{"model":"x"}`:                     "messages",
		`{"messages":[{}],"n":2}`:           "n:",
		`{"messages":[{}],"max_tokens":-1}`: "max_tokens",
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, ask(t.Context(), "/v1/chat/completions", body))
		if want == "" {
			continue
		}
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want 400 and %s", body, w.Code, w.Body, want)
		}
	}
	for _, fault := range []string{"explode", "merge=1", "cut=x", "slow=-1s", "status=200"} {
		if f, err := llmsim.ParseFault(fault); err == nil {
			t.Errorf("ParseFault(%q) = %+v, want an error", fault, f)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, ask(t.Context(), "/v1/chat/completions", chatBody, llmsim.FaultHeader, "status=503"))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status fault: %d, want 503", w.Code)
	}
}

func TestAStreamEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stream := range []string{"true", "false"} {
			s := newServer(t, llmsim.Config{Free: llmsim.Pace{TTFT: time.Hour, TPOT: ms, Tokens: 2}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			s.ServeHTTP(newTape(), ask(ctx, "/v1/chat/completions", `{"messages":[{}],"stream":`+stream+`}`))
			cancel()
			if d := time.Since(start); d != time.Second {
				t.Errorf("stream %s ended after %v, want 1s", stream, d)
			}
		}
	})
}

func TestPlainPages(t *testing.T) {
	s := newServer(t, llmsim.Config{Model: `a "model"`, Plan: plan{state: scenario.EngineState{Running: 3, KVBlocks: 10, BlockSize: 16, OutputTokens: 5}}})
	for path, want := range map[string]string{
		"/health": "", "/version": "simulated", "/v1/models": `"id":"a \"model\""`,
		"/metrics": `vllm:num_requests_running{engine="0",model_name="a \"model\""} 3`,
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d, want 200 and %s:\n%s", path, w.Code, want, w.Body)
		}
	}
}

// listen runs a server on a port of its own and returns its URL.
func listen(t *testing.T, s *llmsim.Server) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

func TestACutBreaksTheConnection(t *testing.T) {
	url := listen(t, newServer(t, llmsim.Config{Precise: true, Free: llmsim.Pace{TPOT: ms, Tokens: 9}, Fault: llmsim.Fault{CutAt: 3}}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Error("the stream ended as if it were whole")
	}
	if n := strings.Count(string(b), `"delta":{"content"`); n != 3 {
		t.Errorf("got %d tokens before the cut, want 3", n)
	}
}

// running is a server of a benchmark.
type running struct {
	url string
	end func()
}

func benchListen(b *testing.B, s *llmsim.Server) running {
	b.Helper()
	ln, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	return running{"http://" + ln.Addr().String(), func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("Run() = %v", err)
		}
	}}
}
