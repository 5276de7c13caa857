package verdict

import (
	"math"

	"github.com/tpotscope/tpotscope/correlate/roofline"
)

// usualChunk is the token budget of a step that engines use when nothing else is set (vLLM's default for online
// serving of max_num_batched_tokens is 2048 or more). It bounds how concentrated prompt work can be.
const usualChunk = 2048

// placeMixed places the time at the roofs inside its interval, for a cell whose steps carry prompt work. The counters
// give the time of DRAM traffic and of tensor work; the model of segments says which part of each passes under the
// other. How the prompt tokens were spread over the steps is not told, so that two cases are worked out, spread evenly
// and in whole chunks, each for a range of what kernels reach; each roof's least time of all is kept beside the point.
func placeMixed(in *Input, p part) point {
	floor := least{memory: max(0, p.d-p.c), compute: max(0, p.c-p.d)} // what no overlap can hide
	mid := middle(p)
	mid.low = floor
	steps, ok := stepsOf(&in.Work)
	if in.Model == nil || !ok || !in.Work.Prompt.OK() || !in.Work.Decode.OK() || !in.Work.Context.OK() {
		return mid
	}
	w := &in.Work
	decode, prompt := w.Decode.Value/steps, w.Prompt.Value/steps
	even := []weighted{{1, roofline.Step{Decode: decode, Prompt: prompt, Context: w.Context.Value}}}
	cases := [][]weighted{even}
	if part := prompt / max(usualChunk-decode, 1); part < 1 { // whole chunks in few steps, decode alone in the rest
		cases = append(cases, []weighted{
			{part, roofline.Step{Decode: decode, Prompt: prompt / part, Context: w.Context.Value}},
			{1 - part, roofline.Step{Decode: decode, Context: w.Context.Value}},
		})
	}
	var at [2]point
	low := least{1, 1}
	for i, c := range cases {
		at[i] = place(in, p, c, kernels{reach: 1})
		for _, k := range kernelRange {
			q := place(in, p, c, k)
			low = least{min(low.memory, q.memory), min(low.compute, q.compute)}
		}
	}
	out := at[0]
	if len(cases) > 1 {
		out = between(at[0], at[1], p)
	}
	out.low = low
	return out
}

// kernels says how the products of a step use the tensor cores: what part of the achievable rate they reach, and
// whether tokens are rounded up to whole tiles.
type kernels struct {
	reach  float64
	padded bool
}

// kernelRange is how far products may be from the model: shapes suit kernels well or badly, and tiles may be filled or
// not. Close to the ridge it decides which roof a product is at.
var kernelRange = [...]kernels{{0.8, true}, {0.8, false}, {1, false}, {1.25, false}}

// tile is the tokens of a large tile of a product (CUTLASS's default tiles for these shapes are 64 to 256 rows).
const tile = 128

// rate returns the part of the achievable tensor rate that a step of that many tokens reaches.
func (k kernels) rate(tokens float64) float64 {
	if !k.padded || tokens <= 0 {
		return k.reach
	}
	return k.reach * tokens / (math.Ceil(tokens/tile) * tile)
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
func middle(p part) point {
	roof := (max(p.d, p.c) + min(1, p.d+p.c)) / 2
	if p.d+p.c <= 0 {
		return point{}
	}
	return point{memory: roof * p.d / (p.d + p.c), compute: roof * p.c / (p.d + p.c)}
}

type weighted struct {
	part float64
	step roofline.Step
}

// place takes off each counter the part that the model says passes under the other roof, and keeps the sum inside the
// interval that the counters allow.
func place(in *Input, p part, steps []weighted, k kernels) point {
	rates := roofline.Rates{Bandwidth: in.Eta.Bandwidth, ExpertPart: 1}
	if in.Device.Clock.OK() {
		rates.SMClockHz = in.Device.Clock.Value
	}
	var mem, hidMem, comp, hidComp float64
	for _, s := range steps {
		rates.Tensor = in.Eta.Tensor * k.rate(s.step.Decode+s.step.Prompt)
		c := in.Model.Cost(s.step, rates)
		mem += s.part * (c.MemoryS + c.HiddenMemS)
		hidMem += s.part * c.HiddenMemS
		comp += s.part * (c.ComputeS + c.HiddenCompS)
		hidComp += s.part * c.HiddenCompS
	}
	var out point
	if mem > 0 {
		out.memory = p.d * (1 - hidMem/mem)
	}
	if comp > 0 {
		out.compute = p.c * (1 - hidComp/comp)
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
