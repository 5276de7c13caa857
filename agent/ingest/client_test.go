package ingest_test

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/clock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestAnAgentMayComeLateAndGoBetween(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	h := host{time.Now()}
	var got journal
	c := reporter(t, socket, h, func(cfg *ingest.ClientConfig) { cfg.Rows = 64 })
	end := run(t, c)
	ref := uint64(0)
	play := func() {
		for range 200 {
			ref++
			at := h.now() - timeline.Instant(time.Second)
			r := full(ref, at)
			c.OpenRequest(&r)
			for _, e := range events(ref, at) {
				c.AddToken(e)
			}
			c.CloseRequest(&r)
		}
	}
	play()
	stop := serve(t, socket, config(h, &got))
	eventually(t, "the first requests arrive", func() bool { _, _, n := got.count(); return n == 200 })
	stop()
	play()
	stop = serve(t, socket, config(h, &got))
	eventually(t, "the next requests arrive", func() bool { _, _, n := got.count(); return n == 400 })
	play()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	stop()
	o, n, cl := got.count()
	if o != 600 || n != 1800 || cl != 600 {
		t.Errorf("%d opened, %d tokens, %d closed; want 600, 1800, 600", o, n, cl)
	}
	inOrder(t, got.lines)
	if tokens, requests := c.Dropped(); tokens+requests != 0 {
		t.Errorf("dropped %d tokens, %d requests", tokens, requests)
	}
}

func TestWhatDoesNotFitIsCountedAndTokensGoFirst(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	c := reporter(t, socket, h, func(cfg *ingest.ClientConfig) { cfg.MaxTokens, cfg.MaxRequests = 10, 3 })
	now := h.now()
	for ref := uint64(1); ref <= 5; ref++ {
		c.OpenRequest(&timeline.Request{Ref: ref, Sent: now})
	}
	for i := range 15 {
		c.AddToken(timeline.TokenEvent{Ref: uint64(1 + i/8), At: now + 1, After: now + 1, Tokens: 1})
	}
	for ref := uint64(1); ref <= 3; ref++ {
		c.CloseRequest(&timeline.Request{Ref: ref, Sent: now, Done: now + 2})
	}
	if tokens, requests := c.Dropped(); tokens != 5 || requests != 2 {
		t.Errorf("dropped %d tokens and %d requests, want 5 and 2", tokens, requests)
	}
	var got journal
	serve(t, socket, config(h, &got))
	if err := run(t, c)(); err != nil {
		t.Fatal(err)
	}
	o, n, cl := got.count()
	if o != 3 || n != 10 || cl != 3 {
		t.Errorf("%d opened, %d tokens, %d closed; want 3, 10, 3", o, n, cl)
	}
	for _, r := range got.closed {
		if lossy := r.Flags&timeline.FlagEventsDropped != 0; lossy != (r.Ref == 2) {
			t.Errorf("request %d says that it lost tokens: %v", r.Ref, lossy)
		}
	}
}

func TestRunSaysWhatItCouldNotFlush(t *testing.T) {
	h := host{time.Now()}
	c := reporter(t, filepath.Join(t.TempDir(), "nobody"), h, func(cfg *ingest.ClientConfig) { cfg.Flush = 50 * time.Millisecond })
	c.OpenRequest(&timeline.Request{Ref: 1, Sent: 1})
	c.AddToken(timeline.TokenEvent{Ref: 1, At: 2, Tokens: 1})
	err := run(t, c)()
	if err == nil || !strings.Contains(err.Error(), "flush 2 rows") {
		t.Errorf("Run() = %v, want it to name 2 rows", err)
	}
}

func TestARefusedReportIsDroppedAndCounted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	c := reporter(t, socket, h, nil)
	end := run(t, c)
	at := h.now()
	c.CloseRequest(&timeline.Request{Ref: 1, Sent: at, Done: at - 1})
	eventually(t, "the refusal is counted", func() bool { _, n := c.Dropped(); return n == 1 })
	c.CloseRequest(&timeline.Request{Ref: 2, Sent: at, Done: at})
	eventually(t, "the next one arrives", func() bool { _, _, n := got.count(); return n == 1 })
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// One request that the agent would refuse does not take the others of its report with it.
func TestOneOddRequestIsDroppedAlone(t *testing.T) {
	h, j := host{start: time.Now()}, &journal{}
	socket := filepath.Join(t.TempDir(), "s")
	stop := serve(t, socket, config(h, j))
	defer stop()
	c := reporter(t, socket, h, nil)
	end := run(t, c)
	for ref := uint64(1); ref <= 9; ref++ {
		r := full(ref, h.now())
		if ref == 5 {
			r.Model, r.MaxTokens, r.Choices = "a\nb", 1<<31-1, 5000
		}
		c.OpenRequest(&r)
		for _, e := range events(ref, h.now()) {
			if ref == 6 {
				e.Tokens, e.Choice = 1<<30, 1<<20
			}
			c.AddToken(e)
		}
		c.CloseRequest(&r)
	}
	eventually(t, "eight requests", func() bool { _, _, closed := j.count(); return closed == 8 })
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, requests := c.Dropped(); requests != 2 {
		t.Errorf("%d records dropped, want the two of the odd request", requests)
	}
}

func TestAReporterOnAnotherClockIsAligned(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	stop := serve(t, socket, config(h, &got))
	const offset = 3200 * time.Millisecond // the peer's clock is behind
	peer := func() timeline.Instant { return h.now().Add(-offset) }
	c := reporter(t, socket, h, func(cfg *ingest.ClientConfig) { cfg.BootID, cfg.Now = "another-boot", peer })
	end := run(t, c)
	send := func(ref uint64) timeline.Instant {
		at := h.now() - timeline.Instant(time.Second)
		r := full(ref, at.Add(-offset))
		r.ClockBound = 0
		c.OpenRequest(&r)
		c.CloseRequest(&r)
		return at
	}
	at := send(1)
	eventually(t, "the request arrives", func() bool { _, _, n := got.count(); return n == 1 })
	// An agent that starts again knows no exchange, and is told anew.
	stop()
	serve(t, socket, config(h, &got))
	send(2)
	eventually(t, "the request arrives", func() bool { _, _, n := got.count(); return n == 2 })
	if err := end(); err != nil {
		t.Fatal(err)
	}
	r := got.closed[0]
	if off := r.Sent.Sub(at); r.ClockBound <= 0 || off > r.ClockBound || off < -r.ClockBound {
		t.Errorf("sent is %v off with a bound of %v", off, r.ClockBound)
	}
	if d := r.Last.Sub(r.First); d < 7*time.Millisecond-10*time.Microsecond || d > 7*time.Millisecond+10*time.Microsecond {
		t.Errorf("decode took %v, want 7ms", d)
	}
}

// counting is an aligner that counts what it is told.
type counting struct {
	aligner
	told *atomic.Int64
}

func (c *counting) Add(x ingest.Exchange) {
	c.told.Add(1)
	c.aligner.Add(x)
}

func TestAnAgentWithoutABootIsAskedOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	var told atomic.Int64
	cfg := config(h, &got)
	cfg.Anchor = func() timeline.Anchor { return timeline.Anchor{Mono: h.now()} }
	cfg.Aligner = func(ingest.Source) ingest.Aligner {
		return &counting{aligner{est: clock.NewEstimator(clock.DefaultConfig())}, &told}
	}
	serve(t, socket, cfg)
	c := reporter(t, socket, h, nil)
	const reports = 5
	for ref := range uint64(reports) {
		c.OpenRequest(&timeline.Request{Ref: ref + 1, Sent: h.now()})
		if err := c.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t, c)(); err != nil {
		t.Fatal(err)
	}
	// Eight to begin with; then each answer is one, and rides on the report after it.
	if n := told.Load(); n != 8+reports-1 {
		t.Errorf("the agent was told of %d exchanges, want %d", n, 8+reports-1)
	}
}

func TestWithoutAnAlignerOtherClocksAreRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	cfg := config(h, &got)
	cfg.Aligner = nil
	serve(t, socket, cfg)
	code, body := curl(t, socket, "Submit", `{"origin":{"source":"s","clock":2,"boot_id":"other"},"requests":[{"sent_ns":5}]}`)
	if code/100 == 2 || !strings.Contains(body, "origin.boot_id") {
		t.Errorf("answer %d %s", code, body)
	}
}

func TestManyReportAtOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	c := reporter(t, socket, h, func(cfg *ingest.ClientConfig) { cfg.Rows = 500 })
	end := run(t, c)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				ref := uint64(g*1000 + i + 1)
				at := h.now()
				c.OpenRequest(&timeline.Request{Ref: ref, Sent: at})
				for k := range 20 {
					c.AddToken(timeline.TokenEvent{Ref: ref, At: at + timeline.Instant(k), Tokens: 1})
				}
				c.CloseRequest(&timeline.Request{Ref: ref, Sent: at, Done: at + 20})
			}
		})
	}
	wg.Wait()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if o, n, cl := got.count(); o != 800 || n != 16000 || cl != 800 {
		t.Errorf("%d opened, %d tokens, %d closed; want 800, 16000, 800", o, n, cl)
	}
	inOrder(t, got.lines)
}

func TestClientConfigNamesEveryFault(t *testing.T) {
	_, err := ingest.NewClient(ingest.ClientConfig{URL: "tcp://x"})
	for _, want := range []string{"agent url", "clock", "origin.source", "rows", "max tokens", "interval", "flush"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewClient() = %v, want it to name %s", err, want)
		}
	}
}

// BenchmarkPath measures one token from the client's buffer to the agent's sink.
func BenchmarkPath(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "s")
	h := host{time.Now()}
	n := &counter{}
	serve(b, socket, config(h, n))
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process, cfg.BootID, cfg.Now = "unix:"+socket, "bench", "p", bootID, h.now
	cfg.Interval, cfg.MaxTokens, cfg.Rows = 200*time.Millisecond, 1<<22, 2560
	c, err := ingest.NewClient(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	at := h.now()
	i := 0
	for b.Loop() {
		i++
		c.AddToken(timeline.TokenEvent{Ref: uint64(1 + i%256), At: at + timeline.Instant(i), After: at + timeline.Instant(i), Tokens: 1, Source: timeline.CountUsage, Kind: timeline.KindContent, Stamp: timeline.StampKernel})
		if i%2560 == 0 {
			if err := c.Drain(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// counter is a sink that counts.
type counter struct{ n int }

func (c *counter) OpenRequest(*timeline.Request)  {}
func (c *counter) AddToken(timeline.TokenEvent)   { c.n++ }
func (c *counter) CloseRequest(*timeline.Request) {}
