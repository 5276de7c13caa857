package hostclock

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestChanges(t *testing.T) {
	const sec = time.Second
	from := timeline.Anchor{Mono: 1e12, Real: 1.7e18, Boot: 1e12, Width: 2 * time.Microsecond}
	move := func(mono, wall, boot time.Duration) timeline.Anchor {
		to := from
		to.Mono, to.Real, to.Boot = to.Mono.Add(mono), to.Real+int64(wall), to.Boot+int64(boot)
		return to
	}
	tests := []struct {
		name string
		to   timeline.Anchor
		want []timeline.EventKind
	}{
		{"clocks that go together tell nothing", move(sec, sec, sec), nil},
		{"the fastest slew is no step", move(sec, sec+500*time.Microsecond, sec), nil},
		{"half a millisecond is no step", move(sec, sec-500*time.Microsecond, sec), nil},
		{"a step forward is told", move(sec, 2*sec, sec), []timeline.EventKind{timeline.EventClockStep}},
		{"a step back is told", move(sec, 0, sec), []timeline.EventKind{timeline.EventClockStep}},
		{"two milliseconds are a step", move(sec, sec+2*time.Millisecond, sec), []timeline.EventKind{timeline.EventClockStep}},
		{"a suspend is no step", move(sec, 31*sec, 31*sec), []timeline.EventKind{timeline.EventSuspend}},
		{
			"a step during a suspend is told beside it", move(sec, 41*sec, 31*sec),
			[]timeline.EventKind{timeline.EventSuspend, timeline.EventClockStep},
		},
		{"two ticks late is no pause", move(3*sec, 3*sec, 3*sec), nil},
		{"more than two ticks late is a pause", move(3*sec+1, 3*sec+1, 3*sec+1), []timeline.EventKind{timeline.EventPause}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []timeline.EventKind
			for _, e := range changes(from, tt.to, sec) {
				if e.At != tt.to.Mono || e.GPU != timeline.NoGPU || e.Detail == "" {
					t.Errorf("event %+v has no place or no detail", e)
				}
				got = append(got, e.Kind)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("changes() mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
