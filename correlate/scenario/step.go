package scenario

import (
	"math"
	"slices"
	"time"
)

// step is what all ranks of an engine share of one iteration, or of a stretch without work.
type step struct {
	start   time.Duration
	idle    bool
	eager   bool
	gap     float64 // s of host time before the kernels
	stall   float64 // s of it that faults add
	launch  float64 // s of host time to launch a kernel
	link    float64 // s that each collective takes more, by a fault
	tail    float64 // s that late collectives add to the step
	noise   float64 // factor on what kernels reach
	running int
	waiting int
	blocks  int // of the KV cache in use
	batches []batch
	done    counts // up to the start
}

// segment is one GPU's part of a step.
type segment struct {
	cond condition
	sync float64 // s that this rank waits for others within the layers
	done totals  // up to the start
}

func (e *engine) run() {
	for e.now < e.s.Length {
		if e.restart(); e.now >= e.s.Length {
			break
		}
		e.receive()
		work := false
		for i := range e.replicas {
			e.plan(&e.replicas[i])
			work = work || len(e.replicas[i].parts) > 0
		}
		if !work {
			e.idle()
			continue
		}
		e.step()
	}
	e.track.steps = append(e.track.steps, step{start: e.now, idle: true, done: e.done})
	for rank := range e.spec.GPUs {
		c := condition{clock: 1, free: 1, celsius: e.machines[rank].celsius}
		e.track.ranks[rank] = append(e.track.ranks[rank], segment{cond: c, done: e.sums[rank]})
	}
}

// step runs the planned parts.
func (e *engine) step() {
	st := e.assemble()
	st.done = e.done
	for rank := range e.spec.GPUs {
		e.track.ranks[rank] = append(e.track.ranks[rank], segment{cond: e.condition(rank), done: e.sums[rank]})
	}
	e.track.steps = append(e.track.steps, st)
	length := e.track.synchronize(len(e.track.steps)-1, e.programs)
	var bytes float64
	for rank := range e.spec.GPUs {
		p, pr, seg := &e.track.plants[rank], &e.programs[rank], e.track.lastOf(rank)
		p.fit(pr, seg, length.Seconds())
		spent := p.until(pr, &seg.cond, length.Seconds())
		fixed, dynamic := p.meanDemand(pr, length.Seconds())
		e.machines[rank].follow(fixed, dynamic, spent.energy/length.Seconds(), length)
		e.sums[rank].add(&spent)
		bytes += spent.bytes / float64(len(e.spec.GPUs))
	}
	e.previous, e.now = e.now, e.now+length
	if e.now <= e.s.Length {
		e.finish(&st, bytes)
	}
}

// synchronize works out how long a step takes all ranks together, and how long each waits for the others.
func (tr *track) synchronize(i int, programs []program) time.Duration {
	st := &tr.steps[i]
	var longest float64
	for rank := range tr.plants {
		tr.plants[rank].build(&programs[rank], st, &tr.ranks[rank][i].cond)
		longest = max(longest, programs[rank].seconds())
	}
	if parts := tr.plants[0].parts; parts > 1 {
		longest = tr.pipeline(i, st, programs, parts)
	} else {
		for rank := range tr.plants {
			tr.ranks[rank][i].sync = longest - programs[rank].seconds()
		}
	}
	if len(tr.plants) == 1 {
		return max(1, time.Duration(math.Round(longest*1e9)))
	}
	return max(1, time.Duration(math.Ceil(longest*1e9)))
}

// pipeline works out how long the parts of a step take to pass all stages. No stage can be done before it has worked
// on all parts, and no part before it has passed all stages; the rest of the time a stage waits.
func (tr *track) pipeline(i int, st *step, programs []program, parts int) float64 {
	spent := make([]float64, parts*parts) // by stage and part: of the slowest rank
	part := func(rank, k int) (sum float64) {
		pr := &programs[rank]
		for _, s := range pr.sections[1:] {
			if s.part == k {
				sum += pr.length(s) * float64(s.repeat)
			}
		}
		return sum
	}
	for rank := range tr.plants {
		for k := range parts {
			at := tr.plants[rank].stage*parts + k
			spent[at] = max(spent[at], part(rank, k))
		}
	}
	var longest float64
	for a := range parts {
		var stage, passage float64
		for b := range parts {
			stage += spent[a*parts+b]
			passage += spent[b*parts+a]
		}
		longest = max(longest, stage, passage)
	}
	for rank := range tr.plants {
		var sync float64
		for k := range parts {
			sync += spent[tr.plants[rank].stage*parts+k] - part(rank, k)
		}
		tr.ranks[rank][i].sync = sync
	}
	return st.gap + longest
}

// fit makes a program as long as its step: the rank waits where it meets the others, and at the end of its stage.
func (p *plant) fit(pr *program, seg *segment, length float64) {
	if p.ranks > 1 {
		pr.wait(max(0, seg.sync))
	}
	if rest := length - pr.seconds(); rest > 2e-9 {
		pr.open(1, 0)
		pr.add(Kernel{Seconds: rest, SM: pipeSM, Occ: pipeSM / 4, GR: 1, Limiter: LimitComm, Waits: true})
	}
	pr.stretch(length / pr.seconds())
}

// condition returns the state of a rank's GPU at this moment.
func (e *engine) condition(rank int) condition {
	gpu, m := e.spec.GPUs[rank], &e.machines[rank]
	limits := e.s.limitsAt(gpu, e.now)
	m.rise = limits.rise
	c := condition{bandwidth: 1, slow: 1, celsius: m.celsius}
	c.clock, c.held = m.clock(limits)
	c.free, _ = m.clock(unlimited(&e.s.GPUs[gpu]))
	for _, f := range e.s.Faults {
		if !f.Over.Contains(e.now) || f.Target >= 0 && f.Target != e.target || f.GPU >= 0 && f.GPU != gpu {
			continue
		}
		switch f.Kind {
		case BandwidthLoss:
			c.bandwidth *= 1 - f.Value
		case Straggler:
			c.slow *= 1 + f.Value
		case Neighbour:
			c.foreign = f.Value
		default: // not of one GPU
		}
	}
	return c
}

// meets reports whether the fault is in force and concerns this engine.
func (e *engine) meets(f *Fault) bool {
	return f.Over.Contains(e.now) && (f.Target < 0 || f.Target == e.target) && (f.GPU < 0 || slices.Contains(e.spec.GPUs, f.GPU))
}

// assemble sums up the parts of all copies and meets the faults that concern all ranks.
func (e *engine) assemble() step {
	spec := &e.spec.Engine
	st := step{
		start: e.now, eager: !spec.Graphs, launch: spec.Launch.Seconds(), noise: 1 + 0.008*clamped(e.rng),
		batches: make([]batch, e.spec.DP*e.spec.PP),
	}
	most, seqs := 0, 0
	for i := range e.replicas {
		r := &e.replicas[i]
		e.sum(r, st.batches[i*e.spec.PP:(i+1)*e.spec.PP])
		st.running, st.waiting = st.running+len(r.running), st.waiting+len(r.waiting)
		seqs = max(seqs, len(r.parts))
	}
	st.blocks = e.blocksInUse()
	for i := range st.batches {
		most = max(most, st.batches[i].tokens())
	}
	if spec.Capture > 0 && most > spec.Capture {
		st.eager = true
	}
	host := spec.Host + time.Duration(seqs)*spec.HostPerSeq
	st.gap = host.Seconds() * math.Exp(0.12*clamped(e.rng))
	if len(e.spec.GPUs) > 1 {
		st.tail = e.tail()
	}
	for _, f := range e.s.Faults {
		if !e.meets(&f) {
			continue
		}
		switch f.Kind {
		case HostStall:
			if f.Every == 0 || (e.now-f.Over.From)/f.Every > (e.previous-f.Over.From)/f.Every || e.previous < f.Over.From {
				st.gap += f.Value
				st.stall += f.Value
			}
		case Eager:
			st.eager = true
		case SlowLaunch:
			st.launch = f.Value
		case SlowLink:
			st.link += f.Value
		default: // of one GPU, or of the requests
		}
	}
	return st
}

func (e *engine) blocksInUse() int {
	used := e.track.blocks
	for i := range e.replicas {
		used -= e.replicas[i].free
	}
	return used
}

// tail draws how much the collectives of a step that come late add to it. How late one is has a long tail.
func (e *engine) tail() float64 {
	var sum float64
	for n := 2 * float64(e.spec.Model.Layers) * tailChance; ; {
		if n -= e.rng.ExpFloat64(); n < 0 {
			return sum
		}
		sum += min(tailLongest, tailSeconds*math.Pow(1-e.rng.Float64(), -1/tailShape))
	}
}

// sum adds up the parts of one copy. In a pipeline the sequences that decode take turns over its stages, and prompts go
// with the first of them.
func (e *engine) sum(r *replica, batches []batch) {
	window, spec := e.spec.Model.SlidingWindow, &e.spec.Engine
	adapters := map[int]bool{}
	next := 0
	for _, p := range r.parts {
		b := &batches[0]
		if p.prompt == 0 {
			b = &batches[next%len(batches)]
			next++
			b.drafts = spec.Speculate
			context := p.job.computed + 1
			b.decode++
			b.sampled += 1 + spec.Speculate
			b.contexts += float64(context)
			b.arrived += float64(p.arrived)
			if window > 0 {
				b.windowed += float64(min(window, context))
			}
		} else {
			b.prompt += p.prompt
			b.missed += max(0, min(p.prompt, p.job.missed-p.job.computed))
			b.pairs += float64(p.prompt) * (float64(p.job.computed) + float64(p.prompt+1)/2)
			b.promptKV += float64(p.job.computed + 2*p.prompt)
			if p.job.computed+p.prompt == p.job.need {
				b.sampled++
			}
		}
		if p.job.adapter > 0 && !adapters[p.job.adapter] {
			adapters[p.job.adapter] = true
			b.adapters++
		}
	}
	batches[0].reused = e.reuse(r)
	if len(r.parts) == 0 && e.spec.DP > 1 {
		batches[0].dummy = true
	}
}

// reuse returns how many tokens of the contexts come from the L2: a common prefix is read once for all sequences that
// share it, if one layer's part of it fits.
func (e *engine) reuse(r *replica) float64 {
	var tokens, seen float64
	var counted []int
	for _, p := range r.parts {
		if p.prompt > 0 || p.job.shared == 0 {
			continue
		}
		shared := float64(p.job.shared * e.spec.Engine.BlockSize)
		tokens += shared
		if !slices.Contains(counted, p.job.load) {
			counted = append(counted, p.job.load)
			seen += shared
		}
	}
	plant := &e.track.plants[0]
	perLayer := float64(e.spec.Model.KVElems) / float64(e.spec.Model.Layers) / plant.kvRanks * plant.kvBytes
	if seen*perLayer > plant.gpu.L2Bytes/2 {
		return 0
	}
	return (tokens - seen) / float64(e.spec.PP)
}

// accepted draws how many tokens a sequence gets from a step: its own, and the guesses that are right.
func (e *engine) accepted() int {
	accept := e.spec.Engine.Accept
	for _, f := range e.s.Faults {
		if f.Kind == Acceptance && e.meets(&f) {
			accept = f.Value
		}
	}
	n := 1
	for n <= e.spec.Engine.Speculate && e.rng.Float64() < accept {
		n++
	}
	return n
}

// strangers notes who else uses the GPU while the engine rests, and cuts the rest where that changes.
func (e *engine) strangers(gpu int, until *time.Duration) {
	for _, f := range e.s.Faults {
		if f.Kind != Neighbour || f.GPU >= 0 && f.GPU != gpu {
			continue
		}
		if e.meets(&f) {
			*until = min(*until, f.Over.To)
		} else if f.Over.From > e.now {
			*until = min(*until, f.Over.From)
		}
	}
}

// finish does what the end of a step brings: tokens, and requests that are done.
func (e *engine) finish(st *step, bytes float64) {
	e.done.steps++
	e.done.stepBytes += bytes
	for i := range st.batches {
		b := &st.batches[i]
		e.done.batch += b.decode
		e.done.contexts += b.contexts
		e.done.prompt += b.prompt
	}
	for i := range e.replicas {
		r := &e.replicas[i]
		for _, p := range r.parts {
			tokens := 1
			if p.prompt > 0 {
				p.job.computed += p.prompt
				if p.job.computed < p.job.need {
					continue
				}
				e.share(r, p.job)
			} else {
				tokens = min(e.accepted(), p.job.req.OutputTokens-len(p.job.req.Tokens))
				p.job.computed += tokens
			}
			e.emit(r, p.job, tokens)
		}
		r.running = slices.DeleteFunc(r.running, func(j *job) bool { return j.req.Finish > 0 })
	}
}

// emit gives a request its tokens of this step.
func (e *engine) emit(c *replica, j *job, tokens int) {
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
	c.free += j.blocks
	if l := &e.s.Loads[j.load]; l.Streams > 0 {
		e.arrive(e.now+l.Think, j.load)
	}
}
