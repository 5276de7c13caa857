package probe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// brief is the part of a record that the counting decides.
type brief struct {
	Status      timeline.Status
	Finish      string
	Output      int
	Counted     timeline.CountSource
	FirstTokens int
	First, Last int // ms after sending, zero if never
	Events      int
	Flags       string
}

func briefOf(r *timeline.Request) brief {
	ms := func(t timeline.Instant) int {
		if t.IsZero() {
			return 0
		}
		return int(t.Sub(start) / time.Millisecond)
	}
	return brief{
		r.Status, r.Finish, r.OutputTokens, r.Counted, r.FirstTokens, ms(r.First), ms(r.Last), r.Events,
		strings.Join(r.Flags.Names(), " "),
	}
}

func TestCounting(t *testing.T) {
	tests := []struct {
		name string
		s    stream
		want brief
	}{
		{
			"a role chunk does not start the clock, and a final total assumes one first token",
			stream{reads: []read{
				{10, ev(role)},
				{100, ev(text)},
				{120, ev(text)},
				{160, ev(text)},
				{180, ev(text)},
				{181, ev(finish)},
				{182, ev(usage(9, 5))},
				{183, ev(doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 5, timeline.CountFinal, 1, 100, 180, 4, "first_assumed"},
		},
		{
			"token ids count first",
			stream{reads: []read{
				{100, ev(`{"choices":[{"index":0,"delta":{"content":"ab"},"token_ids":[1,2]}]}`)},
				{120, ev(`{"choices":[{"index":0,"delta":{"content":""},"token_ids":[3]}],"usage":{"prompt_tokens":1,"completion_tokens":99}}`)},
				{130, ev(finish, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 3, timeline.CountIDs, 2, 100, 120, 2, "count_mismatch hidden_tokens"},
		},
		{
			"a cumulative usage counts by its growth, and tokens without text arrive with it",
			stream{reads: []read{
				{10, ev(counting(`"role":"assistant","content":""`, 0, 0))},
				{100, ev(counting(word, 0, 1))},
				{120, ev(counting(word, 0, 4))},
				{140, ev(counting(``, 0, 5))},
				{150, ev(counting(word, 0, 6))},
				{160, ev(finish, usage(9, 6), doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 6, timeline.CountUsage, 1, 100, 150, 4, ""},
		},
		{
			"reasoning and text of one output share one count",
			stream{reads: []read{
				{100, ev(counting(`"reasoning_content":"x"`, 0, 1))},
				{120, ev(counting(`"reasoning_content":"x"`, 0, 2))},
				{121, ev(counting(word, 0, 2))},
				{140, ev(counting(word, 0, 3))},
				{141, ev(finish, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 3, timeline.CountUsage, 1, 100, 140, 4, ""},
		},
		{
			"log probabilities count where nothing better is",
			stream{reads: []read{
				{100, ev(`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{}]}}]}`)},
				{120, ev(`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{},{},{}]}}]}`)},
				{121, ev(finish, usage(3, 4), doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 4, timeline.CountLogprobs, 1, 100, 120, 2, ""},
		},
		{
			"a total on the finish chunk belongs to no event",
			stream{reads: []read{
				{100, ev(text)},
				{120, ev(text)},
				{121, ev(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":8}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 8, timeline.CountFinal, 1, 100, 120, 2, "first_assumed"},
		},
		{
			"a total on the finish chunk does not recount log probabilities",
			stream{reads: []read{
				{100, ev(`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{}]}}]}`)},
				{120, ev(`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{}]}}]}`)},
				{121, ev(`{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 2, timeline.CountLogprobs, 1, 100, 120, 2, ""},
		},
		{
			"a usage of zero until the end tells nothing by event",
			stream{reads: []read{
				{100, ev(counting(word, 0, 0))},
				{120, ev(counting(word, 0, 0))},
				{121, ev(finish, usage(3, 12), doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 12, timeline.CountFinal, 1, 100, 120, 2, "first_assumed"},
		},
		{
			"timings of every chunk are cumulative counts",
			stream{reads: []read{
				{50, ev(`{"choices":[{"delta":{}}],"prompt_progress":{"total":9}}`)},
				{100, ev(`{"choices":[{"delta":{"content":"x"}}],"timings":{"predicted_n":1,"predicted_ms":1}}`)},
				{120, ev(`{"choices":[{"delta":{"content":"x"}}],"timings":{"predicted_n":3,"predicted_ms":2}}`)},
				{121, ev(finish, `{"choices":[],"usage":{"completion_tokens":3},"timings":{"predicted_n":3,"predicted_ms":2}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 3, timeline.CountUsage, 1, 100, 120, 2, ""},
		},
		{
			"timings alone give the total",
			stream{reads: []read{
				{100, ev(text)},
				{120, ev(text)},
				{121, ev(finish, `{"choices":[],"timings":{"predicted_n":2,"predicted_ms":2}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 2, timeline.CountFinal, 1, 100, 120, 2, "first_assumed"},
		},
		{
			"reasoning that was not streamed stays in the total",
			stream{reads: []read{
				{100, ev(text)},
				{120, ev(text)},
				{121, ev(finish, `{"choices":[],"usage":{"completion_tokens":102,"completion_tokens_details":{"reasoning_tokens":100}}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 102, timeline.CountFinal, 1, 100, 120, 2, "first_assumed"},
		},
		{
			"reasoning that was streamed stays in the total",
			stream{reads: []read{
				{90, ev(think)},
				{100, ev(text)},
				{101, ev(finish, `{"choices":[],"usage":{"completion_tokens":102,"completion_tokens_details":{"reasoning_tokens":100}}}`, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 102, timeline.CountFinal, 1, 90, 100, 2, "first_assumed"},
		},
		{
			"the token that ends a text by itself comes with the finish, a step after the last text",
			stream{reads: []read{{100, ev(text)}, {120, ev(text)}, {140, ev(text)}, {160, ev(finish, usage(3, 4), doneMark)}}},
			brief{timeline.StatusOK, "stop", 4, timeline.CountFinal, 1, 100, 160, 4, "first_assumed"},
		},
		{
			"a finish that comes at once is no step, though tokens were merged",
			stream{reads: []read{{100, ev(text)}, {120, ev(text)}, {140, ev(text)}, {141, ev(finish, usage(3, 6), doneMark)}}},
			brief{timeline.StatusOK, "stop", 6, timeline.CountFinal, 1, 100, 140, 3, "first_assumed"},
		},
		{
			"a text that was cut at its length has no token that ends it",
			stream{reads: []read{{100, ev(text)}, {120, ev(text)}, {140, ev(text)}, {160, ev(cut, usage(3, 4), doneMark)}}},
			brief{timeline.StatusOK, "length", 4, timeline.CountFinal, 1, 100, 140, 3, "first_assumed"},
		},
		{
			"no count at all is said",
			stream{reads: []read{{100, ev(text)}, {120, ev(text)}, {121, ev(finish, doneMark)}}},
			brief{timeline.StatusOK, "stop", 0, timeline.CountNone, 0, 100, 120, 2, "no_count"},
		},
		{
			"a total of tokens that no event showed is hidden",
			stream{reads: []read{{100, ev(role)}, {121, ev(finish)}, {122, ev(usage(1, 50), doneMark)}}},
			brief{timeline.StatusOK, "stop", 50, timeline.CountFinal, 0, 0, 0, 0, "hidden_tokens"},
		},
		{
			"two choices count apart and sum up",
			stream{body: `{"n":2,"stream":true}`, reads: []read{
				{100, ev(counting(word, 0, 1))},
				{101, ev(counting(word, 1, 2))},
				{120, ev(counting(word, 0, 2))},
				{121, ev(counting(word, 1, 3))},
				{122, ev(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, `{"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}`)},
				{123, ev(usage(9, 5), doneMark)},
			}},
			brief{timeline.StatusOK, "length", 5, timeline.CountUsage, 1, 100, 121, 4, "multiple_choices"},
		},
		{
			"echoed prompts do not count by their log probabilities",
			stream{path: "/v1/completions", body: `{"prompt":"p","echo":true,"stream":true}`, reads: []read{
				{100, ev(`{"choices":[{"text":"p x","logprobs":{"tokens":["p","x"]}}]}`)},
				{120, ev(`{"choices":[{"text":"x","logprobs":{"tokens":["x"]},"finish_reason":"stop"}]}`)},
				{121, ev(usage(1, 2), doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 2, timeline.CountFinal, 1, 100, 120, 2, "first_assumed"},
		},
		{
			"tokens that piled up behind a late first event are a backlog",
			stream{reads: []read{
				{100, ev(counting(word, 0, 1))},
				{101, ev(counting(word, 0, 9))},
				{121, ev(counting(word, 0, 10))},
				{141, ev(counting(word, 0, 11))},
				{161, ev(counting(word, 0, 12))},
				{181, ev(counting(word, 0, 13), finish, doneMark)},
			}},
			brief{timeline.StatusOK, "stop", 13, timeline.CountUsage, 1, 100, 181, 6, "backlog"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := tt.s.run(t)
			if diff := cmp.Diff(tt.want, briefOf(&l.closed[0])); diff != "" {
				t.Errorf("record mismatch (-want +got):\n%s", diff)
			}
			if len(l.tokens) != tt.want.Events {
				t.Errorf("%d token events, want %d", len(l.tokens), tt.want.Events)
			}
			for _, e := range l.tokens {
				if e.Ref != 7 {
					t.Errorf("token event refers to %d, want 7", e.Ref)
				}
			}
		})
	}
}
