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
	checks := together(r.Checks)
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	for _, c := range checks {
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

// together makes one check of those that say the same of several counters, where the first of them stands.
func together(checks []Check) []Check {
	type said struct {
		state            State
		detail, who, fix string
	}
	alike := map[said][]string{}
	for _, c := range checks {
		key := said{c.State, c.Detail, c.Who, c.Fix}
		alike[key] = append(alike[key], c.Name)
	}
	var out []Check
	for _, c := range checks {
		key := said{c.State, c.Detail, c.Who, c.Fix}
		names := alike[key]
		switch {
		case c.State == Fine || len(names) == 1:
			out = append(out, c)
		case names != nil:
			c.Name, c.Detail = fmt.Sprintf("%d counters", len(names)), c.Detail+": "+strings.Join(names, ", ")
			out = append(out, c)
		}
		if c.State != Fine {
			alike[key] = nil
		}
	}
	return out
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
