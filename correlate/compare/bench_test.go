package compare_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/scenario"
)

// pairs is how many pairs each check of the bench takes: all where TPOTSCOPE_BENCH is set, else a few that show it runs.
func pairs(all, few int) int {
	if os.Getenv("TPOTSCOPE_BENCH") != "" {
		return all
	}
	return few
}

// held is for a bench on seeds and loads that nothing was tuned by.
func held[T any](usual, out T) T {
	if os.Getenv("TPOTSCOPE_BENCH") == "holdout" {
		return out
	}
	return usual
}

// count is how often each verdict came.
type count map[compare.Word]int

func (c count) String() string {
	var out []string
	for w, n := range c {
		out = append(out, fmt.Sprintf("%s %d", w, n))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// server is what most checks run, with its seed, its length and its format.
const server = "seed %d\nduration %s\ngpu h100\ntarget main model=Llama-3.1-8B dtype=%s\n"

// TestBenchCompare prints the figures of the acceptance and holds them to their bars. With TPOTSCOPE_BENCH=1 it takes all
// pairs, and with TPOTSCOPE_BENCH=holdout those that nothing was tuned by.
func TestBenchCompare(t *testing.T) {
	t.Run("same build", benchSame)
	t.Run("hit rate", benchHits)
	t.Run("builds", benchBuilds)
	t.Run("endogeneity", benchEndogenous)
}

// benchSame compares two stretches of one server's life, under four loads in turn.
func benchSame(t *testing.T) {
	n := pairs(100, 4)
	loads := held([]string{
		"load streams=8 prompt=300..500 output=200..300",
		"load streams=48 prompt=100..900 output=50..400",
		"load rate=4 arrivals=poisson prompt=300..700 output=150..350",
		"load rate=16 arrivals=poisson prompt=200..400 output=100..300",
	}, []string{
		"load streams=4 prompt=1000..2000 output=300..600",
		"load streams=24 prompt=50..150 output=400..700",
		"load rate=8 arrivals=poisson prompt=800..1200 output=100..200",
		"load rate=2.5 arrivals=poisson prompt=100..3000 output=50..500",
	})
	first, got := held(1000, 51000), count{}
	for i := range n {
		p := simulate(t, fmt.Sprintf(server+"%s\n", first+i, "244s", "bf16", loads[i%len(loads)]),
			rig{seen: float64(i % 2), rough: true, node: 1})
		r := against(t, p.recording("A", 4*time.Second, 124*time.Second), p.recording("B", 124*time.Second, 244*time.Second))
		got[r.Verdict]++
		if r.Verdict != compare.NoDifference {
			t.Logf("seed %d, load %d: %s", first+i, i%len(loads), figures(r))
		}
	}
	t.Logf("same build: seeds %d to %d, %d pairs of 120 s: %s", first, first+n-1, n, got)
	wrong := n - got[compare.NoDifference] - got[compare.Undetermined]
	if least := int(math.Floor(0.94 * float64(n))); got[compare.NoDifference] < least || wrong > n-least {
		t.Errorf("%d of %d are no difference, want %d; %d are wrong", got[compare.NoDifference], n, least, wrong)
	}
}

// benchHits compares a build with itself while twice as much of the prompts is found in the cache.
func benchHits(t *testing.T) {
	n := pairs(100, 2)
	first, got := held(2000, 52000), count{}
	load := held("load streams=24 prompt=900..1100 output=100..200 prefix=%d\n", "load rate=6 arrivals=poisson prompt=900..1100 output=150..250 prefix=%d\n")
	for i := range n {
		one := func(seed, prefix int) *played {
			return simulate(t, fmt.Sprintf(server+load, seed, "124s", "bf16", prefix), rig{seen: float64(i % 2), rough: true, node: 1})
		}
		a, b := one(first+i, 300), one(first+i, 600)
		if i%2 == 1 {
			a, b = b, a
		}
		r := against(t, a.all("A"), b.all("B"))
		got[r.Verdict]++
		if r.Verdict == compare.Realised || r.Verdict == compare.NotSaved || r.Verdict == compare.NotTime {
			t.Errorf("seed %d: %s", first+i, figures(r))
		}
	}
	t.Logf("hit rate 0.3 against 0.6: seeds %d to %d, %d pairs: %s", first, first+n-1, n, got)
}

// benchBuilds compares builds of which it is known what they do.
func benchBuilds(t *testing.T) {
	n := pairs(25, 1)
	loads := held([]string{
		"load streams=8 prompt=300..500 output=200..300\n",
		"load streams=32 prompt=200..400 output=100..300\n",
		"load rate=4 arrivals=poisson prompt=300..700 output=150..350\n",
	}, []string{
		"load streams=4 prompt=1000..2000 output=300..600\n",
		"load streams=16 prompt=50..150 output=400..700\n",
		"load rate=1 arrivals=poisson prompt=100..1500 output=150..400\n", // which the slow build can serve too
	})
	first := held(3000, 53000)
	for _, tt := range []struct {
		name, dtype, engine string
		r                   rig
		want                compare.Word
		grew                string
	}{
		{name: "fp8 good", dtype: "fp8", want: compare.Realised},
		{name: "slow dequant", dtype: "bf16", r: rig{dtype: "w8a16"}, want: compare.NotTime},
		{name: "fallback", dtype: "bf16", r: rig{dtype: "fp8"}, want: compare.NotSaved},
		{name: "lost graphs", dtype: "bf16", engine: held("engine graphs=off launch=9us\n", "engine graphs=off launch=12us\n"), want: compare.Regression, grew: "launch"},
	} {
		got := count{}
		hit, grew := 0, 0
		for i := range n {
			seed, load := first+10*i, loads[i%len(loads)]
			text := func(seed int, dtype, engine string) string {
				return fmt.Sprintf(server+"%s%s", seed, "124s", dtype, engine, load)
			}
			tt.r.seen, tt.r.rough, tt.r.node = float64(i%2), true, uint64(seed)
			if tt.name == "slow dequant" {
				times := []float64{8, 10, 12}[i/2%3]
				tt.r.tune = func(s *scenario.Scenario) { slowDequant(s, times) }
			}
			a := simulate(t, text(seed, "bf16", ""), rig{seen: tt.r.seen, rough: true, node: uint64(seed)})
			b := simulate(t, text(seed+1, tt.dtype, tt.engine), tt.r)
			r := against(t, a.all("A"), b.all("B"))
			got[r.Verdict]++
			if r.Verdict == tt.want {
				hit++
			} else {
				t.Logf("seed %d, load %d: %s", seed, i%len(loads), figures(r))
			}
			if tt.grew != "" && r.Grew == tt.grew {
				grew++
			}
		}
		t.Logf("%s: seeds %d to %d, %d pairs, %d grew as they should: %s", tt.name, first, first+10*(n-1), n, grew, got)
		if least := int(math.Floor(0.95 * float64(n))); hit < least || tt.grew != "" && grew < least {
			t.Errorf("%s: %d of %d are %s, want %d", tt.name, hit, n, tt.want, least)
		}
	}
}

// benchEndogenous takes ten percent of the bandwidth from a server under arrivals that stay: the batch grows, and is not
// the cause. The truth is the timeline's own: how much longer the memory-limited kernels of A's steps would take.
func benchEndogenous(t *testing.T) {
	n := pairs(100, 1)
	rates := []float64{1.1, 1.6, 2.1, 2.5, 2.8}
	prompts := held("prompt=3500..4500 output=800..1200", "prompt=3000..5000 output=700..1100")
	first := held(4000, 54000)
	near, top := 0, 0
	var worst, lowest, highest float64
	lowest = 1
	for i := range n {
		text := fmt.Sprintf(server+"engine budget=1024 chunk=512\nload rate=%.2f arrivals=poisson %s\n", first+i, "480s", "bf16", rates[i%len(rates)], prompts)
		a := simulate(t, text, rig{rough: true, node: 1})
		b := simulate(t, text+"fault bandwidth_loss 10%\n", rig{rough: true, node: 1})
		from, to := 140*time.Second, 480*time.Second
		r := against(t, a.recording("A", from, to), b.recording("B", from, to))
		want := slowed(a, from, to, 0.1)
		got, s := r.Split.Direct.Value.Value, &r.Split
		off := got/want - 1
		u := 1 - got/s.Total.Value.Value
		lowest, highest = min(lowest, u), max(highest, u)
		if math.Abs(off) <= 0.2 {
			near++
		} else {
			t.Logf("seed %d: direct %.3f ms, truth %.3f: %s", first+i, 1e3*got, 1e3*want, figures(r))
		}
		if math.Abs(off) > math.Abs(worst) {
			worst = off
		}
		if max(s.Load.Value.Value, s.Work.Value.Value) > got || s.Loop == "load_changed" {
			top++
			t.Logf("seed %d: total %.3f direct %.3f amplified %.3f load %.3f work %.3f: %s", first+i, 1e3*s.Total.Value.Value, 1e3*got,
				1e3*s.Amplified.Value.Value, 1e3*s.Load.Value.Value, 1e3*s.Work.Value.Value, figures(r))
		}
	}
	t.Logf("endogeneity: seeds %d to %d, %d pairs, u %.2f to %.2f: direct within 20 %% in %d, worst %+.0f %%; the load is blamed in %d",
		first, first+n-1, n, lowest, highest, near, 100*worst, top)
	if near < int(math.Floor(0.95*float64(n))) || top > 0 {
		t.Errorf("direct seconds are near the truth in %d of %d, and the load is blamed in %d", near, n, top)
	}
}

// slowed is by how much the mean time per token of what ran would rise at the same steps if so much of the bandwidth were
// lost: mean over seconds, by token within each, as the comparison has it.
func slowed(p *played, from, to time.Duration, loss float64) float64 {
	type second struct{ extra, tokens float64 }
	by := map[int64]second{}
	for i, s := range p.tl.Steps(0) {
		if s.Start < from || s.End > to || s.DecodeBatch == 0 || i%7 != 0 { // every seventh step is plenty
			continue
		}
		var extra float64
		for _, k := range p.tl.Kernels(0, s.Start) {
			if k.Limiter == scenario.LimitMemory {
				extra += k.Seconds * (1/(1-loss) - 1)
			}
		}
		k := int64(s.Start / time.Second)
		by[k] = second{by[k].extra + extra*float64(s.DecodeBatch), by[k].tokens + float64(s.DecodeBatch)}
	}
	var sum float64
	for _, s := range by {
		sum += s.extra / s.tokens
	}
	return sum / float64(len(by))
}
