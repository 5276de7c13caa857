package wire

import "strings"

// Operation names what a request asks for, as telemetry spells it.
type Operation string

// The operations.
const (
	Chat           Operation = "chat"
	TextCompletion Operation = "text_completion"
)

// OperationOf returns the operation that a request's path stands for, and whether it is one that is understood.
func OperationOf(path string) (Operation, bool) {
	switch path = strings.TrimSuffix(path, "/"); {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat, true
	case strings.HasSuffix(path, "/completions"):
		return TextCompletion, true
	}
	return "", false
}

// maxModel bounds a model's name as it is kept.
const maxModel = 256

// Request is what a request asks for.
type Request struct {
	Model         string
	Stream        bool
	MaxTokens     int  // zero if not told
	Choices       int  // n times the number of prompts; at least one
	StreamOptions bool // there are any, be they null
	// Echo asks for the prompt to be repeated before the completion: the lists of the first chunk are then longer than
	// what was generated.
	Echo bool
}

// ParseRequest reads a request's body, or the beginning of one. It reports false if the body is not valid JSON; what
// came before the fault is kept.
func (p *Parser) ParseRequest(body []byte) (Request, bool) {
	r := Request{}
	choices, prompts := 1, 1
	p.reset(body)
	err := p.object(func(name []byte) error { return p.requestField(name, &r, &choices, &prompts) })
	if err == nil {
		err = p.end()
	}
	p.release()
	r.Choices = max(choices, 1) * max(prompts, 1)
	return r, err == nil
}

func (p *Parser) requestField(name []byte, r *Request, choices, prompts *int) error {
	switch string(name) {
	case "model":
		if !p.is('"') {
			return p.skip()
		}
		raw, err := p.json.ReadValue()
		if text := p.unquote(raw); len(text) <= maxModel {
			r.Model = strings.ToValidUTF8(string(text), "")
		}
		return err
	case "stream":
		return p.truth(&r.Stream)
	case "max_tokens":
		if r.MaxTokens != 0 { // max_completion_tokens came first, and is the newer word
			return p.skip()
		}
		return p.count(&r.MaxTokens)
	case "max_completion_tokens":
		return p.count(&r.MaxTokens)
	case "n":
		return p.count(choices)
	case "echo":
		return p.truth(&r.Echo)
	case "prompt":
		return p.prompts(prompts)
	case "stream_options":
		r.StreamOptions = true
	}
	return p.skip()
}

// prompts counts a batch of prompts: a list of texts or of lists of ids. A list of ids is one prompt.
func (p *Parser) prompts(n *int) error {
	if !p.is('[') {
		return p.skip()
	}
	batch := 0
	err := p.array(func() error {
		if !p.is('0') {
			batch++
		}
		return p.skip()
	})
	*n = max(batch, 1)
	return err
}
