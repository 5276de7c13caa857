package main

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite golden files and the generated tables of the README")

// asCommand makes the test binary the command itself, for what needs a process of its own.
const asCommand = "TEST_AS_TPOTSCOPE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls for what real processes take their time for.
func until(t *testing.T, atMost time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(atMost)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", atMost, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// place is where one test's command keeps its state, with the environment that says so.
type place struct {
	state, socket string
	vars          map[string]string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &place{state: filepath.Join(dir, "state"), socket: filepath.Join(dir, "agent.sock")}
	p.vars = map[string]string{"TPOTSCOPE_STATE_DIR": p.state, "TPOTSCOPE_SOCKET": p.socket, "TPOTSCOPE_CONFIG": os.DevNull}
	return p
}

func (p *place) env() environment {
	return environment{
		lookup: func(name string) (string, bool) { v, ok := p.vars[name]; return v, ok },
		names:  func() []string { return slices.Sorted(maps.Keys(p.vars)) },
	}
}

// environ is the environment of a process of its own.
func (p *place) environ() []string {
	list := []string{asCommand + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + p.state}
	for k, v := range p.vars {
		list = append(list, k+"="+v)
	}
	return list
}

// outcome is what one run of the command left.
type outcome struct {
	code     int
	out, err string
}

// run runs the command in this process.
func (p *place) run(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, errs lines
	code := run(t.Context(), args, streams{strings.NewReader(""), &out, &errs}, p.env())
	return outcome{code, out.String(), errs.String()}
}

// process is the command in a process of its own.
type process struct {
	*exec.Cmd
	out, err lines
}

func (p *place) process(t *testing.T, args ...string) *process {
	t.Helper()
	argv := append([]string{os.Args[0]}, args...)
	if signal.Ignored(syscall.SIGHUP) { // below nohup, which the command respects
		argv = append([]string{"env", "--default-signal=HUP"}, argv...)
	}
	c := &process{Cmd: exec.CommandContext(t.Context(), argv[0], argv[1:]...)}
	c.Env, c.Stdout, c.Stderr = p.environ(), &c.out, &c.err
	return c
}

// want fails the test unless the command ended with that code.
func (o outcome) want(t *testing.T, code int) outcome {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.out, o.err)
	}
	return o
}

// golden compares got with a file of testdata, or rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s mismatch (-want +got):\n%s", file, diff)
	}
}

// lines is an output that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
