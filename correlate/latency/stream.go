package latency

import (
	"cmp"
	"slices"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// stream is what a request and its events agree on.
type stream struct {
	events      []timeline.TokenEvent // the ones that bore tokens, in order of time
	whole       bool                  // events holds all of them
	perEvent    bool                  // each of events tells its tokens, or must have borne exactly one
	first, last timeline.Instant
	n, kFirst   int
	counted     bool   // n means something
	assumed     bool   // kFirst is a guess of one
	mismatch    bool   // counts by event do not add up to the total
	hidden      string // why the tokens on the stream cannot be told from hidden ones
	choices     int
	coalesced   int
}

// tally is what the events alone say.
type tally struct {
	sum       int  // tokens of the events that tell theirs
	all, any  bool // whether all of them tell, or any
	promised  bool // some tell by nothing better than the dialect's promise
	reasoning bool // some are reasoning
}

// read sorts out events and counts. The stream's own counts beat the engine's total, for they say what came when.
func read(r *timeline.Request, events []timeline.TokenEvent) stream {
	s := stream{events: bearing(events), first: r.First, last: r.Last, choices: max(1, r.Choices)}
	s.whole = len(s.events) > 0 && r.Flags&timeline.FlagEventsDropped == 0 && len(events) >= r.Events
	c := s.tally()
	if s.whole || s.first.IsZero() && len(s.events) > 0 {
		s.first, s.last = s.events[0].At, s.events[len(s.events)-1].At
	}
	if r.Flags&timeline.FlagHiddenTokens != 0 {
		s.hidden = WhyHidden // they took time between the tokens that came
	}
	if s.counted = r.Counted != timeline.CountNone; s.counted {
		s.n = max(0, r.OutputTokens)
	}
	total := s.n
	switch byEvent := s.whole && c.all; {
	case byEvent && (!c.promised || !s.counted):
		s.n, s.counted, s.perEvent = c.sum, true, true
	case s.counted:
		s.subtractHidden(r, c.reasoning)
		s.perEvent = byEvent && c.sum == s.n || s.whole && !c.any && len(s.events) == s.n
	}
	s.mismatch = s.whole && c.all && r.Counted != timeline.CountNone && c.sum != total && c.sum+r.ReasoningTokens != total
	s.setFirst(r)
	return s
}

// tally goes through the events once.
func (s *stream) tally() tally {
	c := tally{all: len(s.events) > 0}
	for i := range s.events {
		e := &s.events[i]
		c.sum += int(max(e.Tokens, 0))
		told := counts(e.Source)
		c.all, c.any = c.all && told, c.any || told
		c.promised = c.promised || e.Source >= timeline.CountPerEvent
		c.reasoning = c.reasoning || e.Kind == timeline.KindReasoning
		s.choices = max(s.choices, int(e.Choice)+1)
		if e.Coalesced {
			s.coalesced++
		}
	}
	return c
}

// subtractHidden takes reasoning tokens that were not streamed off a count that is a total. Where that leaves fewer
// tokens than events, each of which bore one at least, the count was of the stream alone already.
func (s *stream) subtractHidden(r *timeline.Request, streamed bool) {
	switch rest := s.n - r.ReasoningTokens; {
	case s.hidden != "" || r.ReasoningTokens <= 0 || streamed:
	case len(s.events) == 0:
		s.hidden = WhyReasoning
	case rest >= len(s.events):
		s.n = rest
	}
}

// setFirst finds the tokens of the first event.
func (s *stream) setFirst(r *timeline.Request) {
	switch {
	case s.perEvent && !counts(s.events[0].Source):
		s.kFirst = 1
	case s.whole && counts(s.events[0].Source):
		s.kFirst = int(s.events[0].Tokens)
	case r.FirstTokens > 0:
		s.kFirst = r.FirstTokens
	case s.counted && s.n > 0:
		s.kFirst, s.assumed = 1, true
	}
}

// tpot returns the time per output token with k tokens taken off.
func (s *stream) tpot(k int) timeline.Measure {
	switch {
	case s.first.IsZero() || s.last.IsZero():
		return timeline.Absent(WhyNoToken)
	case !s.counted:
		return timeline.Absent(WhyNoCount)
	case s.hidden != "":
		return timeline.Absent(s.hidden)
	case s.n < 2:
		return timeline.Absent(WhyOneToken)
	case s.n == s.kFirst:
		return timeline.Absent(WhyAllInFirst)
	case s.n < s.kFirst || k < 1:
		return timeline.Absent(WhyCounts)
	case s.last < s.first:
		return timeline.Absent(WhyOrder)
	case s.last == s.first:
		return timeline.Absent(WhyOneStamp)
	}
	return timeline.Known(s.last.Sub(s.first).Seconds() / float64(s.n-k))
}

// bearing returns the events that bore tokens, in order of time. It copies only what it must leave out or reorder.
func bearing(events []timeline.TokenEvent) []timeline.TokenEvent {
	keep := func(e *timeline.TokenEvent) bool {
		return e.Kind.Bears() && !e.At.IsZero() && (!counts(e.Source) || e.Tokens > 0)
	}
	whole := true
	for i := range events {
		whole = whole && keep(&events[i]) && (i == 0 || events[i-1].At <= events[i].At)
	}
	if whole {
		return events
	}
	out := make([]timeline.TokenEvent, 0, len(events))
	for i := range events {
		if keep(&events[i]) {
			out = append(out, events[i])
		}
	}
	slices.SortStableFunc(out, func(a, b timeline.TokenEvent) int { return cmp.Compare(a.At, b.At) })
	return out
}

// counts reports whether a count from this source is of one event.
func counts(c timeline.CountSource) bool { return c != timeline.CountNone && c != timeline.CountFinal }
