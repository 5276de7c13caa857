package scrape

import (
	"strconv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// readVLLM reads vLLM's metrics. Names as vLLM documents them (docs.vllm.ai, "Production Metrics" and "Metrics" of the
// design documents); where a release renamed one, the newer name comes first. Series carry model_name and, since
// data-parallel engines export themselves, engine.
//
// What the counts mean: prompt_tokens counts a request's whole prompt when its prefill ends, the part that came from
// the prefix cache included; prefix_cache_queries and _hits are in tokens and tell that part. inter_token_latency gets
// one observation for each step in which a request got tokens, so with speculation its count is of steps, not of
// tokens. iteration_tokens_total is a histogram with one observation a step: its count is the steps of all replicas.
func readVLLM(f families, s *timeline.EngineSample) Identity {
	putSum(s, timeline.Running, f, "vllm:num_requests_running")
	putSum(s, timeline.Waiting, f, "vllm:num_requests_waiting")
	putSum(s, timeline.PromptTotal, f, "vllm:prompt_tokens_total")
	putSum(s, timeline.OutputTotal, f, "vllm:generation_tokens_total")
	putSum(s, timeline.PreemptTotal, f, "vllm:num_preemptions_total")
	putSum(s, timeline.PrefixQueries, f, "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
	putSum(s, timeline.PrefixHits, f, "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
	putSum(s, timeline.FinishedTotal, f, "vllm:request_success_total")
	putPair(s, timeline.ITLSum, timeline.ITLCount, f, "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
	putPair(s, timeline.TTFTSum, timeline.TTFTCount, f, "vllm:time_to_first_token_seconds")
	if _, n, ok := f.distribution("vllm:iteration_tokens_total"); ok {
		s.Put(timeline.StepTotal, n)
	}
	// prometheus_client exports when each counter was made, which is when the engine started. process_start_time_seconds
	// is missing where vLLM runs several API servers, and wins where it is there.
	if t, ok := f.least("vllm:generation_tokens_created"); ok {
		s.Put(timeline.StartTime, t)
	}
	readVLLMCache(f, s)
	id := Identity{Model: f.label("vllm:num_requests_running", "model_name")}
	if kv := f.label("vllm:cache_config_info", "cache_dtype"); kv != "auto" {
		id.KVDType = kv
	}
	return id
}

// readVLLMCache reads size and use of the KV cache. Replicas have a cache each: their sizes add up, and their use is
// weighted by size where that is told for each.
func readVLLMCache(f families, s *timeline.EngineSample) {
	blocks := map[string]float64{}
	total := 0.0
	for _, m := range f.metrics("vllm:cache_config_info") {
		// The label is the word None until the engine has profiled its memory.
		n, err := strconv.ParseFloat(labelOf(m, "num_gpu_blocks"), 64)
		if err != nil || !plausible(n) || n <= 0 {
			continue
		}
		blocks[labelOf(m, "engine")] += n
		total += n
	}
	if total > 0 {
		s.Put(timeline.KVBlocks, total)
	}
	if size, err := strconv.ParseFloat(f.label("vllm:cache_config_info", "block_size"), 64); err == nil && plausible(size) && size > 0 {
		s.Put(timeline.KVBlockSize, size)
	}
	for _, name := range []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"} { // fractions, despite their names
		sum, weight := 0.0, 0.0
		for _, m := range f.metrics(name) {
			w := 1.0
			if n := blocks[labelOf(m, "engine")]; n > 0 {
				w = n
			}
			if v, ok := scalar(m); ok {
				sum, weight = sum+w*v, weight+w
			}
		}
		if weight > 0 {
			s.Put(timeline.KVUsage, sum/weight)
			return
		}
	}
}

// least returns the smallest value of a metric over its label sets.
func (f families) least(name string) (float64, bool) {
	lowest, found := 0.0, false
	for _, m := range f.metrics(name) {
		if v, ok := scalar(m); ok && (!found || v < lowest) {
			lowest, found = v, true
		}
	}
	return lowest, found
}
