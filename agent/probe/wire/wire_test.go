package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const absent = wire.Absent

func delta(kind timeline.TokenKind) wire.Delta {
	return wire.Delta{IDs: absent, Logprobs: absent, Kind: kind}
}

func chunk(deltas ...wire.Delta) wire.Chunk {
	return wire.Chunk{Deltas: deltas, Known: true, Usage: wire.Usage{Cached: absent, Reasoning: absent}}
}

func with(c wire.Chunk, change func(*wire.Chunk)) wire.Chunk {
	change(&c)
	return c
}

func TestParse(t *testing.T) {
	finished := func(kind timeline.TokenKind, reason string) wire.Delta {
		d := delta(kind)
		d.Finish = reason
		return d
	}
	counted := func(kind timeline.TokenKind, ids, logprobs int32) wire.Delta {
		return wire.Delta{IDs: ids, Logprobs: logprobs, Kind: kind}
	}
	vllm := func(c wire.Chunk) wire.Chunk {
		return with(c, func(c *wire.Chunk) { c.Flavour = wire.VLLM })
	}
	tests := []struct {
		name, payload string
		want          wire.Chunk
	}{
		{"the terminal marker", ` [DONE] `, with(chunk(), func(c *wire.Chunk) { c.Done = true; c.Deltas = nil })},
		{"a role chunk bears nothing", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`, chunk(delta(timeline.KindRole))},
		{"text is content", `{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null,"logprobs":null}],"usage":null}`, chunk(delta(timeline.KindContent))},
		{"a role beside text is content", `{"choices":[{"delta":{"role":"assistant","content":"x"}}]}`, chunk(delta(timeline.KindContent))},
		{"reasoning by its newer name", `{"choices":[{"delta":{"reasoning":"x"}}]}`, chunk(delta(timeline.KindReasoning))},
		{"reasoning by its older name", `{"choices":[{"delta":{"reasoning_content":"x","content":null}}]}`, chunk(delta(timeline.KindReasoning))},
		{"a refusal is content", `{"choices":[{"delta":{"refusal":"x"}}]}`, chunk(delta(timeline.KindContent))},
		{"tool arguments", `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`, chunk(delta(timeline.KindTool))},
		{"no tool calls are nothing", `{"choices":[{"delta":{"tool_calls":[]}}]}`, chunk(delta(timeline.KindOther))},
		{"text of a completion", `{"choices":[{"index":0,"text":"x"}]}`, chunk(delta(timeline.KindContent))},
		{"the end rides on the last text", `{"choices":[{"delta":{"content":"x"},"finish_reason":"length"}]}`, chunk(finished(timeline.KindContent, "length"))},
		{
			"the end in a chunk of its own", `{"choices":[{"delta":{},"finish_reason":"stop","matched_stop":2}]}`,
			with(chunk(finished(timeline.KindOther, "stop")), func(c *wire.Chunk) { c.Flavour = wire.SGLang }),
		},
		{"an unknown reason is not repeated", `{"choices":[{"delta":{},"finish_reason":"my secret"}]}`, chunk(finished(timeline.KindOther, "other"))},
		{"token ids are counted", `{"choices":[{"delta":{"content":"ab"},"token_ids":[5,7]}]}`, vllm(chunk(counted(timeline.KindContent, 2, absent)))},
		{"tokens without text", `{"choices":[{"delta":{"content":""},"token_ids":[5]}]}`, vllm(chunk(counted(timeline.KindEmpty, 1, absent)))},
		{"an empty list of ids is no token", `{"choices":[{"delta":{"role":"assistant"},"token_ids":[]}]}`, vllm(chunk(counted(timeline.KindRole, 0, absent)))},
		{"log probabilities of a chat", `{"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a"},{"token":"b"}],"refusal":null}}]}`, chunk(counted(timeline.KindContent, absent, 2))},
		{"log probabilities of a completion", `{"choices":[{"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-1,-2]}}]}`, chunk(counted(timeline.KindContent, absent, 2))},
		{
			"several choices", `{"choices":[{"index":1,"text":"x"},{"index":0,"text":""}]}`,
			chunk(wire.Delta{Choice: 1, IDs: absent, Logprobs: absent, Kind: timeline.KindContent}, delta(timeline.KindOther)),
		},
		{
			"a usage chunk", `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":3}}}`,
			with(chunk(), func(c *wire.Chunk) {
				c.Deltas, c.Usage = nil, wire.Usage{Known: true, Prompt: 9, Completion: 4, Cached: 8, Reasoning: 3}
			}),
		},
		{
			"reasoning tokens beside the totals", `{"usage":{"prompt_tokens":1,"completion_tokens":4,"reasoning_tokens":3,"prompt_tokens_details":null}}`,
			with(chunk(), func(c *wire.Chunk) {
				c.Deltas, c.Usage = nil, wire.Usage{Known: true, Prompt: 1, Completion: 4, Cached: absent, Reasoning: 3}
			}),
		},
		{
			"metrics beside the final usage", `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":10},"metrics":{"time_to_first_token_ms":500,"generation_time_ms":1000.0,"queue_time_ms":500,"mean_itl_ms":111.1,"tokens_per_second":6.67}}`,
			with(chunk(), func(c *wire.Chunk) {
				c.Deltas, c.Flavour, c.HasTimings = nil, wire.VLLM, true
				c.Usage = wire.Usage{Known: true, Prompt: 1, Completion: 10, Cached: absent, Reasoning: absent}
				c.Timings = timeline.EngineTimings{TimeToFirst: 500 * time.Millisecond, OutputTime: time.Second, QueueTime: 500 * time.Millisecond, PerOutputMean: 111100 * time.Microsecond}
			}),
		},
		{
			"timings of llama.cpp", `{"choices":[],"timings":{"cache_n":3,"prompt_n":5,"prompt_ms":20.5,"predicted_n":35,"predicted_ms":661.064,"predicted_per_token_ms":18.8875}}`,
			with(chunk(), func(c *wire.Chunk) {
				c.Deltas, c.Flavour, c.HasTimings, c.Usage.Cached = nil, wire.LlamaCpp, true, 3
				c.Timings = timeline.EngineTimings{PromptTokens: 5, PromptTime: 20500 * time.Microsecond, OutputTokens: 35, OutputTime: 661064 * time.Microsecond, PerOutputMean: 18887500 * time.Nanosecond}
			}),
		},
		{
			"progress of the prompt", `{"choices":[{"delta":{}}],"prompt_progress":{"total":10,"processed":5}}`,
			with(chunk(delta(timeline.KindOther)), func(c *wire.Chunk) { c.Flavour, c.Progress = wire.LlamaCpp, true }),
		},
		{"an error object", `{"error":{"message":"x","code":500}}`, with(chunk(), func(c *wire.Chunk) { c.Deltas, c.Error = nil, true })},
		{"an error text", `{"error":"x","error_type":"y"}`, with(chunk(), func(c *wire.Chunk) { c.Deltas, c.Error = nil, true })},
		{"an error by object name", `{"object":"error","message":"x"}`, with(chunk(), func(c *wire.Chunk) { c.Deltas, c.Error = nil, true })},
		{"no error is none", `{"choices":[],"error":null}`, with(chunk(), func(c *wire.Chunk) { c.Deltas = nil })},
		{"a choice without a delta", `{"choices":[{"index":0,"content_filter_offsets":{"start":1}}]}`, chunk(delta(timeline.KindOther))},
		{"an unknown object", `{"hello":[1,{"a":2}]}`, with(chunk(), func(c *wire.Chunk) { c.Deltas, c.Known = nil, false })},
		{"names may be escaped", `{"\u0063hoices":[{"delta":{"\u0063ontent":"x"}}]}`, chunk(delta(timeline.KindContent))},
		{"odd types are skipped", `{"choices":[{"index":"x","delta":[],"finish_reason":{},"logprobs":[1],"token_ids":"q"}],"usage":[],"timings":1,"metrics":"m"}`, vllm(chunk(delta(timeline.KindOther)))},
		{"a whole chat reply", `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"xyz"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, with(chunk(finished(timeline.KindContent, "stop")), func(c *wire.Chunk) {
			c.Usage = wire.Usage{Known: true, Prompt: 1, Completion: 2, Cached: absent, Reasoning: absent}
		})},
	}
	p := wire.NewParser()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := p.Parse([]byte(tt.payload))
			if !ok {
				t.Error("Parse() = false, want true")
			}
			c := *got
			if len(c.Deltas) == 0 {
				c.Deltas = nil
			}
			if diff := cmp.Diff(tt.want, c); diff != "" {
				t.Errorf("Parse() mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseReportsWhatIsNoJSON(t *testing.T) {
	p := wire.NewParser()
	for _, payload := range []string{``, `{`, `{"choices":[{"delta":{"content":"x`, `{"choices":[}`, `[1,`, `{} {}`, `nope`, `{"choices":[1 2]}`, strings.Repeat("[", 20000)} {
		if _, ok := p.Parse([]byte(payload)); ok {
			t.Errorf("Parse(%.20q) = true, want false", payload)
		}
	}
	if c, ok := p.Parse([]byte(`{"error":{"message":"x"},"choi`)); ok || !c.Error {
		t.Errorf("cut-off error object: ok = %v, Error = %v, want false, true", ok, c.Error)
	}
	if c, ok := p.Parse([]byte(`{"choices":[{"delta":{"content":"x"}}]}`)); !ok || len(c.Deltas) != 1 {
		t.Error("a parser does not recover from malformed payloads")
	}
}

func TestCountsThatCannotBeAreNotTold(t *testing.T) {
	c, ok := wire.NewParser().Parse([]byte(`{"usage":{"prompt_tokens":-5,"completion_tokens":1e300,"completion_tokens_details":{"reasoning_tokens":1e999}},"timings":{"prompt_ms":-1,"predicted_ms":1e30}}`))
	if !ok {
		t.Fatal("Parse() = false")
	}
	if c.Usage.Prompt != 0 || c.Usage.Completion != 0 || c.Usage.Reasoning != absent || c.Timings != (timeline.EngineTimings{}) {
		t.Errorf("usage %+v, timings %+v, want none", c.Usage, c.Timings)
	}
}

func TestChoicesOfOnePayloadAreBounded(t *testing.T) {
	c, whole := wire.NewParser().Parse([]byte(`{"choices":[{}` + strings.Repeat(",{}", 5000) + `],"usage":{"completion_tokens":7}}`))
	if !whole || len(c.Deltas) != 4096 || c.Usage.Completion != 7 {
		t.Errorf("Parse() = %d deltas, %d tokens, %v, want 4096, 7, true", len(c.Deltas), c.Usage.Completion, whole)
	}
}

func TestParseRequest(t *testing.T) {
	tests := []struct {
		name, body string
		ok         bool
		want       wire.Request
	}{
		{"the usual", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":5,"stream_options":{"include_usage":true}}`, true, wire.Request{Model: "m", Stream: true, MaxTokens: 5, Choices: 1, StreamOptions: true}},
		{"the newer limit wins", `{"max_completion_tokens":7,"max_tokens":5}`, true, wire.Request{MaxTokens: 7, Choices: 1}},
		{"the newer limit wins wherever it stands", `{"max_tokens":5,"max_completion_tokens":7}`, true, wire.Request{MaxTokens: 7, Choices: 1}},
		{"a batch of texts", `{"prompt":["a","b"],"n":2,"echo":true}`, true, wire.Request{Choices: 4, Echo: true}},
		{"a list of ids is one prompt", `{"prompt":[1,2,3]}`, true, wire.Request{Choices: 1}},
		{"a batch of lists of ids", `{"prompt":[[1,2],[3]]}`, true, wire.Request{Choices: 2}},
		{"nulls are nothing", `{"model":null,"stream":null,"max_tokens":null,"n":null,"stream_options":null}`, true, wire.Request{Choices: 1, StreamOptions: true}},
		{"no JSON", `hello`, false, wire.Request{Choices: 1}},
		{"what came before the cut is kept", `{"model":"m","stream":true,"messages":[{"content":"xx`, false, wire.Request{Model: "m", Stream: true, Choices: 1}},
		{"a model's name has bounds", `{"model":"` + strings.Repeat("m", 300) + `"}`, true, wire.Request{Choices: 1}},
	}
	p := wire.NewParser()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := p.ParseRequest([]byte(tt.body))
			if ok != tt.ok {
				t.Errorf("ParseRequest() ok = %v, want %v", ok, tt.ok)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ParseRequest() mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOperationOf(t *testing.T) {
	for path, want := range map[string]wire.Operation{
		"/v1/chat/completions": wire.Chat, "/chat/completions/": wire.Chat, "/v1/completions": wire.TextCompletion,
		"/completions": wire.TextCompletion, "/v1/embeddings": "", "/": "", "/v1/completionsx": "",
	} {
		if got, ok := wire.OperationOf(path); got != want || ok != (want != "") {
			t.Errorf("OperationOf(%q) = %q, %v, want %q", path, got, ok, want)
		}
	}
}

var streamPayload = []byte(`{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":1024,"total_tokens":1033,"completion_tokens":9}}`)

func TestParseDoesNotAllocate(t *testing.T) {
	p := wire.NewParser()
	if got := testing.AllocsPerRun(100, func() { p.Parse(streamPayload) }); got != 0 {
		t.Errorf("Parse() allocates %v times, want 0", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(streamPayload)
	f.Add([]byte(`{"choices":[{"index":1,"text":"x","logprobs":{"tokens":["a"]}}],"timings":{"predicted_n":3,"predicted_ms":1e3}}`))
	f.Add([]byte(`{"error":{"message":"\ud800"}}`))
	f.Add([]byte(`[DONE]`))
	p := wire.NewParser()
	f.Fuzz(func(t *testing.T, payload []byte) {
		c, ok := p.Parse(payload)
		got := *c
		got.Deltas = append([]wire.Delta(nil), c.Deltas...)
		fresh, okFresh := wire.NewParser().Parse(payload)
		want := *fresh
		want.Deltas = append([]wire.Delta(nil), fresh.Deltas...)
		if diff := cmp.Diff(want, got); diff != "" || ok != okFresh {
			t.Fatalf("a used parser reads otherwise than a fresh one:\n%s", diff)
		}
		if c.Usage.Prompt < 0 || c.Usage.Completion < 0 || c.Timings.OutputTime < 0 || c.Timings.OutputTokens < 0 {
			t.Fatalf("negative count in %+v", c)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":["a",[1]],"n":3,"stream":true,"stream_options":{"include_usage":true}}`))
	f.Add([]byte(`{"model":"\u00e9\`))
	p := wire.NewParser()
	f.Fuzz(func(t *testing.T, body []byte) {
		r, _ := p.ParseRequest(body)
		if r.Choices < 1 || r.MaxTokens < 0 || len(r.Model) > 256 {
			t.Fatalf("ParseRequest() = %+v", r)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	p := wire.NewParser()
	b.SetBytes(int64(len(streamPayload)))
	b.ReportAllocs()
	for b.Loop() {
		p.Parse(streamPayload)
	}
}
