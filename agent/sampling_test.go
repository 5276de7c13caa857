package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// shaky is a source whose GPU tells a critical error once it is told to.
type shaky struct {
	fail chan struct{}

	mu     sync.Mutex
	bursts []time.Duration
}

func (f *shaky) Run(ctx context.Context, sink timeline.GPUSink) error {
	sink.SetGPUs([]timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true}})
	select {
	case <-f.fail:
		sink.AddEvent(timeline.Event{At: 1, Kind: timeline.EventXid, Detail: "Xid 79"})
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

func (f *shaky) Burst(d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bursts = append(f.bursts, d)
	return nil
}

func (f *shaky) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bursts)
}

func TestBurstsBeginAtAnErrorAndWhenAskedForAndAreRecorded(t *testing.T) {
	t.Parallel()
	src := &shaky{fail: make(chan struct{})}
	cfg := quiet(t)
	ag := start(t, cfg, agent.Deps{Counters: src})
	must(t, burst.Ask(t.Context(), cfg.Socket, time.Second))
	if src.count() != 1 {
		t.Fatalf("%d bursts after one was asked for", src.count())
	}
	until(t, 5*time.Second, "the end of the burst", func() bool {
		return !strings.Contains(ag.get(t, "/healthz"), `"running_s"`)
	})
	close(src.fail)
	until(t, 10*time.Second, "a burst at the error", func() bool { return src.count() == 2 })
	if page := ag.get(t, "/healthz"); !strings.Contains(page, `"last_why": "the driver told a critical error"`) {
		t.Errorf("health does not tell of the burst:\n%s", page)
	}
	if n := ag.log.count(`msg="burst begins"`); n != 2 {
		t.Errorf("the log tells of %d bursts, want 2", n)
	}
	ag.stop(t)
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	var why []string
	for e, err := range r.Events() {
		must(t, err)
		if e.Kind == timeline.EventBurst {
			why = append(why, e.Detail)
		}
	}
	if got := strings.Join(why, "; "); got != "1s: asked for; 30s: the driver told a critical error" {
		t.Errorf("recorded bursts: %s", got)
	}
}

func TestASourceThatKnowsNoBurstsSaysSo(t *testing.T) {
	t.Parallel()
	cfg := quiet(t)
	ag := start(t, cfg, agent.Deps{})
	if err := burst.Ask(t.Context(), cfg.Socket, time.Second); err == nil || !strings.Contains(err.Error(), burst.ErrNoSource.Error()) {
		t.Errorf("Ask() = %v, want %v", err, burst.ErrNoSource)
	}
	ag.stop(t)
}
