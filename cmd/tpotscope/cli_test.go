package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent/demo"
	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

func TestHelpSaysWhereToStart(t *testing.T) {
	p := newPlace(t)
	whole := p.run(t, "--help").want(t, exitOK)
	golden(t, "help.golden", whole.out)
	if bare := p.run(t).want(t, exitOK); bare.out != whole.out {
		t.Error("without arguments something else is printed")
	}
	a := &app{env: p.env()}
	for _, c := range a.root().Commands() {
		if c.GroupID == "" && c.IsAvailableCommand() && c.Name() != "help" {
			t.Errorf("%s is in no group", c.Name())
		}
		if c.HasSubCommands() || !c.IsAvailableCommand() || c.Name() == "help" {
			continue
		}
		if one := p.run(t, c.Name(), "--help").want(t, exitOK); !strings.Contains(one.out, "Examples:\n  tpotscope "+c.Name()) {
			t.Errorf("help of %s has no example", c.Name())
		}
	}
}

func TestWrongUsageIsNamedAndEndsWithTwo(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		args string
		want string // beginning of standard error
	}{
		{"reocrd", `tpotscope: there is no command "reocrd" (did you mean "record"?)`},
		{"zzzzzz", "tpotscope: there is no command \"zzzzzz\"\nsee: tpotscope --help"},
		{"config chekc", `tpotscope: there is no command "chekc" (did you mean "check"?)`},
		{"report --jsn x", "tpotscope: unknown flag: --jsn (did you mean --json?)\nsee: tpotscope report --help"},
		{"report --zzzzzz x", "tpotscope: unknown flag: --zzzzzz\n"},
		{"report", "tpotscope: report needs a RUN: a directory, @last, @prev or @NAME\nsee: tpotscope report --help"},
		{"export", "tpotscope: export needs a RUN: a directory, @last, @prev or @NAME"},
		{"report a b", "tpotscope: report takes one argument, and got 2: a b"},
		{"import -o x", "tpotscope: import needs a FILE: a scenario"},
		{"doctor --with true", "tpotscope: --with needs --calibrate\nsee: tpotscope doctor --help"},
		{"doctor extra", `tpotscope: doctor takes no argument, and got "extra"`},
		{"config print extra", `tpotscope: print takes no argument, and got "extra"`},
		{"help reprot", `tpotscope: there is no command "reprot" (did you mean "report"?)`},
		{"help config chekc", `tpotscope: there is no command "chekc" (did you mean "check"?)`},
		{"help report x", "tpotscope: tpotscope report has no commands below it"},
		{"record --for 5", `tpotscope: --for: "5" is no duration: want one such as 90s, 5m or 1h30m`},
		{"report @last --warmup", "tpotscope: --warmup needs a value"},
		{"record --for 0s", "tpotscope: --for: 0s is no length of time: want one such as 90s"},
		{"record --for=-5s", "tpotscope: --for: -5s is no length of time"},
		{"demo --for 0s", "tpotscope: --for: 0s is no length of time"},
		{"record --quiet=perhaps", `tpotscope: --quiet: "perhaps" `},
		{"record --dtype bf61 --engine http://127.0.0.1:9", `tpotscope: --dtype: unknown dtype "bf61" (nearest: bf16`},
		{"doctor --engine foo", `tpotscope: --engine: "foo" is not an http or https URL: want http://HOST:PORT`},
		{"demo --scenario nosuch", `tpotscope: --scenario: open scenario: there is no file "nosuch"`},
		{"proxy --listen 127.0.0.1:8001 --upstream http://127.0.0.1:8001", "tpotscope: --upstream: 127.0.0.1:8001 is the proxy's own address"},
		{"agent --nvml sim:nosuch", `tpotscope: configuration: nvml.source: open scenario: there is no file "nosuch"`},
		{"import demo", "tpotscope: import needs --output\nsee: tpotscope import --help"},
		{"import no_such -o x", `tpotscope: open scenario: there is no file "no_such"`},
		{"proxy", "tpotscope: proxy needs --listen and --upstream"},
		{"proxy --listen 127.0.0.1:0 --upstream nowhere", "tpotscope: "},
		{"config print --set nvml.perod=1s", `tpotscope: configuration: nvml.perod: no such setting (did you mean "nvml.period"?)`},
		{"config print --set nvml.period", `tpotscope: --set: "nvml.period" is not KEY=VALUE`},
		{"config print --set nvml.period=1", `tpotscope: configuration: nvml.period (flag): "1" is not a duration`},
		{"config check --log-level loud", `tpotscope: --log-level: "loud" is not one of debug, info, warn, error`},
		{"config check no_such.yml", "tpotscope: configuration: read config: open no_such.yml"},
		{"report testdata", "tpotscope: no recording at testdata: the directory has no meta.json"},
		{"export testdata", "tpotscope: no recording at testdata: the directory has no meta.json"},
		{"report no_such", "tpotscope: no recording at no_such"},
		{"report @last", "tpotscope: there are 0 recordings below "},
		{"report go.mod", "tpotscope: no recording at go.mod"},
		{"export --format xml x", `tpotscope: --format: "xml" is not one of jsonl, csv`},
		{"record --upstream http://127.0.0.1:9 -q", "tpotscope: --upstream needs --listen"},
		{"record --listen 127.0.0.1:0 --engine http://127.0.0.1:9 --upstream ftp://x", "tpotscope: proxy."},
		{"agent --nvml dcgm", `tpotscope: configuration: nvml.source: "dcgm"`},
		{"agent --engine nowhere", "tpotscope: --engine: targets[0].engine_url: "},
		{"report ''", "tpotscope: report needs a RUN: a directory, @last, @prev or @NAME\nsee: tpotscope report --help"},
		{"export ''", "tpotscope: export needs a RUN: a directory, @last, @prev or @NAME"},
	} {
		args := strings.Fields(tt.args)
		for i, s := range args {
			args[i] = strings.Trim(s, "'")
		}
		got := p.run(t, args...)
		if got.code != exitUsage || !strings.HasPrefix(got.err, tt.want) || got.out != "" {
			t.Errorf("%s: exit code %d, want %d\nstdout %q\nstderr %q, want %q ...", tt.args, got.code, exitUsage, got.out, got.err, tt.want)
		}
	}
}

// imported returns a place that holds a recording of a short scenario, and its directory.
func imported(t *testing.T) (*place, string) {
	t.Helper()
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "short.scenario")
	must(t, os.WriteFile(file, []byte(short), 0o600))
	dir := filepath.Join(runsDir(p.state), "short")
	if got := p.run(t, "import", file, "-o", dir).want(t, exitOK); !strings.HasPrefix(got.err, "SIMULATED recording of 12s in "+dir) || got.out != "" {
		t.Errorf("import says %q and %q", got.out, got.err)
	}
	return p, dir
}

const short = `seed 4
duration 12s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=4 prompt=50..80 output=20..40 0s..10s
`

func TestReport(t *testing.T) {
	p, dir := imported(t)
	text := p.run(t, "report", dir).want(t, exitOK)
	if !strings.HasPrefix(text.out, "SIMULATED") || !strings.Contains(text.out, "(memory, ") || strings.Contains(text.out, "\x1b") {
		t.Errorf("the report:\n%s", text.out)
	}
	if n := strings.Count(text.out, "\n"); n > 24 {
		t.Errorf("the report has %d lines without -v, want 24 at most", n)
	}
	read := func(args ...string) *summary.Report {
		t.Helper()
		var r summary.Report
		must(t, json.Unmarshal([]byte(p.run(t, append([]string{"report", dir, "--json"}, args...)...).want(t, exitOK).out), &r))
		return &r
	}
	whole := read()
	if whole.Schema != "tpotscope.report/1" || !whole.Simulated || whole.Decode.Bound != timeline.Memory || whole.Requests.TPOTDefined == 0 {
		t.Errorf("report %+v", whole)
	}
	for _, tt := range []struct {
		args string
		want float64 // seconds
	}{
		{"--since 2s --until 5s", 3},
		{"--since 9s", 3},
		{"--until 4s", 4},
		{"--since -5s", 5},
		{"--since -5s --until -2s", 3},
		{"--since 2026-01-01T00:00:03Z --until 2026-01-01T00:00:07Z", 4},
		{"--since 2026-01-01T01:00:03+01:00 --until 2026-01-01T00:00:07", 4},
		{"--since 00:00:03 --until 00:00:07", 4},
		{"--since 2026-01-01_00:00:03 --until 2026-01-01_00:00:07_UTC", 4},
		{"--since 00:00:03_UTC --until 7s", 4},
	} {
		args := strings.Fields(tt.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		if part := read(args...); part.Span.Seconds < tt.want-1 || part.Span.Seconds > tt.want+1 || part.Requests.Total >= whole.Requests.Total {
			t.Errorf("%s: %.1f s with %d of %d requests, want %.0f s", tt.args, part.Span.Seconds, part.Requests.Total, whole.Requests.Total, tt.want)
		}
	}
	for args, want := range map[string]string{
		"--since noon": `--since: "noon" is no time`, "--until 5x": `--until: "5x" is no time`, "--since 5s --until 2s": "",
	} {
		got := p.run(t, append([]string{"report", dir}, strings.Fields(args)...)...)
		if got.code != exitUsage || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d, %s", args, got.code, got.err)
		}
	}
	for _, args := range [][]string{{}, {"--json"}} {
		if got := p.run(t, append([]string{"report", dir, "--target", "other"}, args...)...).want(t, exitEvidence); !strings.Contains(got.err, "not enough evidence: ") {
			t.Errorf("%v: stderr %q", args, got.err)
		}
	}
}

func TestRunsByName(t *testing.T) {
	p, dir := imported(t)
	again := filepath.Join(runsDir(p.state), "later")
	p.run(t, "import", "memory_bound", "-o", again).want(t, exitOK)
	agentDir := filepath.Join(runsDir(p.state), agentRun)
	p.run(t, "import", "eager", "-o", agentDir).want(t, exitOK)
	// All three scenarios begin at the same instant: names decide.
	for run, want := range map[string]string{"@last": dir, "@prev": again, "@short": dir, "@later": again, "@agent": agentDir, dir: dir} {
		if got, passed, err := findRun(p.state, run); err != nil || got != want || len(passed) > 0 {
			t.Errorf("%s is %s, %v; want %s", run, got, err, want)
		}
	}
	for run, want := range map[string]string{
		"@shrt": "(did you mean @short?)", "@zzzzzzzz": "no recording @zzzzzzzz below ", "no_such": "no recording at no_such (a directory, or @last, @prev, @NAME)",
		"main.go": "main.go is a file: `tpotscope import main.go`",
	} {
		if _, _, err := findRun(p.state, run); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", run, err, want)
		}
	}
}

// What a start that went wrong left behind is not the last recording.
func TestEmptyRecordingsArePassedOver(t *testing.T) {
	p, dir := imported(t)
	w, err := record.Create(filepath.Join(runsDir(p.state), "nothing"), record.Meta{Created: time.Now()}, record.Options{})
	must(t, err)
	must(t, w.Close())
	got := p.run(t, "report", "@last").want(t, exitOK)
	if !strings.Contains(got.err, "@last is "+filepath.Base(dir)+": passed over nothing, which holds nothing\n") {
		t.Errorf("stderr %q", got.err)
	}
	got = p.run(t, "report", "@prev").want(t, exitUsage)
	if !strings.Contains(got.err, "there is 1 recording below ") || !strings.Contains(got.err, " that holds something, so there is no @prev") {
		t.Errorf("stderr %q", got.err)
	}
}

func TestExportOverwritesNothing(t *testing.T) {
	p, dir := imported(t)
	file := filepath.Join(t.TempDir(), "out.csv")
	must(t, os.WriteFile(file, []byte("mine"), 0o600))
	for out, want := range map[string]string{
		file: "is there already: overwrite it with --force", filepath.Join(dir, "out.csv"): "is inside the recording",
		filepath.Join(dir, "meta.json"): "is inside the recording",
	} {
		if got := p.run(t, "export", dir, "-o", out).want(t, exitUsage); !strings.Contains(got.err, want) {
			t.Errorf("%s: %s", out, got.err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	p.run(t, "export", dir, "--force", "-o", filepath.Join(link, "out.csv")).want(t, exitUsage)
	p.run(t, "export", dir, "--force", "-o", file).want(t, exitOK)
	if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), `{"id":`) {
		t.Errorf("the file holds %.40q, %v", b, err)
	}
}

func TestColumnsAreDescribedAndAbsentIsEmpty(t *testing.T) {
	p, dir := imported(t)
	header, rest, _ := strings.Cut(p.run(t, "export", dir, "--format", "csv").want(t, exitOK).out, "\n")
	names := strings.Split(header, ",")
	described := p.run(t, "export", "--columns").want(t, exitOK).out
	for _, name := range names {
		if !strings.HasPrefix(described, name+" ") && !strings.Contains(described, "\n"+name+" ") {
			t.Errorf("column %s is not described", name)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(rest)).ReadAll()
	must(t, err)
	for name, want := range map[string]string{"simulated": "true", "engine_output_tokens": "", "engine_output_s": "", "engine_per_output_s": "", "flags": ""} {
		i := slices.Index(names, name)
		if i < 0 {
			t.Fatalf("no column %s in %s", name, header)
		}
		if rows[0][i] != want {
			t.Errorf("%s is %q, want %q", name, rows[0][i], want)
		}
	}
	for _, name := range []string{"power_w", "sm_clock_hz", "dram_util_ratio"} {
		if i := slices.Index(names, name); i < 0 || rows[0][i] == "" {
			t.Errorf("%s has no value in %s", name, header)
		}
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	a := &app{env: newPlace(t).env()}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		var out lines
		c.SetOut(&out)
		c.InitDefaultHelpFlag()
		must(t, c.Help())
		for line := range strings.SplitSeq(out.String(), "\n") {
			if n := utf8.RuneCountInString(line); n > helpWidth {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() {
				walk(below)
			}
		}
	}
	walk(a.root())
}

func TestHelpNamesTheScenarios(t *testing.T) {
	p := newPlace(t)
	for _, c := range []string{"record", "agent", "demo", "import"} {
		text := strings.Join(strings.Fields(p.run(t, c, "--help").want(t, exitOK).out), " ")
		if !strings.Contains(text, "memory_bound") || !strings.Contains(text, "SIMULATED") {
			t.Errorf("help of %s names no scenario, or not that it is simulated", c)
		}
	}
	if text := p.run(t, "help", "record").want(t, exitOK).out; !strings.Contains(text, "tpotscope record [flags] [-- CMD...]\n") {
		t.Errorf("the usage of record:\n%s", text)
	}
}

func TestVersion(t *testing.T) {
	if got := newPlace(t).run(t, "version").want(t, exitOK); !strings.HasPrefix(got.out, "tpotscope "+version+", go") {
		t.Errorf("stdout %q", got.out)
	}
}

func TestADumbTerminalGetsNoEscapes(t *testing.T) {
	p := newPlace(t)
	p.vars["TERM"] = "dumb"
	a := &app{env: p.env()}
	if a.escapes(os.Stdout) {
		t.Error("escapes go to a dumb terminal")
	}
}

func TestExport(t *testing.T) {
	p, dir := imported(t)
	var first []string
	lines := strings.Split(strings.TrimSpace(p.run(t, "export", dir).want(t, exitOK).out), "\n")
	for _, line := range lines {
		var row map[string]any
		must(t, json.Unmarshal([]byte(line), &row))
		first = append(first, row["id"].(string))
		if tokens, ok := row["output_tokens"].(float64); !ok || tokens < 1 || row["status"] != "ok" || row["target"] != "main" {
			t.Errorf("row %s", line)
		}
	}
	file := filepath.Join(t.TempDir(), "requests.csv")
	if got := p.run(t, "export", dir, "--format", "csv", "-o", file).want(t, exitOK); got.out != "" {
		t.Errorf("stdout %q", got.out)
	}
	b, err := os.ReadFile(file)
	must(t, err)
	table, err := csv.NewReader(strings.NewReader(string(b))).ReadAll()
	must(t, err)
	if len(table) != len(lines)+1 || table[0][0] != "id" || slices.Index(table[0], "tpot_s") < 0 {
		t.Fatalf("%d rows in CSV, %d in JSON; header %v", len(table)-1, len(lines), table[0])
	}
	for i, row := range table[1:] {
		if row[0] != first[i] {
			t.Errorf("row %d is of request %s in CSV and of %s in JSON", i, row[0], first[i])
		}
	}
	if len(first) < 10 {
		t.Errorf("%d requests: too few to tell anything", len(first))
	}
}

func TestConfigCheckSaysEveryFaultOfAFile(t *testing.T) {
	p := newPlace(t)
	if got := p.run(t, "config", "check", "testdata/small.good.yml").want(t, exitOK); got.out != "configuration is fine: testdata/small.good.yml\n" {
		t.Errorf("stdout %q", got.out)
	}
	got := p.run(t, "config", "check", "testdata/everything.bad.yml").want(t, exitUsage)
	if n := strings.Count(got.err, "\n"); n < 12 {
		t.Errorf("%d lines of faults:\n%s", n, got.err)
	}
}

func TestDoctorAnswersInJSON(t *testing.T) {
	p := newPlace(t)
	got := p.run(t, "doctor", "--json", "--set", "nvml.source=off", "--engine", "http://127.0.0.1:9").want(t, exitError)
	var r doctor.Report
	must(t, json.Unmarshal([]byte(got.out), &r))
	states := map[string]doctor.State{}
	for _, c := range r.Checks {
		states[c.Name] = c.State
	}
	if r.Schema != doctor.Schema || states["helper"] != doctor.Skipped || states["engine"] != doctor.Failed || states["state"] != doctor.Fine {
		t.Errorf("schema %s, checks %v", r.Schema, states)
	}
}

func TestSeriesPrintsTheCatalogue(t *testing.T) {
	got := newPlace(t).run(t, "series").want(t, exitOK)
	if !strings.HasPrefix(got.out, "| Prometheus |") || !strings.Contains(got.out, "`tpotscope_decode_seconds_total`") {
		t.Errorf("the table begins with %.80q", got.out)
	}
}

func TestADemoDoesNotMixWithARecording(t *testing.T) {
	p, dir := imported(t)
	if got := p.run(t, "demo", "-o", dir).want(t, exitUsage); !strings.Contains(got.err, "holds a recording already") {
		t.Errorf("stderr %s", got.err)
	}
}

func TestADemoWithoutAWholePhaseHasNoEvidence(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "short.scenario")
	must(t, os.WriteFile(file, []byte(short+"phase late 8s..12s\n"), 0o600))
	got := p.run(t, "demo", "--scenario", file, "--for", "2s", "--json").want(t, exitEvidence)
	var res demo.Result
	must(t, json.Unmarshal([]byte(got.out), &res))
	if !res.Simulated || res.Requests.Sent == 0 || len(res.Phases) != 0 || !strings.HasPrefix(filepath.Base(res.Dir), "demo-") {
		t.Errorf("simulated %v, requests %+v, phases %+v, in %s", res.Simulated, res.Requests, res.Phases, res.Dir)
	}
	if !strings.Contains(got.err, "SIMULATED proxy on 127.0.0.1:") || !strings.Contains(got.err, "tpotscope: no phase was played to its end") {
		t.Errorf("stderr %s", got.err)
	}
	text := p.run(t, "report", "@last", "--since", "1s").want(t, exitOK)
	if !strings.HasPrefix(text.out, "SIMULATED") {
		t.Errorf("the report:\n%s", text.out)
	}
}

func TestACommandThatIsInterruptedSaysSo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := importedAs(t, p, "quant_bf16")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for args, terminated := range map[string]bool{"report": false, "compare": false, "export": true} {
		var out, errs lines
		argv, env, want := []string{args, dir}, p.env(), 130
		if args == "compare" {
			argv = append(argv, dir)
		}
		if terminated {
			env.terminated, want = func() bool { return true }, 143
		}
		if code := run(ctx, argv, streams{strings.NewReader(""), &out, &errs}, env); code != want || errs.String() != "tpotscope: interrupted\n" {
			t.Errorf("%s: exit code %d, want %d; stderr %q", args, code, want, errs.String())
		}
	}
}
