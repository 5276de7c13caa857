package scenario_test

import (
	"fmt"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

func Example() {
	s, err := scenario.Parse("example.scenario", strings.NewReader(`
		seed 7
		duration 10s
		gpu h100
		target main model=Llama-3.1-8B dtype=bf16
		load streams=8 prompt=200 output=1000
		phase decode 2s..10s
	`))
	if err != nil {
		fmt.Println(err)
		return
	}
	tl, err := s.Run()
	if err != nil {
		fmt.Println(err)
		return
	}
	truth, _ := tl.PhaseTruth(0, "decode")
	fmt.Printf("%s for %.0f%% of the time, a batch of %.0f\n", truth.Dominant, truth.Share*100, truth.MeanBatch)
	// Output: memory for 83% of the time, a batch of 8
}
