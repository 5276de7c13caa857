package exporters_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/exporters"
)

func TestCatalogueNamesEverySeriesOnce(t *testing.T) {
	otel, prom := map[string]bool{}, map[string]bool{}
	name := regexp.MustCompile(`^tpotscope(\.[a-z][a-z0-9_]*)+$`)
	for _, m := range exporters.Catalogue() {
		if !name.MatchString(m.Name) {
			t.Errorf("%q is no name of OpenTelemetry under tpotscope", m.Name)
		}
		if otel[m.Name] || prom[m.Prom] {
			t.Errorf("%s or %s stands twice", m.Name, m.Prom)
		}
		otel[m.Name], prom[m.Prom] = true, true
		if m.Help == "" || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: help %q is no sentence", m.Name, m.Help)
		}
		if id, ok := exporters.ByName(m.Name); !ok || exporters.Lookup(id).Prom != m.Prom {
			t.Errorf("ByName(%s) does not find it", m.Name)
		}
	}
}

// The rules are those of the compatibility specification between OpenTelemetry and Prometheus:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
func TestPrometheusNamesFollowFromNameUnitAndKind(t *testing.T) {
	units := map[string]string{
		"By": "bytes", "s": "seconds", "Hz": "hertz", "W": "watts", "Cel": "celsius", "1": "ratio", "J": "joules",
	}
	for _, m := range exporters.Catalogue() {
		want := strings.ReplaceAll(m.Name, ".", "_")
		if u := units[m.Unit]; u != "" && !strings.HasSuffix(want, "_"+u) {
			want += "_" + u
		}
		if m.Kind == exporters.Counter {
			want += "_total"
		}
		if m.Prom != want {
			t.Errorf("%s in %q is spelt %s, want %s", m.Name, m.Unit, m.Prom, want)
		}
	}
}

// seriesCount returns how many series one GPU, one target and one agent have in a profile. A native histogram is one
// series. Metrics of the agent whose label values are open count once.
func seriesCount(p exporters.Profile) map[exporters.Scope]int {
	n := map[exporters.Scope]int{}
	for _, m := range exporters.Catalogue() {
		if m.Profile <= p {
			n[m.Scope] += max(1, len(m.Values))
		}
	}
	return n
}

func TestStandardProfileIsSmall(t *testing.T) {
	n := seriesCount(exporters.Standard)
	if got := n[exporters.OfGPU]; got > 12 {
		t.Errorf("%d series a GPU, want at most 12", got)
	}
	if got := n[exporters.OfTarget]; got > 30 {
		t.Errorf("%d series a target, want at most 30", got)
	}
	minimal, full := seriesCount(exporters.Minimal), seriesCount(exporters.Full)
	for scope, std := range n {
		if minimal[scope] >= std || full[scope] < std {
			t.Errorf("%v: minimal %d, standard %d, full %d do not grow", scope, minimal[scope], std, full[scope])
		}
	}
}

func TestMarkdownHasARowForEachMetric(t *testing.T) {
	var b bytes.Buffer
	if err := exporters.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(b.String()), "\n")
	if got, want := len(rows), int(exporters.NumMetrics)+4; got != want {
		t.Fatalf("%d rows, want %d with what stands above and below the table", got, want)
	}
	if note := rows[len(rows)-1]; rows[len(rows)-2] != "" || !strings.Contains(note, "native") {
		t.Errorf("no note on native histograms below the table: %q", note)
	}
	for i, m := range exporters.Catalogue() {
		row := rows[i+2]
		if !strings.Contains(row, "`"+m.Prom+"`") || strings.Count(row, "|") != 9 {
			t.Errorf("row of %s is %s", m.Name, row)
		}
	}
}

func TestProfileIsReadByName(t *testing.T) {
	for _, p := range []exporters.Profile{exporters.Minimal, exporters.Standard, exporters.Full} {
		var got exporters.Profile
		if err := got.UnmarshalText([]byte(p.String())); err != nil || got != p {
			t.Errorf("UnmarshalText(%s) = %v, %v", p, got, err)
		}
	}
	var p exporters.Profile
	if err := p.UnmarshalText([]byte("big")); err == nil || !strings.Contains(err.Error(), "minimal, standard, full") {
		t.Errorf("UnmarshalText(big) = %v, want an error that lists the profiles", err)
	}
}
