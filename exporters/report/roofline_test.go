package report_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// answer asks the byte model of a name, on a GPU.
func answer(t *testing.T, model, gpu string, tp int, change func(*roofline.Question)) *roofline.Answer {
	t.Helper()
	spec, err := hardware.LookupModel(model)
	must(t, err)
	g, err := hardware.LookupGPU(gpu)
	must(t, err)
	bf16, err := hardware.LookupDType("bf16")
	must(t, err)
	q := roofline.Question{
		Setup: roofline.Setup{Spec: spec, GPU: g, Weights: bf16, KV: bf16, TP: tp}, Batch: 4, Context: 2048, HourUSD: 3,
		Eta:   roofline.Eta{Bandwidth: 0.9, Tensor: 0.93, BandwidthOrigin: "calibrated", TensorOrigin: "assumed"},
		Other: &g, OtherEta: roofline.Eta{Bandwidth: 0.8, Tensor: 0.9}, LowClockHz: 1e9, TryDrafts: 3, TryAccepted: 0.7,
	}
	if change != nil {
		change(&q)
	}
	a, err := roofline.Ask(q)
	must(t, err)
	a.Origins = map[string]string{"model": "engine", "gpu": "driver", "batch": "flag", "kv_dtype": "assumed"}
	return a
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRooflineFitsTheTerminal(t *testing.T) {
	for name, a := range map[string]*roofline.Answer{
		"dense":  answer(t, "Llama-3.1-8B", "h100", 1, nil),
		"large":  answer(t, "DeepSeek-V3", "h200", 8, func(q *roofline.Question) { q.Batch, q.Prompt, q.Adapters, q.Rank = 512, 2048, 8, 16 }),
		"drafts": answer(t, "Qwen3-30B-A3B", "rtxpro6000", 2, func(q *roofline.Question) { q.Drafts, q.Acceptance, q.Shared = 3, 0.6, 1000 }),
	} {
		for _, width := range []int{60, 80, 100, 120} {
			var short, whole bytes.Buffer
			must(t, report.Roofline(&short, a, report.Options{Width: width}))
			must(t, report.Roofline(&whole, a, report.Options{Width: width, Verbose: true}))
			if n := strings.Count(short.String(), "\n"); n > 24 {
				t.Errorf("%s at %d columns: %d lines", name, width, n)
			}
			for l := range strings.Lines(short.String() + whole.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(l, "\n")); n > width {
					t.Errorf("%s at %d columns: %d in %q", name, width, n, l)
				}
			}
			for _, want := range []string{"expected", "what if", "calibrated", "assumed", "ridge", "on top, in engines that were measured"} {
				if !strings.Contains(strings.Join(strings.Fields(whole.String()), " "), want) {
					t.Errorf("%s at %d columns: no %q in\n%s", name, width, want, whole.String())
				}
			}
			for _, w := range a.WhatIf {
				if !strings.Contains(whole.String(), "  "+w.What) {
					t.Errorf("%s: no row of %q", name, w.What)
				}
			}
		}
	}
}

func TestRooflineSaysFirstThatThereIsNoRoom(t *testing.T) {
	a := answer(t, "Llama-3.1-70B", "h100", 1, nil)
	var b bytes.Buffer
	must(t, report.Roofline(&b, a, report.Options{Width: 100}))
	words := strings.Join(strings.Fields(b.String()), " ")
	if !strings.HasPrefix(words, "Llama-3.1-70B in bf16 on H100 80GB HBM3 does not fit at batch 4 and context 2,048; if it did: 47.0 ms a token") {
		t.Errorf("the page:\n%s", b.String())
	}
	if !strings.Contains(words, "! does not fit: 141.1 GB of weights") || !strings.Contains(b.String(), "no room") {
		t.Errorf("the page does not say how much room there is:\n%s", b.String())
	}
}

func TestRooflineJSONHoldsAllFigures(t *testing.T) {
	a := answer(t, "DeepSeek-V3", "h200", 8, nil)
	var b bytes.Buffer
	must(t, report.RooflineJSON(&b, a))
	var fields map[string]any
	must(t, json.Unmarshal(b.Bytes(), &fields))
	for _, name := range []string{
		"schema", "model", "gpu", "dtype", "kv_dtype", "batch", "context", "tp", "bytes_per_step", "flops_per_step", "kv_bytes_per_token", "tpot_floor_s",
		"tpot_expected_s", "limit", "ridge_flops_per_byte", "critical_batch", "critical_context", "segments", "peaks", "eta", "what_if", "assumed", "origins",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no %q", name)
		}
	}
	if fields["critical_context"] != nil {
		t.Errorf("a cache that is read above the ridge has a critical context of %v", fields["critical_context"])
	}
}
