package roofline

import "math"

// Band is a range of bytes that a step may move, around an estimate.
type Band struct {
	Low, Estimate, High float64
	Reasons             []Reason // what makes it wide, in a fixed order
}

// Reason is one thing that makes a band wide: the bytes that it may take off the estimate, and those it may add.
type Reason struct {
	What      string  `json:"what"`
	TakesOff  float64 `json:"takes_off"`
	Adds      float64 `json:"adds"`
	IsAssumed bool    `json:"assumed,omitempty"` // how much is assumed, since an input is not known
}

// Contains reports whether so many bytes lie in the band.
func (b Band) Contains(bytes float64) bool { return bytes >= b.Low && bytes <= b.High }

// Scale returns the band of n such steps.
func (b Band) Scale(n float64) Band {
	out := Band{Low: b.Low * n, Estimate: b.Estimate * n, High: b.High * n}
	for _, r := range b.Reasons {
		r.TakesOff, r.Adds = r.TakesOff*n, r.Adds*n
		out.Reasons = append(out.Reasons, r)
	}
	return out
}

// Unknown names the inputs of a step that are at work and not known. Each widens the band.
type Unknown struct {
	Prefix   bool // sequences share a prefix whose length is not known
	Draft    bool // tokens are drafted, and the draft model's traffic is not known
	Adapters bool // adapters are in use, and neither their number nor their rank is known
	Padding  bool // graphs are captured for sizes that are not known
}

// What unknown inputs may add, and take off.
const (
	// sharedPrefixPart: 64 requests that share 2,000 of 2,500 tokens move 0.54 of what each by itself would.
	sharedPrefixPart = 0.5
	// unknownDraftPart: a draft head of one layer and the head of its model, or a model of a tenth of the size, read
	// three times a step.
	unknownDraftPart = 0.3
	// Adapters where nothing is known: vLLM's default greatest rank is 16; eight at once are many.
	unknownAdapters, unknownRank = 8, 16
	// absorbedTokens of a step have activations that L2 absorbs.
	absorbedTokens = 256
	// l2Part of the L2 holds what is shared while other traffic passes through it.
	l2Part = 0.5
)

// Bytes returns the DRAM traffic of a step over the whole group, as a band. A measured figure inside the band is no
// finding. The band is one of physics and of unknown inputs; what a counter's own denominator may be off is not in it.
func (m *Model) Bytes(st Step, u Unknown) Band {
	rates := Rates{ExpertPart: 1, SharedPart: m.sharedPart(st)}
	c := m.Cost(st, rates)
	b := &Band{Estimate: c.Bytes()}
	add := func(what string, assumed bool, off, more float64) {
		if off > 0 || more > 0 {
			b.Reasons = append(b.Reasons, Reason{What: what, TakesOff: off, Adds: more, IsAssumed: assumed})
		}
	}
	tokens := st.Decode + st.Prompt
	floor, estimate := m.ExpertsTouched(tokens)
	add("experts: tokens that are alike touch fewer of them", false, (estimate-floor)*m.expertBytes(), 0)
	shared := m.SharedBytes(st)
	add("shared prefix: read once from L2, or by each sequence", false, (1-rates.SharedPart)*shared, rates.SharedPart*shared)
	n := st.sequences()
	if u.Prefix && n > 1 && st.Shared <= 0 {
		add("shared prefix of a length that is not known", true, min(sharedPrefixPart*b.Estimate, c.KVBytes*(1-1/n)), 0)
	}
	if u.Draft && m.draft == nil {
		add("draft model or head that is not known", true, 0, unknownDraftPart*b.Estimate)
	}
	if u.Adapters && st.Adapters <= 0 {
		add("adapters that are not known", true, 0, 2*min(n, unknownAdapters)*m.AdapterParams(unknownRank))
	}
	if padded := max(st.Padded, m.padded(tokens, u)); padded > tokens {
		_, most := m.ExpertsTouched(padded)
		add("graph padding: padded tokens are routed too", st.Padded <= tokens, 0, (most-estimate)*m.expertBytes())
	}
	if tokens > absorbedTokens {
		add("activations that L2 does not absorb", true, 0, m.ActivationBytes(tokens))
	}
	b.Low, b.High = b.Estimate, b.Estimate
	for _, r := range b.Reasons {
		b.Low -= r.TakesOff
		b.High += r.Adds
	}
	// Reasons overlap: no step reads less than the weights of one token and one sequence's cache.
	least := m.Cost(Step{Decode: min(1, st.Decode), Prompt: min(1, st.Prompt), Context: st.Context / max(1, n)}, Rates{}).Bytes()
	b.Low = min(b.Estimate, max(b.Low, least))
	return *b
}

// padded is the size that engines capture graphs for, where it is not known: powers of two, then multiples of eight
// (vLLM's default capture sizes).
func (m *Model) padded(tokens float64, u Unknown) float64 {
	switch {
	case !u.Padding || tokens <= 0:
		return 0
	case tokens <= 8:
		return math.Exp2(math.Ceil(math.Log2(tokens)))
	}
	return 8 * math.Ceil(tokens/8)
}

// sharedPart says whether what sequences have in common is read once for all: it is where a layer's part of it stays
// in L2 while the sequences' kernels run, each in turn.
func (m *Model) sharedPart(st Step) float64 {
	n := st.sequences()
	if st.Shared <= 0 || n <= 1 || m.spec.Layers == 0 {
		return 0
	}
	once := m.SharedBytes(st) / (n - 1) / float64(m.spec.Layers) / float64(m.tp)
	if once <= l2Part*m.gpu.L2Bytes {
		return 1
	}
	return 0
}

// TokensPerStep returns how many tokens a sequence gets of a step in which so many are drafted, if each is accepted with
// that probability, independently, until the first that is not.
func TokensPerStep(acceptance, drafts float64) float64 {
	if acceptance >= 1 {
		return drafts + 1
	}
	return (1 - math.Pow(acceptance, drafts+1)) / (1 - acceptance)
}

// Footprint returns the memory of the whole group that the weights take: those a step streams, and an embedding table of
// 16 bits where it is not the head.
func (m *Model) Footprint() float64 {
	streamed := m.bodyBytes() + m.headBytes() + float64(m.spec.Experts)*m.expertBytes()
	if m.spec.Tied {
		return streamed
	}
	return streamed + 2*float64(m.spec.HeadParams())
}

// CacheBytes returns the memory of the whole group that the cache of one sequence takes, with all copies.
func (m *Model) CacheBytes(context float64) float64 { return m.KVReadBytes(context) }
