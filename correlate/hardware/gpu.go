// Package hardware holds facts: what the data sheets and drivers say of GPUs, what published configurations say of
// models, and how many bits a number format stores. It knows no formula for a step's time or traffic, and it guesses
// nothing: what is not in a table is an error that names the nearest entries, and a number that sources do not agree
// on is marked as assumed.
package hardware

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Memory is a family of DRAM.
type Memory string

// The families of DRAM.
const (
	HBM2  Memory = "HBM2"
	HBM2e Memory = "HBM2e"
	HBM3  Memory = "HBM3"
	HBM3e Memory = "HBM3e"
	GDDR6 Memory = "GDDR6"
	GDDR7 Memory = "GDDR7"
)

// Rates are dense peak rates of the tensor cores in operations per second, without sparsity, at the clock that the
// data sheet assumes. A rate of zero means that the device has no such mode.
type Rates struct {
	BF16 float64 // bf16 or fp16 with fp32 accumulation
	FP8  float64
	INT8 float64
	FP4  float64
	FP32 float64 // outside the tensor cores
}

// GPU is what is known of one model of GPU. Clocks are in Hz, rates in operations per second.
type GPU struct {
	Name           string   // as NVML spells it
	Aliases        []string // other spellings, and short names for people
	Memory         Memory
	MemoryBytes    uint64
	SheetBandwidth float64 // bytes per second, from the data sheet
	Rates          Rates
	RateClockHz    float64 // the SM clock at which Rates hold
	MaxSMClockHz   float64
	MaxMemClockHz  float64
	BusWidthBits   int
	SMs            int
	L2Bytes        float64
	TDPWatts       float64
	NVLinkBps      float64 // bytes per second, both directions together; zero without NVLink
	Capability     string  // CUDA compute capability
	GPM            bool    // the driver reads windows of activity: Hopper and newer data center parts
	Assumed        []string
}

// Describe returns the device as a driver would tell it, with its place in the enumeration and its identity.
func (g GPU) Describe(index int, uuid string) timeline.GPU {
	return timeline.GPU{
		UUID: uuid, Name: g.Name, Index: index, ComputeCapability: g.Capability, MemoryBytes: g.MemoryBytes,
		BusWidthBits: g.BusWidthBits, SMs: g.SMs, MaxSMClockHz: g.MaxSMClockHz, MaxMemClockHz: g.MaxMemClockHz,
		PowerLimitW: g.TDPWatts, DefaultLimitW: g.TDPWatts, GPM: g.GPM,
	}
}

// Rate returns the dense peak rate of the tensor cores for arithmetic in dtype, and whether the device has that mode.
// Storage formats count as the arithmetic they are used with: see [DType].
func (g GPU) Rate(dtype string) (float64, bool) {
	d, err := LookupDType(dtype)
	if err != nil {
		return 0, false
	}
	return g.RateOf(d)
}

// RateOf returns the same of a format that need not be in the table.
func (g GPU) RateOf(d DType) (float64, bool) {
	var r float64
	switch d.Math {
	case "bf16":
		r = g.Rates.BF16
	case "fp8":
		r = g.Rates.FP8
	case "int8":
		r = g.Rates.INT8
	case "fp4":
		r = g.Rates.FP4
	case "fp32":
		r = g.Rates.FP32
	}
	return r, r > 0
}

// ShortName returns the name without the vendor's.
func (g GPU) ShortName() string { return strings.TrimPrefix(g.Name, "NVIDIA ") }

// Alias returns the usual short name, in capitals.
func (g GPU) Alias() string {
	if len(g.Aliases) == 0 {
		return g.ShortName()
	}
	return strings.ToUpper(g.Aliases[0])
}

// DerivedBandwidth returns the theoretical DRAM bandwidth in bytes per second from memory clock and bus width: two
// transfers a clock. Zero if either is unknown.
func (g GPU) DerivedBandwidth() float64 { return g.Describe(0, "").DerivedBandwidth() }

// Uncertain reports whether the named field of g, such as "Rates.FP4", is a number that sources do not agree on or do
// not state.
func (g GPU) Uncertain(field string) bool { return g.isAssumed(field) }

// isAssumed reports whether the named field of g is a number that sources do not agree on or do not state.
func (g GPU) isAssumed(field string) bool { return slices.Contains(g.Assumed, field) }

// GPUs returns all GPUs of the table, in its order.
func GPUs() []GPU { return slices.Clone(gpuTable) }

// LookupGPU returns the GPU of that name: NVML's spelling, or a short name such as "h100" or "l40s". The comparison
// ignores case, the vendor's name and punctuation. An unknown name is an error that names the nearest entries.
func LookupGPU(name string) (GPU, error) {
	key := gpuKey(name)
	for _, g := range gpuTable {
		if gpuKey(g.Name) == key {
			return g, nil
		}
	}
	for _, g := range gpuTable {
		if slices.ContainsFunc(g.Aliases, func(a string) bool { return gpuKey(a) == key }) {
			return g, nil
		}
	}
	return GPU{}, unknown("gpu", name, gpuNames())
}

// IdentifyGPU returns the table's entry for a device as its driver describes it. The name alone is not enough: names
// collide, so memory size and number of SMs must fit where the driver tells them. If the name is unknown or does not
// fit, the one entry with that name's prefix that fits both is taken; else the error says what disagrees.
func IdentifyGPU(d timeline.GPU) (GPU, error) {
	g, err := LookupGPU(d.Name)
	if err == nil {
		if err = g.contradicts(d); err == nil {
			return g, nil
		}
	}
	if d.MIG {
		return GPU{}, fmt.Errorf("identify gpu %q: an instance of a device has no entry of its own", d.Name)
	}
	if d.MemoryBytes == 0 || d.SMs == 0 {
		return GPU{}, err
	}
	var found []GPU
	for _, c := range gpuTable {
		if sharesFamily(c.Name, d.Name) && c.contradicts(d) == nil {
			found = append(found, c)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return GPU{}, err
}

// contradicts returns an error if what the driver tells of d cannot be a g. Drivers report a little less memory than
// the board holds and, with error correction, less still, so the size may differ by a tenth.
func (g GPU) contradicts(d timeline.GPU) error {
	if d.MemoryBytes != 0 && g.MemoryBytes != 0 {
		if r := float64(d.MemoryBytes) / float64(g.MemoryBytes); r < 0.9 || r > 1.1 {
			return fmt.Errorf("identify gpu %q: it has %d MiB of memory, a %s has %d MiB", d.Name, d.MemoryBytes>>20, g.Name, g.MemoryBytes>>20)
		}
	}
	if d.SMs != 0 && g.SMs != 0 && d.SMs != g.SMs && !g.isAssumed("SMs") {
		return fmt.Errorf("identify gpu %q: it has %d SMs, a %s has %d", d.Name, d.SMs, g.Name, g.SMs)
	}
	return nil
}

// sharesFamily reports whether two names speak of the same chip: one of their words that holds a digit, such as
// "H100", is the same.
func sharesFamily(a, b string) bool {
	words := strings.FieldsFunc(strings.ToLower(a), notAlnum)
	for _, w := range strings.FieldsFunc(strings.ToLower(b), notAlnum) {
		if strings.ContainsAny(w, "0123456789") && !strings.HasSuffix(w, "gb") && slices.Contains(words, w) {
			return true
		}
	}
	return false
}

// gpuKey is the form in which names of GPUs compare.
func gpuKey(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), notAlnum)
	words = slices.DeleteFunc(words, func(w string) bool { return w == "nvidia" || w == "tesla" || w == "geforce" })
	return strings.Join(words, "")
}

func notAlnum(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

func gpuNames() []string {
	var names []string
	for _, g := range gpuTable {
		names = append(append(names, g.Name), g.Aliases...)
	}
	return names
}
