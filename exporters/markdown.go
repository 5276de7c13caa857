package exporters

import (
	"fmt"
	"io"
	"strings"
)

// histogramNote says what of a histogram a scrape shows.
const histogramNote = "Histograms are native: their buckets come with a protobuf scrape (`scrape_native_histograms: true` in Prometheus) and with OTLP. " +
	"The text formats know none, so that there a histogram shows its count, its sum and the bucket `+Inf` alone, unless classic buckets are asked for."

// Markdown writes the catalogue as the table that the README shows, and a note below it.
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
	b.WriteString("\n" + histogramNote + "\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write catalogue: %w", err)
	}
	return nil
}
