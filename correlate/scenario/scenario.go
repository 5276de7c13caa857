// Package scenario is the ground truth that everything else is tested against: a small text format that states a
// GPU, a model, an engine, its load and its faults, and a physics that turns it into a timeline of kernels.
//
// The physics runs a continuous-batching scheduler step by step. Each step is a list of kernels, and each kernel has a
// duration, the bytes it moves, the tensor cycles it spends, the SMs it fills and the one thing that limits it. What a
// counter would have read is an integral over those kernels; what bounded decode is the time of the kernels by their
// limiter. The package derives both from the same list and from nothing else. It does not know how a verdict is
// reached, shares no formula with the byte model that it checks, and so can contradict both.
//
// Each GPU of a group has a timeline of its own: ranks that share products meet in collectives, which some of them reach
// early and wait in with a part of their SMs spinning; stages of a pipeline wait for each other's parts; copies around
// pooled experts run in lockstep, without requests too. TestPublished holds the physics to measurements that others have
// published, says which of them fitted a constant, and names those that it does not reach. It leaves out what differs
// between two steps of the same batch beyond a common noise, contention between links, and what an operating system does
// to a host beyond lags, stalls and pauses.
//
// Everything here is pure: the same scenario gives the same timeline, to the byte. Times are offsets from the start.
package scenario

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Span is the half-open stretch [From, To) of a scenario, as offsets from its start.
type Span struct {
	From, To time.Duration
}

// Contains reports whether t lies in s.
func (s Span) Contains(t time.Duration) bool { return s.From <= t && t < s.To }

// Length returns how long s is.
func (s Span) Length() time.Duration { return s.To - s.From }

// Scenario is a parsed scenario file.
type Scenario struct {
	Name     string
	Seed     uint64
	Length   time.Duration
	GPUs     []hardware.GPU // by position
	Targets  []TargetSpec
	Loads    []Load
	Faults   []Fault
	Counters []CounterFault
	Phases   []Phase
	Probe    ProbeSpec
	Slices   map[int]float64 // of a GPU that is cut into instances: the part that this position is; see Slice
}

// Slice returns an instance of a board that has such a part of its memory, SMs and cache.
func Slice(g hardware.GPU, part float64) hardware.GPU {
	g.Name += " MIG"
	g.MemoryBytes = uint64(float64(g.MemoryBytes) * part)
	g.BusWidthBits = int(float64(g.BusWidthBits) * part)
	g.SMs = int(float64(g.SMs) * part)
	g.L2Bytes *= part
	g.TDPWatts *= part
	for _, r := range []*float64{&g.Rates.BF16, &g.Rates.FP8, &g.Rates.INT8, &g.Rates.FP4, &g.Rates.FP32} {
		*r *= part
	}
	return g
}

// ProbeSpec is what stands between the requests and their observer.
type ProbeSpec struct {
	Coverage   float64       // part of the requests that the probe sees
	ClockBound time.Duration // how far its clock may be off
}

// TargetSpec is one engine and what it runs.
type TargetSpec struct {
	Name    string
	GPUs    []int // positions, one a rank: tensor parallelism counts fastest, then stages, then replicas
	Model   hardware.Model
	DType   hardware.DType
	KVDType hardware.DType
	TP      int  // ranks that each product is cut over
	PP      int  // stages that the layers are cut into
	DP      int  // copies of all but the experts, which run in lockstep
	EP      bool // experts are spread whole over the ranks; with DP they always are

	Skew        float64 // standard deviation of the logarithm of the experts' popularity
	Correlation float64 // part of the tokens whose choice of experts repeats another's
	Engine      EngineSpec
}

// Ranks returns how many GPUs the target needs.
func (t *TargetSpec) Ranks() int { return t.TP * t.PP * t.DP }

// EngineSpec is how an engine schedules and what its host costs.
type EngineSpec struct {
	MaxBatch    int            // requests that run at once, in each copy of the model
	TokenBudget int            // tokens of one step, prompt and output together
	Chunk       int            // prompt tokens of one request in one step, at most
	BlockSize   int            // tokens of a block of the KV cache
	KVBlocks    int            // zero: what memory leaves
	Apart       bool           // prompts have steps of their own, which come first
	Host        time.Duration  // host time between two steps that the GPU waits for
	HostPerSeq  time.Duration  // and for each request in the batch
	Launch      time.Duration  // host time to launch one kernel outside a graph
	Graphs      bool           // steps are replayed as graphs; false launches every kernel alone
	Capture     int            // tokens of the largest step that has a graph; zero: all have
	Pad         bool           // steps are padded to the size of the next graph
	Speculate   int            // tokens that are guessed ahead for each request
	Accept      float64        // probability that a guess is right, given that those before it are
	Draft       hardware.Model // that guesses; without a name a layer of the model itself does
	Adapters    int            // different adapters among the requests; zero: none
	AdapterRank int            // of each
	Kernels     int            // of a dense layer inside a graph: how well they are fused; zero: ten
	Reach       float64        // part of the usual bandwidth that the kernels of the weights reach; zero: all of it
	Reduce      time.Duration  // latency of one collective at the highest clock; zero: that of a good one

	// Prompts are computed by another machine at this rate, tokens per second, and their cache comes over a link of
	// this many bytes per second. Zero: this engine computes them.
	RemoteRate float64
	RemoteBps  float64

	Front FrontSpec
}

// FrontSpec is the way of the tokens from a step's end to the client.
type FrontSpec struct {
	Lag         time.Duration // of the event loop, in the mean; each step's is drawn
	Merge       time.Duration // tokens that come within so long leave as one chunk; zero: each step's at once
	SlowReaders float64       // part of the clients that read only every SlowEvery
	SlowEvery   time.Duration
}

// DefaultEngine returns the properties of an engine about which a scenario says nothing: those of a well-kept server
// that schedules on the host between steps and replays its kernels as graphs.
func DefaultEngine() EngineSpec {
	return EngineSpec{
		MaxBatch: 256, TokenBudget: 2048, Chunk: 2048, BlockSize: 16,
		Host: 300 * time.Microsecond, HostPerSeq: 4 * time.Microsecond, Launch: 6 * time.Microsecond, Graphs: true, Pad: true,
		AdapterRank: 16, Front: FrontSpec{SlowEvery: 200 * time.Millisecond},
	}
}

// defaultSkew is that of the experts of a trained model under mixed traffic.
const defaultSkew = 0.9

// Range is a closed range of whole numbers, from which values are drawn evenly.
type Range struct {
	Low, High int
}

// Load is one source of requests. Exactly one of Streams, Rate and At speaks: a closed loop of that many streams, each
// of which sends its next request when the last has finished; arrivals at a mean rate; or one request.
type Load struct {
	Target  int
	Streams int
	Rate    float64 // requests per second
	Poisson bool    // arrivals of Rate are a Poisson process; otherwise they are evenly spaced
	Think   time.Duration
	Stagger time.Duration // between the first requests of the streams of a closed loop
	Prompt  Range
	Output  Range
	Prefix  int           // tokens at the start of all prompts of this load that are the same
	Swing   float64       // the rate goes up and down by this part of it
	Period  time.Duration // in so long
	Over    Span          // of the arrivals; a single request has only From
}

// FaultKind names something that goes wrong with the machine.
type FaultKind string

// The faults of the machine. See the comments for what Value means.
const (
	PowerCap      FaultKind = "power_cap"      // enforced limit, W
	ClockLock     FaultKind = "clock_lock"     // SM clock, Hz
	Thermal       FaultKind = "thermal"        // SM clock that the thermal control allows, Hz
	HostStall     FaultKind = "host_stall"     // s of host time more, every step or once an Every
	BandwidthLoss FaultKind = "bandwidth_loss" // fraction of DRAM bandwidth lost
	Eager         FaultKind = "eager"          // kernels are launched one by one, whatever the engine is set to
	SlowLaunch    FaultKind = "slow_launch"    // s of host time for one launch
	SlowLink      FaultKind = "slow_link"      // s that each collective takes more
	Neighbour     FaultKind = "neighbour"      // fraction of the time that someone else's kernels run
	Acceptance    FaultKind = "acceptance"     // probability that a guess is right
	PrefixMiss    FaultKind = "prefix_miss"    // no prompt finds its prefix in the cache
	Straggler     FaultKind = "straggler"      // fraction by which all kernels take longer
	Cooling       FaultKind = "cooling"        // factor on the rise of the temperature
	FrontStall    FaultKind = "front_stall"    // s for which the front end sends nothing, once an Every; steps go on
	LongOutput    FaultKind = "long_output"    // factor on the output lengths of requests that arrive
	Restart       FaultKind = "restart"        // s for which the engine is down at the span's start; it loses its requests
	LongPrompt    FaultKind = "long_prompt"    // factor on the prompt lengths of requests that arrive
)

// FaultKinds returns all kinds of fault of the machine, the engine and the requests.
func FaultKinds() []FaultKind {
	var list []FaultKind
	for _, k := range faultKinds {
		list = append(list, k.kind)
	}
	return list
}

// Fault is one fault over a span. GPU and Target are -1 when it concerns all.
type Fault struct {
	Kind   FaultKind
	Value  float64
	Every  time.Duration
	GPU    int
	Target int
	Over   Span
}

// Arg is one argument of a counter fault, as written.
type Arg struct {
	Key, Value string
}

// CounterFault is a fault of the instrument, not of the machine. This package only carries it, for whoever plays the
// counters: nothing in the truth changes.
type CounterFault struct {
	Name string
	Args []Arg
	GPU  int // -1: all
	Over Span
}

// Arg returns the argument of that key as written, and whether there is one. The fault's own value, as in "lag=300ms",
// has the fault's name as its key.
func (f CounterFault) Arg(key string) (string, bool) {
	for _, a := range f.Args {
		if a.Key == key {
			return a.Value, true
		}
	}
	return "", false
}

// Duration returns the argument of that key as a duration, or otherwise if it is absent.
func (f CounterFault) Duration(key string, otherwise time.Duration) (time.Duration, error) {
	v, ok := f.Arg(key)
	if !ok {
		return otherwise, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("read %s of counter fault %s: %w", key, f.Name, err)
	}
	return d, nil
}

// Number returns the argument of that key as a number, or otherwise if it is absent. A percentage is a fraction.
func (f CounterFault) Number(key string, otherwise float64) (float64, error) {
	v, ok := f.Arg(key)
	if !ok {
		return otherwise, nil
	}
	n, err := parseNumber(v, "")
	if err != nil {
		return 0, fmt.Errorf("read %s of counter fault %s: %w", key, f.Name, err)
	}
	return n, nil
}

// DurationOr is Duration of an argument that cannot be read as well: then it is otherwise too.
func (f CounterFault) DurationOr(key string, otherwise time.Duration) time.Duration {
	if d, err := f.Duration(key, otherwise); err == nil {
		return d
	}
	return otherwise
}

// NumberOr is Number of an argument that cannot be read as well: then it is otherwise too.
func (f CounterFault) NumberOr(key string, otherwise float64) float64 {
	if n, err := f.Number(key, otherwise); err == nil {
		return n
	}
	return otherwise
}

//go:embed library/*.scenario
var library embed.FS

// Library returns the names of the scenarios that come with the program, sorted.
func Library() []string {
	entries, err := library.ReadDir("library")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".scenario"))
	}
	return names
}

// Open parses the library's scenario of that name, with or without its extension.
func Open(name string) (*Scenario, error) {
	name = strings.TrimSuffix(name, ".scenario")
	if !slices.Contains(Library(), name) {
		return nil, fmt.Errorf("open scenario: %w", &hardware.UnknownError{
			Kind: "scenario", Name: name, Near: hardware.Nearest(name, Library(), 3),
		})
	}
	f, err := library.Open("library/" + name + ".scenario")
	if err != nil {
		return nil, fmt.Errorf("open scenario: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return Parse(name+".scenario", f)
}
