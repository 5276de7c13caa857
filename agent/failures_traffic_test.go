package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// traffic is streams of tokens through the agent's proxy, whose every byte is compared with what the server sent.
type traffic struct {
	t    *testing.T
	url  string // of the server
	stop context.CancelFunc
	done errgroup.Group

	mu       sync.Mutex
	sent     map[string][sha256.Size]byte // by the server, of each request
	streams  int
	tokens   int
	problems []string
}

const (
	streamTokens = 40
	streamCount  = 3
)

// newTraffic starts a server.
func newTraffic(t *testing.T, clock *hostclock.Clock) *traffic {
	t.Helper()
	tr := &traffic{t: t, sent: map[string][sha256.Size]byte{}, stop: func() {}}
	llm, err := llmsim.New(llmsim.Config{Model: "sim", Now: clock.Now, Epoch: clock.Now()})
	must(t, err)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			llm.ServeHTTP(w, r)
			return
		}
		kept := &keeper{ResponseWriter: w}
		llm.ServeHTTP(kept, r)
		tr.mu.Lock()
		tr.sent[r.Header.Get("X-Request-Id")] = sha256.Sum256(kept.body.Bytes())
		tr.mu.Unlock()
	}))
	t.Cleanup(srv.Close)
	tr.url = srv.URL
	return tr
}

// keeper keeps what is written.
type keeper struct {
	http.ResponseWriter

	body bytes.Buffer
}

func (k *keeper) Write(p []byte) (int, error) {
	_, _ = k.body.Write(p)
	return k.ResponseWriter.Write(p)
}

// Unwrap lets a stream be flushed.
func (k *keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// start streams through a proxy until end is called.
func (tr *traffic) start(proxy string) {
	ctx, cancel := context.WithCancel(context.Background())
	tr.stop = cancel
	for n := range streamCount {
		tr.done.Go(func() error {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for i := 0; ctx.Err() == nil; i++ { // a stream that began is read to its end
				tr.stream(client, proxy, fmt.Sprintf("failure-%d-%d", n, i)) //nolint:contextcheck // it outlives ctx
			}
			return nil
		})
	}
}

// end lets the streams that are open come to their end.
func (tr *traffic) end() {
	tr.stop()
	_ = tr.done.Wait() // no stream returns an error: problems are kept
}

func (tr *traffic) stream(client *http.Client, proxy, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	body := `{"model":"sim","prompt":"x","stream":true,"max_tokens":` + strconv.Itoa(streamTokens) +
		`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, proxy+"/v1/completions", strings.NewReader(body))
	if err != nil {
		tr.problem(id, err.Error())
		return
	}
	req.Header.Set("X-Request-Id", id)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		tr.problem(id, err.Error())
		return
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tr.problem(id, fmt.Sprintf("%s: %v after %d bytes", resp.Status, err, len(got)))
		return
	}
	tr.mu.Lock()
	tr.streams++
	tr.tokens += streamTokens
	tr.mu.Unlock()
	// The server may note what it sent a moment after the client has read it.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		tr.mu.Lock()
		sent, ok := tr.sent[id]
		delete(tr.sent, id)
		tr.mu.Unlock()
		if ok && sent != sha256.Sum256(got) {
			tr.problem(id, "the client's bytes are not the server's")
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			tr.problem(id, "the server does not know the request")
			return
		}
	}
}

func (tr *traffic) problem(id, what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.problems = append(tr.problems, id+": "+what)
}

// watcher asks the agent's doors ten times a second.
type watcher struct {
	base   string
	client *http.Client
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	page    string // /metrics
	health  string
	slowest time.Duration
	late    time.Duration // the most that this process was late to look: the machine is that busy
	asked   int
	failed  []string
}

func watch(address string) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{base: "http://" + address, client: &http.Client{Transport: &http.Transport{}}, stop: cancel, done: make(chan struct{})}
	w.ask()
	go func() {
		defer close(w.done)
		w.loop(ctx)
	}()
	return w
}

// loop asks until ctx ends. Meanwhile it notes how late a timer of this process is, which no door can answer for.
func (w *watcher) loop(ctx context.Context) {
	var idle sync.WaitGroup
	defer idle.Wait()
	idle.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			<-time.After(20 * time.Millisecond)
			late := time.Since(began) - 20*time.Millisecond
			w.mu.Lock()
			w.late = max(w.late, late)
			w.mu.Unlock()
		}
	})
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.ask() //nolint:contextcheck // an answer is waited for
		}
	}
}

func (w *watcher) end() {
	w.stop()
	<-w.done
	w.client.CloseIdleConnections()
}

func (w *watcher) ask() {
	page, health := w.get("/metrics"), w.get("/healthz")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.page, w.health = page, health
	w.asked++
}

func (w *watcher) get(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	began := time.Now()
	var body []byte
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, http.NoBody)
	if err == nil {
		var resp *http.Response
		if resp, err = w.client.Do(req); err == nil {
			body, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s", resp.Status)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed = append(w.failed, path+": "+err.Error())
	}
	w.slowest = max(w.slowest, time.Since(began))
	return string(body)
}

// last returns the newest pages.
func (w *watcher) last() (page, health string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.page, w.health
}

// shows reports whether /metrics has readings of a GPU. What state its calls are in is no reading, and is shown always.
func shows(page, uuid string) bool {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "tpotscope_gpu_") && !strings.HasPrefix(line, "tpotscope_gpu_capability") && strings.Contains(line, uuid) {
			return true
		}
	}
	return false
}

// value returns the value of the first series with that prefix and that text in its labels.
func value(page, name, label string) (float64, bool) {
	for line := range strings.Lines(page) {
		if (strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ")) && strings.Contains(line, label) {
			f := strings.Fields(line)
			v, err := strconv.ParseFloat(f[len(f)-1], 64)
			return v, err == nil
		}
	}
	return 0, false
}

// compareCounts holds what this process holds against what it held before the agent.
func (s *scene) compareCounts(o *outcome) {
	var after counts
	deadline := time.Now().Add(3 * time.Second)
	for {
		after = count(s.t)
		// The runtime keeps the threads that it once made: there may be some more, but not one a restart.
		if after.goroutines <= s.before.goroutines && after.files <= s.before.files {
			break
		}
		if time.Now().After(deadline) {
			s.t.Errorf("left behind: %v before, %v after", s.before, after)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if after.threads > s.before.threads+12 {
		s.t.Errorf("threads are left behind: %v before, %v after", s.before, after)
	}
	o.Before, o.After = s.before.String(), after.String()
}

// compareTraffic holds the recording's requests against what the clients had.
func (s *scene) compareTraffic(o *outcome) {
	t := s.t
	if len(s.sends.problems) > 0 || s.sends.streams == 0 {
		t.Errorf("%d streams came through, %d did not: %q", s.sends.streams, len(s.sends.problems), s.sends.problems)
	}
	r, err := record.OpenReader(s.cfg.RecordDir())
	must(t, err)
	requests, tokens := 0, 0
	for q, err := range r.Requests() {
		must(t, err)
		requests++
		tokens += q.OutputTokens
		if q.Status != timeline.StatusOK {
			t.Errorf("request %s: %v", q.ID, q.Status)
		}
	}
	events := 0
	for e, err := range r.Tokens() {
		must(t, err)
		events += int(e.Tokens)
	}
	o.Streams, o.Tokens = requests, tokens
	if requests != s.sends.streams || tokens != s.sends.tokens || events != tokens {
		t.Errorf("recorded: %d requests, %d tokens, %d by their events; the clients had %d and %d", requests, tokens, events, s.sends.streams, s.sends.tokens)
	}
}

// compareRecording looks for the failure among the recording's events.
func (s *scene) compareRecording(f *failure, o *outcome) {
	if f.said.kind == "" {
		return
	}
	r, err := record.OpenReader(s.cfg.RecordDir())
	must(s.t, err)
	var all []string
	found := 0
	for e, err := range r.Events() {
		must(s.t, err)
		all = append(all, fmt.Sprintf("%s gpu %d: %s", e.Kind, e.GPU, e.Detail))
		if e.Kind == f.said.kind && strings.Contains(e.Detail, f.said.event) {
			found++
		}
	}
	if found == 0 {
		s.t.Errorf("no event %s with %q is recorded, of %d:\n%s", f.said.kind, f.said.event, len(all), strings.Join(all, "\n"))
		return
	}
	o.Where = append(o.Where, fmt.Sprintf("event %s x%d", f.said.kind, found))
	if f.once && found > 1 {
		s.t.Errorf("the event %s is recorded %d times, want once", f.said.kind, found)
	}
}
