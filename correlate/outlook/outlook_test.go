package outlook_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

const uuid = "GPU-aaaa"

// facts are of an 8B model in bf16 on one H100.
func facts() outlook.Facts {
	return outlook.Facts{
		Target: timeline.Target{Name: "chat", Model: "Llama-3.1-8B", DType: "bf16", KVDType: "bf16"},
		GPUs:   []timeline.GPU{{UUID: uuid, Name: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30}},
	}
}

// cell returns a second of so many steps at that batch and context.
func cell(i int, steps, batch, context float64) *correlate.Cell {
	at := timeline.Instant(i) * timeline.Instant(time.Second)
	c := &correlate.Cell{
		Span: timeline.Span{Start: at, End: at.Add(time.Second)}, Decode: true,
		Batch: timeline.Known(batch), OutputTokens: timeline.Known(steps * batch), PromptTokens: timeline.Known(0), Steps: timeline.Known(steps),
		ContextSum: timeline.Known(batch * context), PerGPU: []correlate.GPUCell{{UUID: uuid}}, DRAMBytes: timeline.Absent("not read"),
	}
	return c
}

func TestTheFloorIsThatOfTheWorkedExample(t *testing.T) {
	tally := outlook.New(facts())
	tally.Add(cell(0, 100, 1, 4096))
	s := tally.Step()
	// 15.010 GB of weights and 0.537 GB of cache at 3.35 TB/s, one sequence at 4,096 tokens.
	if got := s.FloorS.Value; math.Abs(got-4.64e-3) > 0.01e-3 {
		t.Errorf("floor %v s, want 4.64 ms", got)
	}
	if got := s.ExpectedS.Value; math.Abs(got-4.64e-3/0.9) > 0.02e-3 {
		t.Errorf("expected %v s, want the floor over 0.9", got)
	}
	if s.MeasuredS.Value != 0.01 || math.Abs(s.OverFloor.Value-0.01/s.FloorS.Value) > 1e-9 || s.StepsFrom != "engine" {
		t.Errorf("%+v, want steps of 10 ms as the engine counted them", s)
	}
	if len(s.Assumed) != 0 || s.Origin != verdict.OriginTable || s.InChunksS != s.ExpectedS {
		t.Errorf("%+v, want nothing assumed", s)
	}
}

func TestWhatIsNotKnownIsSaid(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(f *outlook.Facts)
		want   string
	}{
		"nothing":      {func(f *outlook.Facts) { f.Target = timeline.Target{} }, "neither model nor number format is known"},
		"no model":     {func(f *outlook.Facts) { f.Target.Model = "" }, "the model is not known"},
		"other model":  {func(f *outlook.Facts) { f.Target.Model = "home-grown-3B" }, "the model is in no table: home-grown-3B"},
		"no format":    {func(f *outlook.Facts) { f.Target.DType = "" }, "the number format of the weights is not known"},
		"odd format":   {func(f *outlook.Facts) { f.Target.DType = "q17" }, "the byte model does not know this"},
		"no GPU":       {func(f *outlook.Facts) { f.GPUs = nil }, "the GPU is not described"},
		"unlisted GPU": {func(f *outlook.Facts) { f.GPUs[0].Name = "NVIDIA Z9" }, "the GPU is in no table: NVIDIA Z9"},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			tt.change(&f)
			tally := outlook.New(f)
			tally.Add(cell(0, 100, 4, 1000))
			s := tally.Step()
			if s.ExpectedS.OK() || s.FloorS.OK() || s.OverExpected.OK() || !strings.Contains(s.ExpectedS.Why, tt.want) {
				t.Errorf("expected %v, want none because %q", s.ExpectedS, tt.want)
			}
			if !s.MeasuredS.OK() || s.MeasuredS.Value != 0.01 {
				t.Errorf("measured %v, want 10 ms all the same", s.MeasuredS)
			}
			if _, ok := tally.Traffic(false); ok {
				t.Error("there is a ratio of traffic without a model")
			}
			for _, h := range tally.Help(&s, timeline.Shares{Memory: 0.8, Host: 0.2}, true) {
				if h.What != "host" {
					t.Errorf("%+v is promised without a model", h)
				}
			}
		})
	}
}

func TestCellsThatAreNoWholeStepsAreLeftOut(t *testing.T) {
	for want, change := range map[string]func(c *correlate.Cell){
		"batch or output tokens are not known":          func(c *correlate.Cell) { c.Batch = timeline.Absent("coverage") },
		"no request ran for a part of the time":         func(c *correlate.Cell) { c.Batch.Value = 0.6 },
		"no token came":                                 func(c *correlate.Cell) { c.OutputTokens.Value = 0 },
		"the recording begins or ends in the cell":      func(c *correlate.Cell) { c.Data = timeline.Span{Start: c.Span.Start, End: c.Span.Start + 1e8} },
		"context or prompt tokens are not known, mixed": func(c *correlate.Cell) { c.ContextSum = timeline.Absent("x") },
	} {
		tally := outlook.New(facts())
		c := cell(0, 100, 4, 1000)
		change(c)
		tally.Add(c)
		s := tally.Step()
		why, measured := strings.CutSuffix(want, ", mixed")
		if s.ExpectedS.OK() || s.ExpectedS.Why != why || s.MeasuredS.OK() != measured {
			t.Errorf("%+v, want no expectation because %q", s, why)
		}
	}
}

func TestGuessedStepsAreAssumed(t *testing.T) {
	tally := outlook.New(facts())
	c := cell(0, 100, 4, 1000)
	c.Steps = timeline.Absent("the engine does not tell")
	tally.Add(c)
	if s := tally.Step(); s.MeasuredS.Value != 0.01 || s.StepsFrom == "engine" || len(s.Assumed) != 1 {
		t.Errorf("%+v, want steps of 10 ms that are marked as assumed", s)
	}
	f := facts()
	f.Target.KVDType = ""
	tally = outlook.New(f)
	tally.Add(cell(0, 100, 4, 1000))
	if s := tally.Step(); len(s.Assumed) != 1 || !strings.Contains(s.Assumed[0], "KV cache") {
		t.Errorf("assumed %q, want the format of the cache", s.Assumed)
	}
}

// Chunks of prompts cost at least what the same prompt work costs when it is spread.
func TestChunksNeverExpectLess(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	for range 200 {
		tally := outlook.New(facts())
		c := cell(0, 1+200*rng.Float64(), 1+200*rng.Float64(), 1+8000*rng.Float64())
		c.PromptTokens = timeline.Known(50_000 * rng.Float64())
		tally.Add(c)
		s := tally.Step()
		if !(s.InChunksS.Value >= s.ExpectedS.Value*(1-1e-9)) || !(s.FloorS.Value <= s.ExpectedS.Value) {
			t.Fatalf("%+v: want floor, spread and chunks in this order", s)
		}
	}
}

// Nothing promises more than the share of the time it acts on, whatever the model says.
func TestNoPromiseExceedsItsShare(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 300 {
		f := facts()
		f.Target.DType = []string{"bf16", "fp8", "awq"}[rng.IntN(3)]
		f.Target.KVDType = []string{"", "auto", "bf16", "fp8"}[rng.IntN(4)]
		tally := outlook.New(f)
		c := cell(0, 1+400*rng.Float64(), 1+100*rng.Float64(), 1+20_000*rng.Float64())
		c.PromptTokens = timeline.Known(10_000 * rng.Float64())
		c.Counters[timeline.SMClock] = correlate.Mean{Value: 2e9 * rng.Float64(), CoveredS: 1}
		tally.Add(c)
		s := tally.Step()
		sh := timeline.Shares{Memory: rng.Float64(), Compute: rng.Float64(), Launch: rng.Float64(), Host: rng.Float64(), Other: rng.Float64()}
		sh = sh.Scale(1 / sh.Sum())
		last := math.Inf(1)
		for _, h := range tally.Help(&s, sh, rng.IntN(2) == 0) {
			if h.SavesS > h.Share*s.MeasuredS.Value*(1+1e-9) || h.Share > 1 || h.SavesS > last || h.Part <= 0 || h.SavesS < 0 {
				t.Fatalf("%+v of %v: more than its share, or out of order", h, sh)
			}
			last = h.SavesS
		}
	}
}

func TestAFormatSavesLittleWhereTheHostHolds(t *testing.T) {
	tally := outlook.New(facts())
	tally.Add(cell(0, 50, 8, 1000))
	s := tally.Step()
	help := tally.Help(&s, timeline.Shares{Memory: 0.1, Host: 0.8, Launch: 0.1}, true)
	if len(help) == 0 || help[0].What != "host" || math.Abs(help[0].SavesS-0.016) > 1e-9 {
		t.Fatalf("%+v, want the host's gap of 16 ms first", help)
	}
	for _, h := range help[1:] {
		if h.Part > 0.1+1e-9 {
			t.Errorf("%+v saves more than the tenth that memory holds", h)
		}
	}
	both := tally.Help(&s, timeline.Shares{Memory: 0.1, Host: 0.9}, false)
	if both[0].What != "host_or_launch" {
		t.Errorf("%+v, want host and launch in one, which nothing tells apart", both[0])
	}
}

func TestTrafficOutsideOfItsBandIsAFinding(t *testing.T) {
	for _, tt := range []struct {
		times   float64
		finding bool
	}{{1, false}, {1.2, false}, {0.92, false}, {1.6, true}, {0.5, true}} {
		tally := outlook.New(facts())
		c := cell(0, 100, 4, 1000)
		c.DRAMBytes = timeline.Known(100 * tt.times * (15.010e9 + 4*1000*131072 + 4*131072))
		tally.Add(c)
		f, ok := tally.Traffic(false)
		if !ok || math.Abs(f.Rho-tt.times) > 0.01*tt.times || (f.Rho < f.Band.Low || f.Rho > f.Band.High) != tt.finding {
			t.Errorf("%v times the model: %+v, %v, want a finding %v", tt.times, f, ok, tt.finding)
		}
		if shared, _ := tally.Traffic(true); shared.Band.Low > f.Band.Low || len(shared.Reasons) <= len(f.Reasons) {
			t.Errorf("with shared prefixes %+v, without %+v: want a wider band", shared, f)
		}
	}
}

func TestACalibratedNodeExpectsWhatItReaches(t *testing.T) {
	f := facts()
	f.Eta = map[string]verdict.Eta{uuid: {Bandwidth: 0.45, Tensor: 0.9, BandwidthOrigin: verdict.OriginCalibrated, TensorOrigin: verdict.OriginCalibrated}}
	a, b := outlook.New(facts()), outlook.New(f)
	a.Add(cell(0, 100, 4, 1000))
	b.Add(cell(0, 100, 4, 1000))
	table, calibrated := a.Step(), b.Step()
	if r := calibrated.ExpectedS.Value / table.ExpectedS.Value; math.Abs(r-2) > 0.01 || calibrated.Origin != verdict.OriginCalibrated {
		t.Errorf("expected %v against the table's %v, want twice", calibrated.ExpectedS, table.ExpectedS)
	}
	if table.FloorS != calibrated.FloorS {
		t.Error("the floor is at peak, whatever is reached")
	}
}

func TestDraftsAreAssumedAway(t *testing.T) {
	tally := outlook.New(facts())
	c := cell(0, 100, 8, 1000)
	c.OutputTokens = timeline.Known(100 * 8 * 2.5) // two and a half tokens a request and step
	tally.Add(c)
	s := tally.Step()
	if s.Context != 1000 || s.Batch != 20 || len(s.Assumed) != 1 || !strings.Contains(s.Assumed[0], "drafts") {
		t.Errorf("%+v, want 20 tokens of 8 requests at 1,000 of context, and drafts assumed away", s)
	}
}

func TestWhatHelpsAComputeLimitedStepIsAnUpperBound(t *testing.T) {
	tally := outlook.New(facts())
	c := cell(0, 90, 16, 600)
	c.PromptTokens = timeline.Known(90 * 150)
	c.Counters[timeline.SMClock] = correlate.Mean{Value: 1.1e9, CoveredS: 1}
	tally.Add(c)
	s := tally.Step()
	found := map[string]outlook.Help{}
	for _, h := range tally.Help(&s, timeline.Shares{Memory: 0.45, Compute: 0.45, Launch: 0.1}, true) {
		found[h.What] = h
	}
	for what, least := range map[string]float64{"prompt": 0.1, "clock": 0.05} {
		if h := found[what]; h.Part < least || !h.AtMost {
			t.Errorf("%s: %+v, want an upper bound of %v of the step and more", what, h, least)
		}
	}
	if h, want := found["clock"], 0.55*(1-1.1/1.83)*s.MeasuredS.Value; math.Abs(h.SavesS-want) > 1e-9 {
		t.Errorf("%+v, want the %v s that the clock takes of all that waits for neither DRAM nor host", h, want)
	}
}

// Published: a clock 19 % lower made a small model's steps 7 % longer that had hardly any work for the tensor cores.
func TestAClockMayCostWhatLaunchesTake(t *testing.T) {
	clocked := func(hz float64) (outlook.Help, bool) {
		tally := outlook.New(facts())
		c := cell(0, 90, 4, 600)
		c.Counters[timeline.SMClock] = correlate.Mean{Value: hz, CoveredS: 1}
		tally.Add(c)
		s := tally.Step()
		for _, h := range tally.Help(&s, timeline.Shares{Memory: 0.55, Launch: 0.4, Host: 0.05}, true) {
			if h.What == "clock" {
				return h, true
			}
		}
		return outlook.Help{}, false
	}
	if h, ok := clocked(1.3e9); !ok || !h.AtMost || h.Part < 0.07 {
		t.Errorf("%+v at 1.3 GHz, want an upper bound of 7 %% of the step and more", h)
	}
	if h, ok := clocked(1.98e9); ok {
		t.Errorf("%+v above the clock of the data sheet", h)
	}
}

// A rank that waits keeps a kernel that fills no SM: closing launch gaps would not help it.
func TestWaitsForOtherRanksAreNoLaunchGaps(t *testing.T) {
	tally := outlook.New(facts())
	tally.Add(cell(0, 50, 8, 1000))
	s := tally.Step()
	alone := tally.Help(&s, timeline.Shares{Memory: 0.2, Launch: 0.7, Host: 0.1}, true)
	for slow, want := range map[string]string{"": "launch_or_ranks", "GPU 2": "ranks"} {
		among := outlook.AmongRanks(alone, slow)
		if among[0].What != want || !strings.Contains(among[0].Name, cmp.Or(slow, "waits for other ranks")) || among[0].SavesS != alone[0].SavesS {
			t.Errorf("slow rank %q: %+v, want %s at the same amount", slow, among[0], want)
		}
		if i := slices.IndexFunc(among, func(h outlook.Help) bool { return h.What == "host" }); i < 0 || among[i] != alone[i] {
			t.Errorf("slow rank %q: the host's gap changed in %+v", slow, among)
		}
	}
	if alone[0].What != "launch" {
		t.Errorf("what was handed in changed to %+v", alone[0])
	}
}

// While requests come in, the gauge of the batch lags behind their tokens: that is no speculation.
func TestALaggingGaugeIsNoDraft(t *testing.T) {
	for _, tt := range []struct {
		lagging int
		drafted bool
	}{{1, false}, {20, true}} {
		tally := outlook.New(facts())
		for i := range 20 {
			c := cell(i, 100, 8, 1000)
			c.DRAMBytes = timeline.Known(100 * (15.010e9 + 8*1000*131072))
			if i < tt.lagging {
				c.OutputTokens.Value *= 2
			}
			tally.Add(c)
		}
		const about = "draft"
		s := tally.Step()
		if tt.lagging == 1 && math.Abs(s.Context*s.Batch-8*1000) > 1 {
			t.Errorf("%.1f tokens at %.0f of context, want them to be 8,000 together as they were counted", s.Batch, s.Context)
		}
		f, _ := tally.Traffic(false)
		if got := strings.Contains(strings.Join(s.Assumed, " "), about); got != tt.drafted {
			t.Errorf("%d of 20 cells: assumed %q, want drafts to be named: %v", tt.lagging, s.Assumed, tt.drafted)
		}
		if got := strings.Contains(strings.Join(f.Reasons, " "), about); got != tt.drafted {
			t.Errorf("%d of 20 cells: the band is wide for %q, want drafts to be named: %v", tt.lagging, f.Reasons, tt.drafted)
		}
	}
}
