package libnvml

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestThrottleIDsFollowTheDriver(t *testing.T) {
	for version, want := range map[string]uint32{
		"535.183.01": 0, "570.86.15": 0, "575.57.08": 251, "580.65.06": 251, "590.44.01": 269, "610.11": 269, "": 0, "weird": 0,
	} {
		var have uint32
		for _, f := range fieldsFor(version) {
			if f.counter == timeline.ThrottleSWThermal {
				have = f.id
			}
		}
		if have != want {
			t.Errorf("driver %q: software thermal time at field %d, want %d", version, have, want)
		}
	}
}

func TestProcessListsOfAnotherShapeAreNotBelieved(t *testing.T) {
	for version, want := range map[string]bool{
		"535.43.02": true, "535.86.10": true, "535.98": false, "535.183.01": false, "550.54.14": false, "525.147.05": false, "": false, "535": false,
	} {
		if have := brokenProcesses(version); have != want {
			t.Errorf("driver %q: another shape %v, want %v", version, have, want)
		}
	}
}

func TestNoDriverIsAskedForMetricsOrFieldsThatCameLater(t *testing.T) {
	for _, c := range []struct {
		version string
		metric  uint32 // the greatest id
		field   uint32
	}{
		{"525.147.05", 97, 139},
		{"535.183.01", 97, 186},
		{"550.127.05", 97, 186},
		{"560.35.03", 97, 198},
		{"575.57.08", 209, 253},
		{"580.95.05", 209, 253},
		{"590.44.01", 476, 271},
		{"", 97, 139},
	} {
		for _, m := range metricsFor(c.version) {
			if uint32(m.id) > c.metric {
				t.Errorf("driver %q is asked for metric %d of %s", c.version, m.id, m.counter)
			}
		}
		for _, f := range append(fieldsFor(c.version), healthFields()...) {
			if f.id > c.field && f.id > 145 {
				t.Errorf("driver %q is asked for field %d of %s", c.version, f.id, f.counter)
			}
		}
	}
}
