package scenario

import "time"

// idle lets time pass until the next arrival.
func (e *engine) idle() {
	until := e.s.Length
	if len(e.coming) > 0 {
		until = min(until, e.coming[0].at)
	}
	for _, f := range e.s.Faults {
		if f.Kind == Restart && f.Over.From > e.now {
			until = min(until, f.Over.From)
		}
	}
	e.rest(until)
}

// rest lets time pass until a moment, or less where what else goes on changes before.
func (e *engine) rest(until time.Duration) {
	st := step{start: e.now, idle: true, done: e.done}
	conds := make([]condition, len(e.spec.GPUs))
	for rank, gpu := range e.spec.GPUs {
		conds[rank] = e.condition(rank)
		e.strangers(gpu, &until)
	}
	e.track.steps = append(e.track.steps, st)
	d := until - e.now
	for rank := range conds {
		c := &conds[rank]
		e.track.ranks[rank] = append(e.track.ranks[rank], segment{cond: *c, done: e.sums[rank]})
		spent := e.track.plants[rank].rest(d.Seconds(), c)
		e.sums[rank].add(&spent)
		e.machines[rank].follow(restPart*e.track.plants[rank].gpu.TDPWatts, 0, spent.energy/d.Seconds(), d)
	}
	e.now = until
}

// restart takes the engine down, if one of its restarts is due: it loses its requests, its cache and its counts, and does
// nothing until it is up again. Clients of a closed loop send their next request then.
func (e *engine) restart() {
	n := 0
	for _, f := range e.s.Faults {
		if f.Kind != Restart || f.Target >= 0 && f.Target != e.target || f.Over.From > e.now {
			continue
		}
		if n++; n <= e.restarts {
			continue
		}
		e.restarts = n
		up := min(e.s.Length, e.now+seconds(f.Value))
		for i := range e.replicas {
			r := &e.replicas[i]
			for _, j := range append(r.running, r.waiting...) {
				e.abort(r, j, up)
			}
			r.running, r.waiting = nil, nil
			clear(r.cached)
			r.free = e.track.blocks / e.spec.DP // of the prefixes too
		}
		for e.now < up {
			e.rest(up)
		}
		e.track.births = append(e.track.births, birth{up, e.done})
	}
}

func (e *engine) abort(r *replica, j *job, up time.Duration) {
	j.req.Aborted = e.now
	r.free += j.blocks
	if l := &e.s.Loads[j.load]; l.Streams > 0 {
		e.arrive(up+l.Think, j.load)
	}
}

// birth is when an engine came up, and what had been counted by then.
type birth struct {
	at   time.Duration
	done counts
}

// since returns the birth of the engine that is up at t.
func (tr *track) since(t time.Duration) birth {
	var b birth
	for _, next := range tr.births {
		if next.at <= t {
			b = next
		}
	}
	return b
}
