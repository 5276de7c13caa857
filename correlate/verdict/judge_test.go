package verdict_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// calibrated is an eta that makes the fractions of the tests those of the achievable.
func calibrated() verdict.Eta {
	return verdict.Eta{Bandwidth: 1, Tensor: 1, BandwidthOrigin: verdict.OriginCalibrated, TensorOrigin: verdict.OriginCalibrated}
}

// cell is a decode-only cell of whole coverage.
func cell(d, c, s, g float64) verdict.Input {
	return verdict.Input{
		DRAM: timeline.Known(d), Tensor: timeline.Known(c), SM: timeline.Known(s), Graphics: timeline.Known(g),
		CellS: 1, CoveredS: 1, Windows: 10, WindowS: 0.1,
		Eta: calibrated(), Coverage: timeline.Known(1), Rho: timeline.Absent("no model"), Parallel: 1,
		Device: verdict.Device{Clock: timeline.Known(1980e6), RateClockHz: 1830e6},
		Work: verdict.Work{
			Running: timeline.Known(8), Decode: timeline.Known(1000), Prompt: timeline.Known(0),
			Context: timeline.Absent("not told"), Steps: timeline.Known(125),
		},
	}
}

func without(in verdict.Input, change func(*verdict.Input)) verdict.Input {
	change(&in)
	return in
}

func TestLabelsFollowTheirOrder(t *testing.T) {
	tests := []struct {
		name string
		in   verdict.Input
		want timeline.Label
	}{
		{"DRAM near its roof is memory", cell(0.9, 0.2, 0.95, 1), timeline.Memory},
		{"DRAM and tensor close together is not memory", cell(0.8, 0.7, 0.95, 1), timeline.Balanced},
		{"DRAM between 60 and 75 % is memory", cell(0.65, 0.2, 0.7, 0.75), timeline.Memory},
		{"tensor near its roof is compute", cell(0.2, 0.8, 0.95, 1), timeline.Compute},
		{"tensor at 66 % of a calibrated roof is compute", cell(0.2, 0.66, 0.95, 1), timeline.Compute},
		{"nothing resident a third of the time is host", cell(0.3, 0.1, 0.5, 0.65), timeline.Host},
		{"a gap of a third beside more time at the DRAM roof is memory", cell(0.62, 0.1, 0.65, 0.69), timeline.Memory},
		{"a gap that is not the largest share is no host", cell(0.4, 0.1, 0.55, 0.65), timeline.Undetermined},
		{"a gap close to the launch share is host or launch", cell(0.15, 0.1, 0.3, 0.6), timeline.HostOrLaunch},
		{"a gap of twice the launch share is host", cell(0.15, 0.1, 0.3, 0.51), timeline.Host},
		{"gaps and unfilled SMs below the threshold of each are host or launch", cell(0.2, 0.1, 0.42, 0.75), timeline.HostOrLaunch},
		{"gaps and unfilled SMs below a half are neither", cell(0.3, 0.1, 0.55, 0.75), timeline.Undetermined},
		{"sure memory comes before host", cell(0.76, 0.1, 0.3, 0.3), timeline.Memory},
		{"resident and unfilled is launch", cell(0.2, 0.1, 0.3, 0.95), timeline.Launch},
		{"resident and unfilled without graphics is host or launch", without(cell(0.2, 0.1, 0.3, 0), func(in *verdict.Input) {
			in.Graphics = timeline.Absent("not read")
		}), timeline.HostOrLaunch},
		{"busy SMs off both roofs is busy", cell(0.3, 0.2, 0.8, 1), timeline.Busy},
		{"no share wins is undetermined", cell(0.4, 0.2, 0.6, 0.85), timeline.Undetermined},
		{"FP8 work shows in the sum of tensor pipes alone and is compute", cell(0.2, 0.8, 0.9, 1), timeline.Compute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := verdict.Judge(&tt.in)
			if got.Label != tt.want {
				t.Errorf("got %s (%s), want %s; shares %+v", got.Label, got.Reason, tt.want, got.Shares)
			}
			if got.Confidence > timeline.Low {
				t.Errorf("a lone cell has confidence %s", got.Confidence)
			}
		})
	}
}

func TestAssumedComputeRoofNeedsMore(t *testing.T) {
	in := cell(0.2, 0.70, 0.95, 1)
	in.Eta.TensorOrigin = verdict.OriginAssumed
	got := verdict.Judge(&in)
	if got.Label != timeline.Compute || got.Ceiling != timeline.Medium {
		t.Errorf("got %s with ceiling %s, want compute by the likely rule, medium", got.Label, got.Ceiling)
	}
}

func TestGatesWithhold(t *testing.T) {
	tests := []struct {
		name string
		in   func(in *verdict.Input)
		want string
	}{
		{"caller's gate", func(in *verdict.Input) { in.Gate = verdict.ReasonMIG }, verdict.ReasonMIG},
		{"two windows", func(in *verdict.Input) { in.Windows = 2 }, verdict.ReasonWindows},
		{"a third covered", func(in *verdict.Input) { in.CoveredS = 0.33 }, verdict.ReasonCoverage},
		{"clock bound above a quarter of a window", func(in *verdict.Input) { in.ClockBoundS = 0.026 }, verdict.ReasonClock},
		{"foreign process", func(in *verdict.Input) { in.Foreign = true }, verdict.ReasonForeign},
		{"no tensor counter", func(in *verdict.Input) { in.Tensor = timeline.Absent("x") }, verdict.ReasonNoCounters},
		{"no DRAM counter", func(in *verdict.Input) { in.DRAM = timeline.Absent("x") }, verdict.ReasonNoCounters},
		{"nothing runs", func(in *verdict.Input) { in.Work.Running = timeline.Known(0) }, verdict.ReasonIdle},
		{"pipeline bubble", func(in *verdict.Input) {
			in.Pipeline, in.Graphics, in.SM, in.DRAM = 2, timeline.Known(0.5), timeline.Known(0.4), timeline.Known(0.3)
		}, verdict.ReasonPipeline},
		{"pipeline bubble without graphics", func(in *verdict.Input) {
			in.Pipeline, in.Graphics, in.SM, in.DRAM = 2, timeline.Absent("not read"), timeline.Known(0.3), timeline.Known(0.2)
		}, verdict.ReasonPipeline},
		{"pipeline bubble in steps with prompts", func(in *verdict.Input) {
			in.Pipeline, in.Graphics, in.SM, in.DRAM = 2, timeline.Known(0.3), timeline.Known(0.2), timeline.Known(0.1)
			in.Work.Prompt = timeline.Known(500)
		}, verdict.ReasonPipeline},
		{"idle rank", func(in *verdict.Input) {
			in.IdleRank, in.Graphics, in.SM, in.DRAM = true, timeline.Known(0.5), timeline.Known(0.4), timeline.Known(0.3)
		}, verdict.ReasonIdleRank},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := without(cell(0.9, 0.1, 0.95, 1), tt.in)
			got := verdict.Judge(&in)
			if got.Label != timeline.Undetermined || got.Reason != tt.want || got.Confidence != timeline.NoConfidence {
				t.Errorf("got %s (%s), confidence %s; want undetermined (%s)", got.Label, got.Reason, got.Confidence, tt.want)
			}
		})
	}
	in := cell(0.9, 0.1, 0.95, 1)
	in.Foreign, in.AllowForeign = true, true
	if got := verdict.Judge(&in); got.Label != timeline.Memory || got.Ceiling != timeline.Low || !slices.Contains(got.Overlays, timeline.NoisyNeighbour) {
		t.Errorf("asked to judge beside a foreign process: got %s, ceiling %s, %v", got.Label, got.Ceiling, got.Overlays)
	}
}

func TestSharesSumToOneAndRoofsLieInTheInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := model(t)
	for range 20000 {
		in := cell(rng.Float64()*1.1, rng.Float64()*1.1, rng.Float64(), rng.Float64())
		in.Eta = verdict.Eta{Bandwidth: 0.9, Tensor: 0.93}
		in.Work.Prompt = timeline.Known(rng.Float64() * 20000 * float64(rng.IntN(2)))
		in.Work.Context = timeline.Known(rng.Float64() * 200000)
		if rng.IntN(2) == 0 {
			in.Model = m
		}
		if rng.IntN(4) == 0 {
			in.Graphics = timeline.Absent("not read")
		}
		if rng.IntN(4) == 0 {
			in.SM = timeline.Absent("not read")
		}
		v := verdict.Judge(&in)
		if s := v.Shares.Sum(); math.Abs(s-1) > 1e-9 {
			t.Fatalf("shares %+v sum to %v for %+v", v.Shares, s, in)
		}
		for _, x := range []float64{v.Shares.Memory, v.Shares.Compute, v.Shares.Launch, v.Shares.Host, v.Shares.Other} {
			if x < -1e-12 {
				t.Fatalf("negative share in %+v", v.Shares)
			}
		}
		if roof := v.Shares.Memory + v.Shares.Compute; roof < v.Roof.Low-1e-9 || roof > v.Roof.High+1e-9 {
			t.Fatalf("roof time %v outside %+v", roof, v.Roof)
		}
	}
}

func TestNoiseDoesNotNameTheWrongRoof(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	wrong := 0
	const trials = 20000
	for range trials {
		d, c, s, g := rng.Float64(), rng.Float64(), rng.Float64(), rng.Float64()
		in := cell(d+0.05*rng.NormFloat64(), c+0.05*rng.NormFloat64(), s+0.05*rng.NormFloat64(), g+0.05*rng.NormFloat64())
		v := verdict.Judge(&in)
		if v.Ceiling == timeline.High && (v.Label == timeline.Memory && c > d || v.Label == timeline.Compute && d > c) {
			wrong++
		}
	}
	if wrong > trials/1000 {
		t.Errorf("%d of %d verdicts that can become high name the wrong roof, want at most 0.1 %%", wrong, trials)
	}
	t.Logf("wrong roof: %d of %d", wrong, trials)
}

// Published counters of Qwen3-30B-A3B and Qwen3-Next-80B-A3B on one H200 (a public decode sweep read with DCGM: DRAM
// 1005, SM 1002, tensor 1004; activity of the graphics engine was not published).
func TestPublishedSweepIsNeverAtARoof(t *testing.T) {
	tests := []struct {
		name             string
		dram, sm, tensor float64
		want             timeline.Label
	}{
		{"eager, 1 request", 0.018, 0.036, 0.003, timeline.HostOrLaunch},
		{"graphs, 1 request", 0.136, 0.275, 0.020, timeline.HostOrLaunch},
		{"eager, 256 requests", 0.053, 0.20, 0.030, timeline.HostOrLaunch},
		{"graphs, 256 requests", 0.243, 0.60, 0.10, timeline.Undetermined},
		{"eager, 1024 requests", 0.219, 0.55, 0.116, timeline.Undetermined},
		{"graphs, 2048 requests", 0.283, 0.75, 0.159, timeline.Busy},
		{"graphs, 4096 requests", 0.266, 0.84, 0.167, timeline.Busy},
		{"larger model, eager, 256 requests", 0.070, 0.197, 0.021, timeline.HostOrLaunch},
		{"larger model, eager, cache full", 0.164, 0.41, 0.040, timeline.HostOrLaunch},
	}
	g, err := hardware.LookupGPU("h200")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := cell(tt.dram, tt.tensor, tt.sm, 0)
			in.Graphics, in.Eta = timeline.Absent("not published"), verdict.EtaOf(g)
			if got := verdict.Judge(&in); got.Label != tt.want {
				t.Errorf("got %s (%s), want %s; shares %+v", got.Label, got.Reason, tt.want, got.Shares)
			}
		})
	}
}

func TestOverlays(t *testing.T) {
	tests := []struct {
		name string
		in   func(in *verdict.Input)
		want []timeline.Overlay
	}{
		{"a healthy cell has none", func(*verdict.Input) {}, nil},
		{"throttle time", func(in *verdict.Input) { in.Device.ThrottledPart = 0.3 }, []timeline.Overlay{timeline.Throttled}},
		{"clocks locked low, no reason told", func(in *verdict.Input) { in.Device.Clock = timeline.Known(1605e6) }, []timeline.Overlay{timeline.Throttled}},
		{"preemptions", func(in *verdict.Input) { in.Preempted = 3 }, []timeline.Overlay{timeline.Preempted}},
		{"prompt work among decode", func(in *verdict.Input) { in.Work.Prompt = timeline.Known(500) }, []timeline.Overlay{timeline.PrefillInterference}},
		{"ranks with time to explain", func(in *verdict.Input) { in.Parallel, in.DRAM = 4, timeline.Known(0.8) }, []timeline.Overlay{timeline.CommOrStraggler}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := without(cell(0.9, 0.1, 0.95, 1), tt.in)
			if diff := cmp.Diff(tt.want, verdict.Judge(&in).Overlays); diff != "" {
				t.Errorf("overlays mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStragglerIsTheBusyRank(t *testing.T) {
	in := cell(0.5, 0.1, 0.6, 0.99)
	in.Parallel = 4
	for i, sm := range []float64{0.55, 0.56, 0.80, 0.54} {
		in.Ranks = append(in.Ranks, verdict.Rank{UUID: string(rune('a' + i)), SM: timeline.Known(sm), Clock: timeline.Known(1980e6)})
	}
	got := verdict.Judge(&in)
	if got.Label != timeline.Communication || got.Rank != "c" {
		t.Errorf("got %s waiting for %q, want communication waiting for c", got.Label, got.Rank)
	}
	in.Ranks[2].SM = timeline.Known(0.55)
	in.Ranks[1].Clock = timeline.Known(1300e6)
	if got := verdict.Judge(&in); got.Label == timeline.Communication || got.Rank != "b" {
		t.Errorf("a slow clock without waits: got %s, rank %q; want rank b named and no communication", got.Label, got.Rank)
	}
}

func TestLongContextLowersComputeAndDoesNotRefuseIt(t *testing.T) {
	in := cell(0.2, 0.8, 0.95, 1)
	in.Model = model(t)
	in.Rho, in.Band = timeline.Known(1), timeline.Interval{Low: 0.9, High: 1.25}
	in.Work.Context = timeline.Known(8 * 4000)
	got := verdict.Judge(&in)
	if got.Label != timeline.Compute || got.Ceiling != timeline.Medium {
		t.Errorf("got %s with ceiling %s, want compute, medium", got.Label, got.Ceiling)
	}
}

func TestWithoutPromptCountsTheCellIsMixed(t *testing.T) {
	in := cell(0.9, 0.1, 0.95, 1)
	in.Work.Prompt = timeline.Absent("not told")
	if got := verdict.Judge(&in); got.Label != timeline.Mixed || got.Ceiling != timeline.Low {
		t.Errorf("got %s with ceiling %s, want mixed, low", got.Label, got.Ceiling)
	}
}

func TestFewPromptTokensLeaveACellDecodeOnly(t *testing.T) {
	for prompt, mixed := range map[float64]bool{0: false, 19: false, 30: true} {
		in := cell(0.9, 0.1, 0.95, 1)
		in.Work.Prompt = timeline.Known(prompt)
		if got := verdict.Judge(&in); got.Mixed != mixed {
			t.Errorf("%v prompt tokens beside 1000: mixed %v, want %v", prompt, got.Mixed, mixed)
		}
	}
}

func TestCountersAloneProveARoofInAMixedCell(t *testing.T) {
	in := cell(0.95, 0.2, 0.98, 1)
	in.Work.Prompt = timeline.Known(500)
	if got := verdict.Judge(&in); got.Label != timeline.Memory || got.Ceiling > timeline.Medium {
		t.Errorf("no overlap can hide 75 %% at the memory roof: got %s, ceiling %s", got.Label, got.Ceiling)
	}
	in = cell(0.7, 0.5, 0.98, 1)
	in.Work.Prompt = timeline.Known(500)
	if got := verdict.Judge(&in); got.Label != timeline.Mixed {
		t.Errorf("got %s, want mixed", got.Label)
	}
}

func TestWaitsAreNamedInAMixedCell(t *testing.T) {
	tests := []struct {
		name       string
		d, c, s, g float64
		want       timeline.Label
	}{
		{"no kernel resident four fifths of the time is host", 0.1, 0.03, 0.15, 0.17, timeline.Host},
		{"half of the time is not enough", 0.3, 0.1, 0.45, 0.55, timeline.Mixed},
		{"resident and unfilled is launch", 0.2, 0.1, 0.3, 0.95, timeline.Launch},
		{"gaps and unfilled SMs together are host or launch", 0.2, 0.1, 0.3, 0.6, timeline.HostOrLaunch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := cell(tt.d, tt.c, tt.s, tt.g)
			in.Work.Prompt = timeline.Known(500)
			if got := verdict.Judge(&in); got.Label != tt.want || got.Ceiling != timeline.Medium {
				t.Errorf("got %s (%s), ceiling %s, want %s, medium; shares %+v", got.Label, got.Reason, got.Ceiling, tt.want, got.Shares)
			}
			run := verdict.Run(timed(30, func(int) verdict.Input { return in }))
			if run.Label != tt.want || run.Confidence != timeline.Medium {
				t.Errorf("thirty such cells: got %s %s (%v), want %s medium", run.Label, run.Confidence, run.Caps, tt.want)
			}
		})
	}
	in := cell(0.1, 0.03, 0.15, 0.17)
	in.Work.Prompt = timeline.Known(500)
	in.Graphics = timeline.Absent("not read")
	if got := verdict.Judge(&in); got.Label != timeline.HostOrLaunch {
		t.Errorf("without graphics activity: got %s, want host_or_launch", got.Label)
	}
	in.Work.Prompt = timeline.Absent("not told")
	if got := verdict.Judge(&in); got.Label != timeline.HostOrLaunch || got.Ceiling != timeline.Low {
		t.Errorf("a gap needs no count of prompts: got %s, ceiling %s, want host_or_launch, low", got.Label, got.Ceiling)
	}
}

func TestAWaitThatHardlyExceedsTheRoofsIsNotSure(t *testing.T) {
	for gap, want := range map[float64]timeline.Confidence{0.45: timeline.Low, 0.52: timeline.Medium, 0.6: timeline.High} {
		in := cell(0.95-gap-0.05, 0.05, 0.95-gap, 1-gap)
		if got := verdict.Judge(&in); got.Label != timeline.Host || got.Ceiling != want {
			t.Errorf("gap %v: got %s, ceiling %s (%v), want host, %s", gap, got.Label, got.Ceiling, got.Caps, want)
		}
	}
}

func model(t *testing.T) *roofline.Model {
	t.Helper()
	spec, err := hardware.LookupModel("Llama-3.1-8B")
	if err != nil {
		t.Fatal(err)
	}
	g, err := hardware.LookupGPU("h100")
	if err != nil {
		t.Fatal(err)
	}
	m, err := roofline.New(spec, g, "bf16", "bf16", 1)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func BenchmarkJudge(b *testing.B) {
	in := cell(0.9, 0.1, 0.95, 1)
	b.ReportAllocs()
	for b.Loop() {
		verdict.Judge(&in)
	}
}

func BenchmarkRun(b *testing.B) {
	in := cell(0.9, 0.1, 0.95, 1)
	cells := make([]verdict.Timed, 64)
	for i := range cells {
		at := timeline.Instant(1e12).Add(time.Duration(i) * time.Second)
		cells[i] = verdict.Timed{Verdict: verdict.Judge(&in), Over: timeline.Span{Start: at, End: at.Add(time.Second)}}
	}
	b.ReportAllocs()
	for b.Loop() {
		verdict.Run(cells)
	}
}
