package summary_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

func objective(t *testing.T, text string) slo.Objective {
	t.Helper()
	o, err := slo.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func bounds(t *testing.T, text string) []slo.Bound {
	t.Helper()
	b, err := slo.ParseBounds(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// served is the configuration of a target whose model is known.
func served() summary.Config {
	return summary.Config{
		Anchor:  anchor(),
		Targets: []timeline.Target{{Name: "llama", Model: "Llama-3.1-70B", DType: "fp8", KVDType: "fp8", TP: 1}},
	}
}

func TestObjectivesAreJudgedOverWhatPercentilesAreOf(t *testing.T) {
	c := summary.Config{Goodput: bounds(t, "ttft<201ms,tpot<21ms")}
	for _, text := range []string{"tpot.p90<25ms", "tpot.p50<15ms", "ttft.max<100ms", "itl.p99<1s", "e2e.mean<2s", "tpot.p99.9<25ms"} {
		c.Objectives = append(c.Objectives, objective(t, text))
	}
	r := recording(c, 1).Report()
	want := []slo.Outcome{slo.Met, slo.Missed, slo.Missed, slo.Met, slo.Met, slo.Undecided}
	for i, w := range want {
		if r.SLO[i].Outcome != w {
			t.Errorf("%+v, want %s", r.SLO[i], w)
		}
	}
	if r.SLOOutcome != slo.Missed || r.SLO[0].N != r.TPOT.N || r.SLO[3].N != r.ITL.N || r.SLO[0].N != 418 {
		t.Errorf("outcome %s over %d requests and %d gaps, want missed over %d and %d", r.SLOOutcome, r.SLO[0].N, r.SLO[3].N, r.TPOT.N, r.ITL.N)
	}
	if got := r.SLO[0].Value; !got.OK() || math.Abs(got.Value-r.TPOT.P90.Value) > 1e-12 {
		t.Errorf("p90 %v, want that of the report, %v", got, r.TPOT.P90)
	}
	g := r.Goodput
	if g == nil || g.Requests != 418 || g.Good <= 0 || g.Good >= g.Requests || g.GoodRequestsPerS.Value > g.RequestsPerS.Value {
		t.Errorf("goodput %+v, want a part of 418 requests", g)
	}
	if per := g.GoodTokensPerS.Value / g.GoodRequestsPerS.Value; math.Abs(per-40) > 1e-6 {
		t.Errorf("%v tokens a good request, want 40", per)
	}
}

func TestWhatIsNotAskedForIsNotThere(t *testing.T) {
	text, err := json.Marshal(recording(summary.Config{}, 1).Report())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"slo"`, `"slo_outcome"`, `"goodput"`} {
		if strings.Contains(string(text), key) {
			t.Errorf("%s is in a report that was not asked for it", key)
		}
	}
}

func TestGoodputCountsFailuresAndNotWhatWasGivenUp(t *testing.T) {
	b := summary.New(summary.Config{Goodput: bounds(t, "tpot<1s")})
	for i := range 100 {
		p := phase(float64(i)/10, 40, 0.02)
		switch i % 5 {
		case 0:
			p.Request.Status = timeline.StatusTruncated
		case 1:
			p.Request.Status = timeline.StatusCancelled
		case 2:
			p = phase(float64(i)/10, 1, 0.02) // one token: no pace that could be too slow
		}
		b.AddPhase(&p)
	}
	g := b.Report().Goodput
	if g.Requests != 80 || g.Good != 60 || g.Failed != 20 || g.Given != 20 || g.Unknown != 0 || g.Attained.Value != 0.75 {
		t.Errorf("%+v, want 60 good of 80, of which 20 failed, and 20 given up", g)
	}
}

// Groups are parts of the requests with a TPOT, and a wider objective is never worse.
func TestCountsAddUpWhateverComes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	rank := map[slo.Outcome]int{slo.Missed: 0, slo.Undecided: 1, slo.Met: 2}
	for range 25 {
		c := summary.Config{Goodput: bounds(t, "ttft<250ms,tpot<20ms")}
		for limit := 5 * time.Millisecond; limit < time.Second; limit *= 2 {
			c.Objectives = append(c.Objectives, objective(t, "tpot.p90<"+limit.String()))
		}
		b := summary.New(c)
		for i := range 1 + rng.IntN(300) {
			p := phase(float64(i)*rng.Float64(), 1+rng.IntN(200), 0.001+0.05*rng.Float64())
			p.Request.Status = timeline.Status(rng.IntN(3) * rng.IntN(3))
			p.Warmup = rng.IntN(20) == 0
			p.Concurrency = timeline.Known(100 * rng.Float64())
			if rng.IntN(4) == 0 {
				p.Concurrency = timeline.Absent("not known")
			}
			b.AddPhase(&p)
		}
		r := b.Report()
		sum := 0
		for i := range r.Groups {
			sum += r.Groups[i].Requests
		}
		q := &r.Requests
		if sum != q.TPOTDefined || q.OK+q.Failed+q.Truncated+q.Cancelled+q.Unfinished != q.Total {
			t.Fatalf("groups hold %d of %+v", sum, q)
		}
		if g := r.Goodput; g.Good > g.Requests || g.Requests+g.Unknown+g.Given+q.Warmup < q.Total || g.Requests+g.Unknown+g.Given > q.Total {
			t.Fatalf("goodput %+v of %+v", g, q)
		}
		for i := 1; i < len(r.SLO); i++ {
			if r.SLO[i].N > 0 && (rank[r.SLO[i].Outcome] < rank[r.SLO[i-1].Outcome] || r.SLO[i].Kept.Value < r.SLO[i-1].Kept.Value) {
				t.Fatalf("%+v after %+v", r.SLO[i], r.SLO[i-1])
			}
		}
	}
}

func TestAStepIsHeldAgainstTheModelOfItsTarget(t *testing.T) {
	b := summary.New(served())
	b.SetGPUs([]timeline.GPU{{UUID: "GPU-aaaa", Name: "NVIDIA H100 80GB HBM3"}})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 60 {
		cell := memoryCell(rng, i, 1)
		cell.ContextSum = timeline.Known(16 * 1000)
		b.AddCell(&cell)
	}
	r := b.Report()
	// 70.55 GB of weights and 16,000 tokens of cache at 163,840 bytes, 0.9 of 3.35 TB/s: 24.3 ms.
	if s := r.Step; s.MeasuredS.Value != 0.02 || math.Abs(s.ExpectedS.Value-0.02427) > 2e-4 || math.Abs(s.OverFloor.Value-0.916) > 0.01 {
		t.Errorf("%+v, want steps of 20 ms below a floor of 21.8", s)
	}
	found := strings.Join(r.Warnings, "\n")
	if !strings.Contains(found, "of the least that the model allows") || !strings.Contains(found, "measured DRAM bytes are 0.68 of modelled ones") {
		t.Errorf("warnings %q, want that the model cannot be right", found)
	}
	if !strings.Contains(r.Decode.Refute, "below 54 % of peak bandwidth") {
		t.Errorf("refuted if %q, want a figure of the counter", r.Decode.Refute)
	}
}

// A run whose label holds a part of the time alone is not refuted by what the counter read in the rest.
func TestAStatementIsNotRefutedByTheTimeItDoesNotSpeakOf(t *testing.T) {
	b := summary.New(served())
	b.SetGPUs([]timeline.GPU{{UUID: "GPU-aaaa", Name: "NVIDIA H100 80GB HBM3"}})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 60 {
		cell := memoryCell(rng, i, 1)
		if i >= 35 {
			cell.Verdict.Label, cell.Verdict.Reason, cell.Verdict.D = timeline.Undetermined, verdict.ReasonNoShare, 0.1
			cell.Counters[timeline.DRAMUtil].Value = 0.09
		}
		b.AddCell(&cell)
	}
	d := b.Report().Decode
	var limit, read, part float64
	if _, err := fmt.Sscanf(d.Refute, "a minute at this TPOT reads DRAM below %f %% of peak bandwidth (it read %f %% in the %f %% of the time so labelled)", &limit, &read, &part); err != nil {
		t.Fatalf("refuted if %q: %v", d.Refute, err)
	}
	if d.Bound != timeline.Memory || 100*d.DRAM.Value > limit || read < limit || math.Abs(read-76.5) > 1.5 || math.Abs(part-58) > 1 {
		t.Errorf("%s at %v of all the time: refuted if %q", d.Bound, d.DRAM.Value, d.Refute)
	}
}

func TestTheRankThatOthersWaitForIsNamed(t *testing.T) {
	b := summary.New(served())
	b.SetGPUs([]timeline.GPU{{UUID: "GPU-aaaa", Name: "NVIDIA H100 80GB HBM3"}, {UUID: "GPU-bbbb", Name: "NVIDIA H100 80GB HBM3", Index: 1}})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 60 {
		cell := memoryCell(rng, i, 1)
		cell.Verdict.Label, cell.Verdict.Rank = timeline.Communication, "GPU-bbbb"
		cell.Verdict.Shares = timeline.Shares{Memory: 0.3, Launch: 0.7}
		cell.PerGPU = append(cell.PerGPU, correlate.GPUCell{GPU: 1, UUID: "GPU-bbbb", Counters: cell.Counters, Windows: 10, CoveredS: 1})
		b.AddCell(&cell)
	}
	r := b.Report()
	if r.Decode.Bound != timeline.Communication || r.Decode.Rank != "GPU-bbbb" {
		t.Errorf("%s, rank %q, want communication and GPU-bbbb", r.Decode.Bound, r.Decode.Rank)
	}
	if len(r.Help) == 0 || r.Help[0].What != "ranks" || r.Help[0].Name != "GPU 1 as fast as the other ranks" {
		t.Errorf("%+v would help, want the slow rank first", r.Help)
	}
}

func TestRhoIsWithheldWhereTheProbeMissesTraffic(t *testing.T) {
	for _, coverage := range []float64{0.1, 0.3, 0.6, 1} {
		b := summary.New(served())
		b.SetGPUs([]timeline.GPU{{UUID: "GPU-aaaa", Name: "NVIDIA H100 80GB HBM3"}})
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 30 {
			cell := memoryCell(rng, i, coverage)
			cell.ContextSum = timeline.Known(16 * 1000)
			b.AddCell(&cell)
		}
		r := b.Report()
		if d := &r.Decode; d.Rho.OK() != (coverage == 1) || d.BytesPerToken.Measured.OK() != (coverage == 1) || d.MBU.OK() != (coverage == 1) {
			t.Errorf("coverage %v: rho %v, bytes a token %v, mbu %v", coverage, d.Rho, d.BytesPerToken.Measured, d.MBU)
		}
		if !r.Step.OverExpected.OK() {
			t.Errorf("coverage %v: %+v, want a step all the same, which is the engine's own", coverage, r.Step)
		}
	}
}

func TestSeveralTargetsHaveNoStepInCommon(t *testing.T) {
	b := recording(served(), 1)
	rng := rand.New(rand.NewPCG(2, 2))
	other := memoryCell(rng, 1, 1)
	other.Target = "qwen"
	b.AddCell(&other)
	if r := b.Report(); r.Step.MeasuredS.OK() || len(r.Help) > 0 || !strings.Contains(r.Step.MeasuredS.Why, "--target") {
		t.Errorf("%+v, want no step of two targets", r.Step)
	}
}

func TestSteady(t *testing.T) {
	for name, tt := range map[string]struct {
		cells   int
		tpot    func(i int) float64
		settled float64
		warns   bool
	}{
		"noise alone is steady":          {120, func(i int) float64 { return 0.02 * (1 + 0.002*math.Sin(float64(i*i))) }, 0, false},
		"a ramp at the start is cut off": {120, func(i int) float64 { return 0.02 * (1 + max(0, 1-float64(i)/25)) }, 25, true},
		"a small drift is no word worth": {120, func(i int) float64 { return 0.02 * (1 + 0.0002*float64(i)) }, 0, false},
		"a slope throughout settles not": {120, func(i int) float64 { return 0.02 * (1 + 0.02*float64(i)) }, -1, true},
		"few cells say nothing":          {20, func(int) float64 { return 0.02 }, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := summary.New(summary.Config{})
			rng := rand.New(rand.NewPCG(1, 1))
			for i := range tt.cells {
				c := memoryCell(rng, i, 1)
				c.WindowTPOT = timeline.Known(tt.tpot(i))
				b.AddCell(&c)
			}
			r := b.Report()
			if s := r.Steady.SettledS; s.OK() != (tt.settled >= 0) || s.OK() && math.Abs(s.Value-tt.settled) > 10 {
				t.Errorf("settles %v, want about %v s", s, tt.settled)
			}
			if got := strings.Contains(strings.Join(r.Warnings, "\n"), "MSER-5"); got != tt.warns {
				t.Errorf("warnings %q, want a word on it: %v", r.Warnings, tt.warns)
			}
		})
	}
}

// What clients see holds the way to them, which the engine's own figure does not: that a probe came later is no change.
func TestAProbeThatCameLaterIsNoOtherPace(t *testing.T) {
	b := summary.New(summary.Config{})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 120 {
		c := memoryCell(rng, i, 1)
		noise := 1 + 0.002*math.Sin(float64(i*i))
		c.EngineTPOT, c.WindowTPOT = timeline.Known(0.020*noise), timeline.Absent("no probe")
		if i >= 50 {
			c.WindowTPOT = timeline.Known(0.024 * noise)
		}
		b.AddCell(&c)
	}
	if s := b.Report().Steady; !s.SettledS.OK() || s.SettledS.Value != 0 || s.Differs.OK() {
		t.Errorf("%+v, want it steady throughout", s)
	}
}

func TestPercentilesCarryTheirIntervals(t *testing.T) {
	r := recording(summary.Config{}, 1).Report()
	s := &r.TPOT
	for _, q := range []struct {
		name string
		m    timeline.Measure
		iv   summary.Maybe[timeline.Interval]
	}{{"p50", s.P50, s.CI95P50}, {"p90", s.P90, s.CI95P90}, {"p99", s.P99, s.CI95P99}} {
		if !q.m.OK() || !q.iv.OK() || q.iv.Value.Low > q.m.Value || q.iv.Value.High < q.m.Value {
			t.Errorf("%s %v with interval %+v", q.name, q.m, q.iv)
		}
	}
	if r.ITL.CI95P50.OK() || !strings.Contains(r.ITL.CI95P50.Why, "not independent") {
		t.Errorf("gaps have the interval %+v", r.ITL.CI95P50)
	}
	few := summary.New(summary.Config{})
	for i := range 100 {
		p := phase(float64(i), 40, 0.02)
		few.AddPhase(&p)
	}
	if iv := few.Report().TPOT.CI95P99; iv.OK() || iv.Why != "needs 368 values, there are 100" {
		t.Errorf("the p99 of a hundred has the interval %+v", iv)
	}
	sketched := recording(summary.Config{Exact: 50}, 1).Report()
	if iv := sketched.TPOT.CI95P90; !iv.OK() || iv.Value.Low > sketched.TPOT.P90.Value || iv.Value.High < sketched.TPOT.P90.Value {
		t.Errorf("the p90 %v of a sketch has the interval %+v", sketched.TPOT.P90, iv)
	}
}
