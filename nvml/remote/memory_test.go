package remote

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func TestHelperThatLeaksEndsInOrderAndSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		holds, grows uint64 // MiB, and MiB a second
		ended        bool
	}{"one that leaks": {20, 4, true}, "one that does not": {20, 0, false}, "one that holds much": {400, 1, false}, "one that holds much and leaks": {270, 6, true}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out := newOutbox(io.Discard)
			written := make(chan error, 1)
			go func() { written <- out.run() }()
			lib := &closing{Library: sim.NewLibrary(sim.Waves{Count: 1}, sim.Options{}, now)}
			open := func() (nvml.Library, error) { return lib, nil }
			held := func() uint64 { return c.holds<<20 + uint64(time.Since(start).Seconds()*float64(c.grows<<20)) }
			err := serve(ctx, open, nvml.DefaultConfig(), out, nil, now, held)
			took := time.Since(start)
			out.close()
			if err := <-written; err != nil {
				t.Error(err)
			}
			if errors.Is(err, errMemory) != c.ended || !lib.closed {
				t.Errorf("%s: %v after %v, driver closed %v", name, err, took, lib.closed)
			}
			if c.ended && (took > 75*time.Second || !strings.Contains(err.Error(), "MiB: the helper holds too much memory")) {
				t.Errorf("%s: %v after %v, want it a minute after it began", name, err, took)
			}
		})
	}
	if held := residentMemory(); held < 1<<20 || held > 1<<40 {
		t.Errorf("this process holds %d bytes", held)
	}
}

// closing is a library that knows whether it was closed.
type closing struct {
	*sim.Library
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return c.Library.Close()
}
