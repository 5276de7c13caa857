package compare_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

const closedLoop = "seed %d\nduration %s\ngpu h100\ntarget main model=Llama-3.1-8B dtype=%s\n%sload streams=8 prompt=300..500 output=200..300\n"

func TestProbeIt(t *testing.T) {
	base := simulate(t, fmt.Sprintf(closedLoop, 106, "60s", "bf16", ""), rig{seen: 1, noise: 0.01})
	start := time.Now()
	for name, p := range map[string]*played{
		"fp8":      simulate(t, fmt.Sprintf(closedLoop, 107, "60s", "fp8", ""), rig{seen: 1, noise: 0.01}),
		"fallback": simulate(t, fmt.Sprintf(closedLoop, 107, "60s", "bf16", ""), rig{seen: 1, noise: 0.01, dtype: "fp8"}),
		"same":     simulate(t, fmt.Sprintf(closedLoop, 107, "60s", "bf16", ""), rig{seen: 1, noise: 0.01}),
		"eager":    simulate(t, fmt.Sprintf(closedLoop, 107, "60s", "bf16", "engine graphs=off\n"), rig{seen: 1, noise: 0.01}),
		"slow":     simulate(t, fmt.Sprintf(closedLoop, 107, "60s", "bf16", ""), rig{seen: 1, noise: 0.01, dtype: "w8a16", tune: func(s *scenario.Scenario) { slowDequant(s, 8) }}),
	} {
		t.Log(time.Since(start))
		s2 := time.Now()
		t.Log(name, figures(against(t, base.all("A"), p.all("B"))), time.Since(s2))
	}
}
