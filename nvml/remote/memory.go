package remote

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// maxMemory is what a helper may hold: twenty times what it needs. Libraries of drivers, and long-lived monitors on top of
// them, have been seen to grow slowly (NVIDIA/dcgm-exporter#292, NVIDIA/gpu-operator#340), and nothing but the end of the
// process gives that back.
const maxMemory = 256 << 20

// memoryBeats is how many beats lie between two looks at the memory.
const memoryBeats = 10

// errMemory says that the helper holds too much.
var errMemory = errors.New("the helper holds too much memory, and is started anew: the driver's library may leak")

// checkMemory returns errMemory if read tells more than a helper may hold.
func checkMemory(read func() uint64) error {
	if held := read(); held > maxMemory {
		return fmt.Errorf("%d MiB: %w", held>>20, errMemory)
	}
	return nil
}

// residentMemory returns what this process holds in memory (proc(5): the second number of statm, in pages), zero where that
// is not told.
func residentMemory() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
