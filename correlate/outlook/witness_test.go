package outlook_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// load plays cells whose batch and context vary, with steps as long as step says; the engine counts them miscount times.
func load(tally *outlook.Tally, miscount float64, step func(batch, context float64) float64) {
	for i := range 200 {
		batch := 4 + float64((i*7)%29)
		context := 500 + float64((i*131)%3000)
		s := step(batch, batch*context)
		c := cell(i, miscount/s, batch, context)
		told := steps.Counted(c.Span, miscount/s, time.Second)
		seen := steps.Reading{
			Over: c.Span, Source: steps.Arrivals, Steps: int(1 / s), Time: timeline.Known(s), Holds: true,
			Streams: timeline.Known(batch), Tokens: timeline.Known(1),
		}
		c.Step, c.StepConflict = steps.Best(told, seen), steps.Disagreement(told, seen)
		tally.Add(c)
	}
}

func TestStepTimesAreASecondWitness(t *testing.T) {
	// 15.0 GB of weights and 131,072 bytes a token at 3.0 TB/s.
	memory := func(_, context float64) float64 { return 15.0e9/3.0e12 + context*131072/3.0e12 }
	// The same step whatever the context: the host's time.
	host := func(batch, _ float64) float64 { return 0.02 + 0.0005*batch }
	for name, tt := range map[string]struct {
		step    func(batch, context float64) float64
		says    steps.Testimony
		label   timeline.Label
		against bool
	}{
		"memory, and counters agree":       {memory, steps.MemoryLike, timeline.Memory, false},
		"memory, and counters say compute": {memory, steps.MemoryLike, timeline.Compute, true},
		"host, and counters agree":         {host, steps.NotMemoryLike, timeline.Host, false},
		"host, and counters say memory":    {host, steps.NotMemoryLike, timeline.Memory, true},
	} {
		t.Run(name, func(t *testing.T) {
			tally := outlook.New(facts())
			load(tally, 1, tt.step)
			w := tally.Testimony(tt.label)
			if w.Says != tt.says || len(w.Reasons) == 0 || w.Steps != 200 {
				t.Errorf("%s of %d cells, want %s: %s", w.Says, w.Steps, tt.says, strings.Join(w.Reasons, "; "))
			}
			if (w.Against != "") != tt.against {
				t.Errorf("against %s: %q", tt.label, w.Against)
			}
			if w.Conflict() != "" {
				t.Errorf("conflict %q", w.Conflict())
			}
		})
	}
}

func TestWithoutAModelSlopesStandAlone(t *testing.T) {
	f := facts()
	f.Target.Model = ""
	tally := outlook.New(f)
	load(tally, 1, func(_, context float64) float64 { return 0.005 + context*4e-8 })
	if w := tally.Testimony(timeline.Memory); w.Says != steps.NotIdentifiable || w.Against != "" {
		t.Errorf("%s, against %q", w.Says, w.Against)
	}
}

func TestARestartedEngineTestifiesAnew(t *testing.T) {
	tally := outlook.New(facts())
	if w := tally.Testimony(timeline.Memory); w.Says != steps.NotIdentifiable || w.Steps != 0 {
		t.Errorf("%+v of nothing", w)
	}
	load(tally, 1, func(_, context float64) float64 { return 0.005 + context*4e-8 })
	tally.Restarted()
	if w := tally.Testimony(timeline.Memory); w.Steps != 0 || w.Says != steps.NotIdentifiable {
		t.Errorf("%s of %d cells after a restart", w.Says, w.Steps)
	}
}

func TestACountThatTokensContradictIsTold(t *testing.T) {
	tally := outlook.New(facts())
	load(tally, 2, func(_, context float64) float64 { return 0.005 + context*4e-8 })
	w := tally.Testimony(timeline.Memory)
	if w.Conflicts != 200 || w.Compared != 200 || w.Conflict() == "" {
		t.Errorf("%d conflicts in %d cells: %q", w.Conflicts, w.Compared, w.Conflict())
	}
}
