package scenario

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// job is a request inside the engine.
type job struct {
	req      *Request
	need     int // tokens whose KV must be in the cache before it can decode
	computed int // tokens whose KV is in the cache
	blocks   int // its own
	shared   int // of a prefix that others use too
	load     int // index of the load it came from
	adapter  int
	missed   int // tokens that a working prefix cache would have held
	remote   bool
}

// arrival is a request to come, or one whose prompt another machine has computed.
type arrival struct {
	at     time.Duration
	load   int
	prompt int
	output int
	job    *job // not nil: its cache has arrived
}

// part is what one job does in one step: so many prompt tokens, or one output token if prompt is zero.
type part struct {
	job     *job
	prompt  int
	arrived int // tokens of cache that come from another machine
}

// replica is one copy of the model with its queue and its cache.
type replica struct {
	waiting []*job
	running []*job
	free    int // blocks
	parts   []part
	cached  []bool // by load: whether its common prefix is in the cache
}

// engine is the state of one target while its timeline is made.
type engine struct {
	s        *Scenario
	spec     *TargetSpec
	target   int
	rng      *rand.Rand
	machines []machine // a rank
	programs []program // a rank, made anew every step

	now      time.Duration
	coming   []arrival // sorted by time
	replicas []replica
	requests []*Request
	done     counts   // up to now
	sums     []totals // a rank, up to now
	track    track
	previous time.Duration // start of the step before
	restarts int           // so many of the faults that restart it are over
}

// Parts of a GPU's memory: what the engine takes, as servers do by default, and what it keeps for activations.
const (
	memoryTaken    = 0.92
	activationPart = 0.03
)

func newEngine(s *Scenario, target int) (*engine, error) {
	spec := &s.Targets[target]
	e := &engine{s: s, spec: spec, target: target}
	e.rng = rand.New(rand.NewPCG(s.Seed, uint64(target)+1))
	free := spec.Engine.KVBlocks
	for rank, gpu := range spec.GPUs {
		g := s.GPUs[gpu]
		// No two boards are alike: this one reaches a little more or less of its bandwidth.
		p := newPlant(g, spec, rank, 1+0.008*clamped(e.rng), s.Seed)
		e.track.plants = append(e.track.plants, p)
		e.machines = append(e.machines, newMachine(g))
		if spec.Engine.KVBlocks > 0 {
			continue
		}
		room := float64(g.MemoryBytes)*(memoryTaken-activationPart) - p.weightBytes()
		if room <= 0 {
			return nil, fmt.Errorf("run scenario %s: target %s: the weights of %s in %s need %.1f GB on a GPU that has %.1f GB",
				s.Name, spec.Name, spec.Model.Name, spec.DType.Name, p.weightBytes()/1e9, float64(g.MemoryBytes)/1e9)
		}
		perToken := float64(spec.Model.KVElems) * float64(p.layerCount) / float64(spec.Model.Layers) * p.kvBytes / p.kvRanks
		if n := int(room / perToken / float64(spec.Engine.BlockSize)); free == 0 || n < free {
			free = n
		}
	}
	e.programs, e.sums = make([]program, len(spec.GPUs)), make([]totals, len(spec.GPUs))
	for range spec.DP {
		e.replicas = append(e.replicas, replica{free: free, cached: make([]bool, len(s.Loads))})
	}
	for _, l := range s.Loads {
		if n := l.Prompt.High + l.Output.High; l.Target == target && e.blocksFor(n+1) > free {
			return nil, fmt.Errorf("run scenario %s: target %s: a request of %d tokens does not fit the KV cache of %d tokens",
				s.Name, spec.Name, n, free*spec.Engine.BlockSize)
		}
	}
	e.track.blocks, e.track.blockSize = free*spec.DP, spec.Engine.BlockSize
	e.track.ranks = make([][]segment, len(spec.GPUs))
	e.schedule()
	return e, nil
}

// clamped draws from the normal distribution, cut at two and a half standard deviations.
func clamped(r *rand.Rand) float64 { return max(-2.5, min(2.5, r.NormFloat64())) }

func (e *engine) draw(r Range) int { return r.Low + e.rng.IntN(r.High-r.Low+1) }

// schedule draws the arrivals that do not depend on what the engine does.
func (e *engine) schedule() {
	for i, l := range e.s.Loads {
		if l.Target != e.target {
			continue
		}
		switch {
		case l.Streams > 0:
			for n := range l.Streams {
				e.arrive(l.Over.From+time.Duration(n)*l.Stagger, i)
			}
		case l.Rate > 0:
			for at := float64(l.Over.From); at < float64(l.Over.To); {
				e.arrive(time.Duration(at), i)
				gap := 1e9 / l.rate(time.Duration(at))
				if l.Poisson {
					gap *= e.rng.ExpFloat64()
				}
				at += gap
			}
		default:
			e.arrive(l.Over.From, i)
		}
	}
}

// rate returns the load's rate at a moment, which swings like a day's traffic if it is asked to.
func (l *Load) rate(at time.Duration) float64 {
	if l.Swing <= 0 || l.Period <= 0 {
		return l.Rate
	}
	return l.Rate * (1 + l.Swing*math.Sin(2*math.Pi*float64(at-l.Over.From)/float64(l.Period)))
}

// arrive plans a request of the load for the moment at, unless the load is over by then.
func (e *engine) arrive(at time.Duration, load int) {
	l := &e.s.Loads[load]
	if at >= e.s.Length || l.Over.To > 0 && at >= l.Over.To {
		return
	}
	a := arrival{at: at, load: load, prompt: e.draw(l.Prompt), output: e.draw(l.Output)}
	for _, f := range e.s.Faults {
		if !f.Over.Contains(at) || f.Target >= 0 && f.Target != e.target {
			continue
		}
		switch f.Kind {
		case LongPrompt:
			a.prompt = e.stretched(a.prompt, a.output, f.Value)
		case LongOutput:
			a.output = e.stretched(a.output, a.prompt, f.Value)
		default: // not of the requests
		}
	}
	e.expect(a)
}

// stretched returns a length times a factor, as far as the cache has room for it beside the rest of the request.
func (e *engine) stretched(n, rest int, factor float64) int {
	room := e.replicas[0].free*e.spec.Engine.BlockSize - rest - e.spec.Engine.BlockSize
	return max(1, min(int(float64(n)*factor), max(n, room)))
}

func (e *engine) expect(a arrival) {
	i, _ := slices.BinarySearchFunc(e.coming, a.at, func(a arrival, at time.Duration) int {
		if a.at <= at {
			return -1
		}
		return 1
	})
	e.coming = slices.Insert(e.coming, i, a)
}

// receive takes in what has arrived: each request goes to the copy of the model that has the fewest.
func (e *engine) receive() {
	n := 0
	for n < len(e.coming) && e.coming[n].at <= e.now {
		a := e.coming[n]
		n++
		if a.job != nil {
			r := e.emptiest()
			r.waiting = append(r.waiting, a.job)
			continue
		}
		r := &Request{Target: e.target, Arrival: a.at, PromptTokens: a.prompt, OutputTokens: a.output}
		e.requests = append(e.requests, r)
		j := &job{req: r, need: a.prompt, load: a.load}
		if e.spec.Engine.Adapters > 0 {
			j.adapter = 1 + e.rng.IntN(e.spec.Engine.Adapters)
		}
		if e.spec.Engine.RemoteRate > 0 {
			e.elsewhere(j)
			continue
		}
		c := e.emptiest()
		c.waiting = append(c.waiting, j)
	}
	e.coming = slices.Delete(e.coming, 0, n)
}

func (e *engine) emptiest() *replica {
	best := &e.replicas[0]
	for i := range e.replicas[1:] {
		if r := &e.replicas[i+1]; len(r.waiting)+len(r.running) < len(best.waiting)+len(best.running) {
			best = r
		}
	}
	return best
}

// elsewhere has another machine compute the prompt of a request. That machine sends the first token; the cache follows,
// and only then can this engine go on, so that the first gap of the request is longer than the others.
func (e *engine) elsewhere(j *job) {
	spec := &e.spec.Engine
	first := e.now + seconds(float64(j.need)/spec.RemoteRate)
	cache := float64(j.need) * float64(e.spec.Model.KVElems) * e.track.plants[0].kvBytes
	j.remote = true
	if first >= e.s.Length {
		return
	}
	j.req.Tokens = append(j.req.Tokens, first)
	if j.req.OutputTokens > 1 {
		e.expect(arrival{at: first + seconds(cache/spec.RemoteBps), job: j})
		return
	}
	j.req.Finish = first
	if l := &e.s.Loads[j.load]; l.Streams > 0 {
		e.arrive(first+l.Think, j.load)
	}
}

func (e *engine) blocksFor(tokens int) int {
	return (tokens + e.spec.Engine.BlockSize - 1) / e.spec.Engine.BlockSize
}

// plan chooses the parts of the next step of one copy: running requests first, in the order they came, then as many of
// the waiting ones as the budget, the batch and the cache allow. Where prompts have steps of their own, those come first.
func (e *engine) plan(r *replica) {
	r.parts = r.parts[:0]
	budget := e.spec.Engine.TokenBudget
	if e.spec.Engine.Apart {
		e.admit(r, &budget)
		if len(r.parts) > 0 {
			return
		}
	}
	preempted := false
	for i := 0; i < len(r.running) && budget > 0; i++ {
		j := r.running[i]
		n := 1 + e.spec.Engine.Speculate
		if j.computed < j.need {
			n = min(j.need-j.computed, e.spec.Engine.Chunk, budget)
		}
		for !e.reserve(r, j, j.computed+n) && len(r.running) > i+1 {
			e.preempt(r)
			preempted = true
		}
		if e.blocksFor(j.computed+n) > j.blocks+j.shared {
			break // nothing left to take from: it waits for its own turn
		}
		r.give(j, n)
		budget -= n
	}
	if !preempted && !e.spec.Engine.Apart {
		e.admit(r, &budget)
	}
}

// admit starts requests that wait.
func (e *engine) admit(r *replica, budget *int) {
	for len(r.waiting) > 0 && len(r.running) < e.spec.Engine.MaxBatch && *budget > 0 {
		j := r.waiting[0]
		e.lookUp(r, j)
		if !e.reserve(r, j, j.need+1) {
			break
		}
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.running = append(r.running, j)
		if j.remote {
			j.remote, j.computed = false, j.need
			r.parts = append(r.parts, part{job: j, arrived: j.need})
			*budget -= 1 + e.spec.Engine.Speculate
			continue
		}
		n := min(j.need-j.computed, e.spec.Engine.Chunk, *budget)
		e.done.queried += j.need
		e.done.hits += j.computed
		r.give(j, n)
		*budget -= n
	}
}

func (r *replica) give(j *job, n int) {
	if j.computed < j.need {
		r.parts = append(r.parts, part{job: j, prompt: n})
		return
	}
	r.parts = append(r.parts, part{job: j})
}

// reserve gives j the blocks for so many tokens, and reports whether there were enough.
func (e *engine) reserve(r *replica, j *job, tokens int) bool {
	more := e.blocksFor(tokens) - j.blocks - j.shared
	if more <= 0 {
		return true
	}
	if more > r.free {
		return false
	}
	r.free -= more
	j.blocks += more
	return true
}

// lookUp finds the part of a waiting job's prompt that is in the cache already. At least one token is left to compute.
func (e *engine) lookUp(r *replica, j *job) {
	if l := &e.s.Loads[j.load]; !r.cached[j.load] || l.Prefix == 0 || j.remote {
		return
	}
	shared := min(e.s.Loads[j.load].Prefix, j.need-1) / e.spec.Engine.BlockSize
	for _, f := range e.s.Faults {
		if f.Kind == PrefixMiss && e.meets(&f) {
			j.shared, j.computed, j.missed = 0, 0, shared*e.spec.Engine.BlockSize
			return
		}
	}
	j.shared, j.computed = shared, shared*e.spec.Engine.BlockSize
}

// share hands the blocks of a job's prefix over to the cache, once, when they have been computed.
func (e *engine) share(r *replica, j *job) {
	l := &e.s.Loads[j.load]
	if r.cached[j.load] || l.Prefix == 0 {
		return
	}
	r.cached[j.load] = true
	j.shared = min(l.Prefix, j.need-1) / e.spec.Engine.BlockSize
	j.blocks -= j.shared
}

// preempt takes the cache from the request that came last and puts it back to the head of the queue. It will compute
// its prompt and its output so far again.
func (e *engine) preempt(r *replica) {
	j := r.running[len(r.running)-1]
	r.running = r.running[:len(r.running)-1]
	r.free += j.blocks
	j.blocks, j.shared, j.computed, j.need = 0, 0, 0, j.req.PromptTokens+len(j.req.Tokens)
	r.waiting = slices.Insert(r.waiting, 0, j)
	e.done.preempted++
}

// byArrival sorts requests as they came.
func byArrival(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) }
