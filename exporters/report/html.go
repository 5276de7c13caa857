package report

import (
	_ "embed" // the page's template is a file of its own
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

//go:embed page.html
var pageHTML string

// htmlPage is read once; a fault in it is one of every page.
var htmlPage = template.Must(template.New("page").Parse(pageHTML))

// HTML writes the report as one page that stands for itself: no script, and nothing that is fetched from elsewhere.
func HTML(w io.Writer, r *summary.Report, o Options) error {
	if err := htmlPage.Execute(w, newSheet(r, newPage(o).o)); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// sheet is what the template shows.
type sheet struct {
	R                     *summary.Report
	Title, Headline, Zone string
	Facts, Evidence, GPUs []fact
	Objectives            []objectiveLine
	Goodput               string
	Latencies             []statLine
	LatencyNote           string
	Shares                []segment
	ShareText, DecodeS    string
	Stretches             []strip
	Help                  []helpLine
	Groups                []groupLine
}

type fact struct{ Name, Text string }

type objectiveLine struct{ Objective, Outcome, Value, Kept, CI, Why string }

type statLine struct {
	Name, Why, N string
	Cells        []cell
}

type cell struct{ Text, CI, Title string }

type segment struct {
	Class, Title string
	Flex         template.CSS
}

type strip struct {
	Target string
	Parts  []segment
}

type helpLine struct{ Name, Saves, Part, ActsOn, Basis string }

type groupLine struct {
	Tokens, Along, N string
	Cells            []cell
}

func newSheet(r *summary.Report, o Options) *sheet {
	s := &sheet{R: shown(r), Headline: clean(headline(r)), Zone: o.Zone.String(), DecodeS: seconds(r.Decode.DecodeS)}
	s.Title = string(r.Decode.Bound)
	// Its rows are those of a terminal's page, without a bound on their number.
	o.Verbose = true
	s.Facts = rowsOf(o, func(p *page) { spanRows(p, r) })
	if r.Empty != "" {
		return s
	}
	s.objectives(r)
	s.latencies(r)
	s.decode(r, o)
	for i := range r.Help {
		h := &r.Help[i]
		basis := h.Basis
		if h.Capped {
			basis += ", held to the measured share"
		}
		most := ""
		if h.AtMost {
			most = "at most "
		}
		s.Help = append(s.Help, helpLine{h.Name, most + latency(h.SavesS) + " of " + latency(h.StepS), percent(h.Part), h.ActsOn + ", " + percent(h.Share) + " of decode time", basis})
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		along := "unknown"
		if g.Concurrency.OK() {
			along = between(g.Concurrency.Value)
		}
		l := groupLine{Tokens: between(g.OutputTokens), Along: along, N: count(float64(g.Requests))}
		if g.TPOT.OK() {
			l.Cells = cells(&g.TPOT)
		}
		s.Groups = append(s.Groups, l)
	}
	return s
}

// shown is the report with its texts free of what cannot be shown.
func shown(r *summary.Report) *summary.Report {
	out := *r
	out.Decode.Refute = clean(r.Decode.Refute)
	out.Warnings = nil
	for _, w := range r.Warnings {
		if text, ok := strings.CutPrefix(w, "simulated: "); ok && r.Simulated {
			w = "Simulated: " + text
		}
		out.Warnings = append(out.Warnings, clean(w))
	}
	return &out
}

// rowsOf returns what rows a page for a terminal would hold, without those of that name.
func rowsOf(o Options, fill func(p *page), without ...string) []fact {
	p := newPage(Options{Width: maxLine, Verbose: true, Zone: o.Zone})
	p.whole = true
	fill(p)
	var out []fact
	left := false // out, with the rows that go on with it
	for _, l := range p.lines {
		name, text := clean(l.label), clean(l.plain)
		if name != "" {
			left = slices.Contains(without, name)
		}
		switch {
		case left || text == "":
		case name == "" && len(out) > 0:
			out[len(out)-1].Text += "; " + text
		default:
			out = append(out, fact{name, text})
		}
	}
	return out
}

func (s *sheet) objectives(r *summary.Report) {
	for i := range r.SLO {
		o := &r.SLO[i]
		l := objectiveLine{Objective: o.Objective, Outcome: string(o.Outcome), Value: "-", Kept: "-", CI: "-", Why: o.Why}
		if o.Value.OK() {
			l.Value = latency(o.Value.Value)
		}
		if o.Kept.OK() {
			l.Kept = percent(o.Kept.Value) + " of " + count(float64(o.N))
		}
		if iv := o.KeptCI95; iv != nil {
			l.CI = fmt.Sprintf("%.1f to %.1f"+nbsp+"%%", 100*iv.Low, 100*iv.High)
		}
		s.Objectives = append(s.Objectives, l)
	}
	if r.Goodput != nil {
		s.Goodput = goodput(r.Goodput, true)
	}
}

func (s *sheet) latencies(r *summary.Report) {
	for _, l := range latencyLines(r, true) {
		line := statLine{Name: l.name}
		if !l.s.OK() {
			line.Why = absent(l.s.Absent)
			s.Latencies = append(s.Latencies, line)
			continue
		}
		line.N = count(float64(l.s.N))
		line.Cells = cells(l.s)
		s.Latencies = append(s.Latencies, line)
	}
	s.LatencyNote = "Over requests that went well, outside the warm-up. Below each figure its 95 % interval: of means by blocks of time, of percentiles " +
		"by the binomial law for values taken as independent, which requests of one batch are not quite. A gap is one value of many of a request."
}

// cells are the mean and the percentiles of a distribution, each with its interval.
func cells(st *summary.Stat) []cell {
	var out []cell
	for _, c := range []struct {
		m  timeline.Measure
		iv summary.Maybe[timeline.Interval]
	}{{st.Mean, st.CI95Mean}, {st.P50, st.CI95P50}, {st.P90, st.CI95P90}, {st.P99, st.CI95P99}} {
		if !c.m.OK() {
			out = append(out, cell{Text: "-", Title: c.m.Why})
			continue
		}
		one := cell{Text: latency(c.m.Value)}
		if c.iv.OK() {
			u := unitOf(c.iv.Value.Low, c.iv.Value.High)
			one.CI = u.number(c.iv.Value.Low) + " to " + u.number(c.iv.Value.High)
		} else {
			one.Title = "no interval: " + c.iv.Why
		}
		out = append(out, one)
	}
	return out
}

func (s *sheet) decode(r *summary.Report, o Options) {
	d := &r.Decode
	if d.DecodeS > 0 && d.Shares.OK() {
		s.ShareText = shareList(d.Shares.Value)
		v := d.Shares.Value
		for _, part := range []struct {
			class string
			of    float64
		}{{"memory", v.Memory}, {"compute", v.Compute}, {"launch", v.Launch}, {"host", v.Host}, {"other", v.Other}} {
			if part.of >= leastPart {
				s.Shares = append(s.Shares, segmentOf(part.class, part.class+" "+percent(part.of), part.of))
			}
		}
	}
	for i := range d.OverTime {
		t := &d.OverTime[i]
		if n := len(s.Stretches); n == 0 || s.Stretches[n-1].Target != t.Target {
			s.Stretches = append(s.Stretches, strip{Target: t.Target})
		}
		at := &s.Stretches[len(s.Stretches)-1]
		title := string(t.Label) + " " + stretch(t.StartS, t.EndS, r.Span.Seconds)
		at.Parts = append(at.Parts, segmentOf(string(t.Label), title, max(t.EndS-t.StartS, 1e-3)))
	}
	s.Evidence = rowsOf(o, func(p *page) { decodeRows(p, r) }, "limited by", "would help", "over time")
	s.GPUs = rowsOf(o, func(p *page) { gpuRows(p, r) })
}

func segmentOf(class, title string, size float64) segment {
	return segment{Class: class, Title: title, Flex: template.CSS(fmt.Sprintf("%.4f 1 0", size))} //nolint:gosec // a number
}
