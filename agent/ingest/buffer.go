package ingest

import (
	"math"
	"sync"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// entry is a row with its place in the order in which rows came.
type entry[T any] struct {
	n   uint64
	row T
}

// buffer keeps what a client has not handed over yet. It is bounded: token events are the first to go, and a request
// that lost some says so when it is closed.
type buffer struct {
	maxTokens, maxRequests int

	mu              sync.Mutex
	n               uint64
	opened, closed  []entry[timeline.Request]
	tokens          []entry[timeline.TokenEvent]
	lossy           map[uint64]struct{} // requests that lost token events and are still open
	droppedTokens   uint64
	droppedRequests uint64
}

func newBuffer(maxTokens, maxRequests int) *buffer {
	return &buffer{maxTokens: maxTokens, maxRequests: maxRequests, lossy: map[uint64]struct{}{}}
}

func (b *buffer) open(r *timeline.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if len(b.opened) >= b.maxRequests {
		b.droppedRequests++
		return
	}
	b.opened = append(b.opened, entry[timeline.Request]{b.n, *r})
}

// add takes a token event and returns how many wait.
func (b *buffer) add(e timeline.TokenEvent) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if len(b.tokens) >= b.maxTokens {
		b.droppedTokens++
		if len(b.lossy) < b.maxRequests {
			b.lossy[e.Ref] = struct{}{}
		}
		return len(b.tokens)
	}
	b.tokens = append(b.tokens, entry[timeline.TokenEvent]{b.n, e})
	return len(b.tokens)
}

func (b *buffer) close(r *timeline.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	_, lossy := b.lossy[r.Ref]
	delete(b.lossy, r.Ref)
	if len(b.closed) >= b.maxRequests {
		b.droppedRequests++
		return
	}
	b.closed = append(b.closed, entry[timeline.Request]{b.n, *r})
	if lossy {
		b.closed[len(b.closed)-1].row.Flags |= timeline.FlagEventsDropped
	}
}

// lose counts rows that were taken and will never arrive.
func (b *buffer) lose(m *pb.ReportRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.droppedTokens += uint64(len(m.GetTokens().GetRef()))
	b.droppedRequests += uint64(len(m.GetOpened()) + len(m.GetClosed()))
}

func (b *buffer) dropped() (tokens, requests uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.droppedTokens, b.droppedRequests
}

// waiting returns how many rows wait.
func (b *buffer) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.opened) + len(b.tokens) + len(b.closed)
}

// take moves the oldest rows into a report: no more than so many of a kind, and none before an older one of another
// kind. It returns false if there are none.
func (b *buffer) take(maxTokens, maxRequests int) (*pb.ReportRequest, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := min(bound(b.tokens, maxTokens), bound(b.opened, maxRequests), bound(b.closed, maxRequests))
	m := &pb.ReportRequest{DroppedTokens: b.droppedTokens, DroppedRequests: b.droppedRequests}
	b.opened = cut(b.opened, end, func(r *timeline.Request) { m.Opened = b.write(m.Opened, r) })
	b.closed = cut(b.closed, end, func(r *timeline.Request) { m.Closed = b.write(m.Closed, r) })
	var w columns
	b.tokens = cut(b.tokens, end, w.add)
	m.Tokens = w.finish()
	return m, len(m.GetOpened())+len(m.GetClosed())+len(m.GetTokens().GetRef()) > 0
}

// write appends a request, unless the agent would refuse it, and with it the whole report.
func (b *buffer) write(rows []*pb.Request, r *timeline.Request) []*pb.Request {
	q := writeRequest(r)
	if checkRequest(q) != nil {
		b.droppedRequests++
		return rows
	}
	return append(rows, q)
}

// bound returns the place of the first row beyond the first most.
func bound[T any](rows []entry[T], most int) uint64 {
	if len(rows) <= most {
		return math.MaxUint64
	}
	return rows[most].n
}

// cut calls f on all rows before end and returns the others, moved to the front.
func cut[T any](rows []entry[T], end uint64, f func(*T)) []entry[T] {
	i := 0
	for ; i < len(rows) && rows[i].n < end; i++ {
		f(&rows[i].row)
	}
	left := copy(rows, rows[i:])
	clear(rows[left:])
	return rows[:left]
}
