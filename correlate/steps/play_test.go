package steps_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// play is an engine with a fixed number of streams, and a host that delays each token a little: the truth is known.
type play struct {
	seed    uint64
	batch   int
	step    func(r *rand.Rand, k, batch int, context float64) time.Duration
	jitter  func(r *rand.Rand) time.Duration // of one token on its way
	length  int                              // mean tokens of a request; a new one takes its place after some steps
	seen    float64                          // part of the streams that is observed; all if zero
	merge   float64                          // part of tokens that wait for the next one of their stream
	tokens  func(r *rand.Rand) int           // a stream gets of a step; one if nil
	apart   bool                             // tokens of a step come as events of their own
	prompt  int                              // tokens of each prompt
	pause   float64                          // part of streams' steps at which they are preempted, for 20 steps
	stretch time.Duration
}

// truth is what the engine did.
type truth struct {
	ends    []timeline.Instant
	seen    []int     // observed streams in each step
	batch   []int     // all streams in each step
	context []float64 // sum of all contexts in each step
}

type client struct {
	ref      uint64
	left     int
	context  int
	wait     int // steps until it joins
	observed bool
	held     int // tokens that wait for the next
	last     timeline.Instant
}

const begin = timeline.Instant(1_000_000_000)

func uniform(j time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.Float64() * float64(j)) }
}

func constant(d time.Duration) func(*rand.Rand, int, int, float64) time.Duration {
	return func(*rand.Rand, int, int, float64) time.Duration { return d }
}

func (p *play) client(r *rand.Rand, ref uint64, fresh bool) client {
	n := p.length
	if n == 0 {
		n = 300
	}
	c := client{ref: ref, left: 1 + int(r.ExpFloat64()*float64(n)), context: 1 + p.prompt, observed: p.seen == 0 || r.Float64() < p.seen}
	if fresh {
		c.wait = 1 + r.IntN(4)
	}
	return c
}

// run returns the tokens in the order in which they came, and the truth.
func (p *play) run() ([]steps.Token, truth) {
	r := rand.New(rand.NewPCG(p.seed, 11))
	clients := make([]client, p.batch)
	next := uint64(1)
	for i := range clients {
		clients[i] = p.client(r, next, false)
		next++
	}
	var out []steps.Token
	var tr truth
	at := begin
	for k := 0; at.Sub(begin) < p.stretch; k++ {
		batch, context := 0, 0.0
		for i := range clients {
			if clients[i].wait == 0 {
				batch++
				context += float64(clients[i].context)
			}
		}
		at = at.Add(p.step(r, k, batch, context))
		seen := 0
		for i := range clients {
			c := &clients[i]
			if c.wait > 0 {
				c.wait--
				continue
			}
			n := 1
			if p.tokens != nil {
				n = p.tokens(r)
			}
			if c.observed {
				seen++
				out = p.deliver(r, out, c, at, n)
			}
			c.context += n
			if c.left -= n; c.left <= 0 {
				clients[i] = p.client(r, next, true)
				next++
			} else if p.pause > 0 && r.Float64() < p.pause {
				c.wait = 20
			}
		}
		tr.ends, tr.seen, tr.batch = append(tr.ends, at), append(tr.seen, seen), append(tr.batch, batch)
		tr.context = append(tr.context, context)
	}
	slices.SortStableFunc(out, func(a, b steps.Token) int { return cmp.Compare(a.At, b.At) })
	return out, tr
}

// deliver puts a step's tokens on their way. A stream keeps its order.
func (p *play) deliver(r *rand.Rand, out []steps.Token, c *client, at timeline.Instant, n int) []steps.Token {
	if p.merge > 0 && c.left > n && r.Float64() < p.merge {
		c.held += n
		return out
	}
	c.last = max(c.last, at.Add(p.jitter(r)))
	n, c.held = n+c.held, 0
	if !p.apart {
		return append(out, steps.Token{At: c.last, Stream: c.ref, Tokens: int32(n), Context: int32(c.context)})
	}
	for range n {
		c.last = c.last.Add(time.Duration(r.IntN(100_000)))
		out = append(out, steps.Token{At: c.last, Stream: c.ref, Tokens: 1, Context: int32(c.context)})
	}
	return out
}

// read feeds the tokens and cuts every second. It returns the readings.
func read(tokens []steps.Token, speculates bool) []steps.Reading {
	e := steps.New(steps.DefaultConfig())
	var out []steps.Reading
	end := begin.Add(time.Second)
	for _, tok := range tokens {
		for tok.At >= end.Add(100*time.Millisecond) {
			out = append(out, e.Cut(steps.Cut{Over: timeline.Span{Start: end.Add(-time.Second), End: end}, Speculates: speculates}))
			end = end.Add(time.Second)
		}
		e.Add(tok)
	}
	return out
}

// verdict is how readings compare with the truth.
type comparison struct {
	readings, hold int
	worst          float64 // greatest error of a reading that holds
	worstAny       float64 // greatest error of all readings
	steps          int     // of readings that hold
	spread         time.Duration
	why            string
}

// against compares readings with the truth: lengths, numbers of steps, and streams a step, whichever is furthest off.
func (tr *truth) against(readings []steps.Reading) comparison {
	var c comparison
	for _, r := range readings {
		c.readings++
		e := tr.off(&r)
		c.worstAny = max(c.worstAny, e)
		if !r.Holds {
			c.why = r.Reason
			continue
		}
		c.hold++
		c.steps += r.Steps
		c.spread = max(c.spread, r.Quality.Spread)
		c.worst = max(c.worst, e)
	}
	return c
}

func (tr *truth) off(r *steps.Reading) float64 {
	var length, seen float64
	n := 0
	for k, at := range tr.ends {
		if k == 0 || !r.Over.Contains(at) || tr.seen[k] == 0 {
			continue
		}
		n++
		length += at.Sub(tr.ends[k-1]).Seconds()
		seen += float64(tr.seen[k])
	}
	if n == 0 || !r.Time.OK() || !r.Streams.OK() {
		return 1
	}
	length, seen = length/float64(n), seen/float64(n)
	// A step at either end may fall to the neighbour.
	count := max(0, math.Abs(float64(r.Steps)/float64(n)-1)-2.0/float64(n))
	return max(math.Abs(r.Time.Value/length-1), math.Abs(r.Streams.Value/seen-1), count)
}
