package verdict

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	minWindows  = 3    // fewer say nothing of a mean
	minCovered  = 0.5  // of the cell
	clockPart   = 0.25 // of a window: beyond, it is not known which window a token belongs to
	decodeOnly  = 0.02 // prompt tokens up to this part of all tokens leave a cell decode-only
	longWindow  = 0.9  // s: means over so long put prompts, decoding and pauses together
	fullTraffic = 0.95 // of the engine's output tokens: what the probe saw stands for all
)

// Judge says what bounded one cell. Its confidence is at most low; Ceiling says what a run of such cells can reach.
func Judge(in *Input) Verdict {
	if reason := gate(in); reason != "" {
		v := withheld(reason)
		v.Overlays = overlays(in, &v)
		return v
	}
	p := normalise(in)
	v := Verdict{D: p.d, C: p.c, Ceiling: timeline.High, Watched: timeline.High, Unwatched: timeline.High}
	v.Roof = roofInterval(in, p)
	v.Mixed = mixedCell(&in.Work)
	if lead, ok := leader(in.Ranks); ok && in.Parallel > 1 {
		v.Lead, v.LeadBy = lead.uuid, lead.wait
	}
	var placed point
	if v.Mixed {
		placed = placeMixed(in, p, v.Roof)
	} else {
		placed = placeDecode(p)
	}
	v.Shares = shares(p, placed)
	l := ladder(in, p, placed, &v)
	v.Label, v.Reason = l.label, l.reason
	v.cap(l.ceiling, l.why)
	capAll(in, p, &v)
	v.Confidence = min(timeline.Low, v.Ceiling)
	if !v.OK() {
		v.Confidence, v.Ceiling, v.Watched, v.Unwatched = timeline.NoConfidence, timeline.NoConfidence, timeline.NoConfidence, timeline.NoConfidence
	}
	v.Overlays = overlays(in, &v)
	return v
}

// gate returns why nothing can be said, or nothing.
func gate(in *Input) string {
	switch {
	case in.Gate != "":
		return in.Gate
	case in.Foreign && !in.AllowForeign:
		return ReasonForeign
	case in.Windows < minWindows:
		return ReasonWindows
	case in.CellS <= 0 || in.CoveredS < minCovered*in.CellS:
		return ReasonCoverage
	case in.ClockBoundS > clockPart*in.WindowS:
		return ReasonClock
	case !in.DRAM.OK() || !in.Tensor.OK():
		return ReasonNoCounters
	case in.Work.Running.OK() && in.Work.Running.Value <= 0:
		return ReasonIdle
	}
	return ""
}

// part is the cell's counters as parts of what is achievable.
type part struct {
	d, c       float64
	s, g       float64
	hasS, hasG bool
}

// normalise divides by eta, and by the part of the time in which there was anything to run. Tensor activity is a part of
// cycles, so that it needs no correction for the clock; a rate in operations per second would.
func normalise(in *Input) part {
	p := part{
		d: clip(in.DRAM.Value / in.Eta.Bandwidth), c: clip(in.Tensor.Value / in.Eta.Tensor),
		hasS: in.SM.OK(), hasG: in.Graphics.OK(),
	}
	if in.Eta.Bandwidth <= 0 {
		p.d = clip(in.DRAM.Value)
	}
	if in.Eta.Tensor <= 0 {
		p.c = clip(in.Tensor.Value)
	}
	if p.hasS {
		p.s = clip(in.SM.Value)
	}
	if p.hasG {
		p.g = clip(in.Graphics.Value)
	}
	if b := busyPart(in); b < 1 {
		p.d, p.c, p.s, p.g = clip(p.d/b), clip(p.c/b), clip(p.s/b), clip(p.g/b)
	}
	return p
}

// busyPart is the part of the cell in which there was a request to run. Fewer than one in the batch on average says that
// there was none for the rest of the time, in which a GPU without kernels waits for nobody.
func busyPart(in *Input) float64 {
	if r := in.Work.Running; r.OK() && r.Value > 0 {
		return min(1, max(r.Value, leastBusy))
	}
	return 1
}

// leastBusy bounds by how much little work is blown up.
const leastBusy = 0.1

// point is where the time at the roofs lies inside the interval, and the least of each that is sure.
type point struct {
	memory, compute float64
	low             least
	placed          bool // by the model of segments
}

// least is the least time at each roof.
type least struct{ memory, compute float64 }

// placeDecode puts the greater of the two on its roof: decode steps are short of one thing at a time.
func placeDecode(p part) point {
	if p.d >= p.c {
		return point{memory: p.d}
	}
	return point{compute: p.c}
}

// shares splits the cell's time top-down; the parts sum to one. Without the counter that tells whether any kernel was
// resident, launch time counts as host time; without the SMs' counter all that is off the roofs is other.
func shares(p part, at point) timeline.Shares {
	roof := at.memory + at.compute
	out := timeline.Shares{Memory: at.memory, Compute: at.compute}
	if !p.hasS {
		out.Other = 1 - roof
		return out
	}
	busy := max(p.s, roof) // DRAM traffic can coexist with unfilled SMs
	out.Other = busy - roof
	if !p.hasG {
		out.Host = 1 - busy
		return out
	}
	resident := max(p.g, busy)
	out.Host, out.Launch = 1-resident, resident-busy
	return out
}

// mixedCell reports whether prompt work shared the cell. Without a count of prompt tokens it may have.
func mixedCell(w *Work) bool {
	if !w.Prompt.OK() {
		return true
	}
	if w.Prompt.Value <= 0 {
		return false
	}
	return !w.Decode.OK() || w.Prompt.Value >= decodeOnly*(w.Prompt.Value+w.Decode.Value)
}

// cap lowers the ceiling to at most c and notes why.
func (v *Verdict) cap(c timeline.Confidence, why string) {
	if c >= v.Ceiling && c >= timeline.High {
		return
	}
	v.Ceiling, v.Watched, v.Unwatched = min(v.Ceiling, c), min(v.Watched, c), min(v.Unwatched, c)
	if why != "" {
		v.Caps = append(v.Caps, why)
	}
}

// lower takes the ceiling one level down, not below low, and notes why.
func (v *Verdict) lower(why string) {
	down := func(c timeline.Confidence) timeline.Confidence { return max(timeline.Low, c-1) }
	watched, unwatched := down(v.Watched), down(v.Unwatched)
	v.cap(down(v.Ceiling), why)
	v.Watched, v.Unwatched = watched, unwatched
}

// watch takes the ceiling down to medium for what of the traffic the probe did not see, and notes why, if there is a why.
func (v *Verdict) watch(why string) {
	v.Unwatched = min(v.Unwatched, timeline.Medium)
	if why != "" {
		v.Ceiling, v.Traffic = v.Unwatched, why
		v.Caps = append(v.Caps, why)
	}
}

// Unseen is the clause of a confidence that is held down because so much of the traffic was seen, and empty where that
// is enough.
func Unseen(coverage timeline.Measure) string {
	switch {
	case !coverage.OK():
		return "traffic coverage is unknown"
	case coverage.Value < fullTraffic:
		return "the probe saw " + Below(100*coverage.Value, 100*fullTraffic, 0) + " % of the traffic"
	}
	return ""
}

// Below writes a value with so many decimals, and with more where rounding would lift one that is below the limit onto
// it.
func Below(value, limit float64, decimals int) string {
	edge := strconv.FormatFloat(limit, 'f', decimals, 64)
	for ; value < limit && decimals < mostDecimals; decimals++ {
		if strconv.FormatFloat(value, 'f', decimals, 64) != edge {
			break
		}
		edge = strconv.FormatFloat(limit, 'f', decimals+1, 64)
	}
	return strconv.FormatFloat(value, 'f', decimals, 64)
}

// mostDecimals that a value is written with to tell it from a limit.
const mostDecimals = 6

// Seen returns the verdict of a cell of a run of whose traffic it is known what part the probe saw: unseen is the clause
// that holds its confidence down, or nothing.
func (v *Verdict) Seen(unseen string) Verdict {
	out := *v
	if v.Traffic == unseen || !v.OK() {
		return out
	}
	out.Caps = slices.DeleteFunc(slices.Clone(v.Caps), func(why string) bool { return v.Traffic != "" && why == v.Traffic })
	out.Ceiling, out.Traffic = v.Watched, unseen
	if unseen != "" {
		out.Ceiling, out.Caps = v.Unwatched, append(out.Caps, unseen)
	}
	out.Confidence = min(out.Confidence, out.Ceiling)
	return out
}

// capAll applies what holds for every label.
func capAll(in *Input, p part, v *Verdict) {
	if !sure(in.Eta.BandwidthOrigin) {
		v.cap(timeline.Medium, "achievable bandwidth is assumed")
	}
	if !sure(in.Eta.TensorOrigin) && (v.Label == timeline.Compute || v.Label == timeline.Balanced) {
		v.cap(timeline.Medium, "achievable tensor activity is assumed")
	}
	// With no probe there is no part of the traffic to miss: batch and tokens are the engine's own.
	unseen := Unseen(in.Coverage)
	if in.NoProbe {
		unseen = ""
	}
	v.watch(unseen)
	capWork(in, v)
	if !p.hasS && v.Label != timeline.Memory && v.Label != timeline.Compute && v.Label != timeline.Balanced { // those rest on the roofs alone
		v.cap(timeline.Medium, "SM activity is not read")
	}
	if in.WindowS >= longWindow {
		v.cap(timeline.Medium, fmt.Sprintf("counters are means over %.0f s", in.WindowS))
	}
	if in.Coalesced {
		v.lower("more than 5 % of the token events shared a read")
	}
	if v.Label == timeline.Compute && !v.Mixed && aboveCritical(in) {
		v.lower("context is above the one that lets a batch reach the compute roof")
	}
	capWaits(in, v)
	if most := max(p.d, p.c); v.Label == timeline.Busy && most >= bothRoofs*latencyLine {
		v.cap(timeline.Medium, fmt.Sprintf("kernels that run below the achievable may hold a roof longer than the %.0f %% that it reads", 100*most))
	}
	if unexplained(in, p) && v.Label != timeline.Communication {
		v.cap(timeline.Medium, "ranks may wait for each other")
	}
	if in.Foreign {
		v.cap(timeline.Low, "a foreign process shares the gpu")
	}
}

// capWork applies what the work of the cell says of the counters: bytes that do not agree with the model, or that could
// not be held against it, and a time without work.
func capWork(in *Input, v *Verdict) {
	switch {
	case in.Rho.OK() && (in.Rho.Value < in.Band.Low || in.Rho.Value > in.Band.High):
		v.lower(fmt.Sprintf("measured bytes are %.2f of modelled ones", in.Rho.Value))
	case in.Model != nil && !in.Rho.OK() && v.Traffic == "":
		v.cap(timeline.Medium, "bytes could not be held against the model")
	}
	if busyPart(in) < 1 {
		v.cap(timeline.Low, "no request ran for a part of the time")
	}
}

// capWaits holds down what is said of a cell that waits little more than it works at a roof: it would turn over with the
// error of what is achievable. Roofs are told from each other by the same margin; and where kernels that run below the
// achievable, at one roof after the other and on SMs that they do not all fill, would make the time at the roofs as long as
// the wait, it is no more than a hint. Collectives that take their own time are no wait.
func capWaits(in *Input, v *Verdict) {
	w := waits(v)
	if w <= 0 {
		return
	}
	reach := latencyLine
	if longKernels(in.Model) {
		reach = decodeReach
	}
	roof := v.Shares.Memory + v.Shares.Compute
	most := min((v.D+v.C)/reach, v.Roof.High)
	own := w
	if v.Label != timeline.Host {
		own -= commPart(in)
	}
	why := fmt.Sprintf("the roofs hold %.0f %% of the time, nearly as much as what the label names", 100*roof)
	switch {
	case own < most:
		v.cap(timeline.Low, why)
	case own-roof < roofMargin:
		v.cap(timeline.Medium, why)
	}
}

// waits returns the share that a label of waiting names, zero for other labels.
func waits(v *Verdict) float64 {
	switch v.Label { //nolint:exhaustive // the other labels name no wait
	case timeline.Host:
		return v.Shares.Host
	case timeline.Launch:
		return v.Shares.Launch
	case timeline.HostOrLaunch:
		return v.Shares.Host + v.Shares.Launch
	}
	return 0
}

func sure(origin string) bool { return origin == OriginCalibrated || origin == OriginTable }

// aboveCritical reports whether the mean context of the batch is one at which decode alone cannot reach the compute
// roof at any batch.
func aboveCritical(in *Input) bool {
	w := in.Work
	if in.Model == nil || !w.Context.OK() || !w.Running.OK() || w.Running.Value <= 0 {
		return false
	}
	limit, ok := in.Model.CriticalContext()
	return ok && w.Context.Value/w.Running.Value > limit
}

func clip(x float64) float64 { return min(1, max(0, x)) }
