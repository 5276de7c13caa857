package hardware

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Config is what a model's config.json says: the architecture, and how the weights are stored.
type Config struct {
	Model       Model
	DType       string // a name that [LookupDType] knows; empty if the file does not tell
	KVDType     string // empty if the file does not tell
	Method      string // quantization method as the file spells it; empty without
	Unquantized string // the modules that stay unquantized, as the file spells them; empty if it does not tell
}

// maxConfigBytes bounds what is read: published files hold a few kilobytes.
const maxConfigBytes = 1 << 20

// rawConfig holds the fields in the spelling of the Hugging Face transformers library. Pointers tell absent from zero.
type rawConfig struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	NameOrPath    string           `json:"_name_or_path"`
	Layers        *int             `json:"num_hidden_layers"`
	Hidden        *int             `json:"hidden_size"`
	Heads         *int             `json:"num_attention_heads"`
	KVHeads       *int             `json:"num_key_value_heads"`
	HeadDim       *int             `json:"head_dim"`
	Intermediate  *int             `json:"intermediate_size"`
	MoEInter      *int             `json:"moe_intermediate_size"`
	Vocab         *int             `json:"vocab_size"`
	Tied          *bool            `json:"tie_word_embeddings"`
	Experts       *int             `json:"num_experts"`
	LocalExperts  *int             `json:"num_local_experts"`
	RoutedExperts *int             `json:"n_routed_experts"`
	TopK          *int             `json:"num_experts_per_tok"`
	SharedExperts *int             `json:"n_shared_experts"`
	DenseLayers   *int             `json:"first_k_dense_replace"`
	SparseStep    *int             `json:"decoder_sparse_step"`
	KVLoraRank    *int             `json:"kv_lora_rank"`
	QLoraRank     *int             `json:"q_lora_rank"`
	QKRope        *int             `json:"qk_rope_head_dim"`
	QKNope        *int             `json:"qk_nope_head_dim"`
	VHead         *int             `json:"v_head_dim"`
	Window        *int             `json:"sliding_window"`
	UseWindow     *bool            `json:"use_sliding_window"`
	LayerTypes    []string         `json:"layer_types"`
	AttnBias      *bool            `json:"attention_bias"`
	DType         string           `json:"torch_dtype"`
	NewDType      string           `json:"dtype"`
	Quant         *rawQuant        `json:"quantization_config"`
	Text          *json.RawMessage `json:"text_config"` // of models with an image part
}

// ReadConfig reads a config.json and counts the parameters and the cache from it. It knows the families whose layers it
// can count: Llama, Mistral, Qwen 2 to 3, their expert variants, gpt-oss and DeepSeek V3. A missing or absurd field is
// named in the error; a family it does not know is an error too, since a wrong count is worse than none.
func ReadConfig(r io.Reader) (Config, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	if len(b) > maxConfigBytes {
		return Config{}, fmt.Errorf("read config: more than %d bytes", maxConfigBytes)
	}
	var raw rawConfig
	if err := json.Unmarshal(b, &raw); err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	if raw.Text != nil && raw.Hidden == nil {
		if err := json.Unmarshal(*raw.Text, &raw); err != nil {
			return Config{}, fmt.Errorf("read config: text_config: %w", err)
		}
	}
	c, err := raw.config()
	if err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	return c, nil
}

// family is what a model type implies beyond the fields of its file.
type family struct {
	qkvBias bool // biases on the three input projections
	outBias bool // and on the output projection
	qkNorm  bool // norms of queries and keys, one weight a dimension of a head
	sinks   bool // one sink a head
	biases  bool // on the router and the experts
}

var families = map[string]family{
	"llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {qkvBias: true}, "qwen3": {qkNorm: true}, "qwen3_moe": {qkNorm: true},
	"gpt_oss": {qkvBias: true, outBias: true, sinks: true, biases: true}, "deepseek_v3": {},
}

func (raw *rawConfig) config() (Config, error) {
	fam, ok := families[raw.ModelType]
	if raw.ModelType == "" {
		return Config{}, errors.New("model_type: missing")
	}
	if !ok {
		return Config{}, fmt.Errorf("model_type: layers of a %q cannot be counted; name the model instead", raw.ModelType)
	}
	var f fieldReader
	m := Model{
		Name:   baseName(raw.NameOrPath),
		Layers: f.want("num_hidden_layers", raw.Layers, 1, 1000), Hidden: f.want("hidden_size", raw.Hidden, 16, 1<<17),
		Heads: f.want("num_attention_heads", raw.Heads, 1, 4096), Intermediate: f.want("intermediate_size", raw.Intermediate, 16, 1<<20),
		Vocab: f.want("vocab_size", raw.Vocab, 16, 1<<24),
	}
	if raw.Tied != nil {
		m.Tied = *raw.Tied
	}
	raw.experts(&m, &f)
	if raw.KVLoraRank != nil {
		raw.latent(&m, &f)
	} else if len(f.errs) == 0 {
		raw.grouped(&m, &f)
	}
	if err := errors.Join(f.errs...); err != nil {
		return Config{}, err
	}
	if err := raw.window(&m); err != nil {
		return Config{}, err
	}
	if raw.AttnBias != nil && raw.ModelType == "llama" && *raw.AttnBias {
		fam.qkvBias, fam.outBias = true, true
	}
	count(&m, fam)
	c := Config{Model: m}
	if err := c.storage(raw); err != nil {
		return Config{}, err
	}
	return c, nil
}

// fieldReader collects the faults of single fields.
type fieldReader struct{ errs []error }

func (f *fieldReader) want(name string, v *int, low, high int) int {
	if v == nil {
		f.errs = append(f.errs, fmt.Errorf("%s: missing", name))
		return 0
	}
	return f.check(name, *v, low, high)
}

func (f *fieldReader) otherwise(name string, v *int, low, high, otherwise int) int {
	if v == nil {
		return otherwise
	}
	return f.check(name, *v, low, high)
}

func (f *fieldReader) check(name string, v, low, high int) int {
	if v < low || v > high {
		f.errs = append(f.errs, fmt.Errorf("%s: %d is absurd (want %d to %d)", name, v, low, high))
	}
	return v
}

func (raw *rawConfig) experts(m *Model, f *fieldReader) {
	n := raw.Experts
	if n == nil {
		n = raw.LocalExperts
	}
	if n == nil {
		n = raw.RoutedExperts
	}
	m.Experts = f.otherwise("num_experts", n, 0, 1<<14, 0)
	if m.Experts == 0 {
		return
	}
	m.TopK = f.want("num_experts_per_tok", raw.TopK, 1, m.Experts)
	m.SharedExperts = f.otherwise("n_shared_experts", raw.SharedExperts, 0, 64, 0)
	m.DenseLayers = f.otherwise("first_k_dense_replace", raw.DenseLayers, 0, m.Layers, 0)
	if raw.SparseStep != nil && *raw.SparseStep > 1 {
		f.errs = append(f.errs, errors.New("decoder_sparse_step: layers with and without experts in turn cannot be counted"))
	}
	if m.DenseLayers > 0 {
		m.DenseIntermediate = m.Intermediate
	}
	m.Intermediate = f.otherwise("moe_intermediate_size", raw.MoEInter, 16, 1<<20, m.Intermediate)
}

func (raw *rawConfig) latent(m *Model, f *fieldReader) {
	m.KVLoraRank = f.check("kv_lora_rank", *raw.KVLoraRank, 1, 1<<16)
	m.QLoraRank = f.want("q_lora_rank", raw.QLoraRank, 1, 1<<16)
	m.QKRope = f.want("qk_rope_head_dim", raw.QKRope, 1, 1<<12)
	m.QKNope = f.want("qk_nope_head_dim", raw.QKNope, 1, 1<<12)
	m.VHead = f.want("v_head_dim", raw.VHead, 1, 1<<12)
}

func (raw *rawConfig) grouped(m *Model, f *fieldReader) {
	m.KVHeads = f.otherwise("num_key_value_heads", raw.KVHeads, 1, m.Heads, m.Heads)
	m.HeadDim = f.otherwise("head_dim", raw.HeadDim, 1, 1<<12, m.Hidden/m.Heads)
	if m.HeadDim == 0 {
		f.errs = append(f.errs, errors.New("head_dim: missing, and hidden_size is less than num_attention_heads"))
	}
	if m.KVHeads > 0 && m.Heads%m.KVHeads != 0 {
		f.errs = append(f.errs, fmt.Errorf("num_key_value_heads: %d does not divide %d heads", m.KVHeads, m.Heads))
	}
}

// window takes over a sliding window that is in use: on every layer, or on half of them.
func (raw *rawConfig) window(m *Model) error {
	if raw.Window == nil || *raw.Window <= 0 || raw.UseWindow != nil && !*raw.UseWindow {
		return nil
	}
	layers, sliding := len(raw.LayerTypes), 0
	for _, t := range raw.LayerTypes {
		if t == "sliding_attention" {
			sliding++
		}
	}
	switch {
	case layers == 0:
		m.SlidingAlternates = raw.ModelType == "gpt_oss"
	case sliding == 0:
		return nil
	case 2*sliding == layers:
		m.SlidingAlternates = true
	case sliding != layers:
		return fmt.Errorf("layer_types: a window on %d of %d layers cannot be counted", sliding, layers)
	}
	m.SlidingWindow = *raw.Window
	return nil
}

// count fills in the counts of m.
func count(m *Model, fam family) {
	hidden, layers, vocab := int64(m.Hidden), int64(m.Layers), int64(m.Vocab)
	attn := attention(m, fam)
	norms := 2 * hidden
	expertLayers := int64(0)
	var shared, router, dense int64
	dense = 3 * hidden * int64(m.Intermediate)
	if m.Experts > 0 {
		expertLayers = layers - int64(m.DenseLayers)
		m.ExpertParams = 3 * hidden * int64(m.Intermediate)
		router = hidden * int64(m.Experts)
		if fam.biases {
			m.ExpertParams += 2*int64(m.Intermediate) + hidden
			router += int64(m.Experts)
		}
		shared = int64(m.SharedExperts) * 3 * hidden * int64(m.Intermediate)
		dense = 3 * hidden * int64(m.DenseIntermediate)
	}
	m.NonExpert = layers*(attn+norms) + expertLayers*(router+shared) + (layers-expertLayers)*dense + hidden + vocab*hidden
	m.ParamsStreamed = m.NonExpert + expertLayers*int64(m.Experts)*m.ExpertParams
	m.ParamsActive = m.NonExpert + expertLayers*int64(m.TopK)*m.ExpertParams
	m.ParamsTotal = m.ParamsStreamed
	if !m.Tied {
		m.ParamsTotal += vocab * hidden
	}
	if m.MLA() {
		m.KVElems = layers * int64(m.KVLoraRank+m.QKRope)
		return
	}
	m.KVElems = 2 * layers * int64(m.KVHeads*m.HeadDim)
	if m.SlidingAlternates {
		m.KVElemsFull = m.KVElems / 2
	}
}

// attention returns the parameters of one layer's attention.
func attention(m *Model, fam family) int64 {
	hidden := int64(m.Hidden)
	if m.MLA() {
		heads, q, kv := int64(m.Heads), int64(m.QLoraRank), int64(m.KVLoraRank)
		rope, nope, v := int64(m.QKRope), int64(m.QKNope), int64(m.VHead)
		return hidden*q + q + q*heads*(nope+rope) + hidden*(kv+rope) + kv + kv*heads*(nope+v) + heads*v*hidden
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
