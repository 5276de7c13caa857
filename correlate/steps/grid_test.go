package steps_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

func noisy(mean time.Duration, rel float64) func(*rand.Rand, int, int, float64) time.Duration {
	return func(r *rand.Rand, _, _ int, _ float64) time.Duration {
		return time.Duration(float64(mean) * (1 + rel*(2*r.Float64()-1)))
	}
}
func chunked(short, long time.Duration, part float64) func(*rand.Rand, int, int, float64) time.Duration {
	return func(r *rand.Rand, _, _ int, _ float64) time.Duration {
		if r.Float64() < part {
			return long
		}
		return short
	}
}
func tail(j time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(j)) }
}
func stalls(j, stall time.Duration, p float64) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		d := time.Duration(r.Float64() * float64(j))
		if r.Float64() < p {
			d += stall
		}
		return d
	}
}
func several(max int) func(r *rand.Rand) int { return func(r *rand.Rand) int { return 1 + r.IntN(max) } }

const ms = time.Millisecond

func TestHardDraft(t *testing.T) {
	for name, f := range map[string]func(p *play){
		"noise30%":         func(p *play) { p.step = noisy(10*ms, 0.3) },
		"chunk 10/40 10%":  func(p *play) { p.step = chunked(10*ms, 40*ms, 0.1) },
		"chunk 10/40 50%":  func(p *play) { p.step = chunked(10*ms, 40*ms, 0.5) },
		"chunk 5/50 95%":   func(p *play) { p.step = chunked(5*ms, 50*ms, 0.95) },
		"exp jitter 0.5":   func(p *play) { p.jitter = tail(ms / 2) },
		"exp jitter 1":     func(p *play) { p.jitter = tail(ms) },
		"exp jitter 2":     func(p *play) { p.jitter = tail(2 * ms) },
		"stalls 1% 15ms":   func(p *play) { p.jitter = stalls(ms, 15*ms, 0.01) },
		"stalls 0.1% 15ms": func(p *play) { p.jitter = stalls(ms, 15*ms, 0.001) },
		"stalls 5% 8ms":    func(p *play) { p.jitter = stalls(ms, 8*ms, 0.05) },
		"merge 1%":         func(p *play) { p.merge = 0.01 },
		"merge 5%":         func(p *play) { p.merge = 0.05 },
		"merge 50%":        func(p *play) { p.merge = 0.5 },
		"spec 4 one event": func(p *play) { p.tokens = several(4) },
		"spec 4 apart":     func(p *play) { p.tokens = several(4); p.apart = true },
		"seen 10%":         func(p *play) { p.seen = 0.1 },
		"seen 50%":         func(p *play) { p.seen = 0.5 },
		"preempt 0.1%":     func(p *play) { p.pause = 0.001 },
		"preempt 1%":       func(p *play) { p.pause = 0.01 },
		"short requests":   func(p *play) { p.length = 5 },
		"long steps 150":   func(p *play) { p.step = constant(150 * ms) },
		"long steps 400":   func(p *play) { p.step = constant(400 * ms) },
	} {
		for _, batch := range []int{2, 16, 64} {
			for _, spec := range []bool{false, true} {
				p := play{seed: uint64(batch), batch: batch, step: constant(10 * ms), jitter: uniform(ms), stretch: 15 * time.Second}
				f(&p)
				tok, tr := p.run()
				c := tr.against(read(tok, spec))
				t.Logf("%16s B=%3d spec=%v hold %2d/%d worst %.3f any %.3f spread %v %.70s", name, batch, spec, c.hold, c.readings, c.worst, c.worstAny, c.spread, c.why)
			}
		}
	}
}
