package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func targetName(i int) string { return fmt.Sprintf("engine-%d", i) }

// traffic is the streams, and what their engines count of them.
type traffic struct {
	o       options
	clock   *hostclock.Clock
	rnd     *rand.Rand
	streams []stream
	refs    uint64
	engines []engineCounts
	total   atomic.Uint64
}

// engineCounts are what an engine tells of itself.
type engineCounts struct {
	running, prompt, output, steps, finished atomic.Uint64

	mu     sync.Mutex
	lives  int
	began  time.Time // of the latest life; zero: the first
	before [4]uint64 // what was counted before
}

// restart begins another life of the engine, which counts from zero.
func (e *engineCounts) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lives++
	e.began, e.before = time.Now(), [4]uint64{e.prompt.Load(), e.output.Load(), e.steps.Load(), e.finished.Load()}
}

func (e *engineCounts) restarts() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lives
}

// life returns when the engine began, if it is not its first life, and what it counted since.
func (e *engineCounts) life() (began time.Time, prompt, output, steps, finished uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.before
	return e.began, e.prompt.Load() - b[0], e.output.Load() - b[1], e.steps.Load() - b[2], e.finished.Load() - b[3]
}

// stream sends one request after another.
type stream struct {
	req  timeline.Request
	next timeline.Instant // of its next token; before the first, zero tokens have come
	n    int
	want int
}

// firstToken is the time to the first token, and pause that between two requests of a stream.
const (
	firstToken = 80 * time.Millisecond
	pause      = 20 * time.Millisecond
	prompt     = 512
)

func newTraffic(o options, clock *hostclock.Clock) *traffic {
	return &traffic{o: o, clock: clock, rnd: rand.New(rand.NewPCG(1, 2)), streams: make([]stream, o.streams), engines: make([]engineCounts, o.gpus)}
}

func (t *traffic) sent() uint64 { return t.total.Load() }

// play lets all streams run until ctx ends; requests that are open then end as cancelled.
func (t *traffic) play(ctx context.Context, sink timeline.RequestSink) {
	period := time.Duration(float64(time.Second) / t.o.rate)
	start := t.clock.Now()
	for i := range t.streams {
		// Spread over the first request's time, so that they do not begin and end together.
		t.open(i, start.Add(time.Duration(t.rnd.Int64N(int64(period)*int64(t.o.length)/4))), sink)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for i := range t.streams {
				t.end(i, t.clock.Now(), timeline.StatusCancelled, sink)
			}
			return
		case <-tick.C:
			now := t.clock.Now()
			for i := range t.streams {
				t.advance(i, now, period, sink)
			}
		}
	}
}

// open sends the next request of a stream.
func (t *traffic) open(i int, at timeline.Instant, sink timeline.RequestSink) {
	t.refs++
	s := &t.streams[i]
	length := t.o.length*3/4 + t.rnd.IntN(t.o.length/2+1)
	*s = stream{want: max(2, length), next: at.Add(firstToken), req: timeline.Request{
		Ref: t.refs, ID: fmt.Sprintf("load-%d", t.refs), Target: targetName(i % t.o.gpus), Dialect: "openai_chat", Operation: "chat",
		Model: "meta-llama/Llama-3.1-8B-Instruct", Streaming: true, Client: "load", Sent: at, MaxTokens: length, Choices: 1,
		TraceID: fmt.Sprintf("%016x%016x", t.rnd.Uint64()|1, t.refs), SpanID: fmt.Sprintf("%016x", t.rnd.Uint64()|1), Sampled: true,
	}}
	sink.OpenRequest(&s.req)
	t.engines[i%t.o.gpus].running.Add(1)
}

// advance sends what is due of a stream.
func (t *traffic) advance(i int, now timeline.Instant, period time.Duration, sink timeline.RequestSink) {
	s, e := &t.streams[i], &t.engines[i%t.o.gpus]
	for s.next <= now {
		// Some jitter, as a network has; times never fall back.
		at := s.next
		sink.AddToken(timeline.TokenEvent{
			Ref: s.req.Ref, At: at, After: at, Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent, Stamp: timeline.StampClient,
		})
		s.n++
		if s.n == 1 {
			s.req.Head, s.req.First = at, at
			e.prompt.Add(prompt)
		}
		s.req.Last = at
		e.output.Add(1)
		if i < t.o.gpus {
			e.steps.Add(1) // a step gives every stream of the engine one token
		}
		t.total.Add(1)
		if s.n >= s.want {
			t.end(i, at, timeline.StatusOK, sink)
			t.open(i, at.Add(pause), sink)
			return
		}
		jitter := time.Duration(t.rnd.Int64N(int64(period)/5)) - period/10
		s.next = s.req.First.Add(time.Duration(s.n)*period + jitter)
	}
}

// end closes a stream's request.
func (t *traffic) end(i int, at timeline.Instant, status timeline.Status, sink timeline.RequestSink) {
	s, e := &t.streams[i], &t.engines[i%t.o.gpus]
	r := &s.req
	r.Status, r.HTTPStatus, r.Done = status, 200, max(at, r.Sent, r.Last)
	r.PromptTokens, r.PromptKnown = prompt, true
	if s.n > 0 {
		r.OutputTokens, r.Counted, r.FirstTokens, r.Events = s.n, timeline.CountIDs, 1, s.n
	}
	if status == timeline.StatusOK {
		r.Finish = "length"
		e.finished.Add(1)
	}
	sink.CloseRequest(r)
	e.running.Add(^uint64(0))
}
