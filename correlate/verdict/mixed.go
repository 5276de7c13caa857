package verdict

import (
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// placeMixed places the time at the roofs inside its interval, for a cell whose steps carry prompt work. The counters
// give the time of DRAM traffic and of tensor work; the model of segments says which part of each passes under the
// other, and what is left is stretched by what products usually reach. How the prompt tokens were spread over the steps
// is not told, so that two cases are worked out, spread evenly and in whole chunks, each for a range of what kernels
// reach; each roof's least time of all is kept beside the point.
func placeMixed(in *Input, p part, roof timeline.Interval) point {
	floor := least{memory: max(0, p.d-p.c), compute: max(0, p.c-p.d)} // what no overlap can hide
	mid := middle(p, roof)
	mid.low = floor
	steps, ok := stepsOf(&in.Work)
	if in.Model == nil || !ok || !in.Work.Prompt.OK() || !in.Work.Decode.OK() || !in.Work.Context.OK() {
		return mid
	}
	w := &in.Work
	decode, prompt := w.Decode.Value/steps, w.Prompt.Value/steps
	even := []weighted{{1, roofline.Step{Decode: decode, Prompt: prompt, Context: w.Context.Value}}}
	cases := [][]weighted{even}
	if part := prompt / max(roofline.UsualChunk-decode, 1); part < 1 { // whole chunks in few steps, decode alone in the rest
		cases = append(cases, []weighted{
			{part, roofline.Step{Decode: decode, Prompt: prompt / part, Context: w.Context.Value}},
			{1 - part, roofline.Step{Decode: decode, Context: w.Context.Value}},
		})
	}
	var at [2]point
	low := least{1, 1}
	for i, c := range cases {
		segs, scale := scaled(in, p, c, steps)
		at[i] = place(p, segs, scale, 1, plannedReach).stretch(p, roof)
		for _, reach := range [...]float64{1, plannedReach} {
			q := place(p, segs, scale, reach, reach)
			low = least{min(low.memory, q.memory), min(low.compute, q.compute)}
		}
	}
	out := at[0]
	if len(cases) > 1 {
		out = between(at[0], at[1], p)
	}
	out.low, out.placed = low, true
	return out
}

// between places the point between two cases, so that the time at the roofs comes as near as it can to the time in
// which SMs were busy: kernels at a roof keep them so. Without that counter it lies halfway.
func between(a, b point, p part) point {
	w := 0.5
	ra, rb := a.memory+a.compute, b.memory+b.compute
	if p.hasS && ra != rb {
		w = clip((p.s - ra) / (rb - ra))
	}
	return point{memory: a.memory + w*(b.memory-a.memory), compute: a.compute + w*(b.compute-a.compute)}
}

// middle is the point when nothing places it: halfway between full overlap and none.
func middle(p part, roof timeline.Interval) point {
	if p.d+p.c <= 0 {
		return point{}
	}
	at := (max(p.d, p.c) + min(1, p.d+p.c)) / 2
	return point{memory: at * p.d / (p.d + p.c), compute: at * p.c / (p.d + p.c)}.fit(roof.Low, roof.High)
}

// stretch turns the activity of the tensor cores into time: products at the compute roof keep them active for a part of
// theirs. It adds no more than the SMs were busy beyond what is placed, and keeps the sum inside the interval.
func (a point) stretch(p part, roof timeline.Interval) point {
	more := a.compute * (1/usualReach - 1)
	if p.hasS {
		more = min(more, max(0, p.s-a.memory-a.compute))
	}
	a.compute += more
	return a.fit(roof.Low, roof.High)
}

type weighted struct {
	part float64
	step roofline.Step
}

// counted are the times at each roof that the model works out for a mean step, and the factors that bring their sums to
// what the counters read. Tensor activity holds the rows that fill up tiles, and is counted in cycles at the clock that
// the SMs had, so that with it a segment is told at which of the roofs it is better than by operations at a rate.
type counted struct{ memory, compute float64 }

// scaled returns the segments of a mean step, weighted by how often their step occurs, and their factors.
func scaled(in *Input, p part, cases []weighted, steps float64) ([]roofline.Segment, counted) {
	var segs []roofline.Segment
	rates := roofline.Rates{Bandwidth: in.Eta.Bandwidth, Tensor: in.Eta.Tensor, ExpertPart: 1}
	if in.Device.Clock.OK() {
		rates.SMClockHz = in.Device.Clock.Value
	}
	var mem, comp float64
	for _, w := range cases {
		first := len(segs)
		segs = in.Model.Segments(segs, w.step, rates)
		for i := first; i < len(segs); i++ {
			segs[i].MemoryS *= w.part
			segs[i].ComputeS *= w.part
			mem, comp = mem+segs[i].MemoryS, comp+segs[i].ComputeS
		}
	}
	out := counted{1, 1}
	step := in.CellS / steps
	if mem > 0 && p.d > 0 {
		out.memory = p.d * step / mem
	}
	if comp > 0 && p.c > 0 {
		out.compute = p.c * step / comp
	}
	return segs, out
}

// place takes off each counter the part that passes under the other roof, where products reach between low and high of
// the achievable tensor activity: a segment between both counts for either by how much of that range speaks for it. The
// sum is at least what no overlap can hide.
func place(p part, segs []roofline.Segment, scale counted, high, low float64) point {
	var mem, ownMem, comp, ownComp float64
	for _, s := range segs {
		m, c := s.MemoryS*scale.memory, s.ComputeS*scale.compute
		w := 0.0 // of the range in which the segment is at the DRAM roof
		switch {
		case m <= 0:
		case c <= low*m:
			w = 1
		case c < high*m:
			w = (high - c/m) / (high - low)
		}
		mem, ownMem = mem+m, ownMem+w*m
		comp, ownComp = comp+c, ownComp+(1-w)*c
	}
	var out point
	if mem > 0 {
		out.memory = p.d * ownMem / mem
	}
	if comp > 0 {
		out.compute = p.c * ownComp / comp
	}
	return out.fit(max(p.d, p.c), min(1, p.d+p.c))
}

// fit scales the point so that its sum lies in [low, high].
func (a point) fit(low, high float64) point {
	sum := a.memory + a.compute
	switch {
	case sum <= 0:
		return a
	case sum < low:
		a.memory, a.compute = a.memory*low/sum, a.compute*low/sum
	case sum > high:
		a.memory, a.compute = a.memory*high/sum, a.compute*high/sum
	}
	return a
}

// stepsOf returns how many steps the engine made: as it tells, else from the tokens a batch yields when each request
// yields one a step.
func stepsOf(w *Work) (float64, bool) {
	if w.Steps.OK() && w.Steps.Value > 0 {
		return w.Steps.Value, true
	}
	if w.Decode.OK() && w.Running.OK() && w.Decode.Value > 0 && w.Running.Value > 0 {
		return w.Decode.Value / max(1, w.Running.Value), true
	}
	return 0, false
}
