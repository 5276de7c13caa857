package probe_test

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestStatus(t *testing.T) {
	reply := `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`
	tests := []struct {
		name  string
		s     stream
		want  timeline.Status
		flags string
	}{
		{"the terminal marker ends well", stream{reads: []read{{9, ev(text, doneMark)}}}, timeline.StatusOK, "no_count"},
		{"a finish reason ends well, without the marker", stream{reads: []read{{9, ev(text, finish)}}}, timeline.StatusOK, "no_count no_terminal"},
		{"a finish reason ends well even if the body broke off", stream{reads: []read{{9, ev(text, finish)}}, end: probe.EndCut}, timeline.StatusOK, "no_count no_terminal"},
		{"neither is truncated", stream{reads: []read{{9, ev(text)}}}, timeline.StatusTruncated, "no_count no_terminal"},
		{"half an event is truncated", stream{reads: []read{{9, ev(text) + `data: {"choices":[{"de`}}, end: probe.EndCut}, timeline.StatusTruncated, "no_count no_terminal"},
		{"a whole event without blank line counts", stream{reads: []read{{9, ev(text) + `data: ` + finish}}}, timeline.StatusOK, "no_count no_terminal"},
		{"one of two choices finished is truncated", stream{reads: []read{{9, ev(finish, `{"choices":[{"index":1,"delta":{}}]}`)}}}, timeline.StatusTruncated, "no_terminal multiple_choices"},
		{"an error object after success fails in spite of the marker", stream{reads: []read{{9, ev(text, `{"error":{"message":"x"}}`, doneMark)}}}, timeline.StatusInBand, "no_count"},
		{"an event of type error fails", stream{reads: []read{{9, "event: error\ndata: {\"message\":1}\n\n"}}}, timeline.StatusInBand, "no_terminal unparsed"},
		{"a finish reason of error fails", stream{reads: []read{{9, ev(`{"choices":[{"delta":{},"finish_reason":"error"}]}`, doneMark)}}}, timeline.StatusInBand, ""},
		{"the client left", stream{reads: []read{{9, ev(text)}}, end: probe.EndClient}, timeline.StatusCancelled, "no_count"},
		{"the client left after the end", stream{reads: []read{{9, ev(text, doneMark)}}, end: probe.EndClient}, timeline.StatusOK, "no_count"},
		{"silence is a timeout", stream{reads: []read{{9, ev(text)}}, end: probe.EndTimeout}, timeline.StatusTimeout, "no_count"},
		{"the observer stopped", stream{reads: []read{{9, ev(text)}}, end: probe.EndStopped}, timeline.StatusUnfinished, "no_count"},
		{"no response", stream{status: -1, end: probe.EndUpstream}, timeline.StatusUpstream, ""},
		{"no response in time", stream{status: -1, end: probe.EndTimeout}, timeline.StatusTimeout, ""},
		{"the client left before a response", stream{status: -1, end: probe.EndClient}, timeline.StatusCancelled, ""},
		{"an error status", stream{status: 500, contentType: "application/json", reads: []read{{9, `{"error":{}}`}}}, timeline.StatusHTTPError, ""},
		{"a whole reply", stream{contentType: "application/json", reads: []read{{9, reply[:20]}, {10, reply[20:]}}}, timeline.StatusOK, ""},
		{"a whole reply that is an error", stream{contentType: "application/json", reads: []read{{9, `{"error":"x"}`}}}, timeline.StatusInBand, ""},
		{"a reply that broke off", stream{contentType: "application/json", reads: []read{{9, reply[:20]}}, end: probe.EndCut}, timeline.StatusTruncated, ""},
		{"a reply that is no JSON", stream{contentType: "application/json", reads: []read{{9, `hello`}}}, timeline.StatusOK, "no_count unparsed"},
		{"a stream compressed in another way is not read", stream{encoding: "br", reads: []read{{9, "\x1f\x8b"}}}, timeline.StatusOK, "no_count compressed"},
		{"a compressed stream is read", stream{encoding: "gzip", reads: zipped(ev(text, finish), ev(doneMark))}, timeline.StatusOK, "no_count compressed"},
		{"a compressed stream that breaks off is truncated", stream{encoding: "gzip", reads: zipped(ev(text), "")[:1], end: probe.EndCut}, timeline.StatusTruncated, "no_count no_terminal compressed"},
		{"a stream that is not compressed as it says is told", stream{encoding: "gzip", reads: []read{{9, ev(text)}, {10, ev(doneMark)}}}, timeline.StatusTruncated, "no_terminal unparsed compressed"},
		{"a compressed reply is read", stream{encoding: "gzip", contentType: "application/json", reads: zipped(reply)}, timeline.StatusOK, "compressed"},
		{"an event of another kind is told", stream{reads: []read{{9, ev(`{"hello":1}`, text, doneMark)}}}, timeline.StatusOK, "no_count unparsed"},
		{"comments are nothing", stream{reads: []read{{9, ": ping\n\n: ping\n\n"}, {10, ev(finish, doneMark)}}}, timeline.StatusOK, "no_count"},
		{"what comes after the marker is nothing", stream{reads: []read{{9, ev(finish, doneMark, text, `{"error":1}`)}}}, timeline.StatusOK, "no_count"},
		{"an event beyond the limit is told, and no count by event stands", stream{limit: 150, reads: []read{{9, ev(counting(word, 0, 1))}, {10, ev(`{"choices":[{"delta":{"content":"` + strings.Repeat("x", 200) + `"}}]}`)}, {11, ev(usage(1, 9), doneMark)}}}, timeline.StatusOK, "unparsed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.s.run(t).closed[0]
			if r.Status != tt.want {
				t.Errorf("status = %v, want %v", r.Status, tt.want)
			}
			if got := strings.Join(r.Flags.Names(), " "); got != tt.flags {
				t.Errorf("flags = %q, want %q", got, tt.flags)
			}
		})
	}
}

func TestAWholeReplyTellsItsTotals(t *testing.T) {
	body := `{"choices":[{"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":20,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}}`
	s := stream{contentType: "application/json", body: `{"model":"llama","max_tokens":3}`, reads: []read{{300, body}}}
	got := s.run(t).closed[0]
	want := timeline.Request{
		Ref: 7, Dialect: "openai", Operation: "chat", Model: "llama", Sent: at(0), Head: at(5), Done: at(301), HTTPStatus: 200, Finish: "length",
		PromptTokens: 20, PromptKnown: true, CachedTokens: 16, OutputTokens: 3, Counted: timeline.CountFinal, MaxTokens: 3, Choices: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record mismatch (-want +got):\n%s", diff)
	}
}

// zipped compresses pieces into one gzip stream, flushed after each, as one read every ten milliseconds.
func zipped(pieces ...string) []read {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	var reads []read
	for i, p := range pieces {
		_, _ = z.Write([]byte(p))
		_ = z.Flush()
		if i == len(pieces)-1 {
			_ = z.Close()
		}
		reads = append(reads, read{10 * (i + 1), b.String()})
		b.Reset()
	}
	return reads
}

func TestACompressedStreamGivesTheSameEventsAtTheSameTimes(t *testing.T) {
	pieces := []string{ev(counting(word, 0, 1)), ev(counting(word, 0, 2), counting(word, 0, 3)), ev(counting(word, 0, 4)), ev(finish, usage(9, 4), doneMark)}
	var plain []read
	for i, p := range pieces {
		plain = append(plain, read{10 * (i + 1), p})
	}
	want := stream{reads: plain}.run(t)
	got := stream{encoding: "gzip", reads: zipped(pieces...)}.run(t)
	if diff := cmp.Diff(want.tokens, got.tokens); diff != "" {
		t.Errorf("token events mismatch (-plain +compressed):\n%s", diff)
	}
	want.closed[0].Flags |= timeline.FlagCompressed
	if diff := cmp.Diff(want.closed, got.closed); diff != "" {
		t.Errorf("record mismatch (-plain +compressed):\n%s", diff)
	}
}

func FuzzCompressed(f *testing.F) {
	f.Add([]byte(zipped(ev(text, doneMark))[0].bytes), uint8(3))
	f.Add([]byte("\x1f\x8b\x08\x00"), uint8(1))
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		s := stream{encoding: "gzip"}
		for i := 0; i < len(body); i += int(piece) + 1 {
			s.reads = append(s.reads, read{10 + i, string(body[i:min(i+int(piece)+1, len(body))])})
		}
		s.run(t)
	})
}
