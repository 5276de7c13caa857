// Package host reads the machine that the agent runs on: how busy its cores are, how much tasks wait for them and for
// memory, and what the agent itself costs. It also finds the processes behind an engine's port, the GPUs on
// which they compute, and tells them from others that do. It reads no GPU and no engine.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shirou/gopsutil/v4/common"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/process"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Config says how the host is read.
type Config struct {
	Interval time.Duration
	Proc     string       // where the kernel's process file system is
	Own      func() []int // process ids of the agent and its helper; nil: none are read
}

// DefaultConfig returns the defaults: each second.
func DefaultConfig() Config { return Config{Interval: time.Second, Proc: "/proc"} }

// Validate names everything that is wrong with c.
func (c Config) Validate() error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("host interval %v: want at least 100ms", c.Interval)
	}
	return nil
}

// Reader reads the host. It is not safe for concurrent use.
type Reader struct {
	cfg  Config
	now  func() timeline.Instant
	last reading
	own  map[int]*process.Process // kept, because finding a process costs more than reading it
}

// reading is what the totals stood at.
type reading struct {
	at    timeline.Instant
	cpu   cpuTotals
	hasIt bool            // cpu was read
	own   map[int]float64 // s of processor time by process
}

// cpuTotals are seconds of all cores since boot.
type cpuTotals struct {
	busy, steal, all float64
}

// New returns a reader of the host.
func New(cfg Config, now func() timeline.Instant) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	return &Reader{cfg: cfg, now: now, own: map[int]*process.Process{}}, nil
}

// Run reads each interval until ctx ends, and then returns nil. A sample covers the time since the one before, so that
// the first comes after one interval. What the host does not tell is missing from the samples.
func (r *Reader) Run(ctx context.Context, emit func(*timeline.HostSample)) error {
	r.Read(ctx)
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s, ok := r.Read(ctx); ok && ctx.Err() == nil {
			emit(s)
		}
	}
}

// Read reads the host once. The sample covers the time since the last call; the first call gives none.
func (r *Reader) Read(ctx context.Context) (*timeline.HostSample, bool) {
	ctx = procContext(ctx, r.cfg.Proc)
	is := reading{at: r.now(), own: map[int]float64{}}
	s := &timeline.HostSample{Over: timeline.Span{Start: r.last.at, End: is.at}}
	is.cpu, is.hasIt = readCPU(ctx)
	if r.last.hasIt && is.hasIt {
		if all := is.cpu.all - r.last.cpu.all; all > 0 {
			s.Put(timeline.HostCPUUtil, clamp((is.cpu.busy-r.last.cpu.busy)/all))
			s.Put(timeline.HostSteal, clamp((is.cpu.steal-r.last.cpu.steal)/all))
		}
	}
	if p, ok := readPressure(filepath.Join(r.cfg.Proc, "pressure", "cpu")); ok {
		s.Put(timeline.HostCPUPressure, p)
	}
	if p, ok := readPressure(filepath.Join(r.cfg.Proc, "pressure", "memory")); ok {
		s.Put(timeline.HostMemPressure, p)
	}
	if avg, err := load.AvgWithContext(ctx); err == nil {
		s.Put(timeline.HostLoad1, avg.Load1)
	}
	r.readOwn(ctx, s, &is)
	first := r.last.at.IsZero()
	r.last = is
	return s, !first && !s.Over.Empty()
}

// readOwn reads what the agent's processes use. A process that is new adds no processor time yet.
func (r *Reader) readOwn(ctx context.Context, s *timeline.HostSample, is *reading) {
	if r.cfg.Own == nil {
		return
	}
	resident, used, seen, compared := 0.0, 0.0, false, false
	own := r.cfg.Own()
	// A helper that starts again has another process id, and the old one may be given to a stranger.
	maps.DeleteFunc(r.own, func(pid int, _ *process.Process) bool { return !slices.Contains(own, pid) })
	for _, pid := range own {
		secs, rss, ok := r.readProcess(ctx, pid)
		if !ok {
			delete(r.own, pid)
			continue
		}
		seen = true
		resident += rss
		is.own[pid] = secs
		if before, had := r.last.own[pid]; had && secs >= before {
			used += secs - before
			compared = true
		}
	}
	if seen {
		s.Put(timeline.AgentRSS, resident)
	}
	if d := s.Over.Duration().Seconds(); compared && d > 0 {
		s.Put(timeline.AgentCPU, used/d)
	}
}

// readProcess returns the processor time in seconds and the resident bytes of a process.
func (r *Reader) readProcess(ctx context.Context, pid int) (secs, rss float64, ok bool) {
	p := r.own[pid]
	if p == nil {
		var err error
		if p, err = process.NewProcessWithContext(ctx, int32(pid)); err != nil {
			return 0, 0, false
		}
		r.own[pid] = p
	}
	t, err := p.TimesWithContext(ctx)
	if err != nil {
		return 0, 0, false
	}
	m, err := p.MemoryInfoWithContext(ctx)
	if err != nil {
		return 0, 0, false
	}
	return t.User + t.System, float64(m.RSS), true
}

// procContext tells gopsutil where to read.
func procContext(ctx context.Context, proc string) context.Context {
	return context.WithValue(ctx, common.EnvKey, common.EnvMap{common.HostProcEnvKey: proc})
}

func readCPU(ctx context.Context) (cpuTotals, bool) {
	times, err := cpu.TimesWithContext(ctx, false)
	if err != nil || len(times) == 0 {
		return cpuTotals{}, false
	}
	t := times[0]
	// Guest time is part of user time (proc_stat(5)).
	all := t.User + t.Nice + t.System + t.Idle + t.Iowait + t.Irq + t.Softirq + t.Steal
	return cpuTotals{busy: all - t.Idle - t.Iowait - t.Steal, steal: t.Steal, all: all}, all > 0
}

// errPressure is the fault of a pressure file that is not as the kernel writes it.
var errPressure = errors.New("read pressure: no share of the last ten seconds")

// readPressure returns the fraction of the last ten seconds in which some task waited. The kernel may lack the file, or
// refuse to read it where pressure is off.
func readPressure(path string) (float64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	p, err := parsePressure(b)
	return p, err == nil
}

// parsePressure returns the fraction of the last ten seconds in which some task waited, from the text of a file below
// /proc/pressure (Linux, Documentation/accounting/psi.rst).
func parsePressure(text []byte) (float64, error) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "some" {
			continue
		}
		value, ok := bytes.CutPrefix(fields[1], []byte("avg10="))
		if !ok {
			break
		}
		percent, err := strconv.ParseFloat(string(value), 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			break
		}
		return percent / 100, nil
	}
	return 0, errPressure
}

func clamp(v float64) float64 { return max(0, min(1, v)) }
