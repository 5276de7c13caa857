package llmsim

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// words are what replies are made of.
var words = [...]string{
	" alpha", " bravo", " charlie", " delta", " echo", " foxtrot", " golf", " hotel", " india", " juliett", " kilo", " lima",
	" mike", " november", " oscar", " papa",
}

func word(i int) string { return words[i%len(words)] }

// tokenID returns the made-up id of the word at position i.
func tokenID(i int) int { return 1000 + i%len(words) }

func serial(n uint64) string { return "sim-" + strconv.FormatUint(n, 16) }

// stream writes a reply as server-sent events, each chunk at its time, and each with one write.
//
// The shape is that of vLLM: a role chunk that leaves with the first token, chunks that leave out what was not set,
// the reason of finishing on the last token's chunk, then a usage chunk without choices if it was asked for, and the
// terminal marker. An error inside the stream is followed by the terminal marker too.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, rep *reply) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	wt := newWaiter(r.Context(), s.cfg.Precise)
	defer wt.close()
	out := sender{w: w, ctl: http.NewResponseController(w), c: chunker{rep: rep, model: s.model}}
	if rep.op == chat && rep.fault.EarlyRole {
		out.c.role()
		if !out.send() {
			return
		}
	}
	if !s.streamTokens(wt, rep, &out) {
		return
	}
	if rep.cutOff > 0 {
		if wt.wait(rep.cutOff-s.elapsed()) != nil {
			return
		}
		out.c.tokens(0, true)
	}
	out.c.end()
	out.send()
}

// streamTokens writes the chunks that bear tokens, and reports whether the reply goes on.
func (s *Server) streamTokens(wt *waiter, rep *reply, out *sender) bool {
	var before time.Duration
	for i, e := range rep.events {
		if wt.wait(e.at-s.elapsed()) != nil {
			return false
		}
		if i == 0 && rep.op == chat && !rep.fault.EarlyRole {
			out.c.role()
		}
		out.c.tokens(e.tokens, i == len(rep.events)-1 && rep.cutOff == 0)
		if !out.send() {
			return false
		}
		if rep.free {
			s.live.event(rep, i, e, e.at-before, s.cfg.Free)
		}
		before = e.at
		if out.broken() {
			return false
		}
	}
	return true
}

// sender writes what its chunker has gathered.
type sender struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
	c   chunker
}

// send writes and flushes, and reports whether the client still takes it.
func (o *sender) send() bool {
	_, err := o.w.Write(o.c.buf)
	o.c.buf = o.c.buf[:0]
	return err == nil && o.ctl.Flush() == nil
}

// broken does what the reply's fault asks for after the tokens sent so far, and reports whether that ended the reply.
func (o *sender) broken() bool {
	f := &o.c.rep.fault
	switch {
	case f.CutAt > 0 && o.c.sent >= f.CutAt:
		cut(o.ctl)
		return true
	case f.ErrorAt > 0 && o.c.sent >= f.ErrorAt:
		o.c.failure()
		o.send()
		return true
	}
	return false
}

// cut breaks the connection in the middle of the reply.
func cut(out *http.ResponseController) {
	conn, _, err := out.Hijack()
	if err == nil {
		_ = conn.Close() // that it breaks is the purpose
	}
}

// chunker writes the chunks of one reply. It writes JSON by hand: a reply's chunks differ in few places, and a server
// of many streams writes thousands a second.
type chunker struct {
	rep   *reply
	model string // as JSON
	sent  int    // tokens
	buf   []byte
}

func (c *chunker) add(parts ...string) {
	for _, p := range parts {
		c.buf = append(c.buf, p...)
	}
}

func (c *chunker) num(n int) { c.buf = strconv.AppendInt(c.buf, int64(n), 10) }

// open begins a chunk, up to the list of choices.
func (c *chunker) open() {
	object := "chat.completion.chunk"
	if c.rep.op == text {
		object = "text_completion"
	}
	c.add(`data: {"id":"`, c.rep.id, `","object":"`, object, `","created":`)
	c.num(int(c.rep.created))
	c.add(`,"model":`, c.model, `,"choices":[`)
}

func (c *chunker) usage() {
	c.add(`,"usage":{"prompt_tokens":`)
	c.num(c.rep.prompt)
	c.add(`,"total_tokens":`)
	c.num(c.rep.prompt + c.sent)
	c.add(`,"completion_tokens":`)
	c.num(c.sent)
	c.add(`}`)
}

func (c *chunker) role() {
	c.open()
	c.add(`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`)
	if c.rep.ask.TokenIDs {
		c.add(`,"prompt_token_ids":[`)
		c.ids(0, c.rep.prompt)
		c.add(`]`)
	}
	if c.rep.ask.Options.Continuous {
		c.usage()
	}
	c.add("}\n\n")
}

// tokens writes a chunk with n tokens; the last of a reply carries the reason of finishing.
func (c *chunker) tokens(n int, last bool) {
	from := c.sent
	c.sent += n
	c.open()
	field := `{"index":0,"delta":{"content":"`
	if c.rep.op == text {
		field = `{"index":0,"text":"`
	}
	c.add(field)
	for i := range n {
		c.add(word(from + i))
	}
	if c.rep.op == chat {
		c.add(`"}`)
	} else {
		c.add(`"`)
	}
	c.add(`,"logprobs":null,"finish_reason":`)
	if last {
		c.add(`"`, c.rep.finish, `","stop_reason":null`)
	} else {
		c.add(`null`)
	}
	if c.rep.ask.TokenIDs {
		c.add(`,"token_ids":[`)
		c.ids(from, n)
		c.add(`]`)
	} else {
		c.add(`,"token_ids":null`)
	}
	c.add(`}]`)
	switch {
	case c.rep.ask.Options.Continuous:
		c.usage()
	case c.rep.op == text:
		c.add(`,"usage":null`)
	}
	c.add("}\n\n")
}

func (c *chunker) ids(from, n int) {
	for i := range n {
		if i > 0 {
			c.add(",")
		}
		c.num(tokenID(from + i))
	}
}

func (c *chunker) failure() {
	c.add(`data: {"error":{"message":"simulated error","type":"InternalServerError","param":null,"code":500}}`, "\n\n")
	c.done()
}

func (c *chunker) end() {
	if c.rep.ask.Options.Usage {
		c.open()
		c.add(`]`)
		c.usage()
		c.add("}\n\n")
	}
	c.done()
}

func (c *chunker) done() {
	if !c.rep.fault.NoDone {
		c.add("data: [DONE]\n\n")
	}
}

// sleep waits by the runtime's timers.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
