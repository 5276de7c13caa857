package probe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// What no request can have does not reach a sum, and is flagged.
func TestUnbelievableCountsAreLeftOut(t *testing.T) {
	for name, payload := range map[string]string{
		"a total beyond any context":   `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":549755813888}}`,
		"a growing total that jumps":   `{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"completion_tokens":4294967297}}`,
		"timings beyond any context":   `{"choices":[],"timings":{"predicted_n":99999999999,"predicted_ms":1}}`,
		"a choice beyond all that are": `{"choices":[{"index":2000000000,"delta":{"content":"x"}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := &sink{}
			tr := probe.NewTracker(s, timeline.Request{Ref: 1}, 0)
			tr.Open(1)
			tr.Head(2, 200, "text/event-stream", "")
			for i, b := range []string{ev(text), ev(text), ev(payload), ev(finish, doneMark)} {
				tr.Read([]byte(b), probe.Stamp{At: timeline.Instant(100 * (i + 1)), Read: uint64(i + 1)})
			}
			r := tr.Close(1000, probe.EndEOF)
			if r.OutputTokens < 0 || r.OutputTokens > 1<<24 || r.Engine.OutputTokens > 1<<24 {
				t.Errorf("record has %d output tokens, engine %d", r.OutputTokens, r.Engine.OutputTokens)
			}
			if r.Flags&timeline.FlagUnparsed == 0 {
				t.Errorf("record is not flagged: %v", r.Flags.Names())
			}
			for _, e := range s.tokens {
				if e.Tokens < 0 || e.Tokens > 1<<24 || e.Choice < 0 || e.Choice > 1023 {
					t.Errorf("event has %d tokens of choice %d", e.Tokens, e.Choice)
				}
			}
		})
	}
}

// A client may ask for anything; the record holds what can be printed and summed.
func TestWhatIsAskedIsBounded(t *testing.T) {
	body := fmt.Sprintf(`{"model":"a\n\u001b[31mb\t%s","stream":true,"max_tokens":2147483647,"n":5000}`, strings.Repeat("é", 100))
	s := &sink{}
	tr := probe.NewTracker(s, timeline.Request{Ref: 1}, 0)
	tr.Asked("/v1/chat/completions", []byte(body))
	tr.Open(1)
	r := tr.Close(2, probe.EndUpstream)
	if len(r.Model) > 256 || !strings.HasPrefix(r.Model, "a[31mb") || strings.ContainsAny(r.Model, "\n\t\x1b") {
		t.Errorf("model is %q", r.Model)
	}
	if r.MaxTokens != 0 || r.Choices > 1024 {
		t.Errorf("asked for %d tokens of %d choices", r.MaxTokens, r.Choices)
	}
}

// sink keeps the token events of one request.
type sink struct{ tokens []timeline.TokenEvent }

func (s *sink) OpenRequest(*timeline.Request)    {}
func (s *sink) AddToken(e timeline.TokenEvent)   { s.tokens = append(s.tokens, e) }
func (s *sink) CloseRequest(r *timeline.Request) {}
