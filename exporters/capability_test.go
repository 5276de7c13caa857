package exporters_test

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
)

func TestACallOfAGPUHasTheSeriesOfItsPresentStateAlone(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	gpus := []timeline.GPU{{UUID: "GPU-1"}, {UUID: ""}, {UUID: "GPU-2"}}
	take := func(list ...timeline.Capability) {
		t.Helper()
		if err := s.Consume(&exporters.Batch{GPUs: gpus, Capabilities: list}); err != nil {
			t.Fatal(err)
		}
	}
	take(
		timeline.Capability{GPU: 0, Call: "dram_util", State: timeline.StateOK},
		timeline.Capability{GPU: 2, Call: "dram_util", State: timeline.StateUnsupported},
		timeline.Capability{GPU: 1, Call: "dram_util"}, timeline.Capability{GPU: 3, Call: "dram_util"}, timeline.Capability{GPU: -1, Call: "dram_util"},
	)
	check(t, s, map[string]float64{"tpotscope_gpu_capability{GPU-1,dram_util,ok}": 1, "tpotscope_gpu_capability{GPU-2,dram_util,not_supported}": 1})
	take() // nothing is said of them
	check(t, s, map[string]float64{"tpotscope_gpu_capability{GPU-1,dram_util,ok}": 1})
	take(timeline.Capability{GPU: 0, Call: "dram_util", State: timeline.StateUntrusted})
	if got := values(s); len(got) != 1 || got["tpotscope_gpu_capability{GPU-1,dram_util,untrusted}"] != 1 {
		t.Errorf("series %v, want the present state alone", got)
	}
	less := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard})
	if err := less.Consume(&exporters.Batch{GPUs: gpus, Capabilities: []timeline.Capability{{Call: "dram_util"}}}); err != nil || len(values(less)) != 0 {
		t.Errorf("in the standard profile: %v, %v, want nothing", values(less), err)
	}
}

func TestWhatAHelperCountsGrowsThroughItsRestart(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	for _, step := range []struct{ told, want float64 }{{3, 3}, {5, 5}, {1, 6}, {1, 6}, {0, 6}, {2, 8}} {
		drops := exporters.Self{Name: "tpotscope.sampler.drops", Labels: []string{"GPU-1", "short"}, Value: step.told}
		duty := exporters.Self{Name: "tpotscope.sampler.duty", Labels: []string{"GPU-1"}, Value: step.told}
		if err := s.Consume(&exporters.Batch{Self: []exporters.Self{drops, duty}}); err != nil {
			t.Fatal(err)
		}
		check(t, s, map[string]float64{
			"tpotscope_sampler_drops_total{GPU-1,short}": step.want, "tpotscope_sampler_duty_ratio{GPU-1}": step.told,
		})
	}
}

func TestErrorsAreWholeThoughCellsSplitThem(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	for i, step := range []struct{ part, want float64 }{{0.3, 0}, {0.6999999999999999, 1}, {0.4, 1}, {0.6, 2}} {
		c := cell(i+1, "llama", "GPU-a", timeline.Memory)
		c.PerGPU[0].Counters[timeline.Xids] = correlate.Mean{Value: step.part, CoveredS: 1}
		c.PerGPU[0].Counters[timeline.Energy] = correlate.Mean{Value: 0.25, CoveredS: 1}
		s.AddCell(&c)
		check(t, s, map[string]float64{
			"tpotscope_gpu_xids_total{GPU-a,llama}": step.want, "tpotscope_gpu_energy_joules_total{GPU-a,llama}": 0.25 * float64(i+1),
		})
	}
}
