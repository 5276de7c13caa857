package otlp_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/otlp"
)

func spans(r *receiver) (list []*tracepb.Span) {
	for _, rs := range r.traces {
		list = append(list, rs.GetScopeSpans()[0].GetSpans()...)
	}
	return list
}

func TestOneClientSpanARequestSaysWhatIsKnown(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{
		request(0), request(1, func(p *correlate.Phase) { p.Request.Sampled = false }),
		request(2, func(p *correlate.Phase) { p.Request.SpanID = "nonsense" }),
	}
	e := send(t, r, nil, b)
	got := spans(r)
	if len(got) != 1 {
		t.Fatalf("%d spans, want that of the sampled request alone", len(got))
	}
	s, sent := got[0], uint64(wall-int64(500*time.Millisecond))
	if s.GetName() != "chat llama-3.1-8b" || s.GetKind() != tracepb.Span_SPAN_KIND_CLIENT || s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET {
		t.Errorf("span %s of kind %v with %v", s.GetName(), s.GetKind(), s.GetStatus())
	}
	ids := hex.EncodeToString(s.GetTraceId()) + "/" + hex.EncodeToString(s.GetSpanId()) + "/" + hex.EncodeToString(s.GetParentSpanId())
	if want := "0123456789abcdef0000000000000001/0000000000000001/00000000000000aa"; ids != want {
		t.Errorf("ids %s, want those that went upstream, %s", ids, want)
	}
	if s.GetStartTimeUnixNano() != sent || s.GetEndTimeUnixNano() != sent+1e9 {
		t.Errorf("span from %d to %d, want %d and a second", s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), sent)
	}
	want := map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "llama-3.1-8b", "gen_ai.request.stream": "true",
		"gen_ai.request.max_tokens": "128", "gen_ai.response.finish_reasons": "[stop]", "gen_ai.usage.input_tokens": "64", "gen_ai.usage.output_tokens": "71",
		"gen_ai.response.time_to_first_chunk": "0.2", "http.response.status_code": "200", "server.address": "10.0.0.5", "server.port": "8000",
		"tpotscope.target": "llama", "tpotscope.status": "ok", "tpotscope.tokens.source": "usage", "tpotscope.ttft": "0.2", "tpotscope.tpot": "0.01",
		"tpotscope.slope": "0.0099", "tpotscope.decode.concurrency": "8", "tpotscope.decode.bound": "memory", "tpotscope.decode.confidence": "medium",
		"tpotscope.decode.grade": "shared", "tpotscope.decode.windows": "6", "tpotscope.decode.throttled": "0.25", "tpotscope.decode.mixture.memory": "0.82",
		"tpotscope.decode.mixture.mixed": "0.18", "tpotscope.decode.share.memory": "0.8", "tpotscope.decode.share.compute": "0", "tpotscope.decode.share.launch": "0",
		"tpotscope.decode.share.host": "0", "tpotscope.decode.share.other": "0.2", "tpotscope.decode.overlays": "[throttled]",
		"tpotscope.gpu.dram.bandwidth.utilization": "0.85", "hw.id": "[GPU-1]", "tpotscope.evidence": "L3", "tpotscope.simulated": "true",
		"tpotscope.clock.bound": "0.0001", "tpotscope.traffic.coverage": "0.97", "tpotscope.keep": "true",
	}
	if diff := cmp.Diff(want, attrs(s.GetAttributes())); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	var events []string
	for _, ev := range s.GetEvents() {
		events = append(events, fmt.Sprintf("%s+%dms %v", ev.GetName(), (ev.GetTimeUnixNano()-sent)/1e6, attrs(ev.GetAttributes())))
	}
	if want := []string{"tpotscope.first_token+200ms map[]", "tpotscope.stall+300ms map[tpotscope.stall.seconds:0.05]"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	rs := r.traces[0]
	if got := attrs(rs.GetResource().GetAttributes())["service.name"]; got != "llama-prod" {
		t.Errorf("the span belongs to %s, want the engine", got)
	}
	if sc := rs.GetScopeSpans()[0]; sc.GetScope().GetName() != "tpotscope" || sc.GetScope().GetVersion() != "1.2.3" || !strings.HasSuffix(sc.GetSchemaUrl(), "/1.41.0") {
		t.Errorf("scope %v, schema %s", sc.GetScope(), sc.GetSchemaUrl())
	}
	for _, self := range e.Self() {
		if self.Name == "tpotscope.spans" && self.Value != map[string]float64{"exported": 1, "limited": 0, "bad_ids": 1}[self.Labels[0]] {
			t.Errorf("%s %v = %g", self.Name, self.Labels, self.Value)
		}
	}
}

func TestAFailedRequestIsAnErrorAndIsKept(t *testing.T) {
	for kind, change := range map[string]func(*correlate.Phase){
		"503":       func(p *correlate.Phase) { p.Request.Status, p.Request.HTTPStatus = timeline.StatusHTTPError, 503 },
		"truncated": func(p *correlate.Phase) { p.Request.Status = timeline.StatusTruncated },
		"timeout":   func(p *correlate.Phase) { p.Request.Status, p.Request.HTTPStatus = timeline.StatusTimeout, 0 },
	} {
		r := newReceiver(t)
		b := second(0)
		b.Phases = []correlate.Phase{request(0, change, func(p *correlate.Phase) {
			p.ThrottledS, p.Overlays, p.Latency.TPOT = 0, nil, timeline.Absent("the stream did not end")
		})}
		send(t, r, nil, b)
		s := spans(r)[0]
		got := attrs(s.GetAttributes())
		if got["error.type"] != kind || s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || got["tpotscope.keep"] != "true" {
			t.Errorf("%s: status %v, attributes %v", kind, s.GetStatus(), got)
		}
		if got["tpotscope.tpot.absent"] != "the stream did not end" || got["tpotscope.tpot"] != "" {
			t.Errorf("%s: TPOT %q, absent %q", kind, got["tpotscope.tpot"], got["tpotscope.tpot.absent"])
		}
	}
}

func TestStallsOfOneSpanAreBoundedAndTheLongestStay(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{request(0, func(p *correlate.Phase) {
		p.Latency.Stalls = nil
		for i := range 40 {
			at := p.Request.First.Add(time.Duration(i) * time.Millisecond)
			p.Latency.Stalls = append(p.Latency.Stalls, latency.Stall{Over: timeline.Span{Start: at, End: at + 1}, Seconds: float64(i%20) + 1})
		}
	})}
	send(t, r, nil, b)
	s := spans(r)[0]
	if len(s.GetEvents()) != 17 || s.GetDroppedEventsCount() != 24 {
		t.Fatalf("%d events, %d dropped; want the first token and 16 stalls, 24 dropped", len(s.GetEvents()), s.GetDroppedEventsCount())
	}
	last := uint64(0)
	for _, ev := range s.GetEvents()[1:] {
		if v := attrs(ev.GetAttributes())["tpotscope.stall.seconds"]; len(v) < 2 { // 12 s to 20 s
			t.Errorf("a stall of %s s stays while longer ones are dropped", v)
		}
		if ev.GetTimeUnixNano() < last {
			t.Error("events are not in the order of time")
		}
		last = ev.GetTimeUnixNano()
	}
}

func TestChildrenCarryTimesAndVerdictsButNoTokens(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{request(0), request(1, func(p *correlate.Phase) { p.Request.First = 0 })}
	send(t, r, func(c *otlp.Config) { c.Children = true }, b)
	sent := uint64(wall - int64(500*time.Millisecond))
	got := map[string][2]uint64{}
	for _, s := range spans(r) {
		if s.GetKind() == tracepb.Span_SPAN_KIND_CLIENT {
			continue
		}
		got[s.GetName()] = [2]uint64{(s.GetStartTimeUnixNano() - sent) / 1e6, (s.GetEndTimeUnixNano() - sent) / 1e6}
		if hex.EncodeToString(s.GetParentSpanId()) != "0000000000000001" || hex.EncodeToString(s.GetTraceId()) != "0123456789abcdef0000000000000001" {
			t.Errorf("%s hangs below %x of %x", s.GetName(), s.GetParentSpanId(), s.GetTraceId())
		}
		a := attrs(s.GetAttributes())
		if _, counted := a["gen_ai.usage.output_tokens"]; counted || (s.GetName() == "tpotscope.decode") != (a["tpotscope.decode.bound"] == "memory") {
			t.Errorf("%s says %v", s.GetName(), a)
		}
	}
	if diff := cmp.Diff(map[string][2]uint64{"tpotscope.prefill": {0, 200}, "tpotscope.decode": {200, 900}}, got); diff != "" {
		t.Errorf("children in ms after the request was sent (-want +got):\n%s", diff)
	}
}

func TestSpansCanBeSwitchedOff(t *testing.T) {
	r := newReceiver(t)
	b := second(0)
	b.Phases = []correlate.Phase{request(0)}
	send(t, r, func(c *otlp.Config) { c.Spans.Enabled = false }, b)
	if got := spans(r); len(got) != 0 {
		t.Errorf("%d spans came", len(got))
	}
	if len(r.metrics) == 0 {
		t.Error("no metrics came either")
	}
}
