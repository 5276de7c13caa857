package scenario

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Chunk is what leaves for a client at once: tokens of one request.
type Chunk struct {
	At     time.Duration
	Tokens int
}

// Chunks returns the request's tokens as they reach its client: those of one step together, later by the lag of the
// event loop and by its stalls, merged, and as slowly as the client reads.
func (r *Request) Chunks() []Chunk {
	if r.Delivered != nil {
		return slices.Clone(r.Delivered)
	}
	return grouped(r.Tokens)
}

// grouped puts tokens of the same moment into one chunk.
func grouped(tokens []time.Duration) []Chunk {
	var list []Chunk
	for _, t := range tokens {
		if n := len(list); n > 0 && list[n-1].At == t {
			list[n-1].Tokens++
			continue
		}
		list = append(list, Chunk{t, 1})
	}
	return list
}

// deliver sends the tokens of all requests on their way, where it takes time, and draws whom the probe sees.
func (tl *Timeline) deliver() {
	s := tl.scenario
	r := rand.New(rand.NewPCG(s.Seed, 0x64656c69766572))
	for i := range tl.requests {
		q := &tl.requests[i]
		q.Observed = r.Float64() < s.Probe.Coverage || s.Probe.Coverage >= 1
		front := &s.Targets[q.Target].Engine.Front
		slow := r.Float64() < front.SlowReaders
		if front.Lag > 0 || front.Merge > 0 || slow || s.has(FrontStall) {
			q.Delivered = tl.sent(q, front, slow)
		}
	}
}

func (s *Scenario) has(kind FaultKind) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == kind })
}

// sent returns the chunks of a request. The lag is that of the loop at the moment, and so the same for all requests
// that have tokens in a step. What comes while the front end stalls, or before the client reads again, comes together.
func (tl *Timeline) sent(q *Request, front *FrontSpec, slow bool) []Chunk {
	list := make([]Chunk, 0, len(q.Tokens))
	var held Chunk // what waits for more tokens to leave with
	flush := func(at time.Duration) {
		if held.Tokens == 0 {
			return
		}
		if n := len(list); n > 0 && list[n-1].At >= at {
			list[n-1].Tokens += held.Tokens
		} else {
			list = append(list, Chunk{at, held.Tokens})
		}
		held = Chunk{}
	}
	for _, c := range grouped(q.Tokens) {
		at := c.At
		if front.Lag > 0 {
			draw := rand.New(rand.NewPCG(uint64(c.At), tl.scenario.Seed)).ExpFloat64()
			at += time.Duration(float64(front.Lag) * draw)
		}
		at = tl.scenario.stalled(q.Target, at)
		if slow && front.SlowEvery > 0 {
			at = (at-q.Arrival+front.SlowEvery-1)/front.SlowEvery*front.SlowEvery + q.Arrival
		}
		if n := len(list); n > 0 {
			at = max(at, list[n-1].At)
		}
		if held.Tokens > 0 && at > held.At+front.Merge {
			flush(held.At + front.Merge)
		}
		if held.Tokens == 0 {
			held.At = at
		}
		held.Tokens += c.Tokens
		if front.Merge == 0 || len(list) == 0 { // the first token never waits for others
			flush(at)
		}
	}
	flush(held.At + front.Merge)
	return list
}

// stalled returns when what is ready at a moment leaves the front end.
func (s *Scenario) stalled(target int, at time.Duration) time.Duration {
	for _, f := range s.Faults {
		if f.Kind != FrontStall || !f.Over.Contains(at) || f.Target >= 0 && f.Target != target {
			continue
		}
		since := at - f.Over.From
		if f.Every > 0 {
			since %= f.Every
		}
		if end := at - since + seconds(f.Value); end > at {
			at = end
		}
	}
	return at
}
