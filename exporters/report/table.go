package report

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// latencyLine is one row of the table of latencies.
type latencyLine struct {
	name string
	s    *summary.Stat
	rank rank
}

// latencyLines chooses the rows: gaps of tokens, or of events where the tokens of each are not told.
func latencyLines(r *summary.Report, verbose bool) []latencyLine {
	tokenGap, eventGap := latencyLine{"token gap", &r.ITL, useful}, latencyLine{"event gap", &r.ICL, useful}
	lines := []latencyLine{{"TPOT", &r.TPOT, must}, tokenGap, {"TTFT", &r.TTFT, must}, {"E2E", &r.E2E, useful}}
	switch {
	case verbose:
		lines = slices.Insert(lines, 1, latencyLine{"TPOT n-1", &r.TPOTN1, useful})
		lines = slices.Insert(lines, 3, eventGap)
	case !r.ITL.OK() && r.ICL.OK():
		lines[1] = eventGap
	}
	return lines
}

// latencyRows are the table of latencies.
func latencyRows(p *page, r *summary.Report) {
	lines := latencyLines(r, p.o.Verbose)
	if !slices.ContainsFunc(lines, func(l latencyLine) bool { return l.s.OK() }) {
		if r.Requests.Total > 0 {
			p.row("latencies", must, absent(r.TPOT.Absent))
		}
		return
	}
	p.gap()
	p.put("", must, p.style(columns("n", "mean", "p50", "p90", "p99")+left("95 % of mean", intervalWidth), dim))
	var n notes
	for _, l := range lines {
		if !l.s.OK() {
			p.row(l.name, l.rank, absent(l.s.Absent))
			continue
		}
		c := cellsOf(l.s, &n, l.rank)
		p.put(pad(l.name, labelWidth-2)+c.unit, l.rank, c.text+left(c.interval, intervalWidth))
		if l.s.Flag != "" {
			n.add(l.name+"s: "+l.s.Flag, useful)
		}
	}
	n.rows(p)
}

// groupRows are the table of like requests.
func groupRows(p *page, r *summary.Report) {
	if len(r.Groups) == 0 {
		return
	}
	p.gap()
	p.row("", must, "TPOT by output tokens, and by mean requests that decoded along")
	p.add(must, "  "+p.style(pad("tokens", lengthWidth)+pad("along", alongWidth)+columns("n", "mean", "p50", "p90", "p99"), dim))
	var n notes
	for i := range r.Groups {
		g := &r.Groups[i]
		along := "unknown"
		if g.Concurrency.OK() {
			along = between(g.Concurrency.Value)
		}
		c := cellsOf(&g.TPOT, &n, must)
		p.add(must, "  "+pad(between(g.OutputTokens), lengthWidth)+pad(along, alongWidth)+c.text+" "+c.unit)
	}
	if slices.ContainsFunc(r.Groups, func(g summary.Group) bool { return !g.TPOT.P99.OK() }) {
		p.row("", must, "- too few requests to bound that percentile on both sides")
	}
}

// Widths of the names of bins.
const (
	lengthWidth = 17
	alongWidth  = 12
)

// notes are reasons, each told once.
type notes []note

type note struct {
	text string
	rank rank
}

func (n *notes) add(s string, r rank) {
	if !slices.ContainsFunc(*n, func(o note) bool { return o.text == s }) {
		*n = append(*n, note{s, r})
	}
}

func (n *notes) rows(p *page) {
	for _, o := range *n {
		p.row("", o.rank, o.text)
	}
}

// columns lays out one row of a table.
func columns(n, mean, p50, p90, p99 string) string {
	return left(n, 10) + left(mean, 8) + left(p50, 8) + left(p90, 8) + left(p99, 8)
}

// laidOut is a distribution as a row of a table.
type laidOut struct{ unit, text, interval string }

// intervalWidth is the width of the column of intervals.
const intervalWidth = 18

// cellsOf writes a distribution, whose row is of rank r. Why a cell is empty goes into n, and off the page before the row.
func cellsOf(s *summary.Stat, n *notes, r rank) laidOut {
	low, high := s.Mean.Value, s.Mean.Value
	for _, m := range []timeline.Measure{s.P50, s.P90, s.P99} {
		if m.OK() {
			low, high = min(low, m.Value), max(high, m.Value)
		}
	}
	u := unitOf(low, high)
	cell := func(m timeline.Measure) string {
		if !m.OK() {
			n.add("- "+m.Why, max(r, wanted))
			return "-"
		}
		return u.number(m.Value)
	}
	out := laidOut{unit: u.name, interval: "-"}
	out.text = columns(count(float64(s.N)), u.number(s.Mean.Value), cell(s.P50), cell(s.P90), cell(s.P99))
	if s.CI95Mean.OK() {
		out.interval = u.number(s.CI95Mean.Value.Low) + " to " + u.number(s.CI95Mean.Value.High)
	} else {
		n.add("- interval of the mean: "+s.CI95Mean.Why, useful)
	}
	return out
}

// between writes a bin.
func between(r summary.Range) string {
	switch r.High {
	case 0:
		return count(r.Low) + " and more"
	case r.Low + 1:
		return count(r.Low)
	}
	return count(r.Low) + " to " + count(r.High-1)
}
