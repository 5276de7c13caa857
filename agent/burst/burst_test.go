package burst_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const t0 = timeline.Instant(1000 * time.Second)

// node is what a control acts on.
type node struct {
	*burst.Control

	now    timeline.Instant
	err    error // of the source
	took   []time.Duration
	events []timeline.Event
}

func newNode(mode burst.Mode) *node {
	n := &node{now: t0}
	n.Control = burst.New(burst.Config{
		Mode: mode, Now: func() timeline.Instant { return n.now }, Logger: slog.New(slog.DiscardHandler),
		Event: func(e timeline.Event) { n.events = append(n.events, e) },
		Source: func(d time.Duration) error {
			if n.err == nil {
				n.took = append(n.took, d)
			}
			return n.err
		},
	})
	return n
}

// cell is a decoding second.
func cell(tpot float64, overlays ...timeline.Overlay) correlate.Cell {
	c := correlate.Cell{Target: "vllm", Decode: true, WindowTPOT: timeline.Known(tpot)}
	c.Verdict.Overlays = overlays
	return c
}

// run hands over cells, one each second.
func (n *node) run(times int, c correlate.Cell) {
	for range times {
		n.now = n.now.Add(time.Second)
		n.Look([]correlate.Cell{c}, nil)
	}
}

func TestABurstBeginsWhenThrottlingDoes(t *testing.T) {
	n := newNode(burst.Auto)
	n.run(29, cell(0.01))
	n.run(1, cell(0.01, timeline.Throttled))
	if len(n.took) != 0 {
		t.Errorf("after 29 calm cells: %v, want none: what it was before is not known for long enough", n.took)
	}
	n.run(30, cell(0.01))
	n.run(1, correlate.Cell{Target: "vllm"}) // rest is neither calm nor not
	n.run(5, cell(0.01, timeline.NoisyNeighbour, timeline.Throttled))
	if diff := cmp.Diff([]time.Duration{30 * time.Second}, n.took); diff != "" {
		t.Fatalf("bursts (-want +got):\n%s", diff)
	}
	want := []timeline.Event{{
		At: t0.Add(62 * time.Second), Kind: timeline.EventBurst, GPU: timeline.NoGPU, Target: "vllm", Detail: "30s: throttling began",
	}}
	if diff := cmp.Diff(want, n.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestABurstBeginsWhenTokensComeSlowerForTwoCells(t *testing.T) {
	n := newNode(burst.Auto)
	n.run(59, cell(0.01))
	n.run(2, cell(0.02)) // the first completes it
	if len(n.took) != 0 {
		t.Errorf("with a past of less than 60 cells: %v, want none", n.took)
	}
	n.run(60, cell(0.01))
	n.run(1, cell(0.02))
	n.run(1, cell(0.0149)) // within one and a half
	n.run(1, cell(0.02))
	if len(n.took) != 0 {
		t.Errorf("after single slow cells: %v, want none", n.took)
	}
	n.run(1, cell(0.02))
	if len(n.took) != 1 || !strings.HasSuffix(n.events[0].Detail, "time per output token rose") {
		t.Errorf("after two slow cells: %v, %v, want one burst", n.took, n.events)
	}
}

func TestAnErrorOfAGPUBeginsABurstOnceInFiveMinutes(t *testing.T) {
	n := newNode(burst.Auto)
	xid := []timeline.Event{{Kind: timeline.EventRate}, {Kind: timeline.EventXid, Detail: "79"}}
	for range 2 * 300 {
		n.Look(nil, xid)
		n.now = n.now.Add(time.Second)
	}
	if len(n.took) != 2 {
		t.Errorf("%d bursts in ten minutes, want 2", len(n.took))
	}
	n = newNode(burst.Auto)
	n.err = errors.New("no helper runs")
	n.Look(nil, xid)
	n.err = nil
	n.Look(nil, xid)
	if len(n.took) != 1 {
		t.Errorf("%d bursts once a helper runs again, want 1: the one that did not begin counts for none", len(n.took))
	}
}

func TestModesSayWhoMayBegin(t *testing.T) {
	xid := []timeline.Event{{Kind: timeline.EventXid}}
	for _, tt := range []struct {
		mode  burst.Mode
		by    int // itself
		asked error
	}{
		{burst.Auto, 1, burst.ErrRunning},
		{burst.Manual, 0, nil},
		{burst.Off, 0, burst.ErrOff},
	} {
		n := newNode(tt.mode)
		n.Look(nil, xid)
		if len(n.took) != tt.by {
			t.Errorf("%s: %d bursts at an anomaly, want %d", tt.mode, len(n.took), tt.by)
		}
		if err := n.Start(time.Second); !errors.Is(err, tt.asked) {
			t.Errorf("%s: asked for: %v, want %v", tt.mode, err, tt.asked)
		}
		if err := tt.mode.Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := burst.Mode("on").Validate(); err == nil {
		t.Error(`the mode "on" is taken`)
	}
	none := burst.New(burst.Config{Mode: burst.Auto, Now: func() timeline.Instant { return t0 }, Logger: slog.New(slog.DiscardHandler)})
	none.Look(nil, xid)
	if err := none.Start(time.Second); !errors.Is(err, burst.ErrNoSource) {
		t.Errorf("without a source: %v, want %v", err, burst.ErrNoSource)
	}
}

func TestOneBurstAtATime(t *testing.T) {
	n := newNode(burst.Manual)
	for _, d := range []time.Duration{0, -time.Second, 999 * time.Millisecond, time.Minute + 1} {
		if err := n.Start(d); !errors.Is(err, burst.ErrLength) {
			t.Errorf("Start(%v) = %v, want %v", d, err, burst.ErrLength)
		}
	}
	if err := n.Start(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	n.now = n.now.Add(9 * time.Second)
	if err := n.Start(time.Second); !errors.Is(err, burst.ErrRunning) || !strings.Contains(err.Error(), "1s") {
		t.Errorf("during a burst: %v, want %v and for how long", err, burst.ErrRunning)
	}
	want := burst.State{Mode: burst.Manual, Count: 1, RunningS: 1, LastAgeS: 9, LastWhy: "asked for"}
	if diff := cmp.Diff(want, n.State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	n.now = n.now.Add(time.Second)
	if err := n.Start(time.Second); err != nil {
		t.Errorf("after it: %v", err)
	}
}

func TestTheDoorSaysWhyNot(t *testing.T) {
	n := newNode(burst.Manual)
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // that of the test is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent.sock")
	ask := func(d time.Duration) error { return burst.Ask(t.Context(), socket, d) }
	if err := ask(time.Second); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("without an agent: %v, want an error that names the socket", err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+burst.Path, n)
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}}
	srv.Start()
	defer srv.Close()
	for _, tt := range []struct {
		d    time.Duration
		want string // in the error
	}{
		{2 * time.Minute, "want 1s to 1m0s"},
		{20 * time.Second, ""},
		{20 * time.Second, "a burst is running for another 20s"},
	} {
		if err := ask(tt.d); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Ask(%v) = %v, want %q", tt.d, err, tt.want)
		}
	}
	if diff := cmp.Diff([]time.Duration{20 * time.Second}, n.took); diff != "" {
		t.Errorf("bursts (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := burst.Ask(ctx, socket, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("Ask after its context = %v", err)
	}
}

func TestAnswersHaveTheirStatus(t *testing.T) {
	for _, tt := range []struct {
		name, query string
		mode        burst.Mode
		err         error
		want        int
	}{
		{"the usual length", "", burst.Manual, nil, http.StatusOK},
		{"a length", "?for=1s", burst.Auto, nil, http.StatusOK},
		{"no duration", "?for=30", burst.Auto, nil, http.StatusBadRequest},
		{"too long", "?for=61s", burst.Auto, nil, http.StatusBadRequest},
		{"off", "?for=1s", burst.Off, nil, http.StatusForbidden},
		{"no helper", "?for=1s", burst.Auto, errors.New("no helper runs"), http.StatusServiceUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(tt.mode)
			n.err = tt.err
			rec := httptest.NewRecorder()
			n.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, burst.Path+tt.query, http.NoBody))
			if rec.Code != tt.want {
				t.Errorf("status %d: %s, want %d", rec.Code, rec.Body, tt.want)
			}
		})
	}
}

func TestAskOfAnotherServerIsNoSuccess(t *testing.T) {
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // that of the test is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}}
	srv.Start()
	defer srv.Close()
	if err := burst.Ask(t.Context(), socket, time.Second); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("Ask = %v, want an error with the status", err)
	}
}
