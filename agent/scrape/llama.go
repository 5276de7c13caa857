package scrape

import "github.com/tpotscope/tpotscope/correlate/timeline"

// readLlama reads the metrics of llama.cpp's server. Names as its documentation lists them (tools/server/README.md,
// GET /metrics); the server exports them with --metrics only, under no labels. kv_cache_usage_ratio is gone in newer
// builds. n_busy_slots_per_decode is a mean since the server started, which tells nothing of now, and is not read:
// the busy fraction is requests_processing over the number of slots, which /props tells.
//
// What the counts mean: the prompt's tokens count when a request's prefill ends, cached ones left out; the output's
// tokens count when the request ends, not as they are made. So the growth of tokens_predicted_total over a span is
// the output of the requests that ended in it.
func readLlama(f families, s *timeline.EngineSample) Identity {
	putSum(s, timeline.Running, f, "llamacpp:requests_processing")
	putSum(s, timeline.Waiting, f, "llamacpp:requests_deferred")
	putSum(s, timeline.KVUsage, f, "llamacpp:kv_cache_usage_ratio")
	putSum(s, timeline.PromptTotal, f, "llamacpp:prompt_tokens_total")
	putSum(s, timeline.OutputTotal, f, "llamacpp:tokens_predicted_total")
	putSum(s, timeline.PromptSecs, f, "llamacpp:prompt_seconds_total")
	putSum(s, timeline.OutputSecs, f, "llamacpp:tokens_predicted_seconds_total")
	putSum(s, timeline.StepTotal, f, "llamacpp:n_decode_total")
	return Identity{}
}
