// Package probe turns the bytes of token streams into token events and request records. A [Stamper] takes the time of
// each read before anything is parsed, and a [Tracker] finds the events in the bytes, counts their tokens by the best
// source on the wire, and says how the request ended. Neither knows where the bytes come from or go to, and nothing
// that they hand on holds a byte of content.
package probe

import (
	"io"

	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Stamp is the time of a read. It belongs to the newest byte that the read returned.
type Stamp struct {
	At     timeline.Instant
	Source timeline.StampSource
	// Read numbers the reads of the connection below. Two reads of a body with one number came out of one read of the
	// connection, so that the stamp is the later one's.
	Read uint64
	// Shared says that one read of the connection may come as several reads of the body, as records of TLS do: then
	// the last event of a read is held until the next read shows whether the stamp was its own.
	Shared bool
}

// Stamper reads a body and stamps each read. It is not safe for concurrent use.
type Stamper struct {
	body io.Reader
	now  func() timeline.Instant
	last func() (Stamp, bool)
	n    uint64
}

// NewStamper returns a stamper of body. The clock now is read when a read returns, unless last, which may be nil, has
// the newest stamp of the connection below.
func NewStamper(body io.Reader, now func() timeline.Instant, last func() (Stamp, bool)) *Stamper {
	return &Stamper{body: body, now: now, last: last}
}

// Read reads into p as the body does, and stamps what it read.
func (s *Stamper) Read(p []byte) (int, Stamp, error) {
	n, err := s.body.Read(p)
	if s.last != nil {
		if st, ok := s.last(); ok {
			return n, st, err
		}
	}
	s.n++
	return n, Stamp{At: s.now(), Source: timeline.StampUser, Read: s.n}, err
}

// Observes reports whether requests to the path are ones whose replies a [Tracker] understands.
func Observes(path string) bool {
	_, ok := wire.OperationOf(path)
	return ok
}
