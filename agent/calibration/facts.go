package calibration

import (
	"fmt"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Fact is one thing that is known of a GPU's peaks without running a load.
type Fact struct {
	Name    string `json:"name"`
	Text    string `json:"text"`
	Warning bool   `json:"warning,omitempty"` // the GPU cannot do what its model can
}

// lowPart of the model's clock, or of the default power limit: below, the GPU cannot do what its model can.
const lowPart = 0.97

// Facts lists what is known of a GPU's peaks. The inventory may be empty.
func Facts(g timeline.GPU, inv timeline.Inventory) []Fact {
	hw, err := hardware.IdentifyGPU(g)
	var facts []Fact
	add := func(warning bool, name, format string, args ...any) {
		facts = append(facts, Fact{name, fmt.Sprintf(format, args...), warning})
	}
	if err != nil {
		add(true, "model", "%q is in no table: rates are unknown, and what is achievable is assumed", g.Name)
	}
	switch derived := g.DerivedBandwidth(); {
	case hw.SheetBandwidth > 0 && derived > 0:
		add(false, "bandwidth", "%.0f GB/s by data sheet, %.0f GB/s from memory clock and bus width (%+.1f %%)", hw.SheetBandwidth/1e9, derived/1e9, 100*(derived/hw.SheetBandwidth-1))
	case derived > 0:
		add(false, "bandwidth", "%.0f GB/s from memory clock and bus width", derived/1e9)
	case hw.SheetBandwidth > 0:
		add(false, "bandwidth", "%.0f GB/s by data sheet; the driver tells no memory clock or bus width", hw.SheetBandwidth/1e9)
	}
	if peak := denominator(g, hw); peak > 0 {
		add(false, "denominator", "DRAM utilisation is taken as a part of %.0f GB/s", peak/1e9)
	}
	if hw.Rates.BF16 > 0 {
		add(false, "tensor", "%.0f TFLOP/s dense in bf16 at %.0f MHz; tensor activity is a part of cycles, whatever the clock", hw.Rates.BF16/1e12, hw.RateClockHz/1e6)
	}
	clockFacts(g, hw, inv, add)
	if g.PowerLimitW > 0 && g.DefaultLimitW > 0 {
		add(g.PowerLimitW < lowPart*g.DefaultLimitW, "power", "limit %.0f W, by default %.0f W (%.0f %%)", g.PowerLimitW, g.DefaultLimitW, 100*g.PowerLimitW/g.DefaultLimitW)
	}
	eta := verdict.EtaOf(hw)
	add(false, "achievable", "without calibration: %.2f of the bandwidth (%s), tensor cores active %.2f of the time (%s)", eta.Bandwidth, eta.BandwidthOrigin, eta.Tensor, eta.TensorOrigin)
	return facts
}

// clockFacts compares the clocks that the GPU may run at with those of its model.
func clockFacts(g timeline.GPU, hw hardware.GPU, inv timeline.Inventory, add func(bool, string, string, ...any)) {
	for _, c := range []struct {
		name             string
		most, model, app float64
	}{
		{"sm clock", g.MaxSMClockHz, hw.MaxSMClockHz, inv.AppSMClockHz}, {"memory clock", g.MaxMemClockHz, hw.MaxMemClockHz, inv.AppMemClockHz},
	} {
		if c.most <= 0 {
			continue
		}
		text := fmt.Sprintf("at most %.0f MHz", c.most/1e6)
		low := false
		if c.model > 0 {
			text += fmt.Sprintf(", the model's is %.0f MHz", c.model/1e6)
			low = c.most < lowPart*c.model
		}
		if c.app > 0 && c.app < lowPart*c.most {
			text += fmt.Sprintf(", application clocks ask for %.0f MHz", c.app/1e6)
			low = true
		}
		add(low, c.name, "%s", text)
	}
}

// denominator is the bandwidth that DRAM utilisation is taken as a part of: the sheet's, where the model is known.
func denominator(g timeline.GPU, hw hardware.GPU) float64 {
	if hw.SheetBandwidth > 0 {
		return hw.SheetBandwidth
	}
	return g.DerivedBandwidth()
}
