package correlate_test

import (
	"fmt"
	"strings"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// mixedGrid plays streams that decode at a context beside prompts that come in chunks.
func (b *bench) mixedGrid() {
	machines := []string{"h100 Llama-3.1-8B bf16", "h200 Qwen2.5-7B fp8"}
	chunks, batches, contexts := []int{128, 176, 256, 512, 1024, 2048}, []int{8, 48, 256}, []int{256, 2048, 8192}
	noise := 0.02
	if b.holdout {
		machines = []string{"h100 Llama-2-7B bf16", "h200 Qwen2.5-32B fp8", "b200 Qwen3-8B bf16", "h200 Mixtral-8x7B fp8"}
		chunks, batches, contexts, noise = []int{160, 350, 700, 1300}, []int{10, 60, 200}, []int{300, 1800, 7000}, 0.03
	}
	var all score
	n := 0
	for _, seed := range b.seeds() {
		for _, machine := range machines {
			for _, chunk := range chunks {
				for _, batch := range batches {
					for _, context := range contexts {
						if n++; batch*context < 420000 && b.some(n, 7) { // what the cache of one board holds
							b.mixedPoint(&all, seed, machine, chunk, batch, context, noise)
						}
					}
				}
			}
		}
	}
	const name = "mixed grid"
	b.row(name, part(all.inside, all.placed) >= 0.95, ">= 95 %", "truth inside the roof interval %.1f %% of %d cells, mean width %.2f", 100*part(all.inside, all.placed), all.placed, all.width/float64(max(1, all.placed)))
	b.row(name, part(all.wrong[timeline.Medium]+all.wrong[timeline.High], all.cells) <= 0.01, "<= 1 %", "wrong roof at medium or high %d of %d cells, %v of %v runs by confidence", all.wrong[timeline.Medium]+all.wrong[timeline.High], all.cells, all.runsWrong, all.runs)
	b.row(name, part(all.determined, all.cells) >= 0.60, ">= 60 %", "determined %.1f %%; a roof holds 60 %% in %d cells, named in %d; shares off by %.3f", 100*part(all.determined, all.cells), all.owned, all.named, all.off/float64(max(1, all.determined)))
	b.t.Logf("mixed grid, cells by truth, label and what they can reach:%s", all.matrix())
}

func (b *bench) mixedPoint(all *score, seed uint64, machine string, chunk, batch, context int, noise float64) {
	m := strings.Fields(machine)
	p := b.play(fmt.Sprintf("%s chunk %d batch %d context %d", machine, chunk, batch, context), fmt.Sprintf(`
seed %d
duration 18s
gpu %s
target main model=%s dtype=%s
engine max_batch=%d budget=%d chunk=%d
load streams=%d prompt=%d output=4000 0s..18s
load streams=3 prompt=%d output=1 3s..18s
`, seed, m[0], m[1], m[2], batch+3, chunk+batch, chunk, batch, context, 4*chunk), noise, 1)
	var timed []verdict.Timed
	p.each(6, func(c *correlate.Cell, tr scenario.Truth) {
		if tr.OutputTokens >= batch && tr.PromptTokens > 0 {
			all.take(&p, c, &tr)
			timed = append(timed, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
		}
	})
	b.runOf(all, &p, timed)
}

// runOf scores the verdict of a run against the truth of its time.
func (b *bench) runOf(all *score, p *point, timed []verdict.Timed) {
	if len(timed) == 0 {
		return
	}
	v := verdict.Run(timed)
	tr := p.tl.Truth(0, timed[0].Over.Start.Sub(t0), timed[len(timed)-1].Over.End.Sub(t0))
	if all.run(&v, &tr) && v.Confidence >= timeline.Medium {
		b.t.Logf("%s: %s %s (%s), shares %+v, where truth is %+v, communication %.2f", p.name, v.Label, v.Confidence, v.Reason, v.Shares, tr.Shares, tr.Communication)
	}
}

// decodePoint is an engine and a machine of the decode-only grid.
type decodePoint struct {
	gpu, model, dtype string
	count             int
	more              string // of the target
}

// decodeGrid plays steps that only decode.
func (b *bench) decodeGrid() {
	engines := []string{"", "host=8ms", "host=4ms", "graphs=off launch=9us", "graphs=off launch=14us", "reduce=60us"}
	machines := []decodePoint{
		{"h100", "Llama-3.2-1B", "bf16", 1, ""},
		{"h100", "Llama-3.1-8B", "bf16", 1, ""},
		{"h100", "Llama-3.1-8B", "fp8", 1, ""},
		{"h200", "Qwen3-30B-A3B", "fp8", 1, ""},
		{"h200", "Qwen3-30B-A3B", "fp8", 1, "correlation=0.6"},
		{"h100", "gpt-oss-20b", "mxfp4", 1, ""},
		{"h200", "Mixtral-8x7B", "fp8", 1, "skew=0.4"},
		{"l40s", "Qwen2.5-7B", "awq", 1, ""},
		{"h100", "Llama-3.1-70B", "fp8", 2, ""},
		{"h100", "Llama-3.1-8B", "fp8", 4, ""},
		{"h200", "gpt-oss-120b", "mxfp4", 1, "correlation=0.3"},
		{"b200", "Llama-3.1-70B", "fp8", 2, ""},
		{"l4", "Qwen2.5-0.5B", "bf16", 1, ""},
		{"h200", "Qwen3-235B-A22B", "fp8", 4, "ep=on"},
	}
	batches, noise := []int{1, 8, 20, 192}, 0.02
	if b.holdout {
		engines = []string{"", "host=5ms", "host=2ms", "graphs=off launch=12us", "graphs=off launch=8us", "reduce=35us", "speculate=2 accept=0.8"}
		machines = []decodePoint{
			{"h100", "Qwen2.5-7B", "fp8", 1, ""},
			{"a100", "Qwen3-8B", "bf16", 1, ""},
			{"h200", "Qwen2.5-72B", "fp8", 2, ""},
			{"b200", "Qwen3-30B-A3B", "fp8", 1, "skew=0.6"},
			{"h100", "gpt-oss-20b", "mxfp4", 1, "correlation=0.2"},
			{"l40s", "Llama-3.2-3B", "bf16", 1, ""},
			{"h100", "Qwen3-32B", "fp8", 2, ""},
			{"h200", "Mixtral-8x7B", "bf16", 2, ""},
			{"h200", "DeepSeek-V3", "fp8", 8, "ep=on"},
		}
		batches, noise = []int{4, 28, 60, 160}, 0.03
	}
	var all score
	n := 0
	for _, seed := range b.seeds() {
		for _, engine := range engines {
			for _, m := range machines {
				if strings.HasPrefix(engine, "reduce") && m.count == 1 {
					continue
				}
				for _, batch := range batches {
					if n++; b.some(n, 9) {
						b.decodeOne(&all, seed, engine, &m, batch, noise)
					}
				}
			}
		}
	}
	const name = "decode-only grid"
	b.row(name, part(all.wrong[timeline.High], all.cells) <= 0.005 && part(all.runsWrong[timeline.High], sum(all.runs)) <= 0.005, "<= 0.5 %", "wrong label at high %d of %d cells, %d of %d runs", all.wrong[timeline.High], all.cells, all.runsWrong[timeline.High], sum(all.runs))
	b.row(name, part(all.wrong[timeline.Medium], all.cells) <= 0.03 && part(all.runsWrong[timeline.Medium], sum(all.runs)) <= 0.03, "<= 3 %", "wrong label at medium %d of %d cells, %d of %d runs; at low %d cells", all.wrong[timeline.Medium], all.cells, all.runsWrong[timeline.Medium], sum(all.runs), all.wrong[timeline.Low])
	b.row(name, part(all.determined, all.cells) >= 0.70, ">= 70 %", "determined %.1f %%; runs by confidence %v", 100*part(all.determined, all.cells), all.runs)
	b.row(name, part(all.inside, all.placed) >= 0.95, ">= 95 %", "truth inside the roof interval %.1f %% of %d cells, mean width %.2f; shares off by %.3f", 100*part(all.inside, all.placed), all.placed, all.width/float64(max(1, all.placed)), all.off/float64(max(1, all.determined)))
	b.t.Logf("decode-only grid, cells by truth, label and what they can reach:%s", all.matrix())
}

func sum(xs [timeline.High + 1]int) int {
	n := 0
	for _, x := range xs {
		n += x
	}
	return n
}

func (b *bench) decodeOne(all *score, seed uint64, engine string, m *decodePoint, batch int, noise float64) {
	p := b.play(fmt.Sprintf("%q, %s %s on %d %s %s, batch %d", engine, m.model, m.dtype, m.count, m.gpu, m.more, batch), fmt.Sprintf(`
seed %d
duration 18s
gpu %s count=%d
target main model=%s dtype=%s tp=%d %s
engine max_batch=256 %s
load streams=%d prompt=200 output=8000 0s..18s
`, seed, m.gpu, m.count, m.model, m.dtype, m.count, m.more, engine, batch), noise, 1)
	var timed []verdict.Timed
	p.each(4, func(c *correlate.Cell, tr scenario.Truth) {
		if tr.PromptTokens > 0 || c.Verdict.Mixed {
			return
		}
		all.take(&p, c, &tr)
		timed = append(timed, verdict.Timed{Verdict: c.Verdict, Over: c.Span})
	})
	b.runOf(all, &p, timed)
}
