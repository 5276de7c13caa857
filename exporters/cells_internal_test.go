package exporters

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// TestEveryCounterIsExportedOrIsNotForAReason holds the catalogue to the counters: a new one is either a series, or stands here.
func TestEveryCounterIsExportedOrIsNotForAReason(t *testing.T) {
	seen := map[timeline.Counter]int{
		timeline.DRAMUtil:           1, // as bytes
		timeline.HMMAUtil:           1, // a part of the tensor activity
		timeline.IMMAUtil:           1, // a part of the tensor activity
		timeline.EventReasons:       1, // by reason, as throttled seconds
		timeline.ThrottlePower:      1, // by reason, as throttled seconds
		timeline.ThrottleSWThermal:  1, // by reason, as throttled seconds
		timeline.ThrottleHWThermal:  1, // by reason, as throttled seconds
		timeline.ThrottlePowerBrake: 1, // by reason, as throttled seconds
		timeline.ThrottleSyncBoost:  1, // by reason, as throttled seconds
		timeline.GPUDuty:            1, // dcgm-exporter has it, and it says less than the activity does
		timeline.MemDuty:            1, // is not bandwidth, and is taken for it
		timeline.ECCCorrectedEver:   1, // grows as the volatile count does
		timeline.ECCUncorrectedEver: 1, // grows as the volatile count does
	}
	for id, c := range gauges {
		seen[c]++
		if catalogue[id].Kind != Gauge || c.Cumulative() {
			t.Errorf("%s shows %v, which only grows", catalogue[id].Name, c)
		}
	}
	for id, c := range integrals {
		seen[c]++
		if catalogue[id].Kind != Counter || !c.Cumulative() && !c.Windowed() {
			t.Errorf("%s integrates %v, which is a reading at one moment", catalogue[id].Name, c)
		}
	}
	for c := range timeline.Counter(timeline.NumCounters) {
		if seen[c] != 1 {
			t.Errorf("%v stands in the catalogue %d times, want once", c, seen[c])
		}
	}
}
