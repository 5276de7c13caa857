package record

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// gpuList turns positions of GPUs into UUIDs and back. Files hold UUIDs: positions change when a process starts anew.
type gpuList struct {
	gpus []timeline.GPU
}

// uuid returns the UUID of the GPU at position i, and nothing for no GPU. A position that was never announced is
// spelt so that no reader takes it for a GPU of the list.
func (l *gpuList) uuid(i int) string {
	switch {
	case i < 0:
		return ""
	case i < len(l.gpus):
		return l.gpus[i].UUID
	}
	return "position " + strconv.Itoa(i)
}

func (l *gpuList) position(uuid string) (int, error) {
	i := slices.IndexFunc(l.gpus, func(g timeline.GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return 0, fmt.Errorf("%s lists no GPU %q", metaName, uuid)
	}
	return i, nil
}

// gpuColumn stores a GPU by its UUID.
func gpuColumn[T any](name string, gpus *gpuList, at func(*T) *int) column[T] {
	return textColumn(name, func(r *T) string { return gpus.uuid(*at(r)) }, func(r *T, s string) error {
		i, err := gpus.position(s)
		*at(r) = i
		return err
	})
}

// spanColumns stores a span by its two ends.
func spanColumns[T any](at func(*T) *timeline.Span) []column[T] {
	return []column[T]{
		intColumn("start_ns", func(r *T) *timeline.Instant { return &at(r).Start }),
		intColumn("end_ns", func(r *T) *timeline.Instant { return &at(r).End }),
	}
}

func anchorTable() *table[timeline.Anchor] {
	type row = timeline.Anchor
	return &table[row]{
		kind: Anchors,
		at:   func(r *row) timeline.Instant { return r.Mono },
		columns: []column[row]{
			intColumn("monotonic_ns", func(r *row) *timeline.Instant { return &r.Mono }),
			intColumn("realtime_ns", func(r *row) *int64 { return &r.Real }),
			intColumn("boottime_ns", func(r *row) *int64 { return &r.Boot }),
			intColumn("width_ns", func(r *row) *time.Duration { return &r.Width }),
			stringColumn("boot_id", func(r *row) *string { return &r.BootID }),
		},
	}
}

func eventTable(gpus *gpuList) *table[timeline.Event] {
	type row = timeline.Event
	return &table[row]{
		kind: Events,
		at:   func(r *row) timeline.Instant { return r.At },
		init: func(r *row) { r.GPU = timeline.NoGPU },
		columns: []column[row]{
			intColumn("at_ns", func(r *row) *timeline.Instant { return &r.At }),
			stringColumn("kind", func(r *row) *timeline.EventKind { return &r.Kind }),
			gpuColumn("gpu_uuid", gpus, func(r *row) *int { return &r.GPU }),
			stringColumn("target", func(r *row) *string { return &r.Target }),
			stringColumn("detail", func(r *row) *string { return &r.Detail }),
		},
	}
}

func engineTable() *table[timeline.EngineSample] {
	type row = timeline.EngineSample
	columns := append(
		[]column[row]{stringColumn("target", func(r *row) *string { return &r.Target })},
		spanColumns(func(r *row) *timeline.Span { return &r.Over })...)
	for c := range timeline.EngineCounter(timeline.NumEngineCounters) {
		columns = append(columns, floatColumn(c.String(),
			func(r *row) (float64, bool) { return r.Get(c) }, func(r *row, v float64) { r.Put(c, v) }))
	}
	return &table[row]{kind: Engine, at: func(r *row) timeline.Instant { return r.Over.End }, columns: columns}
}

func hostTable() *table[timeline.HostSample] {
	type row = timeline.HostSample
	columns := spanColumns(func(r *row) *timeline.Span { return &r.Over })
	for c := range timeline.HostCounter(timeline.NumHostCounters) {
		columns = append(columns, floatColumn(c.String(),
			func(r *row) (float64, bool) { return r.Get(c) }, func(r *row, v float64) { r.Put(c, v) }))
	}
	return &table[row]{kind: Host, at: func(r *row) timeline.Instant { return r.Over.End }, columns: columns}
}

func sampleTable(gpus *gpuList) *table[timeline.Sample] {
	type row = timeline.Sample
	columns := append(
		[]column[row]{gpuColumn("gpu_uuid", gpus, func(r *row) *int { return &r.GPU })},
		spanColumns(func(r *row) *timeline.Span { return &r.Over })...)
	columns = append(columns, intColumn("slack_ns", func(r *row) *int64 { return &r.Slack }))
	for c := range timeline.Counter(timeline.NumCounters) {
		columns = append(columns, floatColumn(c.String(),
			func(r *row) (float64, bool) { return r.Get(c) }, func(r *row, v float64) { r.Put(c, v) }))
	}
	return &table[row]{
		kind: Samples,
		at:   func(r *row) timeline.Instant { return r.Over.End },
		init: func(r *row) { r.GPU = timeline.NoGPU },
		check: func(r *row) error {
			if r.GPU < 0 {
				return errors.New("column gpu_uuid: names no GPU")
			}
			return nil
		},
		columns: columns,
	}
}

func tokenTable() *table[timeline.TokenEvent] {
	type row = timeline.TokenEvent
	return &table[row]{
		kind: Tokens,
		at:   func(r *row) timeline.Instant { return r.At },
		columns: []column[row]{
			intColumn("ref", func(r *row) *uint64 { return &r.Ref }),
			intColumn("at_ns", func(r *row) *timeline.Instant { return &r.At }),
			// The width of the bracket, zero for an event with a stamp of its own, packs better than its other end. It
			// is read after at_ns.
			maybeIntColumn("bracket_ns",
				func(r *row) (int64, bool) { return int64(r.At - r.After), true },
				func(r *row, v int64) { r.After = r.At - timeline.Instant(v) }),
			intColumn("tokens", func(r *row) *int32 { return &r.Tokens }),
			codeColumn("source", func(r *row) *timeline.CountSource { return &r.Source }),
			codeColumn("kind", func(r *row) *timeline.TokenKind { return &r.Kind }),
			codeColumn("stamp", func(r *row) *timeline.StampSource { return &r.Stamp }),
			intColumn("choice", func(r *row) *int32 { return &r.Choice }),
			boolColumn("coalesced", func(r *row) *bool { return &r.Coalesced }),
		},
	}
}

// openTable holds of a request what is known when it is sent.
func openTable() *table[timeline.Request] {
	return &table[timeline.Request]{
		kind:    Opens,
		at:      func(r *timeline.Request) timeline.Instant { return r.Sent },
		columns: sentColumns(),
	}
}

func requestTable() *table[timeline.Request] {
	return &table[timeline.Request]{
		kind:    Requests,
		at:      func(r *timeline.Request) timeline.Instant { return r.Over().End },
		columns: slices.Concat(sentColumns(), endColumns(), engineTimingColumns()),
	}
}

func sentColumns() []column[timeline.Request] {
	type row = timeline.Request
	return []column[row]{
		intColumn("ref", func(r *row) *uint64 { return &r.Ref }),
		stringColumn("id", func(r *row) *string { return &r.ID }),
		stringColumn("trace_id", func(r *row) *string { return &r.TraceID }),
		stringColumn("span_id", func(r *row) *string { return &r.SpanID }),
		stringColumn("parent_id", func(r *row) *string { return &r.ParentID }),
		boolColumn("sampled", func(r *row) *bool { return &r.Sampled }),
		stringColumn("target", func(r *row) *string { return &r.Target }),
		stringColumn("upstream", func(r *row) *string { return &r.Upstream }),
		stringColumn("dialect", func(r *row) *string { return &r.Dialect }),
		stringColumn("operation", func(r *row) *string { return &r.Operation }),
		stringColumn("model", func(r *row) *string { return &r.Model }),
		boolColumn("streaming", func(r *row) *bool { return &r.Streaming }),
		stringColumn("client", func(r *row) *string { return &r.Client }),
		zeroIntColumn("sent_ns", func(r *row) *timeline.Instant { return &r.Sent }),
		zeroIntColumn("max_tokens", func(r *row) *int { return &r.MaxTokens }),
		zeroIntColumn("choices", func(r *row) *int { return &r.Choices }),
	}
}

func endColumns() []column[timeline.Request] {
	type row = timeline.Request
	return []column[row]{
		zeroIntColumn("head_ns", func(r *row) *timeline.Instant { return &r.Head }),
		zeroIntColumn("first_ns", func(r *row) *timeline.Instant { return &r.First }),
		zeroIntColumn("last_ns", func(r *row) *timeline.Instant { return &r.Last }),
		zeroIntColumn("done_ns", func(r *row) *timeline.Instant { return &r.Done }),
		intColumn("clock_bound_ns", func(r *row) *time.Duration { return &r.ClockBound }),
		namedColumn("status", func(r *row) *timeline.Status { return &r.Status }),
		zeroIntColumn("http_status", func(r *row) *int { return &r.HTTPStatus }),
		stringColumn("finish", func(r *row) *string { return &r.Finish }),
		maybeIntColumn("prompt_tokens",
			func(r *row) (int64, bool) { return int64(r.PromptTokens), r.PromptKnown },
			func(r *row, v int64) { r.PromptTokens, r.PromptKnown = int(v), true }),
		intColumn("cached_tokens", func(r *row) *int { return &r.CachedTokens }),
		namedColumn("counted", func(r *row) *timeline.CountSource { return &r.Counted }),
		maybeIntColumn("output_tokens",
			func(r *row) (int64, bool) { return int64(r.OutputTokens), r.Counted != timeline.CountNone },
			func(r *row, v int64) { r.OutputTokens = int(v) }),
		intColumn("reasoning_tokens", func(r *row) *int { return &r.ReasoningTokens }),
		intColumn("first_tokens", func(r *row) *int { return &r.FirstTokens }),
		intColumn("events", func(r *row) *int { return &r.Events }),
		intColumn("kernel_stamped", func(r *row) *int { return &r.KernelStamped }),
		intColumn("coalesced", func(r *row) *int { return &r.Coalesced }),
		textColumn("flags",
			func(r *row) string { return strings.Join(r.Flags.Names(), ",") },
			func(r *row, s string) error { r.Flags = parseFlags(s); return nil }),
	}
}

// engineTimingColumns hold what the engine said of a request in its own reply.
func engineTimingColumns() []column[timeline.Request] {
	type row = timeline.Request
	return []column[row]{
		zeroIntColumn("engine_prompt_tokens", func(r *row) *int { return &r.Engine.PromptTokens }),
		zeroIntColumn("engine_prompt_ns", func(r *row) *time.Duration { return &r.Engine.PromptTime }),
		zeroIntColumn("engine_output_tokens", func(r *row) *int { return &r.Engine.OutputTokens }),
		zeroIntColumn("engine_output_ns", func(r *row) *time.Duration { return &r.Engine.OutputTime }),
		zeroIntColumn("engine_first_ns", func(r *row) *time.Duration { return &r.Engine.TimeToFirst }),
		zeroIntColumn("engine_queue_ns", func(r *row) *time.Duration { return &r.Engine.QueueTime }),
		zeroIntColumn("engine_per_output_ns", func(r *row) *time.Duration { return &r.Engine.PerOutputMean }),
	}
}

// parseFlags reads names of flags. Those of a later version are left out.
func parseFlags(s string) timeline.Flags {
	var flags timeline.Flags
	for name := range strings.SplitSeq(s, ",") {
		for bit := timeline.Flags(1); bit != 0; bit <<= 1 {
			if slices.Contains(bit.Names(), name) {
				flags |= bit
			}
		}
	}
	return flags
}
