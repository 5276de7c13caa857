package probe

import (
	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// choice is what is known of one choice of a stream.
type choice struct {
	index    int32
	counted  int  // tokens counted by event
	usage    int  // the most that a cumulative count has told
	blind    bool // an event bore text without a count: growth of a total no longer belongs to one event
	finished bool
}

// maxChoices bounds the choices of one request that are told apart.
const maxChoices = 1024

func (t *Tracker) choice(index int32) *choice {
	for i := range t.choices {
		if t.choices[i].index == index {
			return &t.choices[i]
		}
	}
	if len(t.choices) == maxChoices {
		return &t.choices[maxChoices-1]
	}
	t.choices = append(t.choices, choice{index: index})
	return &t.choices[len(t.choices)-1]
}

// chunk takes one payload of the dialect, whose event ended at end.
func (t *Tracker) chunk(c *wire.Chunk, end int64) {
	if believe(c) {
		t.r.Flags |= timeline.FlagUnparsed
	}
	t.flavour = max(t.flavour, c.Flavour)
	t.done = t.done || c.Done
	t.totals(c)
	if c.Progress {
		return
	}
	for i := range c.Deltas {
		d := &c.Deltas[i]
		ch := t.choice(d.Choice)
		tokens, source := t.count(c, d, ch)
		if d.Finish != "" {
			ch.finished = true
			t.finish = d.Finish
			t.inBand = t.inBand || d.Finish == "error"
		}
		kind := d.Kind
		if !kind.Bears() && tokens > 0 {
			kind = timeline.KindEmpty
		}
		if !kind.Bears() {
			t.endsWithout(d, end)
			continue
		}
		t.tally(ch, tokens, source)
		t.reasoning = t.reasoning || kind == timeline.KindReasoning
		t.batch = append(t.batch, found{end: end, event: timeline.TokenEvent{
			Ref: t.r.Ref, Tokens: int32(tokens), Choice: d.Choice, Source: source, Kind: kind,
		}})
	}
}

// endsWithout keeps the finish of a text that ended by itself and bears no text: the token that ended it is in the
// server's total, and this is when it came. A text that was cut at its length has no such token.
func (t *Tracker) endsWithout(d *wire.Delta, end int64) {
	if d.Finish == "" || d.Finish == finishLength || len(t.choices) > 1 {
		return
	}
	t.ending = found{end: end, event: timeline.TokenEvent{
		Ref: t.r.Ref, Choice: d.Choice, Source: timeline.CountNone, Kind: timeline.KindEmpty,
	}}
}

// finishLength is the finish reason of a text that was cut.
const finishLength = "length"

// totals takes what a payload says of the whole request.
func (t *Tracker) totals(c *wire.Chunk) {
	if u := c.Usage; u.Known {
		if u.Prompt > 0 {
			t.r.PromptTokens, t.r.PromptKnown = u.Prompt, true
		}
		t.final.Reasoning = max(t.final.Reasoning, u.Reasoning)
		// The total over all choices stands on a payload without choices; one that speaks of a choice is of that choice.
		if len(c.Deltas) != 1 {
			t.final.Known, t.final.Completion = true, max(t.final.Completion, u.Completion)
		}
	}
	t.r.CachedTokens = max(t.r.CachedTokens, c.Usage.Cached)
	if c.HasTimings {
		t.r.Engine = c.Timings
	}
}

// count returns the tokens of one delta by the best source that the payload has: token ids, then the growth of a
// cumulative count, then log probabilities.
func (t *Tracker) count(c *wire.Chunk, d *wire.Delta, ch *choice) (int, timeline.CountSource) {
	cumulative := 0
	if len(c.Deltas) == 1 {
		switch {
		case c.Usage.Known:
			cumulative = c.Usage.Completion
		case c.HasTimings:
			cumulative = c.Timings.OutputTokens
		}
	}
	// Some servers send a usage of zero with every event until the last, so that zero tells nothing. A total that
	// comes first after events without a count is the request's, not the event's.
	grown := max(0, cumulative-max(ch.usage, ch.counted))
	ch.usage = max(ch.usage, cumulative)
	switch {
	case d.IDs > 0:
		return int(d.IDs), timeline.CountIDs
	case cumulative > 0 && !ch.blind:
		return grown, timeline.CountUsage
	case d.Logprobs > 0 && !t.echo:
		return int(d.Logprobs), timeline.CountLogprobs
	case d.IDs == 0:
		return 0, timeline.CountIDs
	}
	return 0, timeline.CountNone
}

// tally adds one token event to the counts.
func (t *Tracker) tally(ch *choice, tokens int, source timeline.CountSource) {
	if source == timeline.CountNone {
		ch.blind = true
		t.blind++
		return
	}
	ch.counted += tokens
	t.sum += tokens
	t.worst = max(t.worst, source)
}

// total returns the server's own count of the output, and whether it told one.
func (t *Tracker) total() (int, bool) {
	if t.final.Known && (t.final.Completion > 0 || t.r.Events == 0) {
		return t.final.Completion, true
	}
	sum := 0
	for i := range t.choices {
		sum += t.choices[i].usage
	}
	if sum > 0 {
		return sum, true
	}
	return t.r.Engine.OutputTokens, t.r.Engine.OutputTokens > 0
}
