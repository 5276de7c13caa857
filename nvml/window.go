package nvml

import (
	"errors"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// retryWindow is the wait after a failed snapshot. The driver is not asked at full rate for what it refuses.
	retryWindow = time.Second
	// tolerance is how far a fraction may lie outside 0 to 1 and still be taken for its rounding.
	tolerance = 0.02
	// maxBracket is the share of a window that the call at its end may take.
	maxBracket = 5 // one fifth
)

// window is the state of the window tier: the snapshot that the next one is compared with.
type window struct {
	period  time.Duration
	next    timeline.Instant
	have    bool // a baseline exists
	slot    int  // of the baseline
	mid     timeline.Instant
	bracket time.Duration
	heavy   int // snapshots in a row whose calls took too long to place them
}

// windowed reports whether the device still gives windows.
func (s *Sampler) windowed() bool { return s.info.GPM && timeline.GPM&^s.ignored != 0 }

// readWindow takes a snapshot and hands on the averages since the last one. The calls are at the middles of their brackets;
// what the window covers is close to that, and follows what the window before covered.
func (s *Sampler) readWindow(sink timeline.GPUSink) {
	w := &s.window
	slot := s.tiles.free(w.slot)
	began := s.now()
	if due := began.Sub(w.next); due >= w.period {
		s.countMissed(uint64(due / w.period))
	}
	s.enter(began)
	err := s.device.Take(slot)
	after := s.leave(CallTake, err)
	s.settle(sink, CallTake, after, err)
	if err != nil {
		s.windowFailed(sink, after, err)
		return
	}
	mid, bracket := timeline.Span{Start: began, End: after}.Mid(), after.Sub(began)
	w.next = mid.Add(w.period)
	if !w.have {
		s.baseline(sink, slot, mid, bracket)
		return
	}
	width := mid.Sub(w.mid)
	switch {
	case width > MaxWindow:
		s.drop(DropLong)
		s.openGap(sink, after, "no snapshot for "+width.Round(time.Millisecond).String())
		s.baseline(sink, slot, mid, bracket)
		return
	case bracket > width/maxBracket:
		s.drop(DropBracket) // the baseline stays: the next window spans both
		return
	case width < MinWindow:
		s.drop(DropShort)
		w.next = w.mid.Add(w.period)
		return
	}
	over, slack := timeline.Span{Start: w.mid, End: mid}, int64(max(bracket, w.bracket))/2 // of the calls
	if used := s.compare(sink, w.slot, slot, over, slack); !used && s.lost == nil {
		if width+w.period <= MaxWindow {
			return // the counters were not refreshed in between: the next window spans both
		}
		s.openGap(sink, after, "no counter of the window could be used")
	}
	before := w.slot
	w.slot, w.mid, w.bracket = slot, mid, bracket
	s.follow(before)
}

// baseline keeps a snapshot as the start of the next window, unless its own call took too long to place it.
func (s *Sampler) baseline(sink timeline.GPUSink, slot int, mid timeline.Instant, bracket time.Duration) {
	w := &s.window
	if w.have = bracket <= w.period/maxBracket; !w.have {
		s.drop(DropBracket)
		s.openGap(sink, mid, "snapshots take "+bracket.Round(time.Millisecond).String())
		if w.heavy++; w.heavy >= heavyRounds {
			w.next = mid.Add(min(max(w.period, s.rest(bracket, mid)), maxSlowPeriod))
		}
		return
	}
	w.heavy = 0
	s.drop(DropFirst)
	w.slot, w.mid, w.bracket = slot, mid, bracket
	s.tiles.begin(slot, mid)
}

// compare reads the averages between two snapshots, checks them, and hands on what is left. It reports whether the
// window was of any use.
func (s *Sampler) compare(sink timeline.GPUSink, older, newer int, over timeline.Span, slack int64) bool {
	s.reading.Reset()
	s.enter(s.now())
	s.device.Between(older, newer, &s.reading)
	end := s.leave(CallBetween, s.firstError(timeline.GPM))
	if s.lost != nil {
		return false
	}
	over = s.place(newer, over)
	if s.lost != nil {
		return false
	}
	s.flows.add(&s.reading, over.Duration())
	s.checkFractions()
	s.trust.full(&s.reading)
	s.noteOutcomes(sink, CallBetween, CallBetween)
	if s.reading.Has == 0 {
		return false
	}
	zero, frozen := s.trust.contradicted(&s.reading), s.trust.frozen(&s.reading)
	if zero || frozen {
		why, reason := DropContradicted, "all windows read zero while duty or power say busy"
		if frozen {
			why, reason = DropFrozen, "windows repeat the same numbers while clocks or power move"
		}
		s.drop(why)
		s.setStates(sink, s.reading.Has, timeline.StateUntrusted, reason)
		s.gap = s.gap && s.distrusted // that windows were missing before does not tell why they are now
		s.distrusted = true
		s.openGap(sink, end, reason)
		return true
	}
	s.gap, s.distrusted = false, false
	s.setStates(sink, s.reading.Has, timeline.StateOK, "")
	s.mu.Lock()
	s.stats.Windows++
	s.mu.Unlock()
	s.emit(sink, over, slack)
	return true
}

// traffic are the counters that windows can stand in for.
const traffic = timeline.CounterSet(1<<timeline.PCIeTx | 1<<timeline.PCIeRx | 1<<timeline.NVLinkTx | 1<<timeline.NVLinkRx)

// maxFlow is more than any link of a GPU carries, in bytes a second.
const maxFlow = 4e12

// flows integrates traffic over windows, for devices that do not count its bytes.
type flows struct {
	known timeline.CounterSet
	asked bool // a window was read
	bytes [timeline.NVLinkRx - timeline.PCIeTx + 1]float64
}

// add takes the flows of one window out of r.
func (f *flows) add(r *Reading, over time.Duration) {
	f.asked = true
	for c := timeline.PCIeTx; c <= timeline.NVLinkRx; c++ {
		if v := r.Value[c]; r.Has.Has(c) && v >= 0 && v <= maxFlow {
			f.known |= timeline.Set(c)
			f.bytes[c-timeline.PCIeTx] += v * over.Seconds()
		}
	}
	r.Has &^= traffic
}

// fill puts the integrals where the device counts no bytes, and says so. Until the first window of a device that has
// windows it is open whether there will be any.
func (f *flows) fill(r *Reading, windowed bool) {
	for c := timeline.PCIeTx; c <= timeline.NVLinkRx; c++ {
		if r.Has.Has(c) || r.Err[c] != nil && !errors.Is(r.Err[c], ErrNotSupported) {
			continue
		}
		switch {
		case f.known.Has(c):
			r.Put(c, f.bytes[c-timeline.PCIeTx])
			r.Note[c] = "traffic a second by the windows of activity, integrated: the driver counts no bytes here"
		case windowed && !f.asked:
			r.Err[c] = nil
		}
	}
}

// checkFractions drops what is no fraction and clamps what is one but for rounding.
func (s *Sampler) checkFractions() {
	for c := range timeline.Counter(timeline.NumCounters) {
		if !s.reading.Has.Has(c) {
			continue
		}
		switch v := s.reading.Value[c]; {
		case math.IsNaN(v) || math.IsInf(v, 0):
			s.drop(DropNaN)
			s.reading.Has &^= timeline.Set(c)
		case v < -tolerance || v > 1+tolerance:
			s.drop(DropRange)
			s.reading.Has &^= timeline.Set(c)
		default:
			s.reading.Value[c] = min(max(v, 0), 1)
		}
	}
}

// windowFailed notes a snapshot that could not be taken. What it would have been compared with is too old when the
// next one succeeds.
func (s *Sampler) windowFailed(sink timeline.GPUSink, at timeline.Instant, err error) {
	s.window.have = false
	s.window.next = max(at.Add(retryWindow), s.calls[CallTake].next)
	s.drop(DropFailed)
	if s.lost != nil {
		return
	}
	s.setStates(sink, timeline.GPM, StateOf(err), err.Error())
	s.openGap(sink, at, err.Error())
}

func (s *Sampler) drop(why Drop) {
	s.mu.Lock()
	s.stats.Dropped[why]++
	s.mu.Unlock()
}

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
	slot := 0 // at most three of them are held
	for slot == base || slot == t.far[0].slot || slot == t.far[1].slot {
		slot++
	}
	return slot
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
