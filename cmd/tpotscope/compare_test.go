package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tpotscope/tpotscope/correlate/compare"
)

// importedAs makes a recording of a shipped scenario and returns its directory.
func importedAs(t *testing.T, p *place, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	p.run(t, "import", name, "-o", dir).want(t, exitOK)
	return dir
}

func TestCompareAnswersInOneSentenceAndFitsATerminal(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a, b := importedAs(t, p, "quant_bf16"), importedAs(t, p, "quant_fp8")
	got := p.run(t, "compare", a, b).want(t, exitOK)
	if !strings.HasPrefix(got.out, "SIMULATED  B saves 45 % of A's DRAM bytes a step and 37 % of A's time a token") {
		t.Errorf("the answer is not first:\n%s", got.out)
	}
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines:\n%s", len(lines), got.out)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > defaultWidth {
			t.Errorf("too wide: %q", l)
		}
	}
	for _, want := range []string{"realised", "of A's a step; the model has 0.552", "expected", "Cliff's delta -1.00", "refuted if"} {
		if !strings.Contains(strings.Join(strings.Fields(got.out), " "), want) {
			t.Errorf("%q is missing:\n%s", want, got.out)
		}
	}
	if all := p.run(t, "compare", a, b, "-v").want(t, exitOK); !strings.Contains(all.out, "batch        context  prompt  s of A") {
		t.Errorf("-v has no table of bins:\n%s", all.out)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	p.run(t, "compare", a, b, "--html", page).want(t, exitOK)
	if raw, err := os.ReadFile(page); err != nil || !strings.Contains(string(raw), "realised") {
		t.Errorf("the page: %v\n%s", err, raw)
	}
	var r compare.Report
	if err := json.Unmarshal([]byte(p.run(t, "compare", a, b, "--json").want(t, exitOK).out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Schema != compare.Schema || r.Verdict != compare.Realised || r.A.Name != "quant_bf16" {
		t.Errorf("got %s, %s of %s", r.Schema, r.Verdict, r.A.Name)
	}
}

func TestCompareExitsAsAsked(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a, b, other := importedAs(t, p, "quant_bf16"), importedAs(t, p, "quant_fp8"), importedAs(t, p, "demo")
	for _, tt := range []struct {
		args string
		code int
		err  string // beginning of standard error
	}{
		{"A B", exitOK, ""},
		{"B A", exitOK, ""},
		{"B A --fail-on regression", exitNegative, "tpotscope: --fail-on: B takes "},
		{"B A --fail-on not-saved", exitOK, ""},
		{"B A --fail-on not-saved,regression", exitNegative, "tpotscope: --fail-on: "},
		{"B A --fail-on any", exitNegative, "tpotscope: --fail-on: "},
		{"A B --fail-on any", exitChange, "tpotscope: --fail-on any: "},
		{"A B --fail-on regression", exitOK, ""},
		{"A A --until-a 30s --since-b 30s --fail-on any", exitOK, ""},
		{"A OTHER", exitEvidence, "tpotscope: no verdict: unlike models: Llama-3.1-8B against Qwen2.5-32B"},
		{"A B --until-a 8s", exitEvidence, "tpotscope: no verdict: too short: "},
		{"A B --target nobody", exitEvidence, "tpotscope: no verdict: A holds no decode"},
		{"A", exitUsage, "tpotscope: compare needs two RUNs, A and B: "},
		{"A B --fail-on slower", exitUsage, `tpotscope: --fail-on: "slower" is not one of regression, not-saved, any`},
		{"A B --margin 0", exitUsage, "tpotscope: --margin: "},
		{"A B --since-b yesterday", exitUsage, `tpotscope: --since-b: "yesterday" is no time`},
		{"A no_such", exitUsage, "tpotscope: no recording at no_such"},
	} {
		args := []string{"compare"}
		for w := range strings.FieldsSeq(tt.args) {
			switch w {
			case "A":
				w = a
			case "B":
				w = b
			case "OTHER":
				w = other
			}
			args = append(args, w)
		}
		got := p.run(t, args...)
		if got.code != tt.code || !strings.HasPrefix(got.err, tt.err) || tt.err == "" && got.err != "" {
			t.Errorf("%s: exit code %d, want %d\nstderr %q, want %q ...", tt.args, got.code, tt.code, got.err, tt.err)
		}
		if (got.code == exitUsage) != (got.out == "") {
			t.Errorf("%s: stdout %q", tt.args, got.out)
		}
	}
}

func TestCompareSaysThatARecordingIsHeldAgainstItself(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := importedAs(t, p, "quant_bf16")
	const said = "B: 2s of it are in A too"
	for _, tt := range []struct {
		args []string
		said bool
	}{{[]string{"--until-a", "32s", "--since-b", "30s"}, true}, {[]string{"--until-a", "30s", "--since-b", "30s"}, false}} {
		got := p.run(t, append([]string{"compare", a, a}, tt.args...)...).want(t, exitOK)
		text := strings.Join(strings.Fields(got.out), " ")
		if strings.Contains(text, said) != tt.said {
			t.Errorf("%q is said or not, want %v:\n%s", said, tt.said, got.out)
		}
		if !strings.Contains(text, "has a time ratio outside of 0.97 to 1.03") {
			t.Errorf("nothing with a number refutes it:\n%s", got.out)
		}
	}
}
