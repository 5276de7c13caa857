package scenario_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Every rank's counters are the sum of that rank's kernels, whose limiters sum to all of its time.
func TestEveryRankIsTheSumOfItsKernels(t *testing.T) {
	for _, name := range []string{"tp2", "groups/pipeline", "groups/lockstep", "draft_model", "overlays/comm_or_straggler_possible", "labels/communication"} {
		tl := named(t, name)
		spec := tl.Scenario().Targets[0]
		steps := tl.Steps(0)
		for rank, gpu := range spec.GPUs {
			peak := tl.GPUs()[gpu].DerivedBandwidth()
			for i := 0; i < len(steps); i += 1 + len(steps)/40 {
				s := steps[i]
				var sum scenario.Kernel
				for _, k := range tl.RankKernels(0, rank, s.Start) {
					sum.Seconds += k.Seconds
					sum.Bytes += k.Bytes
					sum.Tensor += k.Tensor
					sum.SM += k.SM * k.Seconds
				}
				if math.Abs(sum.Seconds-(s.End-s.Start).Seconds()) > 1e-9 {
					t.Fatalf("%s rank %d: step %d lasts %s, its kernels %g s", name, rank, i, s.End-s.Start, sum.Seconds)
				}
				for c, want := range map[timeline.Counter]float64{timeline.DRAMUtil: sum.Bytes / peak, timeline.TensorUtil: sum.Tensor, timeline.SMUtil: sum.SM} {
					if got := tl.Integral(gpu, c, s.End) - tl.Integral(gpu, c, s.Start); math.Abs(got-want) > 1e-9 {
						t.Fatalf("%s rank %d: step %d: %s is %g, its kernels make %g", name, rank, i, c, got, want)
					}
				}
			}
			tr := tl.RankTruth(0, rank, 0, tl.Duration())
			var shares float64
			for l := scenario.LimitMemory; l <= scenario.LimitOther; l++ {
				shares += tr.Of(l)
			}
			if math.Abs(shares-1) > 1e-9 || tr.Waits > tr.Communication {
				t.Errorf("%s rank %d: shares sum to %g, waits %g of %g", name, rank, shares, tr.Waits, tr.Communication)
			}
		}
	}
}

func TestTheOthersWaitForAStraggler(t *testing.T) {
	const late = 2
	for _, tp := range []int{2, 4, 8} {
		p := scenario.Decode(8, 500).On("h100", "Llama-3.1-70B", "fp8", tp)
		p = p.With(scenario.NewFault(scenario.Straggler, 0.3).On(late % tp))
		tl, tr := point(t, p)
		s := p.Steady()
		for rank := range tp {
			own := tl.RankTruth(0, rank, s.From, s.To)
			if rank == late%tp && own.Waits > 0.01 || rank != late%tp && own.Waits < 0.10 {
				t.Errorf("tp=%d: rank %d waits for %.2f of the time", tp, rank, own.Waits)
			}
			if own.SMUtil < 0.3 {
				t.Errorf("tp=%d: rank %d keeps only %.2f of its SMs busy: who waits in a collective spins", tp, rank, own.SMUtil)
			}
		}
		// All ranks take part in the same steps: only where their time goes differs.
		if healthy := ms(t, scenario.Decode(8, 500).On("h100", "Llama-3.1-70B", "fp8", tp)); tr.TPOT.Seconds()*1e3 < 1.15*healthy {
			t.Errorf("tp=%d: %s with a straggler, %.2f ms without", tp, tr.TPOT, healthy)
		}
	}
}

// An all-reduce of n ranks sends 2(n-1)/n of its message from each, twice a layer.
func TestLinksCarryTheCollectives(t *testing.T) {
	tl := named(t, "tp2")
	s := tl.Steps(0)[500]
	got := tl.Integral(1, timeline.NVLinkTx, s.End) - tl.Integral(1, timeline.NVLinkTx, s.Start)
	if want := 80 * 2 * 1.0 * float64(s.DecodeBatch) * 8192 * 2; math.Abs(got-want) > 1e-6*want || s.PromptTokens > 0 {
		t.Errorf("a step of %d sequences sends %.4g bytes, want %.4g", s.DecodeBatch, got, want)
	}
}

func TestAPipelineHasBubblesUntilItIsFull(t *testing.T) {
	tl := named(t, "groups/pipeline")
	one, _ := tl.PhaseTruth(0, "one")
	many, _ := tl.PhaseTruth(0, "many")
	if one.Waits < 0.7 || one.Waits > 0.76 || many.Waits > 0.1 {
		t.Errorf("four stages wait for %.2f of the time with one request and %.2f with many, want three quarters and little", one.Waits, many.Waits)
	}
	if r := many.TPOT.Seconds() / one.TPOT.Seconds(); r > 1.15 {
		t.Errorf("a full pipeline takes %.2f times as long a token", r)
	}
}

func TestCopiesWithoutWorkRunDummySteps(t *testing.T) {
	tl := named(t, "groups/lockstep")
	p, _ := tl.Phase("one")
	for rank := range 4 {
		tr := tl.RankTruth(0, rank, p.Span.From, p.Span.To)
		if tr.DRAMUtil < 0.03 || tr.Communication < 0.1 || tr.Idle > 0 {
			t.Errorf("rank %d: DRAM %.3f, communication %.2f, idle %s", rank, tr.DRAMUtil, tr.Communication, tr.Idle)
		}
	}
	busy, dummy := tl.RankTruth(0, 0, p.Span.From, p.Span.To), tl.RankTruth(0, 2, p.Span.From, p.Span.To)
	if dummy.DRAMBytes >= busy.DRAMBytes {
		t.Errorf("a dummy step moves %.3g bytes, a real one %.3g", dummy.DRAMBytes, busy.DRAMBytes)
	}
}

// Skewed routing makes the ranks that hold popular experts late; correlated routing reads fewer experts.
func TestRoutingDecidesWhoIsLateAndWhatIsRead(t *testing.T) {
	at := func(skew, correlation float64) (*scenario.Timeline, scenario.Truth) {
		p := scenario.Decode(64, 300).On("h200", "Qwen3-30B-A3B", "fp8", 1)
		p.DP = 4
		p.Target = func(t *scenario.TargetSpec) { t.Skew, t.Correlation = skew, correlation }
		return point(t, p)
	}
	_, even := at(0, 0)
	_, skewed := at(1.5, 0)
	_, alike := at(0, 0.95)
	if skewed.Waits < even.Waits+0.02 {
		t.Errorf("ranks wait for %.3f with even experts and %.3f with skewed ones", even.Waits, skewed.Waits)
	}
	if r := alike.BytesPerStep / even.BytesPerStep; r > 0.75 {
		t.Errorf("correlated tokens read %.2f of the bytes", r)
	}
}

func TestMoreBandwidthNeverSlows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	models := []string{"Llama-3.2-1B", "Llama-3.1-8B", "Qwen2.5-7B", "Qwen3-30B-A3B"}
	for range 12 {
		p := scenario.Decode(1+r.IntN(64), 100+r.IntN(3000)).On("h200", models[r.IntN(len(models))], "bf16", 1+r.IntN(2))
		p.Length, p.Warm, p.Seed = 5*time.Second, 2*time.Second, r.Uint64()|1
		if r.IntN(2) == 0 {
			p.Chunk = 128 << r.IntN(4)
		}
		tl, before := point(t, p)
		g := tl.Scenario().GPUs[0]
		for _, f := range []float64{1.05, 1.3, 2} {
			faster := g
			faster.MaxMemClockHz *= f
			q := p
			q.Machine = &faster
			// At the same moments the same batches: the first steps are the same work.
			quick, _ := point(t, q)
			a, b := tl.Steps(0)[0], quick.Steps(0)[0]
			if b.End-b.Start > a.End-a.Start {
				t.Errorf("%s x%d: a step takes %s, and %s with %g times the bandwidth", p.Model, p.Batch, a.End-a.Start, b.End-b.Start, f)
			}
			if after := quick.Truth(0, p.Warm, p.Length); p.Chunk == 0 && after.TPOT > before.TPOT+before.TPOT/100 {
				t.Errorf("%s x%d: %s a token, and %s with %g times the bandwidth", p.Model, p.Batch, before.TPOT, after.TPOT, f)
			}
		}
	}
}

// In a closed loop of long outputs the batch stays what it is, so that what a fault costs by itself is all it costs.
func TestTheDirectCostIsTheWholeCostWhereNothingFeedsBack(t *testing.T) {
	for _, tt := range []struct {
		fault scenario.Fault
		tp    int
	}{
		{scenario.NewFault(scenario.BandwidthLoss, 0.10), 1},
		{scenario.NewFault(scenario.HostStall, 2e-3), 1},
		{scenario.NewFault(scenario.Neighbour, 0.25), 1},
		{scenario.NewFault(scenario.Eager, 0), 1},
		{scenario.NewFault(scenario.ClockLock, 900e6), 1},
		{scenario.NewFault(scenario.Straggler, 0.25).On(1), 2},
		{scenario.NewFault(scenario.SlowLink, 30e-6), 2},
	} {
		p := scenario.Decode(16, 400)
		p.TP = tt.tp
		p.Engine = func(e *scenario.EngineSpec) { e.Launch = 40 * time.Microsecond }
		healthy := ms(t, p)
		tl, tr := point(t, p.With(tt.fault))
		s := p.Steady()
		c := tl.DirectCost(0, tt.fault.Kind, s.From, s.To)
		whole := tr.TPOT.Seconds() - healthy/1e3
		if math.Abs(c.With-tr.TPOT.Seconds()) > 0.01*c.With || math.Abs(c.Direct()-whole) > 0.1*whole+20e-6 {
			t.Errorf("%s: %.3f ms with it (measured %.3f), %.3f more by itself, %.3f in all", tt.fault.Kind, c.With*1e3, tr.TPOT.Seconds()*1e3, c.Direct()*1e3, whole*1e3)
		}
	}
}

// Where requests arrive whatever the engine does, slower steps mean larger batches, and the cost grows with them.
func TestArrivalsThatDoNotWaitAmplifyACost(t *testing.T) {
	p := scenario.Point{Rate: 22, Context: 700, Output: 250, Length: 60 * time.Second, Warm: 20 * time.Second}
	p = p.With(scenario.NewFault(scenario.BandwidthLoss, 0.10))
	tl, with := point(t, p)
	s, err := p.Scenario()
	if err != nil {
		t.Fatal(err)
	}
	healthy, err := s.Without(scenario.BandwidthLoss).Run()
	if err != nil {
		t.Fatal(err)
	}
	span := p.Steady()
	without := healthy.Truth(0, span.From, span.To)
	c := tl.DirectCost(0, scenario.BandwidthLoss, span.From, span.To)
	whole := (with.TPOT - without.TPOT).Seconds()
	if with.MeanBatch < 1.05*without.MeanBatch || c.Direct() <= 0 || whole < 1.03*c.Direct() {
		t.Errorf("batches of %.1f and %.1f; %.3f ms by itself, %.3f ms in all", without.MeanBatch, with.MeanBatch, c.Direct()*1e3, whole*1e3)
	}
}

func TestWhatReachesClientsIsWhatTheEngineMade(t *testing.T) {
	tl := named(t, "front_end")
	stall, _ := tl.Phase("stalls")
	var merged, gaps int
	for _, q := range tl.Requests() {
		var tokens int
		var last time.Duration
		for i, c := range q.Chunks() {
			if c.At < q.Tokens[tokens] || i > 0 && c.At <= last || c.Tokens < 1 {
				t.Fatalf("request %d: chunk %d of %d tokens at %s after %s, made at %s", q.Index, i, c.Tokens, c.At, last, q.Tokens[tokens])
			}
			if c.Tokens > 1 {
				merged++
			}
			if last > stall.Span.From && c.At-last > 300*time.Millisecond {
				gaps++
			}
			tokens, last = tokens+c.Tokens, c.At
		}
		if tokens != len(q.Tokens) {
			t.Errorf("request %d: %d of %d tokens arrive", q.Index, tokens, len(q.Tokens))
		}
	}
	if merged < 100 || gaps < 50 {
		t.Errorf("%d chunks hold several tokens, %d gaps are a stall's", merged, gaps)
	}
	for _, q := range named(t, "decode_b1").Requests() {
		if n := len(q.Chunks()); n != len(q.Tokens) {
			t.Errorf("%d chunks for %d tokens where nothing merges them", n, len(q.Tokens))
		}
	}
}

func TestARemotePrefillMakesTheFirstGapLong(t *testing.T) {
	tl := named(t, "remote_prefill")
	n := 0
	for _, q := range tl.Requests() {
		if len(q.Tokens) < 20 {
			continue
		}
		n++
		first, rest := q.Tokens[1]-q.Tokens[0], (q.Tokens[len(q.Tokens)-1]-q.Tokens[1])/time.Duration(len(q.Tokens)-2)
		if want := time.Duration(float64(q.PromptTokens) * 131072 / 12e9 * 1e9); first < want || first < 2*rest {
			t.Errorf("request %d: the first gap is %s, the others %s; its cache alone takes %s", q.Index, first, rest, want)
		}
	}
	if tr := tl.Truth(0, 0, tl.Duration()); n < 50 || tr.PromptTokens != 0 {
		t.Errorf("%d requests, %d prompt tokens computed here", n, tr.PromptTokens)
	}
}

func TestAdaptersAndDraftsCostWhatTheyRead(t *testing.T) {
	with, _ := named(t, "adapters").PhaseTruth(0, "decode")
	_, without := point(t, func() scenario.Point {
		p := scenario.Decode(16, 200)
		p.Output = 3000
		return p
	}())
	// Eight adapters of rank 32 over all seven products of 32 layers hold 1.34 GB in 16 bits; sixteen requests use seven.
	cache := 16 * (with.MeanContext - without.MeanContext) * 131072
	if more := with.BytesPerStep - without.BytesPerStep - cache; math.Abs(more-1.18e9) > 0.25e9 {
		t.Errorf("adapters read %.3g bytes a step", more)
	}
	draft, _ := named(t, "draft_model").PhaseTruth(0, "decode")
	if gain := float64(draft.OutputTokens) / float64(draft.Steps) / draft.MeanBatch; math.Abs(gain-2.77) > 0.12 { // 1 + 0.7 + ... + 0.7^4
		t.Errorf("four guesses at 0.7 bring %.2f tokens a step, want 2.77", gain)
	}
}

func TestInstrumentsReadWhatIsThere(t *testing.T) {
	tl := named(t, "decode_b16")
	mean := func(in scenario.Instruments) (sum, seconds float64, n int) {
		o := tl.Observe(in)
		for i := range o.Samples {
			if v, ok := o.Samples[i].Get(timeline.DRAMUtil); ok {
				d := o.Samples[i].Over.Duration().Seconds()
				sum, seconds, n = sum+v*d, seconds+d, n+1
			}
		}
		return sum / seconds, seconds, n
	}
	truth := tl.Integral(0, timeline.DRAMUtil, tl.Duration()) / tl.Duration().Seconds()
	good, _, n := mean(scenario.Instruments{})
	if math.Abs(good-truth) > 0.01*truth || n < 260 {
		t.Errorf("a good instrument reads %.4f in %d windows, truth is %.4f", good, n, truth)
	}
	bad := scenario.Instruments{Refresh: 100 * time.Millisecond, Jitter: 20 * time.Millisecond, Lag: 50 * time.Millisecond, Noise: 0.02, Dropout: 0.1}
	read, _, m := mean(bad)
	if math.Abs(read-truth) > 0.02*truth || m > n*95/100 {
		t.Errorf("a bad instrument reads %.4f in %d windows, truth is %.4f", read, m, truth)
	}
	off := 0.0
	for seed := range uint64(8) {
		v, _, _ := mean(scenario.Instruments{Denominator: 0.05, Seed: seed + 1})
		off = max(off, math.Abs(v/truth-1))
	}
	if off < 0.02 || off > 0.06 {
		t.Errorf("denominators are off by up to %.3f, want up to 0.05", off)
	}
	if diff := cmp.Diff(tl.Observe(bad), tl.Observe(bad)); diff != "" {
		t.Error("the same instruments read something else")
	}
	o := named(t, "front_end").Observe(scenario.Instruments{Coverage: 0.3})
	tokens := map[uint64]int{}
	for _, e := range o.Tokens {
		tokens[e.Ref] += int(e.Tokens)
	}
	for _, q := range o.Requests {
		if tokens[q.Ref] != q.OutputTokens || q.First > q.Last || q.Done < q.Last {
			t.Errorf("request %d: %d tokens in events, %d in all; first %d, last %d, done %d", q.Ref, tokens[q.Ref], q.OutputTokens, q.First, q.Last, q.Done)
		}
	}
	if all := len(named(t, "front_end").Requests()); len(o.Requests) < all/5 || len(o.Requests) > all*2/5 {
		t.Errorf("a coverage of 30 %% sees %d of %d requests", len(o.Requests), all)
	}
}

func TestARestartLosesRequestsCacheAndCounts(t *testing.T) {
	tl := run(t, `seed 8
duration 30s
gpu h100
target main model=Llama-3.1-8B
load streams=12 prompt=1600..1800 output=200..300 prefix=1500
load rate=3 arrivals=poisson prompt=100 output=50
fault restart 6s 12s..18s
`)
	before, after := tl.Engine(0, 12*time.Second), tl.Engine(0, 20*time.Second)
	if after.Started < 18*time.Second || after.Started > 18100*time.Millisecond || before.Started != 0 || after.OutputTokens >= before.OutputTokens || after.Finished >= before.Finished {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if down := tl.Truth(0, 12200*time.Millisecond, 17900*time.Millisecond); down.Busy != 0 || down.OutputTokens != 0 {
		t.Errorf("while down: %+v", down)
	}
	aborted := 0
	for _, q := range tl.Requests() {
		if q.Aborted == 0 {
			continue
		}
		if aborted++; q.Finish != 0 || len(q.Tokens) > 0 && q.Tokens[len(q.Tokens)-1] > q.Aborted {
			t.Errorf("request %d: aborted at %s, finished at %s", q.Index, q.Aborted, q.Finish)
		}
	}
	if aborted < 12 {
		t.Errorf("%d requests aborted, want all that ran", aborted)
	}
	if cold := tl.Truth(0, 18*time.Second, 19*time.Second); cold.PromptTokens < 1500 || tl.Truth(0, 25*time.Second, 29*time.Second).Steps == 0 {
		t.Errorf("after it: %+v", cold)
	}
}
