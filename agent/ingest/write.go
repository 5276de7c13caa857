package ingest

import (
	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func writeRequest(r *timeline.Request) *pb.Request {
	q := &pb.Request{
		Ref: r.Ref, Id: r.ID, TraceId: r.TraceID, SpanId: r.SpanID, ParentId: r.ParentID, Sampled: r.Sampled,
		Target: r.Target, Upstream: r.Upstream, Dialect: r.Dialect, Operation: r.Operation, Model: r.Model,
		Streaming: r.Streaming, Client: r.Client,
		SentNs: int64(r.Sent), HeadNs: int64(r.Head), FirstNs: int64(r.First), LastNs: int64(r.Last), DoneNs: int64(r.Done),
		ClockBoundNs: int64(r.ClockBound), Status: pb.Status(r.Status), HttpStatus: int32(r.HTTPStatus), Finish: r.Finish,
		PromptTokens: int64(r.PromptTokens), PromptKnown: r.PromptKnown, CachedTokens: int64(r.CachedTokens),
		OutputTokens: int64(r.OutputTokens), Counted: pb.CountSource(r.Counted), ReasoningTokens: int64(r.ReasoningTokens),
		FirstTokens: int64(r.FirstTokens), MaxTokens: int64(r.MaxTokens), Choices: int64(r.Choices),
		Events: int64(r.Events), KernelStamped: int64(r.KernelStamped), Coalesced: int64(r.Coalesced), Flags: uint32(r.Flags),
	}
	if e := r.Engine; e != (timeline.EngineTimings{}) {
		q.Engine = &pb.EngineTimings{
			PromptTokens: int64(e.PromptTokens), PromptTimeNs: int64(e.PromptTime),
			OutputTokens: int64(e.OutputTokens), OutputTimeNs: int64(e.OutputTime),
			TimeToFirstNs: int64(e.TimeToFirst), QueueTimeNs: int64(e.QueueTime), PerOutputMeanNs: int64(e.PerOutputMean),
		}
	}
	return q
}

// columns writes token events into columns, and leaves out those that hold nothing but their default.
type columns struct {
	t    pb.Tokens
	last timeline.Instant
	set  struct{ uncertain, tokens, choice, source, kind, stamp, coalesced bool }
}

func (w *columns) add(e *timeline.TokenEvent) {
	w.t.Ref = append(w.t.Ref, e.Ref)
	w.t.AtDeltaNs = append(w.t.AtDeltaNs, int64(e.At-w.last))
	w.last = e.At
	uncertain := int64(0)
	if !e.After.IsZero() && e.After < e.At {
		uncertain = int64(e.At - e.After)
	}
	w.t.UncertainNs = column(w.t.UncertainNs, uncertain, 0, &w.set.uncertain)
	// Bounded as the agent bounds them, which would refuse the whole report.
	w.t.Tokens = column(w.t.Tokens, min(max(e.Tokens, 0), maxCount), 1, &w.set.tokens)
	w.t.Choice = column(w.t.Choice, min(max(e.Choice, 0), maxChoice), 0, &w.set.choice)
	w.t.Source = column(w.t.Source, pb.CountSource(e.Source), pb.CountSource_COUNT_SOURCE_PER_EVENT, &w.set.source)
	w.t.Kind = column(w.t.Kind, pb.TokenKind(e.Kind), pb.TokenKind_TOKEN_KIND_CONTENT, &w.set.kind)
	w.t.Stamp = column(w.t.Stamp, pb.StampSource(e.Stamp), pb.StampSource_STAMP_SOURCE_CLIENT, &w.set.stamp)
	w.t.Coalesced = column(w.t.Coalesced, e.Coalesced, false, &w.set.coalesced)
}

func column[T comparable](rows []T, v, otherwise T, set *bool) []T {
	if v != otherwise {
		*set = true
	}
	return append(rows, v)
}

// finish returns the columns, nil if they have no rows.
func (w *columns) finish() *pb.Tokens {
	if len(w.t.GetRef()) == 0 {
		return nil
	}
	t := &pb.Tokens{Ref: w.t.GetRef(), AtDeltaNs: w.t.GetAtDeltaNs()}
	if w.set.uncertain {
		t.UncertainNs = w.t.GetUncertainNs()
	}
	if w.set.tokens {
		t.Tokens = w.t.GetTokens()
	}
	if w.set.choice {
		t.Choice = w.t.GetChoice()
	}
	if w.set.source {
		t.Source = w.t.GetSource()
	}
	if w.set.kind {
		t.Kind = w.t.GetKind()
	}
	if w.set.stamp {
		t.Stamp = w.t.GetStamp()
	}
	if w.set.coalesced {
		t.Coalesced = w.t.GetCoalesced()
	}
	return t
}
