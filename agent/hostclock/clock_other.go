//go:build !linux

package hostclock

import (
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// origin stands in for the boot where no clock counts from it: instants then compare within this process only.
var origin = time.Now().Add(-time.Second)

func monotonic() (int64, error) { return int64(time.Since(origin)), nil }

func readAll() (timeline.Anchor, error) {
	before := time.Since(origin)
	now := time.Now()
	after := time.Since(origin)
	mid := before + (after-before)/2
	return timeline.Anchor{Mono: timeline.Instant(mid), Real: now.UnixNano(), Boot: int64(mid), Width: after - before}, nil
}

func bootID() string { return "" }
