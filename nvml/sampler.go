package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// tier is a group of calls with one period. Ticks that are missed are counted, not caught up.
type tier struct {
	period time.Duration
	next   timeline.Instant
	heavy  int // rounds of calls in a row that no period makes up for
}

// advance moves the next tick past now and returns how many ticks were missed on the way.
func (t *tier) advance(now timeline.Instant) uint64 {
	t.next = t.next.Add(t.period)
	if t.next > now {
		return 0
	}
	missed := int64(now-t.next)/int64(t.period) + 1
	t.next += timeline.Instant(missed * int64(t.period))
	return uint64(missed)
}

// Sampler reads one GPU in one loop: windows of activity, clocks and their reasons, and what changes slowly, each at
// its own period. Stats and MarkStuck may be called at any time; Run is called once.
type Sampler struct {
	gpu    int
	device Device
	cfg    Config
	now    func() timeline.Instant
	info   timeline.GPU

	fast, slow, rare tier
	window           window
	tiles            tiles
	duty             duty
	calibration      calibration
	burstEnd         timeline.Instant
	trust            trust
	held             heldTimes
	flows            flows
	steady           steady
	calls            [NumCalls]callState
	reading          Reading
	sample           timeline.Sample
	inventory        timeline.Inventory
	lost             error            // set by a call that says the GPU is gone
	answered         timeline.Instant // the last call
	deaf             int              // calls since then
	gap              bool             // windows are missing, and that was said
	distrusted       bool             // because they are not believed
	wake             chan struct{}    // capacity 1: a burst was asked for

	mu      sync.Mutex
	burst   timeline.Instant // asked for, up to then
	watch   watch
	stats   Stats
	inCall  timeline.Instant // start of the call under way, zero between calls
	states  [timeline.NumCounters]timeline.State
	ignored timeline.CounterSet // unsupported for good: not asked for again
}

// NewSampler returns a sampler of device, which stands at position gpu of the list of GPUs. The configuration must be
// valid; now reads the host's monotonic clock.
func NewSampler(gpu int, device Device, cfg Config, now func() timeline.Instant) *Sampler {
	return &Sampler{
		gpu: gpu, device: device, cfg: cfg, now: now, info: device.GPU(),
		fast: tier{period: cfg.FastPeriod}, slow: tier{period: cfg.SlowPeriod}, rare: tier{period: rarePeriod},
		window: window{period: cfg.Period}, duty: duty{stretch: 1}, wake: make(chan struct{}, 1),
		inventory: timeline.Inventory{GPU: gpu, NUMANode: timeline.NoNUMANode},
		stats:     Stats{Period: cfg.Period, FastPeriod: cfg.FastPeriod, SlowPeriod: cfg.SlowPeriod, Stretch: 1},
	}
}

// Run reads the GPU until ctx ends, which is no error, or the GPU is lost, which is ErrGPULost.
func (s *Sampler) Run(ctx context.Context, sink timeline.GPUSink) error {
	s.start(sink)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.wake:
			s.takeBurst(s.now())
		}
		if s.tick(sink); s.lost != nil {
			return s.end(sink)
		}
		timer.Reset(s.nextTick().Sub(s.now()))
	}
}

// start spreads the first ticks of the GPUs over the window period, so that their calls do not queue in the driver.
func (s *Sampler) start(sink timeline.GPUSink) {
	now := s.now()
	first := now.Add(time.Duration(s.gpu) * 13 * time.Millisecond % s.cfg.Period)
	s.fast.next, s.slow.next, s.window.next, s.rare.next = first, first, first, first
	s.calibration.next, s.calibration.until = first.Add(calibrationPeriod), first.Add(calibrationSpan)
	s.duty.since = now
	if !s.info.GPM {
		s.setStates(sink, timeline.GPM, timeline.StateUnsupported, "windows of activity need GPM: Hopper or newer")
	}
	s.mu.Lock()
	s.stats.WindowsOfGPU = s.info.GPM
	s.mu.Unlock()
}

// tick makes the calls that are due. Windows come first: their ends matter most.
func (s *Sampler) tick(sink timeline.GPUSink) {
	now := s.now()
	if s.windowed() && now >= s.window.next {
		s.readWindow(sink)
	}
	if began := s.now(); s.lost == nil && now >= s.fast.next {
		s.readTier(sink, firstFast, lastFast)
		s.advance(&s.fast, began, maxFastPeriod, maxSlowPeriod)
	}
	if began := s.now(); s.lost == nil && now >= s.slow.next {
		s.readTier(sink, firstSlow, lastSlow)
		s.advance(&s.slow, began, maxStretch/slowGiveUp*s.cfg.SlowPeriod, maxSlowPeriod)
	}
	if began := s.now(); s.lost == nil && now >= s.rare.next {
		s.survey(sink)
		s.advance(&s.rare, began, rarePeriod, maxRareRest)
	}
	if s.lost == nil && now >= s.calibration.next {
		s.calibrate()
	}
	s.adapt(sink)
}

func (s *Sampler) nextTick() timeline.Instant {
	next := min(s.fast.next, s.slow.next, s.rare.next, s.calibration.next)
	if s.windowed() {
		next = min(next, s.window.next)
	}
	return next
}

// readTier makes the calls first to last and hands on what they gave as one sample. The sample's span is the bracket
// around all of them: each reading was taken somewhere in it.
func (s *Sampler) readTier(sink timeline.GPUSink, first, last Call) {
	s.reading.Reset()
	start := s.now()
	end := start
	for call := first; call <= last && s.lost == nil; call++ {
		if asked := call.Counters(); asked&^s.ignored != 0 && s.calls[call].next <= start {
			s.enter(end)
			s.device.Read(call, &s.reading)
			err := s.firstError(asked)
			end = s.leave(call, err)
			s.settle(sink, call, end, err)
		}
	}
	if s.lost != nil {
		return
	}
	s.checkGauges()
	s.held.integrate(&s.reading, start)
	if first == firstFast {
		s.steady.look(&s.reading, start, s.trust.busy >= busyReads)
	}
	if first == firstSlow {
		s.held.fill(&s.reading)
		s.flows.fill(&s.reading, s.windowed())
		s.fillXids(sink)
	}
	s.trust.check(&s.reading, timeline.Span{Start: start, End: end}.Mid())
	s.noteOutcomes(sink, first, last)
	if s.reading.Has == 0 {
		return
	}
	s.emit(sink, timeline.Span{Start: start, End: max(end, start+1)}, int64(end-start)/2)
}

// survey reads what is no counter, and hands it on if the sink takes it.
func (s *Sampler) survey(sink timeline.GPUSink) {
	known := false
	for call := firstRare; call <= lastRare && s.lost == nil; call++ {
		c := &s.calls[call]
		now := s.now()
		if c.state == timeline.StateUnsupported || c.next > now {
			continue
		}
		s.enter(now)
		err := s.device.Survey(call, &s.inventory)
		at := s.leave(call, err)
		s.settle(sink, call, at, err)
		known = known || err == nil
		if st := StateOf(err); st != c.state {
			c.state = st
			detail := ""
			if err != nil {
				detail = err.Error()
			}
			sink.AddCapability(timeline.Capability{GPU: s.gpu, Call: call.String(), State: st, Detail: detail})
		}
	}
	to, takes := sink.(timeline.InventorySink)
	if !known || !takes || s.lost != nil {
		return
	}
	v := s.inventory
	v.GPU, v.At = s.gpu, s.now()
	v.StandingHz = s.steady.standing(v.At, s.info.MaxSMClockHz)
	v.NVLinks, v.Processes = slices.Clone(v.NVLinks), slices.Clone(v.Processes)
	to.AddInventory(v)
}

// Watched says whether the driver tells errors of this GPU by itself; err says why not. It may be called at any time: the
// sampler takes it over with its next slow reading.
func (s *Sampler) Watched(err error) {
	s.mu.Lock()
	s.watch = watch{asked: true, err: err, xids: s.watch.xids}
	s.mu.Unlock()
}

// CountXid counts an error that the driver told. It may be called at any time.
func (s *Sampler) CountXid() {
	s.mu.Lock()
	s.watch.xids++
	s.mu.Unlock()
}

// watch is what is known of the errors that the driver tells.
type watch struct {
	asked bool // it is known whether it tells them
	err   error
	xids  float64
}

func (s *Sampler) fillXids(sink timeline.GPUSink) {
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	switch {
	case !w.asked || s.ignored.Has(timeline.Xids):
	case w.err != nil:
		s.setState(sink, timeline.Xids, StateOf(w.err), w.err.Error())
	default:
		s.setState(sink, timeline.Xids, timeline.StateOK, "")
		s.reading.Put(timeline.Xids, w.xids)
	}
}

// heldTimes integrates the reasons that hold clocks, for drivers that do not count the time by reason.
type heldTimes struct {
	mask    uint64
	since   timeline.Instant
	seconds [timeline.ThrottleSyncBoost - timeline.ThrottlePower + 1]float64
}

// heldFor is how long a reading of the reasons holds at most.
const heldFor = 2 * time.Second

// heldBits are the reasons in the order of the throttle counters.
var heldBits = [...]uint64{
	timeline.ReasonSWPowerCap, timeline.ReasonSWThermal, timeline.ReasonHWThermal, timeline.ReasonPowerBrake, timeline.ReasonSyncBoost,
}

// integrate lets the reasons of the last reading hold until this one.
func (h *heldTimes) integrate(r *Reading, at timeline.Instant) {
	if !r.Has.Has(timeline.EventReasons) {
		return
	}
	if !h.since.IsZero() {
		passed := min(at.Sub(h.since), heldFor).Seconds()
		for i, bit := range heldBits {
			if h.mask&bit != 0 {
				h.seconds[i] += passed
			}
		}
	}
	h.mask, h.since = uint64(r.Value[timeline.EventReasons]), at
}

// fill puts the integrals where the driver has no counter, and says so.
func (h *heldTimes) fill(r *Reading) {
	if h.since.IsZero() {
		return
	}
	for i := range h.seconds {
		c := timeline.ThrottlePower + timeline.Counter(i)
		if errors.Is(r.Err[c], ErrNotSupported) {
			r.Put(c, h.seconds[i])
			r.Note[c] = "the reasons that hold clocks, integrated between readings: the driver has no counter that is known"
		}
	}
}

// emit hands the reading on with its span.
func (s *Sampler) emit(sink timeline.GPUSink, over timeline.Span, slack int64) {
	s.sample = timeline.Sample{GPU: s.gpu, Over: over, Slack: slack, Has: s.reading.Has, Value: s.reading.Value}
	sink.AddSample(&s.sample)
}

// firstError returns the error of a call: that of its counters only if none of them was read.
func (s *Sampler) firstError(asked timeline.CounterSet) error {
	var first error
	for c := range timeline.Counter(timeline.NumCounters) {
		if !asked.Has(c) {
			continue
		}
		if err := s.reading.Err[c]; errors.Is(err, ErrGPULost) {
			return err
		} else if first == nil {
			first = err
		}
	}
	if s.reading.Has&asked != 0 {
		return nil
	}
	return first
}

// enter notes that a call begins at t.
func (s *Sampler) enter(t timeline.Instant) {
	s.mu.Lock()
	s.inCall = t
	s.mu.Unlock()
}

// leave notes that the call ended and returns when.
func (s *Sampler) leave(call Call, err error) timeline.Instant {
	end := s.now()
	if errors.Is(err, ErrGPULost) {
		s.lost = err
	}
	s.listenFor(end, err)
	s.mu.Lock()
	took := end.Sub(s.inCall)
	s.inCall = 0
	s.stats.Calls[call].add(took, err != nil)
	s.mu.Unlock()
	s.duty.busy += took
	return end
}

// end says that the GPU is gone.
func (s *Sampler) end(sink timeline.GPUSink) error {
	now := s.now()
	s.setStates(sink, ^timeline.CounterSet(0)&^s.ignored, timeline.StateLost, s.lost.Error())
	sink.AddEvent(timeline.Event{At: now, Kind: timeline.EventGPULost, GPU: s.gpu, Detail: s.lost.Error()})
	s.openGap(sink, now, "gpu lost")
	return fmt.Errorf("sample gpu %d: %w", s.gpu, s.lost)
}

// openGap says at once that windows are missing from here on, one time until they come back.
func (s *Sampler) openGap(sink timeline.GPUSink, at timeline.Instant, why string) {
	if s.gap {
		return
	}
	s.gap = true
	s.mu.Lock()
	s.stats.Gaps++
	s.mu.Unlock()
	sink.AddEvent(timeline.Event{At: at, Kind: timeline.EventGap, GPU: s.gpu, Detail: why})
}

func (s *Sampler) countMissed(n uint64) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.stats.Missed += n
	s.mu.Unlock()
}

// Stats returns the sampler's counts so far.
func (s *Sampler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	if !s.inCall.IsZero() {
		st.InCall = s.now().Sub(s.inCall)
	}
	return st
}
