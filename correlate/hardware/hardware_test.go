package hardware_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func near(got, want, tolerance float64) bool {
	return math.Abs(got-want) <= tolerance*math.Abs(want)
}

func TestTheTableIsConsistentWithItself(t *testing.T) {
	keys := map[string]string{}
	for _, g := range hardware.GPUs() {
		if g.SMs == 0 || g.MemoryBytes == 0 || g.TDPWatts == 0 || g.L2Bytes == 0 || g.Rates.BF16 == 0 || g.Capability == "" {
			t.Errorf("%s: a field is missing: %+v", g.Name, g)
		}
		if g.RateClockHz > g.MaxSMClockHz {
			t.Errorf("%s: the sheet's rates assume %g Hz, more than the highest clock %g", g.Name, g.RateClockHz, g.MaxSMClockHz)
		}
		// Sheet and clocks disagree by a few percent where the sheet rounds or counts usable stacks only.
		if d := g.Describe(0, "").DerivedBandwidth(); !near(d, g.SheetBandwidth, 0.05) {
			t.Errorf("%s: clock and bus give %.4g B/s, the sheet says %.4g", g.Name, d, g.SheetBandwidth)
		}
		e := hardware.PracticalEfficiency(g)
		if e.Bandwidth < 0.7 || e.Bandwidth > 0.95 || e.BandwidthOrigin != "table" {
			t.Errorf("%s: efficiency %+v", g.Name, e)
		}
		for _, n := range append([]string{g.Name}, g.Aliases...) {
			got, err := hardware.LookupGPU(strings.ToUpper(n))
			if err != nil || got.Name != g.Name {
				t.Errorf("LookupGPU(%q) = %s, %v; want %s", n, got.Name, err, g.Name)
			}
			if o, ok := keys[n]; ok {
				t.Errorf("%q names both %s and %s", n, o, g.Name)
			}
			keys[n] = g.Name
		}
	}
}

func TestTensorRatesFollowFromSMsAndTheirClock(t *testing.T) {
	// Operations of one SM in one clock in 16 bits, dense, from the architecture white papers.
	for name, ops := range map[string]float64{
		"h100": 4096, "h200": 4096, "h100-pcie": 4096, "h100-nvl": 4096, "a100": 2048, "a30": 2048, "l4": 1024, "l40s": 1024, "v100": 1024, "t4": 1024, "a10": 1024,
	} {
		g, err := hardware.LookupGPU(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(g.SMs) * ops * g.RateClockHz; !near(got, g.Rates.BF16, 0.01) {
			t.Errorf("%s: %g operations a second at the sheet's clock, the sheet says %g", name, got, g.Rates.BF16)
		}
	}
}

func TestLookupGPUNeverGuesses(t *testing.T) {
	_, err := hardware.LookupGPU("h10")
	var unknown *hardware.UnknownError
	if !errors.As(err, &unknown) || len(unknown.Near) == 0 || !slices.Contains(unknown.Near, "h100") {
		t.Errorf("LookupGPU(h10) = %v, want an error that names h100", err)
	}
	if _, err := hardware.LookupGPU(""); err == nil {
		t.Error("an empty name was found")
	}
}

func TestIdentifyGPU(t *testing.T) {
	tests := []struct {
		name string
		in   timeline.GPU
		want string // a name, or "!" and a part of the error
	}{
		{"the name and the numbers fit", timeline.GPU{Name: "NVIDIA H100 80GB HBM3", MemoryBytes: 85520809984, SMs: 132}, "NVIDIA H100 80GB HBM3"},
		{"the name alone is enough if the driver tells no more", timeline.GPU{Name: "NVIDIA L40S"}, "NVIDIA L40S"},
		{"a name that two boards share is settled by size", timeline.GPU{Name: "NVIDIA H100", MemoryBytes: 95830 << 20, SMs: 132}, "NVIDIA H100 NVL"},
		{"a virtual GPU's name is settled by size", timeline.GPU{Name: "GRID A100X-40C A100", MemoryBytes: 24576 << 20, SMs: 56}, "!unknown gpu"},
		{"a smaller device of the same name is refused", timeline.GPU{Name: "NVIDIA H100 80GB HBM3", MemoryBytes: 64 << 30, SMs: 132}, "!MiB of memory"},
		{"other SMs are refused", timeline.GPU{Name: "NVIDIA L4", MemoryBytes: 23034 << 20, SMs: 40}, "!SMs"},
		{"an instance has no entry", timeline.GPU{Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MIG: true, MemoryBytes: 10 << 30, SMs: 16}, "!an instance"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := hardware.IdentifyGPU(tt.in)
			if part, fails := strings.CutPrefix(tt.want, "!"); fails {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %s, %v; want an error with %q", g.Name, err, part)
				}
				return
			}
			if err != nil || g.Name != tt.want {
				t.Errorf("got %s, %v; want %s", g.Name, err, tt.want)
			}
		})
	}
}

func TestModelTable(t *testing.T) {
	b, err := os.ReadFile("data/models.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	if len(hardware.Models()) != len(rows) || len(rows) < 23 {
		t.Fatalf("%d models of %d rows", len(hardware.Models()), len(rows))
	}
	// Published totals, from the models' own pages.
	published := map[string]float64{
		"Llama-2-7B": 6738415616, "Llama-3.1-8B": 8030261248, "Llama-3.1-70B": 70553706496, "Llama-3.1-405B": 405853388800,
		"Mixtral-8x7B": 46702792704, "Qwen2.5-7B": 7615616512, "Qwen3-30B-A3B": 30532122624, "Qwen3-32B": 32762123264,
		"gpt-oss-20b": 20914757184, "gpt-oss-120b": 116829156672, "DeepSeek-V3": 671026419200,
		"Gemma-2-9B": 9241705984, "Gemma-2-27B": 27227128320, "Gemma-3-27B": 27009346304, "Phi-4": 14659507200, "Qwen2.5-3B": 3085938688,
		"Qwen2.5-14B": 14770033664, "Qwen3-1.7B": 1720574976, "Qwen3-4B": 4022468096, "Qwen3-14B": 14768307200, "Mistral-Small-24B": 23572403200,
		"Mistral-Nemo-12B": 12247782400, "Mixtral-8x22B": 140630071296, "GLM-4.5-Air": 106852245504, "Kimi-K2": 1026408232448,
	}
	for name, want := range published {
		m, err := hardware.LookupModel(name)
		if err != nil || !near(float64(m.ParamsTotal), want, 0.001) {
			t.Errorf("%s: %d parameters, %v; want %.0f", name, m.ParamsTotal, err, want)
		}
	}
	for _, m := range hardware.Models() {
		if m.NonExpert <= m.HeadParams() || m.ParamsActive > m.ParamsStreamed || m.ParamsStreamed > m.ParamsTotal || m.KVElems <= 0 {
			t.Errorf("%s: counts do not fit together: %+v", m.Name, m)
		}
		if m.MoE() != (m.ExpertParams > 0) {
			t.Errorf("%s: experts without parameters, or the other way round", m.Name)
		}
	}
}

func TestLookupModel(t *testing.T) {
	for name, want := range map[string]string{
		"meta-llama/Llama-3.1-8B-Instruct":                    "Llama-3.1-8B",
		"meta-llama/Meta-Llama-3.1-70B-Instruct":              "Llama-3.1-70B",
		"meta-llama/Llama-3.3-70B-Instruct":                   "Llama-3.1-70B",
		"llama-3.1-8b":                                        "Llama-3.1-8B",
		"Llama-2-7b-chat-hf":                                  "Llama-2-7B",
		"RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8":             "Llama-3.1-8B",
		"Qwen/Qwen2.5-7B-Instruct-AWQ":                        "Qwen2.5-7B",
		"Qwen/Qwen3-30B-A3B-Instruct-2507-FP8":                "Qwen3-30B-A3B",
		"openai/gpt-oss-120b":                                 "gpt-oss-120b",
		"deepseek-ai/DeepSeek-V3-0324":                        "DeepSeek-V3",
		"/models/mistralai/Mixtral-8x7B-Instruct-v0.1/":       "Mixtral-8x7B",
		"deepseek-ai/DeepSeek-R1":                             "DeepSeek-V3",
		"qwen3_0.6b":                                          "Qwen3-0.6B",
		"llama3.1:8b":                                         "Llama-3.1-8B",
		"llama3.1:8b-instruct-q4_K_M":                         "Llama-3.1-8B",
		"Meta-Llama-3.1-8B-Instruct-Q8_0.gguf":                "Llama-3.1-8B",
		"RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "Llama-3.1-8B",
		"google/gemma-3-27b-it":                               "Gemma-3-27B", "gemma2:9b": "Gemma-2-9B", "microsoft/phi-4": "Phi-4", "Qwen/Qwen2.5-Coder-7B-Instruct": "Qwen2.5-7B",
		"mistralai/Mistral-Small-24B-Instruct-2501": "Mistral-Small-24B", "mistralai/Mistral-Nemo-Instruct-2407": "Mistral-Nemo-12B",
		"meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8": "Llama-4-Maverick-17B-128E", "moonshotai/Kimi-K2-Instruct-0905": "Kimi-K2",
		"Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "Qwen2.5-7B",
		"gpt-oss:20b":      "gpt-oss-20b",
		"deepseek-r1:671b": "DeepSeek-V3",
		"unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": "Llama-3.1-8B",
		"nvidia/Llama-3.3-70B-Instruct-FP4":           "Llama-3.1-70B",
	} {
		if m, err := hardware.LookupModel(name); err != nil || m.Name != want {
			t.Errorf("LookupModel(%q) = %q, %v; want %s", name, m.Name, err, want)
		}
	}
	for _, name := range []string{"", "Llama-3.1-9B", "gpt-4", "Qwen2.5-VL-7B", "default", "Llama-3.1-8B-Instruct-draft"} {
		m, err := hardware.LookupModel(name)
		if _, ok := errors.AsType[*hardware.UnknownError](err); !ok {
			t.Errorf("LookupModel(%q) = %q, %v; want it unknown", name, m.Name, err)
		}
	}
	_, err := hardware.LookupModel("Llama-3.1-9B")
	if err == nil || !strings.Contains(err.Error(), "Llama-3.1-8B") {
		t.Errorf("got %v, want the nearest model named", err)
	}
}

func TestNamesTellHowWeightsArePublished(t *testing.T) {
	for name, want := range map[string]string{
		"meta-llama/Llama-3.1-8B-Instruct": "", "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": "awq",
		"RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": "fp8", "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "fp8_block",
		"Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "awq", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": "w8_g128_sym",
		"RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "int4_sym", "x/Llama-3.1-8B-W4A16": "int4_sym", "x/Llama-3.1-8B-W8A8": "int8",
		"openai/gpt-oss-120b": "mxfp4", "deepseek-ai/DeepSeek-R1": "fp8_block", "nvidia/Llama-3.3-70B-Instruct-FP4": "nvfp4",
		"unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": "nf4", "unsloth/gpt-oss-20b-BF16": "bf16",
		"llama3.1:8b-instruct-q4_K_M": "q4_k_m", "Meta-Llama-3.1-8B-Instruct-Q8_0.gguf": "q8_0", "llama3.1:8b-q3_X_Y": "", "nobody/knows": "", "": "",
	} {
		got, ok := hardware.PublishedDType(name)
		if got != want || ok != (want != "") {
			t.Errorf("PublishedDType(%q) = %q, %v; want %q", name, got, ok, want)
		}
		if _, err := hardware.LookupDType(got); ok && err != nil {
			t.Error(err)
		}
	}
}

func TestDTypes(t *testing.T) {
	for name, want := range map[string]float64{
		"bf16": 16, "FP16": 16, "fp8": 8, "awq": 4.15625, "gptq-int4": 4.15625, "mxfp4": 4.25, "nvfp4": 4.5, "nf4": 4.5, "int4_g32": 5, "marlin": 4.125,
	} {
		if d, err := hardware.LookupDType(name); err != nil || d.Bits != want {
			t.Errorf("LookupDType(%q) = %+v, %v; want %g bits", name, d, err, want)
		}
	}
	for name, want := range map[string]float64{"w4_g64": 4.3125, "W4-G64-sym": 4.25, "w8_channel_sym": 8, "w2_g16": 3.125, "q6_k": 6.5625} {
		if d, err := hardware.LookupDType(name); err != nil || d.Bits != want {
			t.Errorf("LookupDType(%q) = %+v, %v; want %g bits", name, d, err, want)
		}
	}
	for _, name := range []string{"w4_g0", "w5_g64", "w4_g", "w4_g64x", "w4_g-1", "w4_"} {
		if d, err := hardware.LookupDType(name); err == nil {
			t.Errorf("LookupDType(%q) = %+v", name, d)
		}
	}
	for _, d := range hardware.DTypes() {
		if d.Body(true) <= 0 || d.Body(false) != d.Bits || d.HeadBits < d.Bits && d.Bits <= 8 {
			t.Errorf("%+v", d)
		}
	}
	if _, err := hardware.LookupDType("bf15"); err == nil || !strings.Contains(err.Error(), "bf16") {
		t.Errorf("got %v, want the nearest format named", err)
	}
	a100, err := hardware.LookupGPU("a100")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := a100.Rate("fp8"); ok {
		t.Error("an A100 has no fp8 arithmetic")
	}
	if r, ok := a100.Rate("awq"); !ok || r != a100.Rates.BF16 {
		t.Errorf("weights in four bits are multiplied in 16: got %g, %v", r, ok)
	}
}

func FuzzNames(f *testing.F) {
	for _, name := range []string{"meta-llama/Llama-3.1-8B-Instruct-AWQ", "llama3.1:8b-q4_K_M", "w4_g64_sym", "NVIDIA H100 NVL", "a/b/.gguf", "-:.q8_0"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if m, err := hardware.LookupModel(name); err == nil && m.ParamsTotal <= 0 {
			t.Errorf("%q is a model without parameters", name)
		}
		if dtype, ok := hardware.PublishedDType(name); ok {
			if _, err := hardware.LookupDType(dtype); err != nil {
				t.Error(err)
			}
		}
		if d, err := hardware.LookupDType(name); err == nil && !(d.Bits > 0 && d.Bits <= 32) {
			t.Errorf("%q has %v bits", name, d.Bits)
		}
		if g, err := hardware.LookupGPU(name); err == nil && g.Alias() == "" {
			t.Errorf("%q is a GPU without a name", name)
		}
	})
}
