package remote

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// HelperName is the name of the helper's binary.
const HelperName = "tpotscope-nvml"

// Find returns the path of the helper: the one in dir, which is the folder of the agent's own binary, else the one that
// the search path leads to.
func Find(dir string) (string, error) {
	if dir != "" {
		beside := filepath.Join(dir, HelperName)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(HelperName)
	if err != nil {
		return "", fmt.Errorf("find %s beside the agent (%s) or on the search path: %w", HelperName, dir, err)
	}
	return path, nil
}

// find returns the path of the helper.
func (s *Source) find() (string, error) {
	if s.opts.Helper != "" || s.opts.Find == nil {
		return s.opts.Helper, nil
	}
	return s.opts.Find()
}

// awaitHelper waits until there is a helper to start: one that nobody has installed yet is looked for again, which costs
// a few looks into folders. It reports false if ctx ended.
func (s *Source) awaitHelper(ctx context.Context, in *inbox) bool {
	_, err := s.find()
	if err == nil {
		return true
	}
	s.opts.Logger.Warn("no counters: helper not found", slog.String("helper", HelperName), slog.Any("err", err))
	in.lost(err.Error())
	s.count(func(st *Stats) { st.LastLoss = err.Error() })
	for wait := minFind; err != nil; wait = min(2*wait, maxBackoff) {
		if !sleep(ctx, wait) {
			return false
		}
		_, err = s.find()
	}
	path, _ := s.find() // it was just found, and a start that fails says so
	s.opts.Logger.Warn("helper found", slog.String("path", path))
	return true
}

// process is a helper that runs.
type process struct {
	pid    int
	frames io.ReadCloser
	stderr io.ReadCloser
	stdin  io.WriteCloser // takes commands; its end tells the helper to end
	signal func(os.Signal) error
	ended  <-chan struct{} // closed when the process is gone
	exit   func() error    // how it ended, once it is gone
}

// release closes this side of the process's pipes.
func (p *process) release() { _ = errors.Join(p.stdin.Close(), p.frames.Close(), p.stderr.Close()) }

// pipes are the three pipes to a helper, both ends.
type pipes struct {
	framesR, framesW, stderrR, stderrW, stdinR, stdinW *os.File
}

func newPipes() (*pipes, error) {
	p := &pipes{}
	var errs [3]error
	p.framesR, p.framesW, errs[0] = os.Pipe()
	p.stderrR, p.stderrW, errs[1] = os.Pipe()
	p.stdinR, p.stdinW, errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		closeAll(p.framesR, p.framesW, p.stderrR, p.stderrW, p.stdinR, p.stdinW)
		return nil, fmt.Errorf("make pipes: %w", err)
	}
	return p, nil
}

// closeAll closes files, some of which may be nil. There is nothing to be done about a pipe that does not close.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// spawn starts the helper with its frames on descriptor 3.
func spawn(path string, args, extraEnv []string) (*process, error) {
	p, err := newPipes()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...) //nolint:noctx // the supervisor ends it: politely first, and it may not die
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = p.stdinR, p.stderrW, []*os.File{p.framesW}
	cmd.Env = append(CleanEnv(os.Environ()), extraEnv...)
	cmd.SysProcAttr = sysProcAttr()
	started, ended := make(chan error, 1), make(chan struct{})
	go keep(cmd, started, ended)
	err = <-started
	closeAll(p.framesW, p.stderrW, p.stdinR)
	if err != nil {
		closeAll(p.framesR, p.stderrR, p.stdinW)
		return nil, fmt.Errorf("start helper: %w", err)
	}
	return &process{
		pid: cmd.Process.Pid, frames: p.framesR, stderr: p.stderrR, stdin: p.stdinW,
		signal: cmd.Process.Signal, ended: ended, exit: func() error { return exitOf(cmd) },
	}, nil
}

// keep starts the process and waits for its end, both from one thread: the kernel signals the child when the thread
// that started it ends, not the process (prctl(2), PR_SET_PDEATHSIG).
func keep(cmd *exec.Cmd, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // exitOf reads how it ended
	}
	close(ended)
}

// exitOf says how a process that is gone ended.
func exitOf(cmd *exec.Cmd) error {
	switch st := cmd.ProcessState; {
	case st == nil || st.Success():
		return nil
	case st.ExitCode() == 127:
		return errors.New("exit status 127: the driver's library has not a function that was called, or the helper binds at start")
	default:
		return errors.New(st.String())
	}
}

// CleanEnv returns the environment env without what makes the loader bind the driver's functions at start: a
// function that this driver has not would end the helper before it begins.
func CleanEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "LD_BIND_NOW=") })
}

const (
	maxLine    = 400 // bytes of a line that are kept
	lineBurst  = 20
	linePeriod = time.Second // after which one more line may be logged
)

// lines logs what the helper writes to stderr, line by line and not too much of it.
type lines struct {
	log *slog.Logger
	now func() timeline.Instant

	mu         sync.Mutex
	crash      string // the line that says why the helper crashes: a trace follows it
	lastLine   string
	room       int
	filled     timeline.Instant
	suppressed int
}

func newLines(log *slog.Logger, now func() timeline.Instant) *lines {
	return &lines{log: log, now: now, room: lineBurst, filled: now()}
}

// copy logs r's lines until it ends.
func (l *lines) copy(r io.Reader) {
	br := bufio.NewReaderSize(r, 4096)
	var line []byte
	for {
		part, more, err := br.ReadLine()
		if room := maxLine - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		if err != nil {
			return
		}
		if !more {
			l.add(string(line))
			line = line[:0]
		}
	}
}

// add logs one line, or counts it if there were too many.
func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastLine = line
	if l.crash == "" && IsCrash(line) {
		l.crash = line
	}
	if n := int(l.now().Sub(l.filled) / linePeriod); n > 0 {
		l.room = min(l.room+n, lineBurst)
		l.filled = l.filled.Add(time.Duration(n) * linePeriod)
	}
	if l.room == 0 {
		l.suppressed++
		return
	}
	l.room--
	if note, ok := strings.CutPrefix(line, NotePrefix); ok {
		l.log.Warn("gpu driver is not known", slog.String("detail", note))
		return
	}
	l.log.Info("gpu helper", slog.String("line", line), slog.Int("suppressed", l.suppressed))
	l.suppressed = 0
}

// NotePrefix begins a line of the helper's that people should read: what is made of a driver that is not known.
const NotePrefix = "note: "

// crashWords are what the runtime begins its last words with (runtime, fatal signals, panics and throws).
var crashWords = [...]string{"SIG", "fatal error: ", "panic: ", "unexpected fault address"}

// IsCrash reports whether a line of a helper's begins its last words.
func IsCrash(line string) bool {
	return slices.ContainsFunc(crashWords[:], func(w string) bool { return strings.HasPrefix(line, w) })
}

// last returns the line that says the most of why the helper ended: that of its crash, else the last one.
func (l *lines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.crash, l.lastLine)
}
