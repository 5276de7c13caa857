package sim

import (
	"fmt"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// The shared page is an array of 64-bit words in the machine's order: a header, then one block a GPU. Text is padded
// with zero bytes, fractions and seconds are IEEE 754 doubles, all else is an unsigned integer. This table is the only
// description of it: driver/page.h is written from it, and a test holds the two to each other.
//
// Everything in a block but the faults is guarded by its seq word: odd while the writer is in the block, so that a
// reader who saw an odd or a changed seq reads again.

const (
	pageMagic   = 0x4c4d_564e_544f_5054 // "TPOTNVML" read as a little-endian word
	pageVersion = 3

	// MaxGPUs is the most GPUs, instances included, that a page holds.
	MaxGPUs = 24
	// maxEvents is how many events a page remembers.
	maxEvents = 16
	// maxLinks is the most NVLinks that a page tells of a GPU, and maxProcesses the most processes.
	maxLinks     = 18
	maxProcesses = 8
	busIDWords   = 4
)

// field is a run of words.
type field struct {
	name  string
	words int
}

var headerFields = []field{
	{"MAGIC", 1},
	{"VERSION", 1},
	{"GPUS", 1},              // devices; their instances come after them
	{"BLOCKS", 1},            // devices and instances
	{"THROTTLE_FIELD", 1},    // id of the software thermal throttle time; the two ids after it are hardware thermal and brake; 0 for none
	{"INIT_CODE", 1},         // what opening the driver returns
	{"INIT_DELAY_US", 1},     // how long it takes
	{"DRIVER", 10},           // text: driver version
	{"EVENTS", 1},            // how many there ever were
	{"EVENT", 3 * maxEvents}, // a ring: GPU, type, number
	{"HEADER_SPARE", 16},
}

var blockFields = []field{
	{"SEQ", 1},
	// what is fixed
	{"NAME", 12},
	{"UUID", 12},
	{"BUS_ID", 4},
	{"CC_MAJOR", 1},
	{"CC_MINOR", 1},
	{"MEMORY_TOTAL", 1}, // bytes
	{"BUS_WIDTH", 1},    // bits
	{"CORES", 1},
	{"MAX_SM_MHZ", 1},
	{"MAX_MEM_MHZ", 1},
	{"DEFAULT_LIMIT_MW", 1},
	{"GPM", 1},
	{"MIG", 1},
	{"LACKS", 1},       // set of counters, by the numbers below, that the world does not tell
	{"PARENT", 1},      // of an instance: its device's index and one; 0: a device
	{"INSTANCE_ID", 1}, // of an instance
	{"SLICES", 1},      // of an instance
	{"PRESENT", 1},     // 0: an instance that is not there at the moment
	{"NUMA", 1},        // node and one; 0: not told
	{"PCIE_MAX_GEN", 1},
	{"PCIE_MAX_WIDTH", 1},
	{"APP_SM_MHZ", 1},
	{"APP_MEM_MHZ", 1},
	{"LINKS", 1},                           // NVLinks there are
	{"LINKS_UP", 1},                        // a bit each
	{"PEER_BUS_ID", busIDWords * maxLinks}, // of the other end of each link
	{"PROCESSES", 1},                       // and one; 0: not told
	{"PROCESS", 2 * maxProcesses},          // pid and bytes of each
	// at the moment of the last refresh
	{"SM_MHZ", 1},
	{"MEM_MHZ", 1},
	{"REASONS", 1},
	{"POWER_MW", 1},
	{"LIMIT_MW", 1},
	{"MEMORY_USED", 1}, // bytes
	{"TEMPERATURE", 1}, // degrees Celsius
	{"GPU_DUTY", 1},    // percent
	{"MEM_DUTY", 1},    // percent
	{"MEM_TEMPERATURE", 1},
	{"MARGIN", 1},
	{"PCIE_GEN", 1},
	{"PCIE_WIDTH", 1},
	{"ROW_PENDING", 1},
	{"ROW_FAILURE", 1},
	// since the driver was loaded
	{"ENERGY_MJ", 1},
	{"THROTTLE_NS", 5},      // power cap, software thermal, hardware thermal, brake, sync boost
	{"TOTALS", len(totals)}, // PCIe out and in, NVLink out and in (bytes), replays, errors corrected and not, of old, rows remapped after either
	// activity, as of the last refresh of the counters behind it
	{"ACTIVITY_NS", 1},          // the time they stand for
	{"ACTIVITY", len(activity)}, // seconds of graphics, SM, occupancy, any tensor, HMMA, IMMA, DRAM bandwidth at its maximum, integer, FP32, FP16, cache hits
	// faults: the return code, and the delay, of each call; and the return code of each activity metric
	{"CALL_CODE", nvml.NumCalls},
	{"CALL_DELAY_US", nvml.NumCalls},
	{"CALL_MODE", nvml.NumCalls},
	{"METRIC_CODE", len(activity)},
	{"FROZEN", 1},    // windows repeat what the last one said
	{"OPEN_CODE", 1}, // what asking for the GPU's handle returns
	{"BLOCK_SPARE", 16},
}

// offset returns the first word of the named field; a name that is not in the table is a mistake of this package, and
// its offset lies outside of every page.
func offset(fields []field, name string) int {
	at := 0
	for _, f := range fields {
		if f.name == name {
			return at
		}
		at += f.words
	}
	return -1 << 31
}

// size returns how many words the fields take.
func size(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.words
	}
	return n
}

// pageWords is the size of a page.
func pageWords() int { return size(headerFields) + MaxGPUs*size(blockFields) }

// CHeader returns the layout as the C header that the simulated driver library is compiled with.
func CHeader() string {
	var b strings.Builder
	b.WriteString("/* Words of the shared page. Written from the table in nvml/sim/layout.go; change that. */\n")
	b.WriteString("#ifndef TPOTSCOPE_PAGE_H\n#define TPOTSCOPE_PAGE_H\n\n")
	fmt.Fprintf(&b, "#define PAGE_MAGIC_VALUE 0x%xULL\n#define PAGE_VERSION_VALUE %d\n#define PAGE_MAX_GPUS %d\n",
		uint64(pageMagic), pageVersion, MaxGPUs)
	fmt.Fprintf(&b, "#define PAGE_HEADER_WORDS %d\n#define PAGE_BLOCK_WORDS %d\n", size(headerFields), size(blockFields))
	b.WriteString("\n/* header */\n")
	define(&b, "PAGE_", headerFields)
	b.WriteString("\n/* block of one GPU */\n")
	define(&b, "GPU_", blockFields)
	b.WriteString("\n/* indices into CALL_CODE and CALL_DELAY_US */\n")
	for c := range nvml.Call(nvml.NumCalls) {
		fmt.Fprintf(&b, "#define CALL_%s %d\n", strings.ToUpper(c.String()), c)
	}
	b.WriteString("\n/* modes of a call */\n")
	fmt.Fprintf(&b, "#define MODE_STUBBORN %d\n#define MODE_CRASH %d\n", ModeStubborn, ModeCrash)
	fmt.Fprintf(&b, "\n#define PAGE_MAX_EVENTS %d\n#define PAGE_MAX_PROCESSES %d\n#define BUS_ID_WORDS %d\n", maxEvents, maxProcesses, busIDWords)
	b.WriteString("\n/* counters, as bits of LACKS */\n")
	for c := range timeline.Counter(timeline.NumCounters) {
		fmt.Fprintf(&b, "#define COUNTER_%s %d\n", strings.ToUpper(c.String()), c)
	}
	b.WriteString("\n#endif\n")
	return b.String()
}

func define(b *strings.Builder, prefix string, fields []field) {
	for _, f := range fields {
		fmt.Fprintf(b, "#define %s%s %d\n", prefix, f.name, offset(fields, f.name))
		if f.words > 1 {
			fmt.Fprintf(b, "#define %s%s_WORDS %d\n", prefix, f.name, f.words)
		}
	}
}
