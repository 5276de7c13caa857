package scenario_test

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

func stringReader(s string) io.Reader { return strings.NewReader(s) }

const head = "duration 60s\ngpu h100\ntarget main model=Llama-3.1-8B\nload streams=1 prompt=10 output=10\n"

func TestParseReadsEveryLine(t *testing.T) {
	s, err := scenario.Parse("all.scenario", stringReader(`# a comment
seed 9
duration 1m
gpu NVIDIA H100 80GB HBM3 count=2     # by its full name
gpu l40s
target big model=meta-llama/Llama-3.1-70B-Instruct dtype=fp8 kv=fp8 tp=2
target small model=llama-3.2-1b
engine target=small max_batch=8 budget=512 chunk=256 block=32 kv_blocks=900 host=2ms host_per_seq=10us launch=9us graphs=off
load target=small streams=4 prompt=10..20 output=30 think=1s stagger=5ms 5s..50s
load rate=2.5 arrivals=poisson prompt=10 output=20 10s..
request at=3s target=big prompt=7 output=8
fault power_cap 300W gpu=0 20s..30s
fault clock_lock 1200MHz
fault host_stall 200ms every=2s target=small ..30s
fault bandwidth_loss 25% 1s..2s
fault eager 1s..2s
counter lag=300ms gpu=1 10s..20s
counter nan counter=dram_util
phase steady 5s..20s
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "all" || s.Seed != 9 || s.Length != time.Minute || len(s.GPUs) != 3 || s.GPUs[2].Name != "NVIDIA L40S" {
		t.Errorf("head: %s %d %s %d GPUs", s.Name, s.Seed, s.Length, len(s.GPUs))
	}
	if diff := cmp.Diff([]int{0, 1}, s.Targets[0].GPUs); diff != "" || s.Targets[0].KVDType.Name != "fp8" || s.Targets[1].GPUs[0] != 2 {
		t.Errorf("targets: %+v", s.Targets)
	}
	wantEngine := scenario.EngineSpec{
		MaxBatch: 8, TokenBudget: 512, Chunk: 256, BlockSize: 32, KVBlocks: 900,
		Host: 2 * time.Millisecond, HostPerSeq: 10 * time.Microsecond, Launch: 9 * time.Microsecond,
		Pad: true, AdapterRank: 16, Front: scenario.FrontSpec{SlowEvery: 200 * time.Millisecond},
	}
	if diff := cmp.Diff(wantEngine, s.Targets[1].Engine); diff != "" {
		t.Errorf("engine (-want +got):\n%s", diff)
	}
	wantLoads := []scenario.Load{
		{Target: 1, Streams: 4, Prompt: scenario.Range{Low: 10, High: 20}, Output: scenario.Range{Low: 30, High: 30}, Think: time.Second, Stagger: 5 * time.Millisecond, Over: scenario.Span{From: 5 * time.Second, To: 50 * time.Second}},
		{Rate: 2.5, Poisson: true, Prompt: scenario.Range{Low: 10, High: 10}, Output: scenario.Range{Low: 20, High: 20}, Stagger: 20 * time.Millisecond, Over: scenario.Span{From: 10 * time.Second, To: time.Minute}},
		{Prompt: scenario.Range{Low: 7, High: 7}, Output: scenario.Range{Low: 8, High: 8}, Over: scenario.Span{From: 3 * time.Second}},
	}
	if diff := cmp.Diff(wantLoads, s.Loads); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
	wantFaults := []scenario.Fault{
		{Kind: scenario.PowerCap, Value: 300, GPU: 0, Target: -1, Over: scenario.Span{From: 20 * time.Second, To: 30 * time.Second}},
		{Kind: scenario.ClockLock, Value: 1200e6, GPU: -1, Target: -1, Over: scenario.Span{To: time.Minute}},
		{Kind: scenario.HostStall, Value: 0.2, Every: 2 * time.Second, GPU: -1, Target: 1, Over: scenario.Span{To: 30 * time.Second}},
		{Kind: scenario.BandwidthLoss, Value: 0.25, GPU: -1, Target: -1, Over: scenario.Span{From: time.Second, To: 2 * time.Second}},
		{Kind: scenario.Eager, GPU: -1, Target: -1, Over: scenario.Span{From: time.Second, To: 2 * time.Second}},
	}
	if diff := cmp.Diff(wantFaults, s.Faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	lag, err := s.Counters[0].Duration("lag", 0)
	if err != nil || lag != 300*time.Millisecond || s.Counters[0].GPU != 1 || s.Counters[1].Name != "nan" {
		t.Errorf("counters: %+v, lag %s, %v", s.Counters, lag, err)
	}
	if which, ok := s.Counters[1].Arg("counter"); !ok || which != "dram_util" {
		t.Errorf("counter fault: %+v", s.Counters[1])
	}
	if len(s.Phases) != 1 {
		t.Errorf("phases %+v", s.Phases)
	}
}

func TestParseReadsGroupsEnginesAndProbes(t *testing.T) {
	s, err := scenario.Parse("more.scenario", stringReader(`
duration 1m
gpu h200 count=12
gpu h100 mig=3/7
target stages model=Llama-3.1-70B dtype=fp8 tp=2 pp=2
target copies model=Qwen3-30B-A3B dtype=fp8 tp=2 dp=4 skew=1.5 correlation=50%
target small model=Llama-3.2-1B gpus=12
engine target=stages prompts=apart pad=off kernels=24 reach=80% reduce=14us speculate=4 accept=0.6 draft=Llama-3.2-1B
engine target=small adapters=8 adapter_rank=32 lag=2ms merge=20ms slow_readers=10% slow_every=400ms
engine target=small remote_rate=30000 remote_bps=12.5e9
load target=small rate=10 swing=50% period=30s prompt=10 output=10
fault straggler 20% gpu=1 10s..20s
fault cooling 1.8
fault front_stall 200ms every=3s
fault long_output 1.5 20s..
counter untrusted counter=dram_util
probe coverage=30% clock_bound=5ms
phase late label=communication 10s..20s
phase seen grade=shared
`))
	if err != nil {
		t.Fatal(err)
	}
	stages, copies, small := s.Targets[0], s.Targets[1], s.Targets[2]
	if stages.Ranks() != 4 || copies.Ranks() != 8 || copies.Skew != 1.5 || copies.Correlation != 0.5 || copies.GPUs[0] != 4 {
		t.Errorf("targets: %+v", s.Targets)
	}
	if e := stages.Engine; !e.Apart || e.Pad || e.Reach != 0.8 || e.Kernels != 24 || e.Reduce != 14*time.Microsecond || e.Draft.Name != "Llama-3.2-1B" {
		t.Errorf("engine: %+v", e)
	}
	want := scenario.FrontSpec{Lag: 2 * time.Millisecond, Merge: 20 * time.Millisecond, SlowReaders: 0.1, SlowEvery: 400 * time.Millisecond}
	if e := small.Engine; e.Front != want || e.Adapters != 8 || e.AdapterRank != 32 || e.RemoteRate != 30000 || e.RemoteBps != 12.5e9 {
		t.Errorf("engine: %+v", e)
	}
	if s.Slices[12] != 3./7 || s.GPUs[12].SMs != 56 || s.Loads[0].Swing != 0.5 || s.Loads[0].Period != 30*time.Second {
		t.Errorf("an instance: %v, %+v; a load: %+v", s.Slices, s.GPUs[12], s.Loads[0])
	}
	if s.Probe != (scenario.ProbeSpec{Coverage: 0.3, ClockBound: 5 * time.Millisecond}) || s.Phases[0].Label != "communication" || s.Phases[1].Grade != "shared" {
		t.Errorf("probe %+v, phases %+v", s.Probe, s.Phases)
	}
	if f := s.Faults[0]; len(s.Faults) != 4 || f.Kind != scenario.Straggler || f.Value != 0.2 || f.GPU != 1 {
		t.Errorf("faults: %+v", s.Faults)
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"an unknown keyword", head + "laod streams=1", `bad.scenario:5: unknown keyword "laod" (nearest: load)`},
		{"an unknown key", head + "load streams=1 promt=3 output=1", `bad.scenario:5: load: unknown key of load "promt" (nearest: prompt`},
		{"an unknown model", "duration 1s\ngpu h100\ntarget a model=Llama-3.1-9B", `bad.scenario:3: target: model=Llama-3.1-9B: unknown model "Llama-3.1-9B" (nearest: Llama-3.1-8B`},
		{"an unknown gpu", "duration 1s\ngpu h101", `bad.scenario:2: gpu: unknown gpu "h101"`},
		{"an unknown fault", head + "fault powercap 3W", `unknown fault "powercap" (nearest: power_cap)`},
		{"a fault without its value", head + "fault power_cap", "power_cap wants one value"},
		{"a value where none belongs", head + "fault eager 3", "eager takes no value"},
		{"an unknown counter fault", head + "counter gapp 1s..2s", `unknown counter fault "gapp" (nearest: gap)`},
		{"a span that runs backwards", head + "phase p 10s..5s", "span 10s..5s: it ends before it starts"},
		{"a duration without a unit", head + "phase p 10..20s", `"10" is not a duration`},
		{"a phase past the end", head + "phase p 10s..90s", `phase "p" ends after the scenario`},
		{"a number out of range", head + "engine max_batch=0", "max_batch=0: out of range (1 to 4096)"},
		{"two kinds of load", head + "load streams=1 rate=2 prompt=1 output=1", "want one of streams= and rate="},
		{"a load without lengths", head + "load streams=1", "want prompt= and output="},
		{"a load before its target", "duration 1s\ngpu h100\nload streams=1 prompt=1 output=1", "it must come after a target"},
		{"a target without enough GPUs", "duration 1s\ngpu h100\ntarget a model=Llama-3.1-8B tp=2", "tp=2 pp=1 dp=1 needs 2 free GPUs"},
		{"a GPU used twice", "duration 1s\ngpu h100\ntarget a model=Llama-3.1-8B gpus=0\ntarget b model=Llama-3.1-8B gpus=0", "gpu 0 is already in use"},
		{"nothing", "", "no duration"},
		{"a key twice", head + "load streams=1 streams=2 prompt=1 output=1", `key "streams" is given twice`},
		{"two durations", head + "duration 5s", "duration: given twice"},
		{"no duration first", "gpu h100", "duration must come before gpu"},
		{"copies of a dense model", "duration 1s\ngpu h100 count=2\ntarget a model=Llama-3.1-8B dp=2", "dp= is for a model with experts"},
		{"stages of copies", "duration 1s\ngpu h200 count=4\ntarget a model=Qwen3-30B-A3B dtype=fp8 dp=2 pp=2", "pp= goes with neither dp= nor ep="},
		{"a part that is none", "duration 1s\ngpu h100 mig=0.3", `"0.3" is not a part such as 1/7`},
		{"half of a remote prefill", head + "engine remote_rate=100", "remote_rate= and remote_bps= go together"},
		{"a swing without its period", head + "load rate=1 swing=10% prompt=1 output=1", "swing= and period= go together"},
		{"a phase that shows what is no label", head + "phase p label=memry", `unknown value "memry" (nearest: memory)`},
		{"four bits in a cache", "duration 1s\ngpu h100\ntarget a model=Llama-3.1-8B kv=awq", "kv=awq is no format for a KV cache"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scenario.Parse("bad.scenario", stringReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(head)
	f.Add(head + "fault host_stall 1ms every=1s 1s..2s\ncounter lag=3ms\nphase a")
	f.Add("seed 1\nduration 1h\ngpu a100 count=8\ntarget x model=qwen3-8b tp=8 gpus=0,1,2,3,4,5,6,7\nrequest at=1s prompt=1..9 output=1")
	f.Add("duration 1s\ngpu h200 count=4\ntarget x model=qwen3-30b-a3b dtype=fp8 dp=4\nengine adapters=3 lag=1ms merge=9ms\nload rate=9 prompt=9 output=9\nfault straggler 9% gpu=1")
	f.Add("duration 1s\ngpu h100 count=4\ntarget x model=llama-3.1-8b pp=2 tp=2\nengine speculate=2 draft=llama-3.2-1b\nload streams=3 prompt=9 output=9\nfault front_stall 9ms every=99ms\nprobe coverage=9%")
	f.Add("duration 1s\ngpu h100 mig=1/7\ntarget x model=llama-3.2-1b\nengine remote_rate=9000 remote_bps=9e9 prompts=apart\nload streams=3 prompt=9 output=9\ncounter lag=9ms")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := scenario.Parse("fuzz.scenario", stringReader(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "parse fuzz.scenario") {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		for _, tg := range s.Targets {
			if len(tg.GPUs) != tg.Ranks() {
				t.Errorf("target %s: %d GPUs for tp=%d", tg.Name, len(tg.GPUs), tg.TP)
			}
		}
		for _, l := range s.Loads {
			if l.Prompt.Low < 1 || l.Prompt.High < l.Prompt.Low || l.Output.Low < 1 || l.Output.High < l.Output.Low || l.Target >= len(s.Targets) {
				t.Errorf("load %+v", l)
			}
		}
		// Small ones are run too: what parses must run or be refused, and repeat.
		if s.Length > 2*time.Second || len(s.Loads) > 4 {
			return
		}
		for _, l := range s.Loads {
			if l.Streams > 16 || l.Rate > 50 || l.Output.High > 100 || l.Prompt.High > 5000 {
				return
			}
		}
		if tl, err := s.Run(); err == nil {
			tl.Truth(0, 0, tl.Duration())
			tl.Observe(scenario.Instruments{})
			for _, f := range s.Faults {
				if c := tl.DirectCost(0, f.Kind, 0, tl.Duration()); math.IsNaN(c.Direct()) {
					t.Errorf("%s costs %+v", f.Kind, c)
				}
			}
		}
	})
}
