package roofline_test

import (
	"math"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
)

// build returns a model whose peaks are round data sheet figures: the published examples use 3.35 TB/s and 989 TFLOP/s.
func build(t *testing.T, name, gpu, dtype, kv string, tp int) *roofline.Model {
	t.Helper()
	spec, err := hardware.LookupModel(name)
	if err != nil {
		t.Fatal(err)
	}
	g, err := hardware.LookupGPU(gpu)
	if err != nil {
		t.Fatal(err)
	}
	m, err := roofline.New(spec, g, dtype, kv, tp)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// close reports a value that is off by more than part of the wanted one.
func within(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if !(math.Abs(got-want) <= part*math.Abs(want)) {
		t.Errorf("%s: got %.6g, want %.6g within %.2g %%", what, got, want, 100*part)
	}
}

func TestStreamedParametersAndCacheMatchPublishedConfigurations(t *testing.T) {
	tests := []struct {
		model  string
		active float64 // parameters read for one token
		kv     float64 // bytes per token, bf16
	}{
		{"Llama-2-7B", 6607343616, 524288},
		{"Llama-2-13B", 12852024320, 819200},
		{"Llama-2-70B", 68714504192, 327680},
		{"Llama-3.2-1B", 1235814400, 32768},
		{"Llama-3.2-3B", 3212749824, 114688},
		{"Llama-3.1-8B", 7504924672, 131072},
		{"Llama-3.1-70B", 69503033344, 327680},
		{"Llama-3.1-405B", 403752042496, 516096},
		{"Mistral-7B", 7110660096, 131072},
		{"Mixtral-8x7B", 12748853248, 131072},
		{"Qwen2.5-0.5B", 494032768, 12288},
		{"Qwen2.5-7B", 7070619136, 57344},
		{"Qwen2.5-32B", 31985308672, 262144},
		{"Qwen2.5-72B", 71460495360, 327680},
		{"Qwen3-0.6B", 596049920, 114688},
		{"Qwen3-8B", 7568405504, 147456},
		{"Qwen3-32B", 31984210944, 262144},
		{"Qwen3-30B-A3B", 3041867776, 98304},
		{"Qwen3-235B-A22B", 21568433664, 192512},
		{"DeepSeek-V3", 36625618432, 70272},
		{"gpt-oss-20b", 3608307264, 49152},
		{"gpt-oss-120b", 5132849472, 73728},
	}
	for _, tt := range tests {
		t.Run(tt.model, func(t *testing.T) {
			m := build(t, tt.model, "h100", "bf16", "bf16", 1)
			floor, _ := m.WeightBytes(1)
			within(t, "weights of one token", floor, 2*tt.active, 0.001)
			within(t, "cache", m.KVBytesPerToken(), tt.kv, 0.001)
		})
	}
}

func TestWeightBytesMatchWorkedExamples(t *testing.T) {
	tests := []struct {
		model, dtype string
		batch        float64
		gb           float64
	}{
		{"Llama-2-7B", "bf16", 1, 13.215},
		{"Llama-2-7B", "fp8", 1, 6.738},
		{"Llama-2-7B", "awq", 1, 3.627},
		{"Llama-2-7B", "nvfp4", 1, 3.905},
		{"Llama-3.1-8B", "bf16", 1, 15.010},
		{"Llama-3.1-8B", "fp8", 1, 8.030},
		{"Llama-3.1-8B", "awq", 1, 4.677},
		{"Llama-3.1-8B", "nvfp4", 1, 4.977},
		{"Llama-3.1-70B", "bf16", 1, 139.006},
		{"Llama-3.1-70B", "fp8", 1, 70.554},
		{"Llama-3.1-70B", "awq", 1, 37.664},
		{"Llama-3.1-70B", "nvfp4", 1, 40.606},
		{"Llama-3.1-405B", "bf16", 1, 807.504},
		{"Llama-3.1-405B", "fp8", 1, 405.853},
		{"Llama-3.1-405B", "awq", 1, 212.873},
		{"Llama-3.1-405B", "nvfp4", 1, 230.131},
		{"Qwen2.5-7B", "bf16", 1, 14.141},
		{"Qwen2.5-7B", "fp8", 1, 7.616},
		{"Qwen2.5-7B", "awq", 1, 4.480},
		{"Qwen2.5-7B", "nvfp4", 1, 4.761},
		{"Qwen3-32B", "bf16", 1, 63.968},
		{"Qwen3-32B", "fp8", 1, 32.762},
		{"Qwen3-32B", "awq", 1, 17.768},
		{"Qwen3-32B", "nvfp4", 1, 19.109},
		{"Mixtral-8x7B", "bf16", 1, 25.5},
		{"Mixtral-8x7B", "bf16", 2, 42.4},
		{"Mixtral-8x7B", "bf16", 4, 64.6},
		{"Mixtral-8x7B", "bf16", 8, 84.1},
		{"Mixtral-8x7B", "bf16", 32, 93.1},
		{"Qwen3-30B-A3B", "bf16", 1, 6.08},
		{"Qwen3-30B-A3B", "bf16", 8, 25.8},
		{"Qwen3-30B-A3B", "bf16", 32, 53.1},
		{"Qwen3-30B-A3B", "bf16", 128, 60.4},
		{"Qwen3-30B-A3B", "fp8", 1, 3.35},
		{"Qwen3-30B-A3B", "fp8", 8, 13.2},
		{"Qwen3-30B-A3B", "fp8", 32, 26.9},
		{"Qwen3-30B-A3B", "fp8", 128, 30.5},
		{"gpt-oss-120b", "mxfp4", 1, 5.00},
		{"gpt-oss-120b", "mxfp4", 8, 16.8},
		{"gpt-oss-120b", "mxfp4", 32, 42.0},
		{"gpt-oss-120b", "mxfp4", 128, 63.0},
		{"DeepSeek-V3", "fp8", 1, 37.6},
		{"DeepSeek-V3", "fp8", 8, 163.8},
		{"DeepSeek-V3", "fp8", 32, 434.3},
		{"DeepSeek-V3", "fp8", 128, 659.8},
	}
	for _, tt := range tests {
		m := build(t, tt.model, "h100", tt.dtype, "bf16", 1)
		_, estimate := m.WeightBytes(tt.batch)
		part := 0.001
		if tt.gb < 100 && tt.batch >= 1 && tt.gb == math.Trunc(tt.gb*100)/100 {
			part = 0.005 // stated to three digits
		}
		within(t, tt.model+" "+tt.dtype, estimate/1e9, tt.gb, part)
	}
}

func TestFloorMatchesWorkedExamples(t *testing.T) {
	tests := []struct {
		model, dtype string
		ms           float64
	}{
		{"Llama-2-7B", "bf16", 4.59},
		{"Llama-2-7B", "fp8", 2.65},
		{"Llama-2-7B", "awq", 1.72},
		{"Llama-3.1-8B", "bf16", 4.64},
		{"Llama-3.1-8B", "fp8", 2.56},
		{"Llama-3.1-8B", "awq", 1.56},
		{"Llama-3.1-70B", "bf16", 41.9},
		{"Llama-3.1-70B", "fp8", 21.5},
		{"Llama-3.1-70B", "awq", 11.6},
		{"Llama-3.1-405B", "bf16", 241.7},
		{"Llama-3.1-405B", "fp8", 121.8},
		{"Llama-3.1-405B", "awq", 64.2},
		{"Qwen2.5-7B", "bf16", 4.29},
		{"Qwen2.5-7B", "fp8", 2.34},
		{"Qwen2.5-7B", "awq", 1.41},
		{"Qwen3-32B", "bf16", 19.4},
		{"Qwen3-32B", "fp8", 10.1},
		{"Qwen3-32B", "awq", 5.62},
	}
	for _, tt := range tests {
		m := build(t, tt.model, "h100", tt.dtype, "bf16", 1)
		within(t, tt.model+" "+tt.dtype, 1e3*m.Floor(roofline.Decoding(1, 4096)), tt.ms, 0.005)
	}
	within(t, "gpt-oss-120b", 1e3*build(t, "gpt-oss-120b", "h100", "mxfp4", "bf16", 1).Floor(roofline.Decoding(1, 0)), 1.49, 0.005)
}

func TestFloorOfALargeGroupMatchesWorkedExamples(t *testing.T) {
	for _, tt := range []struct{ batch, ms float64 }{{1, 0.98}, {8, 4.27}, {32, 11.3}, {128, 17.2}} {
		m := build(t, "DeepSeek-V3", "h200", "fp8", "bf16", 8)
		_, bytes := m.WeightBytes(tt.batch)
		within(t, "weights of DeepSeek-V3 on eight H200", 1e3*bytes/(8*roofline.Bandwidth(m.GPU())), tt.ms, 0.005)
	}
}

func TestExpertsTouched(t *testing.T) {
	tests := []struct {
		model string
		want  map[float64]float64
	}{
		{"Mixtral-8x7B", map[float64]float64{1: 2, 2: 3.5, 4: 5.47, 8: 7.20, 16: 7.92, 32: 8, 128: 8}},
		{"Qwen3-30B-A3B", map[float64]float64{1: 8, 2: 15.5, 4: 29.1, 8: 51.6, 16: 82.4, 32: 111.8, 128: 128}},
		{"DeepSeek-V3", map[float64]float64{1: 8, 2: 15.8, 4: 30.5, 8: 57.4, 16: 102, 32: 163.3, 128: 251.6}},
		{"gpt-oss-120b", map[float64]float64{1: 4, 2: 7.9, 4: 15.3, 8: 28.7, 16: 51.0, 32: 81.7, 128: 125.8}},
	}
	for _, tt := range tests {
		m := build(t, tt.model, "h100", "bf16", "bf16", 1)
		for tokens, want := range tt.want {
			floor, got := m.ExpertsTouched(tokens)
			within(t, tt.model, got, want, 0.005)
			if floor > got {
				t.Errorf("%s at %v tokens: floor %v is above the estimate %v", tt.model, tokens, floor, got)
			}
		}
	}
}

func TestRidgeAndCriticalBatch(t *testing.T) {
	tests := []struct {
		gpu, dtype string
		want       float64
	}{
		{"a100", "bf16", 153},
		{"h100", "bf16", 295},
		{"h200", "bf16", 206},
		{"l4", "bf16", 403},
		{"l40s", "bf16", 419},
		{"h100", "fp8", 295},
		{"a100", "awq", 40},
		{"h100", "awq", 77},
		{"h200", "awq", 54},
		{"l4", "awq", 105},
		{"h100", "w8a16", 148},
		{"h200", "w8a16", 103},
		{"a100", "w8a16", 77},
	}
	for _, tt := range tests {
		got := build(t, "Llama-3.1-8B", tt.gpu, tt.dtype, "bf16", 1).CriticalBatch()
		if math.Abs(got-tt.want) > max(0.6, 0.005*tt.want) {
			t.Errorf("critical batch of %s with %s: got %.1f, want %v", tt.gpu, tt.dtype, got, tt.want)
		}
	}
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "bf16", 1)
	within(t, "ridge", m.Ridge(0), 295, 0.005)
	within(t, "ridge at 1605 MHz", m.Ridge(1605e6), 259, 0.005)
}

func TestCriticalContext(t *testing.T) {
	tests := []struct {
		model, gpu string
		want       float64
	}{
		{"Llama-2-7B", "h100", 86},
		{"Llama-2-70B", "h100", 1460},
		{"Llama-3.1-8B", "h100", 393},
		{"Llama-3.1-70B", "h100", 1477},
		{"Llama-3.1-405B", "h100", 5604},
		{"Mistral-7B", "h100", 373},
		{"Qwen2.5-7B", "h100", 856},
		{"Qwen2.5-32B", "h100", 841},
		{"Qwen2.5-72B", "h100", 1519},
		{"Qwen3-8B", "h100", 352},
		{"Qwen3-32B", "h100", 850},
		{"DeepSeek-V3", "h100", 19500},
	}
	for _, tt := range tests {
		got, ok := build(t, tt.model, tt.gpu, "bf16", "bf16", 1).CriticalContext()
		if !ok {
			t.Errorf("%s: no critical context", tt.model)
		}
		within(t, tt.model, got, tt.want, 0.006)
	}
	if got, ok := build(t, "DeepSeek-V3", "h200", "bf16", "bf16", 1).CriticalContext(); ok {
		t.Errorf("DeepSeek-V3 on H200 reads its cache above the ridge, got a critical context of %v", got)
	}
	half, _ := build(t, "Llama-3.1-8B", "h100", "fp8", "bf16", 1).CriticalContext()
	full, _ := build(t, "Llama-3.1-8B", "h100", "bf16", "bf16", 1).CriticalContext()
	within(t, "fp8 arithmetic halves the critical context", half/full, 0.5, 0.02)
}

func TestAttentionIntensity(t *testing.T) {
	for model, want := range map[string]float64{"Llama-2-7B": 1, "Llama-3.1-8B": 4, "Llama-3.1-70B": 8, "DeepSeek-V3": 241.8} {
		m := build(t, model, "h100", "bf16", "bf16", 1)
		for _, s := range m.Segments(nil, roofline.Decoding(1, 1<<20), roofline.Rates{}) {
			if s.Name == roofline.DecodeAttention {
				within(t, model, s.FLOPs/s.Bytes, want, 0.001)
			}
		}
	}
}

func TestCacheIsReplicatedBeyondItsHeads(t *testing.T) {
	tests := []struct {
		model string
		tp    int
		want  float64
	}{
		{"Llama-3.1-8B", 1, 1},
		{"Llama-3.1-8B", 8, 1},
		{"Llama-3.1-8B", 16, 2},
		{"Qwen3-30B-A3B", 8, 2},
		{"DeepSeek-V3", 8, 8},
	}
	for _, tt := range tests {
		if got := build(t, tt.model, "h100", "bf16", "bf16", tt.tp).KVCopies(); got != tt.want {
			t.Errorf("%s on %d: got %v copies, want %v", tt.model, tt.tp, got, tt.want)
		}
	}
}

func TestWindowedLayersReadNoMoreThanTheirWindow(t *testing.T) {
	m := build(t, "gpt-oss-120b", "h100", "mxfp4", "bf16", 1)
	grow := m.KVReadBytes(20000) - m.KVReadBytes(10000)
	within(t, "growth per token", grow/10000, 36864, 0.001)
	within(t, "window part", m.KVReadBytes(10000)-10000*36864, 4.72e6, 0.005)
}

func TestSlopeOverContextIsTheCacheOverBandwidth(t *testing.T) {
	// vLLM's fit for Llama-3.1-8B on H100 is 4.37e-5 ms a token (State of FP8 KV-cache, 2026-04-22): 3.00 TB/s achieved.
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "bf16", 1)
	slope := (m.Expected(roofline.Decoding(1, 100000), 0.895, 1, 0) - m.Expected(roofline.Decoding(1, 1000), 0.895, 1, 0)) / 99000
	within(t, "slope", slope*1e3, 4.37e-5, 0.005)
}

func TestAllReducesOfALargeModel(t *testing.T) {
	// 160 all-reduces at 12.9 us are 2.1 ms a token (public nccl-collectives-bench results, H100, four ranks).
	m := build(t, "Llama-3.1-70B", "h100", "bf16", "bf16", 4)
	var got float64
	for _, s := range m.Segments(nil, roofline.Decoding(1, 1000), roofline.Rates{}) {
		if s.Name == roofline.Communication {
			got = s.FixedS
		}
	}
	within(t, "communication", got*1e3, 2.08, 0.01)
}

func TestMixedStepSplitsByLimit(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "bf16", 1)
	decode := m.Cost(roofline.Decoding(16, 4000), roofline.Rates{})
	if decode.ComputeS != 0 || decode.MemoryS <= 0 {
		t.Errorf("decode at batch 16 is limited by memory alone, got %+v", decode)
	}
	st := roofline.Decoding(16, 4000)
	st.Prompt = 2048
	mixed := m.Cost(st, roofline.Rates{})
	if mixed.ComputeS < 0.6*mixed.Seconds {
		t.Errorf("a chunk of 2048 takes its step at the compute roof, got %+v", mixed)
	}
	if got := mixed.MemoryS + mixed.ComputeS + mixed.FixedS; math.Abs(got-mixed.Seconds) > 1e-12 {
		t.Errorf("parts sum to %v, the step takes %v", got, mixed.Seconds)
	}
	if slow := m.Cost(st, roofline.Rates{SMClockHz: 915e6}); math.Abs(slow.MemoryS-mixed.MemoryS) > 0.5*mixed.MemoryS || slow.ComputeS < 1.9*mixed.ComputeS {
		t.Errorf("half the clock doubles compute time alone, got %+v after %+v", slow, mixed)
	}
}

func TestUnknownInputsAreErrors(t *testing.T) {
	spec, _ := hardware.LookupModel("Llama-3.1-8B")
	gpu, _ := hardware.LookupGPU("h100")
	for name, err := range map[string]error{
		"weights": second(roofline.New(spec, gpu, "fp3", "", 1)),
		"cache":   second(roofline.New(spec, gpu, "bf16", "fp3", 1)),
		"degree":  second(roofline.New(spec, gpu, "bf16", "", -1)),
		"gpu":     second(roofline.New(spec, hardware.GPU{}, "bf16", "", 1)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second(_ *roofline.Model, err error) error { return err }
