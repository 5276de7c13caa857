package correlate_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// patchy makes calls of two targets, one without any GPU, that are told of in patches: there are holes of seconds and
// of minutes in which nothing comes, of one target or of both, and requests that stay in flight across them. Holes between
// scrapes are shorter than lateness or too long for a line over them: what came in between would be known too late.
func patchy(seed uint64) []call {
	rng := rand.New(rand.NewPCG(seed, 21))
	var calls []call
	add := func(t timeline.Instant, do func(e *correlate.Engine)) { calls = append(calls, call{t, do}) }
	now := t0
	ref := uint64(0)
	engine := rng.IntN(3) > 0
	for range 6 {
		gpu := rng.IntN(3) > 0
		end := now.Add(time.Duration(1+rng.IntN(9)) * time.Second)
		ref++
		r := timeline.Request{Ref: ref, Target: "other", Streaming: true, Client: "proxy", Sent: now, PromptKnown: true, PromptTokens: 100}
		if rng.IntN(2) > 0 {
			add(now, func(e *correlate.Engine) { e.Open(&r) })
			at := now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			r := r
			r.First, r.Events = at, 1
			for k := range 1 + rng.IntN(40) {
				ev := timeline.TokenEvent{Ref: r.Ref, At: at, After: at, Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent}
				add(at, func(e *correlate.Engine) { e.Token(ev) })
				r.Last, r.Done, r.Events, r.OutputTokens = at, at, k+1, k+1
				at = at.Add(time.Duration(1+rng.IntN(900)) * time.Millisecond)
			}
			r.Counted, r.FirstTokens, r.Status, r.Choices = timeline.CountIDs, 1, timeline.StatusOK, 1
			add(r.Done, func(e *correlate.Engine) { e.Close(&r) })
		}
		for i := 0; now < end; i++ {
			next := now.Add(110 * time.Millisecond)
			if gpu {
				s := timeline.Sample{Over: timeline.Span{Start: now, End: next}, Slack: 1e6}
				s.Put(timeline.DRAMUtil, 0.8)
				s.Put(timeline.TensorUtil, 0.1)
				add(next, func(e *correlate.Engine) { e.AddSample(&s) })
			}
			if engine && i%9 == 0 {
				s := running(next, int(next.Sub(t0)/time.Second), 4)
				add(next, func(e *correlate.Engine) { e.AddEngine(s) })
			}
			now = next
		}
		switch hole := time.Duration(rng.ExpFloat64() * 10e9); {
		case !engine:
			now = now.Add(hole)
		case rng.IntN(2) > 0:
			now = now.Add(40*time.Second + hole)
		default:
			now = now.Add(hole % (800 * time.Millisecond))
		}
		if rng.IntN(6) == 0 {
			now = now.Add(20 * time.Minute)
		}
	}
	return calls
}

// playCalls makes the calls in order of time, and in between closes cells as far as lateness allows, every step.
func playCalls(calls []call, step time.Duration) correlate.Output {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "vllm", GPUs: []string{uuid}}, {Name: "other"}}
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100()})
	var out correlate.Output
	next := t0
	for _, c := range calls {
		for step > 0 && c.at >= next {
			e.Advance(&out, next.Add(-cfg.Lateness))
			next = next.Add(step)
		}
		c.do(e)
	}
	e.Flush(&out)
	return out
}

// TestHolesDoNotDependOnTheCadence holds live analysis, which closes cells all along, to what a replay says that closes
// them seldom or at the end, for data with holes.
func TestHolesDoNotDependOnTheCadence(t *testing.T) {
	seeds := uint64(6)
	if *full {
		seeds = 200
	}
	for seed := range seeds {
		calls := patchy(seed)
		byTime(calls)
		live := playCalls(calls, 500*time.Millisecond)
		a, err := json.Marshal(live.Cells)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []time.Duration{70 * time.Millisecond, 3 * time.Second, 47 * time.Second, 0} {
			got := playCalls(calls, step)
			b, err := json.Marshal(got.Cells)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(a, b) {
				continue
			}
			for i := range min(len(live.Cells), len(got.Cells)) {
				if diff := cmp.Diff(live.Cells[i], got.Cells[i]); diff != "" {
					t.Fatalf("seed %d, step %v, cell %d of %d and %d (-live +other):\n%s", seed, step, i, len(live.Cells), len(got.Cells), diff)
				}
			}
			t.Fatalf("seed %d, step %v: %d cells live, %d", seed, step, len(live.Cells), len(got.Cells))
		}
	}
}
