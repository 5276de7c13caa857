package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	if r.Simulated {
		b.WriteString("SIMULATED: these are not real GPUs\n")
	}
	marks := map[State]string{Fine: "ok  ", Warning: "warn", Failed: "FAIL", Skipped: "-   "}
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s  %-*s  %s\n", marks[c.State], width, c.Name, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(&b, "      %-*s  -> %s: %s\n", width, "", c.Who, c.Fix)
		} else if c.Who != "" {
			fmt.Fprintf(&b, "      %-*s  -> %s\n", width, "", c.Who)
		}
	}
	r.peaks(&b)
	list(&b, "\nThis node can say:\n", r.CanSay)
	list(&b, "\nIt cannot say:\n", r.CannotSay)
	_, err := io.WriteString(w, b.String())
	return err
}

func list(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString(title)
	for _, l := range lines {
		b.WriteString("  - " + l + "\n")
	}
}
