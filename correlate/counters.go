package correlate

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

const (
	minWindow   = 90 * time.Millisecond // shorter snapshots of GPM give plausible, wrong numbers (NVML: at least 100 ms apart)
	slackPart   = 0.2                   // of a window: wider brackets blur it
	gaugeHold   = 2500 * time.Millisecond
	valueMargin = 0.05 // above one: rounding of the driver
	maxKinds    = 8    // kinds of sample a sampler emits
)

// gaugeSet and totalSet are the counters at one moment, and those that only grow.
const (
	gaugeSet timeline.CounterSet = (1<<timeline.Energy - 1) &^ timeline.GPM
	totalSet timeline.CounterSet = (1<<timeline.NumCounters - 1) &^ (1<<timeline.Energy - 1)
)

// piece is the value of some counters over a span. A gauge holds until its next reading; a total is its growth per
// second between two readings.
type piece struct {
	over timeline.Span
	has  timeline.CounterSet
	v    [timeline.NumCounters]float64
}

// gpuState is one GPU and its readings that are not yet cut into cells.
type gpuState struct {
	spec      timeline.GPU
	hw        hardware.GPU
	known     bool // hw is from the table
	eta       verdict.Eta
	peak      float64 // bytes per second that DRAM utilisation is a part of
	foreign   bool
	shared    bool // several targets are tied to it, and its counters do not tell which of them they speak of
	untrusted timeline.CounterSet
	denied    timeline.CounterSet // that are not supported, or for others to read
	deniedTo  timeline.Instant    // when the last of them came back
	doubted   timeline.Instant    // end of the last window that was not trusted
	beside    timeline.Instant    // end of the last reading beside a foreign process: cells before it are closed later
	heard     heard

	windows *timeline.Ring[piece]
	gauges  *timeline.Ring[piece]
	totals  *timeline.Ring[piece]

	kinds     [maxKinds]gaugeKind
	numKinds  int
	pushed    uint64 // gauges ever pushed
	prevAt    [timeline.NumCounters]timeline.Instant
	prevValue [timeline.NumCounters]float64
}

// gaugeKind is one set of gauges that come together, and the number of their last piece.
type gaugeKind struct {
	has timeline.CounterSet
	seq uint64
}

func newGPUState(readings int) gpuState {
	return gpuState{
		windows: timeline.NewRing[piece](readings), gauges: timeline.NewRing[piece](readings), totals: timeline.NewRing[piece](readings),
	}
}

// describe sets what is known of the device.
func (g *gpuState) describe(spec timeline.GPU, calibrated map[string]verdict.Eta) {
	g.spec = spec
	hw, err := hardware.IdentifyGPU(spec)
	g.hw, g.known = hw, err == nil
	g.eta = verdict.EtaOf(hw)
	if eta, ok := calibrated[spec.UUID]; ok {
		g.eta = eta
	}
	// The driver states utilisation against the theoretical maximum; the sheet's figure where the device is known.
	g.peak = hw.SheetBandwidth
	if !g.known || g.peak <= 0 {
		g.peak = spec.DerivedBandwidth()
	}
}

// add takes a sample apart by kind of counter. It reports false for windows that are not to be trusted.
func (g *gpuState) add(s *timeline.Sample) bool {
	has := s.Has &^ g.untrusted
	ok := true
	if g.foreign {
		g.beside = max(g.beside, s.Over.End)
	}
	if s.Has&g.untrusted&timeline.GPM != 0 {
		g.doubted = s.Over.End
	}
	if w := has & timeline.GPM; w != 0 {
		ok = g.addWindow(s, w)
	}
	if m := has & gaugeSet; m != 0 {
		g.addGauge(s, m)
	}
	if m := has & totalSet; m != 0 {
		g.addTotals(s, m)
	}
	return ok
}

func (g *gpuState) addWindow(s *timeline.Sample, has timeline.CounterSet) bool {
	width := s.Over.Duration()
	if width < minWindow || 2*float64(s.Slack) > slackPart*float64(width) {
		g.doubted = s.Over.End
		return false
	}
	if n := g.windows.Len(); n > 0 && s.Over.Start < g.windows.At(n-1).over.End-timeline.Instant(width/4) {
		return false // out of order, or the same time twice
	}
	p := piece{over: s.Over, has: has}
	for c := range has.All() {
		v := s.Value[c]
		if !(v >= -valueMargin && v <= 1+valueMargin) {
			g.doubted = s.Over.End
			return false
		}
		p.v[c] = min(1, max(0, v))
	}
	g.windows.Push(p)
	return true
}

// addGauge ends what the last reading of the same gauges held, and holds the new one.
func (g *gpuState) addGauge(s *timeline.Sample, has timeline.CounterSet) {
	at := s.Over.Mid()
	p := piece{over: timeline.Span{Start: at, End: at.Add(gaugeHold)}, has: has}
	for c := range has.All() {
		p.v[c] = s.Value[c]
	}
	slot := -1
	for i := range g.numKinds {
		k := &g.kinds[i]
		if k.has&has == 0 {
			continue
		}
		if last := g.gauge(k.seq); last != nil && last.over.End > at {
			last.over.End = max(at, last.over.Start)
		}
		if k.has == has {
			slot = i
		}
	}
	if slot < 0 {
		if g.numKinds < maxKinds {
			g.numKinds++
		}
		slot = g.numKinds - 1
	}
	g.gauges.Push(p)
	g.kinds[slot] = gaugeKind{has, g.pushed}
	g.pushed++
}

// gauge returns the piece with that number, nil if it has left the ring.
func (g *gpuState) gauge(seq uint64) *piece {
	back := g.pushed - seq // one for the newest
	if back == 0 || back > uint64(g.gauges.Len()) {
		return nil
	}
	return g.gauges.At(g.gauges.Len() - int(back))
}

// addTotals turns the growth since the last reading into a rate over the time between. A value that fell was reset.
func (g *gpuState) addTotals(s *timeline.Sample, has timeline.CounterSet) {
	at := s.Over.Mid()
	for left := has; left != 0; {
		var p piece
		for c := range left.All() {
			if p.has != 0 && g.prevAt[c] != p.over.Start {
				continue
			}
			left &^= timeline.Set(c)
			since, grew := g.prevAt[c], s.Value[c]-g.prevValue[c]
			if since == 0 || since >= at || grew < 0 {
				continue
			}
			p.over = timeline.Span{Start: since, End: at}
			p.has |= timeline.Set(c)
			p.v[c] = grew / at.Sub(since).Seconds()
		}
		if p.has != 0 {
			g.totals.Push(p)
		}
	}
	for c := range has.All() {
		g.prevAt[c], g.prevValue[c] = at, s.Value[c]
	}
}

// release ends at once what gauges still hold.
func (g *gpuState) release(at timeline.Instant) {
	for i := range g.numKinds {
		if last := g.gauge(g.kinds[i].seq); last != nil && last.over.End > at {
			last.over.End = max(at, last.over.Start)
		}
	}
}

// forget drops the pieces that end before t.
func (g *gpuState) forget(t timeline.Instant) {
	old := func(p *piece) bool { return p.over.End <= t }
	g.windows.PopWhile(old)
	g.gauges.PopWhile(old)
	g.totals.PopWhile(old)
}

// readIn returns from when to when anything was read in span.
func (g *gpuState) readIn(span timeline.Span) timeline.Span {
	var out timeline.Span
	for _, r := range []*timeline.Ring[piece]{g.windows, g.totals} {
		for p := range r.All() {
			out = out.Union(p.over.Intersect(span))
		}
	}
	for p := range g.gauges.All() {
		if at := p.over.Start; span.Contains(at) {
			out = out.Union(timeline.Span{Start: at, End: at + 1})
		}
	}
	return out
}

// next returns the earliest instant from t on that a reading covers, the greatest if none does.
func (g *gpuState) next(t timeline.Instant) timeline.Instant {
	out := timeline.Instant(math.MaxInt64)
	for _, r := range []*timeline.Ring[piece]{g.windows, g.gauges, g.totals} {
		for p := range r.All() {
			if p.over.End > t {
				out = min(out, max(p.over.Start, t))
				break
			}
		}
	}
	return out
}

// sums are counters integrated over time.
type sums struct {
	has      timeline.CounterSet           // counters with covered time
	value    [timeline.NumCounters]float64 // integral
	seconds  [timeline.NumCounters]float64 // covered
	reasons  uint64
	throttle [len(throttleReasons)]float64 // s by reason bit
	anyBit   float64                       // s under any reason that throttles
	windows  int                           // whole windows with their middle in the span
	widths   float64                       // s, of these windows
	covered  float64                       // s under windows that have DRAM traffic
	bytes    float64                       // moved in them
}

// throttleReasons are the reason bits that slow a busy GPU, with the cumulative counter that counts their time.
var throttleReasons = [...]struct {
	bit     uint64
	counter timeline.Counter
	name    string
}{
	{timeline.ReasonSWPowerCap, timeline.ThrottlePower, "sw_power_cap"},
	{timeline.ReasonHWSlowdown, timeline.NumCounters, "hw_slowdown"},
	{timeline.ReasonSyncBoost, timeline.ThrottleSyncBoost, "sync_boost"},
	{timeline.ReasonSWThermal, timeline.ThrottleSWThermal, "sw_thermal"},
	{timeline.ReasonHWThermal, timeline.ThrottleHWThermal, "hw_thermal"},
	{timeline.ReasonPowerBrake, timeline.ThrottlePowerBrake, "hw_power_brake"},
}

// integrate adds what the readings say over span to s. Windows count by their overlap, and only those do that lie
// wholly in within.
func (g *gpuState) integrate(s *sums, span, within timeline.Span) {
	for p := range g.windows.All() {
		if p.over.Start >= span.End {
			break
		}
		if p.over.Start < within.Start || p.over.End > within.End {
			continue
		}
		s.add(p, span)
		if span.Contains(p.over.Mid()) {
			s.windows++
			s.widths += p.over.Duration().Seconds()
		}
		if p.has.Has(timeline.DRAMUtil) {
			sec := p.over.Overlap(span).Seconds()
			s.covered += sec
			s.bytes += p.v[timeline.DRAMUtil] * g.peak * sec
		}
	}
	for p := range g.gauges.All() {
		s.add(p, span)
	}
	for p := range g.totals.All() {
		s.add(p, span)
	}
}

// add integrates one piece over its part in span.
func (s *sums) add(p *piece, span timeline.Span) {
	sec := p.over.Overlap(span).Seconds()
	if sec <= 0 {
		return
	}
	s.has |= p.has
	for c := range p.has.All() {
		s.seconds[c] += sec
		if c != timeline.EventReasons {
			s.value[c] += p.v[c] * sec
			continue
		}
		mask := uint64(p.v[c])
		s.reasons |= mask
		if mask&timeline.ReasonThrottles != 0 {
			s.anyBit += sec
		}
		for i, r := range throttleReasons {
			if mask&r.bit != 0 {
				s.throttle[i] += sec
			}
		}
	}
}

// merge adds o, of another GPU or another span.
func (s *sums) merge(o *sums) {
	s.has |= o.has
	for c := range o.has.All() {
		s.value[c] += o.value[c]
		s.seconds[c] += o.seconds[c]
	}
	for i := range s.throttle {
		s.throttle[i] += o.throttle[i]
	}
	s.reasons |= o.reasons
	s.anyBit += o.anyBit
	s.windows += o.windows
	s.widths += o.widths
	s.covered += o.covered
	s.bytes += o.bytes
}

// mean returns the mean of c over the covered time. Reasons have none: the mean of a bit mask means nothing.
func (s *sums) mean(c timeline.Counter) Mean {
	if s.seconds[c] <= 0 || c == timeline.EventReasons {
		return Mean{}
	}
	return Mean{Value: s.value[c] / s.seconds[c], CoveredS: s.seconds[c]}
}

// throttled returns the seconds under any reason, and by reason into by: each the greater of what the bits and what
// the driver's own clocks of throttled time say. Reasons overlap, so that their sum is not the time under any.
func (s *sums) throttled(by map[string]float64) (float64, map[string]float64) {
	all := s.anyBit
	for i, r := range throttleReasons {
		sec := s.throttle[i]
		if r.counter < timeline.NumCounters {
			sec = max(sec, s.value[r.counter])
		}
		if sec <= 0 {
			continue
		}
		if by == nil {
			by = make(map[string]float64, 2)
		}
		by[r.name] = sec
		all = max(all, sec)
	}
	return all, by
}
