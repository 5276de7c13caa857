package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// keptHelp is how many remedies a page shows that is not to show all.
const keptHelp = 3

// keptObjectives is how many objectives stay on a page whatever became of them; of more, those that were met may go.
const keptObjectives = 2

// stepRows say what a step took, what it should have, and what would help.
func stepRows(p *page, r *summary.Report) {
	s := &r.Step
	if !s.MeasuredS.OK() {
		p.row("step", useful, absent(s.MeasuredS.Why))
		return
	}
	p.row("step", wanted, stepText(s))
	if p.o.Verbose {
		p.row("", useful, stepOf(s, r.Decode.DecodeS))
	}
	if len(s.Assumed) > 0 && s.OverExpected.OK() {
		p.row("", useful, "assumed: "+strings.Join(s.Assumed, "; "))
	}
	helps := r.Help
	if !p.o.Verbose && len(helps) > keptHelp {
		helps = helps[:keptHelp]
	}
	for i := range helps {
		label, rank := "would help", wanted
		if i > 0 {
			label, rank = "", useful
		}
		p.row(label, rank, helpText(&helps[i]))
	}
	// Where counters decide nothing, it is the only witness.
	alone := r.Decode.Bound == timeline.Undetermined && r.StepTimes.Says != steps.NotIdentifiable
	if r.StepTimes.Says != "" && (p.o.Verbose || alone) {
		p.row("step times", useful, testimony(&r.StepTimes))
	}
}

// stepText holds the time of a step against what is expected and against the floor.
func stepText(s *outlook.Step) string {
	took := latency(s.MeasuredS.Value)
	if !s.OverExpected.OK() {
		return took + "; what to expect is " + absent(s.OverExpected.Why)
	}
	low, high := s.ExpectedS.Value, s.InChunksS.Value
	over := fmt.Sprintf("%.2fx the expected %s", s.OverExpected.Value, latency(low))
	if high > 1.01*low {
		u := unitOf(low, high)
		over = fmt.Sprintf("%.2f to %.2fx the expected %s to %s"+nbsp+"%s, as prompts were spread",
			s.OverExpected.Value*low/high, s.OverExpected.Value, u.number(low), u.number(high), u.name)
	}
	text := fmt.Sprintf("%s, %s; floor %s (%.2fx), at peak", took, over, latency(s.FloorS.Value), s.OverFloor.Value)
	if s.StepsFrom != "engine" {
		text += " (steps assumed: " + s.StepsFrom + ")"
	}
	return text
}

// testimony says what step times alone tell of memory, without any counter.
func testimony(t *outlook.Testimony) string {
	return strings.ReplaceAll(string(t.Says), "_", " ") + ", by steps over batch and context alone: " + strings.Join(t.Reasons, "; ")
}

// stepOf says which step the times are of, in a report on so many seconds of decode.
func stepOf(s *outlook.Step, decode float64) string {
	text := fmt.Sprintf("mean of %s steps over %s of %s of decode, %s tokens decoded in each", count(s.Steps), seconds(s.DecodeS), seconds(decode), short(s.Batch))
	if !s.OverExpected.OK() {
		return text
	}
	text += fmt.Sprintf(" at %s of context, beside %s of prompts; %s in %s, KV cache %s, on %s",
		count(s.Context), short(s.Prompt), s.Model, s.DType, s.KVDType, strings.TrimPrefix(s.GPU, "NVIDIA "))
	if s.TP > 1 {
		text += fmt.Sprintf(" x %d", s.TP)
	}
	return text + fmt.Sprintf(", %s of peak bandwidth achievable (%s)", percent(s.Bandwidth), s.Origin)
}

// short writes a mean count.
func short(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1f", x)
	}
	return count(x)
}

// helpText says what would help, and by how much: at most, where a share of the time is all that is known.
func helpText(h *outlook.Help) string {
	u := unitOf(h.StepS, h.StepS)
	saved := strconv.FormatFloat(h.SavesS*u.per, 'f', max(u.decimals, decimalsOf(h.SavesS*u.per)), 64)
	most := ""
	if h.AtMost {
		most = "at most "
	}
	text := fmt.Sprintf("%s: -%s of %s"+nbsp+"%s a step, %s-%s (%s", h.Name, saved, u.number(h.StepS), u.name, most, percent(h.Part), h.Basis)
	if h.Capped {
		text += ", held to the " + h.ActsOn + " share of " + percent(h.Share)
	}
	return text + ")"
}

// banded says whether measured over modelled bytes are a finding.
func banded(d *summary.Decode) string {
	if d.Finding() {
		return "outside its band"
	}
	return "inside its band"
}

// bandOf says where measured over modelled bytes may lie, and why it is as wide as it is.
func bandOf(d *summary.Decode) string {
	if !d.Rho.OK() || !d.RhoBand.OK() {
		return ""
	}
	b := d.RhoBand.Value
	text := fmt.Sprintf("measured over modelled %.2f, no finding from %.2f to %.2f", d.Rho.Value, b.Low, b.High)
	if len(d.RhoReasons) > 0 {
		text += ": " + strings.Join(d.RhoReasons, "; ")
	}
	return text
}

// objectiveRows say what became of what was asked for.
func objectiveRows(p *page, r *summary.Report) {
	for i := range r.SLO {
		rank := must
		if r.SLO[i].Outcome == slo.Met && len(r.SLO) > keptObjectives || i >= 2*keptObjectives {
			rank = wanted
		}
		p.row("SLO", rank, objective(&r.SLO[i]))
	}
	if r.Goodput != nil {
		p.row("goodput", must, goodput(r.Goodput, p.o.Verbose))
	}
}

// objective writes an objective, its outcome first.
func objective(s *slo.Result) string {
	text := s.Objective + " " + string(s.Outcome) + ": "
	if s.N == 0 {
		return text + absent(s.Why)
	}
	if s.Value.OK() {
		text += "it is " + latency(s.Value.Value) + "; "
	}
	if s.Outcome == slo.Undecided {
		return text + s.Why
	}
	text += fmt.Sprintf("%s of %s below", percent(s.Kept.Value), count(float64(s.N)))
	if iv := s.KeptCI95; iv != nil {
		text += fmt.Sprintf(" (95"+nbsp+"%%: %.1f to %.1f"+nbsp+"%%)", 100*iv.Low, 100*iv.High)
	}
	if s.Why != "" {
		text += ", " + s.Why
	}
	return text
}

// goodput writes how many requests were good, and if all is asked for, of what became of the others.
func goodput(g *slo.Goodput, verbose bool) string {
	text := strings.Join(g.Bounds, ", ") + ": "
	if !g.Attained.OK() {
		return text + absent(g.Attained.Why)
	}
	text += fmt.Sprintf("%s of %s", percent(g.Attained.Value), plural(g.Requests, "request"))
	if iv := g.CI95; iv != nil {
		text += fmt.Sprintf(" (95"+nbsp+"%%: %.1f to %.1f"+nbsp+"%%)", 100*iv.Low, 100*iv.High)
	}
	if g.GoodRequestsPerS.OK() && g.RequestsPerS.OK() {
		text += fmt.Sprintf("; %s of %s requests a second", figure(g.GoodRequestsPerS.Value), figure(g.RequestsPerS.Value))
	}
	if g.GoodTokensPerS.OK() && g.TokensPerS.OK() {
		text += fmt.Sprintf(", %s of %s tokens a second", count(g.GoodTokensPerS.Value), count(g.TokensPerS.Value))
	}
	if !verbose {
		return text
	}
	if g.Failed > 0 {
		text += fmt.Sprintf("; %s of them failed", count(float64(g.Failed)))
	}
	if n := g.Unknown + g.Given; n > 0 {
		text += fmt.Sprintf("; %s not judged, given up or without such a latency", count(float64(n)))
	}
	return text
}

// figure writes a number with about three digits.
func figure(x float64) string {
	if x >= 1000 {
		return count(x)
	}
	return fmt.Sprintf("%.3g", x)
}
