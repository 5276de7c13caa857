package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// A simulated GPU that is lost for a while takes no agent with it, and is read again.
func TestAnAgentOutlivesDevicesOfItsOwnProcessThatAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "seed 4\nduration 60s\ngpu h100\ntarget main model=Llama-3.1-8B dtype=bf16\nload streams=2 prompt=50 output=100\ncounter lost 2s..4s\n")
	cfg := w.config(t)
	lib := agent.Lasting{Local: remote.NewLocal(w.lib, agent.Sampling(&cfg), w.clock.Now)}
	ag := start(t, cfg, agent.Deps{Counters: lib})
	windows := func() bool {
		v, ok := value(ag.get(t, "/metrics"), "tpotscope_gpu_covered_seconds_total", w.tl.GPUs()[0].UUID)
		return ok && v > 0
	}
	until(t, 10*time.Second, "windows before the loss", windows)
	until(t, 20*time.Second, "the loss", func() bool { return w.clock.Now().Sub(w.epoch) > 4*time.Second })
	before, _ := value(ag.get(t, "/metrics"), "tpotscope_gpu_covered_seconds_total", w.tl.GPUs()[0].UUID)
	until(t, 20*time.Second, "windows after the loss", func() bool {
		v, _ := value(ag.get(t, "/metrics"), "tpotscope_gpu_covered_seconds_total", w.tl.GPUs()[0].UUID)
		return v > before+1
	})
	if !strings.Contains(ag.get(t, "/healthz"), `"state": "ok"`) {
		t.Error("health does not say that the GPU is read again")
	}
}
