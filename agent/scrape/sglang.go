package scrape

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// readSGLang reads SGLang's metrics. Names as SGLang documents them (docs.sglang.io, "Production Metrics"); the engine
// exports them with --enable-metrics only. Series carry model_name, and with parallelism the rank that exports them:
// tensor- and pipeline-parallel ranks tell the same things, so that only their first rank counts, while data-parallel
// ranks add up. The KV cache is told in tokens, which makes its block one token.
func readSGLang(f families, s *timeline.EngineSample) Identity {
	f = f.firstRanks()
	putSum(s, timeline.Running, f, "sglang:num_running_reqs")
	putSum(s, timeline.Waiting, f, "sglang:num_queue_reqs")
	putSum(s, timeline.PromptTotal, f, "sglang:prompt_tokens_total")
	putSum(s, timeline.OutputTotal, f, "sglang:generation_tokens_total")
	putSum(s, timeline.PreemptTotal, f, "sglang:num_retracted_requests_total")
	putSum(s, timeline.PrefixHits, f, "sglang:cached_tokens_total")
	if _, ok := s.Get(timeline.PrefixHits); ok {
		// Every prompt token is looked up.
		putSum(s, timeline.PrefixQueries, f, "sglang:prompt_tokens_total")
	}
	putPair(s, timeline.ITLSum, timeline.ITLCount, f, "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")
	putPair(s, timeline.TTFTSum, timeline.TTFTCount, f, "sglang:time_to_first_token_seconds")
	if _, n, ok := f.distribution("sglang:e2e_request_latency_seconds"); ok {
		s.Put(timeline.FinishedTotal, n) // observed when a request ends
	}
	if n, ok := f.sum("sglang:max_total_num_tokens"); ok && n > 0 {
		s.Put(timeline.KVBlocks, n)
		s.Put(timeline.KVBlockSize, 1)
	}
	total, n := 0.0, 0.0
	for _, m := range f.metrics("sglang:token_usage") {
		if v, ok := scalar(m); ok {
			total, n = total+v, n+1
		}
	}
	if n > 0 {
		s.Put(timeline.KVUsage, total/n)
	}
	if t, ok := f.least("sglang:generation_tokens_created"); ok {
		s.Put(timeline.StartTime, t)
	}
	return Identity{Model: f.label("sglang:num_running_reqs", "model_name")}
}

// firstRanks returns f without the series of tensor- and pipeline-parallel ranks other than the first.
func (f families) firstRanks() families {
	out := make(families, len(f))
	for name, fam := range f {
		kept := &dto.MetricFamily{Name: fam.Name, Type: fam.Type}
		for _, m := range fam.GetMetric() {
			if first(labelOf(m, "tp_rank")) && first(labelOf(m, "pp_rank")) && first(labelOf(m, "moe_ep_rank")) {
				kept.Metric = append(kept.Metric, m)
			}
		}
		out[name] = kept
	}
	return out
}

func first(rank string) bool { return rank == "" || rank == "0" }
