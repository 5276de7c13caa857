package hardware

import (
	"slices"
	"strings"
)

// DType is a number format in which weights or the KV cache are stored.
type DType struct {
	Name        string
	Aliases     []string
	Bits        float64 // per number, with scales and zero points, which are read along with it
	HeadBits    float64 // per number of the output head in checkpoints of this format
	Math        string  // arithmetic of the matrix products: "fp32", "bf16", "fp8", "int8" or "fp4"
	WeightsOnly bool    // the activations stay 16-bit, and weights are widened before the product
	KV          bool    // a format for the KV cache too
	BodyBits    float64 // per number outside experts and head; zero: see Body
	Assumed     bool    // the width is that of usual files, and differs between them
}

// Body returns the bits per number outside experts and head. MXFP4 checkpoints of expert models store the experts alone
// in four bits: attention, router and the rest stay 16-bit (gpt-oss model card).
func (d DType) Body(experts bool) float64 {
	switch {
	case d.BodyBits > 0:
		return d.BodyBits
	case experts && d.Name == "mxfp4":
		return 16
	}
	return d.Bits
}

// dtypes holds the stored widths. Four-bit formats carry scales: int4 with groups of g weights has an fp16 scale a
// group and, if asymmetric, a packed 4-bit zero point (AutoGPTQ and AutoAWQ formats); MXFP4 has one 8-bit scale for 32
// (OCP Microscaling Formats 1.0); NVFP4 one 8-bit scale for 16; bitsandbytes nf4 one fp32 for 64. Four-bit checkpoints
// usually leave the output head at 16 bits, and so do published fp8 checkpoints of dense models. The q formats are those
// of GGUF files (llama.cpp): a 16-bit scale for 32 numbers in q8_0 and q4_0, 210 bytes for 256 in q6_k; the mixtures q4_k_m
// and q5_k_m store about 4.9 and 5.7 bits over a whole model of eight billion parameters (llama.cpp's quantize README).
var dtypes = []DType{
	{Name: "fp32", Aliases: []string{"float32", "float"}, Bits: 32, HeadBits: 32, Math: "fp32"},
	{Name: "bf16", Aliases: []string{"bfloat16", "fp16", "float16", "half", "f16"}, Bits: 16, HeadBits: 16, Math: "bf16", KV: true},
	{Name: "fp8", Aliases: []string{"f8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "w8a8_fp8", "fp8_per_tensor", "fp8_per_channel"}, Bits: 8, HeadBits: 16, Math: "fp8", KV: true},
	{Name: "fp8_block", Aliases: []string{"fp8_128x128"}, Bits: 8 + 32.0/(128*128), HeadBits: 16, Math: "fp8"},
	{Name: "int8", Aliases: []string{"w8a8", "w8a8_int8", "q8"}, Bits: 8, HeadBits: 16, Math: "int8", KV: true},
	{Name: "w8a16", Aliases: []string{"int8_weight_only", "gptq_int8"}, Bits: 8, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "awq", Aliases: []string{"gptq", "int4", "w4a16", "int4_g128", "awq_int4", "gptq_int4"}, Bits: 4 + 16.0/128 + 4.0/128, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "int4_sym", Aliases: []string{"marlin", "int4_g128_sym"}, Bits: 4 + 16.0/128, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "int4_g32", Bits: 4 + 32.0/32, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "mxfp4", Bits: 4 + 8.0/32, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "nvfp4", Aliases: []string{"fp4"}, Bits: 4 + 8.0/16, HeadBits: 16, Math: "fp4", KV: true},
	{Name: "nf4", Aliases: []string{"bnb_nf4", "bitsandbytes_nf4", "bnb_4bit"}, Bits: 4 + 32.0/64, HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "nf4_double", Bits: 4 + 8.0/64 + 32.0/(64*256), HeadBits: 16, Math: "bf16", WeightsOnly: true},
	{Name: "q8_0", Bits: 8 + 16.0/32, HeadBits: 8.5, Math: "bf16", WeightsOnly: true},
	{Name: "q6_k", Bits: 210 * 8.0 / 256, HeadBits: 210 * 8.0 / 256, Math: "bf16", WeightsOnly: true},
	{Name: "q5_k_m", Bits: 5.7, HeadBits: 210 * 8.0 / 256, Math: "bf16", WeightsOnly: true, Assumed: true},
	{Name: "q4_k_m", Bits: 4.8, HeadBits: 210 * 8.0 / 256, Math: "bf16", WeightsOnly: true, Assumed: true},
	{Name: "q4_0", Bits: 4 + 16.0/32, HeadBits: 210 * 8.0 / 256, Math: "bf16", WeightsOnly: true},
}

// DTypes returns all formats of the table, in its order.
func DTypes() []DType { return slices.Clone(dtypes) }

// LookupDType returns the format of that name; case, and the choice of "-" or "_", do not count. Beside those of the table
// it knows weights of 2, 3, 4 or 8 bits in groups: "w4_g64", "w8_g128_sym", "w4_channel_sym".
func LookupDType(name string) (DType, error) {
	key := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), "-", "_")
	var names []string
	for _, d := range dtypes {
		if d.Name == key || slices.Contains(d.Aliases, key) {
			return d, nil
		}
		names = append(append(names, d.Name), d.Aliases...)
	}
	if d, ok := parseGrouped(key); ok {
		return d, nil
	}
	return DType{}, unknown("dtype", name, names)
}

// Efficiency is the part of a peak that long, well-shaped kernels reach, with where the number comes from.
type Efficiency struct {
	Bandwidth       float64
	Tensor          float64
	BandwidthOrigin string // "table"
	TensorOrigin    string // "table" where measured, else "assumed"
}

// PracticalEfficiency returns what kernels reach of g's peaks. Bandwidth: decode kernels reach 0.82 to 0.90 on H100 and
// 0.82 to 0.87 on A100 (vLLM's "State of FP8 KV-cache" fits, 2026-04-22, and the gpt-fast README); on GDDR boards error
// correction takes 10 to 15 % (the Marlin README). Tensor: large products keep the pipes of an A100 active for 0.93 of
// the cycles; other devices are assumed to do the same.
func PracticalEfficiency(g GPU) Efficiency {
	e := Efficiency{Tensor: 0.93, BandwidthOrigin: "table", TensorOrigin: "assumed"}
	switch g.Memory {
	case HBM3, HBM3e:
		e.Bandwidth = 0.90
	case HBM2, HBM2e:
		e.Bandwidth = 0.85
	case GDDR6, GDDR7:
		e.Bandwidth = 0.80
	}
	if strings.Contains(g.Name, "A100") {
		e.TensorOrigin = "table"
	}
	return e
}
