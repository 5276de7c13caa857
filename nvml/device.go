// Package nvml reads GPUs at the rate at which their counters mean something. It knows what a reading may be trusted
// for (how long its window was, how well its ends are known, whether it contradicts itself) and it knows no driver:
// a [Library] is the driver's binding in nvml/libnvml, or a simulation. It reports and does not conclude.
package nvml

import (
	"context"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Source is a source of counters. Run hands what it reads to sink until ctx ends, and leaves nothing behind when it
// returns. The end of ctx is no error.
type Source interface {
	Run(ctx context.Context, sink timeline.GPUSink) error
}

// Library is a driver that was opened.
type Library interface {
	// Devices lists the GPUs that can be opened, in the driver's order, and says in the error which ones cannot: it is
	// a failure only if there are no devices. They stay usable until Close.
	Devices() ([]Device, error)
	// Close frees what the devices hold and lets go of the driver. No device may be in use.
	Close() error
}

// Device is one GPU, or one instance of a GPU that is cut into instances. It is used by one goroutine at a time;
// different devices may be used at the same time.
type Device interface {
	// GPU returns what is fixed about the device.
	GPU() timeline.GPU
	// Read makes one call of the driver and puts each of its counters, or the reason why it is missing, into r.
	// CallTake and CallBetween are not read this way, and what is surveyed neither.
	Read(call Call, r *Reading)
	// Survey makes one call of the driver whose answer is no counter, and puts the answer into v.
	Survey(call Call, v *timeline.Inventory) error
	Windower
}

// Happening is something that the driver tells by itself.
type Happening struct {
	Device int // position in the list that Devices gave, or timeline.NoGPU
	Kind   timeline.EventKind
	Xid    uint64 // of an EventXid
	Detail string
}

// Watcher is a Library that tells what happens to its devices. Its methods are called by one goroutine, at the same
// time as those of the devices, and not after Close.
type Watcher interface {
	// Await waits for the next happening, but not longer than d; false if there was none.
	Await(d time.Duration) (Happening, bool, error)
	// Tells returns why the driver tells no errors of the device at that position; nil if it does.
	Tells(device int) error
	// Changed reports whether the driver lists other devices than Devices did, and what is different.
	Changed() (string, bool)
}

// Windower reads averages over the time between two snapshots of the device's activity.
type Windower interface {
	// Take fills the snapshot buffer of the given slot, 0 to Slots-1.
	Take(slot int) error
	// Between puts the averages between two snapshots into r, as fractions of one. Traffic that the device tells in no
	// other way it puts there too, in bytes a second.
	Between(older, newer int, r *Reading)
}

// Slots is the number of snapshot buffers of each device: one holds the window's start, another takes its end, and two hold
// what was before, by which the lengths of windows are known.
const Slots = 4

// Call names one call of the driver: what is read, timed and fails together.
//
// The driver's rings of samples (nvmlDeviceGetSamples) are not among them, for they would add nothing that is true and not
// known. Power in them is the sensor that the energy counter integrates without a gap, and no finer: that is refreshed
// about ten times a second, and sees a quarter of that time (arXiv 2312.02741). Clocks are read ten times a second as they
// are, and fifty in a burst. Duty cycles come six times a second, of which one is read: it serves to doubt windows that are
// zero, which one in six does as well, and no verdict rests on it. Against that stands a time that some drivers count from
// 1970 and some from boot (polarsignals/gpu-metrics-agent#37), a ring that runs dry on an idle GPU and then looks like a
// driver that is gone (there), no rings at all on a GPU that is cut, and 2 KB of garbage a poll.
type Call uint8

// The calls.
const (
	CallSMClock     Call = iota
	CallMemClock         // memory clock
	CallReasons          // why clocks are held
	CallFields           // power, energy, throttle times and traffic in one batch
	CallHealth           // memory errors, remapped rows, replays and the memory's temperature in one batch
	CallPowerLimit       // enforced limit
	CallMemory           // memory in use
	CallTemperature      // of the GPU
	CallMargin           // temperature left until clocks are cut
	CallPCIeLink         // generation and width, as they are
	CallUtilization      // duty cycles
	CallProcesses        // who computes on the GPU: surveyed
	CallTopology         // NUMA node, links, application clocks: surveyed
	CallTake             // a snapshot of activity
	CallBetween          // arithmetic on two snapshots

	NumCalls = iota
)

// The first and the last call of each tier.
const (
	firstFast, lastFast = CallSMClock, CallReasons
	firstSlow, lastSlow = CallFields, CallUtilization
	firstRare, lastRare = CallProcesses, CallTopology
)

var callNames = [NumCalls]string{
	"sm_clock", "mem_clock", "event_reasons", "field_values", "health_fields", "power_limit", "memory", "temperature",
	"temperature_margin", "pcie_link", "utilization", "processes", "topology", "gpm_sample", "gpm_metrics",
}

// String returns the call's name.
func (c Call) String() string {
	if int(c) < len(callNames) {
		return callNames[c]
	}
	return "unknown"
}

var callCounters = [NumCalls]timeline.CounterSet{
	CallSMClock:  timeline.Set(timeline.SMClock),
	CallMemClock: timeline.Set(timeline.MemClock),
	CallReasons:  timeline.Set(timeline.EventReasons),
	CallFields: throttleTimes | timeline.Set(timeline.Power, timeline.Energy, timeline.PCIeTx, timeline.PCIeRx,
		timeline.NVLinkTx, timeline.NVLinkRx),
	CallHealth: timeline.Set(timeline.MemTemperature, timeline.RowRemapPending, timeline.RowRemapFailure, timeline.PCIeReplays,
		timeline.ECCCorrected, timeline.ECCUncorrected, timeline.ECCCorrectedEver, timeline.ECCUncorrectedEver,
		timeline.RemappedCorrectable, timeline.RemappedUncorrectable),
	CallPowerLimit:  timeline.Set(timeline.PowerLimit),
	CallMemory:      timeline.Set(timeline.MemUsed),
	CallTemperature: timeline.Set(timeline.Temperature),
	CallMargin:      timeline.Set(timeline.TemperatureMargin),
	CallPCIeLink:    timeline.Set(timeline.PCIeGen, timeline.PCIeWidth),
	CallUtilization: timeline.Set(timeline.GPUDuty, timeline.MemDuty),
	CallTake:        timeline.GPM,
	CallBetween:     timeline.GPM,
}

// Counters returns the counters that the call reads.
func (c Call) Counters() timeline.CounterSet {
	if int(c) < len(callCounters) {
		return callCounters[c]
	}
	return 0
}

// Reading is the outcome of calls, counter by counter. The zero Reading holds nothing; it is reused between calls.
type Reading struct {
	Has   timeline.CounterSet
	Value [timeline.NumCounters]float64
	Err   [timeline.NumCounters]error  // why a counter that was asked for is missing
	Note  [timeline.NumCounters]string // how a counter was read, if not the usual way
}

// Reset empties r.
func (r *Reading) Reset() {
	r.Has = 0
	clear(r.Err[:])
	clear(r.Note[:])
}

// Put sets c to v.
func (r *Reading) Put(c timeline.Counter, v float64) {
	r.Has |= timeline.Set(c)
	r.Value[c], r.Err[c] = v, nil
}

// Fail says why c is missing.
func (r *Reading) Fail(c timeline.Counter, err error) {
	r.Has &^= timeline.Set(c)
	r.Err[c] = err
}

// FailAll says why all counters of the set are missing.
func (r *Reading) FailAll(set timeline.CounterSet, err error) {
	for c := range timeline.Counter(timeline.NumCounters) {
		if set.Has(c) {
			r.Fail(c, err)
		}
	}
}

// CoresPerSM returns how many CUDA cores one SM of that compute capability has, by which a driver's count of cores
// tells the SMs (CUDA C++ Programming Guide, compute capabilities: 64 on 7.x and 8.0, 128 on 8.6 and newer).
func CoresPerSM(major, minor int) int {
	if major == 7 || major == 8 && minor == 0 {
		return 64
	}
	return 128
}
