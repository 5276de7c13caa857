//go:build !linux

package llmsim

import (
	"context"
	"time"
)

// waiter waits until tokens are due.
type waiter struct {
	ctx context.Context // a waiter lives as long as the one request it serves
}

// newWaiter returns a waiter that gives up when ctx ends. There is no precise one on this system.
func newWaiter(ctx context.Context, _ bool) *waiter { return &waiter{ctx} }

func (w *waiter) close() {}

// wait returns after d, or earlier with an error if the waiter's context ends.
func (w *waiter) wait(d time.Duration) error {
	if d <= 0 {
		return w.ctx.Err()
	}
	return sleep(w.ctx, d)
}
