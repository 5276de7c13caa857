package agent

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func newStore(keep bool) *Store { return NewStore(correlate.New(correlate.DefaultConfig()), keep) }

// Several observers number their requests alike, at the same time; each token stays with its own request.
func TestObserversMayNumberTheirRequestsAlike(t *testing.T) {
	const observers, requests, tokens = 8, 200, 5
	s := newStore(true)
	var wg sync.WaitGroup
	for o := range observers {
		sink := s.Source(fmt.Sprintf("target-%d", o))
		wg.Go(func() {
			for ref := uint64(1); ref <= requests; ref++ {
				r := timeline.Request{Ref: ref, ID: fmt.Sprintf("%d/%d", o, ref), Sent: timeline.Instant(ref)}
				sink.OpenRequest(&r)
				for range tokens {
					sink.AddToken(timeline.TokenEvent{Ref: ref, At: timeline.Instant(ref), Choice: int32(o)})
				}
				sink.CloseRequest(&r)
				if r.Ref != ref {
					t.Errorf("the observer's own record was changed")
				}
			}
		})
	}
	wg.Wait()
	got := s.drain(pending{})
	if len(got.opens) != observers*requests || len(got.requests) != observers*requests || len(got.tokens) != observers*requests*tokens {
		t.Fatalf("%d opens, %d requests, %d tokens", len(got.opens), len(got.requests), len(got.tokens))
	}
	byRef := map[uint64]*timeline.Request{}
	for i := range got.requests {
		r := &got.requests[i]
		if byRef[r.Ref] != nil {
			t.Fatalf("number %d was given twice", r.Ref)
		}
		byRef[r.Ref] = r
	}
	for i := range got.opens {
		if r := byRef[got.opens[i].Ref]; r == nil || r.ID != got.opens[i].ID || r.Target != "target-"+r.ID[:1] {
			t.Fatalf("open %+v belongs to %+v", got.opens[i], r)
		}
	}
	seen := map[uint64]int{}
	for _, e := range got.tokens {
		seen[e.Ref]++
		if r := byRef[e.Ref]; r == nil || !strings.HasPrefix(r.ID, fmt.Sprintf("%d/", e.Choice)) {
			t.Fatalf("token %+v belongs to %+v", e, r)
		}
	}
	for ref, n := range seen {
		if n != tokens {
			t.Fatalf("request %d has %d tokens, want %d", ref, n, tokens)
		}
	}
	if d := s.Drops(); d != (Drops{}) {
		t.Errorf("drops %+v", d)
	}
}

func TestARequestKeepsTheTargetThatItNames(t *testing.T) {
	s := newStore(true)
	s.Source("a").CloseRequest(&timeline.Request{Ref: 1, Target: "b"})
	if got := s.drain(pending{}).requests[0].Target; got != "b" {
		t.Errorf("target %q, want b", got)
	}
}

func TestManyTokensAtOnceAreTokensOneByOne(t *testing.T) {
	one, many := newStore(true), newStore(true)
	a, b := one.Source("x"), many.Source("x").(timeline.TokensSink)
	for _, sink := range []timeline.RequestSink{a, b} {
		sink.OpenRequest(&timeline.Request{Ref: 7, ID: "7", Sent: 1})
		sink.OpenRequest(&timeline.Request{Ref: 9, ID: "9", Sent: 1})
	}
	events := make([]timeline.TokenEvent, 0, 50)
	for i := range 50 {
		events = append(events, timeline.TokenEvent{Ref: uint64(7 + i%3), At: timeline.Instant(i + 2), Tokens: 1}) // 8 was never opened
	}
	for _, e := range events {
		a.AddToken(e)
	}
	b.AddTokens(events)
	if diff := cmp.Diff(one.drain(pending{}).tokens, many.drain(pending{}).tokens); diff != "" {
		t.Errorf("queued (-one by one +at once):\n%s", diff)
	}
	if one.engine.Stats() != many.engine.Stats() || one.engine.Stats().Tokens != 50 {
		t.Errorf("the engine took %+v one by one and %+v at once", one.engine.Stats(), many.engine.Stats())
	}
	b.AddTokens(make([]timeline.TokenEvent, maxPendingTokens+7))
	if got, want := many.Drops(), (Drops{Tokens: 7}); got != want || len(many.drain(pending{}).tokens) != maxPendingTokens {
		t.Errorf("drops %+v, want %+v", got, want)
	}
}

func TestFullQueuesDropAndCount(t *testing.T) {
	s := newStore(true)
	for i := range maxPendingOther + 3 {
		s.AddHost(&timeline.HostSample{Over: timeline.Span{Start: timeline.Instant(i), End: timeline.Instant(i + 1)}})
	}
	for i := range maxPendingSamples + 5 {
		s.AddSample(&timeline.Sample{Over: timeline.Span{Start: timeline.Instant(i), End: timeline.Instant(i + 1)}})
	}
	sink := s.Source("")
	for range maxPendingTokens + 7 {
		sink.AddToken(timeline.TokenEvent{Ref: 1, At: 1})
	}
	if got, want := s.Drops(), (Drops{Samples: 5, Tokens: 7, Other: 3}); got != want {
		t.Errorf("drops %+v, want %+v", got, want)
	}
	q := s.drain(pending{})
	if len(q.host) != maxPendingOther || q.host[0].Over.Start != 0 {
		t.Errorf("%d host samples are queued from %v on: the first ones stay", len(q.host), q.host[0].Over.Start)
	}
	s.AddHost(&timeline.HostSample{})
	if n := len(s.drain(q).host); n != 1 {
		t.Errorf("%d after the queue was drained, want 1", n)
	}
}

func TestWithoutARecordingNothingIsQueued(t *testing.T) {
	s := newStore(false)
	s.SetGPUs([]timeline.GPU{{UUID: "GPU-0"}})
	s.SetTargets([]timeline.Target{{Name: "main"}})
	s.AddSample(&timeline.Sample{})
	s.AddEngine(&timeline.EngineSample{})
	s.AddHost(&timeline.HostSample{})
	s.AddAnchor(timeline.Anchor{Mono: 1})
	s.AddEvent(timeline.Event{Kind: timeline.EventMarker, GPU: timeline.NoGPU})
	sink := s.Source("")
	sink.OpenRequest(&timeline.Request{Ref: 1})
	sink.AddToken(timeline.TokenEvent{Ref: 1})
	sink.CloseRequest(&timeline.Request{Ref: 1})
	q := s.drain(pending{})
	if n := len(q.samples) + len(q.engine) + len(q.host) + len(q.anchors) + len(q.opens) + len(q.requests) + len(q.tokens) + len(q.events); n != 0 || q.gpus != nil || q.targets != nil {
		t.Errorf("%d rows are queued, gpus %v, targets %v", n, q.gpus, q.targets)
	}
	var out correlate.Output
	if events := s.Flush(&out); len(events) != 1 || s.Anchor().Mono != 1 || len(s.GPUs()) != 1 {
		t.Errorf("events %v, anchor %v, gpus %v: what is told live is kept all the same", events, s.Anchor(), s.GPUs())
	}
}

func TestAGPUWithoutWindowsIsAsFreshAsItsReadings(t *testing.T) {
	s := newStore(false)
	s.SetGPUs([]timeline.GPU{{UUID: "GPU-0", GPM: true}, {UUID: "GPU-1"}})
	for gpu := range 2 {
		s.AddSample(&timeline.Sample{GPU: gpu, Has: timeline.GPM, Over: timeline.Span{Start: 1, End: 2}})
		s.AddSample(&timeline.Sample{GPU: gpu, Has: timeline.Set(timeline.Power), Over: timeline.Span{Start: 8, End: 9}})
	}
	if latest := s.Health().Latest; latest[0] != 2 || latest[1] != 9 {
		t.Errorf("latest %v, want 2 for the GPU with windows and 9 for the other", latest)
	}
}

func TestALostSamplerIsFoundAgain(t *testing.T) {
	s := newStore(false)
	s.AddEvent(timeline.Event{Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU, Detail: "gone"})
	if h := s.Health(); !h.Lost || h.Why != "gone" {
		t.Errorf("health %+v", h)
	}
	s.AddSample(&timeline.Sample{})
	if s.Health().Lost {
		t.Error("a sample came, and the sampler still counts as lost")
	}
}

// An engine that was started again with another model is another one; what the configuration says stays.
func TestTargetsFollowTheirEngine(t *testing.T) {
	s := newStore(true)
	known := newTargets([]timeline.Target{{Name: "a", EngineURL: "http://h:1", DType: "fp8"}, {Name: "b", EngineURL: "http://h:2/"}}, s)
	var told []timeline.Target
	tell := func(l []timeline.Target) { told = l }
	known.identify("a", scrape.Identity{Model: "short", Root: "org/first", DType: "bf16", TP: 2}, tell)
	known.identify("a", scrape.Identity{Model: "second", DType: "bf16"}, tell)
	if want := (timeline.Target{Name: "a", EngineURL: "http://h:1", DType: "fp8", Model: "second"}); fmt.Sprint(told[0]) != fmt.Sprint(want) {
		t.Errorf("told %+v, want %+v", told[0], want)
	}
	if q := s.drain(pending{}); fmt.Sprint(q.targets) != fmt.Sprint(told) {
		t.Errorf("to be recorded: %+v, want %+v", q.targets, told)
	}
	for upstream, want := range map[string]string{"http://h:2": "b", "http://h:1/": "a", "http://h:3": ""} {
		if got := known.ofUpstream(upstream); got != want {
			t.Errorf("ofUpstream(%s) = %q, want %q", upstream, got, want)
		}
	}
	if got := newTargets([]timeline.Target{{Name: "a"}}, s).only(); got != "a" {
		t.Errorf("only() = %q, want a", got)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StateDir = t.TempDir()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StateDir, cfg.Socket = "", strings.Repeat("x", 108)
	cfg.NVML.Source, cfg.NVML.Period = "sim:", 1
	cfg.Targets = []Target{{Name: "a", EngineURL: "ftp://h"}, {Name: "a", EngineURL: "http://u:p@h", TP: -1}, {EngineURL: "http://"}}
	cfg.Proxy.Listen, cfg.Proxy.Target = "127.0.0.1:1", "none"
	cfg.Scrape = Scrape{}
	cfg.Metrics = Metrics{Listen: "nowhere", WebConfig: "missing.yml", Profile: "big"}
	cfg.Engine = Correlation{Warmup: -1, Lateness: -1}
	cfg.Host.Interval, cfg.Record.MaxBytes = 0, 1
	err := cfg.Validate()
	if err == nil {
		t.Fatal("Validate() finds nothing wrong")
	}
	for _, key := range []string{
		"socket: ", "nvml.source: ", "nvml.period", "targets[0].engine_url: ", "targets[1].name: ", "targets[1].engine_url: ",
		"targets[1].tp: ", "targets[2].name: ", "targets[2].engine_url: ", "proxy.target: ", "proxy.upstream: ", "scrape.interval: ",
		"scrape.timeout: ", "metrics.listen: ", "metrics.web_config: ", "metrics.profile: ", "correlation.cell: ", "correlation.lateness: ",
		"correlation.warmup_requests: ", "host.interval: ", "record.max_bytes: ",
	} {
		if !strings.Contains("\n"+err.Error(), "\n"+key) {
			t.Errorf("no line begins with %q", key)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

// A recording holds which counters were not trusted, and that a stranger was there; what was fine from the start it
// need not.
func TestChangesOfTrustAreRecorded(t *testing.T) {
	s := newStore(true)
	s.now = func() timeline.Instant { return 42 }
	s.SetGPUs([]timeline.GPU{{UUID: "GPU-1"}})
	untrusted := timeline.Capability{Call: "dram_util", State: timeline.StateUntrusted, Detail: "more than can be"}
	foreign := timeline.Capability{Call: timeline.ForeignProcess, State: timeline.StateUntrusted}
	fine := timeline.Capability{Call: "dram_util", State: timeline.StateOK}
	for _, c := range []timeline.Capability{fine, untrusted, untrusted, foreign, fine} {
		s.AddCapability(c)
	}
	got := s.drain(pending{}).events
	want := []timeline.Event{untrusted.Event(42), foreign.Event(42), fine.Event(42)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recorded events (-want +got):\n%s", diff)
	}
}
