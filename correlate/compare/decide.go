package compare

import (
	"fmt"
	"math"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// half of what was promised is what must have come, for it to count as come.
const half = 0.5

// longer narrows most intervals.
const longer = "record both for longer"

// tri is the answer of an interval to a question.
type tri int

const (
	unsure tri = iota
	yes
	no
)

// above tells whether a value is above a limit, as far as its interval does.
func (v Value) above(limit float64) tri {
	switch {
	case !v.Sure():
		return unsure
	case v.CI95.Value.Low >= limit:
		return yes
	case v.CI95.Value.High < limit:
		return no
	}
	return unsure
}

// below is above, turned round.
func (v Value) below(limit float64) tri {
	switch {
	case !v.Sure():
		return unsure
	case v.CI95.Value.High <= limit:
		return yes
	case v.CI95.Value.Low > limit:
		return no
	}
	return unsure
}

// decide names the verdict, why, and how sure it is. Every word rests on whole intervals.
func decide(r *Report, x, y *arm, m *matching) {
	defer func() {
		if r.Verdict == Undetermined && strings.HasPrefix(r.Remedy, longer) && !m.shared {
			r.Remedy = "record both at the same fixed concurrency: their batches, or contexts, do not overlap"
		}
		r.Confidence, r.HeldDown = confidence(r, x, y, m)
		r.Refute = refute(r)
	}()
	r.Slower = r.Time.above(1+r.Margin) == yes
	if !r.Time.OK() {
		r.Verdict, r.Reason, r.Remedy = Undetermined, r.Time.Value.Why, "record both under load"
		return
	}
	if !r.Time.Sure() {
		need := math.Ceil(m.blockS) * stats.MinBlocks
		r.Verdict, r.Reason = Undetermined, "too short: "+r.Time.CI95.Why
		r.Remedy = fmt.Sprintf("record both for %.0f s of decode or more", 2*need)
		return
	}
	if why := hitsDiffer(x, y); why != "" {
		r.Verdict, r.Reason = Undetermined, why
		r.Remedy = "record both with the same prompts in the same order, from a cold cache or a warm one"
		return
	}
	if promised(r) {
		decidePromise(r)
		return
	}
	if r.Bytes.Modelled.OK() || r.Bytes.Measured.below(1-r.Margin) != yes {
		decideTime(r)
		return
	}
	decideSaved(r, fmt.Sprintf("%.0f %% of A's DRAM bytes a step are left", 100*r.Bytes.Measured.Value.Value))
}

// promised reports whether the format of B should move fewer bytes than that of A, beyond the margin.
func promised(r *Report) bool { return r.Bytes.Modelled.below(1-r.Margin) == yes }

// decidePromise judges a format that should save bytes.
func decidePromise(r *Report) {
	model := r.Bytes.Modelled.Value.Value
	if !r.Bytes.Measured.Sure() {
		decideTime(r)
		if r.Verdict == Improvement {
			r.Reason += "; whether bytes fell is not measured"
		}
		return
	}
	part := func(x float64) float64 { return (1 - x) / (1 - model) }
	iv := r.Bytes.Measured.CI95.Value
	text := fmt.Sprintf("%.0f %% of the %.0f %% of A's DRAM bytes a step that the format should save", 100*part(r.Bytes.Measured.Value.Value), 100*(1-model))
	switch {
	case part(iv.High) >= half:
		decideSaved(r, text+" are saved")
	case part(iv.Low) < half:
		r.Verdict, r.Reason = NotSaved, "only "+text+" are saved"
		if part(r.Bytes.Measured.Value.Value) < 0.01 {
			r.Reason = fmt.Sprintf("none of the %.0f %% of A's DRAM bytes a step that the format should save is saved", 100*(1-model))
		}
	default:
		r.Verdict, r.Reason = Undetermined, fmt.Sprintf("%.0f to %.0f %% of the bytes that the format should save are saved", 100*part(iv.High), 100*part(iv.Low))
		r.Remedy = longer
	}
}

// decideSaved judges the time where bytes fell.
func decideSaved(r *Report, saved string) {
	came := r.Came
	switch {
	case !came.Sure():
		decideTime(r)
		r.Reason = saved + "; " + r.Reason
	case came.above(half) == yes:
		r.Verdict, r.Reason = Realised, saved+", and "+cameText(came)
	case came.above(half) == no || r.Slower:
		r.Verdict, r.Reason = NotTime, saved+", but "+cameText(came)
		if r.Slower {
			r.Reason += ": B is slower"
		}
	default:
		iv := came.CI95.Value
		r.Verdict = Undetermined
		r.Reason = fmt.Sprintf("%s, and between %.0f and %.0f %% of the time that this should save came", saved, 100*iv.Low, 100*iv.High)
		r.Remedy = longer + ", or calibrate the GPU's achievable bandwidth"
	}
}

func cameText(came Value) string {
	v := came.Value.Value
	if v <= 0.005 {
		return "none of the time that this should save came"
	}
	return fmt.Sprintf("%.0f %% of the time that this should save came", 100*v)
}

// decideTime judges the time alone.
func decideTime(r *Report) {
	iv := r.Time.CI95.Value
	by := func(x float64) float64 { return 100 * math.Abs(x-1) }
	switch {
	case stats.Equivalent(iv.Low, iv.High, r.Margin):
		r.Verdict = NoDifference
		r.Reason = fmt.Sprintf("the time ratio lies between %.3f and %.3f, within a margin of %.3g %%", iv.Low, iv.High, 100*r.Margin)
	case r.Slower:
		r.Verdict = Regression
		r.Reason = fmt.Sprintf("B takes %.0f %% longer a token at the same step", by(r.Time.Value.Value))
		switch {
		case r.Grew != "":
			r.Reason += ", and what grew most is " + grewText(r)
		case r.Rate.below(1) == yes:
			r.Reason += fmt.Sprintf(", moving %.2f of A's DRAM bytes at %.2f of A's rate", r.Bytes.Measured.Value.Value, r.Rate.Value.Value)
		}
	case r.Time.below(1/(1+r.Margin)) == yes:
		r.Verdict = Improvement
		r.Reason = fmt.Sprintf("B takes %.0f %% less a token at the same step", by(r.Time.Value.Value))
		if b := r.Bandwidth; b.OK() && b.Value > 1+r.Margin && r.Expected.OK() {
			r.Reason += fmt.Sprintf(", where %.2f of A's bandwidth should bring %.0f %%", b.Value, by(r.Expected.Value.Value))
		}
	default:
		r.Verdict = Undetermined
		r.Reason = fmt.Sprintf("the time ratio lies between %.3f and %.3f: neither within %.3g %% of one nor beyond", iv.Low, iv.High, 100*r.Margin)
		r.Remedy = longer + ", or allow a wider --margin"
	}
}

// grewText names the part of the step that grew, and by how much.
func grewText(r *Report) string {
	for _, p := range r.Parts {
		if p.Name == r.Grew {
			return fmt.Sprintf("%s, by %.2f ms", p.Name, 1e3*p.Change.Value.Value)
		}
	}
	return r.Grew
}

// confidence says how sure a decided verdict is, and what holds it down.
func confidence(r *Report, x, y *arm, m *matching) (timeline.Confidence, []string) {
	if !r.Verdict.Decided() {
		return timeline.NoConfidence, nil
	}
	c := timeline.High
	var why []string
	hold := func(to timeline.Confidence, text string) { c, why = min(c, to), append(why, text) }
	iv := r.Time.CI95.Value
	switch {
	case !m.shared && !m.a.use[axisKV]:
		hold(timeline.Low, "no bin is shared, and context is not known")
	case !m.shared:
		hold(timeline.Low, "no bin of batch and context is shared")
	case r.Matched.Unmatched > half:
		hold(timeline.Medium, fmt.Sprintf("%.0f %% of the decode time is in bins that one side has alone", 100*r.Matched.Unmatched))
	}
	if (iv.High-iv.Low)/2 > 0.05*r.Time.Value.Value {
		hold(timeline.Medium, "the time ratio is known to more than 5 % either way only")
	}
	if !x.info.Hits.OK() && !y.info.Hits.OK() {
		hold(timeline.Medium, "prefix-hit rates are not known")
	}
	if !m.a.use[axisKV] || !m.a.use[axisPrompt] {
		hold(timeline.Medium, "context or prompt work is not known of both sides")
	}
	if (r.Verdict == Realised || r.Verdict == NotTime || r.Verdict == NotSaved) && r.Matched.StepSource != byEngine {
		hold(timeline.Medium, "the engine does not count its steps")
	}
	if m.boundary == byLittle {
		hold(timeline.Medium, "the engine tells no latency: its batch holds prompts too")
	}
	if x.starts <= 1 || y.starts <= 1 {
		hold(timeline.Medium, "one start of the engine a side: what differs from start to start is in no interval")
	}
	return c, why
}

// refute names what would prove the verdict wrong.
func refute(r *Report) string {
	switch r.Verdict {
	case Realised:
		return fmt.Sprintf("another pair of starts has a time ratio above %.2f", 1-half*(1-r.Expected.Value.Value))
	case NotTime:
		return fmt.Sprintf("another pair of starts has a time ratio below %.2f", 1-half*(1-r.Expected.Value.Value))
	case NotSaved:
		return fmt.Sprintf("another pair of starts has a byte ratio below %.2f", 1-half*(1-r.Bytes.Modelled.Value.Value))
	case Regression:
		return fmt.Sprintf("another pair of starts, in the other order, has a time ratio below %.2f", 1+r.Margin)
	case Improvement:
		return fmt.Sprintf("another pair of starts, in the other order, has a time ratio above %.2f", 1/(1+r.Margin))
	case NoDifference:
		return fmt.Sprintf("another pair of starts, in the other order, has a time ratio outside of %.2f to %.2f", 1/(1+r.Margin), 1+r.Margin)
	case Refused, Undetermined:
	}
	return ""
}

// warnings are what a reader must know before trusting the rest, the gravest first.
func warnings(r *Report, x, y *arm, m *matching) []string {
	out := []string{}
	for i, a := range []*arm{x, y} {
		for _, f := range a.info.Faults {
			out = append(out, fmt.Sprintf("%c: %s", 'A'+i, f))
		}
	}
	if m == nil {
		return out
	}
	if r.Split.Loop == loadChanged && m.enough() {
		out = append(out, "B was asked for another number of tokens a second than A: its batch differs for that reason too")
	}
	if w := partialWarning(x, y); w != "" {
		out = append(out, w)
	}
	if !r.Bytes.Measured.OK() {
		out = append(out, "no measured byte ratio: "+r.Bytes.Measured.Value.Why)
	}
	if !r.Bytes.Modelled.OK() {
		out = append(out, "no modelled byte ratio: "+r.Bytes.Modelled.Value.Why)
	}
	out = append(out, unexplained(r)...)
	if a, b := x.throttledPart(), y.throttledPart(); math.Abs(a-b) > 0.1 {
		out = append(out, fmt.Sprintf("clocks were held for %.0f %% of A's decode time and %.0f %% of B's", 100*a, 100*b))
	}
	if x.info.GPU != y.info.GPU {
		out = append(out, "the GPUs differ: "+strings.TrimPrefix(x.info.GPU, "NVIDIA ")+" against "+strings.TrimPrefix(y.info.GPU, "NVIDIA "))
	}
	if x.info.Simulated != y.info.Simulated {
		out = append(out, "one side is simulated, the other is not")
	}
	if x.thinned || y.thinned {
		out = append(out, "a recording is longer than is kept: every other cell and request stands for its neighbour")
	}
	return out
}

// partialWarning says that a probe saw part of the traffic.
func partialWarning(x, y *arm) string {
	const full = 0.95
	for i, a := range []*arm{x, y} {
		c := a.info.Coverage
		partly := c.OK() && c.Value < full
		for k := range a.cells {
			if a.cells[k].byProbe {
				return fmt.Sprintf("%c: traffic coverage is not known, so that batches are those of the requests seen, and no bytes are compared", 'A'+i)
			}
		}
		if partly {
			return fmt.Sprintf("%c: the probe saw %.0f %% of the output tokens; batch, steps and bytes are by the engine's counts", 'A'+i, 100*c.Value)
		}
	}
	return ""
}

// unexplained says that bytes moved otherwise than the model has it.
func unexplained(r *Report) []string {
	if !r.Bytes.Measured.Sure() || !r.Bytes.Modelled.OK() {
		return nil
	}
	model, seen := r.Bytes.Modelled.Value.Value, r.Bytes.Measured
	by := 1 + 2*r.Margin
	if seen.above(model*by) != yes && seen.below(model/by) != yes {
		return nil
	}
	return []string{fmt.Sprintf("DRAM bytes a step are %.2f of A's, where the model has %.2f", seen.Value.Value, model)}
}

// throttledPart is the part of the decode time in which clocks were held.
func (x *arm) throttledPart() float64 {
	var held, all float64
	for i := range x.cells {
		held, all = held+x.cells[i].throttled*x.cells[i].seconds, all+x.cells[i].seconds
	}
	if all == 0 {
		return 0
	}
	return held / all
}
