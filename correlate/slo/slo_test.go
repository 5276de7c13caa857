package slo_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]slo.Objective{
		"tpot.p90<50ms":   {Latency: slo.TPOT, Part: 0.9, Limit: 50 * time.Millisecond},
		"ttft.p99.9<2s":   {Latency: slo.TTFT, Part: 0.999, Limit: 2 * time.Second},
		"itl.mean<1.5ms":  {Latency: slo.ITL, Kind: slo.Mean, Limit: 1500 * time.Microsecond},
		"E2E.max < 1m30s": {Latency: slo.E2E, Kind: slo.Max, Limit: 90 * time.Second},
	} {
		got, err := slo.Parse(text)
		if err != nil || math.Abs(got.Part-want.Part) > 1e-12 {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
			continue
		}
		got.Part = want.Part
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", text, diff)
		}
	}
}

func TestWhatIsNoObjectiveSaysWhatIs(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "there is no < in it",
		"tpot.p90":          "there is no < in it",
		"tpot<50ms":         "names no statistic",
		"tpot.p90<50":       `"50" is no limit`,
		"tpot.p90<":         `"" is no limit`,
		"tpot.p90<=50ms":    "write < alone",
		"tpot.p90<0s":       "a limit of 0s is never kept",
		"tpot.p90<-1ms":     "a limit of -1ms is never kept",
		"tpot.p100<50ms":    "a percentile lies between 0 and 100",
		"tpot.p0<50ms":      "a percentile lies between 0 and 100",
		"tpot.pNaN<50ms":    "a percentile lies between 0 and 100",
		"tpot.p1e1<50ms":    `there is no statistic "p1e1"`,
		"tpot.median<50ms":  `there is no statistic "median"`,
		"latency.p90<50ms":  `there is no latency "latency"`,
		"tpot.p90<50ms,x<1": "is no limit",
	} {
		o, err := slo.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), slo.Forms) {
			t.Errorf("Parse(%q) = %v, %v, want an error with %q and the forms that there are", text, o, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                  "there is no < in it",
		"ttft<2s,":          "there is no < in it",
		"ttft<2s,ttft<3s":   "has a limit already",
		"tpot.p90<50ms":     "--slo takes those",
		"itl<50ms":          "bound its tpot",
		"ttft<2s;tpot<50ms": "is no limit",
	} {
		b, err := slo.ParseBounds(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), slo.BoundForms) {
			t.Errorf("ParseBounds(%q) = %v, %v, want an error with %q and the forms that there are", text, b, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"tpot.p90<50ms", "ttft<2s,tpot<50ms", "itl.p99.99<1h", "e2e.mean<1ns", "<", "a.b<c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if o, err := slo.Parse(text); err == nil {
			again, err := slo.Parse(o.String())
			if err != nil || again.String() != o.String() || o.Limit <= 0 {
				t.Fatalf("%q reads as %v and then as %v, %v", text, o, again, err)
			}
		}
		bounds, err := slo.ParseBounds(text)
		if err != nil {
			return
		}
		var parts []string
		for _, b := range bounds {
			parts = append(parts, b.String())
		}
		if again, err := slo.ParseBounds(strings.Join(parts, ",")); err != nil || !slices.Equal(again, bounds) {
			t.Fatalf("%q reads as %v and then as %v, %v", text, bounds, again, err)
		}
	})
}

// judged returns what becomes of an objective over values that come one a second.
func judged(t *testing.T, objective string, xs []float64) slo.Result {
	t.Helper()
	o, err := slo.Parse(objective)
	if err != nil {
		t.Fatal(err)
	}
	var s slo.Share
	var m stats.TimeMean
	d := stats.NewDistribution(1 << 20)
	v := slo.Values{N: len(xs), Why: "no request", Quantile: d.Quantile, Alike: time.Second}
	if len(xs) > 0 {
		v.Why = ""
	}
	for i, x := range xs {
		at := timeline.Instant(i) * timeline.Instant(time.Second)
		kept := 0
		if x < o.Limit.Seconds() {
			kept = 1
		}
		s.Add(at, kept, 1)
		m.Add(at, x)
		d.Add(x)
		v.Max = max(v.Max, x)
	}
	v.Mean, _ = m.Mean()
	if iv, ok := m.Interval(0.95, v.Alike); ok {
		v.MeanCI = &iv
	}
	return slo.Judge(o, &s, &v)
}

// spread returns n values of which so many, evenly among them, are twice the others.
func spread(n, slow int, base float64) []float64 {
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = base
		if (i+1)*slow/n > i*slow/n {
			xs[i] = 2 * base
		}
	}
	return xs
}

func TestOutcomes(t *testing.T) {
	for _, tt := range []struct {
		name, objective string
		xs              []float64
		want            slo.Outcome
		why             string
	}{
		{"a p99 of a hundred cannot be told", "tpot.p99<50ms", spread(100, 0, 0.04), slo.Undecided, "too few: p99 needs 368 values, there are 100"},
		{"a p99 of a thousand can", "tpot.p99<50ms", spread(1000, 0, 0.04), slo.Met, ""},
		{"a p99 that most miss is missed, however few", "tpot.p99<50ms", spread(30, 20, 0.04), slo.Missed, ""},
		{"a p90 kept by all", "tpot.p90<50ms", spread(100, 0, 0.04), slo.Met, ""},
		{"a p90 missed by a third", "tpot.p90<50ms", spread(300, 100, 0.04), slo.Missed, ""},
		{"a p90 at its limit is too close", "tpot.p90<50ms", spread(200, 20, 0.04), slo.Undecided, "too close: 90 % of 200"},
		{"a mean below", "ttft.mean<50ms", spread(100, 10, 0.04), slo.Met, ""},
		{"a mean above", "ttft.mean<40ms", spread(100, 10, 0.04), slo.Missed, ""},
		{"a mean of few", "ttft.mean<50ms", spread(5, 1, 0.04), slo.Undecided, "fewer than ten independent blocks"},
		{"a maximum below", "e2e.max<1s", spread(50, 0, 0.04), slo.Met, "of those seen"},
		{"a maximum above", "e2e.max<50ms", spread(50, 1, 0.04), slo.Missed, ""},
		{"nothing at all", "tpot.p90<50ms", nil, slo.Undecided, "no request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := judged(t, tt.objective, tt.xs)
			if r.Outcome != tt.want || !strings.Contains(r.Why, tt.why) || tt.why == "" && r.Why != "" {
				t.Errorf("%+v, want %s because of %q", r, tt.want, tt.why)
			}
		})
	}
}

// A wider limit never turns a hit into a miss, and never lowers the part that keeps it.
func TestOutcomesAreMonotoneInTheLimit(t *testing.T) {
	rank := map[slo.Outcome]int{slo.Missed: 0, slo.Undecided: 1, slo.Met: 2}
	rng := rand.New(rand.NewPCG(3, 5))
	for range 60 {
		xs := make([]float64, 20+rng.IntN(600))
		for i := range xs {
			xs[i] = 0.04 * math.Exp(0.5*rng.NormFloat64())
		}
		for _, statistic := range []string{"p50", "p90", "p99", "mean", "max"} {
			last, kept := 0, 0.0
			for limit := 10 * time.Millisecond; limit < 400*time.Millisecond; limit = limit * 5 / 4 {
				r := judged(t, "tpot."+statistic+"<"+limit.String(), xs)
				if rank[r.Outcome] < last || r.Kept.Value < kept {
					t.Fatalf("%s of %d: %s and %.3f at %v, after rank %d and %.3f", statistic, len(xs), r.Outcome, r.Kept.Value, limit, last, kept)
				}
				last, kept = rank[r.Outcome], r.Kept.Value
			}
		}
	}
}

// Values that are alike in time decide less than as many independent ones.
func TestAlikeValuesDecideLess(t *testing.T) {
	var alone, alike slo.Share
	rng := rand.New(rand.NewPCG(1, 2))
	slow := false
	for i := range 2000 {
		at := timeline.Instant(i) * timeline.Instant(100*time.Millisecond)
		if i%50 == 0 {
			slow = rng.Float64() < 0.2
		}
		kept := 1
		if slow {
			kept = 0
		}
		alike.Add(at, kept, 1)
		kept = 1
		if rng.Float64() < 0.2 {
			kept = 0
		}
		alone.Add(at, kept, 1)
	}
	a, _, _ := alone.Interval(time.Second)
	b, how, _ := alike.Interval(5 * time.Second)
	if b.High-b.Low < 2*(a.High-a.Low) || !strings.Contains(how, "independent values") {
		t.Errorf("alike %v (%s), independent %v: want the first far wider", b, how, a)
	}
}

func TestWorst(t *testing.T) {
	for want, os := range map[slo.Outcome][]slo.Outcome{
		slo.Met: {slo.Met, slo.Met}, slo.Missed: {slo.Undecided, slo.Missed, slo.Met}, slo.Undecided: {slo.Met, slo.Undecided},
	} {
		var rs []slo.Result
		for _, o := range os {
			rs = append(rs, slo.Result{Outcome: o})
		}
		if got := slo.Worst(rs); got != want {
			t.Errorf("Worst(%v) = %s, want %s", os, got, want)
		}
	}
}

func TestGoodput(t *testing.T) {
	bounds, err := slo.ParseBounds("ttft<2s,tpot<50ms")
	if err != nil {
		t.Fatal(err)
	}
	c := slo.NewCounter(bounds)
	add := func(ttft, tpot timeline.Measure, tokens int) {
		c.Add(0, func(l slo.Latency) timeline.Measure {
			if l == slo.TTFT {
				return ttft
			}
			return tpot
		}, tokens)
	}
	k, none := timeline.Known, timeline.Absent("no token count was told")
	add(k(1), k(0.04), 100)
	add(k(3), k(0.04), 100) // late first token
	add(k(1), k(0.05), 100) // at its limit, which is not below it
	add(k(1), none, 50)     // not to be judged
	add(k(3), none, 50)     // missed, whatever its pace
	c.Fail(0)
	c.GiveUp()
	g := c.Goodput(10, time.Second)
	if g.Requests != 5 || g.Good != 1 || g.Failed != 1 || g.Unknown != 1 || g.Given != 1 {
		t.Errorf("%+v, want 1 of 5 good, one failed among them, one unknown and one given up", g)
	}
	if g.Attained.Value != 0.2 || g.GoodRequestsPerS.Value != 0.1 || g.GoodTokensPerS.Value != 10 || g.TokensPerS.Value != 35 {
		t.Errorf("%+v, want a fifth, 0.1 requests and 10 of 35 tokens a second", g)
	}
	if g.CI95 == nil || g.CI95.Low > 0.2 || g.CI95.High < 0.2 {
		t.Errorf("interval %v, want one about 0.2", g.CI95)
	}
	if g := slo.NewCounter(bounds).Goodput(0, 0); g.Attained.OK() || g.RequestsPerS.OK() || g.CI95 != nil {
		t.Errorf("of nothing: %+v, want nothing known", g)
	}
}

func TestGoodputNeverExceedsTheRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	bounds := []slo.Bound{{Latency: slo.TTFT, Limit: time.Second}, {Latency: slo.TPOT, Limit: 50 * time.Millisecond}}
	for range 200 {
		c := slo.NewCounter(bounds)
		for range rng.IntN(50) {
			switch rng.IntN(5) {
			case 0:
				c.Fail(timeline.Instant(rng.Int64N(1e10)))
			case 1:
				c.GiveUp()
			default:
				c.Add(timeline.Instant(rng.Int64N(1e10)), func(slo.Latency) timeline.Measure {
					if rng.IntN(10) == 0 {
						return timeline.Absent("none")
					}
					return timeline.Known(2 * rng.Float64())
				}, rng.IntN(100))
			}
		}
		g := c.Goodput(10, time.Second)
		if g.Good > g.Requests || g.GoodRequestsPerS.Value > g.RequestsPerS.Value || g.GoodTokensPerS.Value > g.TokensPerS.Value {
			t.Fatalf("%+v: more is good than there is", g)
		}
		if iv := g.CI95; iv != nil && (g.Attained.Value < iv.Low-1e-9 || g.Attained.Value > iv.High+1e-9) {
			t.Fatalf("%+v: attained lies outside of its interval %v", g, *iv)
		}
	}
}
