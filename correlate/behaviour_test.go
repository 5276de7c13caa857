package correlate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// reasons counts why cells are undetermined, leaving out the first and last two.
func reasons(out correlate.Output) map[string]int {
	n := map[string]int{}
	for i := 2; i < len(out.Cells)-2; i++ {
		if v := &out.Cells[i].Verdict; v.Label == timeline.Undetermined {
			n[v.Reason]++
		}
	}
	return n
}

func TestGatesOfTheEngine(t *testing.T) {
	tests := []struct {
		name string
		run  func(s steady, e *correlate.Engine, out *correlate.Output)
		want string
	}{
		{"a target whose GPU is not there has no mapping", func(s steady, _ *correlate.Engine, out *correlate.Output) {
			cfg := correlate.DefaultConfig()
			cfg.Targets = []timeline.Target{{Name: "vllm", GPUs: []string{"GPU-other"}}}
			e := correlate.New(cfg)
			e.SetGPUs([]timeline.GPU{h100()})
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonNoMapping},
		{"two GPUs and no mapping", func(s steady, _ *correlate.Engine, out *correlate.Output) {
			e := correlate.New(correlate.DefaultConfig())
			second := h100()
			second.UUID = "GPU-2"
			e.SetGPUs([]timeline.GPU{h100(), second})
			s.gpus = 2
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonNoMapping},
		{"an instance of a device", func(s steady, _ *correlate.Engine, out *correlate.Output) {
			g := h100()
			g.MIG = true
			s.feed(newEngine(timeline.Target{}, g), out, 10*time.Second)
		}, verdict.ReasonMIG},
		{"a foreign process", func(s steady, e *correlate.Engine, out *correlate.Output) {
			e.SetForeign(0, true)
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonForeign},
		{"windows shorter than GPM is good for", func(s steady, e *correlate.Engine, out *correlate.Output) {
			s.window = 50 * time.Millisecond
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonUntrusted},
		{"a counter that contradicts the others", func(s steady, e *correlate.Engine, out *correlate.Output) {
			e.AddCapability(timeline.Capability{GPU: 0, Call: "dram_util", State: timeline.StateUntrusted})
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonUntrusted},
		{"values out of range", func(s steady, e *correlate.Engine, out *correlate.Output) {
			s.dram = 1.7
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonUntrusted},
		{"nothing runs", func(s steady, e *correlate.Engine, out *correlate.Output) {
			s.streams, s.seen = 0, 0
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonIdle},
		{"windows of half a second are too few", func(s steady, e *correlate.Engine, out *correlate.Output) {
			s.window = 500 * time.Millisecond
			s.feed(e, out, 10*time.Second)
		}, verdict.ReasonWindows},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out correlate.Output
			tt.run(memoryBound(), newEngine(timeline.Target{}, h100()), &out)
			if n := reasons(out); n[tt.want] < len(out.Cells)-6 || len(n) != 1 {
				t.Errorf("reasons %v over %d cells, want all %q", n, len(out.Cells), tt.want)
			}
			for i := range out.Phases {
				if p := &out.Phases[i]; p.Label != timeline.Undetermined || p.Confidence != timeline.NoConfidence {
					t.Errorf("phase: %s, confidence %s", p.Label, p.Confidence)
				}
			}
		})
	}
}

// Cells are closed seconds after their time: that a stranger is gone is no news of the time before.
func TestAStrangerThatIsGoneWasThereBefore(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	f := feeder{steady: memoryBound(), e: e}
	f.window = 105 * time.Millisecond
	const tick, gone = 5 * time.Millisecond, 8 * time.Second
	var out correlate.Output
	e.SetForeign(0, true)
	for d := time.Duration(0); d < 16*time.Second; d += tick {
		f.tick(t0.Add(d), t0.Add(d+tick))
		if d == gone {
			e.SetForeign(0, false)
		}
		if d%time.Second == 0 {
			e.Advance(&out, t0.Add(d-2*time.Second))
		}
	}
	e.Flush(&out)
	for i := range out.Cells {
		c := &out.Cells[i]
		switch foreign := c.Verdict.Reason == verdict.ReasonForeign; {
		case c.Span.Start < t0.Add(gone-time.Second) && c.Decode && !foreign:
			t.Errorf("the cell at %v is judged", c.Span.Start.Sub(t0))
		case c.Span.Start > t0.Add(gone+time.Second) && foreign:
			t.Errorf("the cell at %v is withheld", c.Span.Start.Sub(t0))
		}
	}
}

func TestDutyCyclesAloneAreLegacy(t *testing.T) {
	legacy := h100()
	legacy.GPM = false
	for name, tt := range map[string]struct {
		gpu  timeline.GPU
		told timeline.State
		want string
	}{
		"without windows":         {legacy, timeline.StateUnknown, verdict.ReasonLegacy},
		"windows of others":       {h100(), timeline.StateNoPermission, verdict.ReasonLegacy},
		"windows do not come":     {h100(), timeline.StateUnknown, verdict.ReasonWindows},
		"windows come too seldom": {h100(), timeline.StateTimeout, verdict.ReasonWindows},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(timeline.Target{}, tt.gpu)
			if tt.told != timeline.StateUnknown {
				e.AddCapability(timeline.Capability{Call: timeline.DRAMUtil.String(), State: tt.told})
			}
			var out correlate.Output
			for i := range 100 {
				at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
				s := timeline.Sample{Over: timeline.Span{Start: at, End: at.Add(time.Millisecond)}}
				s.Put(timeline.GPUDuty, 0.98)
				s.Put(timeline.MemDuty, 0.9)
				e.AddSample(&s)
				e.AddEngine(running(at, i, 8))
			}
			e.Flush(&out)
			if n := reasons(out); n[tt.want] < 5 || len(n) != 1 {
				t.Errorf("reasons %v, want all %q", n, tt.want)
			}
		})
	}
}

// running is the i-th scrape of an engine that decodes.
func running(at timeline.Instant, i int, batch float64) *timeline.EngineSample {
	s := &timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: at, End: at}}
	s.Put(timeline.Running, batch)
	s.Put(timeline.OutputTotal, float64(100*i))
	s.Put(timeline.PromptTotal, 0)
	return s
}

func TestOneGPUAndOneEngineFindEachOther(t *testing.T) {
	e := correlate.New(correlate.DefaultConfig())
	e.SetGPUs([]timeline.GPU{h100()})
	var out correlate.Output
	memoryBound().feed(e, &out, 10*time.Second)
	if c := middle(out); c.Target != "vllm" || c.Verdict.Label != timeline.Memory {
		t.Errorf("got target %q, %s (%s)", c.Target, c.Verdict.Label, c.Verdict.Reason)
	}
}

func TestEpochsCloseTheirCell(t *testing.T) {
	for _, kind := range []timeline.EventKind{timeline.EventSuspend, timeline.EventPause, timeline.EventClockStep} {
		e := newEngine(timeline.Target{}, h100())
		var out correlate.Output
		e.AddEvent(timeline.Event{At: t0.Add(5 * time.Second), Kind: kind, GPU: timeline.NoGPU})
		memoryBound().feed(e, &out, 10*time.Second)
		broken := 0
		for i := range out.Cells {
			if c := &out.Cells[i]; c.Verdict.Reason == verdict.ReasonClock {
				broken++
				if !c.Span.Contains(t0.Add(5 * time.Second)) {
					t.Errorf("%s: cell %+v has no verdict", kind, c.Span)
				}
			}
		}
		if broken != 1 {
			t.Errorf("%s: %d cells without a verdict, want one", kind, broken)
		}
	}
}

func TestARestartOfTheEngineIsNoGrowth(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	var out correlate.Output
	for i := range 20 {
		s := running(t0.Add(time.Duration(i)*time.Second), i, 8)
		if i >= 10 {
			s.Put(timeline.OutputTotal, float64(100*(i-10)))
		}
		e.AddEngine(s)
	}
	e.Flush(&out)
	known := 0
	for i := range out.Cells {
		m := out.Cells[i].OutputTokens
		if !m.OK() {
			continue
		}
		known++
		near(t, "tokens in a second", m.Value, 100, 1e-6)
	}
	if known < 16 {
		t.Errorf("%d cells know their tokens, want 16 or more of 20", known)
	}
}

func TestALostSamplerEndsWhatGaugesHold(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	s := timeline.Sample{Over: timeline.Span{Start: t0, End: t0}}
	s.Put(timeline.SMClock, 1980e6)
	e.AddSample(&s)
	e.AddEvent(timeline.Event{At: t0.Add(200 * time.Millisecond), Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
	e.AddEngine(running(t0, 0, 1))
	e.AddEngine(running(t0.Add(2*time.Second), 1, 1))
	var out correlate.Output
	e.Flush(&out)
	near(t, "seconds held", out.Cells[0].Counters[timeline.SMClock].CoveredS, 0.2, 1e-9)
	if m := out.Cells[1].Counters[timeline.SMClock]; m.OK() {
		t.Errorf("a second later the clock is still %v", m.Value)
	}
}

func TestThrottleTimeIsCounted(t *testing.T) {
	s := memoryBound()
	s.reasons, s.clock = timeline.ReasonHWThermal|timeline.ReasonHWSlowdown, 1200e6
	out := run(t, s, timeline.Target{}, 10*time.Second)
	c := middle(out)
	near(t, "throttled", c.ThrottledS, 1, 1e-6)
	near(t, "by thermal", c.PerGPU[0].ThrottledS["hw_thermal"], 1, 1e-6)
	if !slices.Contains(c.Verdict.Overlays, timeline.Throttled) {
		t.Errorf("overlays %v", c.Verdict.Overlays)
	}
	for i := range out.Phases {
		near(t, "throttled in the phase", out.Phases[i].ThrottledS, 9.8, 0.3)
	}
}

func TestWithoutGraphicsActivityHostAndLaunchStayTogether(t *testing.T) {
	s := memoryBound()
	s.dram, s.tensor, s.sm, s.noGraphics = 0.1, 0.02, 0.2, true
	c := middle(run(t, s, timeline.Target{}, 10*time.Second))
	if c.Verdict.Label != timeline.HostOrLaunch || c.Verdict.Shares.Launch != 0 {
		t.Errorf("got %s, shares %+v", c.Verdict.Label, c.Verdict.Shares)
	}
}

func TestWithoutEngineMetricsNothingIsAssumed(t *testing.T) {
	s := memoryBound()
	s.noEngine = true
	c := middle(run(t, s, timeline.Target{}, 10*time.Second))
	for name, m := range map[string]timeline.Measure{"coverage": c.Coverage, "batch": c.Batch, "prompt": c.PromptTokens, "context": c.ContextSum} {
		if m.OK() {
			t.Errorf("%s is %v without the engine's word", name, m.Value)
		}
	}
	if c.Verdict.Label != timeline.Mixed || c.Verdict.Ceiling > timeline.Low {
		t.Errorf("got %s, ceiling %s; want mixed, low: prompt work may share the steps", c.Verdict.Label, c.Verdict.Ceiling)
	}
}

func TestCountersAloneGiveABatchVerdict(t *testing.T) {
	s := memoryBound()
	s.seen = 0
	c := middle(run(t, s, timeline.Target{}, 10*time.Second))
	if c.Level != timeline.L0 || c.Verdict.Label != timeline.Memory || c.Coverage.OK() || c.Verdict.Ceiling != timeline.High {
		t.Errorf("got %s, %s, ceiling %s, coverage %+v; want L0, memory, high, unknown", c.Level, c.Verdict.Label, c.Verdict.Ceiling, c.Coverage)
	}
}

func TestAStragglerIsNamed(t *testing.T) {
	e := correlate.New(correlate.DefaultConfig())
	var gpus []timeline.GPU
	target := timeline.Target{Name: "vllm", TP: 4}
	for i := range 4 {
		g := h100()
		g.UUID, g.Index = fmt.Sprintf("GPU-%d", i), i
		gpus = append(gpus, g)
		target.GPUs = append(target.GPUs, g.UUID)
	}
	e.SetGPUs(gpus)
	e.SetTargets([]timeline.Target{target})
	f := feeder{steady: memoryBound(), e: e}
	var out correlate.Output
	for k := range 100 {
		over := timeline.Span{Start: t0.Add(time.Duration(k) * 105 * time.Millisecond), End: t0.Add(time.Duration(k+1) * 105 * time.Millisecond)}
		for g := range 4 {
			f.dram, f.sm = 0.5, 0.55
			if g == 2 {
				f.sm = 0.8
			}
			f.sample(g, over)
		}
		if k%10 == 0 {
			e.AddEngine(running(over.End, k/10, 8))
		}
	}
	e.Flush(&out)
	v := middle(out).Verdict
	if v.Label != timeline.Communication || v.Rank != "GPU-2" {
		t.Errorf("got %s (%s), rank %q; want communication, GPU-2", v.Label, v.Reason, v.Rank)
	}
}

func TestLateAndUnknownInputIsCounted(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	var out correlate.Output
	memoryBound().feed(e, &out, 10*time.Second)
	before := e.Stats()
	s := timeline.Sample{Over: timeline.Span{Start: t0, End: t0.Add(100 * time.Millisecond)}}
	s.Put(timeline.DRAMUtil, 0.5)
	e.AddSample(&s)
	s.GPU = 7
	e.AddSample(&s)
	e.AddEngine(&timeline.EngineSample{Target: "other"})
	e.Token(timeline.TokenEvent{Ref: 99, At: t0.Add(time.Second), Kind: timeline.KindContent})
	e.Close(&timeline.Request{Ref: 99, Target: "vllm", Sent: t0, First: t0.Add(time.Second), Last: t0.Add(2 * time.Second), Done: t0.Add(2 * time.Second), Events: 1})
	got := e.Stats()
	if got.LateSamples-before.LateSamples != 1 || got.UnknownTargets-before.UnknownTargets != 2 || got.LateTokens-before.LateTokens != 1 || got.LateRequests-before.LateRequests != 1 {
		t.Errorf("before %+v\nafter %+v", before, got)
	}
	out.Reset()
	e.Flush(&out)
	if len(out.Phases) != 1 || out.Phases[0].Label != timeline.Undetermined || out.Phases[0].Reason == "" {
		t.Errorf("a late request: %+v", out.Phases)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.MaxRequests, cfg.MaxTokens, cfg.MaxReadings = 100, 3200, 50
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100()})
	for i := range 1000 {
		ref := uint64(i + 1)
		e.Open(&timeline.Request{Ref: ref, Sent: t0})
		for k := range 40 {
			e.Token(timeline.TokenEvent{Ref: ref, At: t0.Add(time.Duration(k) * time.Millisecond), Kind: timeline.KindContent, Tokens: 1, Source: timeline.CountIDs})
		}
		s := timeline.Sample{Over: timeline.Span{Start: t0.Add(time.Duration(i) * 100 * time.Millisecond), End: t0.Add(time.Duration(i+1) * 100 * time.Millisecond)}}
		s.Put(timeline.DRAMUtil, 0.5)
		e.AddSample(&s)
	}
	st := e.Stats()
	if st.EvictedRequests != 900 || st.DroppedReadings != 950 || st.DroppedTokens == 0 {
		t.Errorf("got %+v, want 900 requests evicted, 950 readings dropped, some tokens dropped", st)
	}
}

func TestAHoleInTheDataIsSkipped(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	var out correlate.Output
	f := feeder{steady: memoryBound(), e: e}
	for _, start := range []time.Duration{0, 1000 * time.Hour} {
		for k := range 40 {
			over := timeline.Span{Start: t0.Add(start + time.Duration(k)*105*time.Millisecond), End: t0.Add(start + time.Duration(k+1)*105*time.Millisecond)}
			f.sample(0, over)
		}
	}
	e.Flush(&out)
	if n := len(out.Cells); n < 8 || n > 30 {
		t.Errorf("%d cells over a hole of a thousand hours", n)
	}
	for i := 1; i < len(out.Cells); i++ {
		if out.Cells[i].Span.Start < out.Cells[i-1].Span.End {
			t.Fatalf("cells overlap: %+v, %+v", out.Cells[i-1].Span, out.Cells[i].Span)
		}
	}
}

func TestConfigStatesAllItsFaults(t *testing.T) {
	if err := correlate.DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := correlate.Config{Cell: time.Millisecond, Lateness: -1, Warmup: -1}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("got %v, want four faults", err)
	}
}

func TestWarmupIsMarkedAfterEachStart(t *testing.T) {
	tl := parse(t, small)
	_, out := play(tl, 1)
	n := 0
	for i := range out.Phases {
		if out.Phases[i].Warmup {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d phases of warm-up, want 2", n)
	}
}
