package otlp

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
)

// maxStalls bounds the events of one span; the longest stalls stay.
const maxStalls = 16

// spanBuilder makes one CLIENT span of each request, with the evidence of the cells its decode spans.
type spanBuilder struct {
	cfg       Config
	resources map[string]*resource.Resource
	levels    map[string]timeline.EvidenceLevel // of each target's newest cell
	coverage  map[string]timeline.Measure
}

func newSpanBuilder(cfg Config) *spanBuilder {
	return &spanBuilder{
		cfg: cfg, resources: map[string]*resource.Resource{}, levels: map[string]timeline.EvidenceLevel{}, coverage: map[string]timeline.Measure{},
	}
}

// note keeps what a cell tells that phases do not.
func (sb *spanBuilder) note(c *correlate.Cell) {
	sb.levels[c.Target], sb.coverage[c.Target] = c.Level, c.Coverage
}

// build returns the span of p, and those below it if they are asked for. Its ids are those that went upstream with the
// request, so that what the engine says of it hangs below. It reports false if they are no ids.
func (sb *spanBuilder) build(s *exporters.State, b *exporters.Batch, p *correlate.Phase, d exporters.Decision) ([]sdktrace.ReadOnlySpan, bool) {
	r := &p.Request
	traceID, err1 := trace.TraceIDFromHex(r.TraceID)
	spanID, err2 := trace.SpanIDFromHex(r.SpanID)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	// The SDK's own spans make up their ids and times. Of its packages only the one for tests makes a span of given ones.
	stub := tracetest.SpanStub{
		Name:        cmp.Or(r.Operation, "request"),
		SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled}),
		SpanKind:    trace.SpanKindClient,
		StartTime:   s.Anchor().Time(r.Over().Start), EndTime: s.Anchor().Time(r.Over().End),
		Attributes: sb.attributes(s, b, p, d), Resource: sb.resource(targetOf(r.Target)), InstrumentationScope: scope(sb.cfg),
	}
	if r.Model != "" {
		stub.Name += " " + r.Model
	}
	if parent, err := trace.SpanIDFromHex(r.ParentID); err == nil {
		stub.Parent = trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: parent, TraceFlags: trace.FlagsSampled, Remote: true})
	}
	if r.Status.Failed() {
		stub.Status = sdktrace.Status{Code: codes.Error}
	}
	stub.Events, stub.DroppedEvents = events(s.Anchor(), p)
	spans := []sdktrace.ReadOnlySpan{stub.Snapshot()}
	if sb.cfg.Children {
		spans = append(spans, children(s.Anchor(), p, &stub)...)
	}
	return spans, true
}

func (sb *spanBuilder) resource(target string) *resource.Resource {
	r := sb.resources[target]
	if r == nil {
		r = targetResource(sb.cfg, target)
		sb.resources[target] = r
	}
	return r
}

// events returns the first token and the stalls, in the order of time, and how many stalls were left out.
func events(anchor timeline.Anchor, p *correlate.Phase) (list []sdktrace.Event, dropped int) {
	type stall struct {
		start   timeline.Instant
		seconds float64
	}
	var stalls []stall
	if !p.Request.First.IsZero() {
		list = append(list, sdktrace.Event{Name: eventFirstToken, Time: anchor.Time(p.Request.First)})
	}
	for _, st := range p.Latency.Stalls {
		stalls = append(stalls, stall{st.Over.Start, st.Seconds})
	}
	if len(stalls) > maxStalls {
		slices.SortStableFunc(stalls, func(x, y stall) int { return cmp.Compare(y.seconds, x.seconds) })
		dropped = len(stalls) - maxStalls
		stalls = stalls[:maxStalls]
		slices.SortStableFunc(stalls, func(x, y stall) int { return cmp.Compare(x.start, y.start) })
	}
	for _, st := range stalls {
		list = append(list, sdktrace.Event{
			Name: eventStall, Time: anchor.Time(st.start), Attributes: []attribute.KeyValue{attribute.Float64(keyStall, st.seconds)},
		})
	}
	return list, dropped
}

// attributes returns everything a span says.
func (sb *spanBuilder) attributes(s *exporters.State, b *exporters.Batch, p *correlate.Phase, d exporters.Decision) []attribute.KeyValue {
	kvs := conventional(p)
	r := &p.Request
	kvs = append(kvs, attribute.String(keyTarget, targetOf(r.Target)), attribute.String(keyStatus, r.Status.String()))
	if d.Keep {
		kvs = append(kvs, attribute.Bool(keyKeep, true))
	}
	if p.Warmup {
		kvs = append(kvs, attribute.Bool(keyWarmup, true))
	}
	kvs = append(kvs, latencies(p)...)
	kvs = append(kvs, verdictAttributes(p)...)
	gpus := s.GPUsOf(r.Target)
	if len(gpus) > 0 {
		kvs = append(kvs, attribute.StringSlice(keyHWID, gpus))
	}
	kvs = append(kvs, attribute.String(keyEvidence, sb.levels[r.Target].String()), attribute.Bool(keySimulated, simulated(b.GPUs, gpus)),
		attribute.Float64(keyClockBound, p.ClockBoundS))
	if c, ok := sb.coverage[r.Target]; ok && c.OK() {
		kvs = append(kvs, attribute.Float64(keyCoverage, c.Value))
	}
	return kvs
}

// conventional returns the attributes that the gen_ai conventions know. Prompts, completions and arguments are none of
// them here.
func conventional(p *correlate.Phase) []attribute.KeyValue {
	r := &p.Request
	kvs := []attribute.KeyValue{
		attribute.String(keyOperation, cmp.Or(r.Operation, "chat")), attribute.String(keyProvider, cmp.Or(r.Dialect, "_OTHER")),
		attribute.Bool(keyStream, r.Streaming),
	}
	if r.Model != "" {
		kvs = append(kvs, attribute.String(keyModel, r.Model))
	}
	if r.MaxTokens > 0 {
		kvs = append(kvs, attribute.Int(keyMaxTokens, r.MaxTokens))
	}
	if r.Choices > 1 {
		kvs = append(kvs, attribute.Int(keyChoices, r.Choices))
	}
	if r.Finish != "" {
		kvs = append(kvs, attribute.StringSlice(keyFinish, []string{r.Finish}))
	}
	if r.PromptKnown {
		kvs = append(kvs, attribute.Int(keyInputTokens, r.PromptTokens))
	}
	if r.CachedTokens > 0 {
		kvs = append(kvs, attribute.Int(keyCachedTokens, r.CachedTokens))
	}
	if r.Counted != timeline.CountNone {
		kvs = append(kvs, attribute.Int(keyOutputTokens, r.OutputTokens), attribute.String(keyCounted, r.Counted.String()))
	}
	if r.ReasoningTokens > 0 {
		kvs = append(kvs, attribute.Int(keyReasoningTokens, r.ReasoningTokens))
	}
	if p.Latency.TTFT.OK() && r.Streaming {
		kvs = append(kvs, attribute.Float64(keyFirstChunk, p.Latency.TTFT.Value))
	}
	if r.HTTPStatus != 0 {
		kvs = append(kvs, attribute.Int(keyHTTPStatus, r.HTTPStatus))
	}
	if r.Status.Failed() {
		kind := r.Status.String()
		if r.Status == timeline.StatusHTTPError && r.HTTPStatus != 0 {
			kind = strconv.Itoa(r.HTTPStatus)
		}
		kvs = append(kvs, attribute.String(keyErrorType, kind))
	}
	return append(kvs, server(r.Upstream)...)
}

// server returns host and port of an upstream.
func server(upstream string) []attribute.KeyValue {
	u, err := url.Parse(upstream)
	if err != nil || u.Host == "" {
		return nil
	}
	kvs := []attribute.KeyValue{attribute.String(keyServerAddress, u.Hostname())}
	port := u.Port()
	if port == "" && net.ParseIP(u.Hostname()) == nil {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, err := strconv.Atoi(port); err == nil {
		kvs = append(kvs, attribute.Int(keyServerPort, n))
	}
	return kvs
}

// latencies returns what the request's stamps say, or why they say nothing of its TPOT.
func latencies(p *correlate.Phase) []attribute.KeyValue {
	var kvs []attribute.KeyValue
	for _, m := range []struct {
		key   string
		value timeline.Measure
	}{
		{keyTTFT, p.Latency.TTFT},
		{keyTPOT, p.Latency.TPOT},
		{keyFirstGap, p.Latency.FirstGap},
		{keySlope, p.Latency.Slope},
		{keyConcurrency, p.Concurrency},
		{keyDRAMBytes, p.DRAMBytes},
	} {
		if m.value.OK() {
			kvs = append(kvs, attribute.Float64(m.key, m.value.Value))
		}
	}
	if !p.Latency.TPOT.OK() {
		kvs = append(kvs, attribute.String(keyTPOTAbsent, p.Latency.TPOT.Why))
	}
	if names := p.Latency.Flags.Names(); len(names) > 0 {
		kvs = append(kvs, attribute.StringSlice(keyFlags, names))
	}
	return kvs
}

// verdictAttributes returns what is said of the request's decode.
func verdictAttributes(p *correlate.Phase) []attribute.KeyValue {
	kvs := []attribute.KeyValue{
		attribute.String(keyBound, cmp.Or(string(p.Label), string(timeline.Undetermined))), attribute.String(keyConfidence, p.Confidence.String()),
		attribute.String(keyGrade, cmp.Or(string(p.Grade), string(timeline.Insufficient))), attribute.Int(keyWindows, p.Windows),
		attribute.Float64(keyThrottled, p.ThrottledS),
	}
	if p.Reason != "" {
		kvs = append(kvs, attribute.String(keyReason, p.Reason))
	}
	for _, part := range p.Mixture {
		kvs = append(kvs, attribute.Float64(keyMixture+string(part.Label), part.Share))
	}
	if sh := p.Shares; sh.Sum() > 0 {
		kvs = append(kvs, attribute.Float64(keyShare+"memory", sh.Memory), attribute.Float64(keyShare+"compute", sh.Compute),
			attribute.Float64(keyShare+"launch", sh.Launch), attribute.Float64(keyShare+"host", sh.Host), attribute.Float64(keyShare+"other", sh.Other))
	}
	for _, m := range []struct {
		key     string
		counter timeline.Counter
	}{
		{keyDRAMUtil, timeline.DRAMUtil},
		{keySMUtil, timeline.SMUtil},
		{keyTensorUtil, timeline.TensorUtil},
		{keySMClock, timeline.SMClock},
		{keyPower, timeline.Power},
	} {
		if mean := p.Counters[m.counter]; mean.OK() {
			kvs = append(kvs, attribute.Float64(m.key, mean.Value))
		}
	}
	if len(p.Overlays) > 0 {
		names := make([]string, len(p.Overlays))
		for i, o := range p.Overlays {
			names[i] = string(o)
		}
		kvs = append(kvs, attribute.StringSlice(keyOverlays, names))
	}
	return kvs
}

// simulated reports whether any GPU of uuids is.
func simulated(gpus []timeline.GPU, uuids []string) bool {
	return slices.ContainsFunc(gpus, func(g timeline.GPU) bool { return g.Simulated && slices.Contains(uuids, g.UUID) })
}
