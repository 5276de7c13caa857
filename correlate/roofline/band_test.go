package roofline_test

import (
	"math"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
)

func TestBandsHoldTheirEstimate(t *testing.T) {
	for _, spec := range hardware.Models() {
		m := build(t, spec.Name, "h100", "bf16", "", 2)
		for _, st := range []roofline.Step{
			roofline.Decoding(1, 100), roofline.Decoding(300, 4000), roofline.Speculating(16, 3000, 3),
			{Decode: 8, Context: 8000, Prompt: 2048, Shared: 500, Padded: 16, Adapters: 2, AdapterRank: 16},
		} {
			known := m.Bytes(st, roofline.Unknown{})
			wide := m.Bytes(st, roofline.Unknown{Prefix: true, Draft: true, Adapters: true, Padding: true})
			if !(known.Low > 0 && known.Low <= known.Estimate && known.Estimate <= known.High) {
				t.Errorf("%s %+v: band %+v", spec.Name, st, known)
			}
			if wide.Low > known.Low || wide.High < known.High || wide.Estimate != known.Estimate {
				t.Errorf("%s %+v: what is not known narrows %+v to %+v", spec.Name, st, known, wide)
			}
			if floor := m.Floor(st); floor <= 0 || floor > m.Expected(st, 0.9, 0.93, 0) {
				t.Errorf("%s %+v: floor %v above the expected time", spec.Name, st, floor)
			}
		}
	}
}

func TestADenseStepOfKnownInputsHasNoBand(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	b := m.Bytes(roofline.Decoding(16, 4096), roofline.Unknown{})
	if b.Low != b.Estimate || b.High != b.Estimate || len(b.Reasons) != 0 {
		t.Errorf("band %+v", b)
	}
	if !b.Contains(b.Estimate) || b.Contains(1.01*b.Estimate) {
		t.Errorf("%+v holds what it should not, or not what it should", b)
	}
	if twice := b.Scale(2); twice.Estimate != 2*b.Estimate {
		t.Errorf("twice %+v is %+v", b, twice)
	}
}

func TestSharedPrefixesAreReadOnceWhereTheyStayInL2(t *testing.T) {
	// 64 requests that share 2,000 tokens of 2,500.
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	each, shared := roofline.Decoding(64, 2500), roofline.Decoding(64, 2500)
	shared.Shared = 2000
	within(t, "bytes with a shared prefix over those without", m.Bytes(shared, roofline.Unknown{}).Estimate/m.Bytes(each, roofline.Unknown{}).Estimate, 0.54, 0.01)
	b := m.Bytes(shared, roofline.Unknown{})
	if within := b.Contains(m.Bytes(each, roofline.Unknown{}).Estimate); !within {
		t.Errorf("the band %+v leaves out that each sequence reads all by itself", b)
	}
	unknown := m.Bytes(each, roofline.Unknown{Prefix: true})
	if unknown.Low > b.Estimate*1.001 || unknown.High != unknown.Estimate {
		t.Errorf("a prefix of unknown length: band %+v leaves out %v", unknown, b.Estimate)
	}
	long := roofline.Decoding(64, 40000)
	long.Shared = 32000
	far := m.Bytes(long, roofline.Unknown{})
	if far.Estimate != m.Bytes(roofline.Decoding(64, 40000), roofline.Unknown{}).Estimate || far.Low >= far.Estimate {
		t.Errorf("a prefix larger than L2 is read by each, and may not be: %+v", far)
	}
}

func TestExpertsWidenTheBandBelowAlone(t *testing.T) {
	// The measured DRAM traffic of Qwen3-30B-A3B on H200 at 256 equal prompts is about half of that of independent
	// routing (public H200 sweep of a MoE model): it must lie in the band.
	m := build(t, "Qwen3-30B-A3B", "h200", "fp8", "", 1)
	b := m.Bytes(roofline.Decoding(256, 300), roofline.Unknown{})
	if !b.Contains(b.Estimate*0.5) || b.High != b.Estimate {
		t.Errorf("band %+v", b)
	}
	padded := m.Bytes(roofline.Decoding(9, 300), roofline.Unknown{Padding: true})
	if padded.High <= padded.Estimate || !strings.Contains(padded.Reasons[len(padded.Reasons)-1].What, "padding") {
		t.Errorf("nine sequences in a graph of sixteen: %+v", padded)
	}
}

func TestActivationsCountWhereL2DoesNotAbsorbThem(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	few, many := m.Bytes(roofline.Decoding(256, 100), roofline.Unknown{}), m.Bytes(roofline.Decoding(512, 100), roofline.Unknown{})
	if few.High != few.Estimate || many.High-many.Estimate != m.ActivationBytes(512) {
		t.Errorf("256 tokens %+v, 512 tokens %+v", few, many)
	}
}

func TestTokensPerStepMatchesWorkedExamples(t *testing.T) {
	for _, tt := range []struct{ drafts, acceptance, want float64 }{
		{3, 0.6, 2.18},
		{3, 0.7, 2.53},
		{3, 0.8, 2.95},
		{3, 0.9, 3.44},
		{5, 0.6, 2.38},
		{5, 0.7, 2.94},
		{5, 0.8, 3.69},
		{5, 0.9, 4.69},
		{4, 1, 5},
		{4, 0, 1},
	} {
		within(t, "tokens a step", roofline.TokensPerStep(tt.acceptance, tt.drafts), tt.want, 0.003)
	}
}

func TestSpeculationReadsTheCacheOnceForAllItsTokens(t *testing.T) {
	m := build(t, "Llama-3.1-70B", "h100", "bf16", "", 4)
	plain, spec := m.Cost(roofline.Decoding(8, 4000), roofline.Rates{}), m.Cost(roofline.Speculating(8, 4000, 3), roofline.Rates{})
	within(t, "cache", spec.KVBytes, plain.KVBytes, 0.001)
	within(t, "weights", spec.WeightBytes, plain.WeightBytes, 1e-9)
	within(t, "operations", spec.FLOPs, 4*plain.FLOPs, 1e-6)
	draft := build(t, "Llama-3.2-1B", "h100", "bf16", "", 4)
	with := m.WithDraft(draft)
	c := with.Cost(roofline.Speculating(8, 4000, 3), roofline.Rates{})
	within(t, "what the draft model reads", c.OtherBytes, 3*draft.Cost(roofline.Decoding(8, 4000), roofline.Rates{}).Bytes(), 1e-9)
	if b := with.Bytes(roofline.Speculating(8, 4000, 3), roofline.Unknown{Draft: true}); len(b.Reasons) != 0 {
		t.Errorf("the draft model is known, and the band is %+v", b)
	}
	if b := m.Bytes(roofline.Speculating(8, 4000, 3), roofline.Unknown{Draft: true}); b.High < c.Bytes() {
		t.Errorf("the draft model is not known, and what it reads is not in %+v", b)
	}
	if c := with.Cost(roofline.Decoding(8, 4000), roofline.Rates{}); c.OtherBytes != 0 {
		t.Errorf("nothing is drafted, and the draft model reads %v bytes", c.OtherBytes)
	}
}

func TestAdaptersAreReadBesideTheWeights(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	// Rank 16 on all seven projections: 41,943,040 parameters (the PEFT library's count for this model).
	within(t, "parameters", m.AdapterParams(16), 41943040, 1e-9)
	st := roofline.Decoding(16, 1000)
	st.Adapters, st.AdapterRank = 4, 16
	c := m.Cost(st, roofline.Rates{})
	within(t, "bytes", c.OtherBytes, 4*2*41943040, 1e-9)
	unknown := m.Bytes(roofline.Decoding(16, 1000), roofline.Unknown{Adapters: true})
	if unknown.High < c.Bytes() {
		t.Errorf("four adapters are not in the band of unknown ones %+v", unknown)
	}
	mla := build(t, "DeepSeek-V3", "h200", "fp8", "", 8)
	// One rank's worth of both ends of the five projections of each of 61 layers.
	within(t, "latent attention", mla.AdapterParams(1), 61*((7168+1536)+(1536+128*192)+(7168+576)+(512+128*256)+(128*128+7168)), 1e-9)
}

func TestPrefillChunksMatchWorkedExamples(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	for tokens, ms := range map[float64]float64{256: 6.5, 512: 13.0, 2048: 51.8, 8192: 207} {
		// The example multiplies all prompt tokens with the head too, which a step does with the last one alone.
		segments := m.Segments(nil, roofline.Step{Prompt: tokens}, roofline.Rates{Tensor: 0.6})
		body := 1 - float64(m.Spec().HeadParams())/float64(m.Spec().ParamsActive)
		within(t, "prompt tokens", 1e3*segments[0].ComputeS, ms*body, 0.005)
	}
}

func TestPaddedTokensCostOperationsAndNoWeights(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	st := roofline.Decoding(9, 1000)
	plain := m.Cost(st, roofline.Rates{})
	st.Padded = 16
	padded := m.Cost(st, roofline.Rates{})
	if padded.Bytes() != plain.Bytes() || padded.FLOPs <= plain.FLOPs {
		t.Errorf("padded %+v, without %+v", padded, plain)
	}
}

func TestFootprintIsWhatFilesHold(t *testing.T) {
	for name, gb := range map[string]float64{"Llama-3.1-8B": 16.06, "Llama-3.2-1B": 2.47, "Qwen3-30B-A3B": 61.06} {
		within(t, name, build(t, name, "h100", "bf16", "", 1).Footprint()/1e9, gb, 0.002)
	}
	m := build(t, "Llama-3.1-8B", "h100", "bf16", "fp8", 1)
	within(t, "cache of a sequence", m.CacheBytes(1000), 65536*1000, 1e-9)
}

func TestWhatGPUsDivideMatchesWorkedExamples(t *testing.T) {
	// T(n) = divided/n + fixed. gpt-fast README, A100-80, bf16, batch 1: 104.9, 168.8, 254.0 and 328.4 tokens a second on
	// one to eight GPUs.
	fixed, divided := stat.LinearRegression([]float64{1, 1. / 8}, []float64{9.53, 3.046}, nil, false)
	within(t, "divided", divided, 7.41, 0.005)
	within(t, "fixed", fixed, 2.12, 0.005)
	within(t, "two GPUs, measured", divided/2+fixed, 5.92, 0.02)
	within(t, "four GPUs, measured", divided/4+fixed, 3.94, 0.02)
	// What is divided is the weights at 82 to 87 % of an A100's bandwidth.
	weights, _ := build(t, "Llama-2-7B", "a100", "bf16", "", 1).WeightBytes(1)
	if part := weights / (7.41e-3 * 2.039e12); part < 0.82 || part > 0.88 {
		t.Errorf("7B reaches %.2f of the bandwidth", part)
	}
}

func TestSlopeOverContextTellsTheCache(t *testing.T) {
	// vLLM, "State of FP8 KV-cache", 2026-04-22: Llama-3.1-8B on H100, 6.44 ms + 4.37e-5 ms a token.
	slope := func(m *roofline.Model, bandwidth float64) float64 {
		const from, to = 4096, 125000
		return 1e3 * (m.Expected(roofline.Decoding(1, to), bandwidth, 1, 0) - m.Expected(roofline.Decoding(1, from), bandwidth, 1, 0)) / (to - from)
	}
	within(t, "slope", slope(build(t, "Llama-3.1-8B", "h100", "bf16", "", 1), 0.895), 4.37e-5, 0.005)
	within(t, "slope of an fp8 cache", slope(build(t, "Llama-3.1-8B", "h100", "bf16", "fp8", 1), 0.825), 2.37e-5, 0.005)
	within(t, "slope of the layers without a window", slope(build(t, "gpt-oss-20b", "h100", "mxfp4", "bf16", 1), 2.75/3.35), 8.94e-6, 0.005)
}

func TestWeightsOfPublishedRuns(t *testing.T) {
	// Public vLLM runs of Llama-2-13B (arXiv 2503.08311): T = 19.37 + 1.011 ms a GB of cache, so the weights are read at
	// 1.327 TB/s.
	m := build(t, "Llama-2-13B", "h100", "bf16", "", 1)
	weights, _ := m.WeightBytes(1)
	within(t, "weights, TB/s", weights/19.37e-3/1e12, 1.327, 0.001)
}

func TestQuantizedBytesAndTimes(t *testing.T) {
	// gpt-fast README, Llama-2-7B on A100: 9.53, 6.43 and 5.08 ms in bf16, int8 and int4 with groups of 32.
	plain, _ := build(t, "Llama-2-7B", "a100", "bf16", "", 1).WeightBytes(1)
	for _, tt := range []struct {
		dtype                      string
		ms, bytes, time, shortfall float64
	}{{"int8", 6.43, 0.51, 0.674, 0.16}, {"int4_g32", 5.08, 0.33, 0.533, 0.20}} {
		b, _ := build(t, "Llama-2-7B", "a100", tt.dtype, "", 1).WeightBytes(1)
		bytes, time := b/plain, tt.ms/9.53
		within(t, tt.dtype+" bytes", bytes, tt.bytes, 0.015)
		within(t, tt.dtype+" time", time, tt.time, 0.002)
		if got := time - bytes; math.Abs(got-tt.shortfall) > 0.01 {
			t.Errorf("%s: %.3f of the saving is not realised, want %.2f", tt.dtype, got, tt.shortfall)
		}
	}
}

func TestRidgeOfAB200AtEightTerabytes(t *testing.T) {
	// The DGX B200 sheet's 8 TB/s; the table holds what the HGX sheet and the driver's clocks agree on, 7.7.
	g, err := hardware.LookupGPU("b200")
	if err != nil {
		t.Fatal(err)
	}
	g.SheetBandwidth = 8e12
	spec, err := hardware.LookupModel("Llama-3.1-8B")
	if err != nil {
		t.Fatal(err)
	}
	for dtype, want := range map[string]float64{"bf16": 281, "awq": 73, "w8a16": 141} {
		m, err := roofline.New(spec, g, dtype, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.CriticalBatch(); math.Abs(got-want) > 0.6 {
			t.Errorf("critical batch with %s: %.1f, want %v", dtype, got, want)
		}
	}
}

func TestEveryDeviceAndFormatBuilds(t *testing.T) {
	spec, err := hardware.LookupModel("Qwen3-8B")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range hardware.GPUs() {
		for _, dtype := range []string{"bf16", "fp8", "awq", "nvfp4", "mxfp4", "int8", "fp32"} {
			m, err := roofline.New(spec, g, dtype, "fp8", 1)
			if err != nil {
				t.Errorf("%s with %s: %v", g.Name, dtype, err)
				continue
			}
			if m.Ridge(0) <= 0 || m.CriticalBatch() <= 0 {
				t.Errorf("%s with %s: ridge %v", g.Name, dtype, m.Ridge(0))
			}
		}
	}
	if _, err := roofline.Build(roofline.Setup{Spec: spec, GPU: hardware.GPUs()[0]}); err == nil {
		t.Error("formats without a width are accepted")
	}
}

func TestTheCostOfAStepAllocatesNothing(t *testing.T) {
	m := build(t, "Llama-3.1-70B", "h100", "bf16", "", 4)
	with := m.WithDraft(build(t, "Llama-3.2-1B", "h100", "bf16", "", 4))
	st := roofline.Speculating(8, 4000, 3)
	st.Prompt, st.Adapters, st.AdapterRank = 256, 2, 16
	if n := testing.AllocsPerRun(100, func() { with.Cost(st, roofline.Rates{}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheModelPredictsMeasuredTraffic(t *testing.T) {
	// A public H200 sweep of Qwen3-30B-A3B in fp8: one sequence of about 300 tokens at 5.15 ms a token reads 13.6 % of
	// the peak by DCGM, and this model says 13.7 %.
	m := build(t, "Qwen3-30B-A3B", "h200", "fp8", "", 1)
	within(t, "part of the peak", m.Bytes(roofline.Decoding(1, 300), roofline.Unknown{}).Estimate/5.15e-3/4.8e12, 0.137, 0.005)
	// vLLM, "State of FP8 KV-cache", 2026-04-22: 6.44 ms on H100 and 3.93 ms on B200 without context are 70 % and 48 %
	// of the peaks (that of the B200 at its sheet's 8 TB/s).
	weights, _ := build(t, "Llama-3.1-8B", "h100", "bf16", "", 1).WeightBytes(1)
	within(t, "H100", weights/6.44e-3/3.35e12, 0.70, 0.01)
	within(t, "B200", weights/3.93e-3/8e12, 0.48, 0.01)
}
