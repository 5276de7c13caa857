package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// binaries are what is built once for all failures.
type binaries struct {
	Helper, Driver, Guard string
}

// buildBinaries builds the real helper, the simulated driver library, and the guard that keeps a process from dying.
func buildBinaries(t *testing.T) binaries {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc to build the helper and the simulated driver with")
	}
	dir := t.TempDir()
	b := binaries{filepath.Join(dir, remote.HelperName), filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "guard")}
	sources, err := filepath.Glob(filepath.Join("..", "nvml", "sim", "driver", "*.c"))
	must(t, err)
	source := filepath.Join(dir, "guard.c")
	must(t, os.WriteFile(source, []byte(guardSource), 0o600))
	gcc := append([]string{"-std=c11", "-O2", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1", "-o", b.Driver}, sources...)
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(t.Context(), "gcc", append(gcc, "-lm")...),
		exec.CommandContext(t.Context(), "gcc", "-O2", "-o", b.Guard, source),
		exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-linkmode external -extldflags -Wl,-z,lazy", "-o", b.Helper, "../cmd/tpotscope-nvml"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	return b
}

// guardSource is a program that becomes another one which cannot be waited for: a child of it holds it by ptrace and,
// once it was killed, does not reap it, so that for its parent it goes on to be there, as a process does that the kernel
// holds (ptrace(2); a tracee's end is told to its tracer first). It lets go when a file appears.
const guardSource = `
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void hold(pid_t held, const char *until, int told)
{
	char ok = ptrace(PTRACE_SEIZE, held, 0, 0) == 0;
	signal(SIGTERM, SIG_IGN);
	if (write(told, &ok, 1) != 1)
		_exit(1);
	for (int fd = 0; fd < 64; fd++)
		close(fd);
	for (int i = 0; i < 100000 && access(until, F_OK) != 0; i++) {
		struct timespec ts = {0, 2000000};
		siginfo_t si = {0};
		if (waitid(P_PID, held, &si, WSTOPPED | WNOHANG | __WALL) == 0 && si.si_pid)
			ptrace(PTRACE_CONT, held, 0, si.si_status >> 8 ? 0 : si.si_status);
		nanosleep(&ts, 0);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	pid_t self = getpid();
	char ok = 0;
	int told[2];
	if (argc < 3 || pipe(told) != 0)
		return 1;
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	if (fork() == 0)
		hold(self, argv[1], told[1]);
	if (read(told[0], &ok, 1) != 1 || !ok) {
		fprintf(stderr, "the guard may not hold a process here\n");
		return 3;
	}
	close(told[0]);
	close(told[1]);
	execv(argv[2], argv + 2);
	return 1;
}
`

// faulty is a world whose windows can stand at zero or be no numbers.
type faulty struct {
	sim.Waves

	nan, zero atomic.Bool
	stood     atomic.Int64 // what the windows' time stands at
}

// Integral returns what c has added up to by t.
func (f *faulty) Integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	switch {
	case !c.Windowed():
	case f.nan.Load():
		return math.NaN()
	case f.zero.Load():
		f.stood.CompareAndSwap(0, int64(t))
		t = time.Duration(f.stood.Load())
	}
	return f.Waves.Integral(gpu, c, t)
}

// scene is a node with an agent that a failure happens to.
type scene struct {
	t      *testing.T
	bin    binaries
	dir    string
	world  *faulty
	page   *sim.Page
	clock  *hostclock.Clock
	uuids  []string
	helper string // what the agent starts: a link or a script that can be replaced
	cfg    agent.Config
	deps   agent.Deps
	ag     *running
	sends  *traffic
	seen   *watcher
	before counts // of this process, with the scene set up and the agent not yet started
	began  time.Time
	killed int // the last helper that was
}

// newScene sets a node up, without an agent.
func newScene(t *testing.T, bin binaries, gpus int, noGPM bool) *scene {
	t.Helper()
	s := &scene{t: t, bin: bin, dir: t.TempDir(), world: &faulty{Waves: sim.Waves{Count: gpus, NoGPM: noGPM}}}
	var err error
	s.clock, err = hostclock.New()
	must(t, err)
	path := filepath.Join(s.dir, "page")
	s.page, err = sim.NewPage(path, s.world, sim.Options{}, s.clock.Now)
	must(t, err)
	inBackground(t, s.page.Run)
	for _, g := range s.world.GPUs() {
		s.uuids = append(s.uuids, g.UUID)
	}
	s.sends = newTraffic(t, s.clock)
	s.helper = filepath.Join(s.dir, remote.HelperName)
	s.install(bin.Helper)
	s.cfg = quiet(t)
	s.cfg.Targets = []timeline.Target{{Name: "main", EngineURL: s.sends.url, GPUs: s.uuids}}
	s.cfg.Proxy.Listen, s.cfg.Proxy.Upstream = "127.0.0.1:0", s.sends.url
	s.cfg.Metrics.Profile = "full"
	s.cfg.NVML.Source, s.cfg.NVML.Helper, s.cfg.NVML.Library = agent.SourceHelper, s.helper, bin.Driver
	s.deps.HelperEnv = []string{sim.EnvPage + "=" + path}
	return s
}

// install makes the helper that the agent starts next a link to path.
func (s *scene) install(path string) {
	s.t.Helper()
	must(s.t, os.Symlink(path, s.helper+".next"))
	must(s.t, os.Rename(s.helper+".next", s.helper))
}

// script makes the helper that the agent starts next a script.
func (s *scene) script(text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "script-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	must(s.t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700)) // it is run
	s.install(path)
}

// start runs the agent, its traffic, and what watches it.
func (s *scene) start() {
	s.t.Helper()
	must(s.t, s.cfg.Validate())
	s.before = count(s.t)
	ctx, cancel := context.WithCancel(context.Background())
	s.ag = &running{cancel: cancel, done: make(chan error, 1), log: &lines{}}
	ready := make(chan agent.Doors, 1)
	s.deps.Ready = func(d agent.Doors) { ready <- d }
	ag, err := agent.New(ctx, s.cfg, s.deps, slog.New(slog.NewTextHandler(s.ag.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	must(s.t, err)
	go func() { s.ag.done <- ag.Run(ctx) }()
	select {
	case s.ag.doors = <-ready:
	case err := <-s.ag.done:
		s.t.Fatalf("the agent did not come up: %v", err)
	}
	s.sends.start("http://" + s.ag.doors.Proxy)
	s.seen = watch(s.ag.doors.Metrics)
}

// fault sets the faults of calls; no call means all of them.
func (s *scene) fault(f sim.Fault, calls ...nvml.Call) {
	s.t.Helper()
	if len(calls) == 0 {
		for c := range nvml.Call(nvml.NumCalls) {
			calls = append(calls, c)
		}
	}
	for _, c := range calls {
		f.Call = int(c)
		must(s.t, s.page.SetFault(f))
	}
}

// everyGPU sets the faults of calls on every GPU.
func (s *scene) everyGPU(f sim.Fault, calls ...nvml.Call) {
	s.t.Helper()
	for f.GPU = range s.uuids {
		s.fault(f, calls...)
	}
}

// helperHealth is the part of /healthz that is about the helper.
func (s *scene) helperHealth() (pid, restarts, abandoned int) {
	var h struct {
		Helper struct {
			PID       int `json:"pid"`
			Restarts  int `json:"restarts"`
			Abandoned int `json:"abandoned"`
		} `json:"helper"`
	}
	must(s.t, json.Unmarshal([]byte(s.ag.get(s.t, "/healthz")), &h))
	return h.Helper.PID, h.Helper.Restarts, h.Helper.Abandoned
}

// told returns the lines of the log that people see, from a place in it on.
func (s *scene) told(from int) []string {
	var told []string
	for line := range strings.Lines(s.ag.log.text()[from:]) {
		if !strings.Contains(line, "level=DEBUG") {
			told = append(told, strings.TrimSpace(line))
		}
	}
	return told
}

// text returns the whole log.
func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// counts are what a process holds.
type counts struct{ goroutines, files, threads int }

func count(t *testing.T) counts {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return counts{runtime.NumGoroutine(), len(files), len(threads)}
}

func (c counts) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d threads", c.goroutines, c.files, c.threads)
}

// children returns the processes that descend from this one and run.
func children(t *testing.T) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	var found []string
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, string(stat[:min(len(stat), 60)]))
		}
	}
	return found
}
