package outlook

import (
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Testimony is what the times of steps over batch and context say of memory: a second witness beside the counters, and the
// only one where there are none.
type Testimony struct {
	Says    steps.Testimony `json:"says"`
	Reasons []string        `json:"reasons"`
	Against string          `json:"against,omitempty"` // how it contradicts the verdict from counters; empty where it does not

	KVRate     timeline.Measure `json:"kv_bytes_per_second"`     // of each GPU, if all time that goes with context is reading
	WeightRate timeline.Measure `json:"weight_bytes_per_second"` // likewise for the fixed time
	Steps      int              `json:"observations"`            // cells whose mean step counts

	// Conflicts of the cells in which both are known hold a count of steps by the engine that the arrivals of tokens contradict.
	Conflicts  int    `json:"step_conflicts"`
	Compared   int    `json:"steps_compared"`
	ConflictIs string `json:"step_conflict,omitempty"` // the newest
}

// conflictPart of the compared cells must contradict each other to be worth a word: at the ends of a load scrapes cover a part.
const conflictPart = 0.2

// Conflict returns how the engine's count of steps and the arrivals of tokens contradict each other; empty where they do not.
func (t *Testimony) Conflict() string {
	if t.Conflicts < 3 || float64(t.Conflicts) < conflictPart*float64(t.Compared) {
		return ""
	}
	return t.ConflictIs
}

// witness takes the mean step of a cell.
func (t *Tally) witness(c *correlate.Cell) {
	if t.history == nil {
		t.history = steps.NewHistory(steps.DefaultHistory)
	}
	if c.Step.Holds && c.Step.Source == steps.Engine {
		t.compared++
	}
	if c.StepConflict != "" {
		t.conflicts, t.conflict = t.conflicts+1, c.StepConflict
	}
	prompt := c.PromptTokens
	if prompt.OK() {
		prompt.Value /= c.Span.Duration().Seconds()
	}
	if o, ok := c.Step.Observation(c.Batch, c.ContextSum, prompt); ok {
		t.history.Add(o)
	}
}

// Restarted says that the engine began anew: its steps may be others from here on.
func (t *Tally) Restarted() {
	if t.history != nil {
		t.history.Reset()
	}
}

// Testimony returns what the steps testify, held against the label that counters led to.
func (t *Tally) Testimony(label timeline.Label) Testimony {
	if t.history == nil {
		return NoTestimony("nothing decoded")
	}
	w := t.history.Witness(t.stepBytes())
	return Testimony{
		Says: w.Says, Reasons: w.Reasons, Against: w.Against(label), KVRate: w.KVRate, WeightRate: w.WeightRate,
		Steps: t.history.Len(), Conflicts: t.conflicts, Compared: t.compared, ConflictIs: t.conflict,
	}
}

// NoTestimony is that of steps of which nothing is known because of why.
func NoTestimony(why string) Testimony {
	return Testimony{Says: steps.NotIdentifiable, Reasons: []string{why}, KVRate: timeline.Absent(why), WeightRate: timeline.Absent(why)}
}

// stepBytes is what one GPU reads in a step by the model; nothing where there is none.
func (t *Tally) stepBytes() steps.Bytes {
	if t.model == nil || t.sums.steps <= 0 {
		return steps.Bytes{}
	}
	n := float64(t.model.TP())
	batch := t.sums.batch / t.sums.steps
	_, weights := t.model.WeightBytes(batch)
	_, more := t.model.WeightBytes(2 * batch)
	return steps.Bytes{
		Weights: weights / n, Growing: more > 1.02*weights,
		KV:        t.model.KVBytesPerToken() * t.model.KVCopies() / n,
		Bandwidth: roofline.Bandwidth(t.model.GPU()),
	}
}
