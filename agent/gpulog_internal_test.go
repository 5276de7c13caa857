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
)

func TestWhatTheDriverDoesIsSaidOnceAndGapsOnlyIfTheyLast(t *testing.T) {
	var out bytes.Buffer
	now := timeline.Instant(time.Hour)
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: plain}))
	l := newGPULog(NewStore(correlate.New(correlate.DefaultConfig()), false), log, func() timeline.Instant { return now })
	event := func(kind timeline.EventKind, gpu int, detail string) {
		l.AddEvent(timeline.Event{At: now, Kind: kind, GPU: gpu, Detail: detail})
	}
	read := map[int]timeline.Instant{}
	pass := func(d time.Duration, gpus ...int) {
		now = now.Add(d)
		for _, gpu := range gpus {
			read[gpu] = now
		}
		l.look(read)
	}
	said := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(strings.Join(want, "\n"), strings.TrimSpace(out.String())); diff != "" {
			t.Errorf("log (-want +have):\n%s", diff)
		}
		out.Reset()
	}
	event(timeline.EventGap, 0, "no snapshot for 310ms")
	pass(time.Second, 0, 1)
	said()

	event(timeline.EventGap, 0, "it hangs for 2s")
	event(timeline.EventGap, 1, "it hangs for 3s")
	pass(time.Second)
	pass(time.Second)
	said(`msg="gpu counters are missing" gpus="[0 1]" cause="it hangs for 2s"`)
	pass(time.Second, 0, 1)
	said(`msg="gpu counters are back" gpus="[0 1]"`)

	for range 5 {
		event(timeline.EventXid, 1, "Xid 31")
	}
	event(timeline.EventXid, 1, "Xid 79")
	said(`msg="gpu tells an error" gpu=1 cause="Xid 31"`, `msg="gpu tells an error" gpu=1 cause="Xid 79"`)
	if e, ok := l.lastFault(1); !ok || e.Detail != "Xid 79" {
		t.Errorf("last fault %q", e.Detail)
	}
	now = now.Add(2 * time.Minute)
	event(timeline.EventXid, 1, "Xid 31")
	said(`msg="gpu tells an error" gpu=1 cause="Xid 31" repeated=4`)

	// The helper's loss has a line of its own.
	event(timeline.EventGap, 1, "no counters")
	event(timeline.EventSamplerLost, timeline.NoGPU, "it was killed")
	event(timeline.EventGap, 0, "it was killed")
	pass(2 * time.Second)
	said()
}
