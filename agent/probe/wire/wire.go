// Package wire reads what servers of language models say over HTTP: the payloads of their streams, their whole
// replies, and the requests they are sent. It takes counts, kinds, ends and timings out of them and never content:
// no result of this package holds a byte of a prompt, a completion, a token or an error message. It keeps no state
// between payloads; what counts mean over a stream is the tracker's business.
package wire

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Absent marks a count that a payload does not carry.
const Absent = -1

// Flavour says which server a payload betrays by its own fields.
type Flavour uint8

// The flavours of the OpenAI dialect.
const (
	Generic Flavour = iota
	VLLM
	SGLang
	LlamaCpp
)

// String returns the dialect's name as records spell it.
func (f Flavour) String() string {
	return [...]string{"openai", "openai-vllm", "openai-sglang", "openai-llamacpp"}[min(f, LlamaCpp)]
}

// Usage is the server's own count. Fields that it did not tell are Absent.
type Usage struct {
	Known                                 bool
	Prompt, Completion, Cached, Reasoning int
}

// Delta is what one payload says of one choice.
type Delta struct {
	Choice   int32
	IDs      int32 // length of the list of token ids, or Absent
	Logprobs int32 // length of the list of log probabilities, or Absent
	Kind     timeline.TokenKind
	Finish   string // one of the known reasons, "other" for any other, empty if not finished
}

// Chunk is what one payload says.
type Chunk struct {
	Deltas     []Delta // one for each choice the payload speaks of, 4096 at most; valid until the parser's next call
	Usage      Usage
	Timings    timeline.EngineTimings
	HasTimings bool
	Done       bool // the terminal marker
	Error      bool // an error object
	Progress   bool // progress of the prompt
	Known      bool // the payload is of this dialect
	Flavour    Flavour
}

// Parser reads payloads and reuses its memory between them. It is not safe for concurrent use.
type Parser struct {
	json   *jsontext.Decoder
	source bytes.Buffer
	name   []byte
	deltas []Delta
	chunk  Chunk
	msg    delta
}

// NewParser returns a parser.
func NewParser() *Parser {
	return &Parser{json: jsontext.NewDecoder(new(bytes.Buffer), jsonOptions...)}
}

// done is the payload that ends a stream of the OpenAI dialect.
const done = "[DONE]"

// Parse reads one payload of a stream, or one whole reply. It reports false if the payload is not valid JSON; what it
// learned until there is kept, so that an error object that was cut off still counts as one.
func (p *Parser) Parse(payload []byte) (*Chunk, bool) {
	p.chunk = Chunk{Deltas: p.deltas[:0], Usage: Usage{Cached: Absent, Reasoning: Absent}}
	payload = bytes.TrimSpace(payload)
	if string(payload) == done {
		p.chunk.Done, p.chunk.Known = true, true
		return &p.chunk, true
	}
	p.reset(payload)
	err := p.payload()
	if err == nil {
		err = p.end()
	}
	p.release()
	p.deltas = p.chunk.Deltas
	return &p.chunk, err == nil
}

// finishReasons are the reasons that servers are known to give. Others are not repeated: they might be content.
var finishReasons = []string{
	"stop", "length", "tool_calls", "function_call", "content_filter", "error", "abort", "timeout", "repetition", "load", "eos_token", "stop_sequence",
}

func finishReason(raw []byte) string {
	for _, r := range finishReasons {
		if len(raw) == len(r)+2 && string(raw[1:len(raw)-1]) == r {
			return r
		}
	}
	return "other"
}
