package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// reporterVar names the socket to which a child process reports.
const reporterVar = "TPOTSCOPE_REPORTER"

// TestReporter is a reporter in a process of its own, which prints what all clocks said when its tokens came.
func TestReporter(t *testing.T) {
	socket := os.Getenv(reporterVar)
	if socket == "" {
		t.Skip("runs only as a child of TestAReporterInATimeNamespaceIsAligned")
	}
	clock, err := hostclock.New()
	must(t, err)
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process, cfg.BootID, cfg.Now = "unix:"+socket, "proxy", "child", clock.BootID(), clock.Now
	c, err := ingest.NewClient(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r := timeline.Request{Ref: 1, ID: "child", Sent: clock.Now(), Streaming: true}
	c.OpenRequest(&r)
	var wall []timeline.Anchor
	for range 30 {
		<-time.After(30 * time.Millisecond)
		a, err := clock.Anchor()
		must(t, err)
		wall = append(wall, a)
		at := a.Mono
		c.AddToken(timeline.TokenEvent{Ref: 1, At: at, After: at, Tokens: 1, Source: timeline.CountPerEvent, Kind: timeline.KindContent, Stamp: timeline.StampClient})
		if r.First.IsZero() {
			r.First, r.FirstTokens = at, 1
		}
		r.Last, r.Done = at, at
	}
	r.OutputTokens, r.Events, r.Counted = 30, 30, timeline.CountPerEvent
	c.CloseRequest(&r)
	cancel()
	must(t, <-done)
	text, err := json.Marshal(wall)
	must(t, err)
	_, err = os.Stdout.Write(append([]byte("WALL "), append(text, '\n')...))
	must(t, err)
}

// A container can have a time namespace: the boot's id is that of its host, and CLOCK_MONOTONIC is not.
func TestAReporterInATimeNamespaceIsAligned(t *testing.T) {
	t.Parallel()
	inside := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "unshare", append([]string{"--time", "--monotonic=100000", "--"}, args...)...)
	}
	if out, err := inside("true").CombinedOutput(); err != nil {
		t.Skipf("no time namespace can be made here (needs root and unshare of util-linux): %v: %s", err, out)
	}
	cfg := quiet(t)
	ag := start(t, cfg, agent.Deps{})
	cmd := inside(os.Args[0], "-test.run=^TestReporter$")
	cmd.Env = append(os.Environ(), reporterVar+"="+cfg.Socket)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the reporter: %v\n%s", err, out)
	}
	var wall []timeline.Anchor
	_, after, _ := bytes.Cut(out, []byte("WALL "))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	must(t, json.Unmarshal(line, &wall))
	ag.stop(t)

	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	var anchor timeline.Anchor
	for a, err := range r.Anchors() {
		must(t, err)
		anchor = *a
	}
	var bound time.Duration
	for q, err := range r.Requests() {
		must(t, err)
		bound = q.ClockBound
	}
	if bound <= 0 || bound > time.Second {
		t.Errorf("the request's clock is bound to %v", bound)
	}
	n := 0
	for e, err := range r.Tokens() {
		must(t, err)
		// The wall clock may have been slewed since the anchor.
		if off := anchor.Instant(wall[n].Real).Sub(e.At); off.Abs() > bound+wall[n].Width+anchor.Width+2*time.Millisecond {
			t.Errorf("token %d is %v before its time, with a bound of %v", n, off, bound)
		}
		n++
	}
	if n != 30 {
		t.Errorf("%d tokens were recorded, want 30", n)
	}
	t.Logf("bound %v", bound)
}
