package correlate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// TestAProbeThatSeesAllIsSaidToSeeAll plays short runs in which every request goes through the probe: neither the ends
// of the run nor its start-up make a part of the traffic look unseen, nor more than there is.
func TestAProbeThatSeesAllIsSaidToSeeAll(t *testing.T) {
	for _, seconds := range []int{4, 6, 12, 30} {
		for _, streams := range []int{1, 7, 40} {
			t.Run(fmt.Sprintf("%ds/streams=%d", seconds, streams), func(t *testing.T) {
				tl := parse(t, fmt.Sprintf(`
seed %d
duration %ds
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=%d prompt=200 output=60..300 1s..%ds
`, seconds+streams, seconds, streams, seconds))
				_, out := play(tl, 1)
				var sum correlate.Matched
				known := 0
				for i := range out.Cells {
					c := &out.Cells[i]
					sum.Add(c.Matched)
					if !c.Coverage.OK() {
						continue
					}
					known++
					if v := c.Coverage.Value; v < 0.95 || v > 1.05 {
						t.Errorf("cell %d: coverage %.3f", i, v)
					}
					for _, why := range c.Verdict.Caps {
						if strings.Contains(why, "of the traffic") {
							t.Errorf("cell %d: %s", i, why)
						}
					}
				}
				if want := seconds - 3; known < want-1 {
					t.Errorf("%d of %d cells know their coverage, want about %d", known, len(out.Cells), want)
				}
				near(t, "coverage of the run", sum.Coverage().Value, 1, 0.025)
				if seconds > 4 && sum.Intervals < seconds-3 {
					t.Errorf("%d intervals between scrapes in %d s", sum.Intervals, seconds)
				}
			})
		}
	}
}

func TestCoverageIsUnknownUntilThereIsEnough(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    correlate.Matched
		want string
	}{
		{"one interval", correlate.Matched{Intervals: 1, Probe: 900, Engine: 900, Slack: 1}, "fewer than two whole intervals between scrapes"},
		{"no tokens", correlate.Matched{Intervals: 9, Slack: 1}, "the engine made no output tokens"},
		{"a few steps", correlate.Matched{Intervals: 2, Probe: 300, Engine: 310, Slack: 16}, "too few output tokens between scrapes"},
		{"enough", correlate.Matched{Intervals: 2, Probe: 790, Engine: 800, Slack: 16}, ""},
	} {
		if got := tt.m.Coverage(); got.Why != tt.want {
			t.Errorf("%s: got %+v, want %q", tt.name, got, tt.want)
		}
	}
}

func TestTokensOfAnotherLifeAreNotMissed(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "vllm"}}
	e := correlate.New(cfg)
	var out correlate.Output
	ref := uint64(0)
	life := func(from, to int) { // of an observer; the engine goes on at 100 tokens a second
		ref++
		e.Open(&timeline.Request{Ref: ref, Target: "vllm", Sent: t0.Add(time.Duration(from) * time.Second), Streaming: true})
		for i := from * 100; i <= to*100; i++ {
			at := t0.Add(time.Duration(i) * 10 * time.Millisecond)
			if i%100 == 0 {
				s := timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: at - 1e6, End: at + 1e6}}
				s.Put(timeline.OutputTotal, float64(i))
				s.Put(timeline.Running, 1)
				e.AddEngine(&s)
				e.Advance(&out, at.Add(-cfg.Lateness))
			}
			e.Token(timeline.TokenEvent{Ref: ref, At: at + 2e6, After: at, Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent})
		}
	}
	life(0, 10)
	e.AddEvent(timeline.Event{At: t0.Add(20 * time.Second), Kind: timeline.EventSegment, GPU: timeline.NoGPU})
	life(20, 30)
	e.Flush(&out)
	var sum correlate.Matched
	for i := range out.Cells {
		sum.Add(out.Cells[i].Matched)
	}
	near(t, "coverage", sum.Coverage().Value, 1, 0.01)
	if sum.Intervals != 20 {
		t.Errorf("%d intervals, want ten of each life", sum.Intervals)
	}
}

// TestOneGPUAndOneEngineAreTiedInEachLife plays three lives of an agent, each on a GPU of its own, into an engine that
// knows all three GPUs from the start, as a replay does.
func TestOneGPUAndOneEngineAreTiedInEachLife(t *testing.T) {
	for _, names := range [][3]string{{"vllm", "vllm", "vllm"}, {"a", "b", "c"}} {
		gpus := []timeline.GPU{h100(), h100(), h100()}
		gpus[1].UUID, gpus[2].UUID = "GPU-2", "GPU-3"
		e := correlate.New(correlate.DefaultConfig())
		e.SetGPUs(gpus)
		var out correlate.Output
		const life = 12 // s, less than a silent GPU counts
		for i := range 3 * life * 10 {
			at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
			n := i / (life * 10)
			if i > 0 && i%(life*10) == 0 {
				e.AddEvent(timeline.Event{At: at, Kind: timeline.EventSegment, GPU: timeline.NoGPU})
			}
			s := timeline.Sample{GPU: n, Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}, Slack: 1e5}
			for c, v := range map[timeline.Counter]float64{timeline.DRAMUtil: 0.8, timeline.TensorUtil: 0.1, timeline.SMUtil: 0.95, timeline.GraphicsUtil: 0.99} {
				s.Put(c, v)
			}
			e.AddSample(&s)
			if i%10 == 0 {
				m := running(at, 0, 8)
				m.Target = names[n]
				m.Put(timeline.OutputTotal, float64(10*i))
				m.Put(timeline.PromptTotal, 1)
				e.AddEngine(m)
				e.Advance(&out, at.Add(-2*time.Second))
			}
		}
		e.Flush(&out)
		tied := [3]int{}
		for i := range out.Cells {
			c := &out.Cells[i]
			n := min(2, int(c.Span.Mid().Sub(t0)/(life*time.Second)))
			if c.Target != names[n] || len(c.PerGPU) == 0 {
				continue
			}
			if len(c.PerGPU) != 1 || c.PerGPU[0].GPU != n {
				t.Errorf("%v: cell at %v is of GPUs %+v, want %d alone", names, c.Span.Start.Sub(t0), c.PerGPU[0].GPU, n)
			}
			if c.Verdict.Reason != verdict.ReasonNoMapping {
				tied[n]++
			}
		}
		for n, cells := range tied {
			if cells < life-2 {
				t.Errorf("%v: %d cells of life %d are tied to its GPU, want nearly %d", names, cells, n, life)
			}
		}
	}
}

func TestALostGPUIsStillThere(t *testing.T) {
	second := h100()
	second.UUID = "GPU-2"
	cfg := correlate.DefaultConfig()
	cfg.Targets = []timeline.Target{{Name: "vllm"}}
	e := correlate.New(cfg)
	e.SetGPUs([]timeline.GPU{h100(), second})
	var out correlate.Output
	for i := range 600 {
		at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
		if i == 50 {
			e.AddEvent(timeline.Event{At: at, Kind: timeline.EventGPULost, GPU: 1})
		}
		for gpu := range 2 {
			if gpu == 1 && i >= 50 {
				continue
			}
			s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at, End: at.Add(100 * time.Millisecond)}}
			s.Put(timeline.DRAMUtil, 0.8)
			e.AddSample(&s)
		}
		if i%10 == 0 {
			e.AddEngine(running(at, 0, 8))
			e.Advance(&out, at.Add(-2*time.Second))
		}
	}
	e.Flush(&out)
	for i := range out.Cells {
		if r := out.Cells[i].Verdict.Reason; r != verdict.ReasonNoMapping {
			t.Fatalf("cell %d of two GPUs: %s", i, r)
		}
	}
}

func TestACellKnowsWhereItsReadingsEnd(t *testing.T) {
	out := run(t, memoryBound(), timeline.Target{}, 5*time.Second+300*time.Millisecond)
	var all timeline.Span
	for i := range out.Cells {
		if d := out.Cells[i].Data; d.Intersect(out.Cells[i].Span) != d {
			t.Errorf("readings %v lie outside of the cell %v", d, out.Cells[i].Span)
		}
		all = all.Union(out.Cells[i].Data)
	}
	if got := all.Duration(); got < 5200*time.Millisecond || got > 5310*time.Millisecond {
		t.Errorf("readings over %v, want 5.3 s and not whole cells", got)
	}
}

func TestAnOverlayOfAPhaseHoldsForATenthOfIt(t *testing.T) {
	tl := parse(t, `
seed 5
duration 64s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=2 prompt=10 output=8000 0s..1s
load streams=1 prompt=1000 output=1 20s..20.3s
`)
	_, out := play(tl, 1)
	cells := 0
	for i := range out.Cells {
		if slices.Contains(out.Cells[i].Verdict.Overlays, timeline.PrefillInterference) {
			cells++
		}
	}
	if cells == 0 || cells > 8 {
		t.Fatalf("%d cells with prompts in them, want a few", cells)
	}
	long := 0
	for i := range out.Phases {
		p := &out.Phases[i]
		if p.Request.Decode().Duration() < 45*time.Second {
			continue
		}
		long++
		for _, o := range p.Overlays {
			if o == timeline.PrefillInterference {
				t.Errorf("phase of %v bears %s for a second of prompts (%d cells)", p.Request.Decode().Duration(), o, cells)
			}
		}
	}
	if long != 2 {
		t.Errorf("%d phases are long, want those of the two streams", long)
	}
}
