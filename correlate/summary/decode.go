package summary

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// overlayPart of the decoding time is what a circumstance must hold to be named in a report.
const overlayPart = 0.05

// decode returns what bounded decode.
func (cs *cells) decode(coverage timeline.Measure) Decode {
	d := &cs.d
	if d.seconds <= 0 {
		return noDecode("nothing decoded")
	}
	var timed []verdict.Timed
	for _, name := range cs.names() {
		timed = append(timed, cs.byTarget[name].timed...)
	}
	v := verdict.Run(timed)
	out := Decode{
		Bound: v.Label, Reason: v.Reason, Confidence: v.Confidence, HeldDown: v.Caps,
		Mixture: d.mixture(), Overlays: d.overlays(),
		Windows: d.windows, DecodeS: d.seconds, CoveredS: d.covered,
		ResolutionS: timeline.Absent("no counter window lies in the decode"),
		DRAM:        d.counter(timeline.DRAMUtil), SM: d.counter(timeline.SMUtil), Tensor: d.counter(timeline.TensorUtil),
		ThrottledShare: (&ratio{d.throttled, d.gpuS}).measure("throttle reasons are not read"),
	}
	if d.gpuWindows > 0 {
		out.ResolutionS = timeline.Known(d.gpuCovered / float64(d.gpuWindows))
	}
	if d.determined > 0 {
		out.Shares.Value = d.shares.Scale(1 / d.determined)
		out.Roof.Value = timeline.Interval{Low: d.roof.Low / d.determined, High: d.roof.High / d.determined}
	} else {
		out.Shares.Why, out.Roof.Why = v.Reason, v.Reason
	}
	if v.OK() {
		out.Refute = refute(v.Label, d.byLabel[timeline.Mixed] >= 0.6*d.seconds)
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
		BytesPerStep: Bytes{a, a}, BytesPerToken: Bytes{a, a},
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
	for _, o := range []timeline.Overlay{
		timeline.Throttled, timeline.PrefillInterference, timeline.Preempted, timeline.NoisyNeighbour, timeline.CommOrStraggler,
	} {
		if d.byOverlay[o] >= overlayPart*d.seconds {
			out = append(out, o)
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
		return fmt.Sprintf("traffic coverage is %.2f, below %.2f", coverage.Value, fullCoverage)
	case !coverage.OK() && coverage.Why != noProbe:
		return "traffic coverage is unknown: " + coverage.Why
	}
	return ""
}

// refute names what would prove the label wrong: an observation that can be made and can fail. A run is mixed because
// prompts share its steps, or because no label holds most of it.
func refute(l timeline.Label, prompts bool) string {
	switch l {
	case timeline.Memory:
		return "a minute at this TPOT reads DRAM below 60 % of achievable"
	case timeline.Compute:
		return "a minute at this TPOT reads tensor cores below 60 % of achievable"
	case timeline.Balanced:
		return "one of the two roofs reads below 60 % of achievable at this TPOT"
	case timeline.Mixed:
		if !prompts {
			return "one label holds over 60 % of a minute at this TPOT"
		}
		return "TPOT stays as it is while no prompt is processed"
	case timeline.Host:
		return "TPOT stays as it is while kernels are resident over 85 % of the time"
	case timeline.Launch:
		return "TPOT stays as it is with graph capture on, or doubles when the batch doubles"
	case timeline.HostOrLaunch:
		return "TPOT doubles when the batch doubles"
	case timeline.Communication:
		return "TPOT stays as it is when the ranks' SM activity evens out"
	case timeline.Busy:
		return "DRAM or tensor cores read above 60 % of achievable at this TPOT"
	case timeline.Undetermined:
	}
	return ""
}
