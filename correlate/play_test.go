package correlate_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// call is one call to the engine, at the moment at which an agent would make it.
type call struct {
	at timeline.Instant
	do func(e *correlate.Engine)
}

// byTime orders calls by their moment, and those of one moment as they stand.
func byTime(calls []call) {
	order := make([]int, len(calls)) // numbers sort in less time than calls, which matters to the race detector
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(calls[a].at, calls[b].at), cmp.Compare(a, b)) })
	sorted := make([]call, len(calls))
	for i, k := range order {
		sorted[i] = calls[k]
	}
	copy(calls, sorted)
}

// player turns a scenario's truth into what instruments would have told: windows of 100 to 110 ms, readings at one
// moment, scrapes once a second, and the tokens of the part of the requests that a probe sees.
type player struct {
	tl       *scenario.Timeline
	seen     float64 // part of the requests
	targets  []timeline.Target
	noise    float64 // relative error of windows, one sigma
	atOnce   bool    // close cells at the end alone
	mute     bool    // the engine does not count its steps
	miscount float64 // what the engine multiplies its count of steps with; zero: one
	calls    []call
}

func at(d time.Duration) timeline.Instant { return t0.Add(d) }

// play runs a scenario through a fresh engine, as an agent would.
func play(tl *scenario.Timeline, seen float64) (*correlate.Engine, correlate.Output) {
	p := player{tl: tl, seen: seen, targets: tl.Targets()}
	return p.run()
}

func (p *player) run() (*correlate.Engine, correlate.Output) {
	cfg := correlate.DefaultConfig()
	cfg.Targets = p.targets
	e := correlate.New(cfg)
	e.SetGPUs(p.tl.GPUs())
	for g := range p.tl.GPUs() {
		p.counters(g)
	}
	for i := range p.targets {
		p.scrapes(i)
	}
	p.requests()
	byTime(p.calls)
	var out correlate.Output
	next := t0
	for _, c := range p.calls {
		for c.at >= next && !p.atOnce {
			e.Advance(&out, next.Add(-2*time.Second))
			next = next.Add(500 * time.Millisecond)
		}
		c.do(e)
	}
	e.Flush(&out)
	return e, out
}

func (p *player) add(t time.Duration, do func(e *correlate.Engine)) {
	p.calls = append(p.calls, call{at(t), do})
}

func (p *player) counters(gpu int) {
	rng := rand.New(rand.NewPCG(uint64(gpu), 7))
	windowed := []timeline.Counter{
		timeline.GraphicsUtil, timeline.SMUtil, timeline.SMOccupancy, timeline.TensorUtil, timeline.HMMAUtil, timeline.DRAMUtil,
	}
	for from := time.Duration(0); ; {
		to := from + 100*time.Millisecond + time.Duration(rng.Int64N(int64(10*time.Millisecond)))
		if to > p.tl.Duration() {
			return
		}
		s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(from), End: at(to)}, Slack: 5e5}
		scale := 1 + p.noise*rng.NormFloat64()
		for _, c := range windowed {
			s.Put(c, min(1, scale*(p.tl.Integral(gpu, c, to)-p.tl.Integral(gpu, c, from))/(to-from).Seconds()))
		}
		p.add(to, func(e *correlate.Engine) { e.AddSample(&s) })
		st := p.tl.State(gpu, to)
		m := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: at(to), End: at(to + 300*time.Microsecond)}}
		m.Put(timeline.SMClock, st.SMClockHz)
		m.Put(timeline.EventReasons, float64(st.EventReasons))
		m.Put(timeline.Power, st.Watts)
		m.Put(timeline.PowerLimit, st.LimitWatts)
		for _, c := range []timeline.Counter{timeline.Energy, timeline.ThrottlePower, timeline.ThrottleSWThermal} {
			m.Put(c, p.tl.Integral(gpu, c, to))
		}
		p.add(to+time.Millisecond, func(e *correlate.Engine) { e.AddSample(&m) })
		from = to
	}
}

func (p *player) scrapes(i int) {
	for t := 100 * time.Millisecond; t < p.tl.Duration(); t += time.Second {
		st := p.tl.Engine(i, t)
		s := timeline.EngineSample{Target: p.targets[i].Name, Over: timeline.Span{Start: at(t - time.Millisecond), End: at(t + time.Millisecond)}}
		for c, v := range map[timeline.EngineCounter]float64{
			timeline.Running: float64(st.Running), timeline.Waiting: float64(st.Waiting), timeline.KVUsage: st.KVUsage,
			timeline.KVBlocks: float64(st.KVBlocks), timeline.KVBlockSize: float64(st.BlockSize),
			timeline.PromptTotal: float64(st.PromptTokens), timeline.OutputTotal: float64(st.OutputTokens),
			timeline.PreemptTotal: float64(st.Preemptions), timeline.StepTotal: float64(st.Steps), timeline.FinishedTotal: float64(st.Finished),
			timeline.ITLSum: st.ITLSum, timeline.ITLCount: float64(st.ITLCount),
		} {
			s.Put(c, v)
		}
		if p.miscount > 0 {
			s.Put(timeline.StepTotal, p.miscount*float64(st.Steps))
		}
		if p.mute {
			s.Has &^= 1 << timeline.StepTotal
		}
		p.add(t+2*time.Millisecond, func(e *correlate.Engine) { e.AddEngine(&s) })
	}
}

func (p *player) requests() {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, r := range p.tl.Requests() {
		if rng.Float64() >= p.seen {
			continue
		}
		q := timeline.Request{
			Ref: uint64(r.Index + 1), Target: p.targets[r.Target].Name, Streaming: true, Client: "proxy", Sent: at(r.Arrival),
		}
		p.add(r.Arrival, func(e *correlate.Engine) { e.Open(&q) })
		for _, t := range r.Tokens {
			ev := timeline.TokenEvent{
				Ref: q.Ref, At: at(t), After: at(t), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent,
			}
			p.add(t, func(e *correlate.Engine) { e.Token(ev) })
		}
		done := q
		done.Done, done.Status = at(p.tl.Duration()), timeline.StatusUnfinished
		if n := len(r.Tokens); n > 0 {
			done.First, done.Last, done.Head = at(r.Tokens[0]), at(r.Tokens[n-1]), at(r.Tokens[0])
			done.OutputTokens, done.Counted, done.FirstTokens, done.Events = n, timeline.CountIDs, 1, n
			done.PromptTokens, done.PromptKnown = r.PromptTokens, true
		}
		if r.Finish > 0 {
			done.Done, done.Status = at(r.Finish+time.Millisecond), timeline.StatusOK
		}
		p.add(done.Done.Sub(t0), func(e *correlate.Engine) { e.Close(&done) })
	}
}
