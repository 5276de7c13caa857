package probe

import (
	"strings"
	"unicode"

	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// maxTokens bounds what is believed of one request; the longest contexts have less than an eighth of that. What a server
// or a client says beyond it says nothing: it is left out and flagged, and must not reach a sum.
const maxTokens = 1 << 24

// believe takes out of a payload what no request can have, and reports whether there was any. Counts and times below
// zero do not come out of a parser.
func believe(c *wire.Chunk) bool {
	odd := false
	count := func(n *int) {
		if *n > maxTokens {
			*n, odd = wire.Absent, true
		}
	}
	u := &c.Usage
	if u.Known && u.Completion > maxTokens {
		u.Known, odd = false, true
	}
	count(&u.Prompt)
	count(&u.Cached)
	count(&u.Reasoning)
	if t := &c.Timings; t.OutputTokens > maxTokens || t.PromptTokens > maxTokens {
		c.Timings, c.HasTimings, odd = timeline.EngineTimings{}, false, true
	}
	for i := range c.Deltas {
		d := &c.Deltas[i]
		if d.Choice >= maxChoices {
			d.Choice, odd = maxChoices-1, true
		}
	}
	return odd
}

// bounded bounds what a client asks for.
func bounded(q wire.Request) wire.Request {
	q.Model = printable(q.Model)
	if q.MaxTokens > maxTokens {
		q.MaxTokens = 0 // as good as no limit
	}
	q.Choices = min(q.Choices, maxChoices)
	return q
}

// printable makes a name from outside fit for a line of a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}
