package verdict_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

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
				// Bar 90 to 98 %; with 400 trials the count itself spreads by 1.1 % (one sigma at 95 %).
				if share < 0.90-0.02 || share > 0.98+0.015 {
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
