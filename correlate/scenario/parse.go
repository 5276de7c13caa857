package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// Bounds of what a file may ask for, so that a hostile one cannot ask for much.
const (
	maxLength  = time.Hour
	maxLine    = 4096
	maxLines   = 2000
	maxGPUs    = 64
	maxTokens  = 1 << 20
	maxStreams = 4096
	maxRate    = 2000
)

// parser reads one file. Lines speak in any order but two: duration comes before spans, and a target before what
// names it.
type parser struct {
	s *Scenario
}

// keywords are the first words of lines.
var keywords = map[string]func(*parser, []string) error{
	"seed": (*parser).seed, "duration": (*parser).duration, "gpu": (*parser).gpu, "target": (*parser).target,
	"engine": (*parser).engine, "load": (*parser).load, "request": (*parser).request, "fault": (*parser).fault,
	"counter": (*parser).counter, "phase": (*parser).phase, "probe": (*parser).probe,
}

// Parse reads a scenario: one statement a line, "#" starts a comment. A word with ".." in it is the span of the
// statement, "10s..20s", "10s.." or "..20s"; without one the statement holds throughout. Keys may come in any order.
//
//	seed 7
//	duration 60s                                  before all that follows
//	gpu h100 count=2 mig=1/7                      any name that hardware.LookupGPU knows; mig= makes instances
//	target main model=Llama-3.1-8B dtype=bf16 kv=bf16 tp=1 pp=1 dp=1 ep=on gpus=0 skew=0.9 correlation=0
//	engine target=main max_batch=256 budget=2048 chunk=2048 block=16 kv_blocks=9000 prompts=mixed|apart
//	engine host=300us host_per_seq=4us launch=6us graphs=on|off capture=512 pad=on|off kernels=10 reach=80% reduce=11us
//	engine speculate=3 accept=0.7 draft=Llama-3.2-1B adapters=8 adapter_rank=16
//	engine lag=2ms merge=20ms slow_readers=10% slow_every=200ms remote_rate=40000 remote_bps=25e9
//	load target=main streams=16 prompt=200..400 output=128 prefix=100 think=0s stagger=20ms 0s..30s
//	load rate=2.5 arrivals=even|poisson swing=50% period=20s prompt=4000 output=50 30s..60s
//	request at=12s prompt=100 output=50
//	fault power_cap 350W gpu=0 20s..30s           and clock_lock MHz, thermal MHz, cooling FACTOR, straggler %,
//	                                              bandwidth_loss %, neighbour %, host_stall DURATION [every=],
//	                                              front_stall DURATION [every=], eager, slow_launch DURATION,
//	                                              slow_link DURATION, acceptance %, prefix_miss, restart DURATION,
//	                                              long_output FACTOR, long_prompt FACTOR
//	counter lag=300ms gpu=0 10s..20s              of the instrument: gap, nan, frozen, lag, jitter, hang, lost, ...
//	probe coverage=30% clock_bound=2ms
//	phase steady label=memory 2s..20s             or overlay=, grade=, gate=: what the phase is made to show
//
// An error names the file, the line, what is wrong and the nearest known word.
func Parse(name string, r io.Reader) (*Scenario, error) {
	p := &parser{s: &Scenario{Name: strings.TrimSuffix(name, ".scenario"), Seed: 1, Probe: ProbeSpec{Coverage: 1}}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if n > maxLines {
			return nil, fmt.Errorf("parse %s: more than %d lines", name, maxLines)
		}
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		read, ok := keywords[words[0]]
		if !ok {
			return nil, fmt.Errorf("parse %s:%d: %w", name, n, unknownWord("keyword", words[0], slices.Sorted(maps.Keys(keywords))))
		}
		if p.s.Length == 0 && words[0] != "seed" && words[0] != "duration" {
			return nil, fmt.Errorf("parse %s:%d: duration must come before %s", name, n, words[0])
		}
		if err := read(p, words[1:]); err != nil {
			return nil, fmt.Errorf("parse %s:%d: %s: %w", name, n, words[0], err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s:%d: %w", name, n+1, err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	return p.s, nil
}

// check finds what no single line can tell.
func (p *parser) check() error {
	var errs []error
	if p.s.Length == 0 {
		errs = append(errs, errors.New("no duration"))
	}
	if len(p.s.Targets) == 0 {
		errs = append(errs, errors.New("no target"))
	}
	if len(p.s.Loads) == 0 {
		errs = append(errs, errors.New("no load and no request"))
	}
	return errors.Join(errs...)
}

// readPairs splits a line and reads its pairs.
func (p *parser) readPairs(keyword string, words []string, readers map[string]func(string) error) (fields, error) {
	f, err := split(words, p.s.Length)
	if err != nil {
		return f, err
	}
	return f, f.read(keyword, readers, slices.Sorted(maps.Keys(readers)))
}

// one returns the only word of a line that must have just one.
func (f *fields) one(what string) (string, error) {
	if len(f.words) != 1 {
		return "", fmt.Errorf("want one %s, got %d words", what, len(f.words))
	}
	return f.words[0], nil
}

// none refuses words of their own.
func (f *fields) none() error {
	if len(f.words) > 0 {
		return fmt.Errorf("unexpected word %q", f.words[0])
	}
	return nil
}

func (p *parser) seed(words []string) error {
	f := fields{words: words}
	w, err := f.one("number")
	if err != nil {
		return err
	}
	if p.s.Seed, err = strconv.ParseUint(w, 10, 64); err != nil {
		return fmt.Errorf("%q is not a whole number", w)
	}
	return nil
}

func (p *parser) duration(words []string) error {
	f := fields{words: words}
	w, err := f.one("duration")
	if err != nil {
		return err
	}
	if p.s.Length != 0 { // spans were read by the first
		return errors.New("given twice")
	}
	if p.s.Length, err = parseDuration(w); err == nil && p.s.Length == 0 {
		err = errRange
	}
	return err
}

func (p *parser) gpu(words []string) error {
	count, part := 1, 0.0
	f, err := p.readPairs("gpu", words, map[string]func(string) error{"count": setInt(&count, 1, maxGPUs), "mig": setPart(&part)})
	if err != nil {
		return err
	}
	g, err := hardware.LookupGPU(strings.Trim(strings.Join(f.words, " "), `"`))
	if err != nil {
		return err
	}
	if len(p.s.GPUs)+count > maxGPUs {
		return fmt.Errorf("more than %d GPUs", maxGPUs)
	}
	if part > 0 {
		g = p.slice(g, part, count)
	}
	p.s.GPUs = append(p.s.GPUs, slices.Repeat([]hardware.GPU{g}, count)...)
	return nil
}

// slice makes the next positions instances of a board: such a part of it.
func (p *parser) slice(g hardware.GPU, part float64, count int) hardware.GPU {
	if p.s.Slices == nil {
		p.s.Slices = map[int]float64{}
	}
	for i := range count {
		p.s.Slices[len(p.s.GPUs)+i] = part
	}
	return Slice(g, part)
}

func (p *parser) target(words []string) error {
	t := TargetSpec{TP: 1, PP: 1, DP: 1, Skew: defaultSkew, Engine: DefaultEngine()}
	t.DType, _ = hardware.LookupDType("bf16")
	t.KVDType = t.DType
	f, err := p.readPairs("target", words, map[string]func(string) error{
		"model": func(v string) error {
			var err error
			t.Model, err = hardware.LookupModel(v)
			return err
		},
		"dtype": setDType(&t.DType), "kv": setDType(&t.KVDType), "tp": setInt(&t.TP, 1, 16),
		"pp": setInt(&t.PP, 1, 8), "dp": setInt(&t.DP, 1, 16), "ep": setChoice(&t.EP, "on", "off"),
		"skew": setFloat(&t.Skew, 0, 4), "correlation": setFloat(&t.Correlation, 0, 1),
		"gpus": func(v string) error {
			for w := range strings.SplitSeq(v, ",") {
				g := -1
				if err := setInt(&g, 0, len(p.s.GPUs)-1)(w); err != nil {
					return err
				}
				t.GPUs = append(t.GPUs, g)
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	if t.Name, err = f.one("name"); err != nil {
		return err
	}
	return p.addTarget(t)
}

// addTarget gives t its GPUs, which nobody else has.
func (p *parser) addTarget(t TargetSpec) error {
	taken := map[int]bool{}
	for _, o := range p.s.Targets {
		if o.Name == t.Name {
			return fmt.Errorf("a second target %q", t.Name)
		}
		for _, g := range o.GPUs {
			taken[g] = true
		}
	}
	for g := 0; g < len(p.s.GPUs) && len(t.GPUs) < t.Ranks(); g++ {
		if !taken[g] && !slices.Contains(t.GPUs, g) {
			t.GPUs = append(t.GPUs, g)
		}
	}
	switch {
	case t.Model.Name == "":
		return errors.New("no model")
	case !t.KVDType.KV:
		return fmt.Errorf("kv=%s is no format for a KV cache", t.KVDType.Name)
	case len(t.GPUs) != t.Ranks():
		return fmt.Errorf("tp=%d pp=%d dp=%d needs %d free GPUs, got %d", t.TP, t.PP, t.DP, t.Ranks(), len(t.GPUs))
	case t.DP > 1 && !t.Model.MoE():
		return errors.New("dp= is for a model with experts; copies of a dense model are targets of their own")
	case t.PP > 1 && (t.DP > 1 || t.EP):
		return errors.New("pp= goes with neither dp= nor ep=")
	case t.PP > t.Model.Layers:
		return fmt.Errorf("pp=%d is more than the model's %d layers", t.PP, t.Model.Layers)
	}
	for i, g := range t.GPUs {
		if taken[g] || slices.Contains(t.GPUs[:i], g) {
			return fmt.Errorf("gpu %d is already in use", g)
		}
		if p.s.GPUs[g].Name != p.s.GPUs[t.GPUs[0]].Name {
			return errors.New("the GPUs of one target must be alike")
		}
	}
	p.s.Targets = append(p.s.Targets, t)
	return nil
}

// setTarget reads the name of a target that has been declared.
func (p *parser) setTarget(to *int) func(string) error {
	return func(v string) error {
		var known []string
		for i, t := range p.s.Targets {
			if t.Name == v {
				*to = i
				return nil
			}
			known = append(known, t.Name)
		}
		return unknownWord("target", v, known)
	}
}

var errNoTarget = errors.New("it must come after a target")

func (p *parser) engine(words []string) error {
	if len(p.s.Targets) == 0 {
		return errNoTarget
	}
	target := 0
	f, err := split(words, p.s.Length)
	if err != nil {
		return err
	}
	for _, a := range f.pairs {
		if a.Key == "target" {
			if err := p.setTarget(&target)(a.Value); err != nil {
				return err
			}
		}
	}
	e, apart := &p.s.Targets[target].Engine, false
	readers := map[string]func(string) error{
		"target": p.setTarget(&target), "max_batch": setInt(&e.MaxBatch, 1, maxStreams), "budget": setInt(&e.TokenBudget, 1, maxTokens),
		"chunk": setInt(&e.Chunk, 1, maxTokens), "block": setInt(&e.BlockSize, 1, 4096), "kv_blocks": setInt(&e.KVBlocks, 1, 1<<28),
		"prompts": setChoice(&apart, "apart", "mixed"),
		"host":    setDuration(&e.Host), "host_per_seq": setDuration(&e.HostPerSeq), "launch": setDuration(&e.Launch),
		"graphs": setChoice(&e.Graphs, "on", "off"), "capture": setInt(&e.Capture, 1, maxTokens), "pad": setChoice(&e.Pad, "on", "off"),
		"speculate": setInt(&e.Speculate, 0, 16), "accept": setFloat(&e.Accept, 0, 1), "draft": setModel(&e.Draft),
		"adapters": setInt(&e.Adapters, 1, 4096), "adapter_rank": setInt(&e.AdapterRank, 1, 1024),
		"kernels": setInt(&e.Kernels, 1, 400), "reach": setFloat(&e.Reach, 0.05, 1), "reduce": setDuration(&e.Reduce),
		"lag": setDuration(&e.Front.Lag), "merge": setDuration(&e.Front.Merge),
		"slow_readers": setFloat(&e.Front.SlowReaders, 0, 1), "slow_every": setDuration(&e.Front.SlowEvery),
		"remote_rate": setFloat(&e.RemoteRate, 1, 1e9), "remote_bps": setFloat(&e.RemoteBps, 1e6, 1e13),
	}
	err = errors.Join(f.none(), f.read("engine", readers, slices.Sorted(maps.Keys(readers))))
	e.Apart = apart || e.Apart && !f.has("prompts")
	if err == nil && (e.RemoteRate > 0) != (e.RemoteBps > 0) {
		err = errors.New("remote_rate= and remote_bps= go together")
	}
	return err
}

func (p *parser) load(words []string) error {
	if len(p.s.Targets) == 0 {
		return errNoTarget
	}
	l := Load{Stagger: 20 * time.Millisecond}
	f, err := p.readPairs("load", words, map[string]func(string) error{
		"target": p.setTarget(&l.Target), "streams": setInt(&l.Streams, 1, maxStreams), "rate": setFloat(&l.Rate, 0.001, maxRate),
		"arrivals": setChoice(&l.Poisson, "poisson", "even"), "think": setDuration(&l.Think), "stagger": setDuration(&l.Stagger),
		"prompt": setRange(&l.Prompt), "output": setRange(&l.Output), "prefix": setInt(&l.Prefix, 1, maxTokens),
		"swing": setFloat(&l.Swing, 0, 0.95), "period": setDuration(&l.Period),
	})
	if err = errors.Join(err, f.none()); err != nil {
		return err
	}
	if (l.Streams > 0) == (l.Rate > 0) {
		return errors.New("want one of streams= and rate=")
	}
	if (l.Swing > 0) != (l.Period > 0) || l.Swing > 0 && l.Rate == 0 {
		return errors.New("swing= and period= go together, with rate=")
	}
	l.Over = f.over(p.s.Length)
	return p.addLoad(l)
}

func (p *parser) request(words []string) error {
	if len(p.s.Targets) == 0 {
		return errNoTarget
	}
	var l Load
	f, err := p.readPairs("request", words, map[string]func(string) error{
		"target": p.setTarget(&l.Target), "at": setDuration(&l.Over.From),
		"prompt": setRange(&l.Prompt), "output": setRange(&l.Output),
	})
	if err = errors.Join(err, f.none()); err != nil {
		return err
	}
	return p.addLoad(l)
}

func (p *parser) addLoad(l Load) error {
	if l.Prompt.Low == 0 || l.Output.Low == 0 {
		return errors.New("want prompt= and output=")
	}
	p.s.Loads = append(p.s.Loads, l)
	return nil
}

func (p *parser) probe(words []string) error {
	f, err := p.readPairs("probe", words, map[string]func(string) error{
		"coverage": setFloat(&p.s.Probe.Coverage, 0, 1), "clock_bound": setDuration(&p.s.Probe.ClockBound),
	})
	return errors.Join(err, f.none())
}
