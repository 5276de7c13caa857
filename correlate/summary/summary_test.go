package summary_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

var update = flag.Bool("update", false, "rewrite golden files")

const start = timeline.Instant(1e12)

// second returns the instant s seconds after the start.
func second(s float64) timeline.Instant { return start.Add(time.Duration(s * float64(time.Second))) }

// anchor ties the start to 2026-11-30 12:00 UTC.
func anchor() timeline.Anchor {
	return timeline.Anchor{Mono: start, Real: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixNano()}
}

// memoryCell returns the i-th second of a memory-bound target of one GPU, of which the probe saw the given part.
func memoryCell(rng *rand.Rand, i int, coverage float64) correlate.Cell {
	d := min(1, 0.85+0.02*rng.NormFloat64())
	c := correlate.Cell{
		Target: "llama", Span: timeline.Span{Start: second(float64(i)), End: second(float64(i + 1))},
		Tokens: 800 * coverage, Active: 16, Decoding: 16, Decode: true, Level: timeline.L3,
		WindowTPOT: timeline.Known(0.020), Batch: timeline.Known(16), OutputTokens: timeline.Known(800),
		PromptTokens: timeline.Known(0), Steps: timeline.Known(50), EngineTPOT: timeline.Known(0.0195),
		Matched: correlate.Matched{
			Over: timeline.Span{Start: second(float64(i)), End: second(float64(i + 1))}, Intervals: 1, Probe: 800 * coverage, Engine: 800, Slack: 16,
		},
		Coverage: timeline.Known(coverage), DRAMBytes: timeline.Known(2.5e12 * d / 0.85), ModelledBytes: timeline.Known(2.4e12),
		Windows: 10, CoveredS: 1, ThrottledS: 0.1,
		Verdict: verdict.Verdict{
			Label: timeline.Memory, Reason: "DRAM at 85 % of achievable", Shares: timeline.Shares{Memory: d, Other: 0.9 - d, Host: 0.1},
			Roof: timeline.Interval{Low: d, High: min(1, d+0.1)}, Confidence: timeline.Low, D: d, C: 0.1, Ceiling: timeline.High, Watched: timeline.High, Unwatched: timeline.Medium,
		},
	}
	c.Counters[timeline.DRAMUtil] = correlate.Mean{Value: 0.9 * d, CoveredS: 1}
	c.Counters[timeline.SMUtil] = correlate.Mean{Value: 0.9, CoveredS: 1}
	c.Counters[timeline.TensorUtil] = correlate.Mean{Value: 0.09, CoveredS: 1}
	c.Counters[timeline.GraphicsUtil] = correlate.Mean{Value: 0.95, CoveredS: 1}
	c.Counters[timeline.EventReasons] = correlate.Mean{CoveredS: 1}
	c.PerGPU = []correlate.GPUCell{{
		GPU: 0, UUID: "GPU-aaaa", Counters: c.Counters, Windows: 10, CoveredS: 1, ThrottledS: map[string]float64{"sw_power_cap": 0.1},
	}}
	return c
}

// phase returns a request of n tokens, sent at s seconds, at tpot seconds a token.
func phase(s float64, n int, tpot float64) correlate.Phase {
	r := timeline.Request{
		Target: "llama", Client: "proxy", Sent: second(s), First: second(s + 0.2), Last: second(s + 0.2 + tpot*float64(n-1)),
		Streaming: true, OutputTokens: n, Counted: timeline.CountIDs, PromptTokens: 100, PromptKnown: true, Events: n, Choices: 1, MaxTokens: n,
	}
	r.Done = r.Last.Add(time.Millisecond)
	events := make([]timeline.TokenEvent, n)
	for i := range events {
		events[i] = timeline.TokenEvent{At: second(s + 0.2 + tpot*float64(i)), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent}
	}
	return correlate.Phase{
		Request: r, Latency: latency.Of(&r, events), Concurrency: timeline.Known(16), Label: timeline.Memory, Grade: timeline.Shared,
	}
}

// recording returns a builder that saw a minute of steady decode.
func recording(c summary.Config, coverage float64) *summary.Builder {
	rng := rand.New(rand.NewPCG(1, 1))
	b := summary.New(c)
	b.SetGPUs([]timeline.GPU{{UUID: "GPU-aaaa", Name: "NVIDIA H100 80GB HBM3", Index: 3}})
	for i := range 60 {
		cell := memoryCell(rng, i, coverage)
		b.AddCell(&cell)
		for k := range 7 {
			p := phase(float64(i)+float64(k)/7, 40, 0.020*(1+0.05*rng.NormFloat64()))
			p.Warmup = i == 0 && k < 2
			b.AddPhase(&p)
		}
	}
	b.AddEvent(&timeline.Event{At: second(3), Kind: timeline.EventGap})
	return b
}

func TestReportGolden(t *testing.T) {
	got, err := json.MarshalIndent(recording(summary.Config{Anchor: anchor()}, 1).Report(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "report.golden.json")
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("report mismatch (-want +got):\n%s", diff)
	}
}

func TestReportHoldsWhatWasPutIn(t *testing.T) {
	r := recording(summary.Config{Anchor: anchor()}, 1).Report()
	if r.Requests.Total != 420 || r.Requests.OK != 420 || r.Requests.Warmup != 2 || r.Requests.TPOTDefined != 418 || r.TPOT.N != 418 {
		t.Errorf("requests %+v, TPOT n %d", r.Requests, r.TPOT.N)
	}
	if math.Abs(r.TPOT.Mean.Value-0.020) > 2e-4 || !r.TPOT.P99.OK() || r.TPOT.P99.Value < 0.0215 || !r.TPOT.CI95Mean.OK() {
		t.Errorf("TPOT %+v", r.TPOT)
	}
	if iv := r.TPOT.CI95Mean.Value; iv.Low > 0.020 || iv.High < 0.020 || iv.High-iv.Low > 5e-4 {
		t.Errorf("interval of mean TPOT %+v", iv)
	}
	if r.Decode.Bound != timeline.Memory || r.Decode.Confidence != timeline.High || r.Decode.Refute == "" {
		t.Errorf("bound %v, confidence %v, refuted if %q", r.Decode.Bound, r.Decode.Confidence, r.Decode.Refute)
	}
	if got := r.Decode.Shares.Value.Sum(); math.Abs(got-1) > 1e-9 {
		t.Errorf("shares sum to %v", got)
	}
	for name, want := range map[string][2]float64{
		"tokens":          {r.Tokens.Output.Value, 48_000},
		"tokens/s":        {r.Tokens.PerSecond.Value, 800},
		"coverage":        {r.TrafficCoverage.Value, 1},
		"bytes per step":  {r.Decode.BytesPerStep.Modelled.Value, 2.4e12 / 50},
		"bytes per token": {r.Decode.BytesPerToken.Modelled.Value, 3e9},
		"throttled":       {r.Decode.ThrottledShare.Value, 0.1},
		"resolution":      {r.Decode.ResolutionS.Value, 0.1},
		"engine TPOT":     {r.EngineTPOT.Value, 0.0195},
		"gpu SM":          {r.GPUs[0].SM.Value, 0.9},
		"gpu throttled":   {r.GPUs[0].ThrottledS["sw_power_cap"], 6},
	} {
		if math.Abs(want[0]-want[1]) > 1e-6*math.Abs(want[1]) {
			t.Errorf("%s = %v, want %v", name, want[0], want[1])
		}
	}
	// What the model must move, over what the DRAM could: useful part of measured traffic, times how busy DRAM was.
	want := r.Decode.BytesPerToken.Modelled.Value / r.Decode.BytesPerToken.Measured.Value * r.Decode.DRAM.Value
	if !r.Decode.MBU.OK() || math.Abs(r.Decode.MBU.Value-want) > 1e-9 {
		t.Errorf("MBU %+v, want %v", r.Decode.MBU, want)
	}
	if len(r.Groups) != 1 || r.Groups[0].OutputTokens != (summary.Range{Low: 16, High: 64}) || r.Groups[0].Concurrency.Value != (summary.Range{Low: 16, High: 32}) {
		t.Errorf("groups %+v", r.Groups)
	}
	if !r.Span.Start.Equal(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("span starts at %v", r.Span.Start)
	}
}

func TestPartialTrafficWithholdsWhatRestsOnIt(t *testing.T) {
	for _, coverage := range []float64{0.1, 0.3, 0.6, 0.9} {
		t.Run(fmt.Sprint(coverage), func(t *testing.T) {
			r := recording(summary.Config{}, coverage).Report()
			for name, m := range map[string]timeline.Measure{
				"measured bytes per token": r.Decode.BytesPerToken.Measured, "measured bytes per step": r.Decode.BytesPerStep.Measured, "MBU": r.Decode.MBU,
			} {
				if m.OK() || !strings.Contains(m.Why, "traffic coverage") {
					t.Errorf("%s = %+v, want it withheld for coverage", name, m)
				}
			}
			if math.Abs(r.TrafficCoverage.Value-coverage) > 1e-9 || r.Tokens.Source != "engine" {
				t.Errorf("coverage %+v, tokens %+v", r.TrafficCoverage, r.Tokens)
			}
			if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "of the engine's output tokens") }) {
				t.Errorf("warnings %q lack the coverage", r.Warnings)
			}
		})
	}
}

func TestUnknownCoverageIsNotTakenForFull(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	b := summary.New(summary.Config{})
	for i := range 20 {
		c := memoryCell(rng, i, 1)
		c.OutputTokens, c.Coverage = timeline.Absent("not told"), timeline.Absent("not told")
		c.Matched = correlate.Matched{}
		b.AddCell(&c)
	}
	r := b.Report()
	if r.TrafficCoverage.OK() || r.Decode.BytesPerToken.Measured.OK() || r.Decode.MBU.OK() {
		t.Errorf("coverage %+v, bytes %+v, MBU %+v", r.TrafficCoverage, r.Decode.BytesPerToken, r.Decode.MBU)
	}
	if r.Tokens.Source != "probe" || r.Tokens.Output.Value != 16_000 {
		t.Errorf("tokens %+v", r.Tokens)
	}
}

func TestWithoutAProbeTheEnginesCountsAreAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	b := summary.New(summary.Config{})
	for i := range 20 {
		c := memoryCell(rng, i, 0)
		c.Active, c.Decoding, c.Level, c.Coverage = 0, 0, timeline.L0, timeline.Absent("no probe")
		b.AddCell(&c)
	}
	r := b.Report()
	if r.Evidence != timeline.L0 || r.TrafficCoverage.OK() || !r.Decode.BytesPerToken.Measured.OK() || !r.Decode.MBU.OK() {
		t.Errorf("level %v, coverage %+v, bytes %+v, MBU %+v", r.Evidence, r.TrafficCoverage, r.Decode.BytesPerToken, r.Decode.MBU)
	}
	if r.TPOT.OK() || r.TPOT.Absent != "no request" || !r.EngineTPOT.OK() {
		t.Errorf("TPOT %+v, engine's %+v", r.TPOT, r.EngineTPOT)
	}
}

func TestPercentilesNeedTheirSample(t *testing.T) {
	for _, tt := range []struct {
		n             int
		p50, p90, p99 bool
	}{{5, false, false, false}, {6, true, false, false}, {36, true, true, false}, {100, true, true, false}, {368, true, true, true}} {
		b := summary.New(summary.Config{})
		for i := range tt.n {
			p := phase(float64(i), 10, 0.02)
			b.AddPhase(&p)
		}
		s := b.Report().TPOT
		if s.N != tt.n || s.P50.OK() != tt.p50 || s.P90.OK() != tt.p90 || s.P99.OK() != tt.p99 {
			t.Errorf("n=%d: %+v", tt.n, s)
		}
		if !tt.p99 && s.P99.Why != fmt.Sprintf("p99 needs 368 values, there are %d", tt.n) {
			t.Errorf("n=%d: p99 is absent because %q", tt.n, s.P99.Why)
		}
	}
}

func TestClassesOfRequests(t *testing.T) {
	b := summary.New(summary.Config{})
	add := func(status timeline.Status, maxTokens int) {
		p := phase(1, 20, 0.01)
		p.Request.Status, p.Request.MaxTokens = status, maxTokens
		if maxTokens == 1 {
			p = phase(1, 1, 0.01)
			p.Request.Status, p.Request.MaxTokens = status, 1
		}
		b.AddPhase(&p)
	}
	for range 8 {
		add(timeline.StatusOK, 20)
	}
	for s := timeline.StatusHTTPError; s <= timeline.StatusUnfinished; s++ {
		add(s, 20)
	}
	add(timeline.StatusOK, 1)
	add(timeline.StatusOK, 1)
	r := b.Report()
	want := summary.Requests{
		Total: 17, OK: 10, Failed: 4, Truncated: 1, Cancelled: 1, Unfinished: 1, PrefillOnly: 2, TPOTDefined: 8, WarmupRule: r.Requests.WarmupRule,
	}
	if diff := cmp.Diff(want, r.Requests); diff != "" {
		t.Errorf("requests mismatch (-want +got):\n%s", diff)
	}
	if r.TTFT.N != 10 || r.E2E.N != 8 || r.TPOT.N != 8 {
		t.Errorf("TTFT of %d, E2E of %d, TPOT of %d requests: a one-token request has a TTFT alone", r.TTFT.N, r.E2E.N, r.TPOT.N)
	}
}

func TestAbsentTPOTSaysWhy(t *testing.T) {
	b := summary.New(summary.Config{})
	for i := range 7 {
		p := phase(float64(i), 10, 0.02)
		p.Latency.TPOT = timeline.Absent(latency.WhyNoCount)
		if i < 2 {
			p.Latency.TPOT = timeline.Absent(latency.WhyOneToken)
		}
		b.AddPhase(&p)
	}
	if got, want := b.Report().TPOT.Absent, "no token count was told (5); fewer than two output tokens (2)"; got != want {
		t.Errorf("TPOT is absent because %q, want %q", got, want)
	}
}

func TestWarmup(t *testing.T) {
	t.Run("a span is left out of percentiles and verdict", func(t *testing.T) {
		r := recording(summary.Config{Warmup: 10 * time.Second}, 1).Report()
		if r.Requests.Warmup != 70 || r.TPOT.N != 350 || math.Abs(r.Decode.DecodeS-50) > 1e-9 || r.Tokens.Output.Value != 48_000 {
			t.Errorf("warm-up %d, TPOT of %d, decode %v s, %v tokens", r.Requests.Warmup, r.TPOT.N, r.Decode.DecodeS, r.Tokens.Output.Value)
		}
		if !strings.Contains(r.Requests.WarmupRule, "10s") {
			t.Errorf("rule %q does not tell the span", r.Requests.WarmupRule)
		}
	})
	t.Run("a handful of requests is used all the same, and that is said", func(t *testing.T) {
		b := summary.New(summary.Config{})
		for i := range 3 {
			p := phase(float64(i), 10, 0.02)
			p.Warmup = i < 2
			b.AddPhase(&p)
		}
		r := b.Report()
		if r.TPOT.N != 3 || r.Requests.Warmup != 0 || !strings.Contains(r.Requests.WarmupRule, "too few") {
			t.Errorf("TPOT of %d, %+v", r.TPOT.N, r.Requests)
		}
	})
}

func TestSubSpan(t *testing.T) {
	r := recording(summary.Config{Since: second(20), Until: second(30)}, 1).Report()
	if r.Span.Seconds != 10 || r.Tokens.Output.Value != 8000 || r.Decode.DecodeS != 10 {
		t.Errorf("span %v s, %v tokens, decode %v s", r.Span.Seconds, r.Tokens.Output.Value, r.Decode.DecodeS)
	}
	// By the middle of the decode: 7 requests a second.
	if r.Requests.Total < 69 || r.Requests.Total > 71 {
		t.Errorf("%d requests, want 70", r.Requests.Total)
	}
	if len(r.Warnings) > 0 && strings.Contains(strings.Join(r.Warnings, " "), "missing over a span") {
		t.Error("an event outside the span is told")
	}
	if err := (summary.Config{Since: 5, Until: 4, Warmup: -1, Exact: -1}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("Validate() = %v, want three faults", err)
	}
	other := recording(summary.Config{Target: "other"}, 1).Report()
	if other.Requests.Total != 0 || len(other.Targets) != 0 {
		t.Errorf("another target's report holds %+v", other.Requests)
	}
}

func TestManyRequestsTurnIntoASketch(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	b := summary.New(summary.Config{Exact: 500})
	template := phase(1, 20, 0.01)
	var xs []float64
	for i := range 5000 {
		p := template
		x := 0.02 * math.Exp(0.4*rng.NormFloat64())
		p.Latency.TPOT = timeline.Known(x)
		p.Request.Last = second(float64(i) / 10)
		p.Request.Done = p.Request.Last
		xs = append(xs, x)
		b.AddPhase(&p)
	}
	slices.Sort(xs)
	s := b.Report().TPOT
	if !strings.HasPrefix(s.Percentiles, "sketch") || s.N != 5000 {
		t.Fatalf("TPOT %+v", s)
	}
	if want := xs[4949]; math.Abs(s.P99.Value/want-1) > 0.011 {
		t.Errorf("p99 %v, want %v within 1 %%", s.P99.Value, want)
	}
}

func TestLongRunsKeepTheirVerdict(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	b := summary.New(summary.Config{})
	for i := range 20_000 {
		c := memoryCell(rng, i, 1)
		b.AddCell(&c)
	}
	r := b.Report()
	if r.Decode.DecodeS != 20_000 || r.Decode.Windows != 200_000 || r.Decode.Bound != timeline.Memory || r.Decode.Confidence != timeline.High {
		t.Errorf("decode %v s, %d windows, %v at %v", r.Decode.DecodeS, r.Decode.Windows, r.Decode.Bound, r.Decode.Confidence)
	}
}

func BenchmarkAddPhase(b *testing.B) {
	bl := summary.New(summary.Config{})
	p := phase(1, 200, 0.02)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Request.Last = second(float64(i) / 50)
		p.Request.Done = p.Request.Last
		bl.AddPhase(&p)
	}
}

// TestADeviceIsHeldAgainstItsKind gives cells of a GPU that was slow from its first second on, whose own past shows nothing.
func TestADeviceIsHeldAgainstItsKind(t *testing.T) {
	for name, tt := range map[string]struct {
		reached, clockHz float64
		short, slow      bool
	}{
		"healthy":      {0.97, 1.83e9, false, false},
		"slow DRAM":    {0.80, 1.83e9, true, false},
		"locked clock": {0.97, 1.40e9, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := summary.New(summary.Config{})
			b.SetGPUs([]timeline.GPU{{UUID: "GPU-1", Name: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30}})
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range 60 {
				c := memoryCell(rng, i, 1)
				c.Verdict.D = 0.9 * tt.reached
				c.Verdict.Shares = timeline.Shares{Memory: 0.8, Other: 0.1, Launch: 0.1}
				for k := range c.PerGPU {
					c.PerGPU[k].UUID = "GPU-1"
					c.PerGPU[k].Counters[timeline.SMClock] = correlate.Mean{Value: tt.clockHz, CoveredS: 1}
				}
				b.AddCell(&c)
			}
			r := b.Report()
			if s := r.Decode.AgainstSheet; s == nil || s.Cells != 60 || s.Short != tt.short || math.Abs(s.Reached-min(1, tt.reached)) > 0.01 {
				t.Errorf("against its kind: %+v", s)
			}
			// 0.2 of the time stretches with the clock.
			want := 0.0
			if tt.slow {
				want = 0.2 * (1.83/1.40 - 1)
			}
			if c := r.Decode.ClockAtMost; !c.OK() || math.Abs(c.Value-want) > 0.01 {
				t.Errorf("clocks may have added %+v, want %.3f", c, want)
			}
			said := strings.Join(r.Warnings, "\n")
			if strings.Contains(said, "achievable of its kind") != tt.short || strings.Contains(said, "below those that the data sheet") != tt.slow {
				t.Errorf("warnings:\n%s", said)
			}
		})
	}
}
