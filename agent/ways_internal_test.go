package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
	"github.com/tpotscope/tpotscope/nvml"
)

// watched is an export watch on a clock of its own, and what it says.
type watched struct {
	*exportWatch

	out bytes.Buffer
	now time.Time
}

func newWatched() *watched {
	w := &watched{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	log := slog.New(slog.NewTextHandler(&w.out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	w.exportWatch = newExportWatch(log, map[spool.Signal]string{spool.Metrics: "collector:4318", spool.Traces: "traces:4317"})
	return w
}

// pass lets time go by in seconds, in each of which the queue of metrics is in that state.
func (w *watched) pass(seconds int, st spool.Stats) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		w.look(w.now, map[spool.Signal]spool.Stats{spool.Metrics: st, spool.Traces: {}})
	}
}

func (w *watched) said(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n"), strings.TrimSpace(w.out.String())); diff != "" {
		t.Errorf("log (-want +have):\n%s", diff)
	}
	w.out.Reset()
}

func (w *watched) why(st spool.Stats) string {
	_, why := w.health(w.now, map[spool.Signal]spool.Stats{spool.Metrics: st, spool.Traces: {}})
	return strings.Join(why, "; ")
}

func TestExportsThatFailAreSaidOnceAMinuteAndWhenTheyAreOver(t *testing.T) {
	t.Parallel()
	w := newWatched()
	w.pass(5, spool.Stats{Accepted: 1, Queued: 1})
	w.said(t)
	down := spool.Stats{Accepted: 2, Queued: 2, Retries: 1, LastError: "connection failed"}
	w.pass(60, down)
	w.said(t, `level=WARN msg="exports fail" signal=metrics endpoint=collector:4318 cause="connection failed" queued=2 dropped=0`)
	if why := w.why(down); why != "" {
		t.Errorf("within the first minute health says %q", why)
	}
	down.Queued, down.Retries, down.DroppedFull = 9, 7, 3
	w.pass(10, down)
	w.said(t, `level=WARN msg="exports fail" signal=metrics endpoint=collector:4318 cause="connection failed" queued=9 dropped=3`)
	if why := w.why(down); why != "no metrics could be sent to collector:4318 for 69 s: connection failed" {
		t.Errorf("health says %q", why)
	}
	list, _ := w.health(w.now, map[spool.Signal]spool.Stats{spool.Metrics: down, spool.Traces: {}})
	want := []exportHealth{
		{Signal: "metrics", Endpoint: "collector:4318", Queued: 9, Retried: 7, Dropped: 3, FailingS: 69, LastError: "connection failed"},
		{Signal: "traces", Endpoint: "traces:4317"},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("health (-want +have):\n%s", diff)
	}
	up := spool.Stats{Sent: 9, Retries: 7}
	w.pass(5, up)
	w.said(t, `level=INFO msg="exports go out again" signal=metrics endpoint=collector:4318 after=1m10s queued=0`)
	if why := w.why(up); why != "" {
		t.Errorf("after it health says %q", why)
	}
}

func TestAReceiverThatComesAndGoesIsNotSaidMoreThanOnceAMinute(t *testing.T) {
	t.Parallel()
	w := newWatched()
	for i := range uint64(50) {
		w.pass(1, spool.Stats{Sent: i, Retries: i + 1, LastError: "status 503"})
		w.pass(1, spool.Stats{Sent: i, Retries: i + 2, LastError: "status 503"})
		w.pass(1, spool.Stats{Sent: i + 1, Retries: i + 2})
	}
	if warned := strings.Count(w.out.String(), "level=WARN"); warned != 3 {
		t.Errorf("%d warnings in 150 s, want 3:\n%s", warned, w.out.String())
	}
	if again := strings.Count(w.out.String(), "level=INFO"); again != 3 {
		t.Errorf("%d times it is over, want 3", again)
	}
}

func TestAReceiverThatTakesAPartIsThere(t *testing.T) {
	t.Parallel()
	w := newWatched()
	st := spool.Stats{Sent: 1, Partial: 1, RejectedItems: 4, LastError: "4 rejected"}
	w.pass(120, st)
	w.said(t)
	if why := w.why(st); why != "" {
		t.Errorf("health says %q", why)
	}
}

func TestEndpointsAreNamedByHostAlone(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"http://collector:4318": "collector:4318", "https://otel.example/tenant/7?key=x": "otel.example", "collector:4317": "collector:4317",
	} {
		if got := hostOf(endpoint); got != want {
			t.Errorf("hostOf(%s) = %s, want %s", endpoint, got, want)
		}
	}
}

func TestADriverThatNeverWasIsNotLost(t *testing.T) {
	t.Parallel()
	s := NewStore(correlate.New(correlate.DefaultConfig()), true)
	l := newGPULog(s, slog.New(slog.DiscardHandler), func() timeline.Instant { return 1 })
	why := "helper ended: " + nvml.ErrNoLibrary.Error()
	lose := func() string {
		l.AddEvent(timeline.Event{At: 1, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU, Detail: why})
		return s.Health().Why
	}
	if got, want := lose(), "counters were never read: no NVIDIA driver: "+why; got != want {
		t.Errorf("from the start: %q, want %q", got, want)
	}
	l.SetGPUs([]timeline.GPU{{UUID: "GPU-0"}})
	if got := lose(); got != why {
		t.Errorf("after GPUs were listed: %q, want %q", got, why)
	}
}
