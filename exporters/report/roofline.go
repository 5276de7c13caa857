package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/roofline"
)

// Roofline writes the answer of the byte model as a page for a terminal.
func Roofline(w io.Writer, a *roofline.Answer, o Options) error {
	p := newPage(o)
	mark := ""
	if a.Simulated {
		mark = "SIMULATED"
	}
	p.headline(mark, rooflineHeadline(a))
	for _, s := range a.Warning {
		p.warn(must, s)
	}
	p.gap()
	rooflineInputs(p, a)
	p.gap()
	rooflineStep(p, a)
	rooflineLimits(p, a)
	p.gap()
	rooflineWhatIf(p, a)
	for _, s := range a.Notes {
		p.warn(wanted, s)
	}
	p.gap()
	for i, s := range a.Assumed {
		p.row(onlyFirst(i, "assumed"), extra, s)
	}
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("write roofline: %w", err)
	}
	return nil
}

// RooflineJSON writes the answer in its JSON form, indented.
func RooflineJSON(w io.Writer, a *roofline.Answer) error {
	return indented(w, a, "roofline")
}

// onlyFirst is the label of the first of several rows.
func onlyFirst(i int, label string) string {
	if i == 0 {
		return label
	}
	return ""
}

// group names the GPUs.
func group(a *roofline.Answer) string {
	name := strings.TrimPrefix(a.GPU, "NVIDIA ")
	if a.TP > 1 {
		return fmt.Sprintf("%d"+nbsp+"x"+nbsp+"%s", a.TP, name)
	}
	return name
}

// limits say what limits a step.
var limits = map[string]string{
	"memory": "memory bandwidth limits the step", "compute": "arithmetic limits the step", "communication": "collectives limit the step",
	"mixed": "no single roof limits the step",
}

func rooflineHeadline(a *roofline.Answer) string {
	what := fmt.Sprintf("%s in %s on %s", a.Model, a.DType, group(a))
	at := fmt.Sprintf("at batch %s and context %s", count(a.Batch), count(a.Context))
	if !a.Memory.Fits {
		return fmt.Sprintf("%s does not fit %s; if it did: %s a token expected, %s at the least.", what, at, latency(a.ExpectedS), latency(a.FloorS))
	}
	return fmt.Sprintf("%s: %s a token expected, %s at the least, %s; %s.", what, latency(a.ExpectedS), latency(a.FloorS), at, limits[a.Limit])
}

// inputNames are the inputs in the order in which they are told.
var inputNames = []string{"model", "gpu", "dtype", "kv_dtype", "batch", "context", "tp", "acceptance", "lora_rank"}

func rooflineInputs(p *page, a *roofline.Answer) {
	var order []string
	from := map[string][]string{}
	for _, name := range inputNames {
		origin, ok := a.Origins[name]
		if !ok {
			continue
		}
		if !slices.Contains(order, origin) {
			order = append(order, origin)
		}
		from[origin] = append(from[origin], strings.ReplaceAll(name, "_", nbsp))
	}
	var parts []string
	for _, origin := range order {
		parts = append(parts, origin+": "+strings.Join(from[origin], ", "))
	}
	if len(parts) > 0 {
		p.row("inputs", wanted, strings.Join(parts, "; "))
	}
	pk := &a.Peaks
	bandwidth := fmt.Sprintf("%s"+nbsp+"GB/s by %s", count(pk.Bandwidth/1e9), pk.Denominator)
	if pk.Sheet > 0 && pk.Derived > 0 {
		bandwidth += fmt.Sprintf(" (%s by clock and bus)", count(pk.Derived/1e9))
	}
	p.row("peaks", must, fmt.Sprintf("%s%s, %.2f achievable (%s); %s"+nbsp+"TFLOP/s %s at %s"+nbsp+"MHz%s, %.2f achievable (%s)",
		bandwidth, markAssumed(pk.BandwidthAssumed), a.Eta.Bandwidth, a.Eta.BandwidthOrigin,
		count(pk.Rate/1e12), pk.Arithmetic, count(pk.SMClockHz/1e6), markAssumed(pk.RateAssumed), a.Eta.Tensor, a.Eta.TensorOrigin))
}

func markAssumed(assumed bool) string {
	if assumed {
		return ", assumed"
	}
	return ""
}

// segmentNames are those of a page.
var segmentNames = map[roofline.Name]string{
	roofline.Weights: "weights", roofline.Head: "head", roofline.DecodeAttention: "KV cache", roofline.PromptAttention: "prompt KV",
	roofline.Communication: "collectives", roofline.Adapters: "adapters", roofline.Draft: "draft model",
}

// narrow is the width below which tables leave out what the JSON form holds too.
const narrow = 78

// stepColumns lays out a row of the step's table.
func (p *page) stepColumns(bytes, flops, floor, expected, limit string) string {
	if p.o.Width < narrow {
		return left(bytes, 9) + left(floor, 11) + left(expected, 11) + "  " + limit
	}
	return left(bytes, 9) + left(flops, 11) + left(floor, 11) + left(expected, 11) + "   " + limit
}

func rooflineStep(p *page, a *roofline.Answer) {
	p.put("a step", must, p.style(p.stepColumns("bytes", "GFLOP", "floor", "expected", "limited by"), dim))
	all := roofline.SegmentTimes{Name: "all"}
	rows := make([]roofline.SegmentTimes, 0, len(a.Segments))
	for _, s := range a.Segments {
		all.Bytes, all.FLOPs, all.FloorS, all.ExpectedS = all.Bytes+s.Bytes, all.FLOPs+s.FLOPs, all.FloorS+s.FloorS, all.ExpectedS+s.ExpectedS
		if s.Name == roofline.Head && len(rows) > 0 && !p.o.Verbose { // one row with the other weights
			w := &rows[0]
			w.Bytes, w.FLOPs, w.FloorS, w.ExpectedS = w.Bytes+s.Bytes, w.FLOPs+s.FLOPs, w.FloorS+s.FloorS, w.ExpectedS+s.ExpectedS
			continue
		}
		rows = append(rows, s)
	}
	for _, s := range rows {
		limit := s.Limit
		if limit == "fixed" {
			limit = "latency"
		}
		p.put(segmentNames[s.Name], must, p.segmentRow(s, limit))
	}
	p.put("all", must, p.style(p.segmentRow(all, a.Limit), bold))
	bandRows(p, &a.BytesPerStep)
}

// bandRows say how far the bytes may be off, and why; of each reason by how much, if there is room.
func bandRows(p *page, b *roofline.StepBytes) {
	if b.Low >= b.Total && b.High <= b.Total {
		return
	}
	text := bytes(b.Low) + " to " + bytes(b.High)
	if !p.o.Verbose {
		why := make([]string, 0, len(b.Reasons))
		for _, r := range b.Reasons {
			why = append(why, r.What+markAssumed(r.IsAssumed))
		}
		p.row("bytes", wanted, text+": "+strings.Join(why, "; "))
		return
	}
	p.row("bytes", wanted, text)
	for _, r := range b.Reasons {
		by := make([]string, 0, 2)
		if r.TakesOff > 0 {
			by = append(by, bytes(r.TakesOff)+" less")
		}
		if r.Adds > 0 {
			by = append(by, bytes(r.Adds)+" more")
		}
		p.row("", wanted, "up to "+strings.Join(by, " or ")+": "+r.What+markAssumed(r.IsAssumed))
	}
}

func (p *page) segmentRow(s roofline.SegmentTimes, limit string) string {
	size, flops := "-", "-"
	if s.Bytes > 0 {
		size = plainSpaces(bytes(s.Bytes))
	}
	if s.FLOPs > 0 {
		flops = count(s.FLOPs / 1e9)
		if s.FLOPs < 1e10 {
			flops = fmt.Sprintf("%.2g", s.FLOPs/1e9)
		}
	}
	floor := "-"
	if s.FloorS > 0 {
		floor = duration(s.FloorS)
	}
	return p.stepColumns(size, flops, floor, duration(s.ExpectedS), limit)
}

// duration writes a time of a table, which needs no more than its column.
func duration(s float64) string { return plainSpaces(latency(s)) }

func plainSpaces(s string) string { return strings.ReplaceAll(s, nbsp, " ") }

func rooflineLimits(p *page, a *roofline.Answer) {
	rate := count(a.TokensPerSecond) + " tokens/s for the batch"
	if a.TokensPerStep > 1 {
		rate += fmt.Sprintf(", %.2f tokens a step and sequence", a.TokensPerStep)
	}
	if a.USDPerMillion != nil {
		rate += fmt.Sprintf(", $%s per 1M output tokens", money(*a.USDPerMillion))
	}
	p.row("output", must, rate)
	u := unitOf(a.Launch.Low, a.Launch.High)
	p.row("launches", wanted, fmt.Sprintf("%s to %s"+nbsp+"%s a step on top, in engines that were measured (assumed)", u.number(a.Launch.Low), u.number(a.Launch.High), u.name))
	critical := "none, the cache is read above the ridge"
	if a.CriticalContext != nil {
		critical = count(*a.CriticalContext)
	}
	p.row("roofs", wanted, fmt.Sprintf("ridge %s"+nbsp+"FLOP/byte, critical batch %s, critical context %s", count(a.Ridge), count(a.CriticalBatch), critical))
	m := &a.Memory
	p.row("memory", wanted, fmt.Sprintf("%s weights, %s cache, %s usable; room for %s", bytes(m.Weights), bytes(m.KV), bytes(m.Usable),
		plural(int(min(m.MaxBatch, 1e9)), "sequence")))
}

// money writes an amount with as many decimals as it needs.
func money(x float64) string {
	if x >= 1 {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func rooflineWhatIf(p *page, a *roofline.Answer) {
	if len(a.WhatIf) == 0 {
		return
	}
	priced := a.USDPerMillion != nil
	// The name's column is wider than the label's: names of GPUs stand in it.
	width := labelWidth
	for _, w := range a.WhatIf {
		width = max(width, len([]rune(w.What)))
	}
	line := func(name, size, floor, expected, change, rate, usd string) string {
		s := "  " + pad(name, width)
		if p.o.Width >= narrow {
			s += left(size, 9) + left(floor, 9) + " "
		}
		s += left(expected, 9) + left(change, 9) + left(rate, 9)
		if priced {
			s += left(usd, 8)
		}
		return s
	}
	p.rows++
	p.add(must, p.style(line("what if", "bytes", "floor", "expected", "TPOT", "tokens/s", "$/1M"), dim))
	for i, w := range a.WhatIf {
		usd := "-"
		if w.USDPerMillion != nil {
			usd = money(*w.USDPerMillion)
		}
		rank := must
		if i >= mustWhatIf || p.o.Width < narrow && i >= mustWhatIf/2 {
			rank = useful
		}
		change := fmt.Sprintf("%+.1f %%", 100*w.Change)
		text := line(w.What, plainSpaces(bytes(w.Bytes)), duration(w.FloorS), duration(w.ExpectedS), change, count(w.TokensPerSecond), usd)
		if !w.Fits {
			text += " no room"
		}
		p.rows++
		p.add(rank, text)
	}
}

// mustWhatIf are the first rows, which stay however short the page.
const mustWhatIf = 6
