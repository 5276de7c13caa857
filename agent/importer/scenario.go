package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// ScenarioOptions say how a scenario is measured. The zero options are the defaults.
type ScenarioOptions struct {
	Start  time.Time     // of the scenario; 2026-01-01T00:00:00Z if zero, so that its files can be made again
	Window time.Duration // of the windows of activity; 110 ms if zero
	Note   string        // for meta.json
}

const (
	defaultWindow = 110 * time.Millisecond
	// gaugePeriod is how often clocks are read.
	gaugePeriod = 100 * time.Millisecond
	// callWidth is how long a call to the driver takes, and scrapeWidth a scrape.
	callWidth   = 40 * time.Microsecond
	scrapeWidth = 2 * time.Millisecond
	// scenarioOrigin is where a scenario starts on its host's monotonic clock, which never reads zero.
	scenarioOrigin = timeline.Instant(1000 * time.Second)
	// simulatedBoot names the boot of a host that never was.
	simulatedBoot = "simulated"
)

// FromScenario makes a recording in dir of what a perfect observer would have measured of the scenario: windows of
// activity as means over the truth, gauges and scrapes as they stood, and every token at the instant the engine emitted
// it. Where a scenario has faults of the instrument, or someone else on a GPU, the readings are those of its own
// instruments, and what cannot be read or is withheld is told as an agent tells it. The same timeline and options give the
// same bytes. When ctx ends, the recording holds what came before.
func FromScenario(ctx context.Context, tl *scenario.Timeline, dir string, o ScenarioOptions) error {
	if o.Start.IsZero() {
		o.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	if o.Window < gaugePeriod {
		// Snapshots closer than 100 ms give plausible, wrong numbers (NVML API, nvmlGpmMetricsGet).
		return fmt.Errorf("import scenario %s: window %v is shorter than %v", tl.Name(), o.Window, gaugePeriod)
	}
	w, err := record.Create(dir, record.Meta{
		Created: o.Start, Host: "simulated", BootID: simulatedBoot, GPUs: tl.GPUs(), Targets: tl.Targets(),
		Versions: map[string]string{"scenario": tl.Name()}, Simulated: true, Note: o.Note,
	}, record.Options{MaxBytes: -1})
	if err != nil {
		return fmt.Errorf("import scenario %s: %w", tl.Name(), err)
	}
	s := newObserver(tl, o, w)
	for s.now < tl.Duration() && err == nil {
		if err = ctx.Err(); err == nil {
			s.second()
		}
	}
	if err == nil {
		s.last()
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("import scenario %s: %w", tl.Name(), err)
	}
	return nil
}

// at returns the instant of an offset from the scenario's start.
func at(d time.Duration) timeline.Instant { return scenarioOrigin.Add(d) }

// observer measures a timeline second by second.
type observer struct {
	tl      *scenario.Timeline
	opts    ScenarioOptions
	w       *record.Writer
	now     time.Duration // start of the second that comes next
	targets []timeline.Target
	gpus    []gpuClock
	seen    *scenario.Observed // what faulty instruments read, as far as it is not written; nil: they have none

	waiting []scenario.Request // not yet arrived, in the order of arrival
	active  []stream
	ended   []timeline.Request // in this second
	tokens  []timeline.TokenEvent
}

// gpuClock is where the readings of one GPU stand.
type gpuClock struct {
	windows bool
	window  time.Duration // start of the next
	gauges  time.Duration // next readings
	slow    time.Duration
}

// stream is a request whose end is not written yet.
type stream struct {
	scenario.Request
	chunks []scenario.Chunk
	next   int // chunk
}

func newObserver(tl *scenario.Timeline, o ScenarioOptions, w *record.Writer) *observer {
	s := &observer{tl: tl, opts: o, w: w, targets: tl.Targets(), waiting: tl.Requests()}
	stranger := func(f scenario.Fault) bool { return f.Kind == scenario.Neighbour }
	if len(tl.CounterFaults()) > 0 || slices.ContainsFunc(tl.Scenario().Faults, stranger) {
		s.seen = tl.Observe(scenario.Instruments{Origin: scenarioOrigin, Window: o.Window})
	}
	for i, g := range tl.GPUs() {
		// GPUs take turns, so that their calls do not queue in the driver.
		turn := time.Duration(i) * o.Window / time.Duration(len(tl.GPUs()))
		s.gpus = append(s.gpus, gpuClock{windows: g.GPM, window: turn, gauges: turn, slow: turn})
	}
	w.AddEvent(timeline.Event{At: at(0), Kind: timeline.EventSamplerStarted, GPU: timeline.NoGPU})
	return s
}

// second measures one second, or what is left of the scenario.
func (s *observer) second() {
	end := min(s.now+time.Second, s.tl.Duration())
	s.anchor(s.now)
	s.scrape(s.now)
	if s.seen != nil {
		s.readings(at(end))
	} else {
		for i := range s.gpus {
			s.sample(i, end)
		}
	}
	s.requests(end)
	s.now = end
}

// readings writes what faulty instruments read before end, and what they tell of themselves.
func (s *observer) readings(end timeline.Instant) {
	o := s.seen
	for ; len(o.Events) > 0 && o.Events[0].At < end; o.Events = o.Events[1:] {
		s.w.AddEvent(o.Events[0])
	}
	for ; len(o.Samples) > 0 && o.Samples[0].Over.End <= end; o.Samples = o.Samples[1:] {
		s.w.AddSample(&o.Samples[0])
	}
}

// last takes the readings of the end and closes what is still open.
func (s *observer) last() {
	s.anchor(s.now)
	s.scrape(s.now)
	s.requests(s.now + 1) // what happened at the very end
	for i := range s.active {
		r := s.request(&s.active[i])
		r.Status, r.Done, r.Finish = timeline.StatusUnfinished, at(s.now), ""
		s.w.AddRequest(&r)
	}
}

func (s *observer) anchor(t time.Duration) {
	s.w.AddAnchor(timeline.Anchor{
		Mono: at(t), Real: s.opts.Start.Add(t).UnixNano(), Boot: int64(at(t)), Width: time.Microsecond, BootID: simulatedBoot,
	})
}

// scrape reads all engines.
func (s *observer) scrape(t time.Duration) {
	for i := range s.targets {
		e := s.tl.Engine(i, t)
		sample := timeline.EngineSample{
			Target: s.targets[i].Name,
			Over:   timeline.Span{Start: at(t).Add(-scrapeWidth / 2), End: at(t).Add(scrapeWidth / 2)},
		}
		for c, v := range map[timeline.EngineCounter]float64{
			timeline.Running: float64(e.Running), timeline.Waiting: float64(e.Waiting), timeline.KVUsage: e.KVUsage,
			timeline.KVBlocks: float64(e.KVBlocks), timeline.KVBlockSize: float64(e.BlockSize),
			timeline.StartTime:   float64(s.opts.Start.Unix()) + e.Started.Seconds(),
			timeline.PromptTotal: float64(e.PromptTokens), timeline.OutputTotal: float64(e.OutputTokens),
			timeline.PreemptTotal: float64(e.Preemptions), timeline.StepTotal: float64(e.Steps),
			timeline.FinishedTotal: float64(e.Finished), timeline.ITLSum: e.ITLSum, timeline.ITLCount: float64(e.ITLCount),
			timeline.TTFTSum: e.TTFTSum, timeline.TTFTCount: float64(e.TTFTCount),
			timeline.PrefixQueries: float64(e.PrefixQueries), timeline.PrefixHits: float64(e.PrefixHits),
		} {
			sample.Put(c, v)
		}
		s.w.AddEngine(&sample)
	}
}

// sample takes the readings of one GPU that end before end.
func (s *observer) sample(gpu int, end time.Duration) {
	g := &s.gpus[gpu]
	for ; g.windows && g.window+s.opts.Window <= end; g.window += s.opts.Window {
		from, to := g.window, g.window+s.opts.Window
		sample := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(from), End: at(to)}, Slack: int64(callWidth / 2)}
		for c := range timeline.Counter(timeline.NumCounters) {
			if c <= timeline.DRAMUtil { // what a scenario plays
				sample.Put(c, (s.tl.Integral(gpu, c, to)-s.tl.Integral(gpu, c, from))/(to-from).Seconds())
			}
		}
		s.w.AddSample(&sample)
	}
	for ; g.gauges < end; g.gauges += gaugePeriod {
		state := s.tl.State(gpu, g.gauges)
		sample := reading(gpu, g.gauges)
		sample.Put(timeline.SMClock, state.SMClockHz)
		sample.Put(timeline.MemClock, state.MemClockHz)
		sample.Put(timeline.EventReasons, float64(state.EventReasons))
		s.w.AddSample(&sample)
	}
	for ; g.slow < end; g.slow += time.Second {
		s.slow(gpu, g.slow)
	}
}

// reading returns a sample of one call at t.
func reading(gpu int, t time.Duration) timeline.Sample {
	over := timeline.Span{Start: at(t).Add(-callWidth / 2), End: at(t).Add(callWidth / 2)}
	return timeline.Sample{GPU: gpu, Over: over, Slack: int64(callWidth / 2)}
}

// slow reads what changes slowly.
func (s *observer) slow(gpu int, t time.Duration) {
	state := s.tl.State(gpu, t)
	sample := reading(gpu, t)
	sample.Put(timeline.Power, state.Watts)
	sample.Put(timeline.PowerLimit, state.LimitWatts)
	sample.Put(timeline.MemUsed, state.MemUsedBytes)
	sample.Put(timeline.Temperature, state.Celsius)
	if before := max(0, t-time.Second); before < t {
		busy := s.tl.Integral(gpu, timeline.GraphicsUtil, t) - s.tl.Integral(gpu, timeline.GraphicsUtil, before)
		sample.Put(timeline.GPUDuty, busy/(t-before).Seconds())
	}
	for c := timeline.Energy; c <= timeline.ThrottleSyncBoost; c++ { // what a scenario plays
		sample.Put(c, s.tl.Integral(gpu, c, t))
	}
	if s.tl.HasNVLink(gpu) {
		sample.Put(timeline.NVLinkTx, s.tl.Integral(gpu, timeline.NVLinkTx, t))
		sample.Put(timeline.NVLinkRx, s.tl.Integral(gpu, timeline.NVLinkRx, t))
	}
	s.w.AddSample(&sample)
}

// requests writes what requests did before end: those that arrived, the tokens that came, and those that ended.
func (s *observer) requests(end time.Duration) {
	for len(s.waiting) > 0 && s.waiting[0].Arrival < end {
		r := s.waiting[0]
		s.waiting = s.waiting[1:]
		if !r.Observed { // the probe does not see it; the engine's counters hold it all the same
			continue
		}
		s.active = append(s.active, stream{Request: r, chunks: r.Chunks()})
		open := s.opened(&r)
		s.w.AddOpen(&open)
	}
	s.tokens, s.ended = s.tokens[:0], s.ended[:0]
	kept := s.active[:0]
	for i := range s.active {
		if a := &s.active[i]; !s.drain(a, end) {
			kept = append(kept, *a)
		}
	}
	s.active = kept
	slices.SortFunc(s.tokens, func(a, b timeline.TokenEvent) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Ref, b.Ref)) })
	for _, t := range s.tokens {
		s.w.AddToken(t)
	}
	slices.SortFunc(s.ended, func(a, b timeline.Request) int { return cmp.Or(cmp.Compare(a.Done, b.Done), cmp.Compare(a.Ref, b.Ref)) })
	for i := range s.ended {
		s.w.AddRequest(&s.ended[i])
	}
}

// drain takes the tokens of a stream that came before end, and its end. It reports whether the stream is over.
func (s *observer) drain(a *stream, end time.Duration) bool {
	for ; a.next < len(a.chunks) && a.chunks[a.next].At < end; a.next++ {
		c := a.chunks[a.next]
		s.tokens = append(s.tokens, timeline.TokenEvent{
			Ref: ref(&a.Request), At: at(c.At), After: at(c.At), Tokens: int32(c.Tokens),
			Source: timeline.CountUsage, Kind: timeline.KindContent, Stamp: timeline.StampModel,
		})
	}
	over := max(a.Finish, a.Aborted)
	if over == 0 || a.next < len(a.chunks) || over >= end {
		return false
	}
	s.ended = append(s.ended, s.request(a))
	return true
}

func ref(r *scenario.Request) uint64 { return uint64(r.Index) + 1 }

// opened returns what is known of a request when it is sent.
func (s *observer) opened(r *scenario.Request) timeline.Request {
	target := &s.targets[r.Target]
	return timeline.Request{
		Ref: ref(r), ID: fmt.Sprintf("simulated-%06d", ref(r)), Target: target.Name, Dialect: "scenario", Operation: "chat",
		Model: target.Model, Streaming: true, Client: "scenario", Sent: at(r.Arrival), MaxTokens: r.OutputTokens, Choices: 1,
		ClockBound: s.tl.Scenario().Probe.ClockBound,
	}
}

// request returns what is known of a request at its end: of the chunks that have been read.
func (s *observer) request(a *stream) timeline.Request {
	q := s.opened(&a.Request)
	q.Status, q.HTTPStatus, q.Finish = timeline.StatusOK, 200, "length"
	q.PromptTokens, q.PromptKnown = a.PromptTokens, true
	if a.next > 0 {
		q.First, q.Last = at(a.chunks[0].At), at(a.chunks[a.next-1].At)
		q.Head = q.First
		q.Counted, q.FirstTokens, q.Events = timeline.CountUsage, a.chunks[0].Tokens, a.next
	}
	for _, c := range a.chunks[:a.next] {
		q.OutputTokens += c.Tokens
	}
	q.Done = max(at(a.Finish), q.Last)
	if a.Aborted > 0 {
		q.Status, q.Finish, q.Done = timeline.StatusTruncated, "", max(at(a.Aborted), q.Last)
	}
	return q
}
