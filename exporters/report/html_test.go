package report_test

import (
	"bytes"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/exporters/report"
)

func sheet(t *testing.T, r *summary.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.HTML(&b, r, report.Options{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHTMLGolden(t *testing.T) {
	for name, r := range cases() {
		t.Run(name, func(t *testing.T) {
			got := sheet(t, r)
			path := filepath.Join("testdata", name+".html.golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("page mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

var (
	tag     = regexp.MustCompile(`<(/?)([a-z0-9]+)[^>]*?>`)
	foreign = regexp.MustCompile(`(?i)<script|\son[a-z]+=|\b(src|href|action)=|url\(|@import|javascript:`)
)

// Elements without an end tag.
var void = map[string]bool{"meta": true, "br": true}

func TestAPageStandsForItself(t *testing.T) {
	all := cases()
	all["hostile"] = hostile()
	markup := memory()
	markup.Targets = []string{`<script>alert(1)</script>`, `" onload="x`}
	markup.GPUs[0].Name = `</dd><img src=x>`
	markup.Decode.Reason = `<b>`
	markup.Warnings = []string{`<a href="http://example.com">`}
	all["markup"] = markup
	for name, r := range all {
		page := sheet(t, r)
		// What names bring is text: taken out, nothing of theirs is left as markup.
		if m := foreign.FindString(html.UnescapeString(page)); m != "" && name != "markup" {
			t.Errorf("%s: the page holds %q", name, m)
		}
		if m := regexp.MustCompile(`(?i)<(script|img|b|a)[ >]`).FindString(page); m != "" {
			t.Errorf("%s: the page holds the element %q", name, m)
		}
		var open []string
		for _, m := range tag.FindAllStringSubmatch(page, -1) {
			switch {
			case void[m[2]]:
			case m[1] == "":
				open = append(open, m[2])
			case len(open) == 0 || open[len(open)-1] != m[2]:
				t.Fatalf("%s: </%s> closes %v", name, m[2], open)
			default:
				open = open[:len(open)-1]
			}
		}
		if len(open) > 0 {
			t.Errorf("%s: %v stay open", name, open)
		}
		for _, c := range page {
			if c != '\n' && (c < ' ' || c == 0x7f || c == 0x202e) {
				t.Errorf("%s: the page holds %U", name, c)
			}
		}
	}
}

func TestAPageHoldsWhatTheReportSays(t *testing.T) {
	for name, r := range cases() {
		page := html.UnescapeString(sheet(t, r))
		if r.Simulated != strings.Contains(page, "SIMULATED") {
			t.Errorf("%s: simulated %v, and the page says otherwise", name, r.Simulated)
		}
		for _, w := range r.Warnings {
			if _, rest, ok := strings.Cut(w, "simulated: "); ok {
				w = rest
			}
			if !strings.Contains(page, w) {
				t.Errorf("%s: the page lacks %q", name, w)
			}
		}
		for i := range r.SLO {
			if o := r.SLO[i]; !strings.Contains(page, o.Objective) || !strings.Contains(page, string(o.Outcome)) {
				t.Errorf("%s: the page lacks %s", name, o.Objective)
			}
		}
		for i := range r.Help {
			if !strings.Contains(page, r.Help[i].Name) {
				t.Errorf("%s: the page lacks %s", name, r.Help[i].Name)
			}
		}
		if !strings.Contains(page, "times are in UTC") {
			t.Errorf("%s: the page does not tell its zone", name)
		}
	}
}
