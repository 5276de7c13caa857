package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is the agent.
type process struct {
	cmd    *exec.Cmd
	said   *bytes.Buffer // its standard error; read only after stop
	exited chan struct{}
	once   sync.Once
}

// start starts a program. It is told to end when this one dies.
func start(ctx context.Context, loud bool, env []string, path string, args ...string) (*process, error) {
	p := &process{said: &bytes.Buffer{}, exited: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), path, args...) // stop ends it
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.said
	if loud {
		p.cmd.Stderr = io.MultiWriter(p.said, os.Stderr)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // how it ended is in what it said
	}()
	return p, nil
}

// stop asks the program to end, insists after fifteen seconds, and returns what it wrote to its standard error.
func (p *process) stop() string {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // one that has ended needs no signal
		select {
		case <-p.exited:
		case <-time.After(15 * time.Second):
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			<-p.exited
		}
	})
	return p.said.String()
}

// answering waits until the agent takes connections on its socket.
func (p *process) answering(ctx context.Context, socket string) error {
	var d net.Dialer
	for range 100 {
		if c, err := d.DialContext(ctx, "unix", socket); err == nil {
			return c.Close()
		}
		select {
		case <-p.exited:
			return fmt.Errorf("start the agent: it ended: %s", strings.TrimSpace(p.said.String()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("start the agent: nothing listens at %s", socket)
}

// freePort returns an address on loopback that nothing listens at.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return ln.Addr().String(), ln.Close()
}

// reading is what a process had taken at one moment.
type reading struct {
	cpu time.Duration
	rss float64 // bytes
	fds float64 // open files and connections
}

// tick is the unit of the times in /proc/PID/stat: USER_HZ is 100 on every architecture that Go runs Linux on (proc(5)).
const tick = 10 * time.Millisecond

// readProcess reads /proc of one process: its parent, its time in user and kernel mode, its resident memory and how
// many files it has open, as far as they may be seen.
func readProcess(pid int) (int, reading, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, reading{}, err
	}
	// The name may hold spaces and parentheses, so that fields count from its end: state is 3, ppid 4, utime 14, stime 15,
	// rss 24 (proc(5)).
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 22 {
		return 0, reading{}, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	var n [4]int64
	for i, at := range []int{4, 14, 15, 24} {
		if n[i], err = strconv.ParseInt(fields[at-3], 10, 64); err != nil {
			return 0, reading{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
	}
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // of another user's it may not be known
	return int(n[0]), reading{
		cpu: time.Duration(n[1]+n[2]) * tick, rss: float64(n[3]) * float64(os.Getpagesize()), fds: float64(len(fds)),
	}, nil
}

// child returns the only child of a process, or zero.
func child(pid int) int {
	paths, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		one, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if parent, _, err := readProcess(one); err == nil && parent == pid {
			return one
		}
	}
	return 0
}

// sizes returns the bytes of the files in dir by the first word of their names: the kind of what a segment holds.
func sizes(dir string) (map[string]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if kind, _, segment := strings.Cut(e.Name(), "-"); segment {
			out[kind] += info.Size()
		}
	}
	return out, nil
}
