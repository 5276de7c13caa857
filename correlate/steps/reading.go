package steps

import (
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Source says where a reading's steps come from.
type Source string

// The sources of steps.
const (
	Engine   Source = "engine"   // the engine counts them
	Arrivals Source = "arrivals" // found in the times at which tokens came
)

// Reading is what is known of the steps in one stretch of time. What is measured is there even where the reading does
// not hold, so that it can be shown with the reason.
type Reading struct {
	Over    timeline.Span // from the first arrival of the first step to the last of the last; as asked for if there is none
	Source  Source
	Steps   int              // whose ends lie there
	Time    timeline.Measure // s, mean length of a step
	Streams timeline.Measure // mean streams that got a token of a step: of those that are observed
	Context timeline.Measure // mean over steps of the sum of their contexts
	Tokens  timeline.Measure // mean tokens a stream gets of a step
	Quality Quality
	Holds   bool
	Reason  string // why it does not
}

// Quality is how well the arrivals of a stretch part into steps. All parts are of what a perfect reading would hold.
type Quality struct {
	Spread  time.Duration // mean time from the first to the last arrival of a step with several streams
	Absent  float64       // part of the steps between two of a stream's tokens of which it has none
	Doubled float64       // part of arrivals that are a stream's second of a step
	Several float64       // part of events with more than one token, or close behind another of their stream
	Dropped float64       // part of events for which there was no room, or that came too late
}

const (
	minGaps  = 8 // between events of a stream, to know about how long a step is
	minSteps = 8
	// maxDoubt is how much may be wrong with a reading that holds. Steps that run together show as doubled arrivals, steps
	// that fall apart as absent ones: while both together stay below, the number of steps and of streams is right to that.
	maxDoubt = 0.04
	// maxSeveral is the part of events of several tokens up to which they may be of several steps.
	maxSeveral = 0.02
	maxDropped = 0.01
)

// reading puts into r what the walk found.
func (w *walk) reading(r Reading, speculates bool, dropped int) Reading {
	t := &w.total
	r.Steps = t.steps
	if t.steps > 0 {
		r.Over = timeline.Span{Start: w.from, End: w.until + 1}
	}
	if t.linked > 0 {
		r.Time = timeline.Known(t.took / float64(t.linked))
	}
	if t.steps > 0 {
		r.Streams = timeline.Known(float64(t.arrivals) / float64(t.steps))
		r.Tokens = timeline.Known(float64(t.tokens) / float64(max(1, t.arrivals)))
		r.Context = timeline.Known(t.context / float64(t.steps))
		if t.unknown > 0 {
			r.Context = timeline.Absent(whyContext)
		}
	}
	// The open step tells of itself too: where all steps run together there is no other.
	all := w.total
	all.add(&w.step)
	r.Quality = Quality{
		Absent:  float64(all.absent) / float64(max(1, all.arrivals+all.absent)),
		Doubled: float64(all.doubled) / float64(max(1, all.arrivals+all.doubled)),
		Several: float64(all.several) / float64(max(1, all.arrivals+all.several)),
		Dropped: float64(dropped) / float64(max(1, all.arrivals+dropped)),
	}
	if t.shared > 0 {
		r.Quality.Spread = t.spread / time.Duration(t.shared)
	}
	r.judge(speculates)
	return r
}

const (
	whyFewSteps = "too few steps"
	whyContext  = "the context of some streams is not known"
)

// judge says whether the reading holds, and makes absent what it lacks.
func (r *Reading) judge(speculates bool) {
	q := &r.Quality
	for _, m := range []*timeline.Measure{&r.Time, &r.Streams, &r.Context, &r.Tokens} {
		if *m == (timeline.Measure{}) {
			*m = timeline.Absent(whyFewSteps)
		}
	}
	switch {
	case q.Dropped > maxDropped:
		r.Reason = fmt.Sprintf("%.0f %% of token events were dropped", 100*q.Dropped)
	case !speculates && q.Several > maxSeveral:
		r.Reason = fmt.Sprintf("%.0f %% of events carry several tokens, of one step by speculation or of several put together on the way: "+
			"arrivals do not tell which", 100*q.Several)
	case q.Doubled+q.Absent > maxDoubt && q.Doubled >= q.Absent:
		r.Reason = fmt.Sprintf("steps run together: %.0f %% of arrivals are a stream's second of a step; they spread over %v of a step of %v",
			100*q.Doubled, q.Spread.Round(10*time.Microsecond), r.length())
	case q.Doubled+q.Absent > maxDoubt:
		r.Reason = fmt.Sprintf("steps fall apart: %.0f %% of the tokens that streams should have of them are missing; arrivals spread over %v of "+
			"a step of %v", 100*q.Absent, q.Spread.Round(10*time.Microsecond), r.length())
	case r.Steps < minSteps || !r.Time.OK():
		r.Reason = whyFewSteps
	default:
		r.Holds = true
	}
}

func (r *Reading) length() time.Duration {
	return time.Duration(r.Time.Value * float64(time.Second)).Round(10 * time.Microsecond)
}

// short reports whether there was too little to tell, and nothing wrong with it.
func (r *Reading) short() bool { return r.Reason == whyFewSteps }

// doubt orders readings that do not hold.
func (r *Reading) doubt() float64 { return r.Quality.Absent + r.Quality.Doubled }
