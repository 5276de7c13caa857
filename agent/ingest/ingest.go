// Package ingest takes what clients report of their own requests: when tokens came and how many, over gRPC, Connect or
// plain JSON, on a unix socket or wherever its handler is mounted. Its Client is the reporter's side, and a
// [timeline.RequestSink]. It knows no conclusion and stores nothing: what it takes it hands on.
//
// Times of the host's own boot are taken as they are, or through the newest anchor if they are wall-clock readings.
// Times of another clock are converted by an [Aligner], and refused while there is none or it knows nothing yet: they
// are never guessed.
//
// No message can hold content, and what a message holds beyond its fields is refused. See ingestpb for the schema.
//
// A script reports a finished request with one call; time.monotonic_ns() of Python reads the clock that it names:
//
//	curl --unix-socket /run/tpotscope/agent.sock http://agent/tpotscope.ingest.v1.Ingest/Submit \
//	  -H 'Content-Type: application/json' -d '{
//	    "origin": {"source": "script", "clock": "CLOCK_MONOTONIC", "boot_id": "'$(cat /proc/sys/kernel/random/boot_id)'"},
//	    "requests": [{"id": "r1", "sent_ns": 5000000000, "token_ns": [5080000000, 5092000000, 5104000000]}]}'
package ingest

import (
	"maps"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Bounds of what is taken at once. A client that keeps to its own bounds never meets them.
const (
	maxMessageBytes = 8 << 20
	maxTokenRows    = 1 << 16
	maxRequestRows  = 2048
	maxTimings      = 2048
	maxExchanges    = 64
	maxSessions     = 1024
	maxCount        = 1 << 24 // of tokens, where one request counts them
	maxChoice       = 1023    // index of a choice
	maxAhead        = 5 * time.Second
	maxBehind       = 10 * time.Minute // beyond, nothing is kept that a request could be seen beside
)

// Source is who reports. All requests of one Source are numbered by it: their Refs are unique within it alone.
type Source struct {
	Name    string
	Process string // which process of that name
	BootID  string // of the host it runs on, as it says
	Wall    bool   // it reports wall-clock times
	Local   bool   // it runs on this boot of this host
}

// Exchange is one round trip between a reporter and this host: T1 and T4 on the reporter's clock, T2 and T3 on the
// host's.
type Exchange struct {
	T1, T2, T3, T4 timeline.Instant
}

// Aligner ties a reporter's clock to the host's. It is used by one goroutine at a time.
type Aligner interface {
	// Add takes an exchange.
	Add(x Exchange)
	// Local returns an instant of the reporter's clock on the host's timeline and the bound of its error, and false
	// while nothing is known. It keeps the order of instants.
	Local(peer timeline.Instant) (timeline.Instant, time.Duration, bool)
}

// Forgetter is a sink that wants to know when nothing more comes of its source: it was silent for longer than all others,
// and there was no room.
type Forgetter interface{ Forget() }

// Config is what a handler needs. Aligner may be nil; then reporters on other hosts are refused.
type Config struct {
	// Sink returns where the reports of a source go, or nil to refuse the source. It is called when a source is first
	// heard of, and again if it was silent for long.
	Sink    func(Source) timeline.RequestSink
	Now     func() timeline.Instant
	Anchor  func() timeline.Anchor // the newest one; its BootID is the host's
	Aligner func(Source) Aligner
	Refused *Refused // counts what is refused for its time; nil: nobody wants to know
}

// Refused counts rows that were left out because of when they say that they happened, by why. It is safe for concurrent
// use.
type Refused struct {
	mu sync.Mutex
	n  map[string]uint64
}

// Counts returns the counts so far, by "old", "before_boot" and "future". What did not happen is left out.
func (r *Refused) Counts() map[string]uint64 {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.n)
}

func (r *Refused) add(reason string, n uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[string]uint64{}
	}
	r.n[reason] += n
}

// within is the time in which what is taken must have happened.
type within struct{ oldest, latest timeline.Instant }

func around(now timeline.Instant) within { return within{now.Add(-maxBehind), now.Add(maxAhead)} }

// wallDriftPPM bounds how far the wall clock moves against the monotonic one while it is slewed: the kernel's limit for
// NTP (adjtimex(2)).
const wallDriftPPM = 500

// converter turns a reporter's times into instants. It is made anew for each message, so that all of a message's times
// are converted alike.
type converter func(peer int64) (timeline.Instant, time.Duration, bool)

func asIs(peer int64) (timeline.Instant, time.Duration, bool) { return timeline.Instant(peer), 0, true }

func byAnchor(a timeline.Anchor) converter {
	return func(peer int64) (timeline.Instant, time.Duration, bool) {
		at := a.Instant(peer)
		away := max(at.Sub(a.Mono), a.Mono.Sub(at))
		return at, a.Width/2 + away/(1e6/wallDriftPPM), true
	}
}

func byAligner(a Aligner) converter {
	return func(peer int64) (timeline.Instant, time.Duration, bool) { return a.Local(timeline.Instant(peer)) }
}
