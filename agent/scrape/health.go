package scrape

import (
	"errors"
	"math"
	"net/http"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// slowIsDown is how many scrapes in a row an engine may fail to answer, without refusing, before it counts as down. A
// busy engine answers late: some serve their metrics from the loop that decodes.
const slowIsDown = 3

// restartSlack is by how many seconds an engine's start time may move without being a restart. Engines with several
// processes tell the start of whichever answers.
const restartSlack = 2.0

// health follows whether an engine is there, and whether it is still the same one.
type health struct {
	known bool // the state below is not the zero state
	up    bool
	fails int
	mute  string                // why it answers without telling metrics
	last  timeline.EngineSample // newest answer
	seen  bool                  // last holds an answer
}

// failed notes a scrape without an answer.
func (h *health) failed(at timeline.Instant, target string, why error) []timeline.Event {
	if answers(why) {
		h.fails = 0
		if h.mute == why.Error() {
			return nil
		}
		h.mute = why.Error()
		return []timeline.Event{{At: at, Kind: timeline.EventCapability, GPU: timeline.NoGPU, Target: target, Detail: "engine metrics: " + h.mute}}
	}
	h.fails++
	if h.known && !h.up {
		return nil
	}
	if !errors.Is(why, errRefused) && h.fails < slowIsDown {
		return nil
	}
	h.known, h.up, h.mute = true, false, ""
	return []timeline.Event{{At: at, Kind: timeline.EventEngineDown, GPU: timeline.NoGPU, Target: target, Detail: why.Error()}}
}

// answers reports whether a failed scrape shows that something is there, and only tells no metrics: llama.cpp answers
// 501 without --metrics, others 404, or 401 to those without a key.
func answers(why error) bool {
	if status, ok := errors.AsType[statusError](why); ok {
		return status < http.StatusInternalServerError || status == http.StatusNotImplemented
	}
	return errors.Is(why, errUnknown) || errors.Is(why, errUnreadable) || errors.Is(why, errTooLarge) || errors.Is(why, errTooMany)
}

// answered notes a scrape with an answer.
func (h *health) answered(at timeline.Instant, s *timeline.EngineSample) []timeline.Event {
	var events []timeline.Event
	if !h.known || !h.up {
		events = append(events, timeline.Event{At: at, Kind: timeline.EventEngineUp, GPU: timeline.NoGPU, Target: s.Target})
	}
	if why := h.restarted(s); why != "" {
		events = append(events, timeline.Event{At: at, Kind: timeline.EventEngineRestart, GPU: timeline.NoGPU, Target: s.Target, Detail: why})
	}
	if h.mute != "" && h.known {
		events = append(events, timeline.Event{At: at, Kind: timeline.EventCapability, GPU: timeline.NoGPU, Target: s.Target, Detail: "engine metrics: ok"})
	}
	h.known, h.up, h.fails, h.mute = true, true, 0, ""
	h.last, h.seen = *s, true
	return events
}

// restarted says why s comes from another start of the engine than the last answer, or nothing.
func (h *health) restarted(s *timeline.EngineSample) string {
	if !h.seen {
		return ""
	}
	was, had := h.last.Get(timeline.StartTime)
	is, has := s.Get(timeline.StartTime)
	if had && has && math.Abs(is-was) > restartSlack {
		return "start time changed"
	}
	for c := timeline.PromptTotal; c < timeline.NumEngineCounters; c++ {
		was, had := h.last.Get(c)
		is, has := s.Get(c)
		if had && has && is < was {
			return c.String() + " fell"
		}
	}
	return ""
}
