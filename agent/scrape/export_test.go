package scrape

import (
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Wait is how long d would wait before its next look.
func Wait(d *DCGM, now timeline.Instant) time.Duration { return d.wait(now) }
