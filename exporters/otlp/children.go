package otlp

import (
	"crypto/sha256"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// children returns the spans below a request's own: the wait for the first token, and the decode. They carry no token
// counts, so that a sum over spans counts each token once.
func children(anchor timeline.Anchor, p *correlate.Phase, parent *tracetest.SpanStub) []sdktrace.ReadOnlySpan {
	r := &p.Request
	if r.First.IsZero() || r.Sent.IsZero() {
		return nil
	}
	list := []sdktrace.ReadOnlySpan{child(parent, spanPrefill, anchor, timeline.Span{Start: r.Sent, End: r.First}, nil)}
	if decode := r.Decode(); !decode.Empty() {
		list = append(list, child(parent, spanDecode, anchor, decode, verdictAttributes(p)))
	}
	return list
}

// child returns one span below parent. Its id follows from the parent's and its name: the same request always gives the
// same spans, so that sending them twice adds nothing.
func child(parent *tracetest.SpanStub, name string, anchor timeline.Anchor, over timeline.Span, attrs []attribute.KeyValue) sdktrace.ReadOnlySpan {
	traceID, parentID := parent.SpanContext.TraceID(), parent.SpanContext.SpanID()
	sum := sha256.Sum256(append(append(traceID[:], parentID[:]...), name...))
	var id trace.SpanID
	copy(id[:], sum[:])
	return tracetest.SpanStub{
		Name:        name,
		SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: id, TraceFlags: trace.FlagsSampled}),
		Parent:      parent.SpanContext, SpanKind: trace.SpanKindInternal,
		StartTime: anchor.Time(over.Start), EndTime: anchor.Time(over.End), Attributes: attrs,
		Resource: parent.Resource, InstrumentationScope: parent.InstrumentationScope,
	}.Snapshot()
}
