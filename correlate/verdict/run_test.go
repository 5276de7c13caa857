package verdict_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// timed repeats judged cells, a second each.
func timed(n int, f func(i int) verdict.Input) []verdict.Timed {
	out := make([]verdict.Timed, n)
	for i := range out {
		in := f(i)
		at := timeline.Instant(1e12).Add(time.Duration(i) * time.Second)
		out[i] = verdict.Timed{Verdict: verdict.Judge(&in), Over: timeline.Span{Start: at, End: at.Add(time.Second)}}
	}
	return out
}

func TestConfidenceBelongsToARun(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	noisy := func(d, sigma float64) func(int) verdict.Input {
		return func(int) verdict.Input { return cell(d+sigma*rng.NormFloat64(), 0.1, 0.95, 1) }
	}
	tests := []struct {
		name  string
		cells []verdict.Timed
		label timeline.Label
		want  timeline.Confidence
	}{
		{"thirty steady cells are high", timed(30, noisy(0.9, 0.02)), timeline.Memory, timeline.High},
		{"nine cells are low", timed(9, noisy(0.9, 0.02)), timeline.Memory, timeline.Low},
		{"across a threshold it is medium", timed(30, noisy(0.75, 0.06)), timeline.Memory, timeline.Medium},
		{"between 60 and 75 % it is medium", timed(30, noisy(0.68, 0.01)), timeline.Memory, timeline.Medium},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := verdict.Run(tt.cells)
			if got.Label != tt.label || got.Confidence != tt.want {
				t.Errorf("got %s %s (%v, CI %+v), want %s %s", got.Label, got.Confidence, got.Caps, got.CI, tt.label, tt.want)
			}
			if diff := cmp.Diff(got, verdict.Run(tt.cells)); diff != "" {
				t.Errorf("the same cells gave two verdicts:\n%s", diff)
			}
			if short := len(tt.cells) < 10; short != (got.CI == timeline.Interval{}) {
				t.Errorf("interval %+v over %d cells", got.CI, len(tt.cells))
			}
		})
	}
}

func TestHighNeedsAllItsEvidence(t *testing.T) {
	tests := []struct {
		name string
		in   func(in *verdict.Input)
	}{
		{"unknown coverage", func(in *verdict.Input) { in.Coverage = timeline.Absent("the engine tells no output tokens") }},
		{"half the traffic seen", func(in *verdict.Input) { in.Coverage = timeline.Known(0.5) }},
		{"assumed bandwidth", func(in *verdict.Input) { in.Eta.BandwidthOrigin = verdict.OriginAssumed }},
		{"bytes outside their band", func(in *verdict.Input) {
			in.Rho, in.Band = timeline.Known(1.6), timeline.Interval{Low: 0.9, High: 1.25}
		}},
		{"ranks that may wait", func(in *verdict.Input) { in.Parallel, in.DRAM = 2, timeline.Known(0.82) }},
		{"coalesced tokens", func(in *verdict.Input) { in.Coalesced = true }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := verdict.Run(timed(30, func(int) verdict.Input { return without(cell(0.9, 0.1, 0.95, 1), tt.in) }))
			if got.Label != timeline.Memory || got.Confidence != timeline.Medium || len(got.Caps) == 0 {
				t.Errorf("got %s %s (%v), want memory, medium, and why", got.Label, got.Confidence, got.Caps)
			}
		})
	}
}

func TestARunOfDifferentCellsIsMixed(t *testing.T) {
	got := verdict.Run(timed(40, func(i int) verdict.Input {
		if i%2 == 0 {
			return cell(0.9, 0.1, 0.95, 1)
		}
		return cell(0.1, 0.05, 0.2, 0.3)
	}))
	if got.Label != timeline.Mixed || got.Confidence != timeline.Low {
		t.Errorf("got %s %s, want mixed low", got.Label, got.Confidence)
	}
	if s := got.Shares.Sum(); math.Abs(s-1) > 1e-9 {
		t.Errorf("shares sum to %v", s)
	}
}

func TestARunWithoutVerdictsSaysWhy(t *testing.T) {
	got := verdict.Run(timed(5, func(int) verdict.Input {
		return without(cell(0.9, 0.1, 0.95, 1), func(in *verdict.Input) { in.Windows = 1 })
	}))
	if got.Label != timeline.Undetermined || got.Reason != verdict.ReasonWindows {
		t.Errorf("got %s (%s), want undetermined (%s)", got.Label, got.Reason, verdict.ReasonWindows)
	}
	if got := verdict.Run(nil); got.Label != timeline.Undetermined || got.Reason != verdict.ReasonNoCells {
		t.Errorf("no cells: got %s (%s)", got.Label, got.Reason)
	}
}

func TestWithoutAProbeNoPartOfTheTrafficIsMissing(t *testing.T) {
	got := verdict.Run(timed(30, func(int) verdict.Input {
		return without(cell(0.9, 0.1, 0.95, 1), func(in *verdict.Input) {
			in.Coverage, in.NoProbe = timeline.Absent("no probe"), true
		})
	}))
	if got.Label != timeline.Memory || got.Confidence != timeline.High {
		t.Errorf("got %s %s (%v), want memory high", got.Label, got.Confidence, got.Caps)
	}
}

func TestAFewCellsWithPromptsDoNotHoldARunDown(t *testing.T) {
	got := verdict.Run(timed(40, func(i int) verdict.Input {
		in := cell(0.9, 0.1, 0.95, 1)
		if i%20 == 7 {
			in.Work.Prompt = timeline.Known(500)
		}
		return in
	}))
	if got.Label != timeline.Memory || got.Confidence != timeline.High || got.Mixed {
		t.Errorf("got %s %s (%v), mixed %v, want memory, high, not mixed", got.Label, got.Confidence, got.Caps, got.Mixed)
	}
}

func TestARunWithoutADominantShareKeepsItsShares(t *testing.T) {
	got := verdict.Run(timed(20, func(int) verdict.Input { return cell(0.4, 0.1, 0.55, 0.65) }))
	if got.Label != timeline.Undetermined || got.Reason != verdict.ReasonNoShare || math.Abs(got.Shares.Host-0.35) > 1e-9 || math.Abs(got.Shares.Sum()-1) > 1e-9 {
		t.Errorf("got %s (%s), shares %+v", got.Label, got.Reason, got.Shares)
	}
}

// windows draws n values of an autoregression with mean 0.8, as windows of a tenth of a second, and returns the means of
// each ten: what cells see.
func windows(rng *rand.Rand, n int, r float64) []float64 {
	const sigma = 0.05
	x := sigma * rng.NormFloat64()
	out := make([]float64, 0, n/10)
	var sum float64
	for i := range n {
		x = r*x + sigma*math.Sqrt(1-r*r)*rng.NormFloat64()
		sum += 0.8 + x
		if i%10 == 9 {
			out = append(out, sum/10)
			sum = 0
		}
	}
	return out
}

func TestIntervalsOfRunsCoverTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const trials = 400
	for _, n := range []int{100, 300} {
		for _, r := range []float64{0, 0.4, 0.8} {
			t.Run(fmt.Sprintf("%d windows, r %.1f", n, r), func(t *testing.T) {
				hit := 0
				for range trials {
					ds := windows(rng, n, r)
					got := verdict.Run(timed(len(ds), func(i int) verdict.Input { return cell(ds[i], 0.1, 0.95, 1) }))
					if got.CI == (timeline.Interval{}) {
						t.Fatal("no interval")
					}
					if got.CI.Low <= 0.8 && 0.8 <= got.CI.High {
						hit++
					}
				}
				share := float64(hit) / trials
				t.Logf("covered %.3f", share)
				if share < 0.90 || share > 0.98 {
					t.Errorf("covered %.3f, want 0.90 to 0.98", share)
				}
			})
		}
	}
	ds := windows(rng, 90, 0)
	if got := verdict.Run(timed(len(ds), func(i int) verdict.Input { return cell(ds[i], 0.1, 0.95, 1) })); got.CI != (timeline.Interval{}) || got.Confidence > timeline.Low {
		t.Errorf("nine blocks: interval %+v, confidence %s", got.CI, got.Confidence)
	}
}

func TestALongRunKeepsItsInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	got := verdict.Run(timed(20000, func(int) verdict.Input { return cell(0.85+0.03*rng.NormFloat64(), 0.1, 0.95, 1) }))
	if got.Confidence != timeline.High || got.CI.High-got.CI.Low > 0.002 || got.CI.Low > 0.85 || got.CI.High < 0.85 {
		t.Errorf("got %s, interval %+v, want high and 0.85 within a narrow interval", got.Confidence, got.CI)
	}
}

func TestEqualRanksHaveNoStraggler(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	named := 0
	for range 1000 {
		in := cell(0.6, 0.1, 0.7, 0.99)
		in.Parallel = 8
		for k := range 8 {
			in.Ranks = append(in.Ranks, verdict.Rank{UUID: strconv.Itoa(k), SM: timeline.Known(0.7 * (1 + 0.01*rng.NormFloat64())), Clock: timeline.Known(1980e6)})
		}
		if verdict.Judge(&in).Rank != "" {
			named++
		}
	}
	if named > 5 {
		t.Errorf("a rank named in %d of 1000 cells of equal ranks", named)
	}
}

// TestStragglersAreNamed gives ranks the SM activity that waiting leaves them: the slow one works all the time, the
// others wait for it in a collective that keeps a tenth of their SMs busy.
func TestStragglersAreNamed(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	named, all, high := 0, 0, 0
	for _, tp := range []int{2, 4, 8} {
		for _, slower := range []float64{0.1, 0.2, 0.3, 0.5} {
			for range 200 {
				busy := 0.5 + 0.4*rng.Float64()
				slow := rng.IntN(tp)
				in := cell(min(0.95, busy)/(1+slower), 0.1, 0, 0.99)
				in.Parallel = tp
				var mean float64
				for k := range tp {
					sm := busy
					if k != slow {
						sm = (busy + 0.1*slower) / (1 + slower)
					}
					sm *= 1 + 0.01*rng.NormFloat64()
					mean += sm / float64(tp)
					in.Ranks = append(in.Ranks, verdict.Rank{UUID: strconv.Itoa(k), SM: timeline.Known(sm), Clock: timeline.Known(1980e6)})
				}
				in.SM = timeline.Known(mean)
				v := verdict.Judge(&in)
				all++
				if v.Rank == strconv.Itoa(slow) {
					named++
				}
				if waits := slower / (1 + slower); waits >= 0.2 && v.Label == timeline.Memory && v.Ceiling == timeline.High {
					high++
				}
			}
		}
	}
	t.Logf("named %d of %d", named, all)
	if float64(named) < 0.95*float64(all) {
		t.Errorf("named %d of %d, want 95 %%", named, all)
	}
	if high > 0 {
		t.Errorf("%d cells could say memory at high while ranks wait a fifth of the time", high)
	}
}
