package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// decodeRows are what the verdict rests on.
func decodeRows(p *page, r *summary.Report) {
	d := &r.Decode
	if d.DecodeS <= 0 {
		p.row("decode", must, absent(d.Reason))
		return
	}
	if d.Shares.OK() {
		s := shareList(d.Shares.Value) + " of " + judged(d)
		if d.Bound == timeline.Communication {
			s += "; waits for other ranks count as launch"
		}
		p.row("limited by", must, s)
	} else {
		p.row("limited by", must, absent(d.Shares.Why))
	}
	stepRows(p, r)
	if d.Bound != timeline.Undetermined {
		p.row("rests on", wanted, restsOn(r))
	}
	if s := beside(r); s != "" {
		p.row("also", wanted, s)
	}
	labelRow(p, d)
	overTimeRows(p, d)
	if len(d.HeldDown) > 0 && d.Confidence < timeline.High {
		held := d.HeldDown
		if !p.o.Verbose {
			held = held[:min(2, len(held))]
		}
		p.row("held down", wanted, strings.Join(held, "; "))
	}
	counterRows(p, r)
}

// counterRows are what the counters read while tokens were decoded, and what that makes of the model's bytes.
func counterRows(p *page, r *summary.Report) {
	d, rank := &r.Decode, must
	if len(r.SLO) > 0 {
		rank = wanted // what was asked for comes first
	}
	p.row("counters", rank, counters(d))
	if d.ResolutionS.OK() {
		p.row("windows", useful, fmt.Sprintf("of %s, over %s of %s of decode", latency(d.ResolutionS.Value), seconds(d.CoveredS), seconds(d.DecodeS)))
	}
	if s := traffic(d); s != "" {
		p.row("DRAM bytes", wanted, s)
	}
	if s := bandOf(d); s != "" {
		p.row("", useful, s)
	}
	if d.MBU.OK() {
		p.row("MBU", useful, "the bytes of the model take "+percent(d.MBU.Value)+" of peak bandwidth")
	}
}

// restsOn says what the label rests on.
func restsOn(r *summary.Report) string {
	d := &r.Decode
	s := d.Reason
	if i := slices.IndexFunc(r.GPUs, func(g summary.GPU) bool { return g.UUID == d.Rank }); d.Rank != "" && i >= 0 {
		s += fmt.Sprintf(", GPU %d", r.GPUs[i].Index)
	}
	if d.Roof.OK() {
		s += fmt.Sprintf("; at a roof %s to %s of the time", number(100*d.Roof.Value.Low), percent(d.Roof.Value.High))
	}
	return s
}

// judged says what time the shares are of: that of decode, less what has no verdict.
func judged(d *summary.Decode) string {
	all := seconds(d.DecodeS) + " of decode"
	for _, m := range d.Mixture {
		if part := seconds(d.DecodeS * (1 - m.Share)); m.Label == timeline.Undetermined && part != seconds(d.DecodeS) {
			return part + " of " + all
		}
	}
	return all
}

// labelRow says which labels held for which part of the time.
func labelRow(p *page, d *summary.Decode) {
	if len(d.Mixture) < 2 {
		return
	}
	parts := make([]string, len(d.Mixture))
	for i, m := range d.Mixture {
		parts[i] = string(m.Label) + nbsp + percent(m.Share)
	}
	matter := useful
	if d.Bound == timeline.Mixed {
		matter = wanted // then the parts are the answer
	}
	p.row("labels", matter, strings.Join(parts, ", ")+" of decode time")
}

// overTimeRows say what bounded decode when, a row for each target.
func overTimeRows(p *page, d *summary.Decode) {
	for from := 0; from < len(d.OverTime); {
		to := from
		parts := []string{}
		for ; to < len(d.OverTime) && d.OverTime[to].Target == d.OverTime[from].Target; to++ {
			s := &d.OverTime[to]
			parts = append(parts, string(s.Label)+nbsp+stretch(s.StartS, s.EndS, d.OverTime[len(d.OverTime)-1].EndS))
		}
		text := strings.Join(parts, ", ")
		if name := d.OverTime[from].Target; name != "" {
			text = name + ": " + text
		}
		label, rank := "over time", wanted
		if d.Bound == timeline.Mixed {
			rank = must // then the times are the answer
		}
		if from > 0 {
			label, rank = "", useful
		}
		p.row(label, rank, text)
		from = to
	}
}

// beside lists the circumstances that went along, throttling with its part of the time and its reasons.
func beside(r *summary.Report) string {
	d := &r.Decode
	var out []string
	if s := d.ThrottledShare; !s.OK() {
		out = append(out, "throttling "+absent(s.Why))
	} else if s.Value >= besidePart {
		held := map[string]bool{}
		for i := range r.GPUs {
			for reason := range r.GPUs[i].ThrottledS {
				held[strings.ReplaceAll(reason, "_", " ")] = true
			}
		}
		text := "clocks held " + percent(s.Value) + " of the GPUs' decode time"
		if len(held) > 0 {
			text += " (" + strings.Join(slices.Sorted(maps.Keys(held)), ", ") + ")"
		}
		out = append(out, text)
	}
	for _, o := range d.Beside {
		if o.Share < besidePart || o.Overlay == timeline.Throttled && d.ThrottledShare.OK() && d.ThrottledShare.Value >= besidePart {
			continue
		}
		out = append(out, strings.ReplaceAll(string(o.Overlay), "_", " ")+" in "+percent(o.Share)+" of decode time")
	}
	return strings.Join(out, "; ")
}

// besidePart of the time is what a circumstance must hold to be worth a line.
const besidePart = 0.1

// shareList writes the shares, the largest first, without those that round to nothing.
func shareList(s timeline.Shares) string {
	type part struct {
		name  string
		share float64
	}
	all := []part{{"memory", s.Memory}, {"compute", s.Compute}, {"launch", s.Launch}, {"host", s.Host}, {"other", s.Other}}
	slices.SortStableFunc(all, func(a, b part) int {
		switch {
		case a.share > b.share:
			return -1
		case a.share < b.share:
			return 1
		}
		return 0
	})
	var out []string
	for _, a := range all {
		if a.share >= leastPart {
			out = append(out, a.name+nbsp+percent(a.share))
		}
	}
	return strings.Join(out, ", ")
}

func number(x float64) string { return fmt.Sprintf("%.0f", x) }

// counters writes what was read, and over how much of the time.
func counters(d *summary.Decode) string {
	if !d.DRAM.OK() && !d.SM.OK() && !d.Tensor.OK() {
		return absent(d.DRAM.Why)
	}
	parts := []string{}
	for _, c := range []struct {
		name, of string
		m        timeline.Measure
	}{{"DRAM", "of peak bandwidth", d.DRAM}, {"SMs", "busy", d.SM}, {"tensor", "of cycles", d.Tensor}} {
		if !c.m.OK() {
			parts = append(parts, c.name+" "+absent(c.m.Why))
			continue
		}
		parts = append(parts, c.name+nbsp+percent(c.m.Value)+nbsp+c.of)
	}
	return strings.Join(parts, ", ")
}

// traffic writes DRAM bytes per step and token, measured against modelled; nothing where neither is known and the
// counters say why.
func traffic(d *summary.Decode) string {
	step, token := d.BytesPerStep, d.BytesPerToken
	parts := []string{}
	if step.Measured.OK() || step.Modelled.OK() {
		band := ""
		if d.Rho.OK() && d.RhoBand.OK() {
			band = ", " + banded(d)
		}
		parts = append(parts, against(step, "a"+nbsp+"step", band))
	}
	if token.Measured.OK() || token.Modelled.OK() {
		parts = append(parts, against(token, "a"+nbsp+"token", ""))
	}
	if len(parts) == 0 && !d.DRAM.OK() {
		return ""
	}
	if why := token.Measured.Why; why != "" {
		parts = append(parts, "measured "+absent(why))
	}
	if why := token.Modelled.Why; why != "" && why != token.Measured.Why {
		parts = append(parts, "modelled "+absent(why))
	}
	return strings.Join(parts, ", ")
}

// against writes measured and modelled bytes of one thing, and what is said of the two.
func against(b summary.Bytes, of, said string) string {
	switch {
	case !b.Measured.OK():
		return bytes(b.Modelled.Value) + " " + of + " by the model"
	case !b.Modelled.OK():
		return bytes(b.Measured.Value) + " " + of
	}
	return fmt.Sprintf("%s %s (model"+nbsp+"%s%s)", bytes(b.Measured.Value), of, bytes(b.Modelled.Value), said)
}

// gpuRows list the GPUs: each in its own row where they are few or all is asked for, else their range.
func gpuRows(p *page, r *summary.Report) {
	if len(r.GPUs) == 0 {
		p.row("GPUs", wanted, "none read")
		return
	}
	if len(r.GPUs) > 2 && !p.o.Verbose {
		p.row(fmt.Sprintf("%d GPUs", len(r.GPUs)), wanted, gpuRange(r.GPUs))
		return
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		p.row(fmt.Sprintf("GPU %d", g.Index), wanted, gpuText(g, p.o.Verbose))
	}
}

func gpuText(g *summary.GPU, verbose bool) string {
	name := strings.TrimPrefix(g.Name, "NVIDIA ")
	if name == "" {
		name = "GPU"
	}
	if verbose {
		name += " (" + timeline.ShortUUID(g.UUID) + ")"
	}
	parts := []string{name}
	if g.DRAM.OK() {
		parts = append(parts, "DRAM"+nbsp+percent(g.DRAM.Value)+" of peak")
	} else {
		parts = append(parts, "DRAM "+absent(g.DRAM.Why))
	}
	if g.SMClockHz.OK() {
		parts = append(parts, number(g.SMClockHz.Value/1e6)+nbsp+"MHz")
	}
	if g.PowerW.OK() {
		parts = append(parts, number(g.PowerW.Value)+nbsp+"W")
	}
	if g.Temperature.OK() {
		parts = append(parts, number(g.Temperature.Value)+nbsp+"C")
	}
	s := strings.Join(parts, ", ")
	if !verbose {
		return s
	}
	var held []string
	for _, reason := range slices.Sorted(maps.Keys(g.ThrottledS)) {
		held = append(held, strings.ReplaceAll(reason, "_", " ")+" for "+seconds(g.ThrottledS[reason]))
	}
	if len(held) > 0 {
		s += "; held by " + strings.Join(held, ", ")
	}
	return s
}

// gpuRange writes the least and the greatest of each reading, so that an odd one out shows.
func gpuRange(gpus []summary.GPU) string {
	parts := []string{strings.TrimPrefix(gpus[0].Name, "NVIDIA ")}
	if slices.ContainsFunc(gpus, func(g summary.GPU) bool { return g.Name != gpus[0].Name }) {
		parts[0] = "of several kinds"
	}
	for _, c := range []struct {
		name, unit string
		per        float64
		of         func(g *summary.GPU) timeline.Measure
	}{
		{"DRAM", "% of peak", 0.01, func(g *summary.GPU) timeline.Measure { return g.DRAM }},
		{"SMs", "% busy", 0.01, func(g *summary.GPU) timeline.Measure { return g.SM }},
		{"clock", "MHz", 1e6, func(g *summary.GPU) timeline.Measure { return g.SMClockHz }},
		{"power", "W", 1, func(g *summary.GPU) timeline.Measure { return g.PowerW }},
		{"", "C", 1, func(g *summary.GPU) timeline.Measure { return g.Temperature }},
	} {
		low, high, n := 0.0, 0.0, 0
		for i := range gpus {
			m := c.of(&gpus[i])
			if !m.OK() {
				continue
			}
			if n == 0 {
				low, high = m.Value, m.Value
			}
			low, high, n = min(low, m.Value), max(high, m.Value), n+1
		}
		if n > 0 {
			text := number(low / c.per)
			if to := number(high / c.per); to != text {
				text += " to " + to
			}
			parts = append(parts, strings.TrimSpace(c.name+" "+text)+nbsp+c.unit)
		}
	}
	return strings.Join(parts, ", ")
}

// keptWarnings is how many warnings stay on a page that is too long.
const keptWarnings = 2

// warningRows are what a reader must know before trusting the rest, the gravest first.
func warningRows(p *page, warnings []string) {
	if len(warnings) == 0 {
		return
	}
	p.gap()
	for i, w := range warnings {
		rank := extra
		if i < keptWarnings {
			rank = must
		}
		p.warn(rank, w)
	}
}
