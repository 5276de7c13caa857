package scenario

import (
	"fmt"
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
}

// arrival is a request to come.
type arrival struct {
	at     time.Duration
	load   int
	prompt int
	output int
}

// part is what one job does in one step: so many prompt tokens, or one output token if prompt is zero.
type part struct {
	job    *job
	prompt int
}

// engine is the state of one target while its timeline is made.
type engine struct {
	s       *Scenario
	spec    *TargetSpec
	target  int
	rng     *rand.Rand
	plant   plant
	machine machine

	now      time.Duration
	coming   []arrival // sorted by time
	waiting  []*job
	running  []*job
	free     int // blocks
	parts    []part
	requests []*Request
	done     totals // up to now
	cached   []bool // by load: whether its common prefix is in the cache
	track    track
	previous time.Duration // start of the step before
}

// Parts of a GPU's memory: what the engine takes, as servers do by default, and what it keeps for activations.
const (
	memoryTaken    = 0.92
	activationPart = 0.03
)

func newEngine(s *Scenario, target int) (*engine, error) {
	spec := &s.Targets[target]
	g := s.GPUs[spec.GPUs[0]]
	e := &engine{s: s, spec: spec, target: target, machine: newMachine(g)}
	e.rng = rand.New(rand.NewPCG(s.Seed, uint64(target)+1))
	// No two boards are alike: this one reaches a little more or less of its bandwidth.
	e.plant = newPlant(g, spec, 1+0.012*clamped(e.rng), s.Seed)
	e.free = spec.Engine.KVBlocks
	e.cached = make([]bool, len(s.Loads))
	perToken := float64(spec.Model.KVElems) * e.plant.kvBytes / e.plant.kvRanks
	if e.free == 0 {
		weights := (float64(spec.Model.ParamsTotal-spec.Model.HeadParams())*spec.DType.Bits +
			float64(spec.Model.HeadParams())*spec.DType.HeadBits) / 8 / e.plant.ranks
		room := float64(g.MemoryBytes)*(memoryTaken-activationPart) - weights
		if room <= 0 {
			return nil, fmt.Errorf("run scenario %s: target %s: the weights of %s in %s need %.1f GB on a GPU that has %.1f GB",
				s.Name, spec.Name, spec.Model.Name, spec.DType.Name, weights/1e9, float64(g.MemoryBytes)/1e9)
		}
		e.free = int(room / perToken / float64(spec.Engine.BlockSize))
	}
	for _, l := range s.Loads {
		if n := l.Prompt.High + l.Output.High; l.Target == target && e.blocksFor(n+1) > e.free {
			return nil, fmt.Errorf("run scenario %s: target %s: a request of %d tokens does not fit the KV cache of %d tokens",
				s.Name, spec.Name, n, e.free*spec.Engine.BlockSize)
		}
	}
	e.track = track{plant: e.plant, blocks: e.free, blockSize: spec.Engine.BlockSize}
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
			gap := 1e9 / l.Rate
			for at := float64(l.Over.From); at < float64(l.Over.To); {
				e.arrive(time.Duration(at), i)
				if l.Poisson {
					at += gap * e.rng.ExpFloat64()
				} else {
					at += gap
				}
			}
		default:
			e.arrive(l.Over.From, i)
		}
	}
}

// arrive plans a request of the load for the moment at, unless the load is over by then.
func (e *engine) arrive(at time.Duration, load int) {
	l := &e.s.Loads[load]
	if at >= e.s.Length || l.Over.To > 0 && at >= l.Over.To {
		return
	}
	a := arrival{at, load, e.draw(l.Prompt), e.draw(l.Output)}
	i, _ := slices.BinarySearchFunc(e.coming, at, func(a arrival, at time.Duration) int {
		if a.at <= at {
			return -1
		}
		return 1
	})
	e.coming = slices.Insert(e.coming, i, a)
}

func (e *engine) run() {
	for e.now < e.s.Length {
		e.receive()
		e.plan()
		if len(e.parts) == 0 {
			e.idle()
			continue
		}
		e.step()
	}
	e.track.add(segment{start: e.now, idle: true, work: work{clock: 1}, celsius: e.machine.celsius, done: e.done})
}

// receive takes in what has arrived.
func (e *engine) receive() {
	n := 0
	for n < len(e.coming) && e.coming[n].at <= e.now {
		a := e.coming[n]
		r := &Request{Target: e.target, Arrival: a.at, PromptTokens: a.prompt, OutputTokens: a.output}
		e.requests = append(e.requests, r)
		e.waiting = append(e.waiting, &job{req: r, need: a.prompt, load: a.load})
		n++
	}
	e.coming = e.coming[n:]
}

// idle lets time pass until the next arrival.
func (e *engine) idle() {
	until := e.s.Length
	if len(e.coming) > 0 {
		until = min(until, e.coming[0].at)
	}
	seg := segment{start: e.now, idle: true, celsius: e.machine.celsius, done: e.done}
	seg.work.clock, seg.held = e.clock()
	e.strangers(&seg.work, &until)
	e.track.add(seg)
	d := until - e.now
	spent := e.plant.rest(d.Seconds(), &seg)
	e.done.add(spent)
	e.machine.follow(restPart*e.plant.gpu.TDPWatts, 0, spent.energy/d.Seconds(), d)
	e.now = until
}

// clock is that of the slowest rank.
func (e *engine) clock() (float64, hold) {
	clock, why := e.machine.clock(e.s.limitsAt(e.spec.GPUs[0], e.now))
	for _, g := range e.spec.GPUs[1:] {
		if c, h := e.machine.clock(e.s.limitsAt(g, e.now)); c < clock {
			clock, why = c, h
		}
	}
	return clock, why
}

func (e *engine) blocksFor(tokens int) int {
	return (tokens + e.spec.Engine.BlockSize - 1) / e.spec.Engine.BlockSize
}

// plan chooses the parts of the next step: running requests first, in the order they came, then as many of the waiting
// ones as the budget, the batch and the cache allow.
func (e *engine) plan() {
	e.parts = e.parts[:0]
	budget, preempted := e.spec.Engine.TokenBudget, false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		j := e.running[i]
		n := 1 + e.spec.Engine.Speculate
		if j.computed < j.need {
			n = min(j.need-j.computed, e.spec.Engine.Chunk, budget)
		}
		for !e.reserve(j, j.computed+n) && len(e.running) > i+1 {
			e.preempt()
			preempted = true
		}
		if e.blocksFor(j.computed+n) > j.blocks+j.shared {
			break // nothing left to take from: it waits for its own turn
		}
		e.give(j, n)
		budget -= n
	}
	for !preempted && len(e.waiting) > 0 && len(e.running) < e.spec.Engine.MaxBatch && budget > 0 {
		j := e.waiting[0]
		e.lookUp(j)
		if !e.reserve(j, j.need+1) {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, j)
		n := min(j.need-j.computed, e.spec.Engine.Chunk, budget)
		e.count(j)
		e.give(j, n)
		budget -= n
	}
}

func (e *engine) give(j *job, n int) {
	if j.computed < j.need {
		e.parts = append(e.parts, part{j, n})
		return
	}
	e.parts = append(e.parts, part{j, 0})
}

// reserve gives j the blocks for so many tokens, and reports whether there were enough.
func (e *engine) reserve(j *job, tokens int) bool {
	more := e.blocksFor(tokens) - j.blocks - j.shared
	if more <= 0 {
		return true
	}
	if more > e.free {
		return false
	}
	e.free -= more
	j.blocks += more
	return true
}

// lookUp finds the part of a waiting job's prompt that is in the cache already. At least one token is left to compute.
func (e *engine) lookUp(j *job) {
	if l := &e.s.Loads[j.load]; !e.cached[j.load] || l.Prefix == 0 {
		return
	}
	for _, f := range e.s.Faults {
		if f.Kind == PrefixMiss && e.meets(&f) {
			j.shared, j.computed = 0, 0
			return
		}
	}
	j.shared = min(e.s.Loads[j.load].Prefix, j.need-1) / e.spec.Engine.BlockSize
	j.computed = j.shared * e.spec.Engine.BlockSize
}

// count notes the look-up of a job that is admitted.
func (e *engine) count(j *job) {
	e.done.queried += j.need
	e.done.hits += j.computed
}

// share hands the blocks of a job's prefix over to the cache, once, when they have been computed.
func (e *engine) share(j *job) {
	l := &e.s.Loads[j.load]
	if e.cached[j.load] || l.Prefix == 0 {
		return
	}
	e.cached[j.load] = true
	j.shared = min(l.Prefix, j.need-1) / e.spec.Engine.BlockSize
	j.blocks -= j.shared
}

// preempt takes the cache from the request that came last and puts it back to the head of the queue. It will compute
// its prompt and its output so far again.
func (e *engine) preempt() {
	j := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.free += j.blocks
	j.blocks, j.shared, j.computed, j.need = 0, 0, 0, j.req.PromptTokens+len(j.req.Tokens)
	e.waiting = slices.Insert(e.waiting, 0, j)
	e.done.preempted++
}

// step runs the planned parts.
func (e *engine) step() {
	w := e.work()
	var why hold
	w.clock, why = e.clock()
	e.faults(&w)
	pr, length := e.plant.lay(&w)
	e.track.add(segment{
		start: e.now, work: w, held: why, celsius: e.machine.celsius, running: len(e.running), waiting: len(e.waiting),
		blocks: e.track.blocks - e.free, done: e.done,
	})
	seg := &e.track.segments[len(e.track.segments)-1]
	spent := e.plant.until(&pr, seg, length.Seconds())
	fixed, dynamic := e.plant.meanDemand(&pr, length.Seconds())
	e.machine.follow(fixed, dynamic, spent.energy/length.Seconds(), length)
	e.done.add(spent)
	e.previous, e.now = e.now, e.now+length
	if e.now <= e.s.Length {
		e.finish(&w, spent.bytes)
	}
}

// finish does what the end of a step brings: tokens, and requests that are done.
func (e *engine) finish(w *work, bytes float64) {
	e.done.steps++
	e.done.batch += w.decode
	e.done.contexts += w.contexts
	e.done.stepBytes += bytes
	e.done.prompt += w.prompt
	for _, p := range e.parts {
		j, r := p.job, p.job.req
		tokens := 1
		if p.prompt > 0 {
			j.computed += p.prompt
			if j.computed < j.need {
				continue
			}
			e.share(j)
		} else {
			tokens = min(e.accepted(), r.OutputTokens-len(r.Tokens))
			j.computed += tokens
		}
		e.emit(j, tokens)
	}
	e.running = slices.DeleteFunc(e.running, func(j *job) bool { return j.req.Finish > 0 })
}

// emit gives a request its tokens of this step.
func (e *engine) emit(j *job, tokens int) {
	r := j.req
	if len(r.Tokens) == 0 {
		e.done.prompted += r.PromptTokens
		e.done.ttft += (e.now - r.Arrival).Seconds()
		e.done.firsts++
	} else {
		e.done.itl += (e.now - r.Tokens[len(r.Tokens)-1]).Seconds()
		e.done.gaps++
	}
	for range tokens {
		r.Tokens = append(r.Tokens, e.now)
	}
	e.done.output += tokens
	if len(r.Tokens) < r.OutputTokens {
		return
	}
	r.Finish = e.now
	e.done.finished++
	e.free += j.blocks
	if l := &e.s.Loads[j.load]; l.Streams > 0 {
		e.arrive(e.now+l.Think, j.load)
	}
}
