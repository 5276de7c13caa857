package hardware_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

const llama8b = `"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"tie_word_embeddings":false,"torch_dtype":"bfloat16"`

func TestReadConfigCountsAsTheTableDoes(t *testing.T) {
	tests := []struct {
		name, config, dtype, kv string
	}{
		{"Llama-3.1-8B", `{` + llama8b + `}`, "bf16", ""},
		{"Llama-2-7B", `{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000,"torch_dtype":"float16"}`, "bf16", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"sliding_window":4096,"layer_types":["full_attention","full_attention"]}`, "bf16", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"awq","bits":4,"group_size":128,"zero_point":true}}`, "awq", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,"sym":true}}`, "int4_sym", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","ignore":["lm_head"],"kv_cache_scheme":{"num_bits":8,"type":"float"},"config_groups":{"group_0":{"weights":{"num_bits":8,"type":"float"},"input_activations":{"num_bits":8}}}}}`, "fp8", "fp8"},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":8,"type":"int"},"input_activations":{"num_bits":8}}}}}`, "int8", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":4,"type":"float","group_size":16}}}}}`, "nvfp4", ""},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}}`, "nvfp4", "fp8"},
		{"Llama-3.1-8B", `{` + llama8b + `,"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}}`, "nf4", ""},
		{"Qwen2.5-0.5B", `{"model_type":"qwen2","num_hidden_layers":24,"hidden_size":896,"num_attention_heads":14,"num_key_value_heads":2,"intermediate_size":4864,"vocab_size":151936,"tie_word_embeddings":true,"use_sliding_window":false,"sliding_window":32768,"torch_dtype":"bfloat16"}`, "bf16", ""},
		{"Qwen2.5-7B", `{"model_type":"qwen2","num_hidden_layers":28,"hidden_size":3584,"num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"vocab_size":152064,"dtype":"bfloat16"}`, "bf16", ""},
		{"Qwen3-8B", `{"model_type":"qwen3","num_hidden_layers":36,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":12288,"vocab_size":151936}`, "", ""},
		{"Mixtral-8x7B", `{"model_type":"mixtral","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2,"sliding_window":null}`, "", ""},
		{"Qwen3-30B-A3B", `{"model_type":"qwen3_moe","num_hidden_layers":48,"hidden_size":2048,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,"moe_intermediate_size":768,"vocab_size":151936,"num_experts":128,"num_experts_per_tok":8,"decoder_sparse_step":1,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`, "fp8_block", ""},
		{"gpt-oss-20b", `{"model_type":"gpt_oss","num_hidden_layers":24,"hidden_size":2880,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,"vocab_size":201088,"num_local_experts":32,"num_experts_per_tok":4,"sliding_window":128,"layer_types":["sliding_attention","full_attention"],"quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]}}`, "mxfp4", ""},
		{"DeepSeek-V3", `{"model_type":"deepseek_v3","num_hidden_layers":61,"hidden_size":7168,"num_attention_heads":128,"intermediate_size":18432,"moe_intermediate_size":2048,"vocab_size":129280,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"first_k_dense_replace":3,"kv_lora_rank":512,"q_lora_rank":1536,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128}`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.dtype, func(t *testing.T) {
			c, err := hardware.ReadConfig(strings.NewReader(tt.config))
			if err != nil {
				t.Fatal(err)
			}
			want, err := hardware.LookupModel(tt.name)
			if err != nil {
				t.Fatal(err)
			}
			if c.DType != tt.dtype || c.KVDType != tt.kv {
				t.Errorf("got dtype %q and kv %q, want %q and %q", c.DType, c.KVDType, tt.dtype, tt.kv)
			}
			got := c.Model
			for name, pair := range map[string][2]int64{
				"total": {got.ParamsTotal, want.ParamsTotal}, "streamed": {got.ParamsStreamed, want.ParamsStreamed},
				"active": {got.ParamsActive, want.ParamsActive}, "not of experts": {got.NonExpert, want.NonExpert},
				"of one expert": {got.ExpertParams, want.ExpertParams},
			} {
				if !near(float64(pair[0]), float64(pair[1]), 0.001) {
					t.Errorf("parameters %s: got %d, the table has %d", name, pair[0], pair[1])
				}
			}
			if diff := cmp.Diff([]int64{want.KVElems, want.KVElemsFull, int64(want.SlidingWindow)}, []int64{got.KVElems, got.KVElemsFull, int64(got.SlidingWindow)}); diff != "" {
				t.Errorf("cache (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadConfigNamesWhatIsWrong(t *testing.T) {
	tests := []struct{ name, config, want string }{
		{"not JSON", `model`, "read config"},
		{"no family", `{}`, "model_type: missing"},
		{"an unknown family", `{"model_type":"mamba"}`, `model_type: layers of a "mamba" cannot be counted`},
		{"missing fields are all named", `{"model_type":"llama","hidden_size":4096}`, "num_attention_heads: missing"},
		{"absurd layers", `{` + strings.Replace(llama8b, `"num_hidden_layers":32`, `"num_hidden_layers":-4`, 1) + `}`, "num_hidden_layers: -4 is absurd"},
		{"heads that do not divide", `{` + strings.Replace(llama8b, `"num_key_value_heads":8`, `"num_key_value_heads":5`, 1) + `}`, "num_key_value_heads: 5 does not divide"},
		{"an unknown method", `{` + llama8b + `,"quantization_config":{"quant_method":"aqlmm"}}`, `unknown quant_method "aqlmm"`},
		{"a width nobody has", `{` + llama8b + `,"quantization_config":{"quant_method":"gptq","bits":3}}`, "bits: 3"},
		{"an unknown dtype", `{` + strings.Replace(llama8b, "bfloat16", "bfloat17", 1) + `}`, "nearest: bfloat16"},
		{"a window on every third layer", `{` + llama8b + `,"sliding_window":4096,"layer_types":["full_attention","full_attention","sliding_attention"]}`, "layer_types: a window on 1 of 3"},
		{"experts without top-k", `{` + llama8b + `,"num_experts":8}`, "num_experts_per_tok: missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := hardware.ReadConfig(strings.NewReader(tt.config))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v; want an error with %q", c, err, tt.want)
			}
		})
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add(`{` + llama8b + `}`)
	f.Add(`{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":null}}}}`)
	f.Add(`{"text_config":{` + llama8b + `}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := hardware.ReadConfig(strings.NewReader(text))
		if err != nil {
			return
		}
		m := c.Model
		if m.ParamsTotal <= 0 || m.KVElems <= 0 || m.ParamsActive > m.ParamsStreamed || m.ParamsStreamed > m.ParamsTotal {
			t.Errorf("counts do not fit together: %+v", m)
		}
	})
}
