package relay

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// downstream is a connection to a client, which tells the pump before a write blocks.
type downstream struct {
	*net.TCPConn
	raw syscall.RawConn
	on  atomic.Pointer[polled] // where the bytes come from, while the pump moves them

	// Only one writes at a time.
	b   []byte
	n   int
	err error
	try func(fd uintptr) bool
}

type downstreamKey struct{}

// downstreams wraps the connections that a listener accepts.
func downstreams(ln net.Listener) net.Listener { return downstreamListener{ln} }

type downstreamListener struct{ net.Listener }

// Accept accepts the next connection.
func (l downstreamListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	t, ok := c.(*net.TCPConn)
	if err != nil || !ok {
		return c, err
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c, nil //nolint:nilerr // the connection will tell
	}
	d := &downstream{TCPConn: t, raw: raw}
	d.try = func(fd uintptr) bool {
		d.n, d.err = unix.Write(int(fd), d.b)
		return true
	}
	return d, nil
}

func withDownstream(ctx context.Context, c net.Conn) context.Context {
	if d, ok := c.(*downstream); ok {
		return context.WithValue(ctx, downstreamKey{}, d)
	}
	return ctx
}

// Write writes. If it would block on behalf of the pump, the pump goes on without it.
func (d *downstream) Write(b []byte) (int, error) {
	k := d.on.Load()
	if k == nil {
		return d.TCPConn.Write(b)
	}
	d.b = b
	err := d.raw.Write(d.try)
	d.b = nil
	if err == nil && d.err == nil && d.n == len(b) {
		return len(b), nil
	}
	n := 0
	if err == nil && d.err == nil {
		n = d.n
	}
	k.block()
	m, err := d.TCPConn.Write(b[n:])
	return n + m, err
}
