package llmsim

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// waiter waits until tokens are due. A stream has one, and no two goroutines share it.
type waiter struct {
	ctx  context.Context // a waiter lives as long as the one request it serves
	fd   int             // of a kernel timer, with file; the runtime's timers wait without one
	file *os.File
	stop func() bool
}

// newWaiter returns a waiter that gives up when ctx ends. The runtime's network poller sleeps in whole milliseconds,
// so that a timer of its own may fire one late; the expiry of a kernel timer wakes it as a read does.
func newWaiter(ctx context.Context, precise bool) *waiter {
	w := &waiter{ctx: ctx}
	if !precise {
		return w
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return w // out of descriptors: less precise is better than not at all
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "timer")
	w.stop = context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) }) // fails only if closed
	return w
}

// close gives the waiter's timer back.
func (w *waiter) close() {
	if w.file != nil {
		w.stop()
		_ = w.file.Close() // nothing was written
	}
}

// wait returns after d, or earlier with an error if the waiter's context ends.
func (w *waiter) wait(d time.Duration) error {
	if d <= 0 {
		return w.ctx.Err()
	}
	if w.file == nil {
		return sleep(w.ctx, d)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(w.fd, 0, &spec, nil); err != nil {
		return sleep(w.ctx, d)
	}
	var expirations [8]byte
	if _, err := w.file.Read(expirations[:]); err != nil {
		return errors.Join(w.ctx.Err(), err)
	}
	return nil
}
