package agent

import (
	"bytes"
	"fmt"
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

	// What was read shortly before the loss is no return, and the next helper says the same in other words.
	pass(time.Second, 0, 1)
	out.Reset()
	event(timeline.EventGPULost, 1, "clocks: gpu is lost")
	pass(800*time.Millisecond, 0)
	event(timeline.EventGPULost, 1, "windows: gpu is lost")
	pass(100*time.Millisecond, 0)
	said(`msg="gpu is lost" gpu=1 cause="clocks: gpu is lost"`)
	pass(time.Second, 0, 1)
	said(`msg="gpu counters are back" gpu=1`)
	now = now.Add(2 * time.Minute)
	event(timeline.EventGPULost, 1, "clocks: gpu is lost")
	said(`msg="gpu is lost" gpu=1 cause="clocks: gpu is lost"`)
}

func TestTheRateIsOfWhatWasHandedOn(t *testing.T) {
	l := newGPULog(NewStore(correlate.New(correlate.DefaultConfig()), false), slog.New(slog.DiscardHandler), nil)
	now := timeline.Instant(time.Hour)
	read := func(c timeline.Counter, every, d time.Duration) {
		for end := now.Add(d); now < end; {
			next := now.Add(every)
			s := timeline.Sample{GPU: 1, Over: timeline.Span{Start: now, End: next}}
			s.Put(c, 0.5)
			l.AddSample(&s)
			now = next
		}
	}
	check := func(what string, want float64, known bool) {
		t.Helper()
		if got, ok := l.rate(1, now); ok != known || got < 0.95*want || got > 1.05*want {
			t.Errorf("%s: %v a second, known %v; want %v, %v", what, got, ok, want, known)
		}
	}
	check("nothing yet", 0, false)
	read(timeline.SMClock, 100*time.Millisecond, 5*time.Second)
	check("a GPU without windows", 10, true)
	read(timeline.DRAMUtil, 125*time.Millisecond, 15*time.Second)
	check("its windows alone", 8, true)
	read(timeline.SMClock, 100*time.Millisecond, 5*time.Second)
	check("half a rate where half of the windows were dropped", 4, true)
	read(timeline.SMClock, 100*time.Millisecond, 10*time.Second)
	check("none", 0, true)
	read(timeline.DRAMUtil, 125*time.Millisecond, 20*time.Second)
	check("all again", 8, true)
	if n := len(l.paces[1].ends); n > 90 {
		t.Errorf("%d readings are kept for ten seconds of eight", n)
	}
}

// A driver that makes numbers up must not fill the log, and what it tells first is still told by its number.
func TestErrorsOfManyNumbersDoNotFloodTheLog(t *testing.T) {
	var out bytes.Buffer
	now := timeline.Instant(time.Hour)
	log := slog.New(slog.NewTextHandler(&out, nil))
	l := newGPULog(NewStore(correlate.New(correlate.DefaultConfig()), false), log, func() timeline.Instant { return now })
	for i := range 1000 {
		now = now.Add(20 * time.Millisecond)
		l.AddEvent(timeline.Event{At: now, Kind: timeline.EventXid, GPU: 0, Detail: fmt.Sprintf("Xid %d", i+1)})
	}
	l.AddEvent(timeline.Event{At: now, Kind: timeline.EventXid, GPU: 1, Detail: "Xid 79"})
	text := out.String()
	if n := strings.Count(text, "\n"); n > maxNumbered+2 || !strings.Contains(text, `"Xid 16"`) || !strings.Contains(text, `gpu=1 cause="Xid 79"`) {
		t.Errorf("a thousand errors in twenty seconds are %d lines:\n%.1500s", n, text)
	}
}
