package steps_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// maxError is what a reading that holds may be off: in the length of a step, in the number of steps, and in the streams
// a step.
const maxError = 0.05

func TestReadingsHoldWhereStepsAreLongAgainstJitter(t *testing.T) {
	ratios := []float64{0.5, 1, 1.5, 2, 3, 5, 10, 50}
	var table strings.Builder
	fmt.Fprintf(&table, "%6s", "batch")
	for _, ratio := range ratios {
		fmt.Fprintf(&table, "  %9s", fmt.Sprintf("step/j=%v", ratio))
	}
	for _, batch := range []int{1, 2, 4, 8, 32, 128} {
		fmt.Fprintf(&table, "\n%6d", batch)
		for _, ratio := range ratios {
			hold, readings, worst := 0, 0, 0.0
			for _, step := range []time.Duration{2 * ms, 10 * ms, 60 * ms} {
				if batch == 128 && step < 10*ms {
					step = 5 * ms // enough events for the race detector
				}
				jitter := time.Duration(float64(step) / ratio)
				if jitter > 5*ms && ratio > 1 { // hosts are not so bad; a long step with more shows the same as a short one
					continue
				}
				p := play{seed: uint64(batch), batch: batch, step: constant(step), jitter: uniform(jitter), stretch: 2500 * ms}
				tokens, tr := p.run()
				c := tr.against(read(tokens, false))
				hold, readings, worst = hold+c.hold, readings+c.readings, max(worst, c.worst)
				if c.worst > maxError {
					t.Errorf("batch %d, steps of %v, jitter to %v: a reading holds and is %.0f %% off", batch, step, jitter, 100*c.worst)
				}
				if ratio >= 3 && c.hold < c.readings {
					t.Errorf("batch %d, steps of %v, jitter to %v: %d of %d hold: %s", batch, step, jitter, c.hold, c.readings, c.why)
				}
				if ratio <= 1 && batch > 1 && c.hold > 0 {
					t.Errorf("batch %d, steps of %v, jitter to %v: %d of %d hold", batch, step, jitter, c.hold, c.readings)
				}
			}
			fmt.Fprintf(&table, "  %3.0f%% %4.1f%%", 100*float64(hold)/float64(readings), 100*worst)
		}
	}
	t.Logf("readings that hold, and the greatest error of those, by step over jitter:\n%s", table.String())
}

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

func tailed(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
}

func stalling(jitter, stall time.Duration, part float64) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		d := time.Duration(r.Float64() * float64(jitter))
		if r.Float64() < part {
			d += stall
		}
		return d
	}
}

func upTo(n int) func(*rand.Rand) int { return func(r *rand.Rand) int { return 1 + r.IntN(n) } }

func TestReadingsThatAreOffDoNotHold(t *testing.T) {
	const all, some, none = "all", "some", "none"
	for _, tt := range []struct {
		name       string
		change     func(p *play)
		speculates bool
		hold       string
		why        string
	}{
		{"steps of uneven length", func(p *play) { p.step = noisy(10*ms, 0.3) }, false, all, ""},
		{"chunks of prompts in a tenth of steps", func(p *play) { p.step = chunked(10*ms, 40*ms, 0.1) }, false, all, ""},
		{"chunks of prompts in half of steps", func(p *play) { p.step = chunked(10*ms, 40*ms, 0.5) }, false, all, ""},
		{"few short steps among long ones", func(p *play) { p.step = chunked(5*ms, 50*ms, 0.95) }, false, some, "run together"},
		{"the same with speculation", func(p *play) { p.step = chunked(5*ms, 50*ms, 0.95) }, true, some, "run together"},
		{"jitter with a short tail", func(p *play) { p.jitter = tailed(ms / 2) }, false, all, ""},
		{"jitter with a long tail", func(p *play) { p.jitter = tailed(2 * ms) }, false, none, ""},
		{"a token in twenty late by most of a step", func(p *play) { p.jitter = stalling(ms, 8*ms, 0.05) }, false, none, ""},
		{"a token in a hundred late by more than a step", func(p *play) { p.jitter = stalling(ms, 15*ms, 0.01) }, false, some, ""},
		{"a token in a hundred put together with the next", func(p *play) { p.merge = 0.01 }, false, some, ""},
		{"a token in ten put together with the next", func(p *play) { p.merge = 0.1 }, false, none, "several tokens"},
		{"half of tokens put together, taken for speculation", func(p *play) { p.merge = 0.5 }, true, none, "fall apart"},
		{"speculation that is not known of", func(p *play) { p.tokens = upTo(4) }, false, none, "several tokens"},
		{"speculation", func(p *play) { p.tokens = upTo(4) }, true, all, ""},
		{"speculation, an event a token", func(p *play) { p.tokens, p.apart = upTo(4), true }, true, all, ""},
		{"the same, not known of", func(p *play) { p.tokens, p.apart = upTo(4), true }, false, none, "several tokens"},
		{"half of the traffic seen", func(p *play) { p.seen = 0.5 }, false, some, ""},
		{"preemptions", func(p *play) { p.pause = 0.01 }, false, all, ""},
		{"requests of five tokens", func(p *play) { p.length = 5 }, false, all, ""},
		{"steps so long that seconds hold too few", func(p *play) { p.step = constant(150 * ms) }, false, some, "too few"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, batch := range []int{2, 16, 64} {
				p := play{seed: uint64(batch), batch: batch, step: constant(10 * ms), jitter: uniform(ms), stretch: 5500 * ms}
				tt.change(&p)
				tokens, tr := p.run()
				c := tr.against(read(tokens, tt.speculates))
				t.Logf("batch %2d: %d of %d hold, at most %.1f %% off; %s", batch, c.hold, c.readings, 100*c.worst, c.why)
				if c.worst > maxError {
					t.Errorf("batch %d: a reading holds and is %.0f %% off", batch, 100*c.worst)
				}
				if tt.hold == all && c.hold < c.readings || tt.hold == none && c.hold > 0 {
					t.Errorf("batch %d: %d of %d hold, want %s: %s", batch, c.hold, c.readings, tt.hold, c.why)
				}
				if c.hold < c.readings && !strings.Contains(c.why, tt.why) {
					t.Errorf("batch %d: does not hold because %q, want %q", batch, c.why, tt.why)
				}
			}
		})
	}
}
