package report

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	defaultWidth = 80
	minWidth     = 60
	// maxLine keeps lines short enough to read, however wide the terminal is.
	maxLine = 110
	// maxLines is what a page without -v holds, so that it fits the smallest usual terminal, of 24 lines,
	// with the command above it and the prompt below.
	maxLines = 22
	// labelWidth is the left column.
	labelWidth = 12
)

// rank says how early a line goes when a page is too long: the greatest first. Lines of rank must stay.
type rank int

const (
	must rank = iota
	wanted
	air // empty lines
	useful
	extra
)

type line struct {
	text string

	label, plain string // what it is of a row that is not laid out
	rank         rank
	row          int // lines of one row stay or go together
}

// page gathers lines. Text is laid out before it is coloured, so that colours never move a word.
type page struct {
	o       Options
	lines   []line
	rows    int
	dropped bool
	whole   bool // rows are kept as they are, for another page to lay out
}

func newPage(o Options) *page {
	if o.Width == 0 {
		o.Width = defaultWidth
	}
	o.Width = min(max(o.Width, minWidth), maxLine)
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	return &page{o: o}
}

// Escapes of the few styles in use (ECMA-48).
const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

func (p *page) style(s, code string) string {
	if !p.o.Color || s == "" {
		return s
	}
	return code + s + plain
}

// add appends a line to the current row.
func (p *page) add(r rank, text string) {
	p.lines = append(p.lines, line{text: text, rank: r, row: p.rows})
}

// headline is the one sentence, with what must not be missed before it.
func (p *page) headline(mark, s string) {
	p.rows++
	if mark != "" {
		s = mark + nbsp + nbsp + s
	}
	for i, l := range wrap(s, p.o.Width) {
		if rest, ok := strings.CutPrefix(l, mark); ok && i == 0 && mark != "" {
			p.add(must, p.style(mark, bold+yellow)+p.style(rest, bold))
			continue
		}
		p.add(must, p.style(l, bold))
	}
}

// gap is an empty line.
func (p *page) gap() {
	if n := len(p.lines); n > 0 && p.lines[n-1].text != "" {
		p.rows++
		p.add(air, "")
	}
}

// row is a label and text beside it, which may run over several lines.
func (p *page) row(label string, r rank, text string) {
	p.rows++
	if p.whole {
		p.lines = append(p.lines, line{label: label, plain: text})
		return
	}
	for i, l := range wrap(text, p.o.Width-labelWidth-2) {
		if i > 0 {
			label = ""
		}
		p.add(r, p.labelled(label, l))
	}
}

// put is a label and one line of text that is laid out already.
func (p *page) put(label string, r rank, text string) {
	p.rows++
	p.add(r, p.labelled(label, text))
}

func (p *page) labelled(label, text string) string {
	return "  " + p.style(pad(label, labelWidth), dim) + strings.TrimRight(text, " ")
}

// warn is a warning.
func (p *page) warn(r rank, text string) {
	p.rows++
	for i, l := range wrap(text, p.o.Width-4) {
		mark := p.style("!", yellow)
		if i > 0 {
			mark = " "
		}
		p.add(r, "  "+mark+" "+l)
	}
}

// String returns the page, cut to its longest length by what matters least.
func (p *page) String() string {
	keep := p.lines
	if !p.o.Verbose {
		keep = p.fit()
	}
	var b strings.Builder
	for i, l := range keep {
		if l.text == "" && (i == len(keep)-1 || keep[i+1].text == "") {
			continue
		}
		b.WriteString(l.text)
		b.WriteByte('\n')
	}
	return b.String()
}

// more tells that rows are missing.
const more = "more with -v"

// fit drops rows of the greatest rank, from the end, until the page is short enough, and tells that it did.
func (p *page) fit() []line {
	keep := slices.Clone(p.lines)
	room := maxLines
	for r := extra; r > must; r-- {
		for i := len(keep) - 1; i >= 0 && len(keep) > room; i-- {
			if keep[i].rank != r {
				continue
			}
			row := keep[i].row
			keep = slices.DeleteFunc(keep, func(l line) bool { return l.row == row })
			i = min(i, len(keep))
			if r != air && !p.dropped {
				p.dropped = true
				room-- // for the line that says so
			}
		}
	}
	if p.dropped {
		keep = append(keep, line{text: "  " + p.style(more, dim), rank: must, row: p.rows + 1})
	}
	return keep
}

// pad fills s with spaces on the right up to n columns.
func pad(s string, n int) string {
	if k := n - utf8.RuneCountInString(s); k > 0 {
		return s + strings.Repeat(" ", k)
	}
	return s
}

// left fills s with spaces on the left up to n columns.
func left(s string, n int) string {
	if k := n - utf8.RuneCountInString(s); k > 0 {
		return strings.Repeat(" ", k) + s
	}
	return s
}

// wrap breaks s at spaces into lines of at most width columns; a longer word has a line of its own.
func wrap(s string, width int) []string {
	var out []string
	var b strings.Builder
	n := 0
	for _, word := range strings.FieldsFunc(clean(s), func(r rune) bool { return r == ' ' }) {
		k := utf8.RuneCountInString(word)
		if n > 0 && n+1+k > width {
			out = append(out, b.String())
			b.Reset()
			n = 0
		}
		if n > 0 {
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += k
	}
	if n > 0 {
		out = append(out, b.String())
	}
	// No-break spaces have done their work.
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], nbsp, " ")
	}
	return out
}

// nbsp keeps a number and its unit on one line.
const nbsp = "\u00a0"

// clean takes out what a terminal obeys instead of showing: names come from drivers and servers.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
}
