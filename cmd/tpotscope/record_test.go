package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// quick are the flags of a recording that asks nobody and waits for nobody.
func quick(rest ...string) []string {
	return append([]string{"record", "--nvml", "off", "--engine", "http://127.0.0.1:9"}, rest...)
}

func TestRecordLeavesItsCommandAlone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := filepath.Join(t.TempDir(), "run")
	var out, errs lines
	code := run(t.Context(), quick("-o", dir, "--", "sh", "-c", `read line; echo "got $line"; echo oops >&2; exit 7`),
		streams{strings.NewReader("input\n"), &out, &errs}, p.env())
	if code != 7 || out.String() != "got input\n" || !strings.Contains(errs.String(), "\noops\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &out, &errs)
	}
	if text := errs.String(); !strings.HasPrefix(text, "recording to "+dir+"\n") || !strings.Contains(text, "\n  evidence ") {
		t.Errorf("standard error lacks the place or the report:\n%s", text)
	}
	if r, err := record.OpenReader(dir); err != nil || len(r.Boots()) != 1 {
		t.Errorf("the recording: %v", err)
	}
}

func TestRecordEndsAsItsCommandDoes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command []string
		code    int
		err     string
	}{
		"a command that succeeds":      {[]string{"true"}, exitOK, ""},
		"a command that fails":         {[]string{"sh", "-c", "exit 41"}, 41, ""},
		"a command that is killed":     {[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		"a command that is not there":  {[]string{"/no/such/command"}, exitNotFound, "run /no/such/command: there is no such command"},
		"a name that is not there":     {[]string{"no_such_command"}, exitNotFound, "run no_such_command: there is no such command"},
		"a file that is no program":    {[]string{"./record.go"}, exitCannotRun, "run ./record.go: "},
		"no command, and nothing told": {nil, exitEvidence, "not enough evidence: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := quick("-q", "--for", "500ms", "--")
			got := newPlace(t).run(t, append(args, tt.command...)...).want(t, tt.code)
			if !strings.Contains(got.err, tt.err) || got.out != "" {
				t.Errorf("stdout %q, stderr %q", got.out, got.err)
			}
		})
	}
}

func TestRecordReportsWhenTimeIsUp(t *testing.T) {
	t.Parallel()
	got := newPlace(t).run(t, "record", "--nvml", "sim:memory_bound", "--engine", "http://127.0.0.1:9", "--for", "4s", "--json").want(t, exitEvidence)
	var r summary.Report
	must(t, json.Unmarshal([]byte(got.out), &r))
	if !r.Simulated || len(r.GPUs) != 1 || r.Empty == "" || !strings.HasSuffix(got.err, "tpotscope: not enough evidence: "+r.Empty+"\n") {
		t.Errorf("the report: simulated %v, %d GPUs, empty: %q\n%s", r.Simulated, len(r.GPUs), r.Empty, got.err)
	}
}

func TestRecordHandsTheProxyToItsCommand(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	// A proxy of the configuration is the agent's, and not opened again.
	p.vars["TPOTSCOPE_PROXY_LISTEN"], p.vars["TPOTSCOPE_PROXY_UPSTREAM"] = "127.0.0.1:1", "http://127.0.0.1:9"
	got := p.run(t, quick("-q", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--",
		"sh", "-c", `echo "$OPENAI_BASE_URL $OPENAI_API_BASE $TPOTSCOPE_SOCKET"`)...).want(t, exitOK)
	if !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/v1 http://127\.0\.0\.1:\d+/v1 /\S+/agent\.sock\n$`).MatchString(got.out) {
		t.Errorf("the command sees %q", got.out)
	}
	got = p.run(t, quick("-q", "--", "sh", "-c", `echo "[$OPENAI_BASE_URL]"`)...).want(t, exitOK)
	if got.out != "["+os.Getenv("OPENAI_BASE_URL")+"]\n" {
		t.Errorf("without a proxy the command sees %q", got.out)
	}
}

func TestRecordRefusesARecordingThatIsThere(t *testing.T) {
	t.Parallel()
	p, dir := imported(t)
	if got := p.run(t, quick("-o", dir, "--", "echo", "ran")...).want(t, exitUsage); !strings.Contains(got.err, dir+" holds a recording already") || got.out != "" {
		t.Errorf("stdout %q, stderr %q", got.out, got.err)
	}
}

// The report has nothing to tell of, and the command went well: its code is what counts.
func TestAnEmptyReportIsNotTheCommandsFault(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--for=30s", "--json", "-q"} {
		if got := newPlace(t).run(t, quick(flag, "--", "true")...); got.code != exitOK {
			t.Errorf("%s: exit code %d\n%s", flag, got.code, got.err)
		}
	}
	newPlace(t).run(t, quick("--for", "300ms")...).want(t, exitEvidence)
}

func TestAStartThatGoesWrongLeavesNoRecording(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, taken.Close()) })
	for _, args := range [][]string{
		quick("--listen", taken.Addr().String(), "--upstream", "http://127.0.0.1:9", "--", "echo", "ran"),
		quick("--", "no_such_command"),
		{"demo", "--scenario", "nosuch"},
	} {
		p := newPlace(t)
		got := p.run(t, args...)
		if entries, err := os.ReadDir(runsDir(p.state)); got.code == exitOK || len(entries) > 0 || strings.Contains(got.err, "recording to") {
			t.Errorf("%v: exit code %d, left %v (%v), stderr %s", args, got.code, entries, err, got.err)
		}
	}
}

func TestATakenProxyPortEndsTheRecording(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	got := p.run(t, quick("--listen", "127.0.0.1:99999", "--upstream", "http://127.0.0.1:9", "--", "echo", "ran")...)
	if got.code == exitOK || got.out != "" {
		t.Errorf("exit code %d, stdout %q: the command must not run", got.code, got.out)
	}
}

// trapped waits for a signal and says which came.
const trapped = `trap 'echo int; exit 5' INT; trap 'echo term; exit 6' TERM; echo ready; while :; do sleep 0.05; done`

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		signal syscall.Signal
		out    string
		code   int
	}{
		"an interrupt":            {syscall.SIGINT, "ready\nint\n", 5},
		"the request for its end": {syscall.SIGTERM, "ready\nterm\n", 6},
		"the end of the terminal": {syscall.SIGHUP, "ready\nterm\n", 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPlace(t).process(t, quick("--", "sh", "-c", trapped)...)
			must(t, c.Start())
			until(t, 20*time.Second, "the command", func() bool { return c.out.String() == "ready\n" })
			must(t, c.Process.Signal(tt.signal))
			err := c.Wait()
			if code := c.ProcessState.ExitCode(); code != tt.code || c.out.String() != tt.out {
				t.Errorf("%v, exit code %d, stdout %q; want %d, %q", err, code, &c.out, tt.code, tt.out)
			}
			if !strings.Contains(c.err.String(), "\n  evidence ") {
				t.Errorf("no report:\n%s", &c.err)
			}
		})
	}
}

func TestTheEndOfTheTimeIsTheEndOfTheCommand(t *testing.T) {
	t.Parallel()
	got := newPlace(t).run(t, quick("-q", "--for", "1s", "--", "sh", "-c", trapped)...)
	if got.code != 6 || got.out != "ready\nterm\n" {
		t.Errorf("exit code %d, stdout %q", got.code, got.out)
	}
}

func TestLoopback(t *testing.T) {
	for in, want := range map[string]string{
		"0.0.0.0:80": "127.0.0.1:80", "[::]:80": "127.0.0.1:80", "10.0.0.1:80": "10.0.0.1:80", "host:80": "host:80", "odd": "odd",
	} {
		if got := loopback(in); got != want {
			t.Errorf("loopback(%s) = %s, want %s", in, got, want)
		}
	}
}
