package probe

import (
	"strings"
	"unicode"

	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Bounds of what is believed. What a server or a client says beyond them says nothing: it is left out and flagged, and
// must not reach a sum.
const (
	maxTokens = 1 << 24 // of one request; the longest contexts have less than an eighth of that
	maxWord   = 256     // bytes of a model's name
)

// believe takes out of a payload what no request can have, and reports whether there was any.
func believe(c *wire.Chunk) bool {
	odd := false
	count := func(n *int) {
		if *n > maxTokens {
			*n, odd = wire.Absent, true
		}
	}
	u := &c.Usage
	if u.Known && (u.Completion > maxTokens || u.Completion < wire.Absent) {
		u.Known, odd = false, true
	}
	count(&u.Prompt)
	count(&u.Cached)
	count(&u.Reasoning)
	if t := &c.Timings; t.OutputTokens > maxTokens || t.PromptTokens > maxTokens || t.OutputTokens < 0 || t.PromptTokens < 0 ||
		t.OutputTime < 0 || t.PromptTime < 0 || t.TimeToFirst < 0 || t.QueueTime < 0 || t.PerOutputMean < 0 {
		c.Timings, c.HasTimings, odd = timeline.EngineTimings{}, false, true
	}
	for i := range c.Deltas {
		d := &c.Deltas[i]
		if d.Choice < 0 || d.Choice >= maxChoices {
			d.Choice, odd = maxChoices-1, true
		}
	}
	return odd
}

// asked bounds what a client asks for.
func asked(q wire.Request) wire.Request {
	q.Model = word(q.Model)
	if q.MaxTokens > maxTokens || q.MaxTokens < 0 {
		q.MaxTokens = 0 // as good as no limit
	}
	q.Choices = min(max(q.Choices, 1), maxChoices)
	return q
}

// word makes a name from outside fit for a line of a log: bounded, and without what does not print.
func word(s string) string {
	s = strings.ToValidUTF8(s, "")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	if len(s) > maxWord {
		s = strings.ToValidUTF8(s[:maxWord], "")
	}
	return s
}
