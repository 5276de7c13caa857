package nvml

import (
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// duty measures what share of a thread the calls take, and stretches the periods when it is too much.
type duty struct {
	busy    time.Duration
	since   timeline.Instant
	stretch float64
	over    int  // spans in a row that took more than the budget
	said    bool // that the periods are stretched
}

const (
	dutySpan     = time.Second
	stretchStep  = 1.5
	maxStretch   = 32
	windowGiveUp = 5 // stretch above which windows are made longer too
	slowGiveUp   = 8 // stretch above which slow calls are made less often too

	burstPeriod = minFastPeriod
	maxBurst    = 5 * time.Minute
	burstBudget = 0.1 // share of a thread that a burst, which somebody asked for, may take
)

// budget returns the share of a thread that calls may take.
func (s *Sampler) budget(now timeline.Instant) float64 {
	if s.bursting(now) {
		return max(s.cfg.DutyBudget, burstBudget)
	}
	return s.cfg.DutyBudget
}

// adapt stretches the fast tier while the calls take more than the budget, then the windows, then the slow tier, and
// shrinks them back when there is room.
func (s *Sampler) adapt(sink timeline.GPUSink) {
	now := s.now()
	span := now.Sub(s.duty.since)
	if span < dutySpan {
		return
	}
	share, budget := s.duty.busy.Seconds()/span.Seconds(), s.budget(now)
	s.duty.busy, s.duty.since = 0, now
	if share > budget {
		s.duty.stretch = min(s.duty.stretch*stretchStep, maxStretch)
		s.duty.over++
	} else {
		s.duty.over = 0
	}
	if share < budget/2 {
		s.duty.stretch = max(s.duty.stretch/stretchStep, 1)
	}
	s.pace(now)
	s.mu.Lock()
	s.stats.Duty = share
	s.mu.Unlock()
	s.sayRate(sink, now, share, budget)
}

// sayAfter is how many spans in a row have to take more than the budget before that is worth a word: one slow call is not.
const sayAfter = 3

// sayRate says once that counters are read less often, and once that they are read as often as before.
func (s *Sampler) sayRate(sink timeline.GPUSink, now timeline.Instant, share, budget float64) {
	slower := s.duty.stretch > 1
	if slower == s.duty.said || slower && s.duty.over < sayAfter {
		return
	}
	s.duty.said = slower
	why := "calls of the driver are within their budget again: counters are read as often as before"
	if slower {
		why = fmt.Sprintf("calls of the driver take %.1f %% of a thread, %.1f %% are allowed: clocks are read each %v, and less often "+
			"if that is not enough", 100*share, 100*budget, s.fast.period.Round(time.Millisecond))
	}
	sink.AddEvent(timeline.Event{At: now, Kind: timeline.EventRate, GPU: s.gpu, Detail: why})
}

// pace sets the periods by the configuration, what calls cost, a burst, and how often counters change.
func (s *Sampler) pace(now timeline.Instant) {
	st := s.duty.stretch
	fast := s.cfg.FastPeriod
	if s.bursting(now) {
		fast = min(fast, burstPeriod)
	}
	fast = max(fast, s.floorOf(firstFast, lastFast))
	s.fast.period = min(time.Duration(float64(fast)*st), maxFastPeriod)
	s.window.period = s.cfg.Period
	if st > windowGiveUp {
		s.window.period = min(2*s.cfg.Period, maxPeriod)
	}
	s.slow.period = max(s.cfg.SlowPeriod, s.floorOf(firstSlow, lastSlow))
	if st > slowGiveUp {
		s.slow.period = min(time.Duration(float64(s.slow.period)*st/slowGiveUp), maxSlowPeriod)
	}
	s.mu.Lock()
	s.stats.Period, s.stats.FastPeriod, s.stats.SlowPeriod, s.stats.Stretch = s.window.period, s.fast.period, s.slow.period, st
	s.stats.Burst = s.bursting(now)
	s.mu.Unlock()
}

// heavyRounds is how many rounds in a row have to be heavy: one slow call is an accident.
const heavyRounds = 3

// maxRareRest is the most that what is surveyed rests.
const maxRareRest = 10 * time.Minute

// advance moves a tier past a round of calls that began at that time. A round that costs more than the longest stretched
// period makes up for is followed by a rest, so that the tiers together come to the budget.
func (s *Sampler) advance(t *tier, began timeline.Instant, longest, mostRest time.Duration) {
	now := s.now()
	s.countMissed(t.advance(now))
	t.heavy++
	if float64(now.Sub(began)) <= s.budget(now)*float64(longest) {
		t.heavy = 0
	}
	if t.heavy >= heavyRounds {
		t.next = max(t.next, now.Add(min(s.rest(now.Sub(began), now), mostRest)))
	}
}

// rest returns how long calls have to rest that took that long, for a third of the budget.
func (s *Sampler) rest(took time.Duration, now timeline.Instant) time.Duration {
	return time.Duration(3 * float64(took) / s.budget(now))
}

// floorOf returns how often the quickest counter of the calls first to last changes, zero if that is not known.
func (s *Sampler) floorOf(first, last Call) time.Duration {
	var floor time.Duration
	for call := first; call <= last; call++ {
		for c := range timeline.Counter(timeline.NumCounters) {
			if u := s.stats.Update[c]; call.Counters().Has(c) && u > 0 && (floor == 0 || u < floor) {
				floor = u
			}
		}
	}
	return floor
}

// Burst reads clocks and the reasons that hold them at the highest rate for d from now on; zero ends a burst.
func (s *Sampler) Burst(d time.Duration) {
	s.mu.Lock()
	s.burst = s.now().Add(min(max(d, 0), maxBurst))
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// bursting reports whether a burst is on.
func (s *Sampler) bursting(now timeline.Instant) bool { return now < s.burstEnd }

// takeBurst takes over what Burst asked for.
func (s *Sampler) takeBurst(now timeline.Instant) {
	s.mu.Lock()
	s.burstEnd = s.burst
	s.mu.Unlock()
	s.pace(now)
	s.fast.next = min(s.fast.next, now.Add(s.fast.period))
}

const (
	calibrationSpan   = 2 * time.Second
	calibrationPeriod = 20 * time.Millisecond
	calibrationCost   = 20 // the wait after a round of calls, in times of what it took
	minChanges        = 10 // of a value, to say how often it changes
)

// calibrated are the calls whose cost and counters are looked at closely when a sampler starts.
var calibrated = [...]Call{CallSMClock, CallMemClock, CallReasons, CallFields, CallTemperature, CallUtilization}

// calibration polls counters faster than they are read later, to learn how often they change.
type calibration struct {
	until, next timeline.Instant
	seen        [timeline.NumCounters]cadence
}

// cadence is how often one value changed.
type cadence struct {
	last          float64
	have          bool
	changes       int
	first, latest timeline.Instant
}

func (c *cadence) add(v float64, at timeline.Instant) {
	if c.have && v != c.last {
		c.changes++
		if c.changes == 1 {
			c.first = at
		}
		c.latest = at
	}
	c.last, c.have = v, true
}

// period returns how often the value changes. A value that hardly changed says nothing: it may have been steady.
func (c *cadence) period() time.Duration {
	if c.changes < minChanges {
		return 0
	}
	return c.latest.Sub(c.first) / time.Duration(c.changes-1)
}

// calibrate makes one round of calls. Their readings are looked at and not handed on, and their cost is not held against
// the budget.
func (s *Sampler) calibrate() {
	cal := &s.calibration
	busy, began := s.duty.busy, s.now()
	for _, call := range calibrated {
		asked := call.Counters()
		if asked&^s.ignored == 0 || s.lost != nil || s.calls[call].next > began {
			continue
		}
		s.reading.Reset()
		s.enter(s.now())
		s.device.Read(call, &s.reading)
		at := s.leave(call, s.firstError(asked))
		for c := range timeline.Counter(timeline.NumCounters) {
			if s.reading.Has.Has(c) {
				cal.seen[c].add(s.reading.Value[c], at)
			}
		}
	}
	now := s.now()
	cal.next = now.Add(max(calibrationPeriod-now.Sub(began), calibrationCost*now.Sub(began)))
	s.duty.busy = busy
	if cal.next < cal.until {
		return
	}
	cal.next = never
	s.mu.Lock()
	for c := range cal.seen {
		s.stats.Update[c] = cal.seen[c].period()
	}
	s.stats.Calibrated = true
	s.mu.Unlock()
	s.pace(now)
}

// never is an instant that does not come.
const never = timeline.Instant(1<<63 - 1)
