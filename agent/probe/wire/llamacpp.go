package wire

// llamaTimings reads the timings of llama.cpp's server: on the last chunk, or on each one if asked for, and then
// cumulative (tools/server/README.md, "timings_per_token"). predicted_per_token_ms is predicted_ms over predicted_n where
// predicted_ms begins with the end of the prompt (661.064/35 in ggml-org/llama.cpp#15827), and over predicted_n - 1 where
// it begins with the first token, as builds of 2026 have it (deploy/e2e/engine checks which).
func (p *Parser) llamaTimings() error {
	c := &p.chunk
	if !p.is('{') {
		return p.skip()
	}
	c.Flavour, c.HasTimings, c.Known = LlamaCpp, true, true
	t := &c.Timings
	return p.object(func(name []byte) error {
		switch string(name) {
		case "prompt_n":
			return p.count(&t.PromptTokens)
		case "prompt_ms":
			return p.milliseconds(&t.PromptTime)
		case "predicted_n":
			return p.count(&t.OutputTokens)
		case "predicted_ms":
			return p.milliseconds(&t.OutputTime)
		case "predicted_per_token_ms":
			return p.milliseconds(&t.PerOutputMean)
		case "cache_n":
			return p.count(&c.Usage.Cached)
		}
		return p.skip()
	})
}

// llamaProgress notes a chunk that tells how far the prompt has come: it precedes the first token.
func (p *Parser) llamaProgress() error {
	if p.is('{') {
		p.chunk.Flavour, p.chunk.Progress, p.chunk.Known = LlamaCpp, true, true
	}
	return p.skip()
}
