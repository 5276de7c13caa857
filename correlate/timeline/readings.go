package timeline

import "strings"

// Target is a group of GPUs that serves one engine: the scope of a verdict. Empty fields are asked of the engine
// where it tells, and left unknown otherwise.
type Target struct {
	Name      string   `json:"name" yaml:"name"`
	EngineURL string   `json:"engine_url" yaml:"engine_url"`
	GPUs      []string `json:"gpus,omitempty" yaml:"gpus,omitempty"` // UUIDs
	Model     string   `json:"model,omitempty" yaml:"model,omitempty"`
	DType     string   `json:"dtype,omitempty" yaml:"dtype,omitempty"`
	KVDType   string   `json:"kv_dtype,omitempty" yaml:"kv_dtype,omitempty"`
	TP        int      `json:"tp,omitempty" yaml:"tp,omitempty"` // tensor-parallel degree
	PP        int      `json:"pp,omitempty" yaml:"pp,omitempty"` // pipeline-parallel degree: stages
	DP        int      `json:"dp,omitempty" yaml:"dp,omitempty"` // data-parallel degree: copies that step together
}

// EngineCounter names one thing an engine tells of itself.
type EngineCounter uint8

// What an engine tells. The first group are gauges, the second cumulative since the engine started.
const (
	Running       EngineCounter = iota // requests in the batch
	Waiting                            // requests in the queue
	KVUsage                            // fraction of the KV cache in use
	KVBlocks                           // number of blocks in the KV cache
	KVBlockSize                        // tokens in a block
	StartTime                          // engine start, seconds since 1970
	BusyFraction                       // fraction of slots busy, for engines that tell no batch
	PromptTotal                        // prompt tokens processed
	OutputTotal                        // output tokens generated
	PreemptTotal                       // preemptions
	StepTotal                          // engine iterations
	PrefixQueries                      // prompt tokens looked up in the prefix cache
	PrefixHits                         // prompt tokens found there
	ITLSum                             // s, sum of inter-token latencies
	ITLCount                           // how many
	TTFTSum                            // s
	TTFTCount                          // how many
	FinishedTotal                      // requests finished
	PromptSecs                         // s, time spent on prompts, where told
	OutputSecs                         // s, time spent on output, where told

	NumEngineCounters = iota
)

var engineNames = [NumEngineCounters]string{
	"running", "waiting", "kv_usage", "kv_blocks", "kv_block_size", "start_time", "busy_fraction",
	"prompt_tokens_total", "output_tokens_total", "preemptions_total", "steps_total", "prefix_queries_total", "prefix_hits_total",
	"itl_seconds_sum", "itl_seconds_count", "ttft_seconds_sum", "ttft_seconds_count", "finished_total",
	"prompt_seconds_total", "output_seconds_total",
}

// String returns the counter's name as recordings spell it.
func (c EngineCounter) String() string {
	if int(c) < len(engineNames) {
		return engineNames[c]
	}
	return "unknown"
}

// Cumulative reports whether c only grows while the engine lives.
func (c EngineCounter) Cumulative() bool { return c >= PromptTotal }

// EngineSample is one scrape of an engine. Over is the bracket of the scrape: the readings were taken somewhere in it.
type EngineSample struct {
	Target string
	Over   Span
	Has    uint32 // bit i: EngineCounter i
	Value  [NumEngineCounters]float64
}

// Get returns the value of c and whether the sample has it.
func (s *EngineSample) Get(c EngineCounter) (float64, bool) { return s.Value[c], s.Has&(1<<c) != 0 }

// Put sets c to v.
func (s *EngineSample) Put(c EngineCounter, v float64) { s.Value[c], s.Has = v, s.Has|1<<c }

// HostCounter names one thing the host is read for.
type HostCounter uint8

// What the host tells.
const (
	HostCPUUtil     HostCounter = iota // fraction of all cores busy
	HostSteal                          // fraction of all cores stolen by the hypervisor
	HostCPUPressure                    // fraction of time some task waited for a core (PSI, 10 s)
	HostMemPressure                    // fraction of time some task waited for memory (PSI, 10 s)
	HostLoad1                          // one-minute load average
	AgentCPU                           // cores used by the agent and its helper
	AgentRSS                           // bytes resident, agent and helper

	NumHostCounters = iota
)

var hostNames = [NumHostCounters]string{
	"cpu_util", "cpu_steal", "cpu_pressure", "memory_pressure", "load1", "agent_cpu_cores", "agent_rss_bytes",
}

// String returns the counter's name as recordings spell it.
func (c HostCounter) String() string {
	if int(c) < len(hostNames) {
		return hostNames[c]
	}
	return "unknown"
}

// HostSample is one reading of the host over the span Over.
type HostSample struct {
	Over  Span
	Has   uint32 // bit i: HostCounter i
	Value [NumHostCounters]float64
}

// Get returns the value of c and whether the sample has it.
func (s *HostSample) Get(c HostCounter) (float64, bool) { return s.Value[c], s.Has&(1<<c) != 0 }

// Put sets c to v.
func (s *HostSample) Put(c HostCounter, v float64) { s.Value[c], s.Has = v, s.Has|1<<c }

// EventKind names a kind of thing that happened.
type EventKind string

// The kinds of event.
const (
	EventSamplerStarted EventKind = "sampler_started"
	EventSamplerLost    EventKind = "sampler_lost" // helper exited, hung or was abandoned: counters stop at once
	EventGap            EventKind = "gap"          // counters are missing over a span that ends here
	EventGPULost        EventKind = "gpu_lost"
	EventCapability     EventKind = "capability" // a counter's state changed
	EventClockStep      EventKind = "clock_step" // the wall clock was set
	EventSuspend        EventKind = "suspend"
	EventPause          EventKind = "pause" // the host or the agent did not run for a while
	EventEngineUp       EventKind = "engine_up"
	EventEngineDown     EventKind = "engine_down"
	EventEngineRestart  EventKind = "engine_restart"
	EventSegment        EventKind = "segment"       // a recording starts a segment
	EventDropped        EventKind = "dropped"       // a full queue dropped what it could not hold
	EventMarker         EventKind = "marker"        // set by a person or a script
	EventXid            EventKind = "xid"           // the driver told a critical error of a GPU
	EventGPUFault       EventKind = "gpu_fault"     // memory errors, retired rows, poison, a GPU that asks for a reset
	EventMIGChange      EventKind = "mig_change"    // a device was cut into other instances
	EventRate           EventKind = "sampling_rate" // counters are read less often, or as often as before

	EventBurst     EventKind = "burst"     // clocks and what holds them are read at the highest rate for a while
	EventInventory EventKind = "inventory" // what is around a GPU, as it is from here on

	EventCounterMismatch EventKind = "counter_mismatch" // two sources tell different means of one counter
	EventCounterSource   EventKind = "counter_source"   // windows of a GPU come from another source than the driver
)

// NeverRead begins the detail of the loss of a reader that never had anything to read.
const NeverRead = "counters were never read: no NVIDIA driver"

// NoGPU is the GPU of an event that concerns none.
const NoGPU = -1

// Event is something that happened once. Detail holds no content of any request.
type Event struct {
	At     Instant
	Kind   EventKind
	GPU    int    // position in the list of GPUs, or NoGPU
	Target string // or empty
	Detail string
}

// NormalizeUUID returns the form in which UUIDs of GPUs compare: without surrounding space, in lower case but for the
// GPU- or MIG- prefix.
func NormalizeUUID(u string) string {
	u = strings.TrimSpace(u)
	if i := strings.IndexByte(u, '-'); i == 3 {
		return strings.ToUpper(u[:3]) + strings.ToLower(u[3:])
	}
	return strings.ToLower(u)
}
