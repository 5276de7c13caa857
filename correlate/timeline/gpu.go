package timeline

import (
	"iter"
	"math/bits"
	"strings"
)

// GPU identifies one device (or MIG instance) and the inputs of its peak rates. Fields that the driver does not tell
// are zero. Readings refer to a GPU by its position in the list of GPUs that was handed out with them, never by the
// driver's index, which changes between boots.
type GPU struct {
	UUID              string  `json:"uuid"`
	Name              string  `json:"name"`
	Index             int     `json:"index"` // the driver's enumeration order, for people only
	PCIBusID          string  `json:"pci_bus_id,omitempty"`
	Driver            string  `json:"driver,omitempty"`
	ComputeCapability string  `json:"compute_capability,omitempty"`
	MemoryBytes       uint64  `json:"memory_bytes,omitempty"`
	BusWidthBits      int     `json:"bus_width_bits,omitempty"`
	SMs               int     `json:"sms,omitempty"`
	MaxSMClockHz      float64 `json:"max_sm_clock_hz,omitempty"`
	MaxMemClockHz     float64 `json:"max_mem_clock_hz,omitempty"`
	PowerLimitW       float64 `json:"power_limit_w,omitempty"`         // enforced
	DefaultLimitW     float64 `json:"default_power_limit_w,omitempty"` // as the board was made
	MIG               bool    `json:"mig,omitempty"`                   // an instance, or a device cut into instances
	ParentUUID        string  `json:"parent_uuid,omitempty"`           // of an instance: the device it is cut from
	PeakShare         float64 `json:"peak_share,omitempty"`            // of an instance: its part of the device's memory, and so of its bandwidth
	GPM               bool    `json:"gpm"`                             // the driver reads windows of activity (Hopper and newer)
	Simulated         bool    `json:"simulated,omitempty"`
}

// DerivedBandwidth returns the theoretical DRAM bandwidth in bytes per second from the memory clock and the bus
// width: two transfers a clock for HBM2 to HBM3e and GDDR6 to GDDR7 as NVML reports their clocks. Zero if unknown.
func (g GPU) DerivedBandwidth() float64 { return g.MaxMemClockHz * 2 * float64(g.BusWidthBits) / 8 }

// Counter names one thing a GPU is read for. Its unit is fixed; see Unit.
type Counter uint8

// The counters. Fractions are averages over the reading's span (GPM windows); gauges are readings at one moment,
// whose span is the bracket of the call; the rest is cumulative since the driver was loaded.
const (
	GraphicsUtil Counter = iota // fraction of time any kernel is resident (GPM 1)
	SMUtil                      // fraction of SMs busy, averaged over SMs (GPM 2)
	SMOccupancy                 // resident warps over the most possible (GPM 3)
	TensorUtil                  // any tensor pipe active (GPM 5)
	HMMAUtil                    // half-precision tensor pipe active (GPM 7)
	IMMAUtil                    // integer tensor pipe active (GPM 9)
	DRAMUtil                    // DRAM bandwidth over the theoretical maximum (GPM 10)
	IntegerUtil                 // integer pipe active (GPM 4)
	FP32Util                    // single-precision pipe active, tensor pipes apart (GPM 12)
	FP16Util                    // half-precision pipe active, tensor pipes apart (GPM 13)
	DRAMCacheHit                // lookups for DRAM that the cache answered (GPM 164, NVML 12.9 and newer)

	SMClock      // Hz, at one moment
	MemClock     // Hz, at one moment
	EventReasons // bit mask of why clocks are held, at one moment; see the Reason constants
	Power        // W, at one moment
	PowerLimit   // W, the enforced limit
	MemUsed      // bytes
	Temperature  // degrees Celsius
	GPUDuty      // fraction of time any kernel ran (utilization.gpu); never feeds a verdict on its own
	MemDuty      // fraction of time memory was touched (utilization.memory); not bandwidth

	MemTemperature    // degrees Celsius, of the memory
	TemperatureMargin // degrees Celsius left until clocks are cut
	PCIeGen           // generation of the PCIe link, as it is
	PCIeWidth         // lanes of the PCIe link, as they are
	RowRemapPending   // 1 if a row waits for a reset to be remapped
	RowRemapFailure   // 1 if remapping a row has failed

	Energy             // J, cumulative
	ThrottlePower      // s, cumulative time held by the software power cap
	ThrottleSWThermal  // s, cumulative
	ThrottleHWThermal  // s, cumulative
	ThrottlePowerBrake // s, cumulative
	ThrottleSyncBoost  // s, cumulative

	PCIeTx                // By, cumulative, as the GPU sends
	PCIeRx                // By, cumulative
	NVLinkTx              // By, cumulative over all links, without protocol overhead
	NVLinkRx              // By, cumulative
	PCIeReplays           // PCIe packets sent again, cumulative
	ECCCorrected          // since the driver was loaded
	ECCUncorrected        // since the driver was loaded
	ECCCorrectedEver      // over the device's life
	ECCUncorrectedEver    // over the device's life
	RemappedCorrectable   // rows remapped after correctable errors, over the device's life
	RemappedUncorrectable // rows remapped after uncorrectable errors, over the device's life
	Xids                  // critical errors the driver told since the sampler started

	NumCounters = iota
)

// counterNames spells each counter as it stands in recordings and messages.
var counterNames = [NumCounters]string{
	"graphics_util", "sm_util", "sm_occupancy", "tensor_util", "hmma_util", "imma_util", "dram_util",
	"integer_util", "fp32_util", "fp16_util", "dram_cache_hit",
	"sm_clock", "mem_clock", "event_reasons", "power", "power_limit", "mem_used", "temperature", "gpu_duty", "mem_duty",
	"mem_temperature", "temperature_margin", "pcie_gen", "pcie_width", "row_remap_pending", "row_remap_failure",
	"energy", "throttle_power", "throttle_sw_thermal", "throttle_hw_thermal", "throttle_power_brake", "throttle_sync_boost",
	"pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx", "pcie_replays", "ecc_corrected", "ecc_uncorrected", "ecc_corrected_ever",
	"ecc_uncorrected_ever", "remapped_correctable", "remapped_uncorrectable", "xids",
}

// String returns the counter's name as recordings spell it.
func (c Counter) String() string {
	if int(c) < len(counterNames) {
		return counterNames[c]
	}
	return "unknown"
}

// ParseCounter returns the counter of that name.
func ParseCounter(name string) (Counter, bool) {
	for c, n := range counterNames {
		if n == name {
			return Counter(c), true
		}
	}
	return 0, false
}

// Unit returns the counter's unit in UCUM spelling: "1" for fractions, "Hz", "W", "By", "Cel", "J", "s", an annotation
// for what is counted, or "" for a bit mask.
func (c Counter) Unit() string {
	switch {
	case c <= lastWindowed || c == GPUDuty || c == MemDuty || c == RowRemapPending || c == RowRemapFailure:
		return "1"
	case c == SMClock || c == MemClock:
		return "Hz"
	case c == Power || c == PowerLimit:
		return "W"
	case c == MemUsed || c >= PCIeTx && c <= NVLinkRx:
		return "By"
	case c == Temperature || c == MemTemperature || c == TemperatureMargin:
		return "Cel"
	case c == Energy:
		return "J"
	case c == EventReasons:
		return ""
	}
	if u, ok := countUnits[c]; ok {
		return u
	}
	return "s"
}

// countUnits annotates what is counted.
var countUnits = map[Counter]string{
	PCIeGen: "{generation}", PCIeWidth: "{lane}", PCIeReplays: "{packet}",
	ECCCorrected: "{error}", ECCUncorrected: "{error}", ECCCorrectedEver: "{error}", ECCUncorrectedEver: "{error}",
	RemappedCorrectable: "{row}", RemappedUncorrectable: "{row}", Xids: "{error}",
}

// Windowed reports whether c is an average over its reading's span, and so counts only over whole windows.
func (c Counter) Windowed() bool { return c <= lastWindowed }

// Cumulative reports whether c only grows while the driver is loaded.
func (c Counter) Cumulative() bool { return c >= Energy && c < NumCounters }

// lastWindowed is the last of the averages, which come before all gauges; the cumulative ones come after them.
const lastWindowed = DRAMCacheHit

// CounterSet is a set of counters.
type CounterSet uint64

// Set returns the set of the given counters.
func Set(cs ...Counter) CounterSet {
	var s CounterSet
	for _, c := range cs {
		s |= 1 << c
	}
	return s
}

// Has reports whether c is in s.
func (s CounterSet) Has(c Counter) bool { return s&(1<<c) != 0 }

// All yields the counters in s, in their order.
func (s CounterSet) All() iter.Seq[Counter] {
	return func(yield func(Counter) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(Counter(bits.TrailingZeros64(uint64(s)))) {
				return
			}
		}
	}
}

// GPM is the set of counters that come from one GPM window.
const GPM CounterSet = 1<<(lastWindowed+1) - 1

// Bits of the EventReasons counter, as the driver defines them.
const (
	ReasonIdle         = 0x1
	ReasonAppClocks    = 0x2
	ReasonSWPowerCap   = 0x4
	ReasonHWSlowdown   = 0x8
	ReasonSyncBoost    = 0x10
	ReasonSWThermal    = 0x20
	ReasonHWThermal    = 0x40
	ReasonPowerBrake   = 0x80
	ReasonDisplayClock = 0x100
)

// ReasonThrottles is the set of reasons that slow a busy GPU down. Idle, application clocks and display clocks are
// settings or rest, not throttling.
const ReasonThrottles = ReasonSWPowerCap | ReasonHWSlowdown | ReasonSyncBoost | ReasonSWThermal | ReasonHWThermal | ReasonPowerBrake

// reasonNames spells the reasons in the order of their bits.
var reasonNames = []string{
	"gpu_idle", "app_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks",
}

// ReasonNames returns the names of the reasons in mask, in the order of their bits.
func ReasonNames(mask uint64) []string {
	var names []string
	for i, n := range reasonNames {
		if mask&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// Sample is one reading of a GPU: the counters in Has, over the span Over. Each end of Over is known to Slack. A
// Sample holds counters of one call, so that they share its span; a sampler emits several kinds of Sample.
type Sample struct {
	GPU   int // position in the list of GPUs
	Over  Span
	Slack int64 // ns, half the width of the bracket around the call, per end
	Has   CounterSet
	Value [NumCounters]float64
}

// Get returns the value of c and whether the sample has it.
func (s *Sample) Get(c Counter) (float64, bool) { return s.Value[c], s.Has.Has(c) }

// Put sets c to v.
func (s *Sample) Put(c Counter, v float64) { s.Value[c], s.Has = v, s.Has|1<<c }

// State says why a counter has, or does not have, a value.
type State uint8

// The states of a counter.
const (
	StateUnknown State = iota // not asked yet
	StateOK
	StateUnsupported  // permanent on this device and driver
	StateNoPermission // could be had with more rights
	StateLost         // the device fell off the bus or the driver
	StateTimeout      // the call did not come back
	StateStale        // was read once, is not read any more
	StateUntrusted    // is read, and contradicts what else is known
)

var stateNames = []string{"unknown", "ok", "not_supported", "no_permission", "lost", "timeout", "stale", "untrusted"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Capability is the state of one call on one GPU. Call is a counter's name or another thing that can be asked for.
type Capability struct {
	GPU    int    `json:"gpu"`
	Call   string `json:"call"`
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// ShortUUID returns enough of the UUID of a GPU, or of an instance of one, to tell it from its neighbours, for people.
func ShortUUID(uuid string) string {
	s := strings.TrimPrefix(uuid, "GPU-")
	length := 8
	if strings.HasPrefix(s, instancePrefix) {
		length += len(instancePrefix)
	}
	return s[:min(len(s), length)]
}

// instancePrefix begins the UUID of an instance of a GPU that is cut into some.
const instancePrefix = "MIG-"
