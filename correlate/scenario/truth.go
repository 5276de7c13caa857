package scenario

import (
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

var limiterNames = [numLimiters]string{"memory", "compute", "launch", "host", "communication", "other"}

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
	BlockSize int           // tokens
	Started   time.Duration // when it came up

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

// Engine returns the state of a target's engine at t. Totals move at the end of a step, and begin anew when it restarts.
func (tl *Timeline) Engine(target int, t time.Duration) EngineState {
	t = max(0, min(t, tl.Duration()))
	tr := &tl.tracks[target]
	st, b := &tr.steps[tr.find(t)], tr.since(t)
	d, z := &st.done, &b.done
	return EngineState{
		Running: st.running, Waiting: st.waiting, KVUsage: float64(st.blocks) / float64(max(1, tr.blocks)),
		KVBlocks: tr.blocks, BlockSize: tr.blockSize, Started: b.at,
		PromptTokens: d.prompted - z.prompted, OutputTokens: d.output - z.output, Preemptions: d.preempted - z.preempted,
		Steps: d.steps - z.steps, Finished: d.finished - z.finished,
		ITLSum: d.itl - z.itl, ITLCount: d.gaps - z.gaps, TTFTSum: d.ttft - z.ttft, TTFTCount: d.firsts - z.firsts,
		PrefixQueries: d.queried - z.queried, PrefixHits: d.hits - z.hits,
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
	Aborted      time.Duration   // when its engine went down under it; zero otherwise
	Observed     bool            // a probe sees it
	Delivered    []Chunk         // as they reach the client; nil: each step's tokens at once, see Chunks
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
	Contexts     int           // sum over the decoding sequences, tokens
	Bytes        float64       // mean of the ranks
	HostGap      time.Duration // at the step's start
	SMClockHz    float64       // of the first rank
	Eager        bool          // its kernels were launched one by one
}

// Steps returns the steps of a target that ended within the scenario.
func (tl *Timeline) Steps(target int) []Step {
	tr := &tl.tracks[target]
	var steps []Step
	for i := range tr.steps[:len(tr.steps)-1] {
		st, next := &tr.steps[i], &tr.steps[i+1]
		if st.idle || next.start > tl.Duration() {
			continue
		}
		s := Step{
			Start: st.start, End: next.start, HostGap: time.Duration(st.gap * 1e9),
			SMClockHz: tr.ranks[0][i].cond.clock * tr.plants[0].gpu.MaxSMClockHz, Eager: st.eager,
		}
		var contexts float64
		for k := range st.batches {
			b := &st.batches[k]
			s.DecodeBatch, s.PromptTokens = s.DecodeBatch+b.decode, s.PromptTokens+b.prompt
			contexts += b.contexts
		}
		s.Contexts = int(contexts)
		for _, rank := range tr.ranks {
			s.Bytes += (rank[i+1].done.bytes - rank[i].done.bytes) / float64(len(tr.ranks))
		}
		steps = append(steps, s)
	}
	return steps
}

// Kernels returns what the first rank runs in the step that holds t: the host gap first, then each of the layers, then
// the head. It returns nothing where there is no work.
func (tl *Timeline) Kernels(target int, t time.Duration) []Kernel {
	return tl.RankKernels(target, 0, t)
}

// RankKernels is Kernels of one rank. What it does and where it waits for the others is its own.
func (tl *Timeline) RankKernels(target, rank int, t time.Duration) []Kernel {
	tr := &tl.tracks[target]
	i := tr.find(t)
	if tr.steps[i].idle {
		return nil
	}
	pr := tr.lay(rank, i)
	var list []Kernel
	for _, s := range pr.sections {
		for range s.repeat {
			list = append(list, pr.of(s)...)
		}
	}
	return list
}

// Truth is what was so over a span: of one rank, or in the mean of a target's ranks.
type Truth struct {
	From, To      time.Duration
	Shares        timeline.Shares // of the time in which there was work, by limiter; all zero if there was none
	Communication float64         // the part of Shares.Other that is LimitComm
	Waits         float64         // the part of it in which a rank had nothing to do but wait for another
	Dominant      Limiter
	Share         float64       // of the dominant limiter
	Busy          time.Duration // in which there was work, the host's gaps between steps included
	Idle          time.Duration // in which there was no request at all
	DRAMBytes     float64       // of one rank

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

// Of returns the share of one limiter.
func (t *Truth) Of(l Limiter) float64 {
	switch l {
	case LimitMemory:
		return t.Shares.Memory
	case LimitCompute:
		return t.Shares.Compute
	case LimitLaunch:
		return t.Shares.Launch
	case LimitHost:
		return t.Shares.Host
	case LimitComm:
		return t.Communication
	case LimitOther:
		return t.Shares.Other - t.Communication
	default:
		return 0
	}
}

// Truth returns what was so of a target from one moment to another, in the mean of its ranks.
func (tl *Timeline) Truth(target int, from, to time.Duration) Truth {
	return tl.truth(target, 0, len(tl.tracks[target].ranks), from, to)
}

// RankTruth is Truth of one rank.
func (tl *Timeline) RankTruth(target, rank int, from, to time.Duration) Truth {
	return tl.truth(target, rank, rank+1, from, to)
}

// truth is that of the ranks from first up to end.
func (tl *Timeline) truth(target, first, end int, from, to time.Duration) Truth {
	from, to = max(0, from), min(to, tl.Duration())
	tr := &tl.tracks[target]
	t := Truth{From: from, To: to}
	if to <= from {
		return t
	}
	var d totals
	for rank := first; rank < end; rank++ {
		a, b := tr.at(rank, from), tr.at(rank, to)
		b.plus(&a, -1)
		d.plus(&b, 1/float64(end-first))
	}
	var work float64
	for _, s := range d.limited {
		work += s
	}
	t.Busy = seconds(work)
	if work > 0 {
		for i := range d.limited {
			d.limited[i] /= work
			if d.limited[i] > t.Share {
				t.Dominant, t.Share = Limiter(i), d.limited[i]
			}
		}
		t.Waits = d.waits / work
	}
	t.Communication = d.limited[LimitComm]
	t.Shares = timeline.Shares{
		Memory: d.limited[LimitMemory], Compute: d.limited[LimitCompute], Launch: d.limited[LimitLaunch],
		Host: d.limited[LimitHost], Other: d.limited[LimitOther] + d.limited[LimitComm],
	}
	length := (to - from).Seconds()
	t.Idle = seconds(d.idle)
	t.DRAMBytes = d.bytes
	t.SMClockHz = d.clock / length * tr.plants[first].gpu.MaxSMClockHz
	t.Throttled = seconds(d.power + d.thermal)
	t.DRAMUtil, t.TensorUtil, t.SMUtil, t.GraphicsUtil = d.dram/length, d.tensor/length, d.sm/length, d.gr/length
	t.MeanWatts = d.energy / length
	a, b := tr.counted(from), tr.counted(to)
	t.count(&a, &b)
	return t
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// count fills in what is counted at the ends of steps.
func (t *Truth) count(a, b *counts) {
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

// Gate is a circumstance under which counters and requests do not tell what bounded decode.
type Gate string

// The gates.
const (
	GateWindows    Gate = "windows"    // too few windows
	GateCoverage   Gate = "coverage"   // most traffic is not seen
	GateClock      Gate = "clock"      // the probe's clock may be too far off
	GateForeign    Gate = "foreign"    // someone else computes on the GPU
	GateMIG        Gate = "mig"        // an instance of a board
	GateLegacy     Gate = "legacy"     // the driver reads no windows of activity
	GateUntrusted  Gate = "untrusted"  // a counter contradicts what else is known
	GatePermission Gate = "permission" // the counters are not for this user
	GateIdle       Gate = "idle"       // nothing runs
)

// Phase is a named span of a scenario, and what it is made to show: at most one thing. What is empty is not claimed.
type Phase struct {
	Name    string
	Span    Span
	Label   timeline.Label
	Overlay timeline.Overlay
	Grade   timeline.Grade
	Gate    Gate
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
