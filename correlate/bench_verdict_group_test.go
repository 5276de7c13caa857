package correlate_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// coverage lets a probe see a part of the traffic.
func (b *bench) coverage() {
	parts, rates := []float64{0.1, 0.3, 0.6}, []string{"rate=6 arrivals=poisson", "streams=24"}
	if b.holdout {
		parts, rates = []float64{0.2, 0.5, 0.75}, []string{"rate=15 arrivals=poisson", "streams=33"}
	}
	runs, near, leaks := 0, 0, []string{}
	for _, seed := range b.seeds() {
		for _, seen := range parts {
			for _, load := range rates {
				p := b.play(fmt.Sprintf("%s, %.0f %% seen", load, 100*seen), fmt.Sprintf(`
seed %d
duration 40s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load %s prompt=200 output=200..600 0s..40s
`, seed, load), 0.02, seen)
				runs++
				leaks = append(leaks, withheldFields(&p)...)
				if off := batchOff(&p); off <= 0.10 {
					near++
				} else {
					b.t.Logf("%s: the batch is off by %.2f", p.name, off)
				}
			}
		}
	}
	const name = "coverage"
	b.row(name, len(leaks) == 0, "none", "withheld fields that appear in %d runs: %d %s", runs, len(leaks), strings.Join(leaks, "; "))
	b.row(name, near == runs, "within 10 %", "batch from the engine within 10 %% in %d of %d runs", near, runs)
}

// withheldFields lists what a run says that rests on all traffic.
func withheldFields(p *point) []string {
	var out []string
	s := summary.New(summary.Config{})
	s.SetGPUs(p.tl.GPUs())
	for i := range p.out.Cells {
		c := &p.out.Cells[i]
		s.AddCell(c)
		for _, why := range c.Verdict.Caps {
			if strings.HasPrefix(why, "measured bytes") {
				out = append(out, p.name+": rho in a cell")
			}
		}
		if c.Verdict.Ceiling > timeline.Medium {
			out = append(out, p.name+": a cell that can reach high")
		}
	}
	for i := range p.out.Phases {
		s.AddPhase(&p.out.Phases[i])
		if p.out.Phases[i].Grade == timeline.Isolated {
			out = append(out, p.name+": isolated")
		}
	}
	r := s.Report()
	for what, told := range map[string]bool{
		"measured bytes a step": r.Decode.BytesPerStep.Measured.OK(), "measured bytes a token": r.Decode.BytesPerToken.Measured.OK(), "MBU": r.Decode.MBU.OK(),
	} {
		if told {
			out = append(out, p.name+": "+what)
		}
	}
	return out
}

// batchOff is by what part the mean batch of the cells is off the engine's true one.
func batchOff(p *point) float64 {
	var told, ran float64
	for i := range p.out.Cells {
		c := &p.out.Cells[i]
		from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
		if from < 4e9 || to > p.tl.Duration()-2e9 || !c.Batch.OK() {
			continue
		}
		told += c.Batch.Value
		for k := range 20 {
			ran += float64(p.tl.Engine(0, from+(to-from)*time.Duration(2*k+1)/40).Running) / 20
		}
	}
	if ran <= 0 {
		return 1
	}
	return abs(told/ran - 1)
}

// stragglers slow one rank of a group down.
func (b *bench) stragglers() {
	slower, models, noise := []int{10, 20, 30, 50}, []string{"Llama-3.1-70B", "Llama-3.1-8B"}, 0.02
	if b.holdout {
		slower, models, noise = []int{13, 18, 33, 48}, []string{"Qwen2.5-72B", "Qwen3-8B"}, 0.03
	}
	runs, named, cells, cellsNamed, high, other := 0, 0, 0, 0, 0, 0
	var missed []string
	for _, seed := range b.seeds() {
		for i, tp := range []int{2, 4, 8} {
			for k, percent := range slower {
				for n, model := range models {
					if !b.some(i+k+n, 3) {
						continue
					}
					slow := int(seed+uint64(k)) % tp
					p := b.straggling(seed, tp, slow, percent, model, noise)
					want := p.tl.GPUs()[slow].UUID
					timed := p.each(4, func(c *correlate.Cell, _ scenario.Truth) {
						cells++
						if c.Verdict.Rank == want {
							cellsNamed++
						}
					})
					v := verdict.Run(timed)
					tr := p.tl.Truth(0, timed[0].Over.Start.Sub(t0), timed[len(timed)-1].Over.End.Sub(t0))
					runs++
					switch v.Rank {
					case want:
						named++
					case "":
						missed = append(missed, fmt.Sprintf("%s (waits %.2f)", p.name, tr.Waits))
					default:
						other++
					}
					if waiters := tr.Waits * float64(tp) / float64(tp-1); waiters >= 0.2 && v.Label == timeline.Memory && v.Confidence == timeline.High {
						high++
					}
				}
			}
		}
	}
	const name = "straggler"
	b.row(name, part(named, runs) >= 0.95, ">= 95 %", "rank named in %d of %d runs, another in %d; by single cells %.1f %%; missed %s", named, runs, other, 100*part(cellsNamed, cells), strings.Join(missed, "; "))
	b.row(name, high == 0, "never", "memory at high while ranks wait a fifth of the time: %d runs", high)
	b.equalRanks(noise)
}

func (b *bench) straggling(seed uint64, tp, slow, percent int, model string, noise float64) point {
	fault := ""
	if percent > 0 {
		fault = fmt.Sprintf("fault straggler %d%% gpu=%d", percent, slow)
	}
	return b.play(fmt.Sprintf("%s on %d, one %d %% slower", model, tp, percent), fmt.Sprintf(`
seed %d
duration 18s
gpu h100 count=%d
target main model=%s dtype=fp8 tp=%d
load streams=%d prompt=200 output=8000 0s..18s
%s
`, seed, tp, model, tp, 8*tp, fault), noise, 1)
}

// equalRanks counts ranks named where none is slow.
func (b *bench) equalRanks(noise float64) {
	runs, named := 0, 0
	for _, seed := range b.seeds() {
		for _, tp := range []int{2, 4, 8} {
			p := b.straggling(seed, tp, 0, 0, "Llama-3.1-70B", noise)
			v := verdict.Run(p.each(4, nil))
			runs++
			if v.Rank != "" {
				named++
			}
		}
	}
	b.row("straggler", named == 0, "none", "equal ranks: one named in %d of %d runs", named, runs)
}

// bandwidth takes a part of it away from the first boot on.
func (b *bench) bandwidth() {
	losses, models := []int{0, 5, 10, 20}, []string{"Llama-3.1-8B bf16", "Llama-3.1-8B fp8"}
	if b.holdout {
		losses, models = []int{0, 8, 14, 24}, []string{"Qwen3-8B bf16", "Llama-2-7B bf16"}
	}
	told, all, falsely, healthy, moved := 0, 0, 0, 0, 0.0
	var figures []string
	for _, seed := range b.seeds() {
		for _, model := range models {
			var sound float64
			for _, loss := range losses {
				s, drift, ok := b.sheet(seed, model, loss)
				moved = max(moved, drift)
				if !ok {
					figures = append(figures, fmt.Sprintf("%s -%d %%: silent", model, loss))
				}
				if loss == 0 {
					sound = s.Reached
					healthy++
					if s.Short {
						falsely++
					}
					continue
				}
				all++
				// The ratio must show the loss, and beyond what healthy kernels differ by be a finding.
				if ok && abs(s.Reached/sound-1+float64(loss)/100) <= 0.03 && (loss < 15 || s.Short) {
					told++
				}
				if seed == b.seeds()[0] {
					figures = append(figures, fmt.Sprintf("%s -%d %%: %.2f", model, loss, s.Reached))
				}
			}
		}
	}
	const name = "bandwidth since first boot"
	b.row(name, told == all && falsely == 0, "reported", "reached of the SKU's, loss shown within 0.03 and a finding beyond 15 %%: %d of %d (%s); healthy called short %d of %d", told, all, strings.Join(figures, ", "), falsely, healthy)
	b.row(name, moved < 0.03, "< 0.03", "D moves with the node's own history by %.3f", moved)
}

// sheet returns what a device reached, and by how much D moved from the first half of its life to the second.
func (b *bench) sheet(seed uint64, model string, loss int) (verdict.Sheet, float64, bool) {
	m := strings.Fields(model)
	fault := ""
	if loss > 0 {
		fault = fmt.Sprintf("fault bandwidth_loss %d%%", loss)
	}
	p := b.play(model, fmt.Sprintf(`
seed %d
duration 40s
gpu h100
target main model=%s dtype=%s
load streams=16 prompt=100 output=8000 0s..40s
%s
`, seed, m[0], m[1], fault), 0.02, 1)
	timed := p.each(4, nil)
	s, ok := verdict.AgainstSheet(timed)
	half := len(timed) / 2
	first, second := verdict.Run(timed[:half]), verdict.Run(timed[half:])
	grown := p.tl.Truth(0, 4e9, 20e9).DRAMUtil - p.tl.Truth(0, 20e9, 39e9).DRAMUtil // by the load itself
	return s, abs(first.D - second.D - grown/0.9), ok
}
