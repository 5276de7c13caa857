package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// tier is a group of calls with one period. Ticks that are missed are counted, not caught up.
type tier struct {
	period time.Duration
	next   timeline.Instant
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

	fast, slow tier
	window     window
	duty       duty
	trust      trust
	reading    Reading
	sample     timeline.Sample
	lost       error // set by a call that says the GPU is gone
	gap        bool  // windows are missing, and that was said

	mu      sync.Mutex
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
		fast: tier{period: cfg.FastPeriod}, slow: tier{period: cfg.SlowPeriod},
		window: window{period: cfg.Period}, duty: duty{stretch: 1},
		stats: Stats{Period: cfg.Period, FastPeriod: cfg.FastPeriod},
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
	s.fast.next, s.slow.next, s.window.next = first, first, first
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
	if s.lost == nil && now >= s.fast.next {
		s.readTier(sink, CallSMClock, CallReasons)
		s.countMissed(s.fast.advance(s.now()))
	}
	if s.lost == nil && now >= s.slow.next {
		s.readTier(sink, CallFields, CallUtilization)
		s.countMissed(s.slow.advance(s.now()))
	}
	s.adapt()
}

func (s *Sampler) nextTick() timeline.Instant {
	next := min(s.fast.next, s.slow.next)
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
		if asked := call.Counters(); asked&^s.ignored != 0 {
			s.enter(end)
			s.device.Read(call, &s.reading)
			end = s.leave(call, s.firstError(asked))
		}
	}
	if s.lost != nil {
		return
	}
	s.trust.check(&s.reading, timeline.Span{Start: start, End: end}.Mid())
	s.noteOutcomes(sink, first, last)
	if s.reading.Has == 0 {
		return
	}
	s.emit(sink, timeline.Span{Start: start, End: max(end, start+1)}, int64(end-start)/2)
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
