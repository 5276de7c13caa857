package hardware_test

import (
	"fmt"
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
		{"Llama-3.1-8B", `{` + llama8b + `,"sliding_window":4096,"layer_types":[` + layers(32, "full_attention") + `]}`, "bf16", ""},
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
		{"gpt-oss-20b", `{"model_type":"gpt_oss","num_hidden_layers":24,"hidden_size":2880,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,"vocab_size":201088,"num_local_experts":32,"num_experts_per_tok":4,"sliding_window":128,"layer_types":[` + layers(24, "sliding_attention", "full_attention") + `],"quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]}}`, "mxfp4", ""},
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

// layers repeats the types of layers until there are n.
func layers(n int, types ...string) string {
	var l []string
	for i := range n {
		l = append(l, `"`+types[i%len(types)]+`"`)
	}
	return strings.Join(l, ",")
}

func TestReadConfigCountsModelsThatAreInNoTable(t *testing.T) {
	// Published totals of parameters: the files' own sizes on their model cards, or the libraries' counts.
	tests := []struct {
		name, config  string
		total, active float64 // active zero: as streamed
		full          int     // layers without a window
		window        int
	}{
		{"Gemma-2-9B", `{"model_type":"gemma2","num_hidden_layers":42,"hidden_size":3584,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"intermediate_size":14336,"vocab_size":256000,"sliding_window":4096}`, 9241705984, 0, 21, 4096},
		{"Gemma-3-27B", `{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","num_hidden_layers":62,"hidden_size":5376,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"intermediate_size":21504,"sliding_window":1024},"torch_dtype":"bfloat16"}`, 27009346304, 0, 10, 1024},
		{"Gemma-3-4B", `{"text_config":{"model_type":"gemma3_text","num_hidden_layers":34,"hidden_size":2560,"intermediate_size":10240,"sliding_window":1024}}`, 3880263168, 0, 5, 1024},
		{"Phi-3-mini", `{"model_type":"phi3","num_hidden_layers":32,"hidden_size":3072,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":32064,"sliding_window":2047}`, 3821079552, 0, 0, 2047},
		{"Mistral-7B-v0.1", `{"model_type":"mistral","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"sliding_window":4096}`, 7241732096, 0, 0, 4096},
		{"Llama-4-Scout", `{"model_type":"llama4","tie_word_embeddings":false,"text_config":{"model_type":"llama4_text","num_hidden_layers":48,"hidden_size":5120,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"vocab_size":202048,"num_local_experts":16,"num_experts_per_tok":1,"interleave_moe_layer_step":1,"attention_chunk_size":8192,"use_qk_norm":true}}`, 107770000000, 17170000000, 12, 8192},
		{"Llama-4-Maverick", `{"model_type":"llama4","text_config":{"model_type":"llama4_text","num_hidden_layers":48,"hidden_size":5120,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"vocab_size":202048,"num_local_experts":128,"num_experts_per_tok":1,"interleave_moe_layer_step":2,"attention_chunk_size":8192}}`, 400710000000, 17180000000, 12, 8192},
		{"Mixtral-8x22B", `{"model_type":"mixtral","num_hidden_layers":56,"hidden_size":6144,"num_attention_heads":48,"num_key_value_heads":8,"intermediate_size":16384,"vocab_size":32768,"num_local_experts":8,"num_experts_per_tok":2}`, 140630071296, 0, 56, 0},
		{"DeepSeek-V2-Lite", `{"model_type":"deepseek_v2","num_hidden_layers":27,"hidden_size":2048,"num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":10944,"moe_intermediate_size":1408,"vocab_size":102400,"n_routed_experts":64,"n_shared_experts":2,"num_experts_per_tok":6,"first_k_dense_replace":1,"kv_lora_rank":512,"q_lora_rank":null,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"moe_layer_freq":1}`, 15706484224, 0, 27, 0},
		{"Qwen1.5-MoE-A2.7B", `{"model_type":"qwen2_moe","num_hidden_layers":24,"hidden_size":2048,"num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":5632,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"vocab_size":151936,"num_experts":60,"num_experts_per_tok":4,"decoder_sparse_step":1}`, 14315784192, 0, 24, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := hardware.ReadConfig(strings.NewReader(tt.config))
			if err != nil {
				t.Fatal(err)
			}
			m := c.Model
			if !near(float64(m.ParamsTotal), tt.total, 0.001) {
				t.Errorf("%d parameters, want %.0f", m.ParamsTotal, tt.total)
			}
			if tt.active > 0 && !near(float64(m.ParamsActive+m.HeadParams()), tt.active, 0.01) {
				t.Errorf("%d parameters a token with the embedding, want %.0f", m.ParamsActive+m.HeadParams(), tt.active)
			}
			full := m.Layers
			if m.SlidingWindow > 0 {
				full = int(m.KVElemsFull * int64(m.Layers) / m.KVElems)
			}
			if full != tt.full || m.SlidingWindow != tt.window {
				t.Errorf("%d layers without a window of %d, want %d and %d", full, m.SlidingWindow, tt.full, tt.window)
			}
		})
	}
}

func TestReadConfigTellsHowWeightsAreStored(t *testing.T) {
	const skip = `"modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"]`
	tests := []struct {
		name, quant      string
		dtype            string
		bits, head, body float64 // body zero: as the rest
	}{
		{"a fp8 file in blocks", `{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":null}`, "fp8_block", 8.002, 16, 0},
		{"groups of 128 with zero points", `{"quant_method":"gptq","bits":4,"group_size":128,"sym":false}`, "awq", 4.15625, 16, 0},
		{"groups of 32 with zero points", `{"quant_method":"gptq","bits":4,"group_size":32,"sym":false}`, "w4_g32", 4.625, 16, 0},
		{"groups of 64 without", `{"quant_method":"awq","bits":4,"group_size":64,"zero_point":false}`, "w4_g64_sym", 4.25, 16, 0},
		{"whole columns", `{"quant_method":"gptq","bits":4,"group_size":-1,"sym":true}`, "w4_channel_sym", 4, 16, 0},
		{"eight bits in groups", `{"quant_method":"gptq","bits":8,"group_size":128,"sym":true}`, "w8_g128_sym", 8.125, 16, 0},
		{"a head that is quantized too", `{"quant_method":"gptq","bits":4,"group_size":128,"sym":true,"lm_head":true}`, "int4_sym", 4.125, 4.125, 0},
		{"AutoAWQ's first spelling", `{"quant_method":"awq","w_bit":4,"q_group_size":128,"zero_point":true}`, "awq", 4.15625, 16, 0},
		{"AutoRound", `{"quant_method":"auto-round","bits":4,"group_size":128,"sym":true}`, "int4_sym", 4.125, 16, 0},
		{"double quantization", `{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_use_double_quant":true}`, "nf4_double", 4.127, 16, 0},
		{"eight bits", `{"quant_method":"bitsandbytes","load_in_8bit":true}`, "w8a16", 8, 16, 0},
		{"compressed with a head of its own", `{"quant_method":"compressed-tensors","ignore":[],"config_groups":{"a":{"weights":{"num_bits":8,"type":"float"}}}}`, "fp8", 8, 8, 0},
		{"compressed without one", `{"quant_method":"compressed-tensors","ignore":["lm_head"],"config_groups":{"a":{"weights":{"num_bits":8,"type":"float","strategy":"block"}}}}`, "fp8_block", 8.002, 16, 0},
		{"compressed to four bits", `{"quant_method":"compressed-tensors","ignore":["lm_head"],"config_groups":{"a":{"weights":{"num_bits":4,"type":"int","group_size":128,"symmetric":true}}}}`, "int4_sym", 4.125, 16, 0},
		{"modelopt in blocks", `{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]}`, "nvfp4", 4.5, 16, 0},
		{"modelopt's own file", `{"quantization":{"quant_algo":"FP8","kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}}`, "fp8", 8, 16, 0},
		{"modelopt, weights alone", `{"quant_method":"modelopt","quant_algo":"W4A16_AWQ","group_size":128}`, "int4_sym", 4.125, 16, 0},
		{"attention left as it was, by expression", `{"quant_method":"compressed-tensors","ignore":["lm_head","re:.*self_attn.*"],"config_groups":{"a":{"weights":{"num_bits":8,"type":"float"}}}}`, "fp8", 8, 16, (16*1342177280 + 8*(6979588096-1342177280)) / 6979588096.0},
		{"its four projections, each by its name", `{"quant_method":"fbgemm_fp8","modules_to_not_convert":["lm_head",` + projections(32, "self_attn.", "q_proj", "k_proj", "v_proj", "o_proj") + `]}`, "fp8", 8, 16, (16*1342177280 + 8*(6979588096-1342177280)) / 6979588096.0},
		{"one projection of half of the layers", `{"quant_method":"fp8","ignored_layers":[` + projections(16, "self_attn.", "o_proj") + `]}`, "fp8", 8, 16, (16*16*4096*4096 + 8*(6979588096-16*4096*4096)) / 6979588096.0},
		{"a part of every layer, by an expression of numbers", `{"quant_method":"fp8","modules_to_not_convert":["re:model.layers.[0-9]+.self_attn.*"]}`, "fp8", 8, 16, (16*1342177280 + 8*(6979588096-1342177280)) / 6979588096.0},
		{"and of digits", `{"quant_method":"fp8","modules_to_not_convert":["re:^model\\.layers\\.\\d+\\.self_attn\\..*$"]}`, "fp8", 8, 16, (16*1342177280 + 8*(6979588096-1342177280)) / 6979588096.0},
		{"two whole layers, one named twice", `{"quant_method":"fp8","modules_to_not_convert":["model.layers.0","model.layers.31","model.layers.0.mlp"]}`, "fp8", 8, 16, 8 * (1 + 2.0/32)},
		{"a projection of every layer", `{"quant_method":"awq","bits":4,"group_size":128,"modules_to_not_convert":["down_proj"]}`, "awq", 4.15625, 16, (16*32*4096*14336 + 4.15625*(6979588096-32*4096*14336)) / 6979588096.0},
		{"attention left as it was", `{"quant_method":"fp8",` + skip + `}`, "fp8", 8, 16, (16*1342177280 + 8*(6979588096-1342177280)) / 6979588096.0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := hardware.ReadConfig(strings.NewReader(`{` + llama8b + `,"quantization_config":` + tt.quant + `}`))
			if err != nil {
				t.Fatal(err)
			}
			w := c.Weights
			if w.Name != tt.dtype || c.DType != tt.dtype || !near(w.Bits, tt.bits, 0.0005) || !near(w.HeadBits, tt.head, 0.0005) || !near(w.BodyBits, tt.body, 0.001) {
				t.Errorf("got %+v, want %s of %v bits, head %v, body %v", w, tt.dtype, tt.bits, tt.head, tt.body)
			}
			if d, err := hardware.LookupDType(c.DType); err != nil || d.Bits != w.Bits {
				t.Errorf("LookupDType(%q) = %+v, %v; want the bits of the file", c.DType, d, err)
			}
		})
	}
	c, err := hardware.ReadConfig(strings.NewReader(`{` + llama8b + `,"num_nextn_predict_layers":1,"max_position_embeddings":131072}`))
	if err != nil || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "not counted") || c.MaxContext != 131072 {
		t.Errorf("a layer that drafts tokens: %+v, %v", c, err)
	}
	for _, tt := range []struct {
		parameters, bytes, bits float64
		ok                      bool
	}{{8.03e9, 4.92e9, 4.9, true}, {0, 1, 0, false}, {1, 1e9, 0, false}, {8e9, 0, 0, false}} {
		if d, ok := hardware.MeasuredDType(tt.parameters, tt.bytes); ok != tt.ok || ok && !near(d.Bits, tt.bits, 0.01) {
			t.Errorf("MeasuredDType(%v, %v) = %+v, %v", tt.parameters, tt.bytes, d, ok)
		}
	}
}

// projections are the names of modules of the first layers, as lists in files spell them.
func projections(layers int, of string, names ...string) string {
	var out []string
	for i := range layers {
		for _, n := range names {
			out = append(out, fmt.Sprintf(`"model.layers.%d.%s%s"`, i, of, n))
		}
	}
	return strings.Join(out, ",")
}

func TestReadConfigSaysWhichModulesItDoesNotCount(t *testing.T) {
	for _, tt := range []struct{ list, want string }{
		{`["lm_head","model.embed_tokens","re:.*norm","model.layers.3.mlp.gate"]`, ""},
		{`["re:.*layers.(0|31).mlp.*","layers.-1.mlp","model.layers.[0-3].self_attn"]`, "3 of 3 modules"},
		{`["lm_head","model.layers.3.mixer"]`, "1 of 2 modules that it leaves out are not counted apart, such as model.layers.3.mixer"},
	} {
		c, err := hardware.ReadConfig(strings.NewReader(`{` + llama8b + `,"quantization_config":{"quant_method":"fp8","modules_to_not_convert":` + tt.list + `}}`))
		if err != nil || (tt.want == "") != (len(c.Doubts) == 0) || !strings.Contains(strings.Join(c.Doubts, "\n"), tt.want) || c.Weights.BodyBits != 0 {
			t.Errorf("%s: doubts %q, body %v, %v; want %q", tt.list, c.Doubts, c.Weights.BodyBits, err, tt.want)
		}
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
		{"a width nobody has", `{` + llama8b + `,"quantization_config":{"quant_method":"gptq","bits":5}}`, "quantization_config.bits: 5"},
		{"an unknown dtype", `{` + strings.Replace(llama8b, "bfloat16", "bfloat17", 1) + `}`, "nearest: bfloat16"},
		{"a list of other layers", `{` + llama8b + `,"sliding_window":4096,"layer_types":["full_attention","full_attention","sliding_attention"]}`, "layer_types: lists 3 layers of 32"},
		{"layers of a kind nobody counts", `{` + llama8b + `,"sliding_window":4096,"layer_types":[` + layers(32, "linear_attention") + `]}`, `layer_types: layers of "linear_attention" cannot be counted`},
		{"text where a number belongs", `{` + strings.Replace(llama8b, `"vocab_size":128256`, `"vocab_size":"many"`, 1) + `}`, "vocab_size: is no number"},
		{"a broken number of heads", `{` + strings.Replace(llama8b, `"num_attention_heads":32`, `"num_attention_heads":32.5`, 1) + `}`, "num_attention_heads: 32.5 is no whole number"},
		{"a nested field", `{"text_config":{` + strings.Replace(llama8b, `"hidden_size":4096`, `"hidden_size":4`, 1) + `}}`, "text_config.hidden_size: 4 is absurd"},
		{"every absurd field is named", `{` + strings.Replace(llama8b, `"num_hidden_layers":32,"hidden_size":4096`, `"num_hidden_layers":0,"hidden_size":0`, 1) + `,"quantization_config":{"quant_method":"gptq"}}`, "num_hidden_layers: 0 is absurd (want 1 to 1000)\nhidden_size: 0 is absurd (want 16 to 131072)\nquantization_config.bits: missing"},
		{"a group of weights without weights", `{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":null}}}}`, "quantization_config.config_groups.group_0: a group without weights"},
		{"an unknown algorithm", `{` + llama8b + `,"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP5"}}`, `quantization_config.quant_algo: unknown quant_algo "NVFP5" (nearest: NVFP4`},
		{"null", `null`, "null is no configuration"},
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

func TestReadConfigAsksAFamilyItDoesNotKnowForNoFields(t *testing.T) {
	_, err := hardware.ReadConfig(strings.NewReader(`{"model_type":"opt","num_hidden_layers":32,"hidden_size":2560,"num_attention_heads":32,"ffn_dim":10240,"vocab_size":50272}`))
	if err == nil || !strings.HasSuffix(err.Error(), `layers of a "opt" cannot be counted; name the model instead`) {
		t.Errorf("got %v, want the family alone", err)
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add(`{` + llama8b + `}`)
	f.Add(`{` + llama8b + `,"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":null}}}}`)
	f.Add(`{"text_config":{` + llama8b + `}}`)
	f.Add(`{"model_type":"llama4_text","num_hidden_layers":48,"hidden_size":5120,"num_attention_heads":40,"intermediate_size":8192,"vocab_size":202048,"num_local_experts":16,"num_experts_per_tok":1,"attention_chunk_size":8192,"no_rope_layers":[0,1]}`)
	f.Add(`{"model_type":"deepseek_v3","num_hidden_layers":61,"hidden_size":7168,"num_attention_heads":128,"intermediate_size":18432,"vocab_size":129280,"n_routed_experts":256,"num_experts_per_tok":8,"first_k_dense_replace":3,"moe_layer_freq":2,"mlp_only_layers":[1],"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128}`)
	f.Add(`{"model_type":"gemma3_text","num_hidden_layers":34,"hidden_size":2560,"intermediate_size":10240,"sliding_window":1024,"quantization_config":{"quant_method":"fp8","modules_to_not_convert":["model.layers.1.self_attn"]}}`)
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
