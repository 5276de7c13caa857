package ingest

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Longest names, in bytes.
const (
	maxSourceName = 64
	maxWord       = 64
	maxID         = 128
	maxLong       = 256
)

var (
	errUnknownField = errors.New("holds a field that the schema does not have")
	errMissing      = errors.New("missing")
	errNegative     = errors.New("negative")
	errRange        = errors.New("out of range")
	errLength       = errors.New("too long")
	errText         = errors.New("not printable text")
	errOrder        = errors.New("earlier than what comes before it")
)

// timeFault says that something cannot have happened when it says. It is no fault of the rows beside it.
type timeFault struct{ reason, text string }

func (f *timeFault) Error() string { return f.text }

var (
	errAhead  = &timeFault{"future", "in the future"}
	errBefore = &timeFault{"before_boot", "before this host's boot"}
	errOld    = &timeFault{"old", "more than ten minutes ago"}
)

// noUnknown refuses messages with fields beyond the schema: nothing may travel here that nobody looks at.
func noUnknown(m protoreflect.Message, at string) error {
	if len(m.GetUnknown()) > 0 {
		if at == "" {
			at = "message"
		}
		return fmt.Errorf("%s: %w", at, errUnknownField)
	}
	var fault error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if fault = noUnknown(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", f.Name(), i)); fault != nil {
					return false
				}
			}
		default:
			fault = noUnknown(v.Message(), string(f.Name()))
		}
		return fault == nil
	})
	return fault
}

// checkReport checks all of a report but its times, which are checked on the host's timeline.
func checkReport(m *pb.ReportRequest) error {
	if err := noUnknown(m.ProtoReflect(), ""); err != nil {
		return err
	}
	if err := checkOrigin(m.GetOrigin(), true); err != nil {
		return err
	}
	if m.GetSequence() == 0 {
		return fmt.Errorf("sequence: %w", errMissing)
	}
	if err := checkStamps(m.GetExchanges()); err != nil {
		return err
	}
	return errors.Join(checkRequests("opened", m.GetOpened()), checkRequests("closed", m.GetClosed()), checkTokens(m.GetTokens()))
}

// checkRequests checks a list of requests and names the first fault.
func checkRequests(name string, list []*pb.Request) error {
	if len(list) > maxRequestRows {
		return fmt.Errorf("%s: %w: %d rows, at most %d", name, errLength, len(list), maxRequestRows)
	}
	for i, r := range list {
		if err := checkRequest(r); err != nil {
			return fmt.Errorf("%s[%d].%w", name, i, err)
		}
	}
	return nil
}

func checkSubmit(m *pb.SubmitRequest) error {
	if err := noUnknown(m.ProtoReflect(), ""); err != nil {
		return err
	}
	if err := checkOrigin(m.GetOrigin(), false); err != nil {
		return err
	}
	if err := checkStamps(m.GetExchanges()); err != nil {
		return err
	}
	if len(m.GetRequests()) > maxTimings {
		return fmt.Errorf("requests: %w: %d rows, at most %d", errLength, len(m.GetRequests()), maxTimings)
	}
	rows := 0
	for i, t := range m.GetRequests() {
		rows += len(t.GetTokenNs())
		if rows > maxTokenRows {
			return fmt.Errorf("requests[%d].token_ns: %w: more than %d rows in all", i, errLength, maxTokenRows)
		}
		if err := checkTiming(t); err != nil {
			return fmt.Errorf("requests[%d].%w", i, err)
		}
	}
	return nil
}

func checkOrigin(o *pb.Origin, process bool) error {
	switch {
	case o == nil:
		return fmt.Errorf("origin: %w", errMissing)
	case o.GetSource() == "":
		return fmt.Errorf("origin.source: %w", errMissing)
	case process && o.GetProcess() == "":
		return fmt.Errorf("origin.process: %w", errMissing)
	case o.GetClock() != pb.Clock_CLOCK_MONOTONIC && o.GetClock() != pb.Clock_CLOCK_UNIX:
		return fmt.Errorf("origin.clock: %w: want CLOCK_MONOTONIC or CLOCK_UNIX", errRange)
	}
	return errors.Join(checkName("origin.source", o.GetSource()), checkName("origin.process", o.GetProcess()), checkName("origin.boot_id", o.GetBootId()))
}

func checkName(name, s string) error {
	if len(s) > maxSourceName {
		return fmt.Errorf("%s: %w: at most %d bytes", name, errLength, maxSourceName)
	}
	if strings.ContainsFunc(s, notNameRune) {
		return fmt.Errorf("%s: %w: want letters, digits, dot, dash and underscore", name, errText)
	}
	return nil
}

func notNameRune(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && r != '.' && r != '-' && r != '_'
}

func checkStamps(list []*pb.Stamps) error {
	if len(list) > maxExchanges {
		return fmt.Errorf("exchanges: %w: %d rows, at most %d", errLength, len(list), maxExchanges)
	}
	for i, x := range list {
		if x.GetT1Ns() <= 0 || x.GetT2Ns() <= 0 || x.GetT4Ns() < x.GetT1Ns() || x.GetT3Ns() < x.GetT2Ns() {
			return fmt.Errorf("exchanges[%d]: %w", i, errOrder)
		}
	}
	return nil
}

// checkText checks a name from outside: bounded, and without what would break a line of a log.
func checkText(name, s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("%s: %w: at most %d bytes", name, errLength, most)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%s: %w", name, errText)
	}
	return nil
}

// checkHex checks an id of trace context: empty, or exactly so many lower-case hex digits that are not all zero.
func checkHex(name, s string, digits int) error {
	switch {
	case s == "":
		return nil
	case len(s) != digits || strings.Trim(s, "0123456789abcdef") != "":
		return fmt.Errorf("%s: %w: want %d lower-case hex digits", name, errText, digits)
	case strings.Trim(s, "0") == "":
		return fmt.Errorf("%s: %w: all zero", name, errRange)
	}
	return nil
}

func checkCount(name string, n, most int64) error {
	switch {
	case n < 0:
		return fmt.Errorf("%s: %w", name, errNegative)
	case n > most:
		return fmt.Errorf("%s: %w: at most %d", name, errRange, most)
	}
	return nil
}

func checkStatus(status pb.Status, code int32) error {
	if _, ok := pb.Status_name[int32(status)]; !ok {
		return fmt.Errorf("status: %w", errRange)
	}
	if code != 0 && (code < 100 || code > 599) {
		return fmt.Errorf("http_status: %w", errRange)
	}
	return nil
}

func checkRequest(r *pb.Request) error {
	if r.GetRef() == 0 || r.GetRef() >= submitRefs {
		return fmt.Errorf("ref: %w: want 1 to 2^63-1", errRange)
	}
	if _, ok := pb.CountSource_name[int32(r.GetCounted())]; !ok {
		return fmt.Errorf("counted: %w", errRange)
	}
	if r.GetFlags() >= uint32(timeline.FlagMultipleChoices)<<1 {
		return fmt.Errorf("flags: %w", errRange)
	}
	e := r.GetEngine()
	return errors.Join(
		checkHex("trace_id", r.GetTraceId(), 32), checkHex("span_id", r.GetSpanId(), 16), checkHex("parent_id", r.GetParentId(), 16),
		checkText("id", r.GetId(), maxID), checkText("target", r.GetTarget(), maxID), checkText("upstream", r.GetUpstream(), maxLong),
		checkText("dialect", r.GetDialect(), maxWord), checkText("operation", r.GetOperation(), maxWord),
		checkText("model", r.GetModel(), maxLong), checkText("client", r.GetClient(), maxWord), checkText("finish", r.GetFinish(), maxWord),
		checkStatus(r.GetStatus(), r.GetHttpStatus()),
		checkCount("clock_bound_ns", r.GetClockBoundNs(), 1<<62),
		checkCount("prompt_tokens", r.GetPromptTokens(), maxCount), checkCount("cached_tokens", r.GetCachedTokens(), maxCount),
		checkCount("output_tokens", r.GetOutputTokens(), maxCount), checkCount("reasoning_tokens", r.GetReasoningTokens(), maxCount),
		checkCount("first_tokens", r.GetFirstTokens(), maxCount), checkCount("max_tokens", r.GetMaxTokens(), maxCount),
		checkCount("choices", r.GetChoices(), maxChoice+1), checkCount("events", r.GetEvents(), maxCount),
		checkCount("kernel_stamped", r.GetKernelStamped(), maxCount), checkCount("coalesced", r.GetCoalesced(), maxCount),
		checkCount("engine.prompt_tokens", e.GetPromptTokens(), maxCount), checkCount("engine.output_tokens", e.GetOutputTokens(), maxCount),
		checkCount("engine.prompt_time_ns", e.GetPromptTimeNs(), 1<<62), checkCount("engine.output_time_ns", e.GetOutputTimeNs(), 1<<62),
		checkCount("engine.time_to_first_ns", e.GetTimeToFirstNs(), 1<<62), checkCount("engine.queue_time_ns", e.GetQueueTimeNs(), 1<<62),
		checkCount("engine.per_output_mean_ns", e.GetPerOutputMeanNs(), 1<<62),
	)
}

func checkTiming(t *pb.Timing) error {
	if n, rows := len(t.GetTokenCounts()), len(t.GetTokenNs()); n != 0 && n != rows {
		return fmt.Errorf("token_counts: %w: %d rows for %d of token_ns", errRange, n, rows)
	}
	for i, n := range t.GetTokenCounts() {
		if n < 0 || n > maxCount {
			return fmt.Errorf("token_counts[%d]: %w", i, errRange)
		}
	}
	return errors.Join(
		checkHex("trace_id", t.GetTraceId(), 32), checkHex("span_id", t.GetSpanId(), 16),
		checkText("id", t.GetId(), maxID), checkText("target", t.GetTarget(), maxID), checkText("model", t.GetModel(), maxLong),
		checkText("operation", t.GetOperation(), maxWord),
		checkStatus(t.GetStatus(), t.GetHttpStatus()),
		checkCount("output_tokens", t.GetOutputTokens(), maxCount), checkCount("prompt_tokens", t.GetPromptTokens(), maxCount),
		checkCount("max_tokens", t.GetMaxTokens(), maxCount),
	)
}

// checkTokens checks the shape and the values of the columns.
func checkTokens(t *pb.Tokens) error {
	n := len(t.GetRef())
	if n > maxTokenRows {
		return fmt.Errorf("tokens.ref: %w: %d rows, at most %d", errLength, n, maxTokenRows)
	}
	if len(t.GetAtDeltaNs()) != n {
		return fmt.Errorf("tokens.at_delta_ns: %w: %d rows for %d of ref", errRange, len(t.GetAtDeltaNs()), n)
	}
	for _, col := range []struct {
		name string
		rows int
	}{
		{"uncertain_ns", len(t.GetUncertainNs())},
		{"tokens", len(t.GetTokens())},
		{"choice", len(t.GetChoice())},
		{"source", len(t.GetSource())},
		{"kind", len(t.GetKind())},
		{"stamp", len(t.GetStamp())},
		{"coalesced", len(t.GetCoalesced())},
	} {
		if col.rows != 0 && col.rows != n {
			return fmt.Errorf("tokens.%s: %w: %d rows for %d of ref", col.name, errRange, col.rows, n)
		}
	}
	return errors.Join(
		each("ref", t.GetRef(), func(v uint64) bool { return v > 0 && v < submitRefs }),
		each("uncertain_ns", t.GetUncertainNs(), func(v int64) bool { return v >= 0 }),
		each("tokens", t.GetTokens(), func(v int32) bool { return v >= 0 && v <= maxCount }),
		each("choice", t.GetChoice(), func(v int32) bool { return v >= 0 && v <= maxChoice }),
		each("source", t.GetSource(), func(v pb.CountSource) bool { return v >= 0 && int(v) < len(pb.CountSource_name) }),
		each("kind", t.GetKind(), func(v pb.TokenKind) bool { return v >= 0 && int(v) < len(pb.TokenKind_name) }),
		each("stamp", t.GetStamp(), func(v pb.StampSource) bool { return v >= 0 && int(v) < len(pb.StampSource_name) }),
	)
}

// each names the first row of a column that is not as it should be.
func each[T any](column string, rows []T, ok func(T) bool) error {
	for i, v := range rows {
		if !ok(v) {
			return fmt.Errorf("tokens.%s[%d]: %w", column, i, errRange)
		}
	}
	return nil
}
