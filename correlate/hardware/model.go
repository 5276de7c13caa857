package hardware

import (
	_ "embed" // the model table is a file of its own, so that other tools can read it
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Model is what a published configuration says of a language model. Parameters count numbers, not bytes.
type Model struct {
	Name         string `json:"name"`
	Layers       int    `json:"layers"`
	Hidden       int    `json:"hidden"`
	Heads        int    `json:"heads"`
	KVHeads      int    `json:"kv_heads"`     // zero with latent attention
	HeadDim      int    `json:"head_dim"`     // zero with latent attention
	Intermediate int    `json:"intermediate"` // of one expert, if there are experts
	Vocab        int    `json:"vocab"`
	Tied         bool   `json:"tied"` // the output head is the embedding table

	Experts           int `json:"experts"` // routed experts a layer; zero for a dense model
	TopK              int `json:"topk"`    // routed experts a token
	SharedExperts     int `json:"shared_experts"`
	DenseLayers       int `json:"dense_layers"` // leading layers without experts, in a model that has them
	DenseIntermediate int `json:"dense_intermediate"`

	KVLoraRank int `json:"kv_lora_rank"` // latent attention; zero otherwise
	QLoraRank  int `json:"q_lora_rank"`
	QKRope     int `json:"qk_rope"`
	QKNope     int `json:"qk_nope"`
	VHead      int `json:"v_head"`

	SlidingWindow     int  `json:"sliding_window"` // tokens; zero without
	SlidingAlternates bool `json:"sliding_every_other_layer"`

	ParamsTotal    int64 `json:"params_total"`
	ParamsStreamed int64 `json:"params_streamed_all"`            // total less an embedding table that is not the head
	ParamsActive   int64 `json:"params_active_per_token"`        // of ParamsStreamed, with top-k of the experts
	ExpertParams   int64 `json:"expert_params"`                  // one expert of one layer
	NonExpert      int64 `json:"non_expert_params_streamed"`     // of ParamsStreamed, outside routed experts
	KVElems        int64 `json:"kv_elems_per_token"`             // numbers the KV cache holds for a token
	KVElemsFull    int64 `json:"kv_elems_per_token_full_layers"` // of them, on layers without a window; says nothing if SlidingWindow is zero

	AttentionParams int64 `json:"-"` // of NonExpert, in attention; zero if it was not counted
}

// HeadParams returns the number of parameters of the output head.
func (m Model) HeadParams() int64 { return int64(m.Vocab) * int64(m.Hidden) }

// MoE reports whether m routes tokens to experts.
func (m Model) MoE() bool { return m.Experts > 0 }

// MLA reports whether m caches a latent instead of keys and values.
func (m Model) MLA() bool { return m.KVLoraRank > 0 }

//go:embed data/models.json
var modelsJSON []byte

// modelTable is read once; the error is what every look-up then returns.
var modelTable, errModelTable = readModelTable(modelsJSON)

func readModelTable(b []byte) ([]Model, error) {
	var ms []Model
	if err := json.Unmarshal(b, &ms); err != nil {
		return nil, fmt.Errorf("read model table: %w", err)
	}
	for i := range ms {
		if ms[i].ExpertParams == 0 {
			ms[i].NonExpert = ms[i].ParamsStreamed
		}
	}
	return ms, nil
}

// Models returns all models of the table, in its order.
func Models() []Model { return slices.Clone(modelTable) }

// modelSuffixes are parts of published names that do not change the architecture.
var modelSuffixes = []string{
	"instruct", "chat", "base", "it", "hf", "fp8", "bf16", "fp16", "awq", "gptq", "int8", "int4", "w4a16", "w8a8", "w8a16", "quantized", "dynamic",
	"2507", "thinking", "v01", "v02", "v03", "nvfp4", "fp4", "mxfp4", "kv", "0324", "0528", "turbo", "quant", "marlin", "gguf", "bnb", "4bit", "8bit",
	"unsloth", "block", "sym", "128g", "g128", "latest", "text", "2407", "2501", "0905",
}

// modelAliases maps a model's key to the key of the table's entry with the same architecture and counts.
var modelAliases = map[string]string{
	"metallama318b": "llama318b", "metallama3170b": "llama3170b", "metallama31405b": "llama31405b",
	"llama38b": "llama318b", "metallama38b": "llama318b", "llama370b": "llama3170b", "metallama370b": "llama3170b",
	"llama3370b": "llama3170b", "metallama3370b": "llama3170b", "llama27b": "llama27b", "llama213b": "llama213b", "llama270b": "llama270b",
	"mixtral8x7bv01": "mixtral8x7b", "deepseekr1": "deepseekv3", "deepseekr10528": "deepseekv3", "deepseekv30324": "deepseekv3",
	"deepseekv31": "deepseekv3", "deepseekv31terminus": "deepseekv3", "qwq32b": "qwen2532b", "deepseekr1distillllama8b": "llama318b",
	"deepseekr1distillllama70b": "llama3170b", "deepseekr1distillqwen32b": "qwen2532b",
	"mistralsmall": "mistralsmall24b", "mistralsmall3124b": "mistralsmall24b", "mistralnemo": "mistralnemo12b",
	"qwen25coder05b": "qwen2505b", "qwen25coder15b": "qwen2515b", "qwen25coder3b": "qwen253b", "qwen25coder7b": "qwen257b",
	"qwen25coder14b": "qwen2514b", "qwen25coder32b": "qwen2532b", "qwen3coder30ba3b": "qwen330ba3b",
	"deepseekr1distillqwen7b": "qwen257b", "deepseekr1distillqwen14b": "qwen2514b",
	// Short tags of registries of local models.
	"llama318b": "llama318b", "mistral7b": "mistral7b", "gptoss20b": "gptoss20b", "qwen330ba3b": "qwen330ba3b", "qwen330b": "qwen330ba3b",
	"qwen3235b": "qwen3235ba22b", "deepseekv3671b": "deepseekv3", "deepseekr1671b": "deepseekv3",
}

// publishedIn are the formats in which these models are published where their name does not say another.
var publishedIn = map[string]string{"gpt-oss-20b": "mxfp4", "gpt-oss-120b": "mxfp4", "DeepSeek-V3": "fp8_block", "Kimi-K2": "fp8_block"}

// PublishedDType returns the format of the weights that a checkpoint's name tells: "-AWQ", "-FP8", ":8b-instruct-q8_0";
// else the one that its model is published in. It returns false where neither tells one.
func PublishedDType(name string) (dtype string, ok bool) {
	base := strings.ToLower(baseName(name))
	if q := ggufTail(base); q != "" {
		if d, err := LookupDType(q); err == nil {
			return d.Name, true
		}
		return "", false
	}
	words := modelWords(base)
	has := func(w string) bool { return slices.Contains(words, w) }
	switch {
	case has("awq"):
		return "awq", true
	case (has("gptq") || has("quantized")) && has("int8"):
		return "w8_g128_sym", true
	case has("gptq"):
		return "awq", true
	case has("w4a16"), has("int4"):
		return "int4_sym", true
	case has("w8a8"), has("int8"):
		return "int8", true
	case has("w8a16"):
		return "w8a16", true
	case has("bnb") && has("4bit"):
		return "nf4", true
	case has("mxfp4"):
		return "mxfp4", true
	case has("nvfp4"), has("fp4"):
		return "nvfp4", true
	case has("fp8") && (has("block") || strings.HasPrefix(strings.ToLower(name), "qwen/")):
		return "fp8_block", true
	case has("fp8"):
		return "fp8", true
	case has("bf16"), has("fp16"):
		return "bf16", true
	}
	m, err := LookupModel(name)
	if err != nil {
		return "", false
	}
	dtype, ok = publishedIn[m.Name]
	return dtype, ok
}

// ggufTail returns the format at the end of a name such as "llama3.1:8b-instruct-q4_K_M", empty without.
func ggufTail(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gguf"), "-gguf")
	i := strings.LastIndexAny(name, "-:.")
	tail := name[i+1:]
	if i < 0 || len(tail) < 3 || tail[0] != 'q' || tail[1] < '2' || tail[1] > '8' || tail[2] != '_' {
		return ""
	}
	return tail
}

// LookupModel returns the model of that name: a table's name, the full name of a published repository such as
// "meta-llama/Llama-3.1-8B-Instruct", or a common short form. Owners, capitals, punctuation and suffixes that do not
// change the architecture do not count. An unknown name is an error that names the nearest entries; nothing is guessed.
func LookupModel(name string) (Model, error) {
	if errModelTable != nil {
		return Model{}, errModelTable
	}
	for _, key := range modelKeys(name) {
		if a, ok := modelAliases[key]; ok {
			key = a
		}
		for _, m := range modelTable {
			if spelling(m.Name) == key {
				return m, nil
			}
		}
	}
	var names []string
	for _, m := range modelTable {
		names = append(names, m.Name)
	}
	return Model{}, unknown("model", baseName(name), names)
}

// baseName returns a repository's name or a path's last element.
func baseName(name string) string {
	name = strings.TrimRight(strings.TrimSpace(name), "/")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// modelWords splits a name at what separates its parts.
func modelWords(name string) []string {
	name = strings.ReplaceAll(strings.ToLower(name), "quantized.", "quantized-") // ...-quantized.w4a16
	return strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == ' ' || r == ':' })
}

// modelKeys returns the keys to look for: the whole name, then the name with one more known suffix cut off each time.
func modelKeys(name string) []string {
	base := strings.TrimSuffix(strings.ToLower(baseName(name)), ".gguf")
	if tail := ggufTail(base); tail != "" {
		base = strings.TrimRight(strings.TrimSuffix(base, tail), "-:.")
	}
	words := modelWords(base)
	keys := []string{spelling(strings.Join(words, ""))}
	for len(words) > 1 && slices.Contains(modelSuffixes, spelling(words[len(words)-1])) {
		words = words[:len(words)-1]
		keys = append(keys, spelling(strings.Join(words, "")))
	}
	return keys
}
