package nvml

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// The time that a window averages over is not the time between its two calls where the driver refreshes what is behind
// snapshots in steps: between calls that are 110 ms apart there lie one step of 100 ms or two. Averages that are weighted
// by the time between calls then add up to the wrong sum, by a percent or so over half a minute. How long a step is, and
// whether there are any, is not documented, and need not be known, for the averages tell it: that over two stretches which
// adjoin is the mean of both averages, weighted by their lengths,
//
//	far..new * (D + d) = far..base * D + base..new * d
//
// so a third, older snapshot gives the length d of the newest stretch, as a part of the longer one from the older snapshot
// to the base, whose length D is known far better. Where the averages are alike they do not tell d, and it does not matter:
// then all weights give the same sum. Windows so laid end to end add up to what the driver counted between the first
// snapshot and the last, to 0.5 % over half a minute in simulation. What is left is largest where a counter stood still for
// long and then rose thirtyfold for the blink of an eye, as the tensor cores do at a prompt amid decode: 1.6 % of that one.
const (
	farAge     = time.Second       // of the younger of the older snapshots, when it takes the place of the oldest
	meanNoise  = 5e-4              // of an average: what it is off by
	lengthBlur = 0.05              // s: by how much the time between calls is off as a length
	maxAge     = MinWindow * 3 / 2 // of what a snapshot holds, when it is taken
	minAge     = -MinWindow / 2    // likewise: what went before may have been placed too late by that much
	minTile    = MinWindow * 19 / 20
	agePull    = 0.3  // of the way to the usual age, each time that averages do not tell the length
	ageBack    = 3    // a third of the way back to an age that can be, each time
	ageMemory  = 0.02 // part of one window in the usual age
)

// means are averages over one stretch.
type means struct {
	has timeline.CounterSet
	v   [timeline.SMClock]float64
}

func (m *means) set(r *Reading) {
	m.has = 0
	for c := range timeline.SMClock {
		if v := r.Value[c]; r.Has.Has(c) && !math.IsNaN(v) && !math.IsInf(v, 0) {
			m.has |= timeline.Set(c)
			m.v[c] = v
		}
	}
}

// older is a snapshot from before the base.
type older struct {
	slot int
	end  timeline.Instant // of what it holds
}

// tiles lays windows end to end.
type tiles struct {
	far  [2]older         // the oldest first
	end  timeline.Instant // of what the base holds
	mean means            // from the oldest to the base
	late time.Duration    // of the base: how old what it holds was when it was taken
	age  time.Duration    // the usual one
	next struct {
		end  timeline.Instant // of what the newest snapshot holds
		mean means            // from the oldest to it
		late time.Duration
		sure float64 // how much of its length the averages told
	}
	here    means // from the base to the newest
	reading Reading
}

// begin makes a snapshot the base and all that is older.
func (t *tiles) begin(slot int, at timeline.Instant) {
	if t.age == 0 {
		t.age = MinWindow / 2 // on average, where counters are refreshed as often as the driver's documentation says
	}
	t.end, t.late, t.mean.has = at.Add(-t.age), t.age, 0
	first := older{slot, t.end}
	t.far = [2]older{first, first}
}

// free returns a slot that holds nothing that is needed.
func (t *tiles) free(base int) int {
	for slot := range Slots {
		if slot != base && slot != t.far[0].slot && slot != t.far[1].slot {
			return slot
		}
	}
	return 1 - base // cannot be: there is one slot more than is held
}

// length returns how long the stretch is that here covers, which starts at the end of the base, and how much of that the
// averages tell; width is the time between the calls.
func (t *tiles) length(width time.Duration) (length time.Duration, sure float64) {
	const before = 1 / (lengthBlur * lengthBlur)
	usual := width + time.Duration(agePull*float64(t.late-t.age))
	sum, weight := usual.Seconds()*before, float64(before)
	if far := t.end.Sub(t.far[0].end).Seconds(); far > 0 {
		precision := 1 / (far * far * meanNoise * meanNoise)
		for c := range (t.here.has & t.mean.has & t.next.mean.has).All() {
			x, y := t.next.mean.v[c]-t.here.v[c], t.mean.v[c]-t.next.mean.v[c]
			sum += x * y * far * precision
			weight += x * x * precision
		}
	}
	return time.Duration(sum / weight * float64(time.Second)), 1 - before/weight
}

// place returns the time that the window between two snapshots averages over, whose averages are in the reading.
func (s *Sampler) place(newer int, over timeline.Span) timeline.Span {
	t := &s.tiles
	t.here.set(&s.reading)
	t.next.mean.has = 0
	if t.far[0].slot == s.window.slot {
		t.next.mean = t.here // the second window of all
	} else if t.here.has != 0 {
		s.between(t.far[0].slot, newer, &t.next.mean)
	}
	d, sure := t.length(over.Duration())
	d += min(t.late, 0) / ageBack // no snapshot holds what is to come
	t.next.end = min(max(t.end.Add(min(max(d, minTile), MaxWindow)), over.End.Add(-maxAge)), over.End.Add(-minAge))
	t.next.late, t.next.sure = over.End.Sub(t.next.end), sure
	return timeline.Span{Start: t.end, End: t.next.end}
}

// between reads the averages between two snapshots for their lengths alone.
func (s *Sampler) between(first, second int, to *means) {
	r := &s.tiles.reading
	r.Reset()
	s.enter(s.now())
	s.device.Between(first, second, r)
	var err error
	if r.Has == 0 {
		err = r.Err[timeline.SMUtil]
	}
	s.leave(CallBetween, err)
	to.set(r)
}

// follow takes note that the newest snapshot is the base now; before is the slot of the old one.
func (s *Sampler) follow(before int) {
	t := &s.tiles
	if t.end.Sub(t.far[1].end) >= farAge {
		t.far[0], t.far[1] = t.far[1], older{before, t.end}
		t.next.mean.has = 0
		s.between(t.far[0].slot, s.window.slot, &t.next.mean)
	}
	t.mean, t.end, t.late = t.next.mean, t.next.end, t.next.late
	t.age += time.Duration(ageMemory * t.next.sure * float64(t.late-t.age))
}
