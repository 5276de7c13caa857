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
