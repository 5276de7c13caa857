package roofline

// Step is the work of one engine step over the whole group.
type Step struct {
	Decode        float64 // tokens decoded: the batch, times one plus the drafts where a draft model proposes
	Prompt        float64 // prompt tokens processed
	Context       float64 // tokens of context over all decoding sequences
	PromptContext float64 // mean tokens of context that a prompt token attends to; zero: half of Prompt
	Sequences     float64 // decoding sequences, where each decodes several tokens; zero: as Decode
	Shared        float64 // tokens of context that all decoding sequences have in common
	Padded        float64 // tokens of a captured graph that is larger than the step; zero: none is
	Adapters      float64 // low-rank adapters in use
	AdapterRank   float64
}

// UsualChunk is the token budget of a step that engines use when nothing else is set (vLLM's default for online serving
// of max_num_batched_tokens is 2048 or more). It bounds how concentrated prompt work can be.
const UsualChunk = 2048

// Speculating returns the step of a batch that decodes at one mean context and verifies drafts tokens of each sequence.
func Speculating(batch, context, drafts float64) Step {
	return Step{Decode: batch * (1 + drafts), Context: batch * context, Sequences: batch}
}

// sequences that decode.
func (st Step) sequences() float64 {
	if st.Sequences > 0 {
		return st.Sequences
	}
	return st.Decode
}

// drafted is how many tokens a draft model proposes for each sequence.
func (st Step) drafted() float64 {
	if st.Sequences <= 0 {
		return 0
	}
	return max(0, st.Decode/st.Sequences-1)
}

// Decoding returns the step of a batch that decodes at one mean context.
func Decoding(batch, context float64) Step { return Step{Decode: batch, Context: batch * context} }

// Name says what a segment of a step does.
type Name string

// The segments, in the order in which they stand in a step.
const (
	Weights         Name = "weights"
	Head            Name = "head"
	DecodeAttention Name = "decode_attention"
	PromptAttention Name = "prompt_attention"
	Adapters        Name = "adapters"
	Draft           Name = "draft"
	Communication   Name = "communication"
)

// Segment is a part of a step. Bytes and FLOPs are of the whole group; the times are those of one GPU of it, which all
// take alike.
type Segment struct {
	Name     Name
	Bytes    float64
	FLOPs    float64
	MemoryS  float64 // at the memory roof
	ComputeS float64 // at the compute roof
	FixedS   float64 // at neither
}

// Seconds returns the time of the segment: the longer of its two roofs, and what is fixed.
func (s Segment) Seconds() float64 { return max(s.MemoryS, s.ComputeS) + s.FixedS }

// memoryLimited reports whether the segment takes its time at the memory roof.
func (s Segment) memoryLimited() bool { return s.MemoryS >= s.ComputeS }

// Rates are the conditions of a step: what part of the peaks is reached, and at which clock. The zero value is the peaks
// of the data sheet.
type Rates struct {
	Bandwidth  float64 // part of the peak; zero: all of it
	Tensor     float64 // part of the peak; zero: all of it
	SMClockHz  float64 // zero: the clock that the data sheet assumes
	ExpertPart float64 // where the experts touched lie between the floor (0) and the estimate (1)
	SharedPart float64 // part of what sequences have in common that is read once for all, not by each
}

func (r Rates) bandwidth() float64 { return orOne(r.Bandwidth) }
func (r Rates) tensor() float64    { return orOne(r.Tensor) }

func orOne(x float64) float64 {
	if x <= 0 {
		return 1
	}
	return x
}

// Segments appends the segments of a step to dst.
func (m *Model) Segments(dst []Segment, st Step, r Rates) []Segment {
	dst = m.own(dst, st, r)
	if m.draft != nil && st.drafted() > 0 {
		dst = append(dst, m.draftSegment(st, r))
	}
	return dst
}

// own appends the segments of a step but those of the draft model.
func (m *Model) own(dst []Segment, st Step, r Rates) []Segment {
	tokens := st.Decode + st.Prompt
	if tokens <= 0 {
		return dst
	}
	lo, hi := m.ExpertsTouched(tokens)
	experts := lo + (hi-lo)*min(1, max(0, r.ExpertPart))
	head := float64(m.spec.HeadParams())
	active := float64(m.spec.ParamsActive)
	body := Segment{Name: Weights, Bytes: m.bodyBytes() + experts*m.expertBytes(), FLOPs: 2 * (active - head) * max(tokens, st.Padded)}
	// Prompt tokens need the head only where their last one ends, which one step does for few.
	out := Segment{Name: Head, Bytes: m.headBytes(), FLOPs: 2 * head * max(1, st.Decode)}
	dst = append(dst, m.timed(body, r, m.rate), m.timed(out, r, m.headRate()))
	if st.Adapters > 0 && st.AdapterRank > 0 {
		n := m.AdapterParams(st.AdapterRank)
		dst = append(dst, m.timed(Segment{Name: Adapters, Bytes: 2 * n * st.Adapters, FLOPs: 2 * n * tokens}, r, m.gpu.Rates.BF16))
	}
	if st.Decode > 0 {
		mean := st.Context / st.sequences()
		att := Segment{
			Name:  DecodeAttention,
			Bytes: st.sequences()*m.KVReadBytes(mean) - r.SharedPart*m.SharedBytes(st) + st.Decode*m.KVBytesPerToken()*m.KVCopies(),
			FLOPs: st.Decode * m.attentionFLOPs(mean),
		}
		dst = append(dst, m.timed(att, r, m.gpu.Rates.BF16))
	}
	if st.Prompt > 0 {
		dst = append(dst, m.timed(m.promptAttention(st), r, m.gpu.Rates.BF16))
	}
	if m.tp > 1 {
		dst = append(dst, Segment{Name: Communication, FixedS: m.allReduceS(tokens)})
	}
	return dst
}

// promptAttention is the attention of the prompt tokens. The earlier part of the prompt is read once for the whole
// chunk, whose own part is written.
func (m *Model) promptAttention(st Step) Segment {
	context := st.PromptContext
	if context <= 0 {
		context = st.Prompt / 2
	}
	before := max(0, context-st.Prompt/2)
	return Segment{
		Name:  PromptAttention,
		Bytes: m.KVReadBytes(before) + st.Prompt*m.KVBytesPerToken()*m.KVCopies(),
		FLOPs: st.Prompt * m.attentionFLOPs(context),
	}
}

// draftSegment is the work of the draft model: a decode step of its own for each token that it proposes.
func (m *Model) draftSegment(st Step, r Rates) Segment {
	n := st.drafted()
	var buf [segments]Segment
	c := costOf(m.draft.own(buf[:0], Step{Decode: st.Sequences, Context: st.Context, Shared: st.Shared}, r))
	return Segment{
		Name: Draft, Bytes: n * c.Bytes(), FLOPs: n * c.FLOPs, MemoryS: n * (c.MemoryS + c.HiddenMemS),
		ComputeS: n * (c.ComputeS + c.HiddenCompS), FixedS: n * c.FixedS,
	}
}

// SharedBytes returns what a step reads of the cache again and again if each decoding sequence reads by itself what all
// of them have in common. Layers with a window share what of the common part lies in the window.
func (m *Model) SharedBytes(st Step) float64 {
	n := st.sequences()
	if st.Shared <= 0 || n <= 1 {
		return 0
	}
	mean := st.Context / n
	shared := min(st.Shared, mean)
	full, windowed := m.kvElems()
	inWindow := max(0, min(mean, float64(m.spec.SlidingWindow))-(mean-shared))
	return (n - 1) * (full*shared + windowed*inWindow) * m.kv.Bits / 8 * m.KVCopies()
}

// AdapterParams returns the parameters of one low-rank adapter of that rank on the attention's projections, and on those
// of the feed-forward part where there are no experts.
func (m *Model) AdapterParams(rank float64) float64 {
	s := m.spec
	hidden := float64(s.Hidden)
	var ends float64 // inputs and outputs of a layer's projections
	if s.MLA() {
		q, kv := float64(s.QLoraRank), float64(s.KVLoraRank)
		heads := float64(s.Heads)
		ends = 2*hidden + 2*q + kv + float64(s.QKRope) + kv + heads*float64(2*s.QKNope+s.QKRope+2*s.VHead) + hidden
	} else {
		q, kv := float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim)
		ends = 4*hidden + 2*q + 2*kv
	}
	if !s.MoE() {
		ends += 3 * (hidden + float64(s.Intermediate))
	}
	return rank * ends * float64(s.Layers)
}

// headRate is the rate of the product with the output head, which files of narrow weights leave in 16 bits.
func (m *Model) headRate() float64 {
	if m.weights.HeadBits >= 16 && m.weights.Bits < 16 {
		return m.gpu.Rates.BF16
	}
	return m.rate
}

// timed fills in the segment's times at each roof. The rate is that of its arithmetic at the sheet's clock. Attention is
// taken to be calculated in 16 bits whatever the formats, as kernels do that widen a narrow cache (FlashMLA README).
func (m *Model) timed(s Segment, r Rates, rate float64) Segment {
	n := float64(m.tp)
	s.MemoryS = s.Bytes / (n * m.bandwidth * r.bandwidth())
	s.ComputeS = s.FLOPs / (n * m.atClock(rate, r.SMClockHz) * r.tensor())
	return s
}

// Latency and rate of an all-reduce of four H100 inside captured graphs (public nccl-collectives-bench results: 12.9 us
// on a quiet host, 366 GB/s on the bus of 900 GB/s of links).
const (
	allReduceLatencyS = 12.9e-6
	allReducePart     = 366e9 / 900e9
	pcieBytesPerS     = 25e9 // without NVLink: one direction of a fourth-generation link
)

// allReduceS is the time of the two all-reduces a layer that tensor parallelism needs.
func (m *Model) allReduceS(tokens float64) float64 {
	n := float64(m.tp)
	bus := m.gpu.NVLinkBps * allReducePart
	if bus <= 0 {
		bus = pcieBytesPerS
	}
	message := tokens * float64(m.spec.Hidden) * 2
	return 2 * float64(m.spec.Layers) * (allReduceLatencyS + 2*(n-1)/n*message/bus)
}

// ActivationBytes returns the most that the activations of a step's tokens may add to its traffic: about twenty passes
// of the hidden state a layer. L2 absorbs them up to a few hundred tokens.
func (m *Model) ActivationBytes(tokens float64) float64 {
	return tokens * float64(m.spec.Layers) * float64(m.spec.Hidden) * 20 * 2
}

// Cost is what a step takes in all.
type Cost struct {
	WeightBytes float64 // of the whole group
	KVBytes     float64
	OtherBytes  float64 // adapters, and all that a draft model reads
	FLOPs       float64
	Seconds     float64
	MemoryS     float64 // time in segments limited by memory
	ComputeS    float64 // time in segments limited by compute
	FixedS      float64
	HiddenMemS  float64 // time at the memory roof that passes under compute
	HiddenCompS float64 // time at the compute roof that passes under memory
}

// Bytes returns the DRAM traffic of the step.
func (c Cost) Bytes() float64 { return c.WeightBytes + c.KVBytes + c.OtherBytes }

// Cost returns the cost of a step under the given conditions.
func (m *Model) Cost(st Step, r Rates) Cost {
	var buf [segments]Segment
	return costOf(m.Segments(buf[:0], st, r))
}

// segments is how many a step has at the most.
const segments = 7

// costOf adds up the segments of a step.
func costOf(all []Segment) Cost {
	var c Cost
	for _, s := range all {
		switch s.Name {
		case Weights, Head:
			c.WeightBytes += s.Bytes
		case DecodeAttention, PromptAttention:
			c.KVBytes += s.Bytes
		case Adapters, Draft:
			c.OtherBytes += s.Bytes
		case Communication:
		}
		c.FLOPs += s.FLOPs
		c.Seconds += s.Seconds()
		c.FixedS += s.FixedS
		if s.memoryLimited() {
			c.MemoryS += s.MemoryS
			c.HiddenCompS += s.ComputeS
			continue
		}
		c.ComputeS += s.ComputeS
		c.HiddenMemS += s.MemoryS
	}
	return c
}

// Floor returns the least time of a step: all peaks reached, no communication, no experts beyond those of one token, and
// what sequences have in common read once.
func (m *Model) Floor(st Step) float64 {
	c := m.Cost(st, Rates{SharedPart: 1})
	return c.Seconds - c.FixedS
}

// Expected returns the time of a step at what is achievable of the peaks, with communication, and with the experts that
// tokens routed independently touch.
func (m *Model) Expected(st Step, bandwidth, tensor, smClockHz float64) float64 {
	return m.Cost(st, Rates{Bandwidth: bandwidth, Tensor: tensor, SMClockHz: smClockHz, ExpertPart: 1, SharedPart: m.sharedPart(st)}).Seconds
}
