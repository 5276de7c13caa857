package otlp_test

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

func TestCapabilitiesAreSentInTheFullProfile(t *testing.T) {
	for _, profile := range []exporters.Profile{exporters.Standard, exporters.Full} {
		r := newReceiver(t)
		b := second(0)
		b.Capabilities = []timeline.Capability{{GPU: 0, Call: "dram_util", State: timeline.StateNoPermission}}
		send(t, r, func(c *otlp.Config) { c.Profile = profile }, b)
		want := map[string]string{"hw.id": b.GPUs[0].UUID, "call": "dram_util", "state": "no_permission"}
		points, resource := r.points("tpotscope.gpu.capability", want)
		if (len(points) > 0) != (profile == exporters.Full) {
			t.Errorf("%v: %d points", profile, len(points))
		}
		if len(points) > 0 && (points[0].GetAsDouble() != 1 || resource["service.name"] != "tpotscope") {
			t.Errorf("%v: point %v of %v, want one of the agent", profile, points[0], resource)
		}
	}
}
