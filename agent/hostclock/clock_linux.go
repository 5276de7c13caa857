package hostclock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func gettime(clock int32) (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return ts.Nano(), nil
}

func monotonic() (int64, error) { return gettime(unix.CLOCK_MONOTONIC) }

// readAll reads the wall clock and the boot clock between two readings of the monotonic clock, all by system calls of
// like cost, so that the middle of the bracket is where the others were read.
func readAll() (timeline.Anchor, error) {
	var v [4]int64
	for i, clock := range [...]int32{unix.CLOCK_MONOTONIC, unix.CLOCK_REALTIME, unix.CLOCK_BOOTTIME, unix.CLOCK_MONOTONIC} {
		ns, err := gettime(clock)
		if err != nil {
			return timeline.Anchor{}, err
		}
		v[i] = ns
	}
	width := v[3] - v[0]
	return timeline.Anchor{Mono: timeline.Instant(v[0] + width/2), Real: v[1], Boot: v[2], Width: time.Duration(width)}, nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
