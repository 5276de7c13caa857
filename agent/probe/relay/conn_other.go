//go:build !linux

package relay

import (
	"io"
	"net"
	"syscall"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// conn is a connection that knows when its newest read returned. Receive times of the kernel are read on Linux only.
type conn struct {
	net.Conn
	clock *hostclock.Clock

	marks
}

func control(_, _ string, _ syscall.RawConn) error { return nil }

func keepStamping() (io.Closer, error) { return io.NopCloser(nil), nil }

func newConn(c net.Conn, clock *hostclock.Clock, _ *counters, shared bool) (*conn, error) {
	return &conn{Conn: c, clock: clock, marks: marks{shared: shared}}, nil
}

// Read reads from the connection and stamps what it read.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mark(c.clock.Now(), timeline.StampUser)
	}
	return n, err
}
