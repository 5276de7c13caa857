package correlate_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// told is a decode-only cell with the counters that someone published; those that are negative are absent.
func told(eta verdict.Eta, dram, tensor, sm, graphics float64) verdict.Input {
	measure := func(x float64) timeline.Measure {
		if x < 0 {
			return timeline.Absent("not published")
		}
		return timeline.Known(x)
	}
	return verdict.Input{
		DRAM: measure(dram), Tensor: measure(tensor), SM: measure(sm), Graphics: measure(graphics),
		CellS: 1, CoveredS: 1, Windows: 10, WindowS: 0.1, Eta: eta, Coverage: timeline.Known(1), Parallel: 1,
		Work: verdict.Work{
			Running: timeline.Known(8), Decode: timeline.Known(1000), Prompt: timeline.Known(0),
			Context: timeline.Absent("not published"), Steps: timeline.Known(125),
		},
		Rho: timeline.Absent("not published"),
	}
}

// lasting is the verdict of n such seconds.
func lasting(in *verdict.Input, n int) verdict.Verdict {
	v := verdict.Judge(in)
	timed := make([]verdict.Timed, n)
	for i := range timed {
		at := t0.Add(time.Duration(i) * time.Second)
		timed[i] = verdict.Timed{Verdict: v, Over: timeline.Span{Start: at, End: at.Add(time.Second)}}
	}
	return verdict.Run(timed)
}

func (b *bench) etaOf(gpu string) verdict.Eta {
	b.t.Helper()
	g, err := hardware.LookupGPU(gpu)
	if err != nil {
		b.t.Fatal(err)
	}
	return verdict.EtaOf(g)
}

// published judges counters that others read. Rows 16 to 24 are a public sweep of Qwen3-30B-A3B and Qwen3-Next-80B-A3B on
// one H200 (DCGM 1002, 1004, 1005); graphics activity was not published.
func (b *bench) published() {
	const either, none, busy = timeline.HostOrLaunch, timeline.Undetermined, timeline.Busy
	right, all := 0, 0
	for _, r := range []struct {
		row              int
		dram, sm, tensor float64
		want             timeline.Label
	}{
		{16, 0.018, 0.036, 0.003, either},
		{17, 0.136, 0.275, 0.020, either},
		{18, 0.053, 0.20, 0.030, either},
		{19, 0.243, 0.60, 0.10, none},
		{20, 0.219, 0.55, 0.116, none},
		{21, 0.283, 0.75, 0.159, busy},
		{22, 0.266, 0.84, 0.167, busy},
		{23, 0.070, 0.197, 0.021, either},
		{24, 0.164, 0.41, 0.040, either},
	} {
		in := told(b.etaOf("h200"), r.dram, r.tensor, r.sm, -1)
		all++
		if v := lasting(&in, 30); v.Label == r.want {
			right++
		} else {
			b.t.Errorf("row %d: %s, want %s", r.row, v.Label, r.want)
		}
	}
	b.row("published sweep", right == all, "all", "labels of rows 16 to 24: %d of %d", right, all)
	b.groundTruths()
}

// groundTruths judges published decode runs. Where no GPM data was published the traffic implied by weights and cache over
// the median time stands for the DRAM counter, and the driver's duty cycle bounds SM and graphics activity.
func (b *bench) groundTruths() {
	h100, l4, h200 := b.etaOf("h100"), b.etaOf("l4"), b.etaOf("h200")
	wait := []timeline.Label{timeline.Host, timeline.HostOrLaunch}
	memory := []timeline.Label{timeline.Memory}
	for _, r := range []struct {
		name string
		in   verdict.Input
		want []timeline.Label
		high bool
	}{
		{"GT-1 Llama-2-13B batch 1", told(h100, 0.82, 0.02, -1, -1), memory, true},
		{"GT-1 Llama-2-13B batch 16", told(h100, 0.76, 0.03, -1, -1), memory, true},
		{"GT-1 Llama-2-7B batch 1", told(h100, 0.76, 0.02, -1, -1), memory, true},
		{"GT-1 Qwen2.5-7B on L4", told(l4, 0.81, 0.02, -1, -1), memory, true},
		{"GT-2 eager, 1 request", told(h200, 0.018, 0.003, 0.036, -1), wait, false},
		{"GT-2 eager, 256 requests", told(h200, 0.053, 0.030, 0.20, -1), wait, false},
		{"GT-2 larger model, eager", told(h200, 0.070, 0.021, 0.197, -1), wait, false},
		{"GT-3 graphs, 1 request, engine active", told(h200, 0.136, 0.020, 0.275, 0.99), []timeline.Label{timeline.Launch}, false},
		{"GT-4 graphs, 2048 requests", told(h200, 0.283, 0.159, 0.75, -1), []timeline.Label{timeline.Busy}, false},
		{"GT-4 graphs, 4096 requests", told(h200, 0.266, 0.167, 0.84, -1), []timeline.Label{timeline.Busy}, false},
		{"GT-5 OPT-1.3B, 768 requests", told(h100, 0.38, 0.05, 0.50, -1), wait, false},
	} {
		v := lasting(&r.in, 30)
		b.row(r.name, slices.Contains(r.want, v.Label) && (!r.high || v.Confidence == timeline.High), fmt.Sprint(r.want, map[bool]string{true: " high"}[r.high]), "%s %s", v.Label, v.Confidence)
	}
}

// servingRun is one row of the public vLLM runs.
type servingRun struct {
	model                                              string
	running, median, busy, clock, preempted, bandwidth float64
}

func (b *bench) servingRuns() []servingRun {
	b.t.Helper()
	f, err := os.Open("testdata/decode_runs.csv")
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		b.t.Fatal(err)
	}
	out := make([]servingRun, 0, len(rows))
	for _, row := range rows[1:] {
		number := func(column string) float64 {
			x, err := strconv.ParseFloat(row[slices.Index(rows[0], column)], 64)
			if err != nil {
				b.t.Fatalf("%s: %v", column, err)
			}
			return x
		}
		out = append(out, servingRun{
			row[0], number("mean_running"), number("median_tpot_ms"), number("smi_util_gpu") / 100, 1e6 * number("sm_clk"), number("preemptions"),
			number("implied_frac_of_1.631"),
		})
	}
	return out
}

// decodeRuns blames a clock of 1605 instead of 1980 MHz in two of the public runs, and names preemption where it was.
func (b *bench) decodeRuns() {
	runs := b.servingRuns()
	bars := map[string][2]float64{"llama-2-7b": {0, 0.04}, "opt-2.7b": {0.02, 0.08}}
	preempted, right := 0, 0
	for i, r := range runs {
		in := told(b.etaOf("h100"), r.bandwidth, 0.05, min(1, r.busy), min(1, r.busy))
		in.Preempted = r.preempted
		v := verdict.Judge(&in)
		if r.preempted > 0 {
			preempted++
		}
		if slices.Contains(v.Overlays, timeline.Preempted) == (r.preempted > 0) {
			right++
		}
		if r.clock > 1700e6 {
			continue
		}
		before, after := runs[i-1], runs[i+1] // the batches next to it, at the usual clock
		at := (r.running - before.running) / (after.running - before.running)
		usual := before.median + at*(after.median-before.median)
		e := verdict.EffectOfClock(v.Shares, r.median/usual, before.clock, r.clock)
		bar := bars[r.model]
		b.row(strings.TrimSpace("clock "+r.model), e.Blamed >= bar[0] && e.Blamed <= bar[1] && e.Weak, fmt.Sprintf("%+.0f..%+.0f %%, weak", 100*bar[0], 100*bar[1]),
			"batch %.0f: blamed %+.1f %%, at most %+.1f %%, weak %v", r.running, 100*e.Blamed, 100*e.Most, e.Weak)
	}
	b.row("preemption", right == len(runs), "where it is", "named or not rightly in %d of %d runs, %d with preemptions", right, len(runs), preempted)
}
