package scrape_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func readings(s *timeline.EngineSample) map[string]float64 {
	m := map[string]float64{}
	for c := range timeline.EngineCounter(timeline.NumEngineCounters) {
		if v, ok := s.Get(c); ok {
			m[c.String()] = v
		}
	}
	return m
}

func page(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTranslate(t *testing.T) {
	tests := []struct {
		name, file string
		id         scrape.Identity
		want       map[string]float64
	}{
		{
			"vllm: replicas add up, cache use is weighted by blocks, a renamed histogram counts once", "vllm.prom",
			scrape.Identity{Engine: "vllm", Model: "sim-8b", KVDType: "fp8"},
			map[string]float64{
				"running": 16, "waiting": 2, "kv_usage": 0.4, "kv_blocks": 4000, "kv_block_size": 16, "start_time": 1.79e9,
				"prompt_tokens_total": 1e7, "output_tokens_total": 1e6, "preemptions_total": 3, "steps_total": 60000,
				"prefix_queries_total": 10000, "prefix_hits_total": 500, "itl_seconds_sum": 6900, "itl_seconds_count": 690000,
				"ttft_seconds_sum": 30.2, "ttft_seconds_count": 151, "finished_total": 151,
			},
		},
		{
			"vllm: older names, a value that is no number and an unknown cache size stay absent", "vllm_old.prom",
			scrape.Identity{Engine: "vllm", Model: "sim-8b"},
			map[string]float64{
				"running": 1, "kv_usage": 0.25, "kv_block_size": 16, "output_tokens_total": 42,
				"itl_seconds_sum": 0.82, "itl_seconds_count": 41,
			},
		},
		{
			"sglang: tensor-parallel ranks count once, data-parallel ranks add up", "sglang.prom",
			scrape.Identity{Engine: "sglang", Model: "sim-70b"},
			map[string]float64{
				"running": 16, "waiting": 3, "kv_usage": 0.2, "kv_blocks": 800000, "kv_block_size": 1,
				"prompt_tokens_total": 8.1e6, "output_tokens_total": 7.5e6, "prefix_queries_total": 8.1e6, "prefix_hits_total": 1e5,
				"itl_seconds_sum": 86000, "itl_seconds_count": 7.4e6, "ttft_seconds_sum": 500, "ttft_seconds_count": 11008,
				"finished_total": 11000,
			},
		},
		{
			"llama.cpp: a mean since start is not read as a batch", "llama.prom",
			scrape.Identity{Engine: "llama.cpp"},
			map[string]float64{
				"running": 3, "waiting": 2, "prompt_tokens_total": 512, "output_tokens_total": 4096, "steps_total": 1300,
				"prompt_seconds_total": 1.25, "output_seconds_total": 64.5,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s timeline.EngineSample
			id, err := scrape.Translate(page(t, tt.file), &s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.id, id); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
			approx := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
			if diff := cmp.Diff(tt.want, readings(&s), approx); diff != "" {
				t.Errorf("readings (-want +got):\n%s", diff)
			}
		})
	}
}

// Buckets are left out before a page is read: a page with as many as a busy engine tells says what it says without them.
func TestBucketsSayNothingMore(t *testing.T) {
	for _, name := range []string{"vllm.prom", "vllm_old.prom", "sglang.prom", "llama.prom"} {
		var with, without bytes.Buffer
		for line := range strings.Lines(string(page(t, name))) {
			family, labels, ok := strings.Cut(line, "_sum{")
			if ok {
				labels, _, _ = strings.Cut(labels, "}")
				for _, le := range []string{"0.001", "1", "+Inf"} {
					fmt.Fprintf(&with, "%s_bucket{%s,le=%q} 3\n", family, labels, le)
				}
			}
			with.WriteString(line)
			if !strings.Contains(line, "_bucket{") {
				without.WriteString(line)
			}
		}
		var a, b timeline.EngineSample
		idA, errA := scrape.Translate(with.Bytes(), &a)
		idB, errB := scrape.Translate(without.Bytes(), &b)
		if errA != nil || errB != nil {
			t.Fatal(name, errA, errB)
		}
		if diff := cmp.Diff(readings(&b), readings(&a)); diff != "" || idA != idB {
			t.Errorf("%s: %+v with buckets and %+v without (-without +with):\n%s", name, idA, idB, diff)
		}
	}
}

// What only looks like a bucket is still read, and refused if it cannot be.
func TestOnlyBucketsAreLeftOut(t *testing.T) {
	for text, want := range map[string]string{
		"vllm:num_requests_running{a=\"_bucket{\"} 3\nvllm:x_bucket{le=\"1\"} 5": "3",
		"vllm:x_bucket{le=\"1\"} 5\nvllm:num_requests_running 3\n":               "3",
		"vllm:num_requests_running 3\n_bucket 4\n":                               "3",
		"vllm:num_requests_running 3\nvllm:x_bucket {\n":                         "metrics not readable",
		"vllm:num_requests_running 3\nx_bucket {\n":                              "3", // another program's, and not read
	} {
		var s timeline.EngineSample
		_, err := scrape.Translate([]byte(text), &s)
		got := fmt.Sprint(readings(&s)["running"])
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("Translate(%q): %s, want %s", text, got, want)
		}
	}
}

func TestTranslateRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"metrics of no known engine": "go_goroutines 3\n",
		"metrics not readable":       "<html>hello</html>\n",
	} {
		var s timeline.EngineSample
		_, err := scrape.Translate([]byte(text), &s)
		if err == nil || err.Error() != name {
			t.Errorf("Translate(%q) = %v, want %s", text, err, name)
		}
		if s.Has != 0 {
			t.Errorf("Translate(%q) left readings: %v", text, readings(&s))
		}
	}
}

func FuzzTranslate(f *testing.F) {
	for _, name := range []string{"vllm.prom", "vllm_old.prom", "sglang.prom", "llama.prom"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("vllm:x{engine=\"0\"} +Inf\n")
	f.Add("vllm:kv_cache_usage_perc -Inf\nvllm:generation_tokens_total 1e999\n")
	f.Fuzz(func(t *testing.T, text string) {
		var s timeline.EngineSample
		id, err := scrape.Translate([]byte(text), &s)
		for name, v := range readings(&s) {
			if v != v || v-v != 0 {
				t.Errorf("%s = %v, which is not a number", name, v)
			}
		}
		if err == nil && id.Engine == "" {
			t.Error("readable page of no engine")
		}
		if err != nil && len(err.Error()) > 64 {
			t.Errorf("error %q may hold what the engine sent", strings.ToValidUTF8(err.Error(), "?"))
		}
	})
}

func TestWhatNoEngineCountsStaysAbsent(t *testing.T) {
	var s timeline.EngineSample
	text := "vllm:prompt_tokens_total 1e308\nvllm:generation_tokens_total -5\nvllm:num_requests_running 3\n"
	if _, err := scrape.Translate([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{"running": 3}, readings(&s)); diff != "" {
		t.Errorf("readings mismatch (-want +got):\n%s", diff)
	}
}
