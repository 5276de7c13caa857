package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/process"
)

// Why the processes behind a port are not known.
var (
	// ErrNoListener says that nothing on this host listens on the port. An engine in a container with a network of its
	// own listens on a port of that network.
	ErrNoListener = errors.New("no process listens")
	// ErrHiddenListener says that something listens, and that its process is hidden: it belongs to another user, or lives
	// in another process namespace.
	ErrHiddenListener = errors.New("the listening process is hidden")
)

// Endpoint is what is behind a port.
type Endpoint struct {
	Listeners []int // processes that listen on it, in order
	Tree      []int // they and all processes below them, in order: an engine's workers are its server's children
}

// Listener returns the processes behind a TCP port of this host. proc is where the kernel's process file system is. It
// looks at every process and takes milliseconds to tenths of a second: it is for start-up and restarts, not for a loop.
func Listener(ctx context.Context, proc string, port int) (Endpoint, error) {
	ctx = procContext(ctx, proc)
	conns, err := net.ConnectionsWithContext(ctx, "tcp")
	if err != nil {
		return Endpoint{}, fmt.Errorf("list sockets: %w", err)
	}
	var e Endpoint
	hidden := false
	for _, c := range conns {
		if c.Status != "LISTEN" || c.Laddr.Port != uint32(port) {
			continue
		}
		if c.Pid <= 0 {
			hidden = true
			continue
		}
		e.Listeners = append(e.Listeners, int(c.Pid))
	}
	if len(e.Listeners) == 0 {
		why := ErrNoListener
		if hidden {
			why = ErrHiddenListener
		}
		return Endpoint{}, fmt.Errorf("find listener of port %d: %w", port, why)
	}
	slices.Sort(e.Listeners)
	e.Listeners = slices.Compact(e.Listeners)
	e.Tree, err = tree(ctx, e.Listeners)
	return e, err
}

// tree returns the processes of roots and all below them, in order.
func tree(ctx context.Context, roots []int) ([]int, error) {
	pids, err := process.PidsWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, pid := range pids {
		p := process.Process{Pid: pid}
		parent, err := p.PpidWithContext(ctx)
		if err != nil {
			continue // ended since the list was made
		}
		children[int(parent)] = append(children[int(parent)], int(pid))
	}
	all := slices.Clone(roots)
	seen := map[int]bool{}
	for _, pid := range roots {
		seen[pid] = true
	}
	for i := 0; i < len(all); i++ {
		for _, c := range children[all[i]] {
			if !seen[c] {
				seen[c] = true
				all = append(all, c)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
