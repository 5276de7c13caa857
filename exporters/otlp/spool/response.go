package spool

import (
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// partial reads from an export response how many items of a taken request the receiver rejected. A response that
// cannot be read says nothing: the request was taken.
func partial(signal Signal, answer []byte) result {
	var rejected int64
	switch signal {
	case Metrics:
		var m colmetrics.ExportMetricsServiceResponse
		if proto.Unmarshal(answer, &m) == nil {
			rejected = m.GetPartialSuccess().GetRejectedDataPoints()
		}
	case Traces:
		var m coltrace.ExportTraceServiceResponse
		if proto.Unmarshal(answer, &m) == nil {
			rejected = m.GetPartialSuccess().GetRejectedSpans()
		}
	}
	if rejected <= 0 {
		return result{}
	}
	return result{rejected: rejected, why: "partial success"}
}
