package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
)

func TestRooflinePages(t *testing.T) {
	p := newPlace(t)
	for name, args := range map[string]string{
		"roofline_dense": "--model meta-llama/Llama-3.1-8B-Instruct --gpu h100 --gpu-hour-usd 2.5",
		"roofline_moe":   "--model gpt-oss-120b --gpu h100 --batch 64 --capture-sizes 1,2,4,8,16,32 -v",
		"roofline_spec":  "--model Llama-3.1-70B --gpu h200 --tp 2 --batch 8 --speculative 3,0.7 --draft-model Llama-3.2-1B -v",
		"roofline_full":  "--model deepseek-ai/DeepSeek-V3 --gpu b200 --tp 4 --batch 256 --context 8192 --prefill-tokens 512 --shared-prefix 1000 --adapters 4",
		"roofline_older": "--model Qwen2.5-7B --dtype fp8 --gpu a100 --sm-clock 1200 --versus l4 -v",
	} {
		got := p.run(t, append([]string{"roofline"}, strings.Fields(args)...)...).want(t, exitOK)
		golden(t, name+".golden", got.out)
		lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
		if len(lines) > 24 && !strings.Contains(args, "-v") {
			t.Errorf("%s: %d lines, want 24 at most", name, len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > defaultWidth {
				t.Errorf("%s: a line of %d columns: %s", name, utf8.RuneCountInString(l), l)
			}
		}
		if got.err != "" {
			t.Errorf("%s: stderr %q", name, got.err)
		}
	}
}

// ask runs roofline and reads its JSON.
func ask(t *testing.T, p *place, args ...string) *roofline.Answer {
	t.Helper()
	var a roofline.Answer
	must(t, json.Unmarshal([]byte(p.run(t, append([]string{"roofline", "--json"}, args...)...).want(t, exitOK).out), &a))
	return &a
}

func TestRooflineJSON(t *testing.T) {
	p := newPlace(t)
	got := p.run(t, "roofline", "--json", "--model", "Llama-3.1-8B", "--gpu", "h100", "--gpu-hour-usd", "3.6").want(t, exitOK)
	golden(t, "roofline.json.golden", got.out)
	a := ask(t, p, "--model", "Llama-3.1-8B", "--gpu", "h100", "--gpu-hour-usd", "3.6")
	// Worked figures: 15.010 GB of weights, 0.537 GB of cache, a floor of 4.64 ms on a H100 at its peaks.
	for name, pair := range map[string][2]float64{
		"weights": {a.BytesPerStep.Weights, 15.010e9}, "cache": {a.BytesPerStep.KV, 0.537e9}, "floor": {a.FloorS, 4.64e-3},
		"cache of a token": {a.KVBytesPerToken, 131072}, "ridge": {a.Ridge, 295}, "critical batch": {a.CriticalBatch, 295},
		"critical context": {*a.CriticalContext, 393}, "price": {*a.USDPerMillion, 3.6 / 3600 * a.ExpectedS * 1e6},
	} {
		if math.Abs(pair[0]/pair[1]-1) > 0.005 {
			t.Errorf("%s: got %v, want %v", name, pair[0], pair[1])
		}
	}
	if a.Schema != "tpotscope.roofline/1" || a.Limit != "memory" || a.Origins["gpu"] != "flag" || a.Origins["dtype"] != "assumed" || a.Eta.BandwidthOrigin != "table" {
		t.Errorf("answer %+v", a)
	}
	rows := map[string]bool{}
	for _, w := range a.WhatIf {
		rows[w.What] = true
	}
	for _, want := range []string{"kv fp8", "weights fp8", "weights w4", "batch 2", "context 8192", "tp 2", "on H200", "SM at 1464 MHz", "3 drafts at 0.7"} {
		if !rows[want] {
			t.Errorf("no row of %q among %v", want, rows)
		}
	}
}

func TestRooflineNamesWhatIsWrong(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "config.json")
	must(t, os.Mkdir(filepath.Join(filepath.Dir(file), "none"), 0o700))
	must(t, os.WriteFile(file, []byte(`{"text_config":{"model_type":"llama","num_hidden_layers":-3,"vocab_size":128256}}`), 0o600))
	for _, tt := range []struct{ args, want string }{
		{"--model Llama-3.1-9B --gpu h100", `tpotscope: --model: unknown model "Llama-3.1-9B" (nearest: Llama-3.1-8B`},
		{"--model Llama-3.1-8B --gpu h10", `tpotscope: --gpu: unknown gpu "h10" (nearest: h100`},
		{"--model Llama-3.1-8B --gpu h100 --dtype bf61", `tpotscope: --dtype: unknown dtype "bf61" (nearest: bf16`},
		{"--model Llama-3.1-8B --gpu h100 --kv-dtype awq", "tpotscope: --kv-dtype: awq is no format of a KV cache"},
		{"--model Llama-3.1-8B --gpu h100 --versus h10", `tpotscope: --versus: unknown gpu "h10"`},
		{"--model Llama-3.1-8B --gpu h100 --batch 0 --context -1", "tpotscope: --batch: 0 is less than 1\n--context: -1 is less than 1\nsee: "},
		{"--model Llama-3.1-8B --gpu h100 --batch 99999999", "tpotscope: ask roofline: batch: 99999999 is absurd"},
		{"--model Llama-3.1-8B --gpu h100 --json --sm-clock Inf --gpu-hour-usd NaN", "tpotscope: --sm-clock: +Inf is absurd\n--gpu-hour-usd: NaN is absurd\nsee: "},
		{"--model Llama-3.1-8B --gpu h100 --tp 3", "tpotscope: ask roofline: tensor-parallel degree: 3 does not divide the 32 heads of Llama-3.1-8B"},
		{"--model Llama-3.1-8B --gpu h100 --shared-prefix 9000", "tpotscope: --shared-prefix: 9000 is more than --context, 4096"},
		{"--model Llama-3.1-8B --gpu h100 --speculative many", `tpotscope: --speculative: "many" is not N,ACCEPTANCE, as in 3,0.7`},
		{"--model Llama-3.1-8B --gpu h100 --speculative 3,7", `tpotscope: --speculative: "7" is no part of one`},
		{"--model Llama-3.1-8B --gpu h100 --draft-model Llama-3.2-1B", "tpotscope: --draft-model needs --speculative"},
		{"--model Llama-3.1-8B --gpu h100 --speculative 3 --draft-model Llama-3.2-2B", `tpotscope: --draft-model: unknown model "Llama-3.2-2B"`},
		{"--model Llama-3.1-8B --gpu h100 --capture-sizes 1,0", "tpotscope: --capture-sizes: 0 is less than 1"},
		{"--model " + filepath.Dir(file) + "/none --gpu h100", "tpotscope: --model: there is no config.json in " + filepath.Dir(file) + "/none\n"},
		{"--model no_such.json --gpu h100", "tpotscope: --model: there is no file no_such.json"},
		{"--model Llama-3.1-8B --set nvml.source=off", "tpotscope: roofline needs --gpu: nvml.source is off"},
		{"--engine nowhere", `tpotscope: --engine: "nowhere" is not an http or https URL`},
		{
			"--gpu h100 --model " + file, "tpotscope: --model: " + file + ": read config: text_config.num_hidden_layers: -3 is absurd (want 1 to 1000)\n" +
				"text_config.hidden_size: missing\ntext_config.num_attention_heads: missing\ntext_config.intermediate_size: missing\nsee: ",
		},
	} {
		got := p.run(t, append([]string{"roofline"}, strings.Fields(tt.args)...)...)
		if got.code != exitUsage || !strings.HasPrefix(got.err, tt.want) || got.out != "" {
			t.Errorf("%s: exit code %d\nstdout %q\nstderr %q, want %q ...", tt.args, got.code, got.out, got.err, tt.want)
		}
	}
	if got := p.run(t, "roofline", "--engine", "http://127.0.0.1:9", "--gpu", "h100"); got.code != exitError || !strings.Contains(got.err, "--engine: http://127.0.0.1:9: /metrics: ") {
		t.Errorf("an engine that does not answer: exit code %d, %s", got.code, got.err)
	}
}

func TestRooflineReadsConfigFiles(t *testing.T) {
	p := newPlace(t)
	dir := filepath.Join(t.TempDir(), "My-8B")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,
		"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"torch_dtype":"bfloat16",
		"quantization_config":{"quant_method":"gptq","bits":4,"group_size":64,"sym":true,"lm_head":true}}`), 0o600))
	for _, path := range []string{dir, filepath.Join(dir, "config.json")} {
		a := ask(t, p, "--model", path, "--gpu", "l4")
		if want := 7504924672 * 4.25 / 8; a.Model != "My-8B" || a.DType != "w4_g64_sym" || math.Abs(a.BytesPerStep.Weights/want-1) > 1e-9 {
			t.Errorf("%s: %s in %s, %v bytes of weights, want %v", path, a.Model, a.DType, a.BytesPerStep.Weights, want)
		}
		if a.Origins["model"] != "config.json" || a.Origins["dtype"] != "config.json" {
			t.Errorf("origins %v", a.Origins)
		}
	}
	other := filepath.Join(dir, "tuned.json")
	must(t, os.WriteFile(other, []byte(`{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,
		"intermediate_size":14336,"vocab_size":128256,"num_nextn_predict_layers":1}`), 0o600))
	if a := ask(t, p, "--model", other, "--gpu", "l4"); a.Model != "tuned" || !strings.Contains(strings.Join(a.Notes, "\n"), "layers that draft tokens are not counted") {
		t.Errorf("%s, notes %q: want the file's own name, and what it does not count", a.Model, a.Notes)
	}
	if a := ask(t, p, "--model", dir, "--gpu", "l4", "--dtype", "bf16"); a.DType != "bf16" || a.Origins["dtype"] != "flag" {
		t.Errorf("a flag does not win over the file: %s from %s", a.DType, a.Origins["dtype"])
	}
}

// engineThatTells is a server that tells its model, and the requests that run on it.
func engineThatTells(t *testing.T, models, metrics string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, metrics) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, models) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

const busy = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="chat"} 8.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="chat"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0",num_gpu_blocks="16000"} 1.0
`

func TestRooflineAsksTheEngine(t *testing.T) {
	p := newPlace(t)
	url := engineThatTells(t, `{"data":[{"id":"chat","root":"RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"}]}`, busy)
	a := ask(t, p, "--engine", url, "--gpu", "h100")
	if a.Model != "Llama-3.1-8B" || a.DType != "fp8" || a.KVDType != "fp8" || a.Batch != 8 || a.Context != 8000 {
		t.Errorf("%s in %s, cache %s, batch %v, context %v", a.Model, a.DType, a.KVDType, a.Batch, a.Context)
	}
	for name, want := range map[string]string{"model": "engine", "dtype": "name", "kv_dtype": "engine", "batch": "engine", "context": "engine", "tp": "assumed", "gpu": "flag"} {
		if a.Origins[name] != want {
			t.Errorf("%s comes from %q, want %q", name, a.Origins[name], want)
		}
	}
	if a := ask(t, p, "--engine", url, "--gpu", "h100", "--batch", "2", "--model", "Qwen3-8B"); a.Batch != 2 || a.Model != "Qwen3-8B" || a.Context != 8000 {
		t.Errorf("flags do not win over the engine: %s, batch %v", a.Model, a.Batch)
	}
	p.vars["TPOTSCOPE_TARGETS"] = `[{name: main, engine_url: "` + url + `", model: Qwen3-32B, dtype: awq, tp: 2}]`
	if a := ask(t, p, "--gpu", "h100"); a.Model != "Qwen3-32B" || a.DType != "awq" || a.TP != 2 || a.Origins["model"] != "configuration" || a.Batch != 8 {
		t.Errorf("the configured target: %s in %s, tp %d, from %v", a.Model, a.DType, a.TP, a.Origins)
	}
	strange := engineThatTells(t, `{"data":[{"id":"chat","root":"/nowhere/mine"}]}`, busy)
	if got := p.run(t, "roofline", "--engine", strange, "--gpu", "h100"); got.code != exitUsage || !strings.Contains(got.err, `the engine's model: unknown model "chat"`) {
		t.Errorf("a model that nobody knows: exit code %d, %s", got.code, got.err)
	}
}

// driverThatTells is a helper that probed a driver of these GPUs.
func driverThatTells(t *testing.T, gpus string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "helper")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\ncat <<'END'\n{\"driver\":\"580.1\",\"gpus\":["+gpus+"]}\nEND\n"), 0o700))
	return "nvml.helper=" + path
}

func TestRooflineAsksTheDriver(t *testing.T) {
	p := newPlace(t)
	const h100 = `{"uuid":"GPU-1","name":"NVIDIA H100 80GB HBM3","driver":"580.1","memory_bytes":85520809984,"sms":132}`
	const l4 = `{"uuid":"GPU-2","name":"NVIDIA L4","driver":"580.1"}`
	one := driverThatTells(t, h100)
	a := ask(t, p, "--model", "Qwen3-8B", "--set", one)
	if a.GPU != "NVIDIA H100 80GB HBM3" || a.Origins["gpu"] != "driver" || a.Eta.BandwidthOrigin != "table" || a.Simulated {
		t.Errorf("%s from %v, eta %+v", a.GPU, a.Origins, a.Eta)
	}
	must(t, os.MkdirAll(p.state, 0o700))
	must(t, os.WriteFile(filepath.Join(p.state, "calibration.json"), []byte(`{"schema":"tpotscope.calibration/1","gpus":[
		{"uuid":"GPU-1","name":"NVIDIA H100 80GB HBM3","driver":"580.1","eta_bandwidth":0.85,"windows":100}]}`), 0o600))
	if c := ask(t, p, "--model", "Qwen3-8B", "--set", one); c.Eta.Bandwidth != 0.85 || c.Eta.BandwidthOrigin != "calibrated" || c.ExpectedS <= a.ExpectedS || c.FloorS != a.FloorS {
		t.Errorf("calibrated: eta %+v, expected %v after %v", c.Eta, c.ExpectedS, a.ExpectedS)
	}
	simulated := driverThatTells(t, strings.Replace(h100, `"sms":132`, `"sms":132,"simulated":true`, 1))
	if got := p.run(t, "roofline", "--model", "Qwen3-8B", "--set", simulated).want(t, exitOK); !strings.HasPrefix(got.out, "SIMULATED  Qwen3-8B in bf16") {
		t.Errorf("a simulated driver: %s", got.out)
	}
	for gpus, want := range map[string]string{
		h100 + "," + l4:                      "tpotscope: roofline needs --gpu: this node has both NVIDIA H100 80GB HBM3 and NVIDIA L4\n",
		"":                                   "tpotscope: roofline needs --gpu: the driver lists no GPU\n",
		`{"uuid":"GPU-3","name":"Voodoo 2"}`: `tpotscope: roofline needs --gpu: unknown gpu "Voodoo 2"`,
	} {
		if got := p.run(t, "roofline", "--model", "Qwen3-8B", "--set", driverThatTells(t, gpus)); got.code != exitUsage || !strings.HasPrefix(got.err, want) {
			t.Errorf("%s: exit code %d, %s", gpus, got.code, got.err)
		}
	}
}

//go:generate go test -count=1 -run ^TestReadmeRoofline$ . -update

// The output that the README shows is what its command prints, and as many models are known as it says.
func TestReadmeRoofline(t *testing.T) {
	p := newPlace(t)
	o := p.run(t, "roofline", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--batch", "16", "--gpu-hour-usd", "2.5").want(t, exitOK)
	want := "```text\n" + strings.TrimRight(o.out, "\n") + "\n```\n"
	raw, err := os.ReadFile(readme)
	must(t, err)
	const begin, end = "<!-- roofline:begin -->\n", "<!-- roofline:end -->"
	before, rest, ok := strings.Cut(string(raw), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("the README has no place for the roofline: %s%s", begin, end)
	}
	if count := fmt.Sprintf("(%d configurations are known)", len(hardware.Models())); !strings.Contains(string(raw), count) {
		t.Errorf("the README does not say %q", count)
	}
	if *update {
		must(t, os.WriteFile(readme, []byte(before+begin+want+end+after), 0o644)) // it is public
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the README's roofline is not what `make generate` makes (-want +got):\n%s", diff)
	}
}
