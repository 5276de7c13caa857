package exporters

import "github.com/tpotscope/tpotscope/correlate/timeline"

// What tokens_total counts, in the order of its values.
const (
	tokensOutput = iota
	tokensPrompt
	tokensObserved
)

var (
	gpuLabels    = []string{"hw.id", "target"}
	targetLabels = []string{"target"}
)

// catalogue holds every series that tpotscope sends out. The Prometheus names are spelt here rather than computed, so
// that they can be found with a search; a test holds them to the translation rules.
var catalogue = [NumMetrics]Metric{
	GPUDRAMBytes: {
		Name: "tpotscope.gpu.dram", Prom: "tpotscope_gpu_dram_bytes_total", Unit: "By", Kind: Counter, Labels: gpuLabels,
		Help: "DRAM traffic of the GPU over the covered seconds.",
	},
	GPUSMActive: {
		Name: "tpotscope.gpu.sm_active", Prom: "tpotscope_gpu_sm_active_seconds_total", Unit: "s", Kind: Counter, Labels: gpuLabels,
		Help: "Fraction of SMs busy, integrated over the covered seconds.",
	},
	GPUTensorActive: {
		Name: "tpotscope.gpu.tensor_active", Prom: "tpotscope_gpu_tensor_active_seconds_total", Unit: "s", Kind: Counter, Profile: Standard, Labels: gpuLabels,
		Help: "Activity of the tensor pipes, integrated over the covered seconds.",
	},
	GPUCovered: {
		Name: "tpotscope.gpu.covered", Prom: "tpotscope_gpu_covered_seconds_total", Unit: "s", Kind: Counter, Labels: gpuLabels,
		Help: "Seconds covered by trusted counter windows: the denominator of the other integrals.",
	},
	GPUThrottled: {
		Name: "tpotscope.gpu.throttled", Prom: "tpotscope_gpu_throttled_seconds_total", Unit: "s", Kind: Counter, Profile: Standard,
		Labels: with(gpuLabels, "reason"), Values: throttleReasons(),
		Help: "Seconds under a reason that slows a busy GPU down. Reasons overlap: do not add them.",
	},
	GPUInfo: {
		Name: "tpotscope.gpu.info", Prom: "tpotscope_gpu_info", Unit: "", Kind: Info, Profile: Standard,
		Labels: with(gpuLabels, "hw.model", "hw.driver_version", "pci_bus_id", "simulated"),
		Help:   "What the GPU is. Join on hw_id, which is the UUID that dcgm-exporter shows.",
	},
	GPUGraphicsActive: {
		Name: "tpotscope.gpu.graphics_active", Prom: "tpotscope_gpu_graphics_active_seconds_total", Unit: "s", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Fraction of time in which any kernel was resident, integrated over the covered seconds.",
	},
	GPUOccupancy: {
		Name: "tpotscope.gpu.sm_occupancy", Prom: "tpotscope_gpu_sm_occupancy_ratio", Unit: "1", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Resident warps over the most possible, mean of the newest cell.",
	},
	GPUSMClock: {
		Name: "tpotscope.gpu.sm_clock", Prom: "tpotscope_gpu_sm_clock_hertz", Unit: "Hz", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "SM clock, mean of the newest cell.",
	},
	GPUMemClock: {
		Name: "tpotscope.gpu.memory_clock", Prom: "tpotscope_gpu_memory_clock_hertz", Unit: "Hz", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Memory clock, mean of the newest cell.",
	},
	GPUPower: {
		Name: "tpotscope.gpu.power", Prom: "tpotscope_gpu_power_watts", Unit: "W", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Power draw, mean of the newest cell.",
	},
	GPUPowerLimit: {
		Name: "tpotscope.gpu.power.limit", Prom: "tpotscope_gpu_power_limit_watts", Unit: "W", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Enforced power limit.",
	},
	GPUMemUsed: {
		Name: "tpotscope.gpu.memory.used", Prom: "tpotscope_gpu_memory_used_bytes", Unit: "By", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Memory in use. This is capacity, not bandwidth.",
	},
	GPUTemperature: {
		Name: "tpotscope.gpu.temperature", Prom: "tpotscope_gpu_temperature_celsius", Unit: "Cel", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Temperature of the GPU.",
	},
	GPUEnergy: {
		Name: "tpotscope.gpu.energy", Prom: "tpotscope_gpu_energy_joules_total", Unit: "J", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Energy the GPU drew.",
	},
	GPUPCIeSent: {
		Name: "tpotscope.gpu.pcie.sent", Prom: "tpotscope_gpu_pcie_sent_bytes_total", Unit: "By", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Bytes the GPU sent over PCIe.",
	},
	GPUPCIeReceived: {
		Name: "tpotscope.gpu.pcie.received", Prom: "tpotscope_gpu_pcie_received_bytes_total", Unit: "By", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Bytes the GPU received over PCIe.",
	},
	GPUNVLinkSent: {
		Name: "tpotscope.gpu.nvlink.sent", Prom: "tpotscope_gpu_nvlink_sent_bytes_total", Unit: "By", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Bytes the GPU sent over all its NVLinks, without protocol overhead.",
	},
	GPUNVLinkReceived: {
		Name: "tpotscope.gpu.nvlink.received", Prom: "tpotscope_gpu_nvlink_received_bytes_total", Unit: "By", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Bytes the GPU received over all its NVLinks, without protocol overhead.",
	},
	GPUIntegerActive: {
		Name: "tpotscope.gpu.integer_active", Prom: "tpotscope_gpu_integer_active_seconds_total", Unit: "s", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Activity of the integer pipe, integrated over the covered seconds.",
	},
	GPUFP32Active: {
		Name: "tpotscope.gpu.fp32_active", Prom: "tpotscope_gpu_fp32_active_seconds_total", Unit: "s", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Activity of the single-precision pipe, integrated over the covered seconds.",
	},
	GPUFP16Active: {
		Name: "tpotscope.gpu.fp16_active", Prom: "tpotscope_gpu_fp16_active_seconds_total", Unit: "s", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Activity of the half-precision pipe outside the tensor cores, integrated over the covered seconds.",
	},
	GPUDRAMCacheHit: {
		Name: "tpotscope.gpu.dram_cache_hit", Prom: "tpotscope_gpu_dram_cache_hit_ratio", Unit: "1", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Share of lookups for DRAM that the cache answered, mean of the newest cell.",
	},
	GPUMemTemperature: {
		Name: "tpotscope.gpu.memory.temperature", Prom: "tpotscope_gpu_memory_temperature_celsius", Unit: "Cel", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Temperature of the memory.",
	},
	GPUTemperatureMargin: {
		Name: "tpotscope.gpu.temperature.margin", Prom: "tpotscope_gpu_temperature_margin_celsius", Unit: "Cel", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Degrees left until the driver cuts clocks.",
	},
	GPUPCIeGen: {
		Name: "tpotscope.gpu.pcie.generation", Prom: "tpotscope_gpu_pcie_generation", Unit: "", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Generation of the PCIe link, as it is: lower at rest.",
	},
	GPUPCIeWidth: {
		Name: "tpotscope.gpu.pcie.lanes", Prom: "tpotscope_gpu_pcie_lanes", Unit: "", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "Lanes of the PCIe link, as they are.",
	},
	GPUPCIeReplays: {
		Name: "tpotscope.gpu.pcie.replays", Prom: "tpotscope_gpu_pcie_replays_total", Unit: "{packet}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "PCIe packets that were sent again.",
	},
	GPUECCCorrected: {
		Name: "tpotscope.gpu.ecc.corrected", Prom: "tpotscope_gpu_ecc_corrected_total", Unit: "{error}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Memory errors that were corrected.",
	},
	GPUECCUncorrected: {
		Name: "tpotscope.gpu.ecc.uncorrected", Prom: "tpotscope_gpu_ecc_uncorrected_total", Unit: "{error}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Memory errors that were not corrected.",
	},
	GPURowsCorrectable: {
		Name: "tpotscope.gpu.rows_remapped.correctable", Prom: "tpotscope_gpu_rows_remapped_correctable_total", Unit: "{row}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Rows of memory remapped after correctable errors.",
	},
	GPURowsUncorrectable: {
		Name: "tpotscope.gpu.rows_remapped.uncorrectable", Prom: "tpotscope_gpu_rows_remapped_uncorrectable_total", Unit: "{row}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Rows of memory remapped after uncorrectable errors.",
	},
	GPURowRemapPending: {
		Name: "tpotscope.gpu.row_remap.pending", Prom: "tpotscope_gpu_row_remap_pending", Unit: "", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "One while a row waits for a reset to be remapped.",
	},
	GPURowRemapFailure: {
		Name: "tpotscope.gpu.row_remap.failed", Prom: "tpotscope_gpu_row_remap_failed", Unit: "", Kind: Gauge, Profile: Full, Labels: gpuLabels,
		Help: "One once a row could not be remapped.",
	},
	GPUXids: {
		Name: "tpotscope.gpu.xids", Prom: "tpotscope_gpu_xids_total", Unit: "{error}", Kind: Counter, Profile: Full, Labels: gpuLabels,
		Help: "Critical errors (Xid) that the driver told.",
	},
	GPUCapability: {
		Name: "tpotscope.gpu.capability", Prom: "tpotscope_gpu_capability", Unit: "", Kind: Info, Scope: OfAgent, Profile: Full,
		Labels: []string{"hw.id", "call", "state"},
		Help:   "State of each thing that is asked of a GPU: ok, not_supported, no_permission, lost, timeout, stale, untrusted. The present state alone has a series.",
	},

	Decode: {
		Name: "tpotscope.decode", Prom: "tpotscope_decode_seconds_total", Unit: "s", Kind: Counter, Scope: OfTarget,
		Labels: with(targetLabels, "bound"), Values: bounds(),
		Help: "Seconds in which the target decoded, by what bounded it.",
	},
	Tokens: {
		Name: "tpotscope.tokens", Prom: "tpotscope_tokens_total", Unit: "{token}", Kind: Counter, Scope: OfTarget,
		Labels: with(targetLabels, "kind"), Values: []string{"output", "prompt", "observed"},
		Help: "Tokens: output the engine generated, prompt it processed, output the probe observed. Kinds overlap: do not add them.",
	},
	Requests: {
		Name: "tpotscope.requests", Prom: "tpotscope_requests_total", Unit: "{request}", Kind: Counter, Scope: OfTarget, Profile: Standard, Level: timeline.L3,
		Labels: with(targetLabels, "status"), Values: statuses(),
		Help: "Requests that ended, by how. Warm-up is counted.",
	},
	TPOT: {
		Name: "tpotscope.tpot", Prom: "tpotscope_tpot_seconds", Unit: "s", Kind: Histogram, Scope: OfTarget, Level: timeline.L3, Labels: targetLabels,
		Help: "Time per output token, one value a request. Failed, cancelled and warm-up requests are left out.",
	},
	TTFT: {
		Name: "tpotscope.ttft", Prom: "tpotscope_ttft_seconds", Unit: "s", Kind: Histogram, Scope: OfTarget, Level: timeline.L3, Labels: targetLabels,
		Help: "Time to the first token, one value a request. Failed, cancelled and warm-up requests are left out.",
	},
	ITL: {
		Name: "tpotscope.itl", Prom: "tpotscope_itl_seconds", Unit: "s", Kind: Histogram, Scope: OfTarget, Profile: Standard, Level: timeline.L3, Labels: targetLabels,
		Help: "Gap of each token after the first event, only of streams that count tokens event by event. Not TPOT: one value a token.",
	},
	WindowTPOT: {
		Name: "tpotscope.window_tpot", Prom: "tpotscope_window_tpot_seconds", Unit: "s", Kind: Gauge, Scope: OfTarget, Profile: Standard, Labels: targetLabels,
		Help: "Decoding streams times time over tokens of the newest cell: TPOT of streams in flight.",
	},
	BatchSize: {
		Name: "tpotscope.batch", Prom: "tpotscope_batch", Unit: "{request}", Kind: Gauge, Scope: OfTarget, Profile: Standard, Labels: targetLabels,
		Help: "Mean running requests of the newest cell.",
	},
	Waiting: {
		Name: "tpotscope.waiting", Prom: "tpotscope_waiting", Unit: "{request}", Kind: Gauge, Scope: OfTarget, Profile: Standard, Labels: targetLabels,
		Help: "Mean queued requests of the newest cell.",
	},
	KVUsage: {
		Name: "tpotscope.kv_cache.usage", Prom: "tpotscope_kv_cache_usage_ratio", Unit: "1", Kind: Gauge, Scope: OfTarget, Profile: Standard, Labels: targetLabels,
		Help: "Fraction of the KV cache in use.",
	},
	Coverage: {
		Name: "tpotscope.traffic.coverage", Prom: "tpotscope_traffic_coverage_ratio", Unit: "1", Kind: Gauge, Scope: OfTarget, Profile: Standard, Level: timeline.L3, Labels: targetLabels,
		Help: "Output tokens the probe observed over those the engine generated. Absent where the engine does not count.",
	},
	TargetInfo: {
		Name: "tpotscope.target.info", Prom: "tpotscope_target_info", Unit: "", Kind: Info, Scope: OfTarget, Profile: Standard,
		Labels: with(targetLabels, "model", "dtype", "evidence", "simulated"),
		Help:   "What the target serves, the evidence level of its newest cell, and whether a simulation stands behind it. Join on target.",
	},
	DecodeShare: {
		Name: "tpotscope.decode.share", Prom: "tpotscope_decode_share_seconds_total", Unit: "s", Kind: Counter, Scope: OfTarget, Profile: Full,
		Labels: with(targetLabels, "share"), Values: []string{"memory", "compute", "launch", "host", "other"},
		Help: "Decoding seconds split by the shares of each determined cell.",
	},
	DRAMBytes: {
		Name: "tpotscope.dram", Prom: "tpotscope_dram_bytes_total", Unit: "By", Kind: Counter, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "DRAM traffic of all the target's GPUs over cells that tell both this and what the byte model expects.",
	},
	ModelledBytes: {
		Name: "tpotscope.dram.modelled", Prom: "tpotscope_dram_modelled_bytes_total", Unit: "By", Kind: Counter, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "DRAM traffic that the byte model expects over the same cells.",
	},
	Throttled: {
		Name: "tpotscope.throttled", Prom: "tpotscope_throttled_seconds_total", Unit: "s", Kind: Counter, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "GPU-seconds under any reason that slows a busy GPU down.",
	},
	Preemptions: {
		Name: "tpotscope.preemptions", Prom: "tpotscope_preemptions_total", Unit: "{preemption}", Kind: Counter, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "Requests the engine preempted.",
	},
	Steps: {
		Name: "tpotscope.steps", Prom: "tpotscope_steps_total", Unit: "{step}", Kind: Counter, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "Iterations of the engine, where it tells.",
	},
	EngineTPOT: {
		Name: "tpotscope.engine_tpot", Prom: "tpotscope_engine_tpot_seconds", Unit: "s", Kind: Gauge, Scope: OfTarget, Profile: Full, Labels: targetLabels,
		Help: "The engine's own mean inter-token latency over the newest cell.",
	},
	ICL: {
		Name: "tpotscope.icl", Prom: "tpotscope_icl_seconds", Unit: "s", Kind: Histogram, Scope: OfTarget, Profile: Full, Level: timeline.L3, Labels: targetLabels,
		Help: "Gap of each token-bearing event after the first. A chunk is not a token.",
	},
	StallTime: {
		Name: "tpotscope.stalls", Prom: "tpotscope_stalls_seconds_total", Unit: "s", Kind: Counter, Scope: OfTarget, Profile: Full, Level: timeline.L3, Labels: targetLabels,
		Help: "Stream-seconds inside gaps that stand out from their own request.",
	},

	SelfSamplerRate: {
		Name: "tpotscope.sampler.rate", Prom: "tpotscope_sampler_rate_hertz", Unit: "Hz", Kind: Gauge, Scope: OfAgent, Profile: Standard, Labels: []string{"hw.id"},
		Help: "Counter windows that were trusted and handed on per second, over the last ten; of a GPU without windows, readings.",
	},
	SelfSamplerOverruns: {
		Name: "tpotscope.sampler.overruns", Prom: "tpotscope_sampler_overruns_total", Unit: "{overrun}", Kind: Counter, Scope: OfAgent, Profile: Standard, Labels: []string{"hw.id"},
		Help: "Readings that were late by a period or more.",
	},
	SelfSamplerPeriod: {
		Name: "tpotscope.sampler.period", Prom: "tpotscope_sampler_period_seconds", Unit: "s", Kind: Gauge, Scope: OfAgent, Profile: Full, Labels: []string{"hw.id", "tier"},
		Help: "From one reading to the next, as reached: of windows, of clocks and their reasons (fast), of all else (slow).",
	},
	SelfSamplerPeriodSet: {
		Name: "tpotscope.sampler.period.configured", Prom: "tpotscope_sampler_period_configured_seconds", Unit: "s", Kind: Gauge, Scope: OfAgent, Profile: Full, Labels: []string{"tier"},
		Help: "From one reading to the next, as configured.",
	},
	SelfSamplerDuty: {
		Name: "tpotscope.sampler.duty", Prom: "tpotscope_sampler_duty_ratio", Unit: "1", Kind: Gauge, Scope: OfAgent, Profile: Full, Labels: []string{"hw.id"},
		Help: "Share of one thread that calls of the driver took, over the last second.",
	},
	SelfSamplerDrops: {
		Name: "tpotscope.sampler.drops", Prom: "tpotscope_sampler_drops_total", Unit: "{window}", Kind: Counter, Scope: OfAgent, Profile: Full, Labels: []string{"hw.id", "reason"},
		Help: "Counter windows that were read and not handed on, by why. With nan and range, single counters of a window.",
	},
	SelfCallLatency: {
		Name: "tpotscope.nvml.call", Prom: "tpotscope_nvml_call_seconds", Unit: "s", Kind: Gauge, Scope: OfAgent, Profile: Full, Labels: []string{"call", "quantile"},
		Help: "Time a call of the driver takes, to the next power of two of microseconds: that of the slowest GPU, since its sampler began.",
	},
	SelfCalls: {
		Name: "tpotscope.nvml.calls", Prom: "tpotscope_nvml_calls_total", Unit: "{call}", Kind: Counter, Scope: OfAgent, Profile: Full, Labels: []string{"call", "le"},
		Help: "Calls of the driver on all GPUs that took less than le seconds: a histogram's buckets, for histogram_quantile.",
	},
	SelfHelperRestarts: {
		Name: "tpotscope.helper.restarts", Prom: "tpotscope_helper_restarts_total", Unit: "{restart}", Kind: Counter, Scope: OfAgent, Profile: Standard,
		Help: "Times the NVML helper was started again.",
	},
	SelfHelperAbandoned: {
		Name: "tpotscope.helper.abandoned", Prom: "tpotscope_helper_abandoned", Unit: "{helper}", Kind: Gauge, Scope: OfAgent, Profile: Standard,
		Help: "NVML helpers that hang in the driver, do not die when killed, and are still there. With two of them no other is started.",
	},
	SelfRingDrops: {
		Name: "tpotscope.ring.drops", Prom: "tpotscope_ring_drops_total", Unit: "{record}", Kind: Counter, Scope: OfAgent, Labels: []string{"ring"},
		Help: "Records that a full ring dropped.",
	},
	SelfQueueSize: {
		Name: "tpotscope.queue.size", Prom: "tpotscope_queue_size_bytes", Unit: "By", Kind: Gauge, Scope: OfAgent, Profile: Standard, Labels: []string{"queue"},
		Help: "Bytes waiting in an export queue.",
	},
	SelfQueueDrops: {
		Name: "tpotscope.queue.drops", Prom: "tpotscope_queue_drops_total", Unit: "{batch}", Kind: Counter, Scope: OfAgent, Labels: []string{"queue", "reason"},
		Help: "Encoded batches that were lost: full queue, refused by the receiver, or shutdown.",
	},
	SelfExportErrors: {
		Name: "tpotscope.export.errors", Prom: "tpotscope_export_errors_total", Unit: "{error}", Kind: Counter, Scope: OfAgent, Labels: []string{"queue", "reason"},
		Help: "Attempts to send that did not succeed, and points or spans a receiver rejected.",
	},
	SelfSpans: {
		Name: "tpotscope.spans", Prom: "tpotscope_spans_total", Unit: "{span}", Kind: Counter, Scope: OfAgent, Profile: Standard, Labels: []string{"outcome"},
		Help: "Spans of requests: exported, or limited by the bound on spans in an incident.",
	},
	SelfProbeEvents: {
		Name: "tpotscope.probe.events", Prom: "tpotscope_probe_events_total", Unit: "{event}", Kind: Counter, Scope: OfAgent, Profile: Standard, Labels: []string{"stamp"},
		Help: "Token events observed, by where their stamp comes from.",
	},
	SelfProbeLag: {
		Name: "tpotscope.probe.lag", Prom: "tpotscope_probe_lag_seconds", Unit: "s", Kind: Gauge, Scope: OfAgent, Profile: Standard, Labels: []string{"quantile"},
		Help: "Time from a byte's arrival at the host to its leaving the proxy.",
	},
	SelfProbeInFlight: {
		Name: "tpotscope.probe.in_flight", Prom: "tpotscope_probe_in_flight", Unit: "{request}", Kind: Gauge, Scope: OfAgent, Profile: Full,
		Help: "Observed requests that the proxy has not answered whole yet.",
	},
	SelfProbePassed: {
		Name: "tpotscope.probe.passed", Prom: "tpotscope_probe_passed_total", Unit: "{request}", Kind: Counter, Scope: OfAgent, Profile: Full, Labels: []string{"outcome"},
		Help: "Requests that the proxy passed on unobserved, by outcome: ok, or error for those without a response.",
	},
	SelfProbeStreamed: {
		Name: "tpotscope.probe.streamed", Prom: "tpotscope_probe_streamed_total", Unit: "{request}", Kind: Counter, Scope: OfAgent, Profile: Full,
		Help: "Requests whose body was too long to be held, so that the proxy could not have sent them again.",
	},
	SelfIngestRefused: {
		Name: "tpotscope.ingest.refused", Prom: "tpotscope_ingest_refused_total", Unit: "{row}", Kind: Counter, Scope: OfAgent, Profile: Standard, Labels: []string{"reason"},
		Help: "Rows of reports that were left out for their times: more than ten minutes old, before this boot, in the future.",
	},
	SelfAgentCPU: {
		Name: "tpotscope.agent.cpu_cores", Prom: "tpotscope_agent_cpu_cores", Unit: "{core}", Kind: Gauge, Scope: OfAgent, Profile: Standard,
		Help: "Cores used by the agent and its helper.",
	},
	SelfAgentRSS: {
		Name: "tpotscope.agent.memory", Prom: "tpotscope_agent_memory_bytes", Unit: "By", Kind: Gauge, Scope: OfAgent, Profile: Standard,
		Help: "Bytes resident, agent and helper.",
	},
	SelfHelperCPU: {
		Name: "tpotscope.helper.cpu_cores", Prom: "tpotscope_helper_cpu_cores", Unit: "{core}", Kind: Gauge, Scope: OfAgent, Profile: Full,
		Help: "Cores used by the helper, mean since it was started.",
	},
	SelfHelperRSS: {
		Name: "tpotscope.helper.memory", Prom: "tpotscope_helper_memory_bytes", Unit: "By", Kind: Gauge, Scope: OfAgent, Profile: Full,
		Help: "Bytes resident, helper alone.",
	},
	SelfBuildInfo: {
		Name: "tpotscope.build.info", Prom: "tpotscope_build_info", Unit: "", Kind: Info, Scope: OfAgent, Profile: Standard, Labels: []string{"version"},
		Help: "The agent's version.",
	},
}
