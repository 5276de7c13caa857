package correlate_test

import (
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// t0 is where the tests' timelines start: not on a whole second, as no host's does.
const t0 = timeline.Instant(1000*1e9 + 137e6)

const uuid = "GPU-11111111-2222-3333-4444-555555555555"

func h100() timeline.GPU {
	g, err := hardware.LookupGPU("h100")
	if err != nil {
		panic(err)
	}
	return g.Describe(0, uuid)
}

// steady is a node in one unchanging state.
type steady struct {
	dram, tensor, sm, graphics float64
	noGraphics                 bool
	clock                      float64 // Hz
	reasons                    uint64
	gpus                       int

	streams  int           // requests that decode all the time
	tpot     time.Duration // of each stream
	seen     int           // of the streams, by the probe
	prompt   float64       // prompt tokens per second
	length   int           // tokens of each stream's prompt, if the probe knows it
	noEngine bool
	window   time.Duration
	context  float64 // tokens per stream
	steps    bool    // the engine counts its steps
}

// feed plays d of the steady state into the engine, in order of time, and advances it as an agent would.
func (s steady) feed(e *correlate.Engine, out *correlate.Output, d time.Duration) {
	f := feeder{steady: s, e: e}
	f.window = max(s.window, 0)
	if f.window == 0 {
		f.window = 105 * time.Millisecond
	}
	for i := range s.seen {
		e.Open(&timeline.Request{
			Ref: uint64(i + 1), Target: "vllm", Sent: t0, Streaming: true, Client: "proxy", PromptTokens: s.length, PromptKnown: s.length > 0,
		})
	}
	const tick = 5 * time.Millisecond
	end := t0.Add(d)
	for at := t0; at < end; at = at.Add(tick) {
		f.tick(at, at.Add(tick))
		if int64(at-t0)%int64(time.Second) == 0 {
			e.Advance(out, at.Add(-2*time.Second))
		}
	}
	for i := range s.seen {
		e.Close(f.request(i, end))
	}
	e.Flush(out)
}

type feeder struct {
	steady
	e        *correlate.Engine
	windowed timeline.Instant
	scraped  timeline.Instant
}

func (f *feeder) tick(at, until timeline.Instant) {
	if f.windowed == 0 {
		f.windowed, f.scraped = t0, t0.Add(-time.Second)
	}
	for f.windowed.Add(f.window) <= until {
		end := f.windowed.Add(f.window)
		for g := range max(1, f.gpus) {
			f.sample(g, timeline.Span{Start: f.windowed, End: end})
		}
		f.windowed = end
	}
	if !f.noEngine && until.Sub(f.scraped) >= time.Second {
		f.scrape(until)
		f.scraped = until
	}
	for i := range f.seen {
		for k := f.count(i, at); k < f.count(i, until); k++ {
			f.e.Token(timeline.TokenEvent{
				Ref: uint64(i + 1), At: f.tokenAt(i, k), After: f.tokenAt(i, k), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent,
			})
		}
	}
}

// tokenAt is when token k of stream i comes. Streams are a little apart.
func (f *feeder) tokenAt(i, k int) timeline.Instant {
	return t0.Add(time.Duration(i%97)*time.Microsecond + time.Duration(k)*f.tpot)
}

// count is how many tokens of stream i came before at.
func (f *feeder) count(i int, at timeline.Instant) int {
	past := at.Sub(t0) - time.Duration(i%97)*time.Microsecond
	if past <= 0 {
		return 0
	}
	return int((past-1)/f.tpot) + 1
}

func (f *feeder) sample(gpu int, over timeline.Span) {
	s := timeline.Sample{GPU: gpu, Over: over, Slack: 1e6}
	s.Put(timeline.DRAMUtil, f.dram)
	s.Put(timeline.TensorUtil, f.tensor)
	s.Put(timeline.SMUtil, f.sm)
	if !f.noGraphics {
		s.Put(timeline.GraphicsUtil, f.graphics)
	}
	f.e.AddSample(&s)
	m := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: over.End, End: over.End.Add(time.Millisecond)}}
	m.Put(timeline.SMClock, f.clock)
	m.Put(timeline.EventReasons, float64(f.reasons))
	f.e.AddSample(&m)
}

func (f *feeder) scrape(at timeline.Instant) {
	s := timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: at.Add(-2 * time.Millisecond), End: at}}
	sec := at.Sub(t0).Seconds()
	s.Put(timeline.Running, float64(f.streams))
	s.Put(timeline.OutputTotal, 1e6+float64(f.streams)*sec/f.tpot.Seconds())
	s.Put(timeline.PromptTotal, 5e6+f.prompt*sec)
	s.Put(timeline.PreemptTotal, 0)
	if f.context > 0 {
		s.Put(timeline.KVUsage, f.context*float64(f.streams)/1e6)
		s.Put(timeline.KVBlocks, 1e6/16)
		s.Put(timeline.KVBlockSize, 16)
	}
	if f.steps {
		s.Put(timeline.StepTotal, sec/f.tpot.Seconds())
	}
	f.e.AddEngine(&s)
}

func (f *feeder) request(i int, end timeline.Instant) *timeline.Request {
	n := f.count(i, end)
	return &timeline.Request{
		Ref: uint64(i + 1), Target: "vllm", Streaming: true, Client: "proxy", Sent: t0, Head: t0, First: f.tokenAt(i, 0), Last: f.tokenAt(i, n-1),
		Done: end, Status: timeline.StatusOK, OutputTokens: n, Counted: timeline.CountIDs, FirstTokens: 1, Events: n, Choices: 1,
		PromptTokens: f.length, PromptKnown: f.length > 0,
	}
}

// newEngine returns an engine that serves one target on as many GPUs as are given.
func newEngine(target timeline.Target, gpus ...timeline.GPU) *correlate.Engine {
	cfg := correlate.DefaultConfig()
	target.Name = "vllm"
	for i := range gpus {
		target.GPUs = append(target.GPUs, gpus[i].UUID)
	}
	cfg.Targets = []timeline.Target{target}
	e := correlate.New(cfg)
	e.SetGPUs(gpus)
	return e
}
