package scenario_test

import (
	"io"
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
		}
	})
}
