package relay

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// conn is a TCP connection that knows when its newest bytes came. Reads go through recvmsg, whose control data holds
// the time at which the kernel received the newest segment of the read (SO_TIMESTAMPNS, socket(7)); a read without
// that is stamped when it returns, and says so.
type conn struct {
	net.Conn
	clock *hostclock.Clock
	stats *counters
	raw   syscall.RawConn

	reading sync.Mutex // guards what one recvmsg works on, kept so that a read does not allocate
	msg     unix.Msghdr
	iov     unix.Iovec
	oob     [128]byte
	n, oobn int
	errno   unix.Errno
	recv    func(fd uintptr) bool

	marks
}

// control asks for receive times before the connection is made, so that the first segment has one too.
func control(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// Without receive times reads are stamped in user space, so that a refusal is no fault.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
}

// keepStamping makes the kernel note receive times for as long as the closer is open. It begins to do so some time
// after the first socket asks and ends with the last, so that without this the first tokens after a pause have none.
func keepStamping() (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) // as in control
	return os.NewFile(uintptr(fd), "timestamps"), nil
}

func newConn(c net.Conn, clock *hostclock.Clock, stats *counters, shared bool) (*conn, error) {
	k := &conn{Conn: c, clock: clock, stats: stats, marks: marks{shared: shared}}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return k, nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	k.raw, k.recv = raw, k.recvmsg
	k.msg.Iov = &k.iov
	k.msg.SetIovlen(1)
	return k, nil
}

// recvmsg reads once into what msg points to. It reports false if there is nothing to read yet.
func (c *conn) recvmsg(fd uintptr) bool {
	for {
		c.msg.Control = &c.oob[0]
		c.msg.SetControllen(len(c.oob))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&c.msg)), 0)
		c.n, c.oobn, c.errno = int(n), int(c.msg.Controllen), errno
		if errno == unix.EINTR {
			continue
		}
		return errno != unix.EAGAIN
	}
}

// Read reads from the connection and stamps what it read.
func (c *conn) Read(p []byte) (int, error) {
	if c.raw == nil {
		n, err := c.Conn.Read(p)
		now := time.Now()
		if n > 0 {
			c.mark(c.clock.FromTime(now), timeline.StampUser)
		}
		return n, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	c.iov.Base = &p[0]
	c.iov.SetLen(len(p))
	err := c.raw.Read(c.recv)
	now := time.Now()
	c.iov.Base = nil
	switch {
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: unwrapOp(err)}
	case c.errno != 0:
		return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError("recvmsg", c.errno)}
	case c.n == 0:
		return 0, io.EOF
	}
	at, source := c.clock.FromTime(now), timeline.StampUser
	if ns, ok := received(c.oob[:c.oobn]); ok {
		if kernel, ok := c.clock.FromKernel(ns, now); ok && kernel >= c.floor().Add(-clockJitter) {
			c.stats.wake.add(at.Sub(kernel))
			at, source = kernel, timeline.StampKernel
		}
	}
	c.mark(at, source)
	return c.n, nil
}

// clockJitter is how far a receive time may lie before the stamp of the read before it, or before the request. More
// means that the wall clock was set between the receipt and the read, and that the receipt's time says nothing.
const clockJitter = time.Millisecond

// unwrapOp takes off the wrapping that the raw connection adds, which names another operation.
func unwrapOp(err error) error {
	if op, ok := err.(*net.OpError); ok { //nolint:errorlint // the raw connection's own wrapper, at the top
		return op.Err
	}
	return err
}

// received finds the kernel's receive time in a message's control data.
func received(oob []byte) (int64, bool) {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0, false
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS {
			return timespec(data)
		}
		oob = rest
	}
	return 0, false
}

// timespec reads the kernel's struct timespec, of this machine's width.
func timespec(b []byte) (int64, bool) {
	switch len(b) {
	case 16:
		return int64(binary.NativeEndian.Uint64(b))*1e9 + int64(binary.NativeEndian.Uint64(b[8:])), true
	case 8:
		return int64(int32(binary.NativeEndian.Uint32(b)))*1e9 + int64(int32(binary.NativeEndian.Uint32(b[4:]))), true
	}
	return 0, false
}
