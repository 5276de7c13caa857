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
