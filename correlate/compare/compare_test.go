package compare_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const closedLoop = "seed %d\nduration %s\ngpu h100\ntarget main model=%s dtype=%s\nload streams=8 prompt=300..500 output=200..300\n"

// closed is a closed loop of eight streams.
func closed(t *testing.T, seed int, dtype string, r rig) *played {
	t.Helper()
	return simulate(t, fmt.Sprintf(closedLoop, seed, "40s", "Llama-3.1-8B", dtype), r)
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s: got %.4f, want %.4f within %.4f", what, got, want, within)
	}
}

// The gpt-fast README has a 7B model on one A100 at 9.53 ms a token in bf16; int8 takes 0.674 of that and int4 0.533.
// A fit over its degrees of tensor parallelism leaves 2.12 ms that no bandwidth changes.
func TestExpectedTimeOfPublishedQuantisations(t *testing.T) {
	f := 1 - 2.12/9.53
	near(t, "memory share", f, 0.78, 0.005)
	near(t, "int8", compare.Expected(0.51, f), 0.62, 0.005)
	near(t, "int8, gap", 0.674-compare.Expected(0.51, f), 0.05, 0.01)
	near(t, "int8, came", compare.Came(0.674, compare.Expected(0.51, f)), 0.855, 0.01)
	near(t, "int4", compare.Expected(0.33, f), 0.48, 0.005)
	near(t, "int4, came", compare.Came(0.533, compare.Expected(0.33, f)), 0.896, 0.01)
	if !math.IsNaN(compare.Came(0.9, 1)) {
		t.Error("where nothing is expected nothing can have come")
	}
}

func TestBuildsAreNamedForWhatTheyAre(t *testing.T) {
	a := closed(t, 106, "bf16", rig{seen: 1}).all("A")
	for name, tt := range map[string]struct {
		p    *played
		want compare.Word
	}{
		"fp8":      {closed(t, 107, "fp8", rig{seen: 1}), compare.Realised},
		"fallback": {closed(t, 107, "bf16", rig{seen: 1, dtype: "fp8"}), compare.NotSaved},
		"same":     {closed(t, 106, "bf16", rig{}), compare.NoDifference},
		"other":    {closed(t, 108, "bf16 kv=fp8", rig{seen: 1}), compare.NoDifference},
	} {
		r := against(t, a, tt.p.all("B"))
		if r.Verdict != tt.want {
			t.Errorf("%s: want %s, got %s", name, tt.want, figures(r))
		}
		if r.Confidence == timeline.NoConfidence || r.Refute == "" || r.Reason == "" {
			t.Errorf("%s: confidence %s, refuted if %q, because %q", name, r.Confidence, r.Refute, r.Reason)
		}
	}
}

func TestBytesSavedAreMeasuredAsModelledAndExpectTheTime(t *testing.T) {
	r := against(t, closed(t, 1, "bf16", rig{seen: 1}).all("A"), closed(t, 1, "fp8", rig{seen: 1}).all("B"))
	near(t, "modelled", r.Bytes.Modelled.Value.Value, 0.552, 0.005) // weights 15.010 to 8.030 GB, and the cache stays
	near(t, "measured", r.Bytes.Measured.Value.Value, r.Bytes.Modelled.Value.Value, 0.01)
	if iv := r.Expected.CI95.Value; !(iv.Low <= r.Time.Value.Value && r.Time.Value.Value <= iv.High) {
		t.Errorf("time %.3f, expected %.3f to %.3f", r.Time.Value.Value, iv.Low, iv.High)
	}
	near(t, "gap", r.Gap.Value.Value, r.Time.Value.Value-r.Expected.Value.Value, 1e-9)
	if iv := r.Gap.CI95.Value; iv.Low > 0 || iv.High < 0 {
		t.Errorf("gap from %.3f to %.3f", iv.Low, iv.High)
	}
	near(t, "achieved rate", r.Rate.Value.Value, r.Bytes.Measured.Value.Value/r.Time.Value.Value, 1e-9)
	near(t, "delta", r.Requests.Delta.Value, -1, 0)
	near(t, "shift", r.Requests.Shift.Value.Value, r.TPOTB.Value.Value-r.TPOTA.Value.Value, 1e-4)
}

func TestAFasterMemoryIsExpectedToBringItsTime(t *testing.T) {
	text := "seed %d\nduration 40s\ngpu %s\ntarget main model=Llama-3.1-8B dtype=bf16\nload streams=8 prompt=300..500 output=200..300\n"
	r := against(t, simulate(t, fmt.Sprintf(text, 1, "h100"), rig{}).all("A"), simulate(t, fmt.Sprintf(text, 2, "h200"), rig{}).all("B"))
	near(t, "bandwidth", r.Bandwidth.Value, 4.8/3.35, 0.01)
	near(t, "bytes", r.Bytes.Measured.Value.Value, 1, 0.05)
	if r.Verdict != compare.Improvement || r.Gap.CI95.Value.Low > 0 || r.Gap.CI95.Value.High < 0 {
		t.Errorf("got %s", figures(r))
	}
}

func TestTheOtherWayRoundIsTheInverse(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	x, y := against(t, a.all("A"), b.all("B")), against(t, b.all("B"), a.all("A"))
	near(t, "time", x.Time.Value.Value*y.Time.Value.Value, 1, 1e-3)
	near(t, "bytes", x.Bytes.Measured.Value.Value*y.Bytes.Measured.Value.Value, 1, 1e-3)
	if y.Verdict != compare.Regression || !y.Slower {
		t.Errorf("more bytes and more time is %s", figures(y))
	}
}

func TestTheSameInputGivesTheSameBytes(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	spell := func() []byte {
		out, err := json.Marshal(against(t, a.all("A"), b.all("B")))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if one, two := spell(), spell(); !bytes.Equal(one, two) {
		t.Errorf("two comparisons differ:\n%s", cmp.Diff(string(one), string(two)))
	}
}

func TestSchemaHoldsWhatIsPromised(t *testing.T) {
	r := against(t, closed(t, 1, "bf16", rig{seen: 1}).all("A"), closed(t, 2, "fp8", rig{seen: 1}).all("B"))
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	type value struct {
		Value float64 `json:"value"`
		CI95  struct{ Low, High float64 }
	}
	var got struct {
		Schema, Verdict, Confidence string
		Bytes                       struct{ Modelled, Measured value } `json:"bytes_ratio"`
		Time                        value                              `json:"time_ratio"`
		Expected                    value                              `json:"expected_time_ratio"`
		Matched                     struct {
			Bins int
			A    int `json:"requests_a"`
			B    int `json:"requests_b"`
		}
		Warnings []string
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != "tpotscope.compare/1" || got.Verdict != "realised" || got.Matched.Bins < 1 || got.Matched.A < 20 || got.Matched.B < 20 || got.Warnings == nil {
		t.Errorf("got %+v", got)
	}
	for name, v := range map[string]value{"modelled": got.Bytes.Modelled, "measured": got.Bytes.Measured, "time": got.Time, "expected": got.Expected} {
		if v.Value < 0.4 || v.Value > 0.8 || v.CI95.Low > v.Value || v.CI95.High < v.Value {
			t.Errorf("%s is %+v", name, v)
		}
	}
}

func TestWhatCannotBeComparedIsRefusedWithWhatWouldHelp(t *testing.T) {
	base := closed(t, 1, "bf16", rig{seen: 1})
	long := "seed 3\nduration 40s\ngpu h100\ntarget main model=Llama-3.1-8B\nload streams=8 prompt=4000..5000 output=200..300\n"
	for name, tt := range map[string]struct {
		p      *played
		reason string
	}{
		"model":      {simulate(t, fmt.Sprintf(closedLoop, 2, "40s", "Qwen2.5-7B", "bf16"), rig{seen: 1}), "unlike models: Llama-3.1-8B against Qwen2.5-7B"},
		"lengths":    {simulate(t, long, rig{seen: 1}), "prompt lengths do not overlap: 310 to 489 against"},
		"by context": {simulate(t, long, rig{}), "contexts do not overlap"},
		"boundary":   {closed(t, 2, "bf16", rig{noEngine: true, seen: 1}), ""},
	} {
		a := base
		want := compare.Refused
		if name == "boundary" { // one by the probe alone, the other by the engine alone
			a, tt.reason = closed(t, 1, "bf16", rig{}), "unlike boundaries: A has times from the engine, B from the probe"
		}
		r := against(t, a.all("A"), tt.p.all("B"))
		begins, _, _ := strings.Cut(tt.reason, ": 310")
		if r.Verdict != want || !strings.HasPrefix(r.Reason, begins) || r.Remedy == "" || r.Confidence != timeline.NoConfidence {
			t.Errorf("%s: %s because %q, remedy %q", name, r.Verdict, r.Reason, r.Remedy)
		}
	}
	empty := against(t, compare.New(compare.Config{Name: "A"}), base.all("B"))
	if empty.Verdict != compare.Refused || !strings.Contains(empty.Reason, "A holds no decode") {
		t.Errorf("an empty recording: %s, %s", empty.Verdict, empty.Reason)
	}
}

func TestNamesOfOneBaseModelAreAlike(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	a.targets[0].Model, b.targets[0].Model = "meta-llama/Llama-3.1-8B-Instruct", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"
	if r := against(t, a.all("A"), b.all("B")); r.Verdict != compare.Realised {
		t.Errorf("got %s", figures(r))
	}
}

func TestNamesOfUnknownModelsCompareWithoutTheirFormats(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	a.targets[0].Model = "acme/Foo-9B"
	for name, want := range map[string]bool{"acme/Foo-9B-FP8-dynamic": true, "other/foo_9b.w8a8": true, "acme/Foo-8B-FP8": false} {
		b.targets[0].Model = name
		if r := against(t, a.all("A"), b.all("B")); (r.Verdict != compare.Refused) != want || want && r.Bytes.Modelled.OK() {
			t.Errorf("%s: %s", name, figures(r))
		}
	}
}

func TestAnEngineWithoutLatenciesIsComparedByItsBatch(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{noITL: true}), closed(t, 2, "fp8", rig{noITL: true})
	r := against(t, a.all("A"), b.all("B"))
	if r.Verdict != compare.Realised || !strings.Contains(r.Boundary, "batch") {
		t.Errorf("at the %s: %s", r.Boundary, figures(r))
	}
	near(t, "time", r.Time.Value.Value, 0.64, 0.03)
	if r := against(t, a.all("A"), closed(t, 2, "fp8", rig{}).all("B")); r.Verdict != compare.Refused {
		t.Errorf("one side by its latencies, the other without: %s", figures(r))
	}
}

func TestAShortRecordingIsUndeterminedAndSaysHowLong(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	r := against(t, a.recording("A", 4*time.Second, 12*time.Second), b.recording("B", 4*time.Second, 12*time.Second))
	if r.Verdict != compare.Undetermined || !strings.HasPrefix(r.Reason, "too short") || !strings.Contains(r.Remedy, " s of decode") {
		t.Errorf("%s because %q, remedy %q", r.Verdict, r.Reason, r.Remedy)
	}
	if r.Time.Sure() || !r.Time.OK() {
		t.Errorf("the ratio is known, its interval is not: %+v", r.Time)
	}
}

func TestPartialCoverageComparesBytesByTheEnginesCountsAlone(t *testing.T) {
	part := rig{seen: 0.4}
	r := against(t, closed(t, 1, "bf16", part).all("A"), closed(t, 2, "fp8", part).all("B"))
	if r.A.Coverage.Value > 0.7 || r.Verdict != compare.Realised || r.Boundary != "engine" {
		t.Errorf("coverage %.2f at the %s: %s", r.A.Coverage.Value, r.Boundary, figures(r))
	}
	if len(r.Warnings) == 0 || !strings.Contains(strings.Join(r.Warnings, "\n"), "by the engine's counts") {
		t.Errorf("warnings %q", r.Warnings)
	}
	part.noEngine = true
	r = against(t, closed(t, 1, "bf16", part).all("A"), closed(t, 2, "fp8", part).all("B"))
	if r.Bytes.Measured.OK() || r.Expected.OK() || r.Boundary != "probe" || r.Verdict == compare.Realised {
		t.Errorf("without the engine's counts bytes are compared: %s", figures(r))
	}
}

func TestStepsAreDerivedWhereTheEngineDoesNotCountThem(t *testing.T) {
	r := against(t, closed(t, 1, "bf16", rig{noSteps: true}).all("A"), closed(t, 2, "fp8", rig{noSteps: true}).all("B"))
	if r.Matched.StepSource != "output over batch" || r.Verdict != compare.Realised {
		t.Errorf("steps by %s: %s", r.Matched.StepSource, figures(r))
	}
	near(t, "bytes", r.Bytes.Measured.Value.Value, 0.552, 0.01)
}

func TestRequestsAreResampledBySessionWhereTracesTellThem(t *testing.T) {
	a, b := closed(t, 1, "bf16", rig{seen: 1}), closed(t, 2, "fp8", rig{seen: 1})
	r := against(t, a.all("A"), b.all("B"))
	if r.Requests.Clusters != "blocks of time" || !r.Requests.P50Ratio.Sure() || !r.Requests.Shift.Sure() {
		t.Errorf("without traces: %+v", r.Requests)
	}
	for _, p := range []*played{a, b} {
		for i := range p.out.Phases {
			p.out.Phases[i].Request.TraceID = fmt.Sprintf("%032x", i/4)
		}
	}
	s := against(t, a.all("A"), b.all("B"))
	if s.Requests.Clusters != "sessions" || !s.Requests.P50Ratio.Sure() || s.Requests.P50Ratio.Value != r.Requests.P50Ratio.Value {
		t.Errorf("with traces: %+v", s.Requests)
	}
}

func TestWarmUpIsLeftOutOnBothSides(t *testing.T) {
	// Eager for the first fifteen seconds, as while graphs are captured.
	text := fmt.Sprintf(closedLoop, 1, "60s", "Llama-3.1-8B", "bf16") + "fault eager 0s..15s\nfault slow_launch 30us 0s..15s\n"
	p, q := simulate(t, text, rig{seen: 1}), simulate(t, fmt.Sprintf(closedLoop, 1, "60s", "Llama-3.1-8B", "bf16"), rig{seen: 1})
	side := func(p *played, warmup time.Duration) *compare.Recording {
		r := compare.New(compare.Config{Name: "x", GPUs: p.tl.GPUs(), Targets: p.targets, Warmup: warmup})
		for i := range p.out.Cells {
			r.AddCell(&p.out.Cells[i])
		}
		return r
	}
	with, without := against(t, side(q, 0), side(p, 0)), against(t, side(q, 16*time.Second), side(p, 16*time.Second))
	if with.Time.Value.Value < 1.05 || without.Verdict != compare.NoDifference {
		t.Errorf("with warm-up %.3f, without %s", with.Time.Value.Value, figures(without))
	}
	if without.A.DecodeS > with.A.DecodeS-10 || without.B.DecodeS > with.B.DecodeS-10 {
		t.Errorf("%.0f and %.0f s are left of %.0f and %.0f", without.A.DecodeS, without.B.DecodeS, with.A.DecodeS, with.B.DecodeS)
	}
}

func TestTheSplitAddsUp(t *testing.T) {
	text := "seed 5\nduration 200s\ngpu h100\ntarget main model=Llama-3.1-8B dtype=%s\nload rate=2 arrivals=poisson prompt=3500..4500 output=300..500\n"
	a, b := simulate(t, fmt.Sprintf(text, "bf16"), rig{}), simulate(t, fmt.Sprintf(text, "fp8"), rig{})
	r := against(t, a.recording("A", 40*time.Second, 200*time.Second), b.recording("B", 40*time.Second, 200*time.Second))
	s := &r.Split
	sum := s.Direct.Value.Value + s.Amplified.Value.Value + s.Load.Value.Value + s.Work.Value.Value
	near(t, "sum", sum, s.Total.Value.Value, 1e-9)
	near(t, "total", s.Total.Value.Value, r.B.TPOT.Value-r.A.TPOT.Value, 1e-9)
	if s.Loop != "fixed_rate" || s.Direct.Value.Value >= 0 || s.Amplified.Value.Value >= 0 || r.B.Batch.Value >= r.A.Batch.Value {
		t.Errorf("a faster build at a fixed rate runs a smaller batch: batch %.1f to %.1f, %s", r.A.Batch.Value, r.B.Batch.Value, figures(r))
	}
	if r.Verdict != compare.Realised {
		t.Errorf("got %s", figures(r))
	}
}

func TestBadMarginsAreRefused(t *testing.T) {
	for _, margin := range []float64{0, -1, 0.6, math.NaN()} {
		if _, err := compare.Of(compare.New(compare.Config{}), compare.New(compare.Config{}), compare.Options{Margin: margin}); err == nil {
			t.Errorf("margin %v is accepted", margin)
		}
	}
}

func TestATimeOfNothingIsNone(t *testing.T) {
	side := func(tpot float64) *compare.Recording {
		r := compare.New(compare.Config{Name: "odd"})
		for i := range 60 {
			at := timeline.Instant(0).Add(time.Duration(1+i) * time.Second)
			over := timeline.Span{Start: at, End: at.Add(time.Second)}
			r.AddCell(&correlate.Cell{
				Target: "main", Span: over, Data: over, Decode: true, Batch: timeline.Known(4), OutputTokens: timeline.Known(400),
				EngineTPOT: timeline.Known(tpot), WindowTPOT: timeline.Absent("no probe"), ContextSum: timeline.Known(4000),
				PromptTokens: timeline.Known(0), Steps: timeline.Known(100), DRAMBytes: timeline.Absent("no counters"),
			})
		}
		return r
	}
	for _, odd := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		r, err := compare.Of(side(odd), side(0.01), compare.Options{Margin: compare.DefaultMargin})
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict == compare.Improvement || r.Verdict == compare.Regression || r.Verdict == compare.NoDifference {
			t.Errorf("%v s a token against 10 ms: %s", odd, r.Verdict)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%v s a token: %v", odd, err)
		}
	}
}
