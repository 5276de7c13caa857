package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Compare writes a comparison as a page for a terminal.
func Compare(w io.Writer, r *compare.Report, o Options) error {
	p := newPage(o)
	mark := ""
	if r.Simulated {
		mark = "SIMULATED"
	}
	p.headline(mark, compareHeadline(r))
	compareRows(p, r)
	if p.o.Verbose {
		binRows(p, r)
	}
	warningRows(p, r.Warnings)
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}

// compareRows are all rows of a comparison but for the table of bins and the warnings.
func compareRows(p *page, r *compare.Report) {
	if r.Remedy != "" {
		p.row("to decide", must, r.Remedy)
	}
	if r.Refute != "" {
		p.row("refuted if", must, r.Refute)
	}
	p.gap()
	armRows(p, "A", &r.A)
	armRows(p, "B", &r.B)
	if r.Time.OK() {
		p.gap()
		ratioRows(p, r)
		changeRows(p, r)
	}
	if len(r.HeldDown) > 0 {
		held := r.HeldDown
		if !p.o.Verbose {
			held = held[:min(2, len(held))]
		}
		p.row("held down", wanted, strings.Join(held, "; "))
	}
}

// CompareJSON writes a comparison in its JSON form, indented.
func CompareJSON(w io.Writer, r *compare.Report) error {
	return indented(w, r, "comparison")
}

// compareHeadline is the answer in one sentence.
func compareHeadline(r *compare.Report) string {
	word := strings.ReplaceAll(string(r.Verdict), "_", " ")
	if !r.Verdict.Decided() {
		return strings.ToUpper(word[:1]) + word[1:] + ": " + r.Reason + "."
	}
	return fmt.Sprintf("%s (%s, %s confidence): TPOT %s to %s at the same step.", compareSaid(r), word, r.Confidence,
		latency(r.TPOTA.Value.Value), latency(r.TPOTB.Value.Value))
}

// compareSaid puts a verdict into words.
func compareSaid(r *compare.Report) string {
	bytes := percent(1-r.Bytes.Measured.Value.Value) + " of A's DRAM bytes a step"
	switch r.Verdict {
	case compare.Realised:
		return "B saves " + bytes + " and " + percent(1-r.Time.Value.Value) + " of A's time a token"
	case compare.NotTime:
		s := "B saves " + bytes + ", but "
		switch t := r.Time.Value.Value; {
		case r.Slower:
			return s + "costs " + percent(t-1) + " of A's time a token more"
		case t >= 1-r.Margin:
			return s + "no time a token"
		default:
			return s + "only " + percent(1-t) + " of A's time a token"
		}
	case compare.NotSaved:
		promise := percent(1 - r.Bytes.Modelled.Value.Value)
		if math.Abs(1-r.Bytes.Measured.Value.Value) < leastPart {
			return "B saves none of A's DRAM bytes a step, where its format should save " + promise
		}
		return "B saves " + bytes + ", where its format should save " + promise
	case compare.Regression:
		s := "B is slower than A by " + percent(r.Time.Value.Value-1) + " of A's time a token"
		if r.Grew != "" {
			s += ", most of it " + r.Grew
		}
		return s
	case compare.Improvement:
		return "B is faster than A by " + percent(1-r.Time.Value.Value) + " of A's time a token"
	case compare.NoDifference:
		if iv := r.Time.CI95.Value; iv.Low > 1 || iv.High < 1 {
			word, by := "more", r.Time.Value.Value-1
			if by < 0 {
				word, by = "less", -by
			}
			return fmt.Sprintf("B takes %.1f"+nbsp+"%% of A's time a token %s, within the margin of %s", 100*by, word, percent(r.Margin))
		}
		return "A and B take the same time a token, within " + percent(r.Margin) + " of A's"
	case compare.Refused, compare.Undetermined:
	}
	return ""
}

// armRows say what one side is.
func armRows(p *page, label string, a *compare.Arm) {
	parts := []string{}
	for _, s := range []string{a.Model, a.DType, strings.TrimPrefix(a.GPU, "NVIDIA ")} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if a.TP > 1 {
		parts = append(parts, "TP"+nbsp+strconv.Itoa(a.TP))
	}
	text := a.Name
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	text += ", " + seconds(a.DecodeS) + " of decode"
	if a.Requests > 0 {
		text += ", " + plural(a.Requests, "request")
	}
	p.row(label, must, text)
	parts = []string{a.Evidence.String()}
	if a.Coverage.OK() {
		parts = append(parts, percent(a.Coverage.Value)+" of the output tokens seen")
	}
	if a.Batch.OK() {
		parts = append(parts, fmt.Sprintf("batch"+nbsp+"%.3g", a.Batch.Value))
	}
	if a.Context.OK() {
		parts = append(parts, "context"+nbsp+count(a.Context.Value))
	}
	if a.Output.OK() {
		parts = append(parts, count(a.Output.Value)+nbsp+"tokens out a second")
	}
	if a.Hits.OK() {
		parts = append(parts, percent(a.Hits.Value)+" of prompt tokens found in cache")
	}
	p.row("", useful, strings.Join(parts, ", "))
}

// ends95 writes an interval.
func ends95(v compare.Value, decimals int) string {
	if !v.Sure() {
		return ""
	}
	iv := v.CI95.Value
	return fmt.Sprintf("%s[%.*f%sto%s%.*f]", nbsp, decimals, iv.Low, nbsp, nbsp, decimals, iv.High)
}

// ratioOf writes a ratio with its interval.
func ratioOf(v compare.Value) string { return fmt.Sprintf("%.3f", v.Value.Value) + ends95(v, 3) }

// ratioRows are the ratios.
func ratioRows(p *page, r *compare.Report) {
	m := &r.Matched
	text := fmt.Sprintf("%s of batch, context and prompt work: %s of A, %s of B", plural(m.Bins, "bin"), seconds(m.SecondsA), seconds(m.SecondsB))
	if m.Bins == 0 {
		text = m.Standard
	}
	if m.RequestsA+m.RequestsB > 0 {
		text += fmt.Sprintf("; %s and %s requests", count(float64(m.RequestsA)), count(float64(m.RequestsB)))
	}
	p.row("matched", must, text)
	switch b := &r.Bytes; {
	case b.Measured.OK() && b.Modelled.OK():
		p.row("DRAM bytes", must, ratioOf(b.Measured)+" of A's a step; the model has "+fmt.Sprintf("%.3f", b.Modelled.Value.Value))
	case b.Measured.OK():
		p.row("DRAM bytes", must, ratioOf(b.Measured)+" of A's a step; the model is silent: "+b.Modelled.Value.Why)
	case b.Modelled.OK():
		p.row("DRAM bytes", must, "not measured; the model has "+fmt.Sprintf("%.3f", b.Modelled.Value.Value)+" of A's a step")
	}
	p.row("TPOT", must, fmt.Sprintf("%s of A's by the %s", ratioOf(r.Time), r.Boundary))
	if !r.Time.Sure() {
		p.row("", wanted, "no interval: "+r.Time.CI95.Why)
	}
	if !r.Expected.OK() || !r.Memory.OK() {
		return
	}
	text = fmt.Sprintf("%s of A's TPOT, of which %s%s is at memory", ratioOf(r.Expected), percent(r.Memory.Value.Value), percents(r.Memory))
	if b := r.Bandwidth; b.OK() && math.Abs(b.Value-1) > leastPart {
		text += fmt.Sprintf("; B has %.2f of A's bandwidth", b.Value)
	}
	p.row("expected", must, text)
	gap := fmt.Sprintf("%+.3f", r.Gap.Value.Value) + ends95(r.Gap, 3) + " of A's TPOT, seen less expected"
	if r.Came.OK() {
		gap += "; " + percent(r.Came.Value.Value) + percents(r.Came) + " of the expected saving came"
	}
	p.row("gap", must, gap)
}

// percents writes the interval of a part.
func percents(v compare.Value) string {
	if !v.Sure() {
		return ""
	}
	iv := v.CI95.Value
	return fmt.Sprintf("%s[%.0f%sto%s%.0f]", nbsp, 100*iv.Low, nbsp, nbsp, 100*iv.High)
}

// millis writes a change in milliseconds with its interval.
func millis(v compare.Value) string {
	s := fmt.Sprintf("%+.2f", 1e3*v.Value.Value)
	if v.Sure() {
		s += fmt.Sprintf("%s[%+.2f%sto%s%+.2f]", nbsp, 1e3*v.CI95.Value.Low, nbsp, nbsp, 1e3*v.CI95.Value.High)
	}
	return s + nbsp + "ms"
}

// changeRows say where the change lies.
func changeRows(p *page, r *compare.Report) {
	parts := []string{}
	for _, c := range r.Parts {
		if c.A.OK() && c.B.OK() && max(c.A.Value.Value, c.B.Value.Value) >= leastPart*r.TPOTA.Value.Value {
			parts = append(parts, fmt.Sprintf("%s%s%.2f%sto%s%.2f", c.Name, nbsp, 1e3*c.A.Value.Value, nbsp, nbsp, 1e3*c.B.Value.Value))
		}
	}
	if len(parts) > 0 {
		p.row("ms a token", wanted, strings.Join(parts, ", "))
	}
	splitRows(p, &r.Split, &r.A, &r.B)
	q := &r.Requests
	if q.P50Ratio.OK() && q.Shift.OK() && q.Delta.OK() {
		p.row("requests", wanted, fmt.Sprintf("median TPOT %s of A's; shift %s; Cliff's delta %+.2f, over %s", ratioOf(q.P50Ratio), millis(q.Shift),
			q.Delta.Value, q.Clusters))
	}
}

// splitRows say what of the whole change, unmatched, is direct and what came through the batch.
func splitRows(p *page, s *compare.Split, a, b *compare.Arm) {
	if !s.Total.OK() || !a.TPOT.OK() || !b.TPOT.OK() {
		return
	}
	parts := []string{fmt.Sprintf("mean TPOT %s to %s: %s direct", latency(a.TPOT.Value), latency(b.TPOT.Value), millis(s.Direct))}
	for _, c := range []struct {
		v    compare.Value
		text string
	}{{s.Amplified, "amplified by the batch, which follows"}, {s.Load, "by another load"}, {s.Work, "by other lengths"}} {
		if v := c.v.Value; v.OK() && math.Abs(v.Value) >= 0.01*a.TPOT.Value {
			parts = append(parts, millis(c.v)+" "+c.text)
		}
	}
	rank := useful
	if s.Loop == "fixed_rate" || s.Loop == "load_changed" {
		rank = wanted
	}
	p.row("unmatched", rank, strings.Join(parts, ", "))
	if p.o.Verbose {
		p.row("load", useful, strings.ReplaceAll(s.Loop, "_", " "))
	}
}

// binRows are the table of bins.
func binRows(p *page, r *compare.Report) {
	if len(r.Matched.Table) == 0 {
		return
	}
	p.gap()
	p.put("batch", must, p.style(binColumns(binHeads()), dim))
	for i := range r.Matched.Table {
		b := &r.Matched.Table[i]
		p.put(fmt.Sprintf("%.1f", b.Batch), must, binColumns(binTexts(b)))
	}
	p.row("", must, "prompt: tokens a step; TPOT in ms; ratio and bytes: B over A")
}

// binWidth of a column lets eight of them and the batch fit 80 columns.
const binWidth = 8

// binHeads name the columns beside the batch.
func binHeads() []string {
	return []string{"context", "prompt", "s of A", "s of B", "TPOT A", "TPOT B", "ratio", "bytes"}
}

// binTexts are the columns of one bin.
func binTexts(b *compare.Bin) []string {
	return []string{
		count(b.Context), fmt.Sprintf("%.1f", b.Prompt), fmt.Sprintf("%.0f", b.SecondsA), fmt.Sprintf("%.0f", b.SecondsB),
		fmt.Sprintf("%.2f", 1e3*b.TPOTA), fmt.Sprintf("%.2f", 1e3*b.TPOTB), fmt.Sprintf("%.3f", b.TimeRatio), fraction(b.Bytes),
	}
}

func binColumns(texts []string) string {
	var b strings.Builder
	for _, t := range texts {
		b.WriteString(left(t, binWidth))
	}
	return b.String()
}

func fraction(m timeline.Measure) string {
	if !m.OK() {
		return "-"
	}
	return fmt.Sprintf("%.3f", m.Value)
}
