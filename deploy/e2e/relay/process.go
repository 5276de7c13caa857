package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that was started here.
type process struct {
	name   string
	cmd    *exec.Cmd
	said   *bytes.Buffer // its standard error; read only after stop
	exited chan error
	ended  bool
}

// start starts a program in dir. It is told to end when this one dies.
func start(name, dir string, env []string, path string, args ...string) (*process, error) {
	p := &process{name: name, said: &bytes.Buffer{}, exited: make(chan error, 1)}
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { p.exited <- p.cmd.Wait() }()
	return p, nil
}

// stop asks the program to end, insists after ten seconds, and returns what it wrote to its standard error. It may be
// called again.
func (p *process) stop() string {
	if p.ended {
		return p.said.String()
	}
	p.ended = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // one that has ended needs no signal
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.exited
	}
	return p.said.String()
}

// answering waits until the program takes connections at addr.
func (p *process) answering(ctx context.Context, network, addr string) error {
	var d net.Dialer
	for range 100 {
		c, err := d.DialContext(ctx, network, addr)
		if err == nil {
			return c.Close()
		}
		select {
		case err := <-p.exited:
			p.exited <- err
			return fmt.Errorf("start %s: it ended: %s", p.name, strings.TrimSpace(p.said.String()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("start %s: nothing listens at %s", p.name, addr)
}

// freePort returns an address on loopback that nothing listens at.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return ln.Addr().String(), ln.Close()
}

// tree returns the process and all that descend from it.
func tree(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		if s, err := parseStat(string(b)); err == nil {
			children[s.parent] = append(children[s.parent], child)
		}
	}
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids, nil
}

// stat is what is used of /proc/PID/stat.
type stat struct {
	parent int
	cpu    time.Duration // in user and kernel mode
}

// tick is the unit of the times in /proc/PID/stat: USER_HZ is 100 on every architecture that Go runs Linux on (proc(5)).
const tick = 10 * time.Millisecond

// parseStat reads a line of /proc/PID/stat. The name may hold spaces and parentheses, so that fields count from its end.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	if end < 0 || len(fields) < 13 {
		return stat{}, errors.New("read process: not a line of /proc/PID/stat")
	}
	parent, err1 := strconv.Atoi(fields[1])
	user, err2 := strconv.ParseInt(fields[11], 10, 64)
	kernel, err3 := strconv.ParseInt(fields[12], 10, 64)
	return stat{parent, time.Duration(user+kernel) * tick}, errors.Join(err1, err2, err3)
}

// usage is the processor time of processes since they started, and the memory they hold.
type usage struct {
	cpu time.Duration
	rss int64
}

// used adds up what pids use. Pages that two of them share count twice.
func used(pids []int) (usage, error) {
	var u usage
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		b, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return u, fmt.Errorf("read process: %w", err)
		}
		s, err := parseStat(string(b))
		if err != nil {
			return u, err
		}
		u.cpu += s.cpu
		if b, err = os.ReadFile(filepath.Join(dir, "statm")); err != nil {
			return u, fmt.Errorf("read process: %w", err)
		}
		var size, resident int64
		if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
			return u, fmt.Errorf("read process: %w", err)
		}
		u.rss += resident * int64(os.Getpagesize())
	}
	return u, nil
}

// machine is the processor time of the whole machine since it started.
type machine struct{ busy, all time.Duration }

// whole reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal (proc(5)).
func whole() (machine, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machine{}, fmt.Errorf("read machine: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var m machine
	fields := strings.Fields(line)
	for i := 1; i < len(fields) && i <= 8; i++ {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return m, fmt.Errorf("read machine: %w", err)
		}
		m.all += time.Duration(n) * tick
		if i != 4 && i != 5 {
			m.busy += time.Duration(n) * tick
		}
	}
	return m, nil
}
