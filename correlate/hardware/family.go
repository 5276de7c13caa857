package hardware

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
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

// Parts of a layer whose weights a file may leave unquantized.
const (
	partQ, partK, partV, partO, partGate, partUp, partDown, partShared = 1, 2, 4, 8, 16, 32, 64, 128

	partAttention, partMLP = partQ | partK | partV | partO, partGate | partUp | partDown
)

// moduleParts maps words in names of modules to parts, the longest first.
var moduleParts = []struct {
	word  string
	parts int
}{
	{"shared_expert", partShared},
	{"gate_up_proj", partGate | partUp},
	{"down_proj", partDown},
	{"gate_proj", partGate},
	{"up_proj", partUp},
	{"qkv_proj", partQ | partK | partV},
	{"q_proj", partQ},
	{"k_proj", partK},
	{"v_proj", partV},
	{"o_proj", partO},
	{"attn", partAttention},
}

// smallModules are words in names of modules that no step reads much of, or that are counted elsewhere.
var smallModules = []string{"lm_head", "embed", "norm", "router", "vision", "visual", "projector", "sinks", "weights_proj"}

// layerOf returns the layer that a module's name tells (-1: all of them) and what follows it, false for a choice of
// several.
func layerOf(name string) (layer int, rest string, ok bool) {
	_, after, ok := strings.Cut(name, "layers.")
	if !ok {
		return -1, name, true
	}
	number, rest, _ := strings.Cut(after, ".")
	if n, err := strconv.Atoi(number); err == nil {
		return n, rest, n >= 0
	}
	return -1, rest, !strings.ContainsAny(strings.TrimPrefix(number, "[0-9]"), "0123456789")
}

// partsOf returns the layer and the parts of it that a name in a file's list stands for, false for one that is not known.
func (m Model) partsOf(name string) (layer, parts int, ok bool) {
	plain := strings.NewReplacer("re:", "", "\\", "", "^", "", "$", "", "(", "", ")", "").Replace(strings.ToLower(name))
	for _, w := range smallModules {
		if strings.Contains(plain, w) {
			return 0, 0, true
		}
	}
	layer, rest, one := layerOf(plain)
	if !one {
		return 0, 0, false
	}
	rest = strings.Trim(rest, "*.")
	if rest == "gate" || strings.HasSuffix(rest, ".gate") || strings.HasSuffix(rest, "shared_expert_gate") { // routers
		return 0, 0, true
	}
	dense := !m.MoE() || layer >= 0 && layer < m.DenseLayers
	switch {
	case rest == "" && layer >= 0 && dense:
		return layer, partAttention | partMLP, true
	case strings.Contains(rest, "experts.") && !strings.Contains(rest, "shared_expert"):
		return 0, 0, false
	}
	for _, p := range moduleParts {
		if strings.Contains(rest, p.word) {
			return layer, p.parts, p.parts&partMLP == 0 || dense
		}
	}
	if rest == "mlp" || strings.HasSuffix(rest, ".mlp") || strings.HasSuffix(rest, "feed_forward") {
		return layer, partMLP, dense
	}
	return 0, 0, false
}

// uncounted returns those of the names that stand for weights of which it is not known how many they are.
func (m Model) uncounted(left []string) []string {
	var out []string
	for _, name := range left {
		if _, parts, ok := m.partsOf(name); !ok || m.MLA() && parts&partAttention != 0 && parts&partAttention != partAttention {
			out = append(out, name)
		}
	}
	return out
}

// leftOut returns how many parameters outside experts and head the names leave unquantized.
func (m Model) leftOut(left []string) float64 {
	covered := make([]int, m.Layers)
	for _, name := range left {
		layer, parts, ok := m.partsOf(name)
		if !ok {
			continue
		}
		for i := range covered {
			if layer == i || layer < 0 {
				covered[i] |= parts
			}
		}
	}
	attention := float64(m.AttentionParams) / float64(m.Layers)
	q, kv := float64(m.Heads), float64(m.KVHeads)
	dense := float64(m.Hidden) * float64(m.Intermediate)
	var shared float64
	if m.MoE() {
		dense = float64(m.Hidden) * float64(m.DenseIntermediate)
		rest := float64(m.NonExpert-m.HeadParams()) - float64(m.AttentionParams) - 3*dense*float64(m.DenseLayers)
		shared = max(0, rest) / float64(max(1, m.Layers-m.DenseLayers))
	}
	var sum float64
	for i, parts := range covered {
		switch {
		case parts&partAttention == partAttention:
			sum += attention
		case !m.MLA():
			each := attention / (2*q + 2*kv)
			sum += each * (q*float64(bits.OnesCount(uint(parts&(partQ|partO)))) + kv*float64(bits.OnesCount(uint(parts&(partK|partV)))))
		}
		if !m.MoE() || i < m.DenseLayers {
			sum += dense * float64(bits.OnesCount(uint(parts&partMLP)))
		} else if parts&partShared != 0 {
			sum += shared
		}
	}
	return sum
}

// bodyBits is the width of parameters outside experts and head where the file leaves some of them unquantized; zero where
// it does not say so.
func (c *Config) bodyBits(d DType, left []string) float64 {
	m := &c.Model
	if m.AttentionParams <= 0 || m.Layers == 0 {
		return 0
	}
	part := m.leftOut(left)
	switch body := float64(m.NonExpert - m.HeadParams()); {
	case part <= 0 || body <= 0:
		return 0
	case d.Name == "mxfp4" && m.MoE():
		return 16
	default:
		part = min(part, body)
		return (16*part + d.Bits*(body-part)) / body
	}
}
