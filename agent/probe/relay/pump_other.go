//go:build !linux

package relay

import (
	"context"
	"net"
)

// pump waits for connections to the upstream on Linux only; elsewhere the runtime's poller does.
type pump struct{}

func (c *conn) offload(*pump) error { return nil }

func downstreams(ln net.Listener) net.Listener { return ln }

func withDownstream(ctx context.Context, _ net.Conn) context.Context { return ctx }

func (x *exchange) move(func() (int, bool), func()) bool { return false }
