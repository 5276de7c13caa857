package otlp

// Attributes of the semantic conventions v1.41.0: https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0
const (
	keyOperation       = "gen_ai.operation.name"
	keyProvider        = "gen_ai.provider.name"
	keyModel           = "gen_ai.request.model"
	keyMaxTokens       = "gen_ai.request.max_tokens"
	keyChoices         = "gen_ai.request.choice.count"
	keyStream          = "gen_ai.request.stream"
	keyFinish          = "gen_ai.response.finish_reasons"
	keyFirstChunk      = "gen_ai.response.time_to_first_chunk"
	keyInputTokens     = "gen_ai.usage.input_tokens"
	keyOutputTokens    = "gen_ai.usage.output_tokens"
	keyCachedTokens    = "gen_ai.usage.cache_read.input_tokens"
	keyReasoningTokens = "gen_ai.usage.reasoning.output_tokens"
	keyErrorType       = "error.type"
	keyHTTPStatus      = "http.response.status_code"
	keyServerAddress   = "server.address"
	keyServerPort      = "server.port"
	keyHWID            = "hw.id"
)

// Attributes and events of our own.
const (
	keyTarget      = "tpotscope.target"
	keyStatus      = "tpotscope.status"
	keyKeep        = "tpotscope.keep" // for whoever samples downstream: slow, failed or throttled
	keyWarmup      = "tpotscope.warmup"
	keyCounted     = "tpotscope.tokens.source"
	keyTTFT        = "tpotscope.ttft" // s
	keyTPOT        = "tpotscope.tpot" // s
	keyTPOTAbsent  = "tpotscope.tpot.absent"
	keyFirstGap    = "tpotscope.first_gap" // s
	keySlope       = "tpotscope.slope"     // s per token
	keyFlags       = "tpotscope.flags"
	keyConcurrency = "tpotscope.decode.concurrency"
	keyDRAMBytes   = "tpotscope.decode.dram_bytes" // of the whole target, shared with the rest of the batch
	keyBound       = "tpotscope.decode.bound"
	keyReason      = "tpotscope.decode.reason"
	keyConfidence  = "tpotscope.decode.confidence"
	keyGrade       = "tpotscope.decode.grade"
	keyWindows     = "tpotscope.decode.windows"
	keyMixture     = "tpotscope.decode.mixture."  // and a label
	keyShare       = "tpotscope.decode.share."    // and a share
	keyThrottled   = "tpotscope.decode.throttled" // GPU-seconds
	keyOverlays    = "tpotscope.decode.overlays"
	keyDRAMUtil    = "tpotscope.gpu.dram.bandwidth.utilization"
	keySMUtil      = "tpotscope.gpu.sm.utilization"
	keyTensorUtil  = "tpotscope.gpu.tensor.utilization"
	keySMClock     = "tpotscope.gpu.sm_clock" // Hz
	keyPower       = "tpotscope.gpu.power"    // W
	keyEvidence    = "tpotscope.evidence"
	keySimulated   = "tpotscope.simulated"
	keyClockBound  = "tpotscope.clock.bound" // s
	keyCoverage    = "tpotscope.traffic.coverage"
	keyStall       = "tpotscope.stall.seconds"

	spanPrefill     = "tpotscope.prefill"
	spanDecode      = "tpotscope.decode"
	eventFirstToken = "tpotscope.first_token"
	eventStall      = "tpotscope.stall"
)
