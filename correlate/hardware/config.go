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
	DType       string   // a name that [LookupDType] knows; empty if the file does not tell
	Weights     DType    // the same with what this file says of head and attention; zero if it does not tell
	KVDType     string   // empty if the file does not tell
	Method      string   // quantization method as the file spells it; empty without
	Unquantized string   // the modules that stay unquantized, as the file spells them; empty if it does not tell
	MaxContext  int      // tokens; zero if the file does not tell
	Notes       []string // what the counts leave out, and what they take for granted
	Doubts      []string // what the file says of its weights and the counts do not hold
}

// maxConfigBytes bounds what is read: published files hold a few kilobytes, those with long lists of modules some hundred.
const maxConfigBytes = 1 << 20

// ReadConfig reads a config.json and counts the parameters and the cache from it. It knows the families whose layers it
// can count. Every missing or absurd field is named in the error with its path in the file; a
// family that is not known is an error too, since a wrong count is worse than none.
func ReadConfig(r io.Reader) (Config, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	if len(b) > maxConfigBytes {
		return Config{}, fmt.Errorf("read config: more than %d bytes", maxConfigBytes)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(b, &top); err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	if top == nil {
		return Config{}, errors.New("read config: null is no configuration")
	}
	var errs []error
	c := readFields(&fields{m: top, errs: &errs})
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	return c, nil
}

// readFields reads the whole file. Faults are left in f.
func readFields(f *fields) Config {
	var c Config
	text := f
	if nested := f.sub("text_config"); nested != nil && !f.has("hidden_size") {
		text = nested
		if !text.has("model_type") && f.has("model_type") {
			text.m["model_type"] = f.m["model_type"]
		}
		c.Notes = append(c.Notes, "only the language part (text_config) is counted")
	}
	name := text.str("model_type")
	fam, ok := families[name]
	switch {
	case name == "":
		text.fault("model_type", "missing")
	case !ok:
		text.fault("model_type", fmt.Sprintf("layers of a %q cannot be counted; name the model instead", name))
		return c // its fields may have other names
	}
	before := len(*f.errs)
	m := &c.Model
	m.Name = baseName(f.str("_name_or_path"))
	text.shape(m, fam)
	if text != f && !text.has("tie_word_embeddings") && f.has("tie_word_embeddings") {
		m.Tied = f.boolean("tie_word_embeddings")
	}
	text.experts(m, fam)
	switch {
	case text.has("kv_lora_rank"):
		text.latent(m)
	case len(*f.errs) == before:
		text.keyValueHeads(m, fam)
	}
	c.MaxContext = text.intOr("max_position_embeddings", 1, 1<<31, 0)
	if n := text.intOr("num_nextn_predict_layers", 0, 64, 0); n > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("num_nextn_predict_layers: %d layers that draft tokens are not counted: they run with speculation alone", n))
	}
	if ok && len(*f.errs) == 0 {
		if text.boolean("attention_bias") && fam.biasFlag {
			fam.qkvBias, fam.outBias = true, fam.outBias || !fam.noOutBias
		}
		if text.boolean("use_qk_norm") && !fam.chunks { // Llama 4 normalizes without weights
			fam.qkNorm = true
		}
		count(m, fam, text.intOr("shared_expert_intermediate_size", 1, 1<<20, 0))
		c.Notes = append(c.Notes, text.window(m, fam)...)
	}
	c.storage(f, text)
	return c
}

// fields reads the fields of one JSON object and gathers what is wrong with them.
type fields struct {
	path string // of the object, with a dot at the end; empty for the file
	m    map[string]json.RawMessage
	errs *[]error
}

func (f *fields) fault(name, what string) {
	*f.errs = append(*f.errs, fmt.Errorf("%s%s: %s", f.path, name, what))
}

// has reports whether the field is there and not null.
func (f *fields) has(name string) bool {
	v, ok := f.m[name]
	return ok && string(v) != "null"
}

// read decodes a field, and reports whether it is there and of that kind.
func (f *fields) read(name string, v any, kind string) bool {
	if !f.has(name) {
		return false
	}
	if json.Unmarshal(f.m[name], v) != nil {
		f.fault(name, "is no "+kind)
		return false
	}
	return true
}

// sub returns the object of that name, nil without.
func (f *fields) sub(name string) *fields {
	var m map[string]json.RawMessage
	if !f.read(name, &m, "object") {
		return nil
	}
	return &fields{path: f.path + name + ".", m: m, errs: f.errs}
}

// maxWord bounds a name from a file that an error may repeat.
const maxWord = 200

func (f *fields) str(name string) string {
	var s string
	f.read(name, &s, "text")
	return s[:min(len(s), maxWord)]
}

func (f *fields) boolean(name string) bool {
	var b bool
	f.read(name, &b, "truth value")
	return b
}

func (f *fields) list(name string) []string {
	var l []string
	f.read(name, &l, "list of names")
	return l
}

// want returns a whole number that must be there.
func (f *fields) want(name string, low, high int) int {
	if !f.has(name) {
		f.fault(name, "missing")
		return 0
	}
	return f.intOr(name, low, high, 0)
}

// intOr returns a whole number, or otherwise if it is not there.
func (f *fields) intOr(name string, low, high, otherwise int) int {
	var x float64
	if !f.has(name) {
		return otherwise
	}
	if !f.read(name, &x, "number") {
		return 0
	}
	if x != float64(int(x)) {
		f.fault(name, fmt.Sprintf("%g is no whole number", x))
		return 0
	}
	if x < float64(low) || x > float64(high) {
		f.fault(name, fmt.Sprintf("%.0f is absurd (want %d to %d)", x, low, high))
		return 0
	}
	return int(x)
}

// shape reads what every model has. A family may have defaults that published files leave out.
func (f *fields) shape(m *Model, fam family) {
	get := func(name string, low, high int) int {
		if d, ok := fam.defaults[name]; ok {
			return f.intOr(name, low, high, d)
		}
		return f.want(name, low, high)
	}
	m.Layers = get("num_hidden_layers", 1, 1000)
	m.Hidden = get("hidden_size", 16, 1<<17)
	m.Heads = get("num_attention_heads", 1, 4096)
	m.Intermediate = get("intermediate_size", 16, 1<<20)
	m.Vocab = get("vocab_size", 16, 1<<24)
	m.Tied = fam.tied
	if f.has("tie_word_embeddings") {
		m.Tied = f.boolean("tie_word_embeddings")
	}
}

func (f *fields) latent(m *Model) {
	m.KVLoraRank = f.want("kv_lora_rank", 1, 1<<16)
	m.QLoraRank = f.intOr("q_lora_rank", 1, 1<<16, 0)
	m.QKRope = f.want("qk_rope_head_dim", 1, 1<<12)
	m.QKNope = f.want("qk_nope_head_dim", 1, 1<<12)
	m.VHead = f.want("v_head_dim", 1, 1<<12)
}

func (f *fields) keyValueHeads(m *Model, fam family) {
	kv, dim := m.Heads, m.Hidden/max(1, m.Heads)
	if d, ok := fam.defaults["num_key_value_heads"]; ok {
		kv = d
	}
	if d, ok := fam.defaults["head_dim"]; ok {
		dim = d
	}
	m.KVHeads = f.intOr("num_key_value_heads", 1, max(1, m.Heads), kv)
	m.HeadDim = f.intOr("head_dim", 1, 1<<12, dim)
	if m.HeadDim == 0 && !f.has("head_dim") {
		f.fault("head_dim", "missing, and hidden_size is less than num_attention_heads")
	}
	if m.KVHeads > 0 && m.Heads%m.KVHeads != 0 {
		f.fault("num_key_value_heads", fmt.Sprintf("%d does not divide %d heads", m.KVHeads, m.Heads))
	}
}

// experts reads the routed experts, and how many layers have them.
func (f *fields) experts(m *Model, fam family) {
	name := "num_experts"
	for _, n := range []string{"num_local_experts", "n_routed_experts"} {
		if f.has(n) && !f.has(name) {
			name = n
		}
	}
	m.Experts = f.intOr(name, 0, 1<<14, 0)
	if m.Experts == 0 {
		return
	}
	m.TopK = f.want("num_experts_per_tok", 1, m.Experts)
	m.SharedExperts = f.intOr("n_shared_experts", 0, 64, 0)
	if fam.sharedExpert {
		m.SharedExperts = 1
	}
	m.DenseIntermediate = m.Intermediate
	m.DenseLayers = f.intOr("first_k_dense_replace", 0, max(0, m.Layers-1), 0)
	for _, name := range []string{"decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"} {
		if step := f.intOr(name, 1, max(1, m.Layers), 1); step > 1 {
			m.DenseLayers += (m.Layers - m.DenseLayers) - (m.Layers-m.DenseLayers)/step
		}
	}
	var dense []int
	if f.read("mlp_only_layers", &dense, "list of layers") {
		if m.DenseLayers += len(dense); m.DenseLayers >= m.Layers {
			f.fault("mlp_only_layers", fmt.Sprintf("%d layers without experts of %d", m.DenseLayers, m.Layers))
		}
	}
	m.DenseIntermediate = f.intOr("intermediate_size_mlp", 16, 1<<20, m.Intermediate)
	m.Intermediate = f.intOr("moe_intermediate_size", 16, 1<<20, m.Intermediate)
	if m.DenseLayers == 0 {
		m.DenseIntermediate = 0
	}
}
