// Package report draws conclusions for people: one sentence first, then what it rests on. It concludes nothing
// itself; every figure, and every reason for a missing one, is the report's own.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/summary"
)

// Options say how a page looks. The zero Options make a plain page of 80 columns with times in UTC.
type Options struct {
	Width   int            // columns; 80 if zero, never fewer than 60
	Color   bool           // the caller knows that a terminal reads the page
	Verbose bool           // all of it, instead of at most 22 lines
	Zone    *time.Location // of printed times; UTC if nil
}

// Text writes the report as a page for a terminal.
func Text(w io.Writer, r *summary.Report, o Options) error {
	p := newPage(o)
	mark := ""
	if r.Simulated {
		mark = "SIMULATED"
	}
	p.headline(mark, headline(r))
	first := 0 // of the warnings that stand at the end
	if len(r.Warnings) > 0 && strings.HasPrefix(r.Warnings[0], "simulated: ") {
		first++ // the headline says so
	}
	if q := &r.Requests; q.EndUnknown > 0 && 2*q.EndUnknown >= q.Total && first < len(r.Warnings) {
		p.warn(must, r.Warnings[first]) // it changes what the rest means
		first++
	}
	if r.Decode.Refute != "" {
		p.row("refuted if", must, r.Decode.Refute)
	}
	p.gap()
	spanRows(p, r)
	if r.Empty == "" {
		latencyRows(p, r)
		p.gap()
		objectiveRows(p, r)
		decodeRows(p, r)
		gpuRows(p, r)
	}
	if p.o.Verbose {
		groupRows(p, r)
	}
	warningRows(p, r.Warnings[first:])
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// JSON writes the report in its JSON form, indented.
func JSON(w io.Writer, r *summary.Report) error {
	return indented(w, r, "report")
}

// indented writes a value as indented JSON.
func indented(w io.Writer, v any, what string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write %s: %w", what, err)
	}
	return nil
}
