// Package roofline computes what one step of an engine has to move and to calculate, and how long that takes at a
// GPU's peaks or at what is achievable. It knows the shapes of models and the rates of GPUs, and nothing that was
// measured on either.
//
// A step is a chain of segments that run one after another: matrix products over the weights, the output head,
// attention over the cache, attention of prompt tokens, communication. Each takes the longer of its time at the memory
// roof and its time at the compute roof, and the segments' times add; that a decode step overlaps them is not assumed.
package roofline

import (
	"fmt"
	"math"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Model is a language model in a number format on a group of equal GPUs. Its methods speak of the whole group unless
// they say otherwise.
type Model struct {
	spec      hardware.Model
	gpu       hardware.GPU
	weights   hardware.DType
	kv        hardware.DType
	tp        int
	bandwidth float64 // bytes per second and GPU, at peak
	rate      float64 // operations per second and GPU, dense, at the clock that the data sheet assumes
	draft     *Model  // proposes tokens; nil without, or where its traffic is not known
}

// Setup is what a model is built from, with formats that need not be those of a table.
type Setup struct {
	Spec    hardware.Model
	GPU     hardware.GPU
	Weights hardware.DType
	KV      hardware.DType
	TP      int // tensor-parallel degree; zero: one
}

// New returns spec in the formats dtype and kvDType (empty: the 16-bit format) on tp GPUs (zero: one).
func New(spec hardware.Model, gpu hardware.GPU, dtype, kvDType string, tp int) (*Model, error) {
	w, err := hardware.LookupDType(dtype)
	if err != nil {
		return nil, fmt.Errorf("build roofline: weights: %w", err)
	}
	if kvDType == "" || kvDType == "auto" {
		kvDType = "bf16"
	}
	kv, err := hardware.LookupDType(kvDType)
	if err != nil {
		return nil, fmt.Errorf("build roofline: kv cache: %w", err)
	}
	return Build(Setup{Spec: spec, GPU: gpu, Weights: w, KV: kv, TP: tp})
}

// Build returns the model that s describes.
func Build(s Setup) (*Model, error) {
	if s.TP < 0 {
		return nil, fmt.Errorf("build roofline: tensor-parallel degree %d is negative", s.TP)
	}
	if s.Weights.Bits <= 0 || s.KV.Bits <= 0 {
		return nil, fmt.Errorf("build roofline: weights of %g and a cache of %g bits a number", s.Weights.Bits, s.KV.Bits)
	}
	m := &Model{spec: s.Spec, gpu: s.GPU, weights: s.Weights, kv: s.KV, tp: max(1, s.TP), bandwidth: Bandwidth(s.GPU)}
	m.rate, _ = s.GPU.RateOf(s.Weights)
	if m.rate == 0 { // the device lacks the format's arithmetic: weights are widened before the product
		m.rate = s.GPU.Rates.BF16
	}
	if m.bandwidth <= 0 || m.rate <= 0 {
		return nil, fmt.Errorf("build roofline: gpu %q has no bandwidth or no rate in the table", s.GPU.Name)
	}
	return m, nil
}

// WithDraft returns m with a draft model that proposes the tokens of sequences that decode several a step. Its weights
// and its cache are read once for each token that it proposes.
func (m *Model) WithDraft(draft *Model) *Model {
	with := *m
	with.draft = draft
	return &with
}

// Bandwidth returns the theoretical DRAM bandwidth of g in bytes per second: the data sheet's, else from memory clock
// and bus width. The two differ where a device clocks its memory above the sheet (H200: 4.92 against 4.8 TB/s).
func Bandwidth(g hardware.GPU) float64 {
	if g.SheetBandwidth > 0 {
		return g.SheetBandwidth
	}
	return g.DerivedBandwidth()
}

// Spec returns the language model.
func (m *Model) Spec() hardware.Model { return m.spec }

// GPU returns the device.
func (m *Model) GPU() hardware.GPU { return m.gpu }

// Formats returns the number formats of the weights and of the cache.
func (m *Model) Formats() (weights, kv hardware.DType) { return m.weights, m.kv }

// TP returns the tensor-parallel degree, at least one.
func (m *Model) TP() int { return m.tp }

// moeLayers is how many layers route to experts.
func (m *Model) moeLayers() float64 { return float64(m.spec.Layers - m.spec.DenseLayers) }

// ExpertsTouched returns how many of a layer's experts a step with that many tokens reads: at least those of one
// token, and the mean for tokens routed independently of each other. Real routing is correlated, so that the truth
// lies between.
func (m *Model) ExpertsTouched(tokens float64) (floor, estimate float64) {
	if !m.spec.MoE() || tokens <= 0 {
		return 0, 0
	}
	e, k := float64(m.spec.Experts), float64(m.spec.TopK)
	return k, e * (1 - math.Pow(1-k/e, max(1, tokens)))
}

// headBytes is what a step reads of the output head.
func (m *Model) headBytes() float64 {
	return float64(m.spec.HeadParams()) * m.weights.HeadBits / 8
}

// bodyBytes is what a step reads of weights outside experts and head.
func (m *Model) bodyBytes() float64 {
	return float64(m.spec.NonExpert-m.spec.HeadParams()) * m.weights.Body(m.spec.MoE()) / 8
}

// expertBytes is what a step reads of one expert in every layer that has experts.
func (m *Model) expertBytes() float64 {
	return float64(m.spec.ExpertParams) * m.weights.Bits / 8 * m.moeLayers()
}

// WeightBytes returns the weights that a step with that many tokens reads over the whole group: the floor and the
// estimate differ by the experts touched, and are equal for a dense model. The embedding table is a gather of a few
// rows and does not count; the head does, tied or not.
func (m *Model) WeightBytes(tokens float64) (floor, estimate float64) {
	base := m.bodyBytes() + m.headBytes()
	lo, hi := m.ExpertsTouched(tokens)
	return base + lo*m.expertBytes(), base + hi*m.expertBytes()
}

// KVBytesPerToken returns the bytes that one token adds to the cache, on all layers, each copy counted once.
func (m *Model) KVBytesPerToken() float64 { return float64(m.spec.KVElems) * m.kv.Bits / 8 }

// KVCopies returns how many GPUs hold each number of the cache: more than one where the degree exceeds the number of
// key-value heads, and all of them with latent attention, which has no heads to split.
func (m *Model) KVCopies() float64 {
	heads := max(1, m.spec.KVHeads)
	if m.spec.MLA() {
		heads = 1
	}
	return float64(m.tp) / float64(min(m.tp, heads))
}

// KVReadBytes returns what a decode step reads of the cache for one sequence of that context, over the whole group
// with all copies. Layers with a window read no more than the window.
func (m *Model) KVReadBytes(context float64) float64 {
	bits := m.kv.Bits / 8 * m.KVCopies()
	full, windowed := m.kvElems()
	if windowed == 0 {
		return full * context * bits
	}
	return (full*context + windowed*min(context, float64(m.spec.SlidingWindow))) * bits
}

// kvElems splits the numbers a token adds by whether their layer has a window.
func (m *Model) kvElems() (full, windowed float64) {
	all := float64(m.spec.KVElems)
	if m.spec.SlidingWindow <= 0 {
		return all, 0
	}
	full = float64(m.spec.KVElemsFull)
	return full, all - full
}

// attentionFLOPs returns the operations of attention for one query token at that context, over all layers.
func (m *Model) attentionFLOPs(context float64) float64 {
	s := m.spec
	layers := float64(s.Layers)
	if s.MLA() { // absorbed form: scores over latent and rope part, values over the latent
		perLayer := 2*float64(s.Heads)*float64(s.KVLoraRank+s.QKRope) + 2*float64(s.Heads)*float64(s.KVLoraRank)
		return perLayer * layers * context
	}
	perLayer := 4 * float64(s.Heads) * float64(s.HeadDim)
	full, windowed := m.kvElems()
	if windowed == 0 {
		return perLayer * layers * context
	}
	part := full / (full + windowed)
	return perLayer * layers * (part*context + (1-part)*min(context, float64(s.SlidingWindow)))
}

// Ridge returns the operations per byte at which both roofs take the same time, at the SM clock given in Hz (zero: the
// clock that the data sheet assumes). A lower clock lowers the compute roof alone.
func (m *Model) Ridge(clockHz float64) float64 { return m.rateAt(clockHz) / m.bandwidth }

// rateAt is the dense rate of one GPU at an SM clock.
func (m *Model) rateAt(clockHz float64) float64 { return m.atClock(m.rate, clockHz) }

// atClock scales a rate of the data sheet to an SM clock.
func (m *Model) atClock(rate, clockHz float64) float64 {
	if clockHz <= 0 || m.gpu.RateClockHz <= 0 {
		return rate
	}
	return rate * clockHz / m.gpu.RateClockHz
}

// CriticalBatch returns the number of tokens in a step from which the matrix products over the weights are limited by
// compute, at the sheet's clock. With experts it is the batch at which all of them are read.
func (m *Model) CriticalBatch() float64 { return m.CriticalBatchAt(0) }

// CriticalBatchAt returns the same at an SM clock in Hz (zero: the sheet's).
func (m *Model) CriticalBatchAt(clockHz float64) float64 {
	body, expert := float64(m.spec.NonExpert-m.spec.HeadParams()), float64(m.spec.ExpertParams)*m.moeLayers()
	bytes := m.bodyBytes() + float64(m.spec.Experts)*m.expertBytes()
	return m.rateAt(clockHz) * bytes / (2 * m.bandwidth * (body + float64(m.spec.TopK)*expert))
}

// CriticalContext returns the context above which decode stays below the compute roof at any batch, and false if there
// is none: the cache is then read at an intensity above the ridge.
func (m *Model) CriticalContext() (float64, bool) { return m.CriticalContextAt(0) }

// CriticalContextAt returns the same at an SM clock in Hz (zero: the sheet's).
func (m *Model) CriticalContextAt(clockHz float64) (float64, bool) {
	const long = 1 << 20
	perToken := m.KVReadBytes(long) / m.KVCopies() / long
	flops := m.attentionFLOPs(long) / long
	den := m.Ridge(clockHz)*perToken - flops
	if den <= 0 {
		return 0, false
	}
	return 2 * float64(m.spec.ParamsActive) / den, true
}
