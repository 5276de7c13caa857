package exporters

import (
	"fmt"
	"io"
	"strings"
)

// Markdown writes the catalogue as the table that the README shows.
func Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| Prometheus | OpenTelemetry | unit | kind | labels | profile | from | meaning |\n|---|---|---|---|---|---|---|---|\n")
	for i := range catalogue {
		m := &catalogue[i]
		labels := strings.Join(m.PromLabels(), ", ")
		if len(m.Values) > 0 {
			labels += " (" + strings.Join(m.Values, ", ") + ")"
		}
		for _, field := range []string{
			"`" + m.Prom + "`", "`" + m.Name + "`", m.Unit, m.Kind.String(), labels, m.Profile.String(), m.Level.String(), m.Help,
		} {
			b.WriteString("| " + field + " ")
		}
		b.WriteString("|\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write catalogue: %w", err)
	}
	return nil
}
