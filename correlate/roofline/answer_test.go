package roofline_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
)

// question asks of a model of the table, in formats of the table, at the table's achievable parts.
func question(t *testing.T, model, gpu, dtype, kv string, tp int) roofline.Question {
	t.Helper()
	m := build(t, model, gpu, dtype, kv, tp)
	weights, cache := m.Formats()
	e := hardware.PracticalEfficiency(m.GPU())
	return roofline.Question{
		Setup: roofline.Setup{Spec: m.Spec(), GPU: m.GPU(), Weights: weights, KV: cache, TP: tp}, Batch: 1, Context: 4096,
		Eta: roofline.Eta{Bandwidth: e.Bandwidth, Tensor: e.Tensor, BandwidthOrigin: e.BandwidthOrigin, TensorOrigin: e.TensorOrigin},
	}
}

func ask(t *testing.T, q roofline.Question) *roofline.Answer {
	t.Helper()
	a, err := roofline.Ask(q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnswersAreConsistentWithThemselves(t *testing.T) {
	other, err := hardware.LookupGPU("b200")
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range hardware.Models() {
		q := question(t, spec.Name, "h100", "fp8", "bf16", 2)
		q.Batch, q.Prompt, q.Adapters, q.Rank, q.HourUSD = 32, 256, 3, 16, 2
		q.Other, q.OtherEta, q.LowClockHz, q.TryDrafts, q.TryAccepted = &other, q.Eta, 1e9, 3, 0.7
		if spec.Heads%2 != 0 {
			t.Fatalf("%s has %d heads", spec.Name, spec.Heads)
		}
		a := ask(t, q)
		var bytes, flops, floor, expected float64
		for _, s := range a.Segments {
			bytes, flops, floor, expected = bytes+s.Bytes, flops+s.FLOPs, floor+s.FloorS, expected+s.ExpectedS
		}
		within(t, spec.Name+" bytes", bytes, a.BytesPerStep.Total, 1e-9)
		within(t, spec.Name+" sum of bytes", a.BytesPerStep.Weights+a.BytesPerStep.KV+a.BytesPerStep.Other, a.BytesPerStep.Total, 1e-9)
		within(t, spec.Name+" operations", flops, a.FLOPsPerStep, 1e-9)
		within(t, spec.Name+" floor", floor, a.FloorS, 1e-9)
		within(t, spec.Name+" expected", expected, a.ExpectedS, 1e-9)
		within(t, spec.Name+" rate", a.TokensPerSecond, 32/a.ExpectedS, 1e-9)
		within(t, spec.Name+" price", *a.USDPerMillion, 4.0/3600*1e6/a.TokensPerSecond, 1e-9)
		if a.BytesPerStep.Low > a.BytesPerStep.Total || a.BytesPerStep.High < a.BytesPerStep.Total || len(a.WhatIf) < 9 {
			t.Errorf("%s: %+v, %d changes", spec.Name, a.BytesPerStep, len(a.WhatIf))
		}
		for _, w := range a.WhatIf {
			within(t, spec.Name+" "+w.What, w.Change, w.ExpectedS/a.ExpectedS-1, 1e-9)
			if !(w.Bytes > 0 && w.FloorS > 0 && w.ExpectedS >= w.FloorS && w.TokensPerSecond > 0) {
				t.Errorf("%s %s: %+v", spec.Name, w.What, w)
			}
		}
	}
}

func TestWhatIfChangesOneThing(t *testing.T) {
	h200, err := hardware.LookupGPU("h200")
	if err != nil {
		t.Fatal(err)
	}
	q := question(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	q.Batch, q.Context, q.HourUSD = 8, 8192, 2
	q.Other, q.OtherEta, q.LowClockHz, q.TryDrafts, q.TryAccepted = &h200, q.Eta, 1464e6, 3, 0.7
	a := ask(t, q)
	row := map[string]roofline.WhatIf{}
	for _, w := range a.WhatIf {
		row[w.What] = w
	}
	weights, cache := 2*7504924672.0, 8*8192*131072.0
	for what, bytes := range map[string]float64{
		"kv fp8": weights + cache/2, "weights fp8": 8.030e9 + cache, "weights w4": 4.677e9 + cache,
		"batch 16": weights + 2*cache, "batch 4": weights + cache/2, "context 16384": weights + 2*cache,
		"tp 2": weights + cache, "on H200": weights + cache, "SM at 1464 MHz": weights + cache, "3 drafts at 0.7": weights + cache,
	} {
		w, ok := row[what]
		if !ok {
			t.Errorf("no row of %q", what)
			continue
		}
		within(t, what, w.Bytes, bytes, 0.001)
	}
	if got := row["on H200"]; got.USDPerMillion != nil {
		t.Error("another GPU has a price that nobody told")
	}
	within(t, "H200 over H100", row["on H200"].ExpectedS/a.ExpectedS, 3350.0/4800, 0.001)
	within(t, "speculation", row["3 drafts at 0.7"].ExpectedS/a.ExpectedS, 1/2.533, 0.01)
	if w := row["SM at 1464 MHz"]; math.Abs(w.Change) > 1e-9 {
		t.Errorf("a lower clock changes a step that memory limits by %v", w.Change)
	}
	q.Setup.Weights, _ = hardware.LookupDType("awq")
	q.Setup.KV, _ = hardware.LookupDType("fp8")
	q.Drafts, q.Acceptance = 3, 0.5
	var names []string
	for _, w := range ask(t, q).WhatIf {
		names = append(names, w.What)
	}
	if got := strings.Join(names, ", "); !strings.HasPrefix(got, "kv bf16, weights fp8, weights bf16, ") || !strings.Contains(got, "no speculation") {
		t.Errorf("of narrow formats and speculation: %s", got)
	}
}

func TestAnswersSayWhatIsAssumedAndWhatIsLeftOut(t *testing.T) {
	for _, tt := range []struct {
		name, model, gpu, dtype string
		tp                      int
		change                  func(*roofline.Question)
		assumed, note, warning  string
	}{
		{name: "sheets that differ", model: "Llama-3.1-8B", gpu: "b200", dtype: "bf16", assumed: "bandwidth of B200: sheets differ"},
		{name: "rates that differ", model: "Llama-3.1-8B", gpu: "rtxpro6000", dtype: "bf16", assumed: "bf16 rate of RTX PRO 6000"},
		{name: "a tensor rate nobody measured", model: "Llama-3.1-8B", gpu: "h100", dtype: "bf16", assumed: "achievable tensor rate, 0.93"},
		{name: "experts", model: "Mixtral-8x7B", gpu: "h200", dtype: "fp8", assumed: "tokens are routed independently"},
		{name: "collectives", model: "Llama-3.1-70B", gpu: "h100", dtype: "bf16", tp: 4, assumed: "collectives: 12.9 us each"},
		{name: "mixed files", model: "Llama-3.1-8B", gpu: "l4", dtype: "q4_k_m", assumed: "width of q4_k_m"},
		{name: "launches", model: "Llama-3.1-8B", gpu: "h100", dtype: "bf16", assumed: "launches and host, in no figure: 40 to 70 us a layer"},
		{name: "a draft model nobody named", model: "Llama-3.1-70B", gpu: "h200", dtype: "fp8", change: func(q *roofline.Question) { q.Drafts, q.Acceptance = 3, 0.6 }, assumed: "probability 0.6", note: "the draft model is not known"},
		{name: "a batch above all graphs", model: "Llama-3.1-8B", gpu: "h100", dtype: "bf16", change: func(q *roofline.Question) { q.Batch, q.Captures = 64, []int{8, 16} }, note: "runs without a graph"},
		{name: "arithmetic that a device lacks", model: "Llama-3.1-8B", gpu: "a100", dtype: "fp8", note: "A100-SXM4-80GB has no fp8 arithmetic"},
		{name: "a cache that is copied", model: "Qwen3-30B-A3B", gpu: "h100", dtype: "fp8", tp: 8, note: "each GPU reads 1/4 of the cache, not 1/8: 4 heads of keys and values"},
		{name: "latent attention", model: "DeepSeek-V3", gpu: "h200", dtype: "fp8", tp: 8, note: "each GPU reads 1/1 of the cache, not 1/8: latent attention"},
		{name: "no room", model: "Llama-3.1-70B", gpu: "h100", dtype: "bf16", warning: "does not fit: 141.1 GB of weights and 1.3 GB of cache, and 77.0 GB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := question(t, tt.model, tt.gpu, tt.dtype, "", max(1, tt.tp))
			if tt.change != nil {
				tt.change(&q)
			}
			a := ask(t, q)
			for what, pair := range map[string][2]string{
				"assumed": {strings.Join(a.Assumed, "\n"), tt.assumed}, "notes": {strings.Join(a.Notes, "\n"), tt.note}, "warnings": {strings.Join(a.Warning, "\n"), tt.warning},
			} {
				if !strings.Contains(pair[0], pair[1]) || pair[1] == "" && what != "assumed" && pair[0] != "" {
					t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
				}
			}
		})
	}
}

func TestQuestionsThatCannotRunAreRefused(t *testing.T) {
	for want, change := range map[string]func(*roofline.Question){
		"batch: 0 is absurd":                  func(q *roofline.Question) { q.Batch = 0 },
		"context: 0 is absurd":                func(q *roofline.Question) { q.Context = 0 },
		"prefill tokens: -1 is absurd":        func(q *roofline.Question) { q.Prompt = -1 },
		"shared prefix: 5000 is not within":   func(q *roofline.Question) { q.Shared = 5000 },
		"drafts: 65 is absurd":                func(q *roofline.Question) { q.Drafts = 65 },
		"acceptance: 1.5 is no part":          func(q *roofline.Question) { q.Acceptance = 1.5 },
		"adapters: -1 is absurd":              func(q *roofline.Question) { q.Adapters = -1 },
		"adapter rank: -1 is absurd":          func(q *roofline.Question) { q.Rank = -1 },
		"achievable parts 0":                  func(q *roofline.Question) { q.Eta.Bandwidth = 0 },
		"degree: 3 does not divide the 32":    func(q *roofline.Question) { q.Setup.TP = 3 },
		"no bandwidth or no rate":             func(q *roofline.Question) { q.Setup.GPU = hardware.GPU{} },
		"draft model: build roofline: weight": func(q *roofline.Question) { q.Drafts, q.Draft = 3, &roofline.Setup{} },
	} {
		q := question(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
		change(&q)
		if a, err := roofline.Ask(q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v; want an error with %q", a, err, want)
		}
	}
	q := question(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	q.Batch = math.NaN()
	if _, err := roofline.Ask(q); err == nil {
		t.Error("a batch that is no number is accepted")
	}
}

func TestALowerClockMovesTheRoofsAlone(t *testing.T) {
	q := question(t, "Llama-3.1-8B", "h100", "bf16", "", 1)
	full := ask(t, q)
	q.SMClockHz = 1605e6
	low := ask(t, q)
	within(t, "ridge at 1605 MHz", low.Ridge, 259, 0.005)
	within(t, "critical batch", low.CriticalBatch/full.CriticalBatch, 1605.0/1830, 1e-9)
	if *low.CriticalContext <= *full.CriticalContext {
		t.Errorf("critical context %v after %v: a lower ridge is reached at longer contexts", *low.CriticalContext, *full.CriticalContext)
	}
	if low.FloorS != full.FloorS || low.ExpectedS != full.ExpectedS {
		t.Error("a lower clock changes a step that memory limits")
	}
	big := q
	big.Batch = 1024
	if a := ask(t, big); a.Limit != "memory" && a.Limit != "mixed" && a.Limit != "compute" {
		t.Errorf("limit %q", a.Limit)
	}
	chunk := q
	chunk.Prompt = 4096
	if a := ask(t, chunk); a.Limit != "compute" {
		t.Errorf("a step with 4096 prompt tokens is limited by %q", a.Limit)
	}
}

func TestAttentionAndHeadAreCalculatedInSixteenBits(t *testing.T) {
	m := build(t, "Llama-3.1-8B", "h100", "fp8", "fp8", 1)
	st := roofline.Decoding(512, 100)
	st.Prompt, st.PromptContext = 2048, 4096
	for _, s := range m.Segments(nil, st, roofline.Rates{}) {
		want := 989.4e12
		if s.Name == roofline.Weights {
			want = 1979e12
		}
		within(t, string(s.Name), s.FLOPs/s.ComputeS, want, 1e-9)
	}
}

// The critical batch is where the products with the weights pass from one roof to the other, also where a file stores its
// experts in fewer bits than the rest.
func TestWeightsPassTheRidgeAtTheCriticalBatch(t *testing.T) {
	for _, tt := range []struct{ model, dtype string }{{"gpt-oss-20b", "mxfp4"}, {"gpt-oss-120b", "mxfp4"}, {"DeepSeek-V3", "fp8_block"}, {"Qwen3-30B-A3B", "bf16"}, {"Llama-3.1-8B", "awq"}} {
		q := question(t, tt.model, "h100", tt.dtype, "bf16", 1)
		q.Eta = roofline.Eta{Bandwidth: 1, Tensor: 1, BandwidthOrigin: "calibrated", TensorOrigin: "calibrated"}
		limit := func(batch float64) string {
			q.Batch = batch
			return ask(t, q).Segments[0].Limit
		}
		a := ask(t, q)
		if low, high := limit(0.99*a.CriticalBatch), limit(1.01*a.CriticalBatch); low != "memory" || high != "compute" {
			t.Errorf("%s: %s just below %.0f tokens and %s just above", tt.model, low, a.CriticalBatch, high)
		}
	}
}
