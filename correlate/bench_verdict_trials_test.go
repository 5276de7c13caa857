package correlate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

func plainEta() verdict.Eta {
	return verdict.Eta{Bandwidth: 1, Tensor: 1, BandwidthOrigin: verdict.OriginCalibrated, TensorOrigin: verdict.OriginCalibrated}
}

// intervals draws autocorrelated windows around a known mean and counts how often the interval of a run holds it.
func (b *bench) intervals() {
	rs, trials := []float64{0, 0.4, 0.8}, 150
	if b.full {
		rs, trials = []float64{0, 0.2, 0.4, 0.6, 0.8}, 2000
	}
	mean, sigma := 0.8, 0.05
	if b.holdout {
		rs, mean, sigma = []float64{0.1, 0.3, 0.5, 0.7, 0.75}, 0.85, 0.04
	}
	slack := 0.0
	if !b.full { // what counting so few trials errs by
		slack = 3 * math.Sqrt(0.95*0.05/float64(trials))
	}
	for _, each := range []int{10, 1} { // windows a cell
		for _, n := range []int{30, 100, 300} {
			var figures []string
			pass := true
			for _, r := range rs {
				rng := rand.New(rand.NewPCG(b.seeds()[0], uint64(n*10+each)))
				hit, none := 0, 0
				for range trials {
					switch iv, ok := b.interval(rng, n, each, mean, sigma, r); {
					case !ok:
						none++
					case iv.Low <= mean && mean <= iv.High:
						hit++
					}
				}
				if n/each < 10 {
					pass = pass && none == trials
					figures = append(figures, fmt.Sprintf("r %.2g: absent in %d of %d", r, none, trials))
					continue
				}
				share := part(hit, trials)
				pass = pass && none == 0 && share >= 0.90-slack && share <= 0.98+slack
				figures = append(figures, fmt.Sprintf("r %.2g: %.1f %%", r, 100*share))
			}
			bar := "90-98 %"
			if n/each < 10 {
				bar = "absent"
			}
			b.row("intervals", pass, bar, "%d windows, %d a cell of 1 s, cover %s", n, each, strings.Join(figures, ", "))
		}
	}
}

// interval is that of a run over n windows of an autoregression, so many a cell of a second.
func (b *bench) interval(rng *rand.Rand, n, each int, mean, sigma, r float64) (timeline.Interval, bool) {
	x := sigma * rng.NormFloat64()
	timed := make([]verdict.Timed, 0, n/each)
	var sum float64
	for i := range n {
		x = r*x + sigma*math.Sqrt(1-r*r)*rng.NormFloat64()
		sum += mean + x
		if (i+1)%each > 0 {
			continue
		}
		in := told(plainEta(), min(1, sum/float64(each)), 0.1, 0.97, 1)
		at := t0.Add(time.Second * time.Duration(len(timed)))
		timed = append(timed, verdict.Timed{Verdict: verdict.Judge(&in), Over: timeline.Span{Start: at, End: at.Add(time.Second)}})
		sum = 0
	}
	v := verdict.Run(timed)
	return v.CI, v.CI != (timeline.Interval{})
}

// monteCarlo judges drawn counters, and the cases in which a plain rule errs.
func (b *bench) monteCarlo() {
	trials := 4000
	if b.full {
		trials = 20000
	}
	rng := rand.New(rand.NewPCG(b.seeds()[0], 77))
	wrongHigh, off := 0, 0.0
	for range trials {
		d, c, s, g := rng.Float64(), rng.Float64(), rng.Float64(), rng.Float64()
		in := told(plainEta(), d, c, s, g)
		v := verdict.Judge(&in)
		off = max(off, abs(v.Shares.Sum()-1))
		noisy := func(x float64) float64 { return max(0, min(1, x+0.05*rng.NormFloat64())) }
		in = told(plainEta(), noisy(d), noisy(c), noisy(s), noisy(g))
		v = verdict.Judge(&in)
		if v.Ceiling == timeline.High && (v.Label == timeline.Memory && c > d || v.Label == timeline.Compute && d > c) {
			wrongHigh++
		}
	}
	b.row("VD-1 shares", off < 1e-9, "sum to 1", "furthest from 1 by %.1g in %d trials", off, trials)
	b.row("VD-2 noise of 0.05", part(wrongHigh, trials) <= 0.001, "<= 0.1 %", "wrong roof at high in %d of %d", wrongHigh, trials)
	in := told(plainEta(), 0.9, 0.1, 0.95, 1)
	in.Windows = 2
	v := verdict.Judge(&in)
	b.row("VD-3 two windows", v.Reason == verdict.ReasonWindows, verdict.ReasonWindows, "%s (%s)", v.Label, v.Reason)
	b.halfPrompts()
	in = told(plainEta(), 0.2, 0.8, 0.95, 1)
	v = verdict.Judge(&in)
	b.row("VD-5 FP8 in the sum of pipes alone", v.Label == timeline.Compute, "compute", "%s", v.Label)
	in.Model, in.Rho, in.Band = b.model(), timeline.Known(1), timeline.Interval{Low: 0.9, High: 1.25}
	in.Work.Context = timeline.Known(8 * 4000)
	v = verdict.Judge(&in)
	b.row("VD-6 context above the critical one", v.Label == timeline.Compute && v.Ceiling == timeline.Medium, "lowered, not refused", "%s, at most %s", v.Label, v.Ceiling)
	b.legacy()
}

func (b *bench) model() *roofline.Model {
	b.t.Helper()
	spec, err := hardware.LookupModel("Llama-3.1-8B")
	if err != nil {
		b.t.Fatal(err)
	}
	g, err := hardware.LookupGPU("h100")
	if err != nil {
		b.t.Fatal(err)
	}
	m, err := roofline.New(spec, g, "bf16", "bf16", 1)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// halfPrompts is a cell of which whole chunks of prompts take half at 0.9 of the tensor cores, and decoding the other half
// at 0.85 of the DRAM. The greater of the two means puts all on one roof.
func (b *bench) halfPrompts() {
	in := told(plainEta(), 0.5*0.85+0.5*0.06, 0.5*0.9+0.5*0.03, 0.95, 0.99)
	in.Model = b.model()
	chunk := in.Model.Cost(roofline.Step{Decode: 8, Prompt: 2040, Context: 8 * 500}, roofline.Rates{}).ComputeS / 0.9
	decode := in.Model.Cost(roofline.Decoding(8, 500), roofline.Rates{}).MemoryS / 0.85
	chunks, steps := 0.5/chunk, 0.5/decode
	in.Work = verdict.Work{
		Running: timeline.Known(8), Decode: timeline.Known(8 * (chunks + steps)), Prompt: timeline.Known(2040 * chunks),
		Context: timeline.Known(8 * 500), Steps: timeline.Known(chunks + steps),
	}
	v := verdict.Judge(&in)
	mine := max(abs(v.Shares.Memory-0.425), abs(v.Shares.Compute-0.45))
	naive := max(abs(max(in.DRAM.Value, in.Tensor.Value)-0.45), 0.425)
	b.row("VD-4 half of the time prompts", mine <= 0.10 && naive > 0.2, "within 0.10", "memory %.2f of 0.43, compute %.2f of 0.45; the greater mean alone errs by %.2f", v.Shares.Memory, v.Shares.Compute, naive)
}

// legacy lets a device tell duty cycles alone.
func (b *bench) legacy() {
	legacy := h100()
	legacy.GPM = false
	e := newEngine(timeline.Target{}, legacy)
	var out correlate.Output
	for i := range 80 {
		at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
		s := timeline.Sample{Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}}
		s.Put(timeline.GPUDuty, 1)
		s.Put(timeline.MemDuty, 0.9)
		e.AddSample(&s)
		if i%10 == 0 {
			m := running(at, 0, 8)
			m.Put(timeline.OutputTotal, float64(100*i))
			e.AddEngine(m)
		}
	}
	e.Flush(&out)
	right, all := 0, 0
	for i := range out.Cells {
		c := &out.Cells[i]
		if c.Span.Start < t0.Add(time.Second) || c.Span.End > t0.Add(7*time.Second) { // at the ends the engine was not scraped
			continue
		}
		all++
		if c.Verdict.Reason == verdict.ReasonLegacy {
			right++
		} else {
			b.t.Logf("duty cycles alone: %s", c.Verdict.Reason)
		}
	}
	b.row("VD-7 duty cycles alone", all > 0 && right == all, verdict.ReasonLegacy, "withheld in %d of %d cells", right, all)
}
