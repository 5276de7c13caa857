package scenario

import (
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

var limiterNames = [numLimiters]string{"memory", "compute", "launch", "host", "other"}

// String returns the limiter's name.
func (l Limiter) String() string {
	if int(l) < len(limiterNames) {
		return limiterNames[l]
	}
	return "unknown"
}

// EngineState is what an engine would tell of itself at one moment. The second group only grows.
type EngineState struct {
	Running   int
	Waiting   int
	KVUsage   float64 // fraction of the blocks in use
	KVBlocks  int
	BlockSize int // tokens

	PromptTokens  int // of prompts that are complete, as engines count them
	OutputTokens  int
	Preemptions   int
	Steps         int
	Finished      int
	ITLSum        float64 // s, between the steps that gave a request tokens
	ITLCount      int
	TTFTSum       float64 // s, from the arrival
	TTFTCount     int
	PrefixQueries int // prompt tokens looked up in the prefix cache
	PrefixHits    int // of them, found there
}

// Engine returns the state of a target's engine at t. Totals move at the end of a step.
func (tl *Timeline) Engine(target int, t time.Duration) EngineState {
	tr := &tl.tracks[target]
	seg := &tr.segments[tr.find(max(0, min(t, tl.Duration())))]
	d := &seg.done
	return EngineState{
		Running: seg.running, Waiting: seg.waiting, KVUsage: float64(seg.blocks) / float64(max(1, tr.blocks)),
		KVBlocks: tr.blocks, BlockSize: tr.blockSize,
		PromptTokens: d.prompted, OutputTokens: d.output, Preemptions: d.preempted, Steps: d.steps, Finished: d.finished,
		ITLSum: d.itl, ITLCount: d.gaps, TTFTSum: d.ttft, TTFTCount: d.firsts,
		PrefixQueries: d.queried, PrefixHits: d.hits,
	}
}

// Request is one request as the engine saw it. Times are offsets from the start; what has not happened by the end of
// the scenario is missing.
type Request struct {
	Index        int
	Target       int
	Arrival      time.Duration
	PromptTokens int
	OutputTokens int             // asked for
	Tokens       []time.Duration // when the engine emitted each
	Finish       time.Duration   // zero if it did not finish
}

// First returns when the first token was emitted, zero if none was.
func (r *Request) First() time.Duration {
	if len(r.Tokens) == 0 {
		return 0
	}
	return r.Tokens[0]
}

// TPOT returns the mean gap between the request's tokens, zero for fewer than two.
func (r *Request) TPOT() time.Duration {
	n := len(r.Tokens)
	if n < 2 {
		return 0
	}
	return (r.Tokens[n-1] - r.Tokens[0]) / time.Duration(n-1)
}

// Requests returns all requests in the order of their arrival. The token lists are shared: they must not be changed.
func (tl *Timeline) Requests() []Request { return slices.Clone(tl.requests) }

// Step is one iteration of an engine.
type Step struct {
	Start        time.Duration
	End          time.Duration
	DecodeBatch  int // sequences that decode
	PromptTokens int
	Contexts     int // sum over the decoding sequences, tokens
	Bytes        float64
	HostGap      time.Duration // at the step's start
	SMClockHz    float64
}

// Steps returns the steps of a target that ended within the scenario.
func (tl *Timeline) Steps(target int) []Step {
	tr := &tl.tracks[target]
	var steps []Step
	for i := range tr.segments[:len(tr.segments)-1] {
		seg, next := &tr.segments[i], &tr.segments[i+1]
		if seg.idle || next.start > tl.Duration() {
			continue
		}
		steps = append(steps, Step{
			Start: seg.start, End: next.start, DecodeBatch: seg.work.decode, PromptTokens: seg.work.prompt,
			Contexts: int(seg.work.contexts), Bytes: next.done.bytes - seg.done.bytes,
			HostGap: time.Duration(seg.work.gap * 1e9), SMClockHz: seg.work.clock * tr.plant.gpu.MaxSMClockHz,
		})
	}
	return steps
}

// Kernels returns what one rank runs in the step that holds t: the host gap first, then each of the layers, then the
// head. It returns nothing where there is no work.
func (tl *Timeline) Kernels(target int, t time.Duration) []Kernel {
	tr := &tl.tracks[target]
	seg := &tr.segments[tr.find(t)]
	if seg.idle {
		return nil
	}
	pr, _ := tr.plant.lay(&seg.work)
	list := []Kernel{pr.host}
	for range pr.layers {
		list = append(list, pr.layer[:pr.nLayer]...)
	}
	return append(list, pr.head[:pr.nHead]...)
}

// Truth is what was so over a span.
type Truth struct {
	From, To  time.Duration
	Shares    timeline.Shares // of the time in which there was work, by limiter; all zero if there was none
	Dominant  Limiter
	Share     float64       // of the dominant limiter
	Busy      time.Duration // in which there was work, the host's gaps between steps included
	Idle      time.Duration // in which there was no request at all
	DRAMBytes float64       // of one rank

	// What follows counts the steps and tokens that ended in the span.
	Steps        int
	OutputTokens int
	PromptTokens int // computed, whether or not their prompt is complete
	Finished     int
	Preemptions  int
	BytesPerStep float64       // of one rank
	MeanBatch    float64       // decoding sequences in a step
	MeanContext  float64       // tokens of context of a decoding sequence
	TPOT         time.Duration // mean gap between the tokens of a request
	TTFT         time.Duration // mean, of the first tokens in the span
	SMClockHz    float64       // mean
	Throttled    time.Duration // held by the power cap or the thermal control
	DRAMUtil     float64       // mean over the whole span, as a counter would have it
	TensorUtil   float64
	SMUtil       float64
	GraphicsUtil float64
	MeanWatts    float64
}

// Truth returns what was so of a target from one moment to another.
func (tl *Timeline) Truth(target int, from, to time.Duration) Truth {
	from, to = max(0, from), min(to, tl.Duration())
	tr := &tl.tracks[target]
	a, b := tr.at(from), tr.at(to)
	t := Truth{From: from, To: to}
	if to <= from {
		return t
	}
	var limited [numLimiters]float64
	var work float64
	for i := range limited {
		limited[i] = b.limited[i] - a.limited[i]
		work += limited[i]
	}
	t.Busy = seconds(work)
	if work > 0 {
		for i := range limited {
			limited[i] /= work
			if limited[i] > t.Share {
				t.Dominant, t.Share = Limiter(i), limited[i]
			}
		}
	}
	t.Shares = timeline.Shares{
		Memory: limited[LimitMemory], Compute: limited[LimitCompute], Launch: limited[LimitLaunch],
		Host: limited[LimitHost], Other: limited[LimitOther],
	}
	length := (to - from).Seconds()
	t.Idle = seconds(b.idle - a.idle)
	t.DRAMBytes = b.bytes - a.bytes
	t.SMClockHz = (b.clock - a.clock) / length * tr.plant.gpu.MaxSMClockHz
	t.Throttled = seconds(b.power - a.power + b.thermal - a.thermal)
	t.DRAMUtil, t.TensorUtil = (b.dram-a.dram)/length, (b.tensor-a.tensor)/length
	t.SMUtil, t.GraphicsUtil = (b.sm-a.sm)/length, (b.gr-a.gr)/length
	t.MeanWatts = (b.energy - a.energy) / length
	t.count(&a, &b)
	return t
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// count fills in what is counted at the ends of steps.
func (t *Truth) count(a, b *totals) {
	t.Steps = b.steps - a.steps
	t.OutputTokens = b.output - a.output
	t.PromptTokens = b.prompt - a.prompt
	t.Finished = b.finished - a.finished
	t.Preemptions = b.preempted - a.preempted
	if t.Steps > 0 {
		t.BytesPerStep = (b.stepBytes - a.stepBytes) / float64(t.Steps)
		t.MeanBatch = float64(b.batch-a.batch) / float64(t.Steps)
	}
	if n := b.batch - a.batch; n > 0 {
		t.MeanContext = (b.contexts - a.contexts) / float64(n)
	}
	if n := b.output - a.output - (b.firsts - a.firsts); n > 0 {
		t.TPOT = seconds((b.itl - a.itl) / float64(n))
	}
	if n := b.firsts - a.firsts; n > 0 {
		t.TTFT = seconds((b.ttft - a.ttft) / float64(n))
	}
}

// Phase is a named span of a scenario.
type Phase struct {
	Name string
	Span Span
}

// Phases returns the named spans of the scenario, in the order of the file.
func (tl *Timeline) Phases() []Phase { return slices.Clone(tl.scenario.Phases) }

// Phase returns the named span, and whether there is one of that name.
func (tl *Timeline) Phase(name string) (Phase, bool) {
	for _, p := range tl.scenario.Phases {
		if p.Name == name {
			return p, true
		}
	}
	return Phase{}, false
}

// PhaseTruth returns what was so of a target over the named span, and whether there is one of that name.
func (tl *Timeline) PhaseTruth(target int, name string) (Truth, bool) {
	p, ok := tl.Phase(name)
	if !ok {
		return Truth{}, false
	}
	return tl.Truth(target, p.Span.From, p.Span.To), true
}
