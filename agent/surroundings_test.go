package agent_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// node is a simulated node whose GPUs are behind the driver's library: a scenario plays into the page, and the real helper
// reads it through the real binding.
type node struct {
	world

	page *sim.Page
	bin  binaries
	env  []string
}

// newNode plays a scenario from this moment on. The engine is this process.
func newNode(t *testing.T, text string) *node {
	t.Helper()
	n := &node{bin: buildBinaries(t)}
	s, err := scenario.Parse("test", strings.NewReader(text))
	must(t, err)
	n.tl, err = s.Run()
	must(t, err)
	n.clock, err = hostclock.New()
	must(t, err)
	n.epoch = n.clock.Now()
	path := filepath.Join(t.TempDir(), "page")
	n.page, err = sim.NewPage(path, sim.Scenario(n.tl, os.Getpid()), sim.Options{}, n.clock.Now)
	must(t, err)
	inBackground(t, n.page.Run)
	n.env = []string{sim.EnvPage + "=" + path}
	n.url = engine(t, &n.world)
	return n
}

// engine serves a world's requests.
func engine(t *testing.T, w *world) string {
	t.Helper()
	llm, err := llmsim.New(llmsim.Config{
		Model: w.tl.Targets()[0].Model, Now: w.clock.Now, Epoch: w.epoch, Plan: w.tl, Free: llmsim.DefaultPace(), Precise: true,
	})
	must(t, err)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	inBackground(t, func(ctx context.Context) error { return llm.Run(ctx, ln) })
	return "http://" + ln.Addr().String()
}

// agentOf is the configuration of an agent that reads the node.
func (n *node) agentOf(t *testing.T) (agent.Config, agent.Deps) {
	t.Helper()
	cfg := n.config(t)
	for _, g := range n.tl.GPUs() {
		cfg.Targets[0].GPUs = append(cfg.Targets[0].GPUs, g.UUID)
	}
	cfg.NVML.Source, cfg.NVML.Helper, cfg.NVML.Library = agent.SourceHelper, n.bin.Helper, n.bin.Driver
	cfg.Metrics.Profile = "full"
	return cfg, agent.Deps{HelperEnv: n.env}
}

// around is what /healthz says of what is around a GPU.
type around struct {
	NUMANode     *int `json:"numa_node"`
	PCIeMaxGen   int  `json:"pcie_max_gen"`
	PCIeMaxWidth int  `json:"pcie_max_width"`
	PCIeWidth    int  `json:"pcie_width"`
	NVLinks      int  `json:"nvlinks"`
	NVLinksUp    int  `json:"nvlinks_up"`
	Processes    *int `json:"processes"`
}

// around reads what /healthz says of what is around each GPU, by position.
func (r *running) around(t *testing.T) []around {
	t.Helper()
	var h struct {
		GPUs []struct {
			Inventory around `json:"inventory"`
		} `json:"gpus"`
	}
	must(t, json.Unmarshal([]byte(r.get(t, "/healthz")), &h))
	var all []around
	for _, g := range h.GPUs {
		all = append(all, g.Inventory)
	}
	return all
}

// events returns the recorded events of a kind.
func events(t *testing.T, dir string, kind timeline.EventKind) []string {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	var all []string
	for e, err := range r.Events() {
		must(t, err)
		if e.Kind == kind {
			all = append(all, e.Detail)
		}
	}
	return all
}

// surveyed is longer than what is around a GPU takes to be asked for anew.
const surveyed = 15 * time.Second

func TestWhatIsAroundGPUsComesThroughTheDriverAndAChangeIsToldOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, "seed 36\nduration 60s\ngpu h100 count=2\ntarget main model=Llama-3.1-70B dtype=fp8 tp=2\nload streams=2 prompt=50 output=100 0s..60s\n")
	cfg, deps := n.agentOf(t)
	ag := start(t, cfg, deps)
	var got []around
	until(t, surveyed, "the inventory of both GPUs", func() bool {
		got = ag.around(t)
		return len(got) == 2 && got[0].Processes != nil && got[1].Processes != nil && got[1].NVLinks > 0
	})
	for gpu, v := range got {
		if v.NUMANode == nil || *v.NUMANode != 0 || v.PCIeMaxGen != 5 || v.PCIeMaxWidth != 16 || v.PCIeWidth != 16 || v.NVLinks != 18 || v.NVLinksUp != 18 || *v.Processes != 1 {
			t.Errorf("GPU %d: %+v", gpu, v)
		}
	}
	lanes := func(gpu int) float64 {
		v, _ := value(ag.get(t, "/metrics"), "tpotscope_gpu_pcie_lanes", n.tl.GPUs()[gpu].UUID)
		return v
	}
	until(t, 10*time.Second, "the lanes as a metric", func() bool { return lanes(0) == 16 && lanes(1) == 16 })
	until(t, 10*time.Second, "what the helper takes as a metric", func() bool {
		page := ag.get(t, "/metrics")
		return strings.Contains(page, "tpotscope_helper_memory_bytes ") && strings.Contains(page, "tpotscope_helper_cpu_cores ")
	})

	n.page.SetNVLink(1, 3, false)
	until(t, surveyed, "17 links", func() bool { return ag.around(t)[1].NVLinksUp == 17 })
	n.page.SetPCIeWidth(0, 8)
	until(t, surveyed, "8 lanes", func() bool { return ag.around(t)[0].PCIeWidth == 8 && lanes(0) == 8 })
	asked := time.Now()
	until(t, surveyed, "what is around to be asked for once more", func() bool { return time.Since(asked) > 11*time.Second })
	ag.stop(t)
	const board = "NUMA node 0, PCIe 5 x16 at most"
	const clocks = ", application clocks 1980 and 2619 MHz, "
	want := []string{
		board + clocks + "18 of 18 NVLinks up", board + clocks + "18 of 18 NVLinks up",
		"NVLink 3 to " + n.tl.GPUs()[0].PCIBusID + " is down: " + board + clocks + "17 of 18 NVLinks up",
		"PCIe has 8 lanes and had 16: " + board + ", x8 now" + clocks + "18 of 18 NVLinks up",
	}
	if got := events(t, cfg.RecordDir(), timeline.EventInventory); !slices.Equal(got, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c := ag.log.count(`msg="links of a gpu changed"`); c != 2 {
		t.Errorf("the log tells of %d changes, want 2", c)
	}
	findings := probe(t, n)
	if len(findings.Inventory) != 2 || findings.Inventory[1].NVLinks[3].Up || !findings.Inventory[1].NVLinks[2].Up || findings.Inventory[0].PCIeWidth != 8 {
		t.Errorf("the helper's probe finds %+v", findings.Inventory)
	}
}

const shared = `seed 43
duration 75s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=8 prompt=100 output=300..400 0s..75s
fault neighbour 33% 16s..40s
`

// TestAForeignProcessWithholdsTheVerdictWhileItIsThere has two agents on one node, one of which may judge all the same.
func TestAForeignProcessWithholdsTheVerdictWhileItIsThere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 75 s of real time: a stranger comes and goes")
	}
	n := newNode(t, shared)
	var live, allowed kept
	cfg, deps := n.agentOf(t)
	deps.Sinks = []exporters.Sink{&live}
	ag := start(t, cfg, deps)
	also, deps := n.agentOf(t)
	also.Engine.AllowForeign, also.Proxy.Listen, also.Proxy.Upstream = true, "", ""
	deps.Sinks = []exporters.Sink{&allowed}
	other := start(t, also, deps)
	n.play(t, "http://"+ag.doors.Proxy)
	ag.stop(t)
	other.stop(t)

	if len(live.cells) < 60 || len(allowed.cells) < 60 {
		t.Fatalf("%d and %d cells of 75 s", len(live.cells), len(allowed.cells))
	}
	from, to := withheld(n, live.cells)
	t.Logf("a stranger from 16 s to 40 s: verdicts are withheld from %v to %v", from, to)
	// It is asked every 10 s who computes, and looked at every 10 s.
	if from < 15*time.Second || from > 37*time.Second || to < 40*time.Second || to > 62*time.Second {
		t.Errorf("verdicts are withheld from %v to %v of the scenario", from, to)
	}
	if from, _ := withheld(n, allowed.cells); from != 0 {
		t.Errorf("the agent that may judge withholds from %v on", from)
	}
	judged, low := 0, 0
	for _, c := range allowed.cells {
		if at := c.Span.Start.Sub(n.epoch); at > 38*time.Second && at < 40*time.Second && c.Decode {
			judged++
			if c.Verdict.OK() && c.Verdict.Confidence <= timeline.Low && slices.Contains(c.Verdict.Overlays, timeline.NoisyNeighbour) {
				low++
			} else {
				t.Logf("at %v: %s, %s confidence, overlays %v, %v", at, c.Verdict.Label, c.Verdict.Confidence, c.Verdict.Overlays, c.Verdict.Caps)
			}
		}
	}
	if judged == 0 || low != judged {
		t.Errorf("%d of %d cells beside the stranger are judged with low confidence and name it", low, judged)
	}
	states := events(t, cfg.RecordDir(), timeline.EventCapability)
	states = slices.DeleteFunc(states, func(s string) bool { return !strings.Contains(s, timeline.ForeignProcess) })
	if len(states) != 2 || !strings.Contains(states[0], "untrusted") || !strings.Contains(states[0], "1 of the 2 processes") || !strings.Contains(states[1], "ok") {
		t.Errorf("recorded of strangers: %q, want one that comes and one that goes", states)
	}
	for dir, want := range map[string]bool{cfg.RecordDir(): true, also.RecordDir(): false} {
		if again := replayed(t, dir); slices.ContainsFunc(again, func(c correlate.Cell) bool { return c.Verdict.Reason == verdict.ReasonForeign }) != want {
			t.Errorf("a replay of %s: verdicts withheld is not %v", dir, want)
		}
	}
}

// withheld returns from when to when, since the scenario's start, verdicts are withheld because of a stranger, and fails
// nothing: zero if none is.
func withheld(n *node, cells []correlate.Cell) (from, to time.Duration) {
	for _, c := range cells {
		if c.Verdict.Reason != verdict.ReasonForeign {
			continue
		}
		if from == 0 {
			from = c.Span.Start.Sub(n.epoch)
		}
		to = c.Span.End.Sub(n.epoch)
	}
	return from, to
}

// replayed returns the cells of a recording, concluded anew.
func replayed(t *testing.T, dir string) []correlate.Cell {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	var cells []correlate.Cell
	_, err = replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		cells = append(cells, o.Cells...)
		return nil
	}, nil)
	must(t, err)
	return cells
}

// probe asks the helper what it finds, as the doctor does.
func probe(t *testing.T, n *node) remote.Findings {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), n.bin.Helper, "-probe", "-library", n.bin.Driver)
	cmd.Env = append(os.Environ(), n.env...)
	out, err := cmd.Output()
	must(t, err)
	var found remote.Findings
	must(t, json.Unmarshal(out, &found))
	return found
}
