package hostclock

import (
	"context"
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// stepFloor is the least change of the wall clock against the monotonic one that counts as a step.
	stepFloor = time.Millisecond
	// slewLimit is the fastest the kernel bends a clock without stepping it: 500 ppm (adjtimex(2)). Both clocks are bent
	// alike, so that it is a margin and not the normal case.
	slewLimit = 500e-6
	// suspendFloor is the least growth of the boot clock over the monotonic one that counts as a suspend.
	suspendFloor = 10 * time.Millisecond
	// lateTicks is how many ticks an anchor may be late before the process counts as paused.
	lateTicks = 2
)

// Run takes an anchor at once and then each time every has passed, hands it to emit, and tells event of steps,
// suspends and pauses between two anchors. It returns nil when ctx ends, and an error if a clock cannot be read.
func (c *Clock) Run(ctx context.Context, every time.Duration, emit func(timeline.Anchor), event func(timeline.Event)) error {
	if every <= 0 {
		return fmt.Errorf("watch clocks: interval %v is not positive", every)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last timeline.Anchor
	for {
		a, err := c.Anchor()
		if err != nil {
			return err
		}
		emit(a)
		if !last.Mono.IsZero() {
			for _, e := range changes(last, a, every) {
				event(e)
			}
		}
		last = a
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// changes says what happened to the clocks between two anchors that were to be every apart.
func changes(from, to timeline.Anchor, every time.Duration) []timeline.Event {
	var events []timeline.Event
	add := func(kind timeline.EventKind, format string, d time.Duration) {
		events = append(events, timeline.Event{At: to.Mono, Kind: kind, GPU: timeline.NoGPU, Detail: fmt.Sprintf(format, d)})
	}
	ran := to.Mono.Sub(from.Mono)
	margin := from.Width/2 + to.Width/2
	slept := time.Duration(to.Boot-from.Boot) - ran
	if slept > suspendFloor+margin {
		add(timeline.EventSuspend, "the host was suspended for %v", slept)
	} else {
		slept = 0
	}
	// The wall clock goes on during a suspend, so that only what the boot clock does not explain is a step.
	step := time.Duration(to.Real-from.Real) - ran - slept
	allowed := stepFloor + margin + time.Duration(slewLimit*float64(ran+slept))
	if step.Abs() > allowed {
		add(timeline.EventClockStep, "the wall clock was set by %v", step)
	}
	if late := ran - every; late > lateTicks*every {
		add(timeline.EventPause, "nothing ran for %v", late)
	}
	return events
}
