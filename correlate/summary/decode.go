package summary

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// overlayPart of the decoding time is what a circumstance must hold to be named in a report.
const overlayPart = 0.10

// decode returns what bounded decode, in a report whose span starts at start.
func (cs *cells) decode(coverage timeline.Measure, start timeline.Instant, eta verdict.Eta) Decode {
	d := &cs.d
	if d.seconds <= 0 {
		return noDecode("nothing decoded")
	}
	var timed []verdict.Timed
	for _, name := range cs.names() {
		timed = append(timed, cs.byTarget[name].timed...)
	}
	unseen := ""
	if coverage.OK() || coverage.Why != noProbe {
		unseen = verdict.Unseen(coverage)
	}
	for i := range timed { // what a cell knows of the traffic gives way to what the report does
		timed[i].Verdict = timed[i].Verdict.Seen(unseen)
	}
	v := verdict.Run(timed)
	out := Decode{
		Bound: v.Label, Reason: v.Reason, Confidence: v.Confidence, HeldDown: heldDown(&v, timed, start),
		Mixture: d.mixture(), Overlays: d.overlays(), Beside: d.beside(),
		Windows: d.windows, DecodeS: d.seconds, CoveredS: d.covered,
		ResolutionS: timeline.Absent("no counter window lies in the decode"),
		DRAM:        d.counter(timeline.DRAMUtil), SM: d.counter(timeline.SMUtil), Tensor: d.counter(timeline.TensorUtil),
		ThrottledShare: (&ratio{d.throttled, d.gpuS}).measure("throttle reasons are not read"),
	}
	if d.gpuWindows > 0 {
		out.ResolutionS = timeline.Known(d.gpuCovered / float64(d.gpuWindows))
	}
	if d.placed > 0 {
		out.Shares.Value = d.shares.Scale(1 / d.placed)
		out.Roof.Value = timeline.Interval{Low: d.roof.Low / d.placed, High: d.roof.High / d.placed}
	} else {
		out.Shares.Why, out.Roof.Why = v.Reason, v.Reason
	}
	if sheet, ok := verdict.AgainstSheet(timed); ok && len(cs.byTarget) == 1 {
		out.AgainstSheet = &sheet
	}
	out.OverTime = cs.overTime(start)
	if v.Reason == verdict.ReasonChanging && len(out.OverTime) > 0 {
		out.Reason += ": it changes over time, and --since and --until ask about a part"
	}
	if v.Label == timeline.Communication {
		out.Rank = v.Rank
	}
	if v.OK() {
		out.Refute = refute(&out, eta, timed, d.byLabel[timeline.Mixed] >= verdict.Dominant*d.seconds)
	}
	d.bytes(&out, coverage)
	return out
}

// noDecode is the verdict on nothing.
func noDecode(why string) Decode {
	a := timeline.Absent(why)
	return Decode{
		Shares: Maybe[timeline.Shares]{Why: why}, Roof: Maybe[timeline.Interval]{Why: why},
		Bound: timeline.Undetermined, Reason: why, Mixture: []correlate.Part{},
		ResolutionS: a, DRAM: a, SM: a, Tensor: a, MBU: a, ThrottledShare: a,
		ClockAtMost:  a,
		BytesPerStep: Bytes{a, a}, BytesPerToken: Bytes{a, a}, Rho: a, RhoBand: Maybe[timeline.Interval]{Why: why},
	}
}

// mixture returns the labels by their part of the decoding time, the largest first.
func (d *decodeSums) mixture() []correlate.Part {
	out := []correlate.Part{}
	for _, l := range timeline.Labels() {
		if s := d.byLabel[l]; s > 0 {
			out = append(out, correlate.Part{Label: l, Share: s / d.seconds})
		}
	}
	slices.SortStableFunc(out, func(a, b correlate.Part) int { return cmp.Compare(b.Share, a.Share) })
	return out
}

// overlays returns the circumstances that held for more than a blip.
func (d *decodeSums) overlays() []timeline.Overlay {
	var out []timeline.Overlay
	for _, p := range d.beside() {
		if p.Share >= overlayPart {
			out = append(out, p.Overlay)
		}
	}
	return out
}

// beside returns all circumstances with their part of the decoding time.
func (d *decodeSums) beside() []OverlayPart {
	var out []OverlayPart
	for _, o := range []timeline.Overlay{
		timeline.Throttled, timeline.PrefillInterference, timeline.Preempted, timeline.NoisyNeighbour, timeline.CommOrStraggler,
	} {
		if s := d.byOverlay[o]; s > 0 {
			out = append(out, OverlayPart{o, s / d.seconds})
		}
	}
	return out
}

func (d *decodeSums) counter(k timeline.Counter) timeline.Measure {
	if v, ok := d.counters[k].Value(); ok {
		return timeline.Known(v)
	}
	return timeline.Absent(verdict.ReasonNoCounters)
}

// bytes fills in DRAM traffic per step and token. What rests on measured traffic and on token counts is withheld where
// the probe saw less than 95 % of the traffic, or where nobody knows how much it saw.
func (d *decodeSums) bytes(out *Decode, coverage timeline.Measure) {
	out.BytesPerStep.Modelled = d.modelStep.measure("the byte model lacks model, number format, batch or context")
	out.BytesPerToken.Modelled = d.modelToken.measure("the byte model lacks model, number format, batch or context")
	if why := withheld(coverage); why != "" {
		a := timeline.Absent(why)
		out.BytesPerStep.Measured, out.BytesPerToken.Measured, out.MBU = a, a, a
		return
	}
	out.BytesPerStep.Measured = d.perStep.measure("DRAM traffic or steps are not known")
	out.BytesPerToken.Measured = d.perToken.measure("DRAM traffic or output tokens are not known")
	out.MBU = d.useful.measure("the byte model or DRAM traffic is not known")
	if u := out.DRAM; out.MBU.OK() && u.OK() {
		out.MBU.Value *= u.Value
	} else if out.MBU.OK() {
		out.MBU = u
	}
}

// withheld says why measured bytes per token are withheld, or nothing.
func withheld(coverage timeline.Measure) string {
	switch {
	case coverage.OK() && coverage.Value < fullCoverage:
		return fmt.Sprintf("traffic coverage is %s, below %.2f", verdict.Below(coverage.Value, fullCoverage, 2), fullCoverage)
	case !coverage.OK() && coverage.Why != noProbe:
		return "traffic coverage is unknown: " + coverage.Why
	}
	return ""
}

const (
	maxStretches  = 8    // of a target, in a report
	keptStretches = 256  // while cells come in
	shortStretch  = 0.05 // of the decoding time: too short to stand alone
	changingPart  = 0.10 // of the decoding time, for a label to be one of those between which decode changed
)

// stretch is neighbouring cells of a target, with the seconds of decode under each label.
type stretch struct {
	over    timeline.Span
	seconds float64
	by      [timeline.NumLabels]float64 // in the order of timeline.Labels
}

// label is what holds most of the stretch, mixed where nothing does.
func (s *stretch) label() timeline.Label {
	for i, l := range timeline.Labels() {
		if s.by[i] > 0 && s.by[i] >= verdict.Dominant*s.seconds {
			return l
		}
	}
	return timeline.Mixed
}

// join adds the stretch that follows.
func (s *stretch) join(o *stretch) {
	s.over.End = o.over.End
	s.seconds += o.seconds
	for i := range s.by {
		s.by[i] += o.by[i]
	}
}

// stretches are a target's, in order of time. Neighbours differ in their labels.
type stretches []stretch

// with returns the stretches and one more cell. There is a bound to them: of many the shortest are joined early.
func (ss stretches) with(l timeline.Label, over timeline.Span) stretches {
	one := stretch{over: over, seconds: over.Duration().Seconds()}
	one.by[slices.Index(timeline.Labels(), l)] = one.seconds
	if n := len(ss); n > 0 && ss[n-1].label() == l {
		ss[n-1].join(&one)
		return ss
	}
	if ss = append(ss, one); len(ss) > keptStretches {
		ss = ss.shorten(keptStretches/2, 0)
	}
	return ss
}

// shorten joins neighbours until at most so many are left and each holds at least so many seconds. The two that make
// the shortest stretch go first, so that what flickers becomes one and what lasts stays. A short one between two that
// last goes to the longer, which it blurs less.
func (ss stretches) shorten(most int, least float64) stretches {
	for len(ss) > 1 {
		best, shortest := -1, math.Inf(1)
		for i := range len(ss) - 1 {
			a, b := ss[i].seconds, ss[i+1].seconds
			if (len(ss) > most || min(a, b) < least) && a+b < shortest {
				best, shortest = i, a+b
			}
		}
		if best < 0 {
			return ss
		}
		best = ss.longer(best, least)
		ss[best].join(&ss[best+1])
		ss = slices.Delete(ss, best+1, best+2)
		ss = ss.unite()
	}
	return ss
}

// longer returns which neighbours to join instead of i and the next, where one of them is short, and between two that
// last.
func (ss stretches) longer(i int, least float64) int {
	a, b := ss[i].seconds, ss[i+1].seconds
	switch {
	case a < least && b >= least && i > 0 && ss[i-1].seconds > b:
		return i - 1
	case b < least && a >= least && i+2 < len(ss) && ss[i+2].seconds > a:
		return i + 1
	}
	return i
}

// unite joins neighbours that have the same label.
func (ss stretches) unite() stretches {
	for i := 1; i < len(ss); {
		if ss[i].label() != ss[i-1].label() {
			i++
			continue
		}
		ss[i-1].join(&ss[i])
		ss = slices.Delete(ss, i, i+1)
		i = max(1, i-1) // the whole may be of another label than its parts
	}
	return ss
}

// overTime returns the stretches of each target in which more than one label held a part of the time worth telling.
func (cs *cells) overTime(start timeline.Instant) []Stretch {
	var out []Stretch
	for _, name := range cs.names() {
		var all float64
		var by [timeline.NumLabels]float64
		for i := range cs.byTarget[name].stretches {
			s := &cs.byTarget[name].stretches[i]
			all += s.seconds
			for k := range by {
				by[k] += s.by[k]
			}
		}
		told := 0
		for _, sec := range by {
			if sec >= changingPart*all && sec > 0 {
				told++
			}
		}
		ss := slices.Clone(cs.byTarget[name].stretches).shorten(maxStretches, shortStretch*all)
		if told < 2 || len(ss) < 2 {
			continue
		}
		for i := range ss {
			t := Stretch{
				Label: ss[i].label(), StartS: ss[i].over.Start.Sub(start).Seconds(), EndS: ss[i].over.End.Sub(start).Seconds(),
				Seconds: ss[i].seconds, Share: ss[i].seconds / all,
			}
			if len(cs.byTarget) > 1 {
				t.Target = name
			}
			out = append(out, t)
		}
	}
	return out
}

// slowRank names the GPU that the others wait for where that bounded decode, and nothing elsewhere.
func slowRank(r *Report) string {
	if r.Decode.Bound != timeline.Communication {
		return ""
	}
	if i := slices.IndexFunc(r.GPUs, func(g GPU) bool { return g.UUID == r.Decode.Rank }); i >= 0 {
		return fmt.Sprintf("GPU %d", r.GPUs[i].Index)
	}
	return "the slowest GPU"
}

const severalTargets = "several targets: ask for one with --target"

// outlook puts what steps took and should have into the report, with what would help.
func (b *Builder) outlook(r *Report, p *pool) {
	d := &r.Decode
	d.RhoBand.Why = "the byte model is silent"
	d.Rho = timeline.Absent(d.RhoBand.Why)
	r.Help = []outlook.Help{}
	switch {
	case len(b.tallies) == 0:
		r.Step, r.StepTimes = outlook.Absent("nothing decoded"), outlook.NoTestimony("nothing decoded")
		return
	case len(b.tallies) > 1:
		r.Step, r.StepTimes = outlook.Absent(severalTargets), outlook.NoTestimony(severalTargets)
		d.RhoBand.Why = r.Step.MeasuredS.Why
		d.Rho = timeline.Absent(d.RhoBand.Why)
		return
	}
	for _, t := range b.tallies {
		r.Step, r.StepTimes = t.Step(), t.Testimony(d.Bound)
		_, split := b.cells.d.counters[timeline.GraphicsUtil].Value()
		if d.Shares.OK() {
			r.Help = append(r.Help, t.Help(&r.Step, d.Shares.Value, split)...)
		}
		if len(r.GPUs) > 1 {
			r.Help = outlook.AmongRanks(r.Help, slowRank(r))
		}
		if why := t.Why(); why != "" {
			d.RhoBand.Why, d.Rho = why, timeline.Absent(why)
			if !d.BytesPerStep.Modelled.OK() && !d.BytesPerToken.Modelled.OK() {
				d.BytesPerStep.Modelled, d.BytesPerToken.Modelled = d.Rho, d.Rho
			}
		}
		f, ok := t.Traffic(p.cached)
		if !ok {
			continue
		}
		d.RhoBand = Maybe[timeline.Interval]{Value: f.Band}
		d.RhoReasons, d.Rho = f.Reasons, timeline.Known(f.Rho)
		if why := withheld(r.TrafficCoverage); why != "" {
			d.Rho = timeline.Absent(why)
		}
	}
}
