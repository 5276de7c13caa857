package probe

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Close ends the request and hands its record to the sink. Only the first call counts, so that a request is closed
// exactly once on whichever way it ends.
func (t *Tracker) Close(at timeline.Instant, how End) *timeline.Request {
	if t.closed {
		return &t.r
	}
	if t.zipped != nil && t.zipped.close() != nil && how == EndEOF {
		t.r.Flags |= timeline.FlagUnparsed
	}
	switch t.form {
	case formStream:
		t.sse.Close(t.emit)
		t.tail = 0
		t.flush()
	case formReply:
		t.whole(how)
	case formNone:
	}
	t.release(false)
	t.closed = true
	r := &t.r
	r.Done = at
	r.Status = t.status(how)
	r.Finish = t.finish
	r.Dialect = t.flavour.String()
	t.account()
	t.doubt(how)
	t.reply = nil
	if !t.open {
		open := *r
		t.sink.OpenRequest(&open)
	}
	closed := *r
	t.sink.CloseRequest(&closed)
	return r
}

// whole reads a reply that is one JSON value. It has no token events: all its tokens come at once, at the end.
func (t *Tracker) whole(how End) {
	c, ok := t.parser.Parse(t.reply)
	t.inBand = t.inBand || c.Error
	if !ok || !c.Known {
		if how == EndEOF {
			t.r.Flags |= timeline.FlagUnparsed
		}
		return
	}
	if believe(c) {
		t.r.Flags |= timeline.FlagUnparsed
	}
	t.flavour = max(t.flavour, c.Flavour)
	t.totals(c)
	for i := range c.Deltas {
		ch := t.choice(c.Deltas[i].Choice)
		ch.finished = ch.finished || c.Deltas[i].Finish != ""
		t.finish = c.Deltas[i].Finish
	}
	if c.Usage.Known {
		t.final.Known, t.final.Completion = true, c.Usage.Completion
	}
}

// terminal reports whether the stream said that it is over.
func (t *Tracker) terminal() bool {
	if t.done {
		return true
	}
	for i := range t.choices {
		if !t.choices[i].finished {
			return false
		}
	}
	return len(t.choices) > 0
}

func (t *Tracker) status(how End) timeline.Status {
	r := &t.r
	if r.Head.IsZero() {
		return byEnd(how, timeline.StatusUpstream)
	}
	switch {
	case r.HTTPStatus >= 400:
		return timeline.StatusHTTPError
	case t.inBand:
		return timeline.StatusInBand
	case t.form == formStream && t.terminal():
		return timeline.StatusOK
	case t.form == formStream:
		return byEnd(how, timeline.StatusTruncated)
	case how == EndEOF:
		return timeline.StatusOK
	}
	return byEnd(how, timeline.StatusTruncated)
}

// byEnd is the status that the transport's view alone gives; without is for an end by the server's side.
func byEnd(how End, without timeline.Status) timeline.Status {
	switch how {
	case EndClient:
		return timeline.StatusCancelled
	case EndTimeout:
		return timeline.StatusTimeout
	case EndStopped:
		return timeline.StatusUnfinished
	case EndUpstream, EndCut, EndEOF:
	}
	return without
}

// account settles how many tokens the request gave and by which source. Counts by event stand if every event has one;
// else the server's total, and then the first event is assumed to carry one token.
func (t *Tracker) account() {
	r := &t.r
	total, told := t.total()
	switch {
	case r.Events > 0 && t.blind == 0 && !t.oversize && t.sum > 0:
		r.OutputTokens, r.Counted = t.sum, t.worst
		t.reconcile(total, told)
	case told:
		r.OutputTokens, r.Counted = total, timeline.CountFinal
		t.hidden(total)
		t.end(total)
		if r.Events > 0 && r.FirstTokens == 0 && r.OutputTokens > 0 {
			r.FirstTokens = 1
			r.Flags |= timeline.FlagFirstAssumed
		}
	case r.Events > 0 || r.Status == timeline.StatusOK:
		r.OutputTokens, r.Counted, r.FirstTokens = 0, timeline.CountNone, 0
		r.Flags |= timeline.FlagNoCount
	}
	r.ReasoningTokens = max(t.final.Reasoning, 0)
}

// slack is how far counts by event may fall short of the server's total before tokens count as hidden: end-of-text
// tokens are in the total but in no event.
func slack(total int) int { return max(2, total/20) }

// reconcile compares counts by event with the server's total.
func (t *Tracker) reconcile(total int, told bool) {
	r := &t.r
	if !told || total == t.sum || r.Status != timeline.StatusOK {
		return
	}
	r.Flags |= timeline.FlagCountMismatch
	unseen := total - t.sum
	explained := !t.reasoning && t.final.Reasoning > 0 && unseen <= t.final.Reasoning+slack(total)
	if unseen > slack(total) && !explained {
		r.Flags |= timeline.FlagHiddenTokens
	}
}

// hidden flags a stream that showed nothing although tokens were counted. Reasoning that no event showed but that has a
// count of its own stays in the total: whoever computes latencies takes it off.
func (t *Tracker) hidden(total int) {
	if t.form == formStream && t.r.Events == 0 && total > 0 && (t.reasoning || t.final.Reasoning <= 0) {
		t.r.Flags |= timeline.FlagHiddenTokens
	}
}

// end delivers the token that ended the text as an event of its own, where the total holds more than the events showed
// and the finish came a step after the last of them. Without it the last token would seem to have come a step early, and
// TPOT to be smaller than it was. A finish that comes at once after the last text is no step: servers that merge tokens
// send it so.
func (t *Tracker) end(total int) {
	shown := total
	if !t.reasoning {
		shown -= max(t.final.Reasoning, 0)
	}
	if t.form != formStream || t.r.Status != timeline.StatusOK || t.ending.end == 0 || len(t.choices) != 1 || shown <= t.r.Events {
		return
	}
	if step := t.medianGap(); step > 0 && 2*int64(t.ending.event.At.Sub(t.lastEvent)) >= step {
		t.deliver(t.ending.event)
	}
}

// medianGap returns the median of the first gaps between events, zero if there is none.
func (t *Tracker) medianGap() int64 {
	if len(t.gaps) == 0 {
		return 0
	}
	sorted := slices.Clone(t.gaps)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// doubt sets the flags that the whole stream decides.
func (t *Tracker) doubt(how End) {
	r := &t.r
	if r.Coalesced*20 > r.Events {
		r.Flags |= timeline.FlagCoalesced
	}
	if r.Choices > 1 || len(t.choices) > 1 {
		r.Flags |= timeline.FlagMultipleChoices
	}
	ended := how == EndEOF || how == EndCut
	if t.form == formStream && !t.done && ended {
		r.Flags |= timeline.FlagNoTerminal
	}
	if t.backlog() {
		r.Flags |= timeline.FlagBacklog
	}
}

// backlog reports whether tokens had piled up behind a late first event: there are fewer events than tokens, and the
// first gap is below a fifth of the median one.
func (t *Tracker) backlog() bool {
	const enough = 4
	if len(t.gaps) < enough || t.r.Counted == timeline.CountNone || t.r.Events >= t.r.OutputTokens {
		return false
	}
	return t.gaps[0]*5 < t.medianGap()
}
