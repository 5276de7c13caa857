package steps

import (
	"math"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Observation is the mean step of one stretch.
type Observation struct {
	Time    float64 // s
	Batch   float64 // sequences of the whole engine in it
	Context float64 // tokens, over all of them
	Prompt  float64 // prompt tokens processed with it
}

// Observation returns the mean step of the reading's stretch, for a [History]. Batch and context are means over the
// stretch and prompt is its prompt tokens a second, of the whole engine: told by it, or by a probe that sees all of its
// traffic. It is refused where any of them is not known, since a slope over a part of what an engine did is a slope of
// nothing.
func (r *Reading) Observation(batch, context, prompt timeline.Measure) (Observation, bool) {
	if !r.Holds || !batch.OK() || !context.OK() || !prompt.OK() {
		return Observation{}, false
	}
	return Observation{Time: r.Time.Value, Batch: batch.Value, Context: context.Value, Prompt: prompt.Value * r.Time.Value}, true
}

// History keeps the newest observations of one target, in the order of time. It is not safe for concurrent use.
type History struct {
	kept []Observation
	next int // the oldest, once full
}

// DefaultHistory is how many stretches a history is for: the slopes of about eight minutes, at a second each.
const DefaultHistory = 512

// NewHistory returns a history of that many observations, 32 bytes each.
func NewHistory(size int) *History { return &History{kept: make([]Observation, 0, max(1, size))} }

// Add takes one observation, for which the oldest gives way. What is no step counts as absent.
func (h *History) Add(o Observation) {
	if !(o.Time > 0 && o.Batch > 0 && o.Context >= 0 && o.Prompt >= 0) || math.IsInf(o.Time+o.Batch+o.Context+o.Prompt, 0) {
		return
	}
	if len(h.kept) < cap(h.kept) {
		h.kept = append(h.kept, o)
		return
	}
	h.kept[h.next] = o
	h.next = (h.next + 1) % len(h.kept)
}

// Reset forgets all, as is due when the engine starts anew: other weights, other slopes.
func (h *History) Reset() { h.kept, h.next = h.kept[:0], 0 }

// Len returns how many observations are kept.
func (h *History) Len() int { return len(h.kept) }

// ordered returns the observations in the order of time.
func (h *History) ordered() []Observation {
	out := make([]Observation, 0, len(h.kept))
	return append(append(out, h.kept[h.next:]...), h.kept[:h.next]...)
}
