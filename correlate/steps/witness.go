package steps

import (
	"fmt"
	"math"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Bytes is what a step reads from one GPU's memory by a model of it, and how fast that can be. Zero is not known.
type Bytes struct {
	Weights   float64 // in a step, at the usual batch
	Growing   bool    // with the batch, as those of a mixture of experts do
	KV        float64 // for each token of context
	Bandwidth float64 // B/s, at the peak
}

// Testimony is what step times over batch and context say of memory.
type Testimony string

// The testimonies.
const (
	MemoryLike      Testimony = "memory_like"      // most of a step is as long as reading its bytes takes
	NotMemoryLike   Testimony = "not_memory_like"  // most of a step is not
	NotIdentifiable Testimony = "not_identifiable" // step times do not say, for the reasons given
)

// Witness is the testimony of step times, apart from any counter of the GPU, with its grounds.
type Witness struct {
	Says       Testimony
	Reasons    []string
	Fit        Fit
	KVRate     timeline.Measure // B/s at which the cache would be read if all time by context were reading
	WeightRate timeline.Measure // B/s at which weights would be read if all fixed time were reading
}

// Rates, as parts of the peak, between which time may be reading: calibrated copies reach 0.8 to 0.95 of it, and
// kernels of inference often less; above 1.1 nothing is read from memory. Between slow and low it is not said.
const (
	slowRate = 0.4
	lowRate  = 0.5
	highRate = 1.1
	// readRate is about how fast memory is read where nothing else is waited for. What a slow part takes longer than that
	// is spent otherwise.
	readRate = 0.8
)

const (
	mostOfStep  = 0.7 // read at a rate of memory, to be memory-like
	otherMost   = 0.5 // spent otherwise, not to be
	byBatchMost = 0.3 // that grows with the sequences themselves, to be memory-like
)

// Witness says what the kept observations testify. The bytes are those of one GPU.
func (h *History) Witness(b Bytes) Witness {
	w := Witness{Says: NotIdentifiable, KVRate: timeline.Absent(whyNoSlope), WeightRate: timeline.Absent(whyNoSlope)}
	f, ok := h.fit()
	w.Fit = f
	if !ok {
		w.because("%s", f.Fixed.Why)
		return w
	}
	if !(b.Bandwidth > 0 && b.KV > 0 && b.Weights > 0) || math.IsInf(b.Bandwidth+b.KV+b.Weights, 0) {
		w.because("the model's bytes or the memory's bandwidth are not known: the slopes stand alone")
		return w
	}
	w.judge(b)
	return w
}

const whyNoSlope = "no slope"

// part is a term seen as reading: by its rate, or the interval of it.
type part uint8

const (
	unclear part = iota
	reading
	slow // takes longer than reading would
	fast // takes less
)

// rate returns the bytes over a term's time, what kind of part that makes, and how much of a slow part is spent
// otherwise than reading.
func rate(bytes float64, t Term, peak float64) (at timeline.Measure, kind part, otherwise float64) {
	if t.Interval.High <= 0 {
		return timeline.Absent("no time goes to it"), fast, 0
	}
	at = timeline.Known(bytes / t.Slope)
	if t.Interval.Low <= 0 || t.Slope <= 0 {
		at = timeline.Absent("its time may be none")
	}
	lowest, highest := bytes/t.Interval.High/peak, math.Inf(1)
	if t.Interval.Low > 0 {
		highest = bytes / t.Interval.Low / peak
	}
	switch {
	case highest < slowRate:
		return at, slow, 1 - highest/readRate
	case lowest > highRate:
		return at, fast, 0
	case at.OK() && at.Value >= lowRate*peak && at.Value <= highRate*peak && lowest >= slowRate:
		return at, reading, 0
	}
	return at, unclear, 0
}

func (w *Witness) judge(b Bytes) {
	f := &w.Fit
	var kv, fixed part
	var idleKV, idleFixed float64
	weights := b.Weights
	if f.Context.Fitted {
		w.KVRate, kv, idleKV = rate(b.KV, f.Context, b.Bandwidth)
		w.because("a token of context takes %s: its cache at %s", perUnit(f.Context), ofPeak(w.KVRate, b.Bandwidth))
	} else {
		// The context's reading is in the fixed term then.
		weights += b.KV * f.mean.Context
		w.because("the context tells nothing: %s", f.Context.Why)
	}
	w.WeightRate, fixed, idleFixed = rate(weights, f.Fixed, b.Bandwidth)
	w.because("%.0f %% of a step is fixed, %.3g ms: weights at %s", 100*f.Fixed.Share, 1e3*f.Fixed.Slope, ofPeak(w.WeightRate, b.Bandwidth))
	if f.Batch.Fitted {
		w.because("%.0f %% grows with the number of sequences, %s each", 100*f.Batch.Share, perUnit(f.Batch))
	} else {
		w.because("the batch tells nothing: %s", f.Batch.Why)
	}
	if f.beyond() {
		w.because("a part exceeds the whole step: the load varied too little to tell the parts")
		return
	}
	var read float64
	if fixed == reading {
		read += f.Fixed.Share
	}
	if kv == reading {
		read += f.Context.Share
	}
	other := f.Fixed.Share * idleFixed
	if !f.together { // else the time may be the sequences' own
		other += f.Context.Share * idleKV
	}
	var byBatch timeline.Interval
	if f.Batch.Fitted && !b.Growing {
		byBatch = timeline.Interval{
			Low: f.Batch.Interval.Low * f.mean.Batch / f.decode, High: f.Batch.Interval.High * f.mean.Batch / f.decode,
		}
	}
	if f.drifted {
		w.because("the context only grew, or only fell, over the time: whatever else changed with it is in its slope")
	}
	// The fixed time alone is no witness: it may be as long as reading takes for another reason.
	grows := kv == reading || f.Batch.Fitted && !b.Growing
	switch {
	case read >= mostOfStep && byBatch.High <= byBatchMost && grows:
		w.Says = MemoryLike
	case other+max(0, byBatch.Low) >= otherMost:
		w.Says = NotMemoryLike
	default:
		w.because("%s", f.unsaid(kv, fixed))
	}
}

// maxBeyond is by how much a part may seem less than nothing or more than the whole, by noise.
const maxBeyond = 0.2

// beyond reports whether some part cannot be, so that none is to be believed.
func (f *Fit) beyond() bool {
	for _, t := range []Term{f.Fixed, f.Batch, f.Context} {
		if t.Share < -maxBeyond || t.Share > 1+maxBeyond {
			return true
		}
	}
	return false
}

// unsaid names why the parts decide nothing.
func (f *Fit) unsaid(kv, fixed part) string {
	switch {
	case fixed == fast:
		return "the fixed time is shorter than reading the weights takes at the peak: the line does not reach that far"
	case fixed == unclear:
		return "the fixed time is not known well enough to tell reading from waiting"
	case f.Context.Fitted && kv == unclear:
		return "the slope over context is not known well enough"
	case fixed == reading && !f.Batch.Fitted:
		return "the fixed time is as long as reading takes, but nothing grows as reading does"
	case f.together:
		return "batch and context move together, and their time cannot be told apart"
	}
	return "no part of a step decides"
}

func (w *Witness) because(format string, args ...any) {
	w.Reasons = append(w.Reasons, fmt.Sprintf(format, args...))
}

// perUnit writes a slope with its interval.
func perUnit(t Term) string {
	unit, name := 1e6, "us"
	if math.Abs(t.Slope) < 1e-7 {
		unit, name = 1e9, "ns"
	}
	return fmt.Sprintf("%.3g %s (%.3g to %.3g)", unit*t.Slope, name, unit*t.Interval.Low, unit*t.Interval.High)
}

func ofPeak(m timeline.Measure, peak float64) string {
	if !m.OK() {
		return "no rate, since " + m.Why
	}
	return fmt.Sprintf("%.3g TB/s, %.0f %% of the peak", m.Value/1e12, 100*m.Value/peak)
}

// Against returns how the witness contradicts a verdict from counters, and nothing if it does not. It does not
// contradict what leaves memory open.
func (w *Witness) Against(label timeline.Label) string {
	switch label {
	case timeline.Memory:
		if w.Says == NotMemoryLike {
			return "counters say memory, but step times do not grow as reading memory would have them"
		}
	case timeline.Compute, timeline.Host, timeline.Launch, timeline.HostOrLaunch, timeline.Communication, timeline.Busy:
		if w.Says == MemoryLike {
			return fmt.Sprintf("counters say %s, but step times are as long as reading their bytes takes", label)
		}
	case timeline.Balanced, timeline.Mixed, timeline.Undetermined:
	}
	return ""
}
