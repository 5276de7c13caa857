package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/record"
)

const small = `seed 3
duration 6s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=6 prompt=50..80 output=40..60 0s..5s
`

// kept keeps the cells and phases that an agent says.
type kept struct {
	mu     sync.Mutex
	cells  []correlate.Cell
	phases []correlate.Phase
}

func (k *kept) Consume(_ context.Context, b *exporters.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cells = append(k.cells, b.Cells...)
	k.phases = append(k.phases, b.Phases...)
	return nil
}

// One agent with everything in it, from its start to its end.
func TestAWholeAgentTellsRecordsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w, otlp, live := newWorld(t, small), newCollector(t), &kept{}
	cfg := w.config(t)
	cfg.OTLP.Disabled, cfg.OTLP.Endpoint.URL = false, otlp.URL
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg), Sinks: []exporters.Sink{live}, Simulated: true})
	played := w.play(t, "http://"+ag.doors.Proxy)

	var h struct {
		Status    string   `json:"status"`
		Why       []string `json:"why"`
		Simulated bool     `json:"simulated"`
		GPUs      []struct {
			State string `json:"state"`
		} `json:"gpus"`
		Targets []timeline.Target `json:"targets"`
	}
	must(t, json.Unmarshal([]byte(ag.get(t, "/healthz")), &h))
	if h.Status != "ok" || !h.Simulated || len(h.GPUs) != 1 || h.GPUs[0].State != "ok" || len(h.Targets) != 1 {
		t.Errorf("health %+v", h)
	}
	page := ag.get(t, "/metrics")
	for _, series := range []string{
		"tpotscope_build_info{", "tpotscope_gpu_dram_bytes_total{", "tpotscope_gpu_covered_seconds_total{",
		`tpotscope_decode_seconds_total{bound="memory"`, `tpotscope_tokens_total{`, "tpotscope_ring_drops_total{",
	} {
		if !strings.Contains(page, "\n"+series) {
			t.Errorf("/metrics lacks %s", series)
		}
	}
	if took := ag.stop(t); took > 4*time.Second {
		t.Errorf("the end took %v", took)
	}
	for _, text := range []string{`msg="agent stops`, `msg="agent stopped" ran=`, "recording=" + cfg.RecordDir() + " rows=", "exports_lost=0"} {
		if n := ag.log.count(text); n != 1 {
			t.Errorf("the log says %d times %s, want once", n, text)
		}
	}

	if spans, some := otlp.received("tpotscope.gpu.dram"); spans != len(played) || !some {
		t.Errorf("%d spans came for %d requests; metrics: %v", spans, len(played), some)
	}
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	for _, door := range []string{ag.doors.Metrics, ag.doors.Proxy} {
		if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", door); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial %s after the end: %v, want it refused", door, err)
		}
	}
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	requests, tokens, sent := 0, 0, 0
	for q, err := range r.Requests() {
		must(t, err)
		if q.Status != timeline.StatusOK || q.Target != "main" {
			t.Errorf("request %s: %v of target %q", q.ID, q.Status, q.Target)
		}
		requests++
		tokens += q.OutputTokens
	}
	for i := range played {
		sent += played[i].Tokens
	}
	if requests != len(played) || tokens != sent {
		t.Errorf("%d requests with %d tokens are recorded, the clients had %d with %d", requests, tokens, len(played), sent)
	}
	for _, c := range r.Verify() {
		if c.Condition != record.Complete {
			t.Errorf("%v, want it complete", c)
		}
	}
	compareReplay(t, r, live)
}

// compareReplay holds what was said live against what a replay of the recording says. They may differ in cells in
// which the agent did not yet know its engine or its GPUs, since a recording knows both from its start: such are the
// cells that touch the first two seconds. All others are the same.
func compareReplay(t *testing.T, r *record.Reader, live *kept) {
	t.Helper()
	type key struct {
		target string
		start  timeline.Instant
	}
	again, phases := map[key]correlate.Cell{}, map[string]correlate.Phase{}
	_, err := replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		for _, c := range o.Cells {
			again[key{c.Target, c.Span.Start}] = c
		}
		for _, p := range o.Phases {
			phases[p.Request.ID] = p
		}
		return nil
	}, nil)
	must(t, err)
	judged, first := 0, live.cells[0].Span.Start
	for _, c := range live.cells {
		if !c.Decode || c.CoveredS == 0 || c.Span.Start < first.Add(2*time.Second) {
			continue
		}
		judged++
		other, ok := again[key{c.Target, c.Span.Start}]
		v, u := &c.Verdict, &other.Verdict
		if !ok || v.Label != u.Label || v.Reason != u.Reason || v.Confidence != u.Confidence || c.Level != other.Level {
			t.Errorf("cell at %v: live %s (%s, %v), replayed %s (%s, %v)", c.Span.Start, v.Label, v.Reason, v.Confidence, u.Label, u.Reason, u.Confidence)
		}
		sameShares(t, v.Shares, u.Shares)
		if c.Tokens != other.Tokens || c.Windows != other.Windows || math.Abs(c.CoveredS-other.CoveredS) > 1e-9 {
			t.Errorf("cell at %v: live %v tokens, %d windows, replayed %v, %d", c.Span.Start, c.Tokens, c.Windows, other.Tokens, other.Windows)
		}
	}
	if judged < 2 {
		t.Errorf("%d cells could be compared, want more", judged)
	}
	for _, p := range live.phases {
		if other, ok := phases[p.Request.ID]; !ok || p.Latency.N != other.Latency.N || p.Latency.TPOT != other.Latency.TPOT {
			t.Errorf("request %s: live %v, replayed %v", p.Request.ID, p.Latency.TPOT, other.Latency.TPOT)
		}
	}
}

func sameShares(t *testing.T, a, b timeline.Shares) {
	t.Helper()
	for _, d := range []float64{a.Memory - b.Memory, a.Compute - b.Compute, a.Launch - b.Launch, a.Host - b.Host, a.Other - b.Other} {
		if math.Abs(d) > 1e-9 {
			t.Errorf("shares %+v, replayed %+v", a, b)
			return
		}
	}
}

// A collector that takes connections and never answers must not hold up the end.
func TestAStuckCollectorDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	release, asked := make(chan struct{}), make(chan struct{}, 1)
	stuck := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
	}))
	t.Cleanup(func() { close(release); stuck.Close() })
	w := newWorld(t, small)
	cfg := w.config(t)
	cfg.OTLP.Disabled, cfg.OTLP.Endpoint.URL, cfg.OTLP.Interval = false, stuck.URL, time.Second
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was sent")
	}
	if took := ag.stop(t); took > 8*time.Second {
		t.Errorf("the end took %v, want less than 8 s", took)
	}
	if ag.log.count("exports_lost=") != 1 || ag.log.count("exports_lost=0") != 0 {
		t.Error("the log does not say that exports were lost at the end")
	}
}

func TestAReceiverThatIsNotThereIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, small)
	cfg := w.config(t)
	cfg.OTLP.Disabled, cfg.OTLP.Endpoint.URL, cfg.OTLP.Interval, cfg.OTLP.Flush = false, "http://127.0.0.1:9", time.Second, 0
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	const line = `level=WARN msg="exports fail" signal=metrics endpoint=127.0.0.1:9 cause=`
	until(t, 20*time.Second, "the warning", func() bool { return ag.log.count(line) == 1 })
	for _, want := range []string{`"signal": "metrics"`, `"endpoint": "127.0.0.1:9"`, `"failing_s": `, `"sent": 0`} {
		if page := ag.get(t, "/healthz"); !strings.Contains(page, want) {
			t.Errorf("health lacks %s:\n%s", want, page)
		}
	}
	ag.stop(t)
	if n := ag.log.count(line); n != 1 {
		t.Errorf("the log says it %d times, want once", n)
	}
}

// gone is a source whose sampler is lost at once.
type gone struct{}

func (gone) Run(ctx context.Context, sink timeline.GPUSink) error {
	sink.SetGPUs([]timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true}})
	sink.AddCapability(timeline.Capability{GPU: 0, Call: "dram_util", State: timeline.StateNoPermission, Detail: "ask an admin"})
	sink.AddEvent(timeline.Event{At: 1, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU, Detail: "it hangs"})
	<-ctx.Done()
	return nil
}

func TestHealthSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		deps agent.Deps
		want []string
	}{
		"a lost sampler, and what needs a permission": {agent.Deps{Counters: gone{}}, []string{
			`"status": "degraded"`, "counters stopped: it hangs", `"call": "dram_util"`, `"state": "no_permission"`, `"detail": "ask an admin"`,
		}},
		"no counters at all": {agent.Deps{}, []string{`"status": "degraded"`, "no counters: nvml.source is off", `"gpus": []`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ag := start(t, quiet(t), tt.deps)
			page := ""
			until(t, 5*time.Second, "the state", func() bool {
				page = ag.get(t, "/healthz")
				return strings.Contains(page, tt.want[1])
			})
			for _, w := range tt.want {
				if !strings.Contains(page, w) {
					t.Errorf("health lacks %s:\n%s", w, page)
				}
			}
			ag.stop(t)
		})
	}
}

func TestAGPUThatFallsSilentIsStale(t *testing.T) {
	t.Parallel()
	src := sourceFunc(func(ctx context.Context, sink timeline.GPUSink) error {
		sink.SetGPUs([]timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true}})
		<-ctx.Done()
		return nil
	})
	ag := start(t, quiet(t), agent.Deps{Counters: src})
	if page := ag.get(t, "/healthz"); !strings.Contains(page, `"status": "ok"`) {
		t.Errorf("a GPU that had no time to be read is not stale yet:\n%s", page)
	}
	until(t, 6*time.Second, "the state", func() bool {
		return strings.Contains(ag.get(t, "/healthz"), "no counters of GPU")
	})
	ag.stop(t)
}

type sourceFunc func(context.Context, timeline.GPUSink) error

func (f sourceFunc) Run(ctx context.Context, sink timeline.GPUSink) error { return f(ctx, sink) }

func TestATakenPortIsAnErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, taken.Close()) })
	w := newWorld(t, small)
	cfg := w.config(t)
	cfg.Metrics.Listen = taken.Addr().String()
	cfg.OTLP.Disabled, cfg.OTLP.Endpoint.URL = false, "http://127.0.0.1:9"
	_, err = tryStart(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	if err == nil || !strings.HasPrefix(err.Error(), "open metrics door: ") || !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("error %v, want the metrics door's", err)
	}
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
	if _, err := os.Stat(cfg.RecordDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty recording is left: %v", err)
	}
}

func TestASecondAgentOnASocketIsRefused(t *testing.T) {
	t.Parallel()
	first := quiet(t)
	ag := start(t, first, agent.Deps{})
	second := quiet(t)
	second.Socket = first.Socket
	_, err := tryStart(t, second, agent.Deps{})
	want := "open agent socket: an agent runs on " + first.Socket + " already"
	if err == nil || err.Error() != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	// Not even one that is told to end while it starts takes the socket away.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	third, err := agent.New(ctx, second, agent.Deps{}, discard())
	must(t, err)
	if err := third.Run(ctx); err == nil {
		t.Error("the third agent ran")
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", first.Socket)
	must(t, err)
	must(t, conn.Close())
	ag.stop(t)
}

func TestADeadSocketIsReplacedAndAnotherFileIsNot(t *testing.T) {
	t.Parallel()
	cfg := quiet(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	must(t, dead.Close())
	start(t, cfg, agent.Deps{}).stop(t)

	other := quiet(t)
	must(t, os.WriteFile(other.Socket, []byte("mine"), 0o600))
	if _, err := tryStart(t, other, agent.Deps{}); err == nil || !strings.HasSuffix(err.Error(), "is there and is no socket") {
		t.Errorf("error %v, want that it is no socket", err)
	}
	if b, err := os.ReadFile(other.Socket); err != nil || string(b) != "mine" {
		t.Errorf("the file was touched: %q, %v", b, err)
	}
}

// What was not trusted while it was measured is not trusted in a replay either.
func TestAReplayTrustsWhatWasTrusted(t *testing.T) {
	t.Parallel()
	w, live := newWorld(t, small), &kept{}
	cfg := w.config(t)
	counters := w.counters(&cfg)
	src := sourceFunc(func(ctx context.Context, sink timeline.GPUSink) error {
		time.AfterFunc(500*time.Millisecond, func() {
			sink.AddCapability(timeline.Capability{Call: timeline.DRAMUtil.String(), State: timeline.StateUntrusted, Detail: "a test"})
		})
		return counters.Run(ctx, sink)
	})
	ag := start(t, cfg, agent.Deps{Counters: src, Sinks: []exporters.Sink{live}, Simulated: true})
	w.play(t, "http://"+ag.doors.Proxy)
	ag.stop(t)
	reasons := func(cells []correlate.Cell) map[string]int {
		m := map[string]int{}
		for i := range cells {
			m[cells[i].Verdict.Reason]++
		}
		return m
	}
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	var again []correlate.Cell
	_, err = replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		again = append(again, o.Cells...)
		return nil
	}, nil)
	must(t, err)
	said, replayed := reasons(live.cells)["untrusted counter"], reasons(again)["untrusted counter"]
	if said < 2 || replayed < said-1 {
		t.Errorf("live %v, replayed %v", reasons(live.cells), reasons(again))
	}
}
