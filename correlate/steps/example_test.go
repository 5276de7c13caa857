package steps_test

import (
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// One target, a minute and a half of its tokens, a cell a second: add each token as it comes, cut when a cell closes, and
// ask what step times say whenever a report is due.
func Example() {
	estimator := steps.New(steps.DefaultConfig())
	history := steps.NewHistory(steps.DefaultHistory)
	var last steps.Reading

	at, context := timeline.Instant(time.Second), 20_000.0
	cell := timeline.Span{Start: at, End: at.Add(time.Second)}
	for cell.End < timeline.Instant(90*time.Second) {
		// Eight streams, each of which gets a token of every step, within a millisecond of its end.
		at = at.Add(time.Duration(1e9 * (weights + kvBytes*context) / (0.85 * peak)))
		for stream := range 8 {
			estimator.Add(steps.Token{
				At: at.Add(time.Duration(stream) * 100 * time.Microsecond), Stream: uint64(stream), Tokens: 1, Context: int32(context / 8),
			})
		}
		context += 8
		if context > 60_000 { // requests ended, and shorter ones took their place
			context = 20_000
		}
		if at < cell.End.Add(100*time.Millisecond) {
			continue
		}
		arrivals := estimator.Cut(steps.Cut{Over: cell})
		counted := steps.Counted(cell, 0, time.Second) // an engine that does not count its steps
		last = steps.Best(counted, arrivals)
		// The probe sees all traffic here, so that what it saw is what the engine did.
		if o, ok := last.Observation(last.Streams, last.Context, timeline.Known(0)); ok {
			history.Add(o)
		}
		cell = timeline.Span{Start: cell.End, End: cell.End.Add(time.Second)}
	}

	fmt.Printf("%s: %v, %.0f streams a step\n", last.Source, last.Holds, last.Streams.Value)
	w := history.Witness(steps.Bytes{Weights: weights, KV: kvBytes, Bandwidth: peak})
	fmt.Printf("%s, the cache at %.2f of the peak\n", w.Says, w.KVRate.Value/peak)
	fmt.Println(w.Against(timeline.HostOrLaunch))
	// Output:
	// arrivals: true, 8 streams a step
	// memory_like, the cache at 0.85 of the peak
	// counters say host_or_launch, but step times are as long as reading their bytes takes
}
