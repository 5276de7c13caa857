package relay

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pump waits for the connections to the upstream by itself, and moves what comes in the same thread that waited. The
// runtime's own poller costs two thread switches and one empty read for each event of a stream that carries fifty a
// second. Where moving would block, the pump's goroutine becomes the stream's, and another one takes over the waiting.
// It waits from the first connection until the last is closed.
type pump struct {
	mu      sync.Mutex // guards the group below
	running bool
	epfd    int
	wake    int // an eventfd that ends the waiting
	conns   map[int32]*polled
	next    int32

	// Only the goroutine that waits uses these.
	events [64]unix.EpollEvent
	at, n  int
}

// polled is a connection that the pump waits for.
type polled struct {
	pump          *pump
	id            int32
	file          *os.File
	raw           syscall.RawConn
	local, remote net.Addr
	awaken        chan struct{} // holds one, for the one reader

	mu       sync.Mutex // guards all below
	ready    bool       // something came that nobody has asked for
	hup      bool       // nothing comes any more
	closed   bool
	waiting  bool   // a reader waits
	step     func() // what to do when something comes
	stepping bool   // the pump's goroutine runs step
	handed   bool   // and is no longer the one that waits
}

// take makes the pump wait for c, which it closes: the connection lives on in what it returns.
func (p *pump) take(c *net.TCPConn) (*polled, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return nil, err
	}
	k := &polled{pump: p, local: c.LocalAddr(), remote: c.RemoteAddr(), awaken: make(chan struct{}, 1)}
	_ = c.Close() // takes it out of the runtime's poller
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	k.file = os.NewFile(uintptr(fd), "upstream")
	if k.raw, err = k.file.SyscallConn(); err == nil {
		err = p.add(k, fd)
	}
	if err != nil {
		_ = k.file.Close()
		return nil, err
	}
	return k, nil
}

func (p *pump) add(k *polled, fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		if err := p.open(); err != nil {
			return err
		}
	}
	p.next = max(p.next+1, 1)
	k.id = p.next
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: k.id}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.conns[k.id] = k
	return nil
}

// open begins the waiting. The caller holds the lock.
func (p *pump) open() error {
	var err error
	if p.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(p.epfd)
		return os.NewSyscallError("eventfd", err)
	}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, p.wake, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		_, _ = unix.Close(p.epfd), unix.Close(p.wake)
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.conns = map[int32]*polled{}
	p.at, p.n = 0, 0
	p.running = true
	go p.run()
	return nil
}

// remove forgets a connection; with the last one the waiting ends.
func (p *pump) remove(k *polled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, k.id)
	if len(p.conns) == 0 {
		_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// over ends the waiting if no connection is left.
func (p *pump) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		return false
	}
	_, _ = unix.Close(p.epfd), unix.Close(p.wake)
	p.running = false
	return true
}

func (p *pump) find(id int32) *polled {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[id]
}

// run waits until no connection is left, or until another goroutine has taken over.
func (p *pump) run() {
	for {
		for p.at < p.n {
			e := p.events[p.at]
			p.at++
			if e.Fd == 0 {
				if p.over() {
					return
				}
				continue
			}
			if k := p.find(e.Fd); k != nil && !k.came(e.Events) {
				return
			}
		}
		n, err := unix.EpollWait(p.epfd, p.events[:], -1)
		p.at, p.n = 0, n
		if err != nil {
			p.n = 0 // interrupted
		}
	}
}

// came takes an event. It reports false if another goroutine waits now.
func (k *polled) came(events uint32) bool {
	k.mu.Lock()
	k.hup = k.hup || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	step := k.step
	switch {
	case k.waiting:
		k.waiting = false
		k.awaken <- struct{}{}
	case step != nil:
		k.step, k.stepping, k.handed = nil, true, false
		k.mu.Unlock()
		step()
		k.mu.Lock()
		k.stepping = false
		if k.handed {
			k.mu.Unlock()
			return false
		}
	default:
		k.ready = true
	}
	k.mu.Unlock()
	return true
}

// attach makes step run when something comes. It reports false if something has come, or nothing can come any more.
func (k *polled) attach(step func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ready || k.closed || k.hup {
		return false
	}
	k.step = step
	return true
}

// reading says that a read follows, which takes whatever has come.
func (k *polled) reading() {
	k.mu.Lock()
	k.ready = false
	k.mu.Unlock()
}

// wait blocks until something comes.
func (k *polled) wait() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return net.ErrClosed
	}
	if k.ready {
		k.ready = false
		k.mu.Unlock()
		return nil
	}
	k.waiting = true
	k.handOver()
	k.mu.Unlock()
	<-k.awaken
	return nil
}

// block says that the step at hand is about to block.
func (k *polled) block() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handOver()
}

// handOver lets another goroutine wait in place of the one that runs the step. The caller holds the lock.
func (k *polled) handOver() {
	if k.stepping && !k.handed {
		k.handed = true
		go k.pump.run()
	}
}

// Read is never called: a conn reads by its raw connection.
func (k *polled) Read([]byte) (int, error) { return 0, net.ErrClosed }

// Write writes as a file does, which holds a thread while the upstream does not read.
func (k *polled) Write(b []byte) (int, error) { return k.file.Write(b) }

// Close closes the connection, and frees whoever reads from it or writes to it.
func (k *polled) Close() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return net.ErrClosed
	}
	k.closed = true
	step := k.step
	k.step = nil
	if k.waiting {
		k.waiting = false
		k.awaken <- struct{}{}
	}
	k.mu.Unlock()
	_ = k.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	err := k.file.Close()
	k.pump.remove(k)
	if step != nil {
		go step()
	}
	return err
}

// LocalAddr is the address of this end.
func (k *polled) LocalAddr() net.Addr { return k.local }

// RemoteAddr is the address of the upstream.
func (k *polled) RemoteAddr() net.Addr { return k.remote }

// SetDeadline is not needed by net/http's Transport without TLS, which keeps its time by timers.
func (k *polled) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline is as SetDeadline.
func (k *polled) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline is as SetDeadline.
func (k *polled) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

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

// move relays the body by the pump, if the response comes and goes on connections that can be moved so. It reports
// whether it did.
func (x *exchange) move(once func() (int, bool), wait func()) bool {
	d, _ := x.ctx.Value(downstreamKey{}).(*downstream)
	if d == nil || x.conn == nil || x.conn.poll == nil {
		return false
	}
	k := x.conn.poll
	d.on.Store(k)
	over := make(chan struct{})
	var step func()
	step = func() {
		for {
			n, more := once()
			if !more {
				close(over)
				return
			}
			if n == readBuffer || x.conn.full.Load() {
				k.block() // there is more, and much of it: others need not wait for this one
				continue
			}
			wait()
			if k.attach(step) {
				return
			}
		}
	}
	step()
	<-over
	d.on.Store(nil)
	return true
}
