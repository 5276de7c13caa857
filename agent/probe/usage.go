package probe

import (
	"bytes"

	"github.com/tpotscope/tpotscope/agent/probe/sse"
	"github.com/tpotscope/tpotscope/agent/probe/wire"
)

// AskUsage returns a request's body with a wish for the final token count added, and true, if the request is for a
// stream and says nothing of stream options. Otherwise it returns the body itself and false: what a client says of
// stream options is not overruled.
func AskUsage(body []byte) ([]byte, bool) {
	q, whole := wire.NewParser().ParseRequest(body)
	open := bytes.IndexByte(body, '{')
	if !whole || !q.Stream || q.StreamOptions || open < 0 {
		return body, false
	}
	const wish = `"stream_options":{"include_usage":true},`
	asked := make([]byte, 0, len(body)+len(wish))
	asked = append(asked, body[:open+1]...)
	asked = append(asked, wish...)
	return append(asked, body[open+1:]...), true
}

// UsageFilter takes the event that only states the final usage out of a stream, for clients that did not ask for it.
// All other bytes pass in order and unchanged; those of an event that is not complete are held until it is. It is not
// safe for concurrent use.
type UsageFilter struct {
	sse    sse.Decoder
	parser *wire.Parser
	emit   func(sse.Event)
	limit  int
	held   []byte // from the stream's offset base on
	base   int64
	out    []byte
	off    bool // an event was larger than the limit: everything passes
	midEnd bool // the event before ended with a CR, so that an LF right after it is its own
	taken  bool // the event before was taken out
}

// NewUsageFilter returns a filter that holds at most maxEventBytes; zero means a default of 8 MiB.
func NewUsageFilter(maxEventBytes int) *UsageFilter {
	f := &UsageFilter{parser: wire.NewParser(), limit: maxEventBytes}
	if f.limit <= 0 {
		f.limit = sse.DefaultMaxBytes
	}
	f.sse.MaxBytes = f.limit
	f.emit = f.event
	return f
}

// Feed takes the next bytes of the stream and returns those that are to pass now, which are valid until the next call.
func (f *UsageFilter) Feed(chunk []byte) []byte {
	f.out = f.out[:0]
	if f.off {
		return append(f.out, chunk...)
	}
	f.held = append(f.held, chunk...)
	f.sse.Feed(chunk, f.emit)
	if len(f.held) > f.limit {
		f.off = true
		f.pass(len(f.held), false)
	}
	return f.out
}

// Rest returns what is still held, at the end of the stream.
func (f *UsageFilter) Rest() []byte {
	f.out = f.out[:0]
	f.pass(len(f.held), false)
	return f.out
}

// event decides about the bytes up to the end of an event.
func (f *UsageFilter) event(e sse.Event) {
	n := int(e.End - f.base)
	if e.Kind == sse.Comment {
		if lead := bytes.TrimLeft(f.held[:n], "\r\n"); len(lead) == 0 || lead[0] != ':' {
			return // inside a message, and passes with it
		}
	}
	f.pass(n, e.Kind == sse.Message && f.usageOnly(e.Data))
}

// pass lets n of the held bytes through, or takes them out. An LF that ends the CRLF of the event before shares that
// one's fate.
func (f *UsageFilter) pass(n int, take bool) {
	raw := f.held[:n]
	if n == 0 {
		return
	}
	if f.midEnd && raw[0] == '\n' {
		if !f.taken {
			f.out = append(f.out, '\n')
		}
		raw = raw[1:]
	}
	if !take {
		f.out = append(f.out, raw...)
	}
	f.midEnd, f.taken = f.held[n-1] == '\r', take
	f.base += int64(n)
	f.held = f.held[:copy(f.held, f.held[n:])]
}

// usageOnly reports whether a payload states a usage and nothing else.
func (f *UsageFilter) usageOnly(data []byte) bool {
	if !bytes.Contains(data, []byte(`"usage"`)) {
		return false
	}
	c, whole := f.parser.Parse(data)
	return whole && c.Usage.Known && len(c.Deltas) == 0 && !c.Error && !c.Progress
}
