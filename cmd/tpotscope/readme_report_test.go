package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test -count=1 -run ^TestReadmeReport$ . -update

// The output that the README opens with is what its two commands print.
func TestReadmeReport(t *testing.T) {
	p := newPlace(t)
	dir := filepath.Join(t.TempDir(), "demo-run")
	if o := p.run(t, "import", "demo", "-o", dir); o.code != exitOK {
		t.Fatalf("import: code %d: %s", o.code, o.err)
	}
	o := p.run(t, "report", dir, "--since", "2s", "--until", "14s")
	if o.code != exitOK {
		t.Fatalf("report: code %d: %s", o.code, o.err)
	}
	want := "```text\n" + strings.TrimRight(o.out, "\n") + "\n```\n"
	raw, err := os.ReadFile(readme)
	must(t, err)
	const begin, end = "<!-- report:begin -->\n", "<!-- report:end -->"
	before, rest, ok := strings.Cut(string(raw), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("the README has no place for the report: %s%s", begin, end)
	}
	if *update {
		must(t, os.WriteFile(readme, []byte(before+begin+want+end+after), 0o644)) // it is public
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the README's report is not what `make generate` makes (-want +got):\n%s", diff)
	}
}
