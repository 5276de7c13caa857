package steps

import (
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Counted returns the reading of a stretch in which the engine counted its steps itself, and worked for the time busy.
// It knows no streams. Where it holds it stands above one from arrivals; see [Best].
func Counted(over timeline.Span, steps float64, busy time.Duration) Reading {
	r := Reading{Over: over, Source: Engine, Time: timeline.Absent(whyFewSteps)}
	r.Streams, r.Context, r.Tokens = timeline.Absent(whyCounted), timeline.Absent(whyCounted), timeline.Absent(whyCounted)
	switch {
	case math.IsNaN(steps) || steps < minSteps:
		r.Reason = whyFewSteps
	case busy <= 0:
		r.Reason = "the engine did no work"
	default:
		r.Steps, r.Holds = int(math.Round(steps)), true
		r.Time = timeline.Known(busy.Seconds() / steps)
	}
	return r
}

const whyCounted = "the engine counts steps, not what is in them"

// Best returns the reading to use: the engine's own count where it holds, with what arrivals know of the streams if
// they hold too; else that of the arrivals, whether it holds or not.
func Best(engine, arrivals Reading) Reading {
	if !engine.Holds {
		return arrivals
	}
	if arrivals.Holds {
		engine.Streams, engine.Context, engine.Tokens = arrivals.Streams, arrivals.Context, arrivals.Tokens
		engine.Quality = arrivals.Quality
	}
	return engine
}

// maxApart is how far the two may differ: what a reading of arrivals may be off, and one step at each end.
const maxApart = 0.05

// Disagreement returns how the engine's count and the arrivals contradict each other, and nothing if they do not or
// either does not hold.
func Disagreement(engine, arrivals Reading) string {
	if !engine.Holds || !arrivals.Holds {
		return ""
	}
	apart := arrivals.Time.Value/engine.Time.Value - 1
	if math.Abs(apart) <= maxApart+2/float64(min(engine.Steps, arrivals.Steps)) {
		return ""
	}
	return fmt.Sprintf("steps last %v by the engine's count and %v by arrivals, %+.0f %%", engine.length(), arrivals.length(), 100*apart)
}
