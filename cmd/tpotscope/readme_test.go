package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/exporters"
)

//go:generate go test -count=1 -run ^TestReadmeTables$ . -update

const readme = "../../README.md"

// configMarkdown is the table of settings that the README shows.
func configMarkdown() string {
	var b strings.Builder
	b.WriteString("| key | default | environment variable |\n|---|---|---|\n")
	cfg := agent.DefaultConfig()
	for _, s := range settings(&cfg) {
		value := "`" + s.text() + "`"
		switch s.key {
		case "state_dir":
			value = "root: `/var/lib/tpotscope`; others: `$XDG_STATE_HOME/tpotscope`"
		case "socket":
			value = "root: `/run/tpotscope/agent.sock`; others: `$XDG_RUNTIME_DIR/tpotscope/agent.sock`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` |\n", s.key, value, envName(s.key))
	}
	return b.String()
}

func TestReadmeTables(t *testing.T) {
	var series strings.Builder
	must(t, exporters.Markdown(&series))
	raw, err := os.ReadFile(readme)
	must(t, err)
	text := string(raw)
	for name, want := range map[string]string{"series": series.String(), "config": configMarkdown()} {
		begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
		before, rest, ok := strings.Cut(text, begin)
		got, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Errorf("the README has no place for the table of %s: %s", name, begin+end)
			continue
		}
		if *update {
			text = before + begin + want + end + after
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the README's table of %s is not what `make generate` makes (-want +got):\n%s", name, diff)
		}
	}
	if *update && text != string(raw) {
		must(t, os.WriteFile(readme, []byte(text), 0o644)) // it is public
	}
}

// shown is one command line of the README.
type shown struct {
	line  int
	text  string
	needs string // what the block says it needs that a test has not
}

var needs = regexp.MustCompile(`^<!-- needs: (\S+) -->$`)

// commandLines returns the lines of console blocks that begin with a prompt.
func commandLines(text string) []shown {
	var all []shown
	inside, missing := false, ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case inside && line == "```":
			inside, missing = false, ""
		case inside:
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all = append(all, shown{i + 1, command, missing})
			}
		case line == "```console":
			inside = true
		case needs.MatchString(line):
			missing = needs.FindStringSubmatch(line)[1]
		case strings.TrimSpace(line) != "":
			missing = ""
		}
	}
	return all
}

// Every command that the README shows runs, in order, in a directory like a fresh copy of the repository.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(readme)
	must(t, err)
	dir, p := freshCopy(t), newPlace(t)
	ran := 0
	for _, c := range commandLines(string(text)) {
		switch first, _, _ := strings.Cut(c.text, " "); {
		case c.needs != "":
			t.Logf("README.md:%d: SKIPPED, needs a real %s: %s", c.line, c.needs, c.text)
			continue
		case first == "make":
			t.Logf("README.md:%d: SKIPPED, builds or tests everything: %s", c.line, c.text)
			continue
		}
		ran++
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "-c", c.text)
		cmd.Dir = dir
		cmd.Env = append([]string{"XDG_STATE_HOME=" + p.state}, p.environ()[1:]...)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("README.md:%d: %s: %v\n%s", c.line, c.text, err, out)
		}
	}
	if ran == 0 {
		t.Error("no command of the README was run")
	}
}

// freshCopy returns a directory with everything of the repository in it by link, and a command of its own in bin.
func freshCopy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	must(t, err)
	entries, err := os.ReadDir(root)
	must(t, err)
	for _, e := range entries {
		if e.Name() != "bin" && !strings.HasPrefix(e.Name(), ".") {
			must(t, os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "bin", "tpotscope"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

func TestCommandLines(t *testing.T) {
	text := "```sh\n$ no\n```\n\n```console\n$ one\noutput\n$ two\n```\n\n<!-- needs: gpu -->\n```console\n$ three\n```\n<!-- needs: engine -->\n\ntext\n```console\n$ four\n```\n"
	want := []shown{{6, "one", ""}, {8, "two", ""}, {13, "three", "gpu"}, {19, "four", ""}}
	if diff := cmp.Diff(want, commandLines(text), cmp.AllowUnexported(shown{})); diff != "" {
		t.Errorf("commandLines() mismatch (-want +got):\n%s", diff)
	}
}
