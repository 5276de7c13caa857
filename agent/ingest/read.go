package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// batch is what a message holds, in the language of the timeline.
type batch struct {
	opened, closed []timeline.Request
	tokens         []timeline.TokenEvent
	bounds         []time.Duration // of each token, where the clock is another; nil: none has any
}

// deliver hands a batch to a sink, in an order in which each request is opened, gets tokens and is closed.
func (b *batch) deliver(sink timeline.RequestSink) {
	for i := range b.opened {
		sink.OpenRequest(&b.opened[i])
	}
	if many, ok := sink.(timeline.TokensSink); ok {
		many.AddTokens(b.tokens)
	} else {
		for _, e := range b.tokens {
			sink.AddToken(e)
		}
	}
	for i := range b.closed {
		sink.CloseRequest(&b.closed[i])
	}
}

// leave is the rows of a message that are left out for their times.
type leave struct {
	rows  uint64
	first error
	count func(reason string, n uint64)
}

// out reports whether err is of a row that can be left out, and counts it.
func (l *leave) out(err error) bool {
	f, ok := errors.AsType[*timeFault](err)
	if !ok {
		return false
	}
	if l.first == nil {
		l.first = err
	}
	l.rows++
	l.count(f.reason, 1)
	return true
}

// readReport converts a report that checkReport found right, and checks its times. Rows whose times cannot be are left
// out.
func readReport(m *pb.ReportRequest, src Source, conv converter, in within, left *leave) (batch, error) {
	var b batch
	read := func(name string, rows []*pb.Request) ([]timeline.Request, error) {
		var list []timeline.Request
		for i, r := range rows {
			q, err := readRequest(r, src, conv, in)
			switch {
			case err == nil:
				list = append(list, q)
			case !left.out(fmt.Errorf("%s[%d].%w", name, i, err)):
				return nil, fmt.Errorf("%s[%d].%w", name, i, err)
			}
		}
		return list, nil
	}
	var errs [3]error
	b.opened, errs[0] = read("opened", m.GetOpened())
	b.closed, errs[1] = read("closed", m.GetClosed())
	b.tokens, b.bounds, errs[2] = readTokens(m.GetTokens(), conv, in, left)
	for _, err := range errs {
		if err != nil {
			return batch{}, err
		}
	}
	return b, nil
}

// maxWide bounds the requests whose widest bound a session keeps.
const maxWide = 1 << 14

// widen has each request that ends carry the widest bound of any of its tokens: earlier ones were placed by what was
// known of the clock then. wide keeps it for those that go on.
func (b *batch) widen(wide map[uint64]time.Duration) {
	if len(wide) > maxWide {
		clear(wide) // of a reporter that closes nothing
	}
	for i, bound := range b.bounds {
		ref := b.tokens[i].Ref
		wide[ref] = max(wide[ref], bound)
	}
	for i := range b.closed {
		r := &b.closed[i]
		r.ClockBound = max(r.ClockBound, wide[r.Ref])
		delete(wide, r.Ref)
	}
}

// stamps converts times and remembers the first fault and the widest bound.
type stamps struct {
	conv   converter
	in     within
	newest timeline.Instant
	bound  time.Duration
	err    error
}

// read converts one time; zero has not happened and stays zero.
func (s *stamps) read(field string, peer int64) timeline.Instant {
	if peer == 0 || s.err != nil {
		return 0
	}
	at, bound, ok := s.conv(peer)
	switch {
	case peer < 0:
		s.err = fmt.Errorf("%s: %w", field, errNegative)
	case !ok || at <= 0:
		s.err = fmt.Errorf("%s: %w", field, errBefore)
	case at > s.in.latest:
		s.err = fmt.Errorf("%s: %w", field, errAhead)
	}
	s.bound, s.newest = max(s.bound, bound), max(s.newest, at)
	return at
}

// recent checks that the newest of the times that were read is one that still concerns anybody.
func (s *stamps) recent(field string) {
	if s.err == nil && !s.newest.IsZero() && s.newest < s.in.oldest {
		s.err = fmt.Errorf("%s: %w", field, errOld)
	}
}

// ordered checks that the instants that happened are in order.
func (s *stamps) ordered(names []string, at ...timeline.Instant) {
	var before timeline.Instant
	for i, t := range at {
		if t.IsZero() || s.err != nil {
			continue
		}
		if t < before {
			s.err = fmt.Errorf("%s: %w", names[i], errOrder)
		}
		before = t
	}
}

func readRequest(r *pb.Request, src Source, conv converter, in within) (timeline.Request, error) {
	s := stamps{conv: conv, in: in}
	e := r.GetEngine()
	q := timeline.Request{
		Ref: r.GetRef(), ID: r.GetId(), TraceID: r.GetTraceId(), SpanID: r.GetSpanId(), ParentID: r.GetParentId(), Sampled: r.GetSampled(),
		Target: r.GetTarget(), Upstream: r.GetUpstream(), Dialect: r.GetDialect(), Operation: r.GetOperation(), Model: r.GetModel(),
		Streaming: r.GetStreaming(), Client: cmp.Or(r.GetClient(), src.Name),
		Sent: s.read("sent_ns", r.GetSentNs()), Head: s.read("head_ns", r.GetHeadNs()), First: s.read("first_ns", r.GetFirstNs()),
		Last: s.read("last_ns", r.GetLastNs()), Done: s.read("done_ns", r.GetDoneNs()),
		Status: timeline.Status(r.GetStatus()), HTTPStatus: int(r.GetHttpStatus()), Finish: r.GetFinish(),
		PromptTokens: int(r.GetPromptTokens()), PromptKnown: r.GetPromptKnown(), CachedTokens: int(r.GetCachedTokens()),
		OutputTokens: int(r.GetOutputTokens()), Counted: timeline.CountSource(r.GetCounted()), ReasoningTokens: int(r.GetReasoningTokens()),
		FirstTokens: int(r.GetFirstTokens()), MaxTokens: int(r.GetMaxTokens()), Choices: int(r.GetChoices()),
		Events: int(r.GetEvents()), KernelStamped: int(r.GetKernelStamped()), Coalesced: int(r.GetCoalesced()),
		Flags: timeline.Flags(r.GetFlags()),
		Engine: timeline.EngineTimings{
			PromptTokens: int(e.GetPromptTokens()), PromptTime: time.Duration(e.GetPromptTimeNs()),
			OutputTokens: int(e.GetOutputTokens()), OutputTime: time.Duration(e.GetOutputTimeNs()),
			TimeToFirst: time.Duration(e.GetTimeToFirstNs()), QueueTime: time.Duration(e.GetQueueTimeNs()),
			PerOutputMean: time.Duration(e.GetPerOutputMeanNs()),
		},
	}
	s.ordered([]string{"sent_ns", "first_ns", "last_ns", "done_ns"}, q.Sent, q.First, q.Last, q.Done)
	s.ordered([]string{"sent_ns", "head_ns", "done_ns"}, q.Sent, q.Head, q.Done)
	s.recent("sent_ns")
	q.ClockBound = time.Duration(r.GetClockBoundNs()) + s.bound
	return q, s.err
}

func readTokens(t *pb.Tokens, conv converter, in within, left *leave) ([]timeline.TokenEvent, []time.Duration, error) {
	n := len(t.GetRef())
	if n == 0 {
		return nil, nil, nil
	}
	events := make([]timeline.TokenEvent, 0, n)
	var bounds []time.Duration
	newest := make(map[uint64]timeline.Instant, 64)
	var at int64
	for i, ref := range t.GetRef() {
		at += t.GetAtDeltaNs()[i]
		if at <= 0 {
			return nil, nil, fmt.Errorf("tokens.at_delta_ns[%d]: %w", i, errNegative)
		}
		s := stamps{conv: conv, in: in}
		e := timeline.TokenEvent{
			Ref: ref, At: s.read("at_delta_ns", at),
			Tokens: row(t.GetTokens(), i, 1), Choice: row(t.GetChoice(), i, 0),
			Source:    timeline.CountSource(row(t.GetSource(), i, pb.CountSource_COUNT_SOURCE_PER_EVENT)),
			Kind:      timeline.TokenKind(row(t.GetKind(), i, pb.TokenKind_TOKEN_KIND_CONTENT)),
			Stamp:     timeline.StampSource(row(t.GetStamp(), i, pb.StampSource_STAMP_SOURCE_CLIENT)),
			Coalesced: row(t.GetCoalesced(), i, false),
		}
		if s.recent("at_delta_ns"); s.err != nil {
			err := fmt.Errorf("tokens[%d].%w", i, s.err)
			if left.out(err) {
				continue
			}
			return nil, nil, err
		}
		e.After = e.At.Add(-time.Duration(min(row(t.GetUncertainNs(), i, 0), int64(e.At)-1)))
		if e.At < newest[ref].Add(-maxInversion) {
			return nil, nil, fmt.Errorf("tokens.at_delta_ns[%d]: %w", i, errOrder)
		}
		e.At = max(e.At, newest[ref])
		newest[ref] = e.At
		events = append(events, e)
		if s.bound > 0 {
			bounds = append(bounds, s.bound)
		}
	}
	return events, bounds, nil
}

// maxInversion is by how much an event of a stream may be stamped before the event it follows. An event that was
// stamped when its read returned can be stamped after the kernel has stamped the next one; it is the order that is
// true, so the later event moves.
const maxInversion = 10 * time.Millisecond

// row returns a column's value in row i, or the default if the column is empty.
func row[T any](column []T, i int, otherwise T) T {
	if len(column) == 0 {
		return otherwise
	}
	return column[i]
}

// readTiming converts one finished request and checks its times.
func readTiming(t *pb.Timing, ref uint64, src Source, conv converter, in within) (batch, error) {
	s := stamps{conv: conv, in: in}
	q := timeline.Request{
		Ref: ref, ID: t.GetId(), TraceID: t.GetTraceId(), SpanID: t.GetSpanId(), Target: t.GetTarget(), Model: t.GetModel(),
		Dialect: "reported", Operation: t.GetOperation(), Client: src.Name, Streaming: true,
		Sent: s.read("sent_ns", t.GetSentNs()), First: s.read("first_ns", t.GetFirstNs()),
		Last: s.read("last_ns", t.GetLastNs()), Done: s.read("done_ns", t.GetDoneNs()),
		Status: timeline.Status(t.GetStatus()), HTTPStatus: int(t.GetHttpStatus()),
		PromptTokens: int(t.GetPromptTokens()), PromptKnown: t.GetPromptTokens() > 0, MaxTokens: int(t.GetMaxTokens()), Choices: 1,
		OutputTokens: int(t.GetOutputTokens()), Events: len(t.GetTokenNs()),
	}
	b := batch{tokens: make([]timeline.TokenEvent, 0, len(t.GetTokenNs()))}
	sum := 0
	for i, ns := range t.GetTokenNs() {
		n := row(t.GetTokenCounts(), i, 1)
		at := s.read("token_ns", ns)
		switch {
		case s.err != nil:
			return batch{}, fmt.Errorf("token_ns[%d]: %w", i, s.err)
		case at.IsZero():
			return batch{}, fmt.Errorf("token_ns[%d]: %w", i, errMissing)
		case i > 0 && at < b.tokens[i-1].At:
			return batch{}, fmt.Errorf("token_ns[%d]: %w", i, errOrder)
		}
		sum += int(n)
		b.tokens = append(b.tokens, timeline.TokenEvent{
			Ref: ref, At: at, After: at, Tokens: n,
			Source: timeline.CountPerEvent, Kind: timeline.KindContent, Stamp: timeline.StampClient,
		})
	}
	if n := len(b.tokens); n > 0 {
		q.First, q.Last = b.tokens[0].At, b.tokens[n-1].At
		q.FirstTokens = int(b.tokens[0].Tokens)
	}
	countTiming(&q, sum)
	s.ordered([]string{"sent_ns", "first_ns", "last_ns", "done_ns"}, q.Sent, q.First, q.Last, q.Done)
	if s.err == nil && q.Sent.IsZero() && q.First.IsZero() {
		s.err = fmt.Errorf("sent_ns: %w: and no token time either", errMissing)
	}
	s.recent("sent_ns")
	q.ClockBound = s.bound
	if q.Done.IsZero() {
		q.Done = q.Last
	}
	b.opened, b.closed = []timeline.Request{q}, []timeline.Request{q}
	return b, s.err
}

// countTiming settles what a submitted request's token count rests on. sum is what its events add up to.
func countTiming(q *timeline.Request, sum int) {
	switch {
	case q.OutputTokens == 0 && sum > 0:
		q.OutputTokens, q.Counted = sum, timeline.CountPerEvent
	case q.OutputTokens > 0 && sum == q.OutputTokens:
		q.Counted = timeline.CountPerEvent
	case q.OutputTokens > 0:
		q.Counted = timeline.CountFinal
		if sum > 0 {
			q.Flags |= timeline.FlagCountMismatch
		} else {
			q.FirstTokens = 1
			q.Flags |= timeline.FlagFirstAssumed
		}
	default:
		q.Flags |= timeline.FlagNoCount
	}
}
