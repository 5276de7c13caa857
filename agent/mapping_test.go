package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// twoEngines are two engines with a GPU each, and a GPU that idles.
const twoEngines = `seed 61
duration 120s
gpu h100 count=3
target one model=Llama-3.1-8B dtype=bf16
target two model=Llama-3.1-8B dtype=bf16
load streams=8 prompt=100 output=300..400 target=one 0s..120s
load streams=8 prompt=100 output=300..400 target=two 0s..120s
`

const engineVar = "TPOTSCOPE_ENGINE" // the target whose engine a child process is

// TestEngineProcess is one engine of twoEngines in a process of its own. It is told on its standard input when the
// scenario began, tells its address, and ends with its input.
func TestEngineProcess(t *testing.T) {
	target, err := strconv.Atoi(os.Getenv(engineVar))
	if err != nil {
		t.Skip("runs only as a child of TestEnginesOfANodeAreTiedToTheGPUsTheirProcessesComputeOn")
	}
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		t.Fatal("not told when the scenario began")
	}
	epoch, err := strconv.ParseInt(in.Text(), 10, 64)
	must(t, err)
	tl := timelineOf(t, twoEngines)
	clock, err := hostclock.New()
	must(t, err)
	llm, err := llmsim.New(llmsim.Config{
		Model: tl.Targets()[target].Model, Target: target, Now: clock.Now, Epoch: timeline.Instant(epoch), Plan: tl,
		Free: llmsim.DefaultPace(),
	})
	must(t, err)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- llm.Run(ctx, ln) }()
	fmt.Println(ln.Addr())
	for in.Scan() { // until it is closed
	}
	cancel()
	must(t, <-done)
}

func timelineOf(t *testing.T, text string) *scenario.Timeline {
	t.Helper()
	s, err := scenario.Parse("test", strings.NewReader(text))
	must(t, err)
	tl, err := s.Run()
	must(t, err)
	return tl
}

// child is an engine in a process of its own.
type child struct {
	pid   int
	begin func(epoch timeline.Instant) string // returns its URL
	end   func()
}

func newChild(t *testing.T, target int) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEngineProcess$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), engineVar+"="+strconv.Itoa(target))
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{pid: cmd.Process.Pid}
	c.begin = func(epoch timeline.Instant) string {
		_, err := fmt.Fprintln(in, int64(epoch))
		must(t, err)
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatalf("engine %d tells no address", target)
		}
		return "http://" + lines.Text()
	}
	ended := false
	c.end = func() {
		if !ended {
			ended = true
			_ = in.Close()  // it may have ended
			_ = cmd.Wait()  // how does not matter
			_ = out.Close() // closed by Wait
		}
	}
	t.Cleanup(c.end)
	return c
}

// mapped is what /healthz says of a target.
type mapped struct {
	Name    string   `json:"name"`
	GPUs    []string `json:"gpus"`
	Mapping string   `json:"mapping"`
}

func (r *running) mapped(t *testing.T) map[string]mapped {
	t.Helper()
	var h struct {
		Targets []mapped `json:"targets"`
	}
	must(t, json.Unmarshal([]byte(r.get(t, "/healthz")), &h))
	all := map[string]mapped{}
	for _, m := range h.Targets {
		all[m.Name] = m
	}
	return all
}

// judged counts the cells of a target with a verdict, and those that are withheld because its GPUs are not known.
func judged(cells []correlate.Cell, target string) (judged, unmapped int) {
	for i := range cells {
		switch c := &cells[i]; {
		case c.Target != target:
		case c.Verdict.OK():
			judged++
		case c.Verdict.Reason == verdict.ReasonNoMapping:
			unmapped++
		}
	}
	return judged, unmapped
}

func (k *kept) all() []correlate.Cell {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.cells)
}

func TestEnginesOfANodeAreTiedToTheGPUsTheirProcessesComputeOn(t *testing.T) {
	t.Parallel()
	bin := buildBinaries(t)
	tl := timelineOf(t, twoEngines)
	one, two := newChild(t, 0), newChild(t, 1)
	clock, err := hostclock.New()
	must(t, err)
	epoch := clock.Now()
	path := filepath.Join(t.TempDir(), "page")
	page, err := sim.NewPage(path, sim.Scenario(tl, one.pid, two.pid), sim.Options{}, clock.Now)
	must(t, err)
	inBackground(t, page.Run)
	var uuids []string
	for _, g := range tl.GPUs() {
		uuids = append(uuids, g.UUID)
	}
	oneURL, twoURL := one.begin(epoch), two.begin(epoch)

	cfg, live := quiet(t), &kept{}
	cfg.Targets = []timeline.Target{
		{Name: "one", EngineURL: oneURL, Model: "Llama-3.1-8B", DType: "bf16"},
		{Name: "two", EngineURL: twoURL, Model: "Llama-3.1-8B", DType: "bf16"},
		{Name: "named", EngineURL: oneURL, GPUs: uuids[2:]},
		{Name: "far", EngineURL: "http://engine.invalid:8000"},
	}
	cfg.NVML.Source, cfg.NVML.Helper, cfg.NVML.Library = agent.SourceHelper, bin.Helper, bin.Driver
	ag := start(t, cfg, agent.Deps{HelperEnv: []string{sim.EnvPage + "=" + path}, Sinks: []exporters.Sink{live}})

	for target, want := range map[string]mapped{
		"one":   {GPUs: uuids[:1], Mapping: fmt.Sprintf("process %d listens on port %s and computes there", one.pid, oneURL[strings.LastIndexByte(oneURL, ':')+1:])},
		"two":   {GPUs: uuids[1:2], Mapping: fmt.Sprintf("process %d listens on port %s and computes there", two.pid, twoURL[strings.LastIndexByte(twoURL, ':')+1:])},
		"named": {GPUs: uuids[2:], Mapping: "configuration"},
		"far":   {Mapping: "the engine is at engine.invalid, and only processes behind a loopback address are looked at"},
	} {
		until(t, time.Minute, "target "+target+" to be tied as it should", func() bool {
			got := ag.mapped(t)[target]
			return slices.Equal(got.GPUs, want.GPUs) && got.Mapping == want.Mapping
		})
	}
	until(t, time.Minute, "verdicts of both engines", func() bool {
		first, _ := judged(live.all(), "one")
		second, _ := judged(live.all(), "two")
		return first > 3 && second > 3
	})
	for i, target := range []string{"one", "two"} {
		until(t, 20*time.Second, "the series of target "+target, func() bool {
			v, ok := value(ag.get(t, "/metrics"), "tpotscope_gpu_dram_bytes_total", uuids[i])
			return ok && v > 0
		})
	}
	two.end()
	page.SetProcesses(1)
	ended := time.Now()
	until(t, time.Minute, "who computes to be asked for anew", func() bool { return time.Since(ended) > surveyed })
	if got := ag.mapped(t)["two"]; !slices.Equal(got.GPUs, uuids[1:2]) {
		t.Errorf("an engine that is gone: %+v, want the GPU that it had", got)
	}
	ag.stop(t)
	if tied, none := ag.log.count(`msg="target is tied to gpus"`), ag.log.count(`msg="target is tied to no gpu" target=far`); tied != 2 || none != 1 {
		t.Errorf("the log tells of %d targets that are tied and %d times of one that is not, want 2 and 1", tied, none)
	}
	if n := ag.log.count(`msg="gpus are read" count=3 model="NVIDIA H100 80GB HBM3" driver=`); n != 1 || ag.log.count("devices=SIMULATED") != 1 {
		t.Errorf("the log lists the simulated GPUs %d times, want once", n)
	}
	tiesAreRecorded(t, cfg.RecordDir(), live.all(), uuids)
}

// tiesAreRecorded makes sure that a replay ties as the agent did, and that the recording says how.
func tiesAreRecorded(t *testing.T, dir string, live []correlate.Cell, uuids []string) {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	tied := map[string]string{}
	for e, err := range r.Events() {
		must(t, err)
		if e.Kind == timeline.EventInventory && e.Target != "" {
			tied[e.Target] += e.Detail
		}
	}
	for i, target := range []string{"one", "two"} {
		if !strings.HasPrefix(tied[target], "tied to "+uuids[i]+": process ") || strings.Count(tied[target], "tied to") != 1 {
			t.Errorf("recorded of target %s: %q", target, tied[target])
		}
	}
	if len(tied) != 2 {
		t.Errorf("recorded ties %v, want two", tied)
	}
	again := replayed(t, dir)
	for _, target := range []string{"one", "two", "far"} {
		liveJudged, _ := judged(live, target)
		n, unmapped := judged(again, target)
		if target == "far" && n > 0 || target != "far" && (n < liveJudged || unmapped > 0) {
			t.Errorf("replay of target %s: %d cells are judged and %d have no mapping; live %d were judged", target, n, unmapped, liveJudged)
		}
	}
}
