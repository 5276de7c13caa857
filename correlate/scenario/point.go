package scenario

import (
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Point is one point of a grid: a machine, a model and a steady load, from which a scenario is built without a file.
// What is zero has the value that its comment names.
type Point struct {
	GPU     string // any name that hardware.LookupGPU knows; "h100"
	Model   string // "Llama-3.1-8B"
	DType   string // "bf16"
	KVDType string // "bf16"
	TP      int    // 1
	PP      int    // 1
	DP      int    // 1

	Batch   int // sequences that decode at once; 1
	Context int // tokens of their prompts; their contexts grow from there; 200
	Output  int // tokens; so many that the sequences decode throughout
	Chunk   int // prompt tokens that share each step with the decoding; 0

	Rate    float64 // requests per second that arrive whatever the engine does; 0: the batch is held by a closed loop
	Length  time.Duration
	Warm    time.Duration // before the steady part; 3 s
	Faults  []Fault       // over all that follows the warming up, unless they say otherwise
	Engine  func(*EngineSpec)
	Target  func(*TargetSpec)
	Probe   ProbeSpec // coverage 1
	Seed    uint64    // 1
	Machine *hardware.GPU
	Network *hardware.Model
}

// Mixed returns a point whose steps hold chunks of prompts beside sequences that decode.
func Mixed(chunk, batch, context int) Point {
	return Point{Chunk: chunk, Batch: batch, Context: context, Length: 18 * time.Second, Warm: 6 * time.Second}
}

// Decode returns a point at which nothing but decoding goes on.
func Decode(batch, context int) Point {
	return Point{Batch: batch, Context: context, Length: 13 * time.Second, Warm: 4 * time.Second}
}

// On returns the point on another machine.
func (p Point) On(gpu, model, dtype string, tp int) Point {
	p.GPU, p.Model, p.DType, p.TP = gpu, model, dtype, tp
	return p
}

// With returns the point with one more fault. A fault without a span holds from the end of the warming up.
func (p Point) With(f Fault) Point {
	p.Faults = append(append([]Fault{}, p.Faults...), f)
	return p
}

// NewFault returns a fault of all GPUs and targets, without a span.
func NewFault(kind FaultKind, value float64) Fault {
	return Fault{Kind: kind, Value: value, GPU: -1, Target: -1}
}

// On returns the fault of one GPU alone.
func (f Fault) On(gpu int) Fault {
	f.GPU = gpu
	return f
}

// During returns the fault over a span.
func (f Fault) During(from, to time.Duration) Fault {
	f.Over = Span{from, to}
	return f
}

// Steady returns the part of the scenario in which the load is as the point says.
func (p Point) Steady() Span {
	p = p.withDefaults()
	return Span{p.Warm, p.Length - time.Second}
}

func (p Point) withDefaults() Point {
	text := func(s *string, otherwise string) {
		if *s == "" {
			*s = otherwise
		}
	}
	text(&p.GPU, "h100")
	text(&p.Model, "Llama-3.1-8B")
	text(&p.DType, "bf16")
	text(&p.KVDType, "bf16")
	for _, n := range []*int{&p.TP, &p.PP, &p.DP, &p.Batch} {
		*n = max(1, *n)
	}
	if p.Context <= 0 {
		p.Context = 200
	}
	if p.Length <= 0 {
		p.Length = 13 * time.Second
	}
	if p.Warm <= 0 {
		p.Warm = 3 * time.Second
	}
	if p.Seed == 0 {
		p.Seed = 1
	}
	if p.Probe.Coverage == 0 {
		p.Probe.Coverage = 1
	}
	return p
}

// target looks up what the point names.
func (p Point) target() (hardware.GPU, TargetSpec, error) {
	t := TargetSpec{Name: "main", TP: p.TP, PP: p.PP, DP: p.DP, Skew: defaultSkew, Engine: DefaultEngine()}
	var g hardware.GPU
	var err error
	if p.Machine != nil {
		g = *p.Machine
	} else if g, err = hardware.LookupGPU(p.GPU); err != nil {
		return g, t, err
	}
	if p.Network != nil {
		t.Model = *p.Network
	} else if t.Model, err = hardware.LookupModel(p.Model); err != nil {
		return g, t, err
	}
	if t.DType, err = hardware.LookupDType(p.DType); err != nil {
		return g, t, err
	}
	if t.KVDType, err = hardware.LookupDType(p.KVDType); err != nil {
		return g, t, err
	}
	if !t.KVDType.KV {
		return g, t, fmt.Errorf("%s is no format for a KV cache", t.KVDType.Name)
	}
	return g, t, nil
}

// Scenario builds the point's scenario. Its one phase is "steady".
func (p Point) Scenario() (*Scenario, error) {
	p = p.withDefaults()
	g, t, err := p.target()
	if err != nil {
		return nil, fmt.Errorf("build scenario: %w", err)
	}
	t.Engine.MaxBatch = max(p.Batch+3, 256)
	if p.Chunk > 0 {
		t.Engine.Chunk, t.Engine.TokenBudget = p.Chunk, p.Chunk+p.Batch
	}
	if p.Target != nil {
		p.Target(&t)
	}
	if p.Engine != nil {
		p.Engine(&t.Engine)
	}
	s := &Scenario{
		Name: "point", Seed: p.Seed, Length: p.Length, Probe: p.Probe,
		Phases: []Phase{{Name: "steady", Span: p.Steady()}},
	}
	for i := range t.Ranks() {
		s.GPUs, t.GPUs = append(s.GPUs, g), append(t.GPUs, i)
	}
	s.Targets = []TargetSpec{t}
	s.Loads = p.loads()
	for _, f := range p.Faults {
		if f.Over.To == 0 {
			f.Over = Span{p.Warm, p.Length}
		}
		s.Faults = append(s.Faults, f)
	}
	return s, nil
}

// loads are the sequences that decode, and the prompts whose chunks share their steps.
func (p Point) loads() []Load {
	output := p.Output
	if output == 0 {
		output = 1 + int(p.Length/(2*time.Millisecond)) // no step is shorter
	}
	decode := Load{Prompt: Range{p.Context, p.Context}, Output: Range{output, output}, Over: Span{0, p.Length}}
	if p.Rate > 0 {
		decode.Rate, decode.Poisson = p.Rate, true
	} else {
		decode.Streams, decode.Stagger = p.Batch, 2*time.Millisecond
	}
	list := []Load{decode}
	if p.Chunk > 0 {
		list = append(list, Load{
			Streams: 3, Prompt: Range{4 * p.Chunk, 4 * p.Chunk}, Output: Range{1, 1}, Over: Span{p.Warm / 2, p.Length},
		})
	}
	return list
}

// Run builds the point's scenario and its timeline.
func (p Point) Run() (*Timeline, error) {
	s, err := p.Scenario()
	if err != nil {
		return nil, err
	}
	return s.Run()
}
