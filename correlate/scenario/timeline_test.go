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

var integrated = []timeline.Counter{
	timeline.GraphicsUtil, timeline.SMUtil, timeline.SMOccupancy, timeline.TensorUtil, timeline.HMMAUtil, timeline.IMMAUtil, timeline.DRAMUtil,
	timeline.Energy, timeline.ThrottlePower, timeline.ThrottleSWThermal,
}

// What must hold for every scenario there is.
func TestEveryTimeline(t *testing.T) {
	list := all(t)
	for claim, check := range map[string]func(*testing.T, string, *scenario.Timeline){
		"integrals grow and stay within their bounds":      integralsGrowAndStayWithinTheirBounds,
		"integrals are the sum of the kernels":             integralsAreTheSumOfTheKernels,
		"the DRAM integral is the sum of the steps' bytes": theDRAMIntegralIsTheSumOfTheStepsBytes,
		"shares sum to one and add up":                     sharesSumToOneAndAddUp,
		"tokens are conserved":                             tokensAreConserved,
		"states agree with integrals":                      statesAgreeWithIntegrals,
	} {
		t.Run(claim, func(t *testing.T) {
			for name, tl := range list {
				check(t, name, tl)
			}
		})
	}
}

func integralsGrowAndStayWithinTheirBounds(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for g := range tl.GPUs() {
		for range 40 {
			from := time.Duration(r.Int64N(int64(tl.Duration())))
			to := from + time.Duration(r.Int64N(int64(time.Second)))
			to = min(to, tl.Duration())
			mid := from + (to-from)/3
			for _, c := range integrated {
				a, m, b := tl.Integral(g, c, from), tl.Integral(g, c, mid), tl.Integral(g, c, to)
				if a > m+1e-9 || m > b+1e-9 {
					t.Errorf("%s: gpu %d %s shrinks between %s, %s and %s: %g, %g, %g", name, g, c, from, mid, to, a, m, b)
				}
				if rate := (b - a) / (to - from).Seconds(); c != timeline.Energy && rate > 1+1e-9 {
					t.Errorf("%s: gpu %d %s: %g over %s..%s", name, g, c, rate, from, to)
				}
			}
		}
	}
}

// The counters must say what the kernels did, and nothing else.
func integralsAreTheSumOfTheKernels(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	for target, spec := range tl.Scenario().Targets {
		gpu := spec.GPUs[0]
		peak := tl.GPUs()[gpu].DerivedBandwidth()
		steps := tl.Steps(target)
		for i := 0; i < len(steps); i += 1 + len(steps)/50 {
			s := steps[i]
			var bytes, tensor, sm float64
			var elapsed float64
			for _, k := range tl.Kernels(target, s.Start) {
				elapsed += k.Seconds
				bytes += k.Bytes
				tensor += k.Tensor
				sm += k.SM * k.Seconds
				if k.Seconds < 50e-6 {
					continue
				}
				// The edge of each long kernel: exact to the nanosecond of the clock.
				at := s.Start + time.Duration(math.Round(elapsed*1e9))
				got := tl.Integral(gpu, timeline.DRAMUtil, at) - tl.Integral(gpu, timeline.DRAMUtil, s.Start)
				if math.Abs(got-bytes/peak) > 2e-9 {
					t.Fatalf("%s: step %d at %s: DRAM %g s, kernels moved %g s", name, i, at, got, bytes/peak)
				}
			}
			if math.Abs(elapsed-(s.End-s.Start).Seconds()) > 1e-9 {
				t.Fatalf("%s: step %d lasts %s, its kernels %g s", name, i, s.End-s.Start, elapsed)
			}
			for c, want := range map[timeline.Counter]float64{timeline.DRAMUtil: bytes / peak, timeline.TensorUtil: tensor, timeline.SMUtil: sm} {
				if got := tl.Integral(gpu, c, s.End) - tl.Integral(gpu, c, s.Start); math.Abs(got-want) > 1e-9 {
					t.Fatalf("%s: step %d: %s is %g, its kernels make %g", name, i, c, got, want)
				}
			}
			if got := s.Bytes / peak; len(spec.GPUs) == 1 && math.Abs(got-bytes/peak) > 1e-9 {
				t.Fatalf("%s: step %d says %g bytes, its kernels moved %g", name, i, s.Bytes, bytes)
			}
		}
	}
}

func theDRAMIntegralIsTheSumOfTheStepsBytes(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	for target, spec := range tl.Scenario().Targets {
		steps := tl.Steps(target)
		var bytes float64
		var before time.Duration
		for _, s := range steps {
			if s.Start < before || s.End <= s.Start {
				t.Fatalf("%s: step at %s overlaps the one before", name, s.Start)
			}
			before = s.End
			bytes += s.Bytes
		}
		var got float64
		for _, gpu := range spec.GPUs {
			got += tl.Integral(gpu, timeline.DRAMUtil, before) * tl.GPUs()[gpu].DerivedBandwidth() / float64(len(spec.GPUs))
		}
		if math.Abs(got-bytes) > 1e-9*bytes {
			t.Errorf("%s: the counter saw %g bytes, the steps moved %g", name, got, bytes)
		}
	}
}

func sharesSumToOneAndAddUp(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	for target := range tl.Targets() {
		for range 50 {
			from := time.Duration(r.Int64N(int64(tl.Duration()) - int64(time.Second)))
			to := from + time.Millisecond + time.Duration(r.Int64N(int64(time.Second)-int64(time.Millisecond)))
			tr := tl.Truth(target, from, to)
			idle := tr.Idle >= to-from-time.Nanosecond
			if sum := tr.Busy + tr.Idle; sum < to-from-2 || sum > to-from+2 {
				t.Errorf("%s: over %s..%s the engine worked for %s and rested for %s", name, from, to, tr.Busy, tr.Idle)
			}
			if sum := tr.Shares.Sum(); math.Abs(sum-1) > 1e-6 && !idle {
				t.Errorf("%s: shares over %s..%s sum to %g, %s idle", name, from, to, sum, tr.Idle)
			}
			mid := (from + to) / 2
			a, b := tl.Truth(target, from, mid), tl.Truth(target, mid, to)
			if a.OutputTokens+b.OutputTokens != tr.OutputTokens || a.Steps+b.Steps != tr.Steps || math.Abs(a.DRAMBytes+b.DRAMBytes-tr.DRAMBytes) > 1 {
				t.Errorf("%s: the halves of %s..%s do not add up: %+v, %+v, %+v", name, from, to, a, b, tr)
			}
		}
	}
}

func tokensAreConserved(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	spec := tl.Scenario().Targets
	emitted, finished := make([]int, len(tl.Targets())), make([]int, len(tl.Targets()))
	for i, r := range tl.Requests() {
		if r.Index != i || len(r.Tokens) > r.OutputTokens {
			t.Fatalf("%s: request %d has index %d and %d of %d tokens", name, i, r.Index, len(r.Tokens), r.OutputTokens)
		}
		last := r.Arrival
		for _, at := range r.Tokens {
			// Guesses that turn out right come in one step.
			together := spec[r.Target].Engine.Speculate > 0 && at == last
			if at <= last && !together || at > tl.Duration() {
				t.Fatalf("%s: request %d emits a token at %s after one at %s", name, i, at, last)
			}
			last = at
		}
		emitted[r.Target] += len(r.Tokens)
		if spec[r.Target].Engine.RemoteRate > 0 && len(r.Tokens) > 0 {
			emitted[r.Target]-- // the first comes from elsewhere
		}
		if done := len(r.Tokens) == r.OutputTokens; done != (r.Finish > 0) || done && r.Finish != last {
			t.Fatalf("%s: request %d: %d of %d tokens, the last at %s, finished at %s", name, i, len(r.Tokens), r.OutputTokens, last, r.Finish)
		}
		if r.Finish > 0 {
			finished[r.Target]++
		}
	}
	for target := range tl.Targets() {
		e := tl.Engine(target, tl.Duration())
		tr := tl.Truth(target, 0, tl.Duration())
		if e.OutputTokens != emitted[target] || tr.OutputTokens != emitted[target] || e.Finished != finished[target] {
			t.Errorf("%s: %d tokens emitted, the engine counts %d, the truth %d; %d requests finished, the engine counts %d",
				name, emitted[target], e.OutputTokens, tr.OutputTokens, finished[target], e.Finished)
		}
		var prompt int
		for _, s := range tl.Steps(target) {
			prompt += s.PromptTokens
		}
		if tr.PromptTokens != prompt || prompt+e.PrefixHits < e.PromptTokens || e.PrefixHits > e.PrefixQueries {
			t.Errorf("%s: steps computed %d prompt tokens, the truth says %d, the engine %d", name, prompt, tr.PromptTokens, e.PromptTokens)
		}
		if e.ITLCount+e.TTFTCount != e.OutputTokens && spec[target].Engine.Speculate == 0 {
			t.Errorf("%s: %d gaps and %d first tokens, but %d tokens", name, e.ITLCount, e.TTFTCount, e.OutputTokens)
		}
	}
}

func TestTheSameScenarioGivesTheSameTimeline(t *testing.T) {
	a, b := file(t, "testdata/prefill_mixed.scenario"), file(t, "testdata/prefill_mixed.scenario")
	if diff := cmp.Diff(a.Requests(), b.Requests()); diff != "" {
		t.Errorf("requests differ (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(a.Steps(0), b.Steps(0)); diff != "" {
		t.Errorf("steps differ (-first +second):\n%s", diff)
	}
	at := 7*time.Second + 123456789
	for _, c := range integrated {
		if x, y := a.Integral(0, c, at), b.Integral(0, c, at); x != y {
			t.Errorf("%s: %v and %v", c, x, y)
		}
	}
	text := "seed %d\nduration 5s\ngpu h100\ntarget a model=Llama-3.1-8B\nload rate=5 arrivals=poisson prompt=10..90 output=10..90"
	one, two := run(t, replaceSeed(text, "1")), run(t, replaceSeed(text, "2"))
	if cmp.Equal(one.Requests(), two.Requests()) || one.GPUs()[0].UUID == two.GPUs()[0].UUID {
		t.Error("another seed changes nothing")
	}
}

func replaceSeed(text, seed string) string {
	return text[:5] + seed + text[7:]
}

func statesAgreeWithIntegrals(t *testing.T, name string, tl *scenario.Timeline) {
	t.Helper()
	for target, spec := range tl.Scenario().Targets {
		gpu := spec.GPUs[0]
		board := tl.GPUs()[gpu]
		var joules float64
		const every = 100 * time.Millisecond
		for at := every; at <= tl.Duration(); at += every {
			st := tl.State(gpu, at)
			joules += st.Watts * every.Seconds()
			switch {
			case st.SMClockHz <= 0 || st.SMClockHz > board.MaxSMClockHz || st.MemClockHz != board.MaxMemClockHz:
				t.Fatalf("%s: clocks %g and %g at %s", name, st.SMClockHz, st.MemClockHz, at)
			case st.Celsius < 25 || st.Celsius > 95:
				t.Fatalf("%s: %g degrees at %s", name, st.Celsius, at)
			case st.MemUsedBytes <= 0 || st.MemUsedBytes > float64(board.MemoryBytes):
				t.Fatalf("%s: %g bytes used at %s", name, st.MemUsedBytes, at)
			}
			e := tl.Engine(target, at)
			if e.KVUsage < 0 || e.KVUsage > 1 || e.Running > spec.Engine.MaxBatch {
				t.Fatalf("%s: engine %+v at %s", name, e, at)
			}
		}
		if want := tl.Integral(gpu, timeline.Energy, tl.Duration()); math.Abs(joules-want) > 1e-6*want {
			t.Errorf("%s: power sums to %g J, energy says %g J", name, joules, want)
		}
		tr := tl.Truth(target, 0, tl.Duration())
		held := tl.Integral(gpu, timeline.ThrottlePower, tl.Duration()) + tl.Integral(gpu, timeline.ThrottleSWThermal, tl.Duration())
		if math.Abs(held-tr.Throttled.Seconds()) > 1e-6 {
			t.Errorf("%s: counters say %g s throttled, the truth %s", name, held, tr.Throttled)
		}
	}
}

func TestACapShowsInTheState(t *testing.T) {
	tl := file(t, "testdata/power_cap_mixed.scenario")
	st := tl.State(0, 30*time.Second)
	if st.EventReasons&timeline.ReasonSWPowerCap == 0 || st.LimitWatts != 330 || st.SMClockHz > 1500e6 {
		t.Errorf("under a cap: %+v", st)
	}
	if before := tl.State(0, 5*time.Second); before.LimitWatts != 700 {
		t.Errorf("before the cap: %+v", before)
	}
	locked := file(t, "testdata/clock_lock.scenario").State(0, 15*time.Second)
	if locked.EventReasons&timeline.ReasonThrottles != 0 || locked.EventReasons&timeline.ReasonAppClocks == 0 {
		t.Errorf("a locked clock is a setting, not a throttle: %v", timeline.ReasonNames(locked.EventReasons))
	}
	rest := file(t, "testdata/idle.scenario").State(0, 5*time.Second)
	if rest.EventReasons != timeline.ReasonIdle {
		t.Errorf("at rest: %v", timeline.ReasonNames(rest.EventReasons))
	}
}

func TestACapBelowTheRestOfTheBoardStillRuns(t *testing.T) {
	tl := run(t, "duration 3s\ngpu h100\ntarget a model=Llama-3.1-8B\nload streams=1 prompt=100 output=50\nfault power_cap 50W")
	got := tl.Truth(0, 0, tl.Duration())
	if !(got.SMClockHz > 0.1e9 && got.SMClockHz < 0.3e9) || got.DRAMBytes <= 0 || got.Throttled < 2900*time.Millisecond {
		t.Errorf("SM clock %v Hz, %v bytes, throttled for %v, want the lowest clock throughout", got.SMClockHz, got.DRAMBytes, got.Throttled)
	}
}

func TestGPUsAndTargetsDescribeTheScenario(t *testing.T) {
	tl := file(t, "testdata/two_targets.scenario")
	gpus, targets := tl.GPUs(), tl.Targets()
	if len(gpus) != 3 || len(targets) != 2 {
		t.Fatalf("%d GPUs and %d targets", len(gpus), len(targets))
	}
	seen := map[string]bool{}
	for i, g := range gpus {
		if !g.Simulated || !g.GPM || g.Index != i || seen[g.UUID] || timeline.NormalizeUUID(g.UUID) != g.UUID || len(g.UUID) != 40 {
			t.Errorf("gpu %d: %+v", i, g)
		}
		seen[g.UUID] = true
	}
	if targets[1].Name != "small" || len(targets[1].GPUs) != 1 || targets[1].GPUs[0] != gpus[2].UUID || targets[1].Model != "Llama-3.2-1B" {
		t.Errorf("target: %+v", targets[1])
	}
	if got := tl.Integral(1, timeline.DRAMUtil, tl.Duration()); got != 0 {
		t.Errorf("an idle GPU moves data: %g s", got)
	}
	if file(t, "testdata/decode_a100.scenario").GPUs()[0].GPM {
		t.Error("an A100 reads no windows")
	}
}

func TestRunRefusesWhatCannotBe(t *testing.T) {
	for name, text := range map[string]string{
		"weights larger than the GPU":    "duration 1s\ngpu l4\ntarget a model=Llama-3.1-70B\nload streams=1 prompt=1 output=1",
		"requests larger than the cache": "duration 1s\ngpu h100\ntarget a model=Llama-3.1-8B\nengine kv_blocks=10\nload streams=1 prompt=100 output=100",
	} {
		s, err := scenario.Parse("x", stringReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
