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

// Times returns when each of the request's tokens reaches its client.
func (r *Request) Times() []time.Duration {
	if r.Delivered == nil {
		return slices.Clone(r.Tokens)
	}
	list := make([]time.Duration, 0, len(r.Tokens))
	for _, c := range r.Delivered {
		for range c.Tokens {
			list = append(list, c.At)
		}
	}
	return list
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
	line := merger{within: front.Merge}
	for _, c := range grouped(q.Tokens) {
		at := c.At
		if front.Lag > 0 {
			draw := rand.New(rand.NewPCG(uint64(c.At), tl.scenario.Seed)).ExpFloat64()
			at += time.Duration(float64(front.Lag) * draw)
		}
		at = tl.scenario.stalled(q.Target, at)
		if slow && front.SlowEvery > 0 { // at the next time it reads
			at += (front.SlowEvery - (at-q.Arrival)%front.SlowEvery) % front.SlowEvery
		}
		line.add(at, c.Tokens)
	}
	line.flush()
	return line.out
}

// merger joins chunks that come close together.
type merger struct {
	within time.Duration
	held   Chunk // waits for more tokens to leave with
	out    []Chunk
}

func (m *merger) add(at time.Duration, tokens int) {
	if n := len(m.out); n > 0 {
		at = max(at, m.out[n-1].At) // nothing overtakes
	}
	if m.held.Tokens > 0 && at > m.held.At {
		m.flush()
	}
	if m.held.Tokens == 0 {
		m.held.At = at
		if len(m.out) > 0 { // the first token waits for no other
			m.held.At += m.within
		}
	}
	m.held.Tokens += tokens
	if m.held.At == at {
		m.flush()
	}
}

// flush sends what is held.
func (m *merger) flush() {
	n := len(m.out)
	switch {
	case m.held.Tokens == 0:
		return
	case n > 0 && m.out[n-1].At >= m.held.At:
		m.out[n-1].Tokens += m.held.Tokens
	default:
		m.out = append(m.out, m.held)
	}
	m.held = Chunk{}
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
