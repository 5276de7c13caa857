package wire

// vllmMetrics reads the figures that vLLM puts beside the final usage when it is told to report metrics by request.
// Its time to the first token counts from when the request was scheduled, its generation time from the first token to
// the last, and its mean gap is that over n - 1 (vLLM, docs/features/per_request_metrics.md).
func (p *Parser) vllmMetrics() error {
	c := &p.chunk
	if !p.is('{') {
		return p.skip()
	}
	c.Flavour, c.HasTimings = VLLM, true
	t := &c.Timings
	return p.object(func(name []byte) error {
		switch string(name) {
		case "time_to_first_token_ms":
			return p.milliseconds(&t.TimeToFirst)
		case "generation_time_ms":
			return p.milliseconds(&t.OutputTime)
		case "queue_time_ms":
			return p.milliseconds(&t.QueueTime)
		case "mean_itl_ms":
			return p.milliseconds(&t.PerOutputMean)
		}
		return p.skip()
	})
}
