package steps_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// A dense model of 8 billion parameters in 16 bits on a GPU of 3.35 TB/s.
const (
	peak    = 3.35e12
	weights = 15e9
	kvBytes = 131072
)

var dense = steps.Bytes{Weights: weights, KV: kvBytes, Bandwidth: peak}

// world is a load over time and the engine's law of step time.
type world struct {
	n       int
	steady  bool    // batch and context stay
	locked  float64 // context for each sequence, if it is always the same
	noise   float64
	outlier float64 // part of stretches that take twice as long
	prompt  float64 // tokens a step at most
	law     func(batch, context float64) float64
}

func (w *world) history(seed uint64) *steps.History {
	r := rand.New(rand.NewPCG(seed, 5))
	h := steps.NewHistory(steps.DefaultHistory)
	load, length, noise := 0.0, 0.0, 0.0
	for range w.n {
		load = 0.9*load + math.Sqrt(1-0.81)*r.NormFloat64()
		length = 0.95*length + math.Sqrt(1-0.9025)*r.NormFloat64()
		noise = 0.5*noise + w.noise*math.Sqrt(1-0.25)*r.NormFloat64()
		batch, each := max(2, 32+10*load), max(200, 2500+800*length)
		if w.steady {
			batch, each = 32, 2500
		}
		if w.locked > 0 {
			each = w.locked
		}
		o := steps.Observation{Batch: batch, Context: batch * each, Prompt: w.prompt * r.Float64()}
		o.Time = (w.law(batch, o.Context) + 20e-6*o.Prompt) * (1 + noise)
		if r.Float64() < w.outlier {
			o.Time *= 2
		}
		h.Add(o)
	}
	return h
}

// readingLaw is a step that waits for memory at 88 % of the peak, and a little for launches.
func readingLaw(_, context float64) float64 { return (weights+kvBytes*context)/(0.88*peak) + 0.3e-3 }

func TestWitness(t *testing.T) {
	for _, tt := range []struct {
		name   string
		world  world
		bytes  steps.Bytes
		want   steps.Testimony
		reason string
	}{
		{"reading is memory-like", world{n: 200, noise: 0.01, law: readingLaw}, dense, steps.MemoryLike, "of the peak"},
		{
			"reading is memory-like through wild stretches",
			world{n: 200, noise: 0.01, outlier: 0.1, law: readingLaw},
			dense, steps.MemoryLike, "of the peak",
		},
		{
			"reading is memory-like beside prompt work",
			world{n: 200, noise: 0.01, prompt: 300, law: readingLaw},
			dense, steps.MemoryLike, "of the peak",
		},
		{
			"reading is memory-like where batch and context move together",
			world{n: 200, noise: 0.01, locked: 2500, law: readingLaw},
			dense, steps.MemoryLike, "moves together",
		},
		{
			"steps of one length are not",
			world{n: 200, noise: 0.01, law: func(_, _ float64) float64 { return 20e-3 }},
			dense, steps.NotMemoryLike, "of a step is fixed",
		},
		{
			"steps that wait for launches are not",
			world{n: 200, noise: 0.01, law: func(b, c float64) float64 { return 12e-3 + readingLaw(b, c) }},
			dense, steps.NotMemoryLike, "of a step is fixed",
		},
		{
			"steps that grow by sequences are not",
			world{n: 200, noise: 0.01, law: func(b, c float64) float64 { return 2e-3 + 0.5e-3*b + 0.3*kvBytes*c/peak }},
			dense, steps.NotMemoryLike, "grows with the number of sequences",
		},
		{
			"the same of experts is not said",
			world{n: 200, noise: 0.01, law: func(b, c float64) float64 { return 2e-3 + 0.5e-3*b + 0.3*kvBytes*c/peak }},
			steps.Bytes{Weights: weights, KV: kvBytes, Bandwidth: peak, Growing: true},
			steps.NotIdentifiable, "",
		},
		{
			"attention slower than its bytes is not",
			world{n: 200, noise: 0.01, law: func(_, c float64) float64 { return 5e-3 + 5*kvBytes*c/peak }},
			dense, steps.NotMemoryLike, "a token of context takes",
		},
		{
			"of a steady load nothing is said",
			world{n: 200, noise: 0.01, steady: true, law: readingLaw},
			dense, steps.NotIdentifiable, "neither batch nor context varies",
		},
		{
			"where batch and context move together and it is the batch, nothing is said",
			world{n: 200, noise: 0.01, locked: 2500, law: func(b, _ float64) float64 { return 2e-3 + 0.5e-3*b }},
			dense, steps.NotIdentifiable, "",
		},
		{
			"of a steady load beside prompt work nothing is said",
			world{n: 200, noise: 0.01, steady: true, prompt: 300, law: readingLaw},
			dense, steps.NotIdentifiable, "neither batch nor context varies",
		},
		{
			"a level that fits, of which nothing grows, says nothing",
			world{n: 200, noise: 0.01, locked: 2500, law: func(_, _ float64) float64 { return weights / (0.7 * peak) }},
			dense, steps.NotIdentifiable, "nothing grows as reading does",
		},
		{"of few stretches nothing is said", world{n: 20, noise: 0.01, law: readingLaw}, dense, steps.NotIdentifiable, "fewer than 30"},
		{
			"of noise nothing is said", world{n: 60, noise: 0.5, law: readingLaw}, dense, steps.NotIdentifiable, "",
		},
		{
			"without the model's bytes nothing is said",
			world{n: 200, noise: 0.01, law: readingLaw},
			steps.Bytes{},
			steps.NotIdentifiable, "not known",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(2) {
				w := tt.world.history(seed).Witness(tt.bytes)
				all := strings.Join(w.Reasons, "\n")
				if w.Says != tt.want || !strings.Contains(all, tt.reason) || len(w.Reasons) == 0 {
					t.Errorf("seed %d: says %s, want %s for %q:\n%s", seed, w.Says, tt.want, tt.reason, all)
				}
				if seed == 0 {
					t.Logf("%s\n%s", w.Says, all)
				}
			}
		})
	}
}

func TestWitnessIsRarelyWrong(t *testing.T) {
	// Random laws, loads and noise. What part of a step is reading is known; below a half it must not be called
	// memory-like, and above seven tenths not the opposite.
	r := rand.New(rand.NewPCG(71, 1))
	const worlds = 120
	said, wrong := 0, 0
	for i := range worlds {
		eta := 0.6 + 0.3*r.Float64()
		launch := 20e-3 * math.Pow(r.Float64(), 3)
		each := 0.4e-3 * math.Pow(r.Float64(), 4)
		var read, all float64
		w := world{n: 80 + r.IntN(80), noise: 0.005 + 0.03*r.Float64(), outlier: 0.05 * r.Float64()}
		w.law = func(b, c float64) float64 {
			bytes := (weights + kvBytes*c) / (eta * peak)
			read, all = read+bytes, all+bytes+launch+each*b
			return bytes + launch + each*b
		}
		says := w.history(uint64(i)).Witness(dense).Says
		share := read / all
		if says != steps.NotIdentifiable {
			said++
		}
		if says == steps.MemoryLike && share < 0.5 || says == steps.NotMemoryLike && share > 0.7 {
			wrong++
			t.Logf("%s, but %.0f %% of a step is reading (eta %.2f, launch %.1f ms, %.0f us a sequence)", says, 100*share, eta, 1e3*launch, 1e6*each)
		}
	}
	t.Logf("%d of %d worlds are decided, %d wrongly", said, worlds, wrong)
	if wrong > worlds/100 {
		t.Errorf("%d of %d testimonies are wrong", wrong, said)
	}
	if said < worlds*60/100 {
		t.Errorf("only %d of %d worlds are decided", said, worlds)
	}
}

func TestIntervalsOfSlopesCover(t *testing.T) {
	const trials = 100
	covered := 0
	for seed := range uint64(trials) {
		w := world{n: 150, noise: 0.03, law: readingLaw}
		f := w.history(seed).Witness(dense).Fit
		if !f.Context.Fitted {
			t.Fatalf("seed %d: %s", seed, f.Context.Why)
		}
		if truth := kvBytes / (0.88 * peak); f.Context.Interval.Low <= truth && truth <= f.Context.Interval.High {
			covered++
		}
	}
	t.Logf("covered %.3f", float64(covered)/trials)
	if got := float64(covered) / trials; got < 0.90 {
		t.Errorf("covered %.3f, want 0.95 within noise", got)
	}
}

func TestAWitnessFromArrivals(t *testing.T) {
	// The whole way: tokens with jitter, readings of a second each, slopes.
	p := play{
		seed: 5, batch: 24, length: 700, prompt: 1500, jitter: uniform(2 * time.Millisecond), stretch: 3 * time.Minute,
		step: func(_ *rand.Rand, _, _ int, context float64) time.Duration {
			return time.Duration(1e9 * readingLaw(0, context))
		},
	}
	tokens, _ := p.run()
	h := steps.NewHistory(steps.DefaultHistory)
	for _, r := range read(tokens, false) {
		if o, ok := r.Observation(r.Streams, r.Context, timeline.Known(0)); ok {
			h.Add(o)
		}
	}
	w := h.Witness(dense)
	if w.Says != steps.MemoryLike {
		t.Errorf("says %s of %d stretches:\n%s", w.Says, h.Len(), strings.Join(w.Reasons, "\n"))
	}
	if got := w.KVRate.Value / peak; !w.KVRate.OK() || math.Abs(got-0.88) > 0.08 {
		t.Errorf("the cache is read at %.2f of the peak, want 0.88", got)
	}
	if d := w.Against(timeline.Compute); d == "" {
		t.Error("memory-like steps do not contradict compute")
	}
}

func TestAgainstContradictsOnlyWhatExcludesIt(t *testing.T) {
	for _, says := range []steps.Testimony{steps.MemoryLike, steps.NotMemoryLike, steps.NotIdentifiable} {
		for _, label := range timeline.Labels() {
			open := label == timeline.Balanced || label == timeline.Mixed || label == timeline.Undetermined
			want := says == steps.MemoryLike && !open && label != timeline.Memory || says == steps.NotMemoryLike && label == timeline.Memory
			w := steps.Witness{Says: says}
			if got := w.Against(label); (got != "") != want {
				t.Errorf("%s against %s: %q", says, label, got)
			}
		}
	}
}

func TestAnObservationNeedsAllOfTheEngine(t *testing.T) {
	r := steps.Reading{Over: timeline.Span{Start: 1, End: 1_000_000_001}, Time: timeline.Known(0.01), Holds: true}
	known, absent := timeline.Known(100), timeline.Absent("coverage")
	if o, ok := r.Observation(known, known, known); !ok || o.Prompt != 1 {
		t.Errorf("Observation = %+v, %v, want one prompt token for each of a hundred steps", o, ok)
	}
	for i, bad := range [][3]timeline.Measure{{absent, known, known}, {known, absent, known}, {known, known, absent}} {
		if _, ok := r.Observation(bad[0], bad[1], bad[2]); ok {
			t.Errorf("case %d: observed in part", i)
		}
	}
	r.Holds = false
	if _, ok := r.Observation(known, known, known); ok {
		t.Error("a reading that does not hold is observed")
	}
}

func TestHistoryKeepsTheNewest(t *testing.T) {
	h := steps.NewHistory(40)
	for i := range 100 {
		h.Add(steps.Observation{Time: 1 + float64(i), Batch: 1 + float64(i), Context: 5})
	}
	for _, bad := range []steps.Observation{{}, {Time: math.NaN(), Batch: 1}, {Time: 1, Batch: math.Inf(1)}, {Time: 1, Batch: 1, Context: -1}} {
		h.Add(bad)
	}
	f := h.Witness(dense).Fit
	if h.Len() != 40 || f.Observations != 40 {
		t.Errorf("%d kept, %d fitted, want 40", h.Len(), f.Observations)
	}
	h.Reset()
	if h.Len() != 0 {
		t.Errorf("%d kept after a reset", h.Len())
	}
}

// TestResamplesWithoutAFitAreLeftOut gives loads that vary in a few stretches alone, which a resample may miss altogether.
func TestResamplesWithoutAFitAreLeftOut(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		h := steps.NewHistory(steps.DefaultHistory)
		at := rng.IntN(40)
		for i := range 45 {
			o := steps.Observation{Time: 0.010 + 0.0005*rng.Float64(), Batch: 8, Context: 8000, Prompt: 0}
			if i >= at && i < at+3 {
				o.Batch, o.Context = 32, 8000+float64(rng.IntN(90000))
			}
			h.Add(o)
		}
		w := h.Witness(steps.Bytes{Weights: 15e9, KV: 131072, Bandwidth: 3.35e12})
		if w.Says == "" || len(w.Reasons) == 0 {
			t.Fatalf("seed %d: %+v", seed, w)
		}
	}
}
