package wire

import "github.com/tpotscope/tpotscope/correlate/timeline"

// delta is what a choice carries, before it is put into one kind.
type delta struct {
	role, content, reasoning, tool bool
}

// payload reads a chunk or a reply of the OpenAI dialect, of any flavour.
func (p *Parser) payload() error { return p.object(p.topField) }

func (p *Parser) topField(name []byte) error {
	c := &p.chunk
	switch string(name) {
	case "choices":
		c.Known = true
		return p.array(p.choice)
	case "usage":
		return p.usage()
	case "error":
		if p.is('n') {
			return p.skip()
		}
		c.Error, c.Known = true, true
		return p.skip()
	case "object":
		// Servers before the error object was agreed on sent {"object":"error","message":...}.
		if !p.is('"') {
			return p.skip()
		}
		raw, err := p.json.ReadValue()
		if string(raw) == `"error"` {
			c.Error, c.Known = true, true
		}
		return err
	case "timings":
		return p.llamaTimings()
	case "prompt_progress":
		return p.llamaProgress()
	case "metrics":
		return p.vllmMetrics()
	case "kv_transfer_params", "prompt_logprobs", "prompt_token_ids":
		c.Flavour = VLLM
	}
	return p.skip()
}

// maxDeltas bounds the choices of one payload that are told: a hostile one of megabytes could list millions.
const maxDeltas = 4096

func (p *Parser) choice() error {
	if len(p.chunk.Deltas) == maxDeltas {
		return p.skip()
	}
	d := Delta{IDs: Absent, Logprobs: Absent}
	p.msg = delta{}
	index := 0
	err := p.object(func(name []byte) error { return p.choiceField(name, &d, &index) })
	d.Choice = int32(min(index, 1<<20))
	d.Kind = p.msg.kind(d.IDs > 0 || d.Logprobs > 0)
	p.chunk.Deltas = append(p.chunk.Deltas, d)
	return err
}

func (p *Parser) choiceField(name []byte, d *Delta, index *int) error {
	switch string(name) {
	case "index":
		return p.count(index)
	case "delta", "message":
		return p.object(p.deltaField)
	case "text":
		return p.filled(&p.msg.content)
	case "finish_reason":
		if !p.is('"') {
			return p.skip()
		}
		raw, err := p.json.ReadValue()
		if err == nil {
			d.Finish = finishReason(raw)
		}
		return err
	case "logprobs":
		return p.object(func(name []byte) error {
			switch string(name) {
			case "content", "tokens": // of chat and of completions
				return p.length(&d.Logprobs)
			}
			return p.skip()
		})
	case "token_ids":
		p.chunk.Flavour = VLLM
		return p.length(&d.IDs)
	case "stop_reason":
		p.chunk.Flavour = max(p.chunk.Flavour, VLLM)
	case "matched_stop":
		p.chunk.Flavour = SGLang
	}
	return p.skip()
}

func (p *Parser) deltaField(name []byte) error {
	m := &p.msg
	switch string(name) {
	case "role":
		return p.filled(&m.role)
	case "content", "refusal":
		if p.is('[') {
			var parts int32
			err := p.length(&parts)
			m.content = m.content || parts > 0
			return err
		}
		return p.filled(&m.content)
	case "reasoning", "reasoning_content":
		return p.filled(&m.reasoning)
	case "tool_calls":
		var calls int32
		err := p.length(&calls)
		m.tool = m.tool || calls > 0
		return err
	case "function_call":
		m.tool = m.tool || p.is('{')
	}
	return p.skip()
}

// kind puts a choice into one kind: what bears text goes before what only names the speaker.
func (m *delta) kind(counted bool) timeline.TokenKind {
	switch {
	case m.content:
		return timeline.KindContent
	case m.reasoning:
		return timeline.KindReasoning
	case m.tool:
		return timeline.KindTool
	case counted:
		return timeline.KindEmpty
	case m.role:
		return timeline.KindRole
	}
	return timeline.KindOther
}

func (p *Parser) usage() error {
	u := &p.chunk.Usage
	if !p.is('{') {
		return p.skip() // null on each chunk but the last
	}
	p.chunk.Known = true
	return p.object(func(name []byte) error {
		switch string(name) {
		case "prompt_tokens":
			return p.count(&u.Prompt)
		case "completion_tokens":
			u.Known = true
			return p.count(&u.Completion)
		case "prompt_tokens_details":
			return p.object(func(name []byte) error { return p.countNamed(name, "cached_tokens", &u.Cached) })
		case "completion_tokens_details":
			return p.object(func(name []byte) error { return p.countNamed(name, "reasoning_tokens", &u.Reasoning) })
		}
		// SGLang tells it beside the totals.
		return p.countNamed(name, "reasoning_tokens", &u.Reasoning)
	})
}

func (p *Parser) countNamed(name []byte, want string, n *int) error {
	if string(name) == want {
		return p.count(n)
	}
	return p.skip()
}
