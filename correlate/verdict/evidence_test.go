package verdict_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// on returns a model on as many GPUs of a kind.
func on(t *testing.T, model, gpu, dtype string, tp int) *roofline.Model {
	t.Helper()
	spec, err := hardware.LookupModel(model)
	if err != nil {
		t.Fatal(err)
	}
	g, err := hardware.LookupGPU(gpu)
	if err != nil {
		t.Fatal(err)
	}
	m, err := roofline.New(spec, g, dtype, "bf16", tp)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ofModel is a cell whose bytes agree with its model.
func ofModel(m *roofline.Model, d, c, s, g float64) verdict.Input {
	in := cell(d, c, s, g)
	in.Model, in.Rho, in.Band = m, timeline.Known(1), timeline.Interval{Low: 0.9, High: 1.25}
	return in
}

func TestTheRoofIntervalHoldsWhatCountersBound(t *testing.T) {
	dense, sparse := on(t, "Llama-3.1-8B", "h100", "bf16", 1), on(t, "Qwen3-30B-A3B", "h200", "fp8", 1)
	tests := []struct {
		name string
		in   verdict.Input
		want timeline.Interval
	}{
		{"all traffic of long kernels is at the roof, and they may run below it", ofModel(dense, 0.8, 0.1, 0.9, 0.95), timeline.Interval{Low: 0.8 / 1.05, High: 0.95}},
		{"small experts may move all of it off the roof", ofModel(sparse, 0.3, 0.06, 0.8, 1), timeline.Interval{Low: 0, High: 0.6}},
		{"beyond what kernels off the roof can move some are at it", ofModel(sparse, 0.9, 0.1, 1, 1), timeline.Interval{Low: 0.5, High: 1}},
		{"without a model kernels may be small", cell(0.9, 0.1, 1, 1), timeline.Interval{Low: 0.5, High: 1}},
		{"a third of the bandwidth is lost and the DRAM holds all of the time", ofModel(dense, 0.6, 0.05, 0.95, 1), timeline.Interval{Low: 0.6 / 1.05, High: 1}},
		{"no roof while nothing is resident", ofModel(dense, 0.45, 0.1, 0.48, 0.5), timeline.Interval{Low: 0.45 / 1.05, High: 0.5}},
		{"no roof while the SMs of a dense model are unfilled", ofModel(dense, 0.2, 0.1, 0.28, 1), timeline.Interval{Low: 0.2 / 1.05, High: 0.35}},
		{"experts may leave SMs unfilled at the roof", ofModel(sparse, 0.2, 0.1, 0.28, 1), timeline.Interval{Low: 0, High: 0.5}},
		{"fast tensor work bounds it too", ofModel(dense, 0.1, 0.7, 0.95, 1), timeline.Interval{Low: 0.7 / 1.05, High: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := verdict.Judge(&tt.in).Roof
			if math.Abs(got.Low-tt.want.Low) > 1e-3 || math.Abs(got.High-tt.want.High) > 1e-6 {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLongKernelsAreThoseOfLargeMatrices(t *testing.T) {
	// The lower end of the interval is D itself where kernels are long.
	for _, tt := range []struct {
		model, gpu, dtype string
		tp                int
		long              bool
	}{
		{"Llama-3.1-8B", "h100", "bf16", 1, true},
		{"Llama-3.1-70B", "h100", "fp8", 8, true},
		{"Llama-3.2-1B", "h100", "bf16", 1, true},
		{"Qwen3-0.6B", "h100", "bf16", 1, false},
		{"Llama-3.1-8B", "h100", "fp8", 8, false},
		{"Mixtral-8x7B", "h100", "bf16", 1, true},
		{"Qwen3-30B-A3B", "h200", "fp8", 1, false},
	} {
		in := ofModel(on(t, tt.model, tt.gpu, tt.dtype, tt.tp), 0.5, 0.05, 0.9, 1)
		if low := verdict.Judge(&in).Roof.Low; (low > 0.4) != tt.long {
			t.Errorf("%s in %s on %d: low end %v, long kernels want %v", tt.model, tt.dtype, tt.tp, low, tt.long)
		}
	}
}

func TestATimeWithoutRequestsIsNoWaitForTheHost(t *testing.T) {
	in := cell(0.25, 0.02, 0.28, 0.3)
	in.Work.Running = timeline.Known(0.3)
	got := verdict.Judge(&in)
	if got.Label != timeline.Memory || got.Ceiling != timeline.Low {
		t.Errorf("a request ran for 30 %% of the time: got %s, at most %s (%v), want memory, low", got.Label, got.Ceiling, got.Caps)
	}
	in.Work.Running = timeline.Known(1)
	if got := verdict.Judge(&in); got.Label != timeline.Host {
		t.Errorf("a request ran all the time: got %s, want host", got.Label)
	}
}

func TestHighNeedsBytesHeldAgainstTheModel(t *testing.T) {
	m := on(t, "Llama-3.1-8B", "h100", "bf16", 1)
	in := ofModel(m, 0.9, 0.1, 0.95, 1)
	if got := verdict.Judge(&in); got.Ceiling != timeline.High {
		t.Errorf("inside the band: at most %s (%v)", got.Ceiling, got.Caps)
	}
	in.Rho = timeline.Absent("batch is not known")
	if got := verdict.Judge(&in); got.Label != timeline.Memory || got.Ceiling != timeline.Medium {
		t.Errorf("bytes not known: got %s, at most %s, want memory, medium", got.Label, got.Ceiling)
	}
}

func TestUnknownInputsWidenTheBandOfBytes(t *testing.T) {
	m := on(t, "Llama-3.1-8B", "h100", "bf16", 1)
	st := roofline.Decoding(64, 2500)
	known, unknown := verdict.RhoBand(m.Bytes(st, roofline.Unknown{}), true), verdict.RhoBand(m.Bytes(st, roofline.Unknown{Prefix: true, Draft: true}), true)
	if known != (timeline.Interval{Low: 0.9, High: 1.25}) {
		t.Errorf("all inputs known: %+v", known)
	}
	if unknown.Low > 0.54 || unknown.High < 1.3 {
		t.Errorf("64 requests may share 2,000 tokens, which takes off 0.46, and drafts may add 0.3: got %+v", unknown)
	}
	experts := verdict.RhoBand(on(t, "Qwen3-30B-A3B", "h200", "fp8", 1).Bytes(roofline.Decoding(256, 300), roofline.Unknown{}), true)
	if experts.Low > 0.5 {
		t.Errorf("alike tokens touch half of the experts: got %+v", experts)
	}
	if got := verdict.RhoBand(m.Bytes(st, roofline.Unknown{}), false); got.Low > 0.4 || got.High != known.High {
		t.Errorf("the band of steps that nobody counts is %v, of counted ones %v", got, known)
	}
	if got := verdict.RhoBand(roofline.Band{}, true); got != (timeline.Interval{}) {
		t.Errorf("no estimate: got %+v", got)
	}
}

func TestCollectivesMayPassForLaunches(t *testing.T) {
	in := cell(0.2, 0.1, 0.3, 0.95)
	in.Parallel = 4
	got := verdict.Judge(&in)
	if got.Label != timeline.Launch || got.Ceiling != timeline.Low || !slices.Contains(got.Overlays, timeline.CommOrStraggler) {
		t.Errorf("got %s, at most %s, %v; want launch, low, beside a possible wait of ranks", got.Label, got.Ceiling, got.Overlays)
	}
	in = cell(0.15, 0.1, 0.3, 0)
	in.Graphics, in.Parallel = timeline.Absent("not read"), 4
	if got := verdict.Judge(&in); got.Label != timeline.HostOrLaunch || got.Ceiling != timeline.Low {
		t.Errorf("without graphics activity: got %s, at most %s", got.Label, got.Ceiling)
	}
	in = cell(0.3, 0.1, 0.35, 0.4)
	in.Parallel = 4
	if got := verdict.Judge(&in); got.Label != timeline.Host || got.Ceiling < timeline.Medium {
		t.Errorf("no kernel of a collective is resident in a gap: got %s, at most %s", got.Label, got.Ceiling)
	}
}

func TestWaitsOfRanksThatAreNotTheMostAreNoMoreThanAHint(t *testing.T) {
	in := cell(0.5, 0.1, 0.6, 0.99)
	in.Parallel = 2
	in.Ranks = []verdict.Rank{{UUID: "a", SM: timeline.Known(0.80)}, {UUID: "b", SM: timeline.Known(0.60)}}
	if got := verdict.Judge(&in); got.Label != timeline.Communication || got.Ceiling != timeline.Low || got.Rank != "a" {
		t.Errorf("a quarter of the time waits, a half streams: got %s, at most %s, rank %q", got.Label, got.Ceiling, got.Rank)
	}
	in.DRAM, in.Ranks[1].SM = timeline.Known(0.3), timeline.Known(0.4)
	if got := verdict.Judge(&in); got.Label != timeline.Communication || got.Ceiling != timeline.High {
		t.Errorf("half of the time waits: got %s, at most %s (%v)", got.Label, got.Ceiling, got.Caps)
	}
	// A third of what the busiest does is no third of the time.
	in.DRAM, in.SM = timeline.Known(0.2), timeline.Known(0.4)
	in.Ranks[0].SM, in.Ranks[1].SM = timeline.Known(0.45), timeline.Known(0.30)
	if got := verdict.Judge(&in); got.Label != timeline.Communication || got.Ceiling != timeline.Low || !strings.Contains(got.Reason, "wait 15 % of the time") {
		t.Errorf("a seventh of the time waits, and more streams: got %s, at most %s (%s)", got.Label, got.Ceiling, got.Reason)
	}
}

func TestBothRoofsCountAgainstAWait(t *testing.T) {
	in := cell(0.30, 0.05, 0.42, 0.48)
	if got := verdict.Judge(&in); got.Label != timeline.Host || got.Ceiling < timeline.Medium {
		t.Errorf("one roof: got %s, at most %s", got.Label, got.Ceiling)
	}
	in = cell(0.30, 0.28, 0.40, 0.64)
	if got := verdict.Judge(&in); got.Label != timeline.HostOrLaunch || got.Ceiling != timeline.Low {
		t.Errorf("kernels may be at one roof and then at the other: got %s, at most %s", got.Label, got.Ceiling)
	}
}

func TestAnIdleReplicaExplainsAGap(t *testing.T) {
	in := cell(0.3, 0.1, 0.4, 0.5)
	in.Replicas = 2
	in.Ranks = []verdict.Rank{
		{UUID: "a", DRAM: timeline.Known(0.5), SM: timeline.Known(0.7)}, {UUID: "b", DRAM: timeline.Known(0.1), SM: timeline.Known(0.1)},
	}
	if got := verdict.Judge(&in); got.OK() || got.Reason != verdict.ReasonIdleRank {
		t.Errorf("one replica moves a fifth of what the other does: got %s (%s)", got.Label, got.Reason)
	}
	in.Ranks[1].DRAM = timeline.Known(0.45)
	if got := verdict.Judge(&in); got.Label != timeline.Host {
		t.Errorf("both work alike: got %s (%s), want host", got.Label, got.Reason)
	}
	in = cell(0.2, 0.1, 0.3, 0.95)
	in.Pipeline = 2
	if got := verdict.Judge(&in); got.OK() || got.Reason != verdict.ReasonPipeline {
		t.Errorf("a stage that waits for the one before is resident, as launches are: got %s (%s)", got.Label, got.Reason)
	}
}

func TestTheTimeOfAllReducesIsNoUnexplainedWait(t *testing.T) {
	m := on(t, "Llama-3.1-70B", "h100", "fp8", 4)
	in := ofModel(m, 0.8, 0.05, 0.85, 0.98)
	in.Parallel = 4
	// 160 all-reduces a step of 7 ms or so; the least that they take is some 0.8 ms of it.
	in.Work = verdict.Work{
		Running: timeline.Known(8), Decode: timeline.Known(8 * 140), Prompt: timeline.Known(0), Context: timeline.Known(8 * 500), Steps: timeline.Known(140),
	}
	if got := verdict.Judge(&in); got.Ceiling != timeline.High || len(got.Overlays) != 0 {
		t.Errorf("a fifth off the DRAM roof, half of it all-reduces: at most %s (%v), %v", got.Ceiling, got.Caps, got.Overlays)
	}
	in.DRAM = timeline.Known(0.76)
	in.Model = nil
	in.Rho = timeline.Absent("no model")
	if got := verdict.Judge(&in); got.Ceiling != timeline.Medium || !slices.Contains(got.Overlays, timeline.CommOrStraggler) {
		t.Errorf("a quarter off the DRAM roof, nothing known of it: at most %s, %v", got.Ceiling, got.Overlays)
	}
}

func TestARunWeighsRanksOverItsCells(t *testing.T) {
	slow := func(by float64) func(int) verdict.Input {
		return func(i int) verdict.Input {
			in := cell(0.6, 0.1, 0.7, 0.99)
			in.Parallel, in.Windows = 2, 4 // so few that no single cell is enough
			in.Ranks = []verdict.Rank{
				{UUID: "a", SM: timeline.Known(0.70), Clock: timeline.Known(1980e6)},
				{UUID: "b", SM: timeline.Known(0.70 + by), Clock: timeline.Known(1980e6)},
			}
			if by == 0 && i%2 == 0 {
				in.Ranks[0].SM.Value += 0.02
			}
			return in
		}
	}
	in := slow(0.03)(0)
	if got := verdict.Judge(&in); got.Rank != "" || got.Lead != "b" {
		t.Errorf("one cell: rank %q, lead %q, want none named and b ahead", got.Rank, got.Lead)
	}
	if got := verdict.Run(timed(20, slow(0.03))); got.Rank != "b" {
		t.Errorf("twenty cells: rank %q, want b", got.Rank)
	}
	if got := verdict.Run(timed(20, slow(0))); got.Rank != "" {
		t.Errorf("ranks that lead in turn: %q named", got.Rank)
	}
}

func TestThrottlingShowsWithoutAReason(t *testing.T) {
	in := cell(0.9, 0.1, 0.95, 1)
	in.Device.PowerLimitW, in.Device.DefaultLimitW, in.Device.Power = 450, 700, timeline.Known(445)
	if got := verdict.Judge(&in); !slices.Contains(got.Overlays, timeline.Throttled) {
		t.Errorf("power at a limit that someone lowered: %v", got.Overlays)
	}
	in.Device.Power = timeline.Known(300)
	if got := verdict.Judge(&in); slices.Contains(got.Overlays, timeline.Throttled) {
		t.Errorf("power far below a lowered limit: %v", got.Overlays)
	}
}

func TestWhatTheCallerWithholdsKeepsItsReason(t *testing.T) {
	for _, reason := range []string{
		verdict.ReasonNoMapping, verdict.ReasonNoCounters, verdict.ReasonClock, verdict.ReasonMIG, verdict.ReasonLegacy, verdict.ReasonUntrusted,
		verdict.ReasonIdle, verdict.ReasonNoDecode,
	} {
		in := cell(0.9, 0.1, 0.95, 1)
		in.Gate = reason
		if got := verdict.Judge(&in); got.Reason != reason || got.OK() || got.Placed() {
			t.Errorf("%s: got %s (%s)", reason, got.Label, got.Reason)
		}
	}
	if got := verdict.Withhold(verdict.ReasonMIG); got.OK() || got.Reason != verdict.ReasonMIG {
		t.Errorf("withheld: got %+v", got)
	}
}

func TestASlowDeviceIsHeldAgainstItsKind(t *testing.T) {
	cells := func(d, s float64) []verdict.Timed {
		return timed(30, func(int) verdict.Input { return cell(d, 0.1, s, 1) })
	}
	if got, ok := verdict.AgainstSheet(cells(0.76, 0.95)); !ok || !got.Short || math.Abs(got.Reached-0.8) > 1e-9 || got.Cells != 30 {
		t.Errorf("a fifth is missing: got %+v, %v", got, ok)
	}
	if got, ok := verdict.AgainstSheet(cells(0.92, 0.95)); !ok || got.Short {
		t.Errorf("healthy: got %+v, %v", got, ok)
	}
	if got, ok := verdict.AgainstSheet(cells(0.76, 0.95)[:9]); ok {
		t.Errorf("nine cells: got %+v", got)
	}
	if got, ok := verdict.AgainstSheet(timed(30, func(int) verdict.Input { return cell(0.1, 0.05, 0.2, 0.2) })); ok {
		t.Errorf("cells that wait for the host: got %+v", got)
	}
}

func TestTheClockIsBlamedForNoMoreThanItCanDo(t *testing.T) {
	s := timeline.Shares{Memory: 0.7, Compute: 0.05, Other: 0.15, Host: 0.1}
	for _, tt := range []struct {
		name                    string
		observed, before, after float64
		blamed                  float64
		weak                    bool
	}{
		{"a fifth less clock, nothing observed", 1, 1980e6, 1605e6, 0, true},
		{"a little observed", 1.03, 1980e6, 1605e6, 0.03, true},
		{"more observed than a clock can do", 1.3, 1980e6, 1605e6, 0.2 * (1980.0/1605 - 1), true},
		{"the clock rose", 1.3, 1605e6, 1980e6, 0, true},
	} {
		if got := verdict.EffectOfClock(s, tt.observed, tt.before, tt.after); math.Abs(got.Blamed-tt.blamed) > 1e-9 || got.Weak != tt.weak {
			t.Errorf("%s: got %+v, want %v", tt.name, got, tt.blamed)
		}
	}
	if got := verdict.EffectOfClock(timeline.Shares{Compute: 0.9, Memory: 0.1}, 1.21, 1980e6, 1605e6); got.Weak {
		t.Errorf("a compute-bound step follows the clock: got %+v", got)
	}
}

func TestAMixedCellNearTheRidgeIsNotSure(t *testing.T) {
	m := on(t, "Llama-3.1-8B", "h100", "bf16", 1)
	in := ofModel(m, 0.80, 0.55, 0.85, 0.97)
	steps := 130.0
	in.Work = verdict.Work{
		Running: timeline.Known(8), Decode: timeline.Known(8 * steps), Prompt: timeline.Known(160 * steps), Context: timeline.Known(8 * 500), Steps: timeline.Known(steps),
	}
	got := verdict.Judge(&in)
	if got.Label == timeline.Memory && got.Ceiling > timeline.Low || got.Label == timeline.Compute && got.Ceiling > timeline.Low {
		t.Errorf("products take as long at either roof: got %s, at most %s, shares %+v", got.Label, got.Ceiling, got.Shares)
	}
	in.Tensor = timeline.Known(0.3)
	if got := verdict.Judge(&in); got.Label != timeline.Memory || got.Ceiling != timeline.Medium {
		t.Errorf("far below the compute roof: got %s, at most %s (%v), shares %+v", got.Label, got.Ceiling, got.Caps, got.Shares)
	}
}

func TestAMissingSMCounterHoldsDownWhatRestsOnIt(t *testing.T) {
	in := cell(0.9, 0.1, 0, 1)
	in.SM = timeline.Absent("not read")
	if got := verdict.Judge(&in); got.Label != timeline.Memory || got.Ceiling != timeline.High {
		t.Errorf("the DRAM roof alone: got %s, at most %s (%v)", got.Label, got.Ceiling, got.Caps)
	}
	in = cell(0.2, 0.1, 0, 0.3)
	in.SM = timeline.Absent("not read")
	got := verdict.Judge(&in)
	if got.Ceiling > timeline.Medium {
		t.Errorf("got %s, at most %s", got.Label, got.Ceiling)
	}
	if joined := strings.Join(got.Caps, "; "); got.OK() && !strings.Contains(joined, "SM activity") {
		t.Errorf("got %s, held down by %q", got.Label, joined)
	}
}

func TestAnIntervalOfLikeNeighboursIsWider(t *testing.T) {
	width := func(period int) float64 {
		cells := make([]verdict.Timed, 40)
		for i := range cells {
			in := cell(0.85+0.05*float64(1-2*(i/period%2)), 0.1, 0.95, 1)
			at := timeline.Instant(1e12).Add(time.Duration(i) * time.Second)
			cells[i] = verdict.Timed{Verdict: verdict.Judge(&in), Over: timeline.Span{Start: at, End: at.Add(time.Second)}}
		}
		v := verdict.Run(cells)
		return v.CI.High - v.CI.Low
	}
	if alone, together := width(1), width(8); together < 2*alone {
		t.Errorf("neighbours that differ: %.3f wide; eight alike in a row: %.3f", alone, together)
	}
}
