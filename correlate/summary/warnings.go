package summary

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// pathShare of the probe's TPOT that the engine does not account for is a finding of its own.
const pathShare = 0.1

// warnings lists what a reader must know before trusting the figures, the gravest first.
func (b *Builder) warnings(r *Report, p *pool, tooMany bool) []string {
	w := []string{}
	say := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if r.Simulated {
		say("simulated: these are figures of a model, not of a GPU")
	}
	if c := &r.Requests; 2*c.EndUnknown >= c.Total && c.EndUnknown > 0 {
		say("the ends of %d of %d requests are not recorded: these are in no percentile", c.EndUnknown, c.Total)
	}
	for _, f := range r.Faults {
		say("%s", f)
	}
	if r.Empty != "" {
		b.eventWarnings(say)
		return w
	}
	b.coverageWarnings(r, p, tooMany, say)
	b.decodeWarnings(r, say)
	b.modelWarnings(r, say)
	b.deviceWarnings(r, say)
	if r.StepTimes.Against != "" {
		say("%s", r.StepTimes.Against)
	}
	if text := r.StepTimes.Conflict(); text != "" {
		say("%s", text)
	}
	if t, e := r.TPOT, r.EngineTPOT; t.OK() && e.OK() && t.Mean.Value > (1+pathShare)*e.Value {
		say("clients see %.1f ms a token, the engine accounts for %.1f ms: the rest is on the way", 1e3*t.Mean.Value, 1e3*e.Value)
	}
	if r.ITL.OK() && r.ITL.Flag != "" || r.ICL.OK() && r.ICL.Flag != "" {
		say("gaps are blurred: %.0f %% of the token events shared a read", 100*p.coalescedShare())
	}
	for _, f := range doubts() {
		if n := p.flags[bits.TrailingZeros16(uint16(f.flag))]; n > 0 {
			say("%d of %d requests: %s", n, p.usable(), f.text)
		}
	}
	b.eventWarnings(say)
	return w
}

// coverageWarnings are about what of the traffic the probe saw.
func (b *Builder) coverageWarnings(r *Report, p *pool, tooMany bool, say func(string, ...any)) {
	switch c := r.TrafficCoverage; {
	case c.OK() && c.Value < fullCoverage:
		say("the probe saw %s %% of the engine's output tokens: measured bytes per token are withheld", SeenPercent(c.Value))
	case c.OK() && tooMany:
		say("the probe counted %.0f %% of the engine's output tokens: counts or targets do not match", 100*c.Value)
	case !c.OK() && c.Why != noProbe && (p.counts.Total > 0 || b.cells.count > 0):
		say("traffic coverage is unknown: %s", c.Why)
	}
}

// worthSaying is the least share of time that is a warning.
const worthSaying = 0.005

// decodeWarnings are about the verdict and its counters.
func (b *Builder) decodeWarnings(r *Report, say func(string, ...any)) {
	d := &b.cells.d
	if d.seconds > 0 && d.covered < 0.9*d.seconds {
		say("trusted counter windows cover %.0f %% of the decoding time", 100*d.covered/d.seconds)
	}
	if left := 1 - d.determined/d.seconds; d.determined > 0 && left >= worthSaying {
		say("no verdict for %.0f %% of the decoding time", 100*left)
	}
	if _, ok := d.counters[timeline.GraphicsUtil].Value(); !ok && d.covered > 0 {
		say("graphics activity is not read: host and launch time are not told apart")
	}
	if d.stepsGuessed {
		say("the engine counts no steps: they are taken as output tokens over batch, one token a request and step")
	}
	switch windows := slices.ContainsFunc(b.gpus, func(g timeline.GPU) bool { return g.GPM }); {
	case r.Decode.Reason == verdict.ReasonNoMapping:
		say("nothing says which GPUs serve the target: name them in its gpus: by UUID")
	case r.Decode.Reason != verdict.ReasonLegacy:
	case windows:
		say("activity windows are not read, though the GPU has them (tpotscope doctor says why): duty cycles say nothing of bandwidth")
	default:
		say("only duty cycles are read on this GPU: they say nothing of bandwidth")
	}
	if len(r.Targets) > 1 {
		say("%d targets are put together: their TPOT need not be alike", len(r.Targets))
	}
}

// modelWarnings are about the byte model, and about whether the span is of one state.
func (b *Builder) modelWarnings(r *Report, say func(string, ...any)) {
	d := &r.Decode
	if d.Finding() {
		say("measured DRAM bytes are %.2f of modelled ones, outside of %.2f to %.2f: model, number format or cache are not what they are taken for",
			d.Rho.Value, d.RhoBand.Value.Low, d.RhoBand.Value.High)
	}
	if o := r.Step.OverFloor; o.OK() && o.Value < 1-floorSlack {
		say("steps took %.2f of the least that the model allows: model, number format or counts are not what they are taken for", o.Value)
	}
	switch s := &r.Steady; {
	case s.SettledS.Why == neverSteady:
		say("%s, by MSER-5: percentiles are over several states", neverSteady)
	case s.SettledS.OK() && s.SettledS.Value > 0 && s.Differs.OK():
		say("TPOT settles after %s, by MSER-5, and is %.2f times as high before: --since asks about the rest", length(seconds(s.SettledS.Value)), s.Differs.Value)
	}
}

// clockAtMost returns what part of TPOT the slowest clock of the GPUs may have added, against that which the data sheet
// assumes: whatever waits for DRAM or the host does not wait for clocks.
func (b *Builder) clockAtMost(r *Report) timeline.Measure {
	if !r.Decode.Shares.OK() {
		return timeline.Absent(r.Decode.Shares.Why)
	}
	most, known := 0.0, false
	for i := range r.GPUs {
		g := &r.GPUs[i]
		at := slices.IndexFunc(b.gpus, func(d timeline.GPU) bool { return d.UUID == g.UUID })
		if at < 0 || !g.SMClockHz.OK() {
			continue
		}
		hw, err := hardware.IdentifyGPU(b.gpus[at])
		if err != nil || hw.RateClockHz <= 0 {
			continue
		}
		known = true
		if g.SMClockHz.Value < verdict.SlowClock*hw.RateClockHz {
			most = max(most, verdict.EffectOfClock(r.Decode.Shares.Value, math.Inf(1), hw.RateClockHz, g.SMClockHz.Value).Most)
		}
	}
	if !known {
		return timeline.Absent("clocks, or those that the data sheet assumes, are not known")
	}
	return timeline.Known(most)
}

// deviceWarnings says what of the GPUs is not as it should be, by their kind and not by their past.
func (b *Builder) deviceWarnings(r *Report, say func(string, ...any)) {
	if s := r.Decode.AgainstSheet; s != nil && s.Short {
		say("DRAM reached %.0f %% of what is achievable of its kind in %d memory-bound cells, where healthy ones reach 90 %%: doctor looks at memory clock and remapped rows",
			100*s.Reached, s.Cells)
	}
	if c := r.Decode.ClockAtMost; c.OK() && c.Value >= 0.005 {
		say("clocks are below those that the data sheet assumes: at most %s %% of TPOT is theirs", verdict.Below(100*c.Value/(1+c.Value), 100, 0))
	}
}

// floorSlack is how far under the floor the time of steps may be, for counts of steps are read once a second.
const floorSlack = 0.03

// doubt is one of a request's flags in words.
type doubt struct {
	flag timeline.Flags
	text string
}

// doubts lists the flags that bear on latencies. Coalesced reads have a warning of their own.
func doubts() []doubt {
	return []doubt{
		{timeline.FlagNoCount, "no token count was told, so that they have no TPOT (stream_options.include_usage asks for it, or proxy.inject_usage)"},
		{timeline.FlagHiddenTokens, "hidden tokens were counted, and how many is not told"},
		{timeline.FlagFirstAssumed, "the first event is assumed to have borne one token"},
		{timeline.FlagCountMismatch, "token counts by event do not add up to the engine's total"},
		{timeline.FlagBacklog, "tokens had piled up behind a late first event, so that TPOT is low and TTFT high"},
		{timeline.FlagEventsDropped, "token events were dropped, so that they have no gaps"},
		{timeline.FlagUnparsed, "some events were not understood"},
		{timeline.FlagCompressed, "stamps are of a compressed stream"},
		{timeline.FlagMultipleChoices, "several choices share a stream, and TPOT is over all of them"},
		{timeline.FlagUnalignedClock, "their clock could not be tied to this host's"},
	}
}

// eventWarnings are about what happened to the recording.
func (b *Builder) eventWarnings(say func(string, ...any)) {
	for _, e := range []struct {
		kind timeline.EventKind
		text string
	}{
		{timeline.EventSamplerLost, "the counter reader was lost"},
		{neverRead, timeline.NeverRead},
		{timeline.EventGPULost, "a GPU was lost"},
		{timeline.EventGap, "counters are missing over a span"},
		{timeline.EventSuspend, "the host was suspended"},
		{timeline.EventPause, "the host or the agent did not run for a while"},
		{timeline.EventClockStep, "the wall clock was set"},
		{timeline.EventEngineRestart, "the engine was restarted"},
		{timeline.EventEngineDown, "the engine was not reachable"},
		{timeline.EventDropped, "a full queue dropped readings"},
		{timeline.EventCounterSource, "windows of a GPU's activity come from dcgm-exporter, not from the driver"},
		{timeline.EventCounterMismatch, "driver and dcgm-exporter tell different means of one counter"},
	} {
		switch n := b.events[e.kind]; {
		case n == 1:
			say("once: %s", e.text)
		case n > 1:
			say("%d times: %s", n, e.text)
		}
	}
}

// heldDown returns what held a run's confidence down. Cells word their clauses with their own numbers: those that differ
// in nothing else are one, with the range of the number, and when and in what part of the cells with the run's label it
// stood.
func heldDown(v *verdict.Verdict, timed []verdict.Timed, start timeline.Instant) []string {
	var out, told []string
	for _, why := range v.Caps {
		alike := withoutFigures(why)
		if slices.Contains(told, alike) {
			continue
		}
		told = append(told, alike)
		out = append(out, clauseOf(v.Label, why, alike, timed, start))
	}
	return out
}

// clauseOf returns one clause for all that are alike.
func clauseOf(l timeline.Label, why, alike string, timed []verdict.Timed, start timeline.Instant) string {
	var all, with, low, high float64
	var over, whole timeline.Span
	lowest, highest := "", ""
	for i := range timed {
		c := &timed[i]
		if c.Verdict.Label != l {
			continue
		}
		sec := c.Over.Duration().Seconds()
		all, whole = all+sec, whole.Union(c.Over)
		at := slices.IndexFunc(c.Verdict.Caps, func(s string) bool { return withoutFigures(s) == alike })
		if at < 0 {
			continue
		}
		with, over = with+sec, over.Union(c.Over)
		from, to := figure(c.Verdict.Caps[at])
		text := c.Verdict.Caps[at][from:to]
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return why // it holds no number
		}
		if lowest == "" || x < low {
			low, lowest = x, text
		}
		if highest == "" || x > high {
			high, highest = x, text
		}
	}
	if lowest == highest {
		return why
	}
	from, to := figure(why)
	out := fmt.Sprintf("%s%s to %s%s in %.0f %% of the cells", why[:from], lowest, highest, why[to:], 100*with/all)
	if over.Duration() < whole.Duration()*9/10 {
		out += fmt.Sprintf(", between %s and %s", length(max(0, over.Start.Sub(start))), length(over.End.Sub(start)))
	}
	return out
}

const digits = "0123456789"

// figure returns where the first number of a clause stands; an empty place at its end where it holds none.
func figure(s string) (int, int) {
	from := strings.IndexAny(s, digits)
	if from < 0 {
		return len(s), len(s)
	}
	rest := strings.TrimLeft(s[from:], digits)
	if part, ok := strings.CutPrefix(rest, "."); ok && part != strings.TrimLeft(part, digits) {
		rest = strings.TrimLeft(part, digits)
	}
	return from, len(s) - len(rest)
}

// withoutFigures returns a clause with its numbers marked only.
func withoutFigures(s string) string {
	var b strings.Builder
	for {
		from, to := figure(s)
		b.WriteString(s[:from])
		if from == to {
			return b.String()
		}
		b.WriteByte('#')
		s = s[to:]
	}
}

// refute names what would prove the label wrong: an observation with a number, that can be made and can fail. A run is
// mixed because prompts share its steps, or because no label holds most of it. Eta is what is achievable, zero where it
// is not known. What the counter read is told of the time that the label speaks of.
func refute(d *Decode, eta verdict.Eta, timed []verdict.Timed, prompts bool) string {
	roof := func(what, of string, part float64, read timeline.Measure, amount func(*verdict.Verdict) float64) string {
		if part <= 0 || !read.OK() {
			return fmt.Sprintf("a minute at this TPOT reads %s below 60 %% of achievable", what)
		}
		it, where := read.Value, ""
		if mean, share := over(timed, d.Bound, amount); share < 0.95 {
			it, where = part*mean, fmt.Sprintf(" in the %.0f %% of the time so labelled", 100*share)
		}
		return fmt.Sprintf("a minute at this TPOT reads %s below %.0f %% %s (it read %.0f %%%s)", what, 60*part, of, 100*it, where)
	}
	// A remedy that brings less than half of what the share promises did not act on what held the steps.
	half := func(share float64) float64 { return 50 * share }
	switch d.Bound {
	case timeline.Memory:
		return roof("DRAM", "of peak bandwidth", eta.Bandwidth, d.DRAM, func(v *verdict.Verdict) float64 { return v.D })
	case timeline.Compute:
		return roof("tensor cores", "of cycles", eta.Tensor, d.Tensor, func(v *verdict.Verdict) float64 { return v.C })
	case timeline.Balanced:
		return "one of the two roofs reads below 60 % of achievable at this TPOT"
	case timeline.Mixed:
		if !prompts {
			return "one label holds over 60 % of a minute at this TPOT"
		}
		return "TPOT stays within 5 % of what it is over a minute without prompts"
	case timeline.Host:
		return fmt.Sprintf("kernels are resident over 85 %% of a minute, and TPOT is less than %.0f %% lower", half(d.Shares.Value.Host))
	case timeline.Launch:
		return fmt.Sprintf("with graph capture on TPOT is less than %.0f %% lower, or it doubles when the batch doubles", half(d.Shares.Value.Launch))
	case timeline.HostOrLaunch:
		return "TPOT doubles when the batch doubles"
	case timeline.Communication:
		return "TPOT stays within 5 % of what it is when the ranks' SM activity evens out"
	case timeline.Busy:
		return "DRAM or tensor cores read above 60 % of achievable at this TPOT"
	case timeline.Undetermined:
	}
	return ""
}

// over returns the mean of an amount over the cells with a label, and the part of the time that these hold.
func over(timed []verdict.Timed, l timeline.Label, amount func(*verdict.Verdict) float64) (mean, share float64) {
	var sum, all float64
	for i := range timed {
		sec := timed[i].Over.Duration().Seconds()
		all += sec
		if timed[i].Verdict.Label == l {
			mean, sum = mean+sec*amount(&timed[i].Verdict), sum+sec
		}
	}
	if sum <= 0 {
		return 0, 0
	}
	return mean / sum, sum / all
}
