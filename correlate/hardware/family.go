package hardware

import (
	"fmt"
	"maps"
	"slices"
)

// family is what a model type implies beyond the fields of its file, as the Hugging Face transformers library builds it.
type family struct {
	qkvBias      bool // biases on the three input projections
	outBias      bool // and on the output projection
	biasFlag     bool // attention_bias decides on these
	noOutBias    bool // on the first three alone
	qkNorm       bool // norms of queries and keys, one weight a dimension of a head
	sinks        bool // one sink a head
	biases       bool // on the router and the experts
	fourNorms    bool // norms before and after both parts of a layer
	tied         bool // the head is the embedding table where the file does not tell
	sharedExpert bool // one expert that takes every token
	sharedGate   bool // with a gate of its own
	windowOff    bool // a window counts only where use_sliding_window is set
	pattern      int  // every pattern-th layer has no window where the file does not tell the layers; zero: all have one
	chunks       bool // attention_chunk_size stands for the window
	defaults     map[string]int
}

// gemma3Defaults are those of the library's Gemma3TextConfig: published files leave out what does not differ.
var gemma3Defaults = map[string]int{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}

var (
	qwen3     = family{qkNorm: true, biasFlag: true, windowOff: true}
	qwen2     = family{qkvBias: true, windowOff: true}
	llamaLike = family{biasFlag: true}
	gemma3    = family{qkNorm: true, fourNorms: true, tied: true, pattern: 6, defaults: gemma3Defaults}
)

// families holds the model types whose layers are counted.
var families = map[string]family{
	"llama": llamaLike, "mistral": {}, "ministral": {}, "mixtral": {}, "phi3": {}, "granite": llamaLike, "smollm3": {biasFlag: true, tied: true, windowOff: true},
	"qwen2": qwen2, "qwen2_vl": qwen2, "qwen2_5_vl": qwen2, "qwen2_vl_text": qwen2, "qwen2_5_vl_text": qwen2,
	"qwen2_moe": {qkvBias: true, windowOff: true, sharedExpert: true, sharedGate: true},
	"qwen3":     qwen3, "qwen3_vl_text": qwen3, "qwen3_moe": qwen3, "qwen3_vl_moe_text": qwen3,
	"gpt_oss":     {qkvBias: true, outBias: true, sinks: true, biases: true, pattern: 2},
	"deepseek_v2": {}, "deepseek_v3": {}, "kimi_k2": {},
	"gemma2":      {fourNorms: true, tied: true, pattern: 2, defaults: map[string]int{"head_dim": 256}},
	"gemma3_text": gemma3, "gemma3": gemma3,
	"llama4_text": {biasFlag: true, sharedExpert: true, chunks: true, pattern: 4},
	"glm4_moe":    {biasFlag: true, noOutBias: true},
}

// ConfigFamilies returns the model types that [ReadConfig] can count, in order.
func ConfigFamilies() []string { return slices.Sorted(maps.Keys(families)) }

// window takes over a window that is in use, and how many layers have none. It returns what is taken for granted.
func (f *fields) window(m *Model, fam family) []string {
	name := "sliding_window"
	if fam.chunks {
		name = "attention_chunk_size"
	}
	size := f.intOr(name, 0, 1<<30, 0)
	if size <= 0 || fam.windowOff && !f.boolean("use_sliding_window") {
		return nil
	}
	full := f.fullLayers(m, fam)
	if full < 0 || full >= m.Layers {
		return nil
	}
	m.SlidingWindow = size
	m.SlidingAlternates = 2*full == m.Layers
	m.KVElemsFull = m.KVElems / int64(m.Layers) * int64(full)
	if fam.chunks {
		return []string{"attention_chunk_size: layers with chunks are taken to read a whole chunk at most; on average they read half of it"}
	}
	return nil
}

// fullLayers returns how many layers have no window, -1 after a fault.
func (f *fields) fullLayers(m *Model, fam family) int {
	if f.has("layer_types") {
		return f.listedLayers(m)
	}
	var rope []int
	if fam.chunks && f.read("no_rope_layers", &rope, "list of layers") && len(rope) == m.Layers {
		full := 0
		for _, r := range rope {
			if r == 0 {
				full++
			}
		}
		return full
	}
	if n := f.intOr("max_window_layers", 0, 1<<20, 0); fam.windowOff && n > 0 {
		return min(n, m.Layers)
	}
	pattern := fam.pattern
	for _, name := range []string{"sliding_window_pattern", "no_rope_layer_interval"} {
		pattern = f.intOr(name, 1, 1000, pattern)
	}
	if pattern == 0 {
		return 0
	}
	return m.Layers / pattern
}

// listedLayers counts the layers without a window that the file lists.
func (f *fields) listedLayers(m *Model) int {
	types := f.list("layer_types")
	if len(types) != m.Layers {
		f.fault("layer_types", fmt.Sprintf("lists %d layers of %d", len(types), m.Layers))
		return -1
	}
	full := 0
	for _, t := range types {
		switch t {
		case "full_attention":
			full++
		case "sliding_attention", "chunked_attention":
		default:
			f.fault("layer_types", fmt.Sprintf("layers of %q cannot be counted", t[:min(len(t), maxWord)]))
			return -1
		}
	}
	return full
}

// count fills in the counts of m. Shared experts are of sharedSize; zero: as the others.
func count(m *Model, fam family, sharedSize int) {
	hidden, layers, vocab := int64(m.Hidden), int64(m.Layers), int64(m.Vocab)
	attn := attention(m, fam)
	norms := 2 * hidden
	if fam.fourNorms {
		norms = 4 * hidden
	}
	expertLayers := int64(0)
	var shared, router int64
	dense := 3 * hidden * int64(m.Intermediate)
	if m.Experts > 0 {
		expertLayers = layers - int64(m.DenseLayers)
		m.ExpertParams = 3 * hidden * int64(m.Intermediate)
		router = hidden * int64(m.Experts)
		if fam.biases {
			m.ExpertParams += 2*int64(m.Intermediate) + hidden
			router += int64(m.Experts)
		}
		size := int64(m.Intermediate)
		if sharedSize > 0 {
			size = int64(sharedSize)
		}
		shared = int64(m.SharedExperts) * 3 * hidden * size
		if fam.sharedGate {
			shared += hidden
		}
		dense = 3 * hidden * int64(m.DenseIntermediate)
	}
	m.NonExpert = layers*(attn+norms) + expertLayers*(router+shared) + (layers-expertLayers)*dense + hidden + vocab*hidden
	m.AttentionParams = layers * attn
	m.ParamsStreamed = m.NonExpert + expertLayers*int64(m.Experts)*m.ExpertParams
	m.ParamsActive = m.NonExpert + expertLayers*int64(m.TopK)*m.ExpertParams
	m.ParamsTotal = m.ParamsStreamed
	if !m.Tied {
		m.ParamsTotal += vocab * hidden
	}
	m.KVElems = 2 * layers * int64(m.KVHeads*m.HeadDim)
	if m.MLA() {
		m.KVElems = layers * int64(m.KVLoraRank+m.QKRope)
	}
}

// attention returns the parameters of one layer's attention.
func attention(m *Model, fam family) int64 {
	hidden := int64(m.Hidden)
	if m.MLA() {
		heads, q, kv := int64(m.Heads), int64(m.QLoraRank), int64(m.KVLoraRank)
		rope, nope, v := int64(m.QKRope), int64(m.QKNope), int64(m.VHead)
		query := hidden*q + q + q*heads*(nope+rope)
		if q == 0 { // small models have one projection of the queries
			query = hidden * heads * (nope + rope)
		}
		return query + hidden*(kv+rope) + kv + kv*heads*(nope+v) + heads*v*hidden
	}
	q, kv := int64(m.Heads*m.HeadDim), int64(m.KVHeads*m.HeadDim)
	n := hidden * (2*q + 2*kv)
	if fam.qkvBias {
		n += q + 2*kv
	}
	if fam.outBias {
		n += hidden
	}
	if fam.qkNorm {
		n += 2 * int64(m.HeadDim)
	}
	if fam.sinks {
		n += int64(m.Heads)
	}
	return n
}
