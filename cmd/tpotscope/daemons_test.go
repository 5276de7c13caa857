package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// engine is a simulated server, and the clients of a scenario.
type engine struct {
	clock *hostclock.Clock
	epoch timeline.Instant
	tl    *scenario.Timeline
	url   string
}

func newEngine(t *testing.T, text string) *engine {
	t.Helper()
	s, err := scenario.Parse("test", strings.NewReader(text))
	must(t, err)
	e := &engine{}
	e.tl, err = s.Run()
	must(t, err)
	e.clock, err = hostclock.New()
	must(t, err)
	e.epoch = e.clock.Now()
	server, err := llmsim.New(llmsim.Config{Model: e.tl.Targets()[0].Model, Now: e.clock.Now, Epoch: e.epoch, Plan: e.tl, Free: llmsim.DefaultPace()})
	must(t, err)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	e.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

// play sends the scenario's requests to url. The scenario begins anew.
func (e *engine) play(ctx context.Context, url string) ([]llmsim.Played, error) {
	return llmsim.Play(ctx, llmsim.PlayerConfig{
		BaseURL: url, Now: e.clock.Now, Epoch: e.clock.Now(), MaxInFlight: llmsim.DefaultInFlight, Usage: true, Continuous: true,
		Free: true, KeepTimes: true,
	}, e.tl.Requests())
}

// daemon is a command that runs in this process until it is stopped.
type daemon struct {
	out, err lines
	cancel   context.CancelFunc
	code     chan int
}

func (p *place) start(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go func() {
		d.code <- run(ctx, args, streams{strings.NewReader(""), &d.out, &d.err}, p.env())
		close(d.code)
	}()
	t.Cleanup(func() { cancel(); <-d.code })
	return d
}

// stop ends the command and fails the test if it does not end well.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.cancel()
	if code := <-d.code; code != exitOK {
		t.Errorf("exit code %d\n%s", code, &d.err)
	}
}

// find waits for a log line and returns what its group matched.
func find(t *testing.T, log *lines, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var m []string
	until(t, 20*time.Second, pattern, func() bool { m = re.FindStringSubmatch(log.String()); return m != nil })
	return m[1]
}

const (
	agentProxy   = `msg="agent ready".* proxy=(127\.0\.0\.1:\d+)`
	agentMetrics = `msg="agent ready".* metrics=(127\.0\.0\.1:\d+)`
	relayAddress = `msg="relay listening" address=(127\.0\.0\.1:\d+)`
)

const clients = `seed 6
duration 4s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=6 prompt=50..80 output=40..60 0s..3s
`

// A proxy in one process reports to the agent in another over its socket; the agent records what it observed.
func TestAProxyReportsToTheAgentOfItsNode(t *testing.T) {
	t.Parallel()
	p, e := newPlace(t), newEngine(t, clients)
	ag := p.start(t, "agent", "--nvml", "sim:memory_bound", "--engine", e.url, "--set", "metrics.listen=127.0.0.1:0")
	metrics := find(t, &ag.err, agentMetrics)
	proxy := p.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", e.url)
	played, err := e.play(t.Context(), "http://"+find(t, &proxy.err, relayAddress))
	must(t, err)
	tokens := 0
	for i := range played {
		must(t, played[i].Err)
		tokens += played[i].Tokens
	}
	proxy.stop(t)
	if text := proxy.err.String(); !strings.Contains(text, "requests observed, 0 passed unobserved") || strings.Contains(text, "not reported") {
		t.Errorf("the proxy says %s", text)
	}
	if page := get(t, "http://"+metrics+"/healthz"); !strings.Contains(page, `"simulated": true`) || !strings.Contains(page, `"model": "Llama-3.1-8B"`) {
		t.Errorf("health %s", page)
	}
	if got := p.run(t, "doctor", "--set", "nvml.source=off", "--engine", e.url).want(t, exitOK); !strings.Contains(got.out, "an agent answers on "+p.socket) ||
		!strings.Contains(got.out, "vllm at "+e.url+" serves Llama-3.1-8B") {
		t.Errorf("doctor says %s", got.out)
	}
	ag.stop(t)

	r, err := record.OpenReader(filepath.Join(runsDir(p.state), agentRun))
	must(t, err)
	requests, recorded := 0, 0
	for q, err := range r.Requests() {
		must(t, err)
		if q.Target != "default" || q.Status != timeline.StatusOK {
			t.Errorf("request of target %q: %v", q.Target, q.Status)
		}
		requests++
		recorded += q.OutputTokens
	}
	if requests != len(played) || recorded != tokens || tokens == 0 {
		t.Errorf("recorded %d requests with %d tokens, the clients had %d with %d", requests, recorded, len(played), tokens)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	must(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer func() { must(t, resp.Body.Close()) }()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(b)
}

func TestAProxyWithoutAnAgentRelaysAndSaysSo(t *testing.T) {
	t.Parallel()
	p, e := newPlace(t), newEngine(t, clients)
	proxy := p.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", e.url)
	played, err := e.play(t.Context(), "http://"+find(t, &proxy.err, relayAddress))
	must(t, err)
	for i := range played {
		must(t, played[i].Err)
	}
	proxy.stop(t)
	if text := proxy.err.String(); strings.Count(text, `level=WARN msg="no agent takes reports`) != 1 || !strings.Contains(text, "; not reported: what waited at the end (flush ") {
		t.Errorf("the proxy says %s", text)
	}
}

func TestAProxySaysWhenAnAgentAppears(t *testing.T) {
	t.Parallel()
	p, e := newPlace(t), newEngine(t, clients)
	proxy := p.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", e.url)
	find(t, &proxy.err, `msg="(no agent takes reports)`)
	ag := p.start(t, "agent", "--nvml", "off", "--set", "metrics.listen=")
	find(t, &proxy.err, `level=INFO msg="(an agent is there)`)
	proxy.stop(t)
	ag.stop(t)
}

func TestAProxyOnATakenPortSaysThatAlone(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, taken.Close()) })
	got := newPlace(t).run(t, "proxy", "--listen", taken.Addr().String(), "--upstream", "http://127.0.0.1:9").want(t, exitError)
	if !strings.HasPrefix(got.err, "tpotscope: open proxy: ") || strings.Contains(got.err, "observed") {
		t.Errorf("stderr %s", got.err)
	}
}

// A terminal that is closed ends the agent like any request to end: nothing is left behind.
func TestAHangUpLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.process(t, "agent", "--nvml", "off", "--set", "metrics.listen=")
	must(t, c.Start())
	find(t, &c.err, `msg="(agent ready)"`)
	must(t, c.Process.Signal(syscall.SIGHUP))
	if err := c.Wait(); err != nil {
		t.Errorf("the agent ended with %v\n%s", err, &c.err)
	}
	if _, err := os.Stat(p.socket); err == nil {
		t.Error("the socket is still there")
	}
}

// What a kill takes with it: the second that was not yet written, and what the writing itself takes on a busy machine.
const (
	lostAtMost = time.Second
	slack      = 400 * time.Millisecond
)

func TestAKillLosesASecondAtMost(t *testing.T) {
	t.Parallel()
	p, e := newPlace(t), newEngine(t, strings.ReplaceAll(clients, "4s", "30s")+"load streams=4 prompt=50 output=60 0s..30s\n")
	c := p.process(t, "agent", "--nvml", "sim:memory_bound", "--engine", e.url, "--listen", "127.0.0.1:0", "--upstream", e.url,
		"--set", "metrics.listen=")
	must(t, c.Start())
	address := find(t, &c.err, agentProxy)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan []llmsim.Played, 1)
	go func() {
		played, _ := e.play(ctx, "http://"+address) // the agent dies under it
		done <- played
	}()
	// The worst moment: some seconds in, and just before the next write.
	dir := filepath.Join(runsDir(p.state), agentRun)
	began := e.clock.Now()
	until(t, 10*time.Second, "some seconds of traffic", func() bool { return e.clock.Now().Sub(began) > 3*time.Second })
	size := func() int64 {
		st, err := os.Stat(filepath.Join(dir, "samples-000001.arrows"))
		must(t, err)
		return st.Size()
	}
	before := size()
	until(t, 10*time.Second, "a write", func() bool { return size() > before })
	written := e.clock.Now()
	until(t, 10*time.Second, "the next write to be near", func() bool { return e.clock.Now().Sub(written) > 900*time.Millisecond })
	killed := e.clock.Now()
	must(t, c.Process.Kill())
	cancel()
	played := <-done
	if err := c.Wait(); err == nil {
		t.Fatal("the agent ended by itself")
	}

	safe := killed.Add(-lostAtMost - slack)
	sent := 0
	for i := range played {
		for _, at := range played[i].Times {
			if at < safe {
				sent++
			}
		}
	}
	r, err := record.OpenReader(dir)
	must(t, err)
	kept := 0
	for e, err := range r.Tokens() {
		must(t, err)
		if e.At < safe && e.Kind.Bears() {
			kept++
		}
	}
	var newest timeline.Instant
	for s, err := range r.Samples() {
		must(t, err)
		newest = max(newest, s.Over.End)
	}
	t.Logf("%d of the %d token events older than %v are recorded; the newest sample is %v old", kept, sent, killed.Sub(safe), killed.Sub(newest))
	if sent < 100 || kept < sent {
		t.Errorf("of %d token events that were sent more than %v before the kill, %d are recorded", sent, killed.Sub(safe), kept)
	}
	if newest < safe {
		t.Errorf("the newest sample is %v older than the kill", killed.Sub(newest))
	}
	got := p.run(t, "report", dir).want(t, exitOK)
	if !strings.Contains(got.out, "  requests ") {
		t.Errorf("the report:\n%s", got.out)
	}
	// And the next agent goes on in the same place.
	next := p.start(t, "agent", "--nvml", "off", "--set", "metrics.listen=")
	find(t, &next.err, `msg="(agent ready)"`)
	next.stop(t)
	if _, err := os.Stat(p.socket); err == nil {
		t.Error("the socket is still there")
	}
}
