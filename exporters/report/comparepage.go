package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/compare"
)

// comparePage is laid out in the styles of the report's page.
const comparePage = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>tpotscope: {{.Title}}</title>
<style>{{.Style}}</style>
</head>
<body>
<h1>{{if .R.Simulated}}<span class="mark">SIMULATED</span> {{end}}{{.Headline}}</h1>
<p class="soft">{{.Reason}}</p>
<dl>
{{range .Facts}}<dt>{{.Name}}</dt><dd>{{.Text}}</dd>
{{end}}</dl>
{{if .Warnings}}<h2>Before you trust the rest</h2>
<ul>{{range .Warnings}}<li>{{.}}</li>{{end}}</ul>{{end}}
{{if .Bars}}<h2>Time a token</h2>
{{range .Bars}}<p class="soft">{{.Target}}</p><div class="bar">{{range .Parts}}<span class="{{.Class}}" style="flex:{{.Flex}}" title="{{.Title}}">{{.Title}}</span>{{end}}</div>
{{end}}{{end}}
{{if .Bins}}<h2>Bins</h2>
<div class="scroll"><table><thead><tr>{{range .Columns}}<th class="n">{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Bins}}<tr>{{range .}}<td class="n">{{.}}</td>{{end}}</tr>
{{end}}</tbody><caption>prompt: tokens a step; TPOT in ms; ratio and bytes: B over A</caption></table></div>{{end}}
</body>
</html>
`

// compareTemplate is read once; a fault in it is one of every page.
var compareTemplate = template.Must(template.New("compare").Parse(comparePage))

// compareSheet is what the template shows.
type compareSheet struct {
	R                       *compare.Report
	Title, Headline, Reason string
	Style                   template.CSS
	Facts                   []fact
	Warnings                []string
	Bars                    []strip
	Columns                 []string
	Bins                    [][]string
}

// CompareHTML writes a comparison as one page that stands for itself: no script, and nothing that is fetched from
// elsewhere.
func CompareHTML(w io.Writer, r *compare.Report, o Options) error {
	s := compareSheet{R: r, Title: "compare, " + string(r.Verdict), Headline: clean(compareHeadline(r)), Reason: clean(r.Reason), Style: pageStyle()}
	s.Facts = rowsOf(o, func(p *page) { compareRows(p, r) })
	for _, text := range r.Warnings {
		s.Warnings = append(s.Warnings, clean(text))
	}
	if r.TPOTA.OK() && r.TPOTB.OK() {
		s.Bars = compareBars(r)
	}
	if len(r.Matched.Table) > 0 {
		s.Columns = append([]string{"batch"}, binHeads()...)
		for i := range r.Matched.Table {
			b := &r.Matched.Table[i]
			s.Bins = append(s.Bins, append([]string{fmt.Sprintf("%.1f", b.Batch)}, binTexts(b)...))
		}
	}
	if err := compareTemplate.Execute(w, s); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// pageStyle is the styles of the report's page, which this one shares.
func pageStyle() template.CSS {
	_, rest, _ := strings.Cut(pageHTML, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	return template.CSS(style) //nolint:gosec // it is a file of this package
}

// compareBars draw the time a token of both sides on one scale, by what limited it.
func compareBars(r *compare.Report) []strip {
	all := max(r.TPOTA.Value.Value, r.TPOTB.Value.Value)
	bar := func(name string, of func(*compare.Part) compare.Value) strip {
		out := strip{Target: name}
		left := all
		for i := range r.Parts {
			p := &r.Parts[i]
			v := of(p)
			if !v.OK() || v.Value.Value < leastPart*all {
				continue
			}
			left -= v.Value.Value
			out.Parts = append(out.Parts, segment{Class: p.Name, Title: p.Name + " " + latency(v.Value.Value), Flex: flex(v.Value.Value / all)})
		}
		if left > leastPart*all && len(out.Parts) > 0 {
			out.Parts = append(out.Parts, segment{Flex: flex(left / all)})
		}
		return out
	}
	a := bar("A, "+latency(r.TPOTA.Value.Value), func(p *compare.Part) compare.Value { return p.A })
	b := bar("B, "+latency(r.TPOTB.Value.Value), func(p *compare.Part) compare.Value { return p.B })
	if len(a.Parts) == 0 || len(b.Parts) == 0 {
		return nil
	}
	return []strip{a, b}
}

// flex is the style of a part's width.
func flex(part float64) template.CSS {
	return template.CSS(fmt.Sprintf("%.4f", part)) //nolint:gosec // a number
}
