package probe

import (
	"strings"

	"github.com/tpotscope/tpotscope/agent/probe/sse"
	"github.com/tpotscope/tpotscope/agent/probe/wire"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// End says how a response came to its end, as its transport saw it.
type End uint8

// The ends.
const (
	EndEOF      End = iota // the body is complete, as far as the transport can tell
	EndCut                 // the body broke off
	EndClient              // the client went away
	EndTimeout             // nothing came in time
	EndUpstream            // there was no response: refused, reset, or garbage
	EndStopped             // the observer stopped
)

// form is what a response's body is made of.
type form uint8

const (
	formNone   form = iota // not read
	formStream             // server-sent events
	formReply              // one JSON value
)

// Tracker follows one request from its body to the end of its response, and hands what it finds to a sink: one
// OpenRequest, the token events, one CloseRequest. It is not safe for concurrent use.
type Tracker struct {
	sink   timeline.RequestSink
	r      timeline.Request
	parser *wire.Parser
	sse    sse.Decoder
	emit   func(sse.Event)
	form   form
	reply  []byte
	zipped *inflater // the body is compressed
	tail   byte      // the newest byte that was read
	echo   bool
	open   bool
	closed bool

	stamp   Stamp            // of the read at hand
	before  timeline.Instant // the stamp before it
	batch   []found          // the token events of the read at hand
	held    timeline.TokenEvent
	holding bool
	ending  found // the finish that came without text, if any

	choices   []choice
	final     wire.Usage // the server's total
	flavour   wire.Flavour
	done      bool // the terminal marker came
	inBand    bool // an error object came
	oversize  bool // an event was too large to be read
	reasoning bool // reasoning was streamed
	worst     timeline.CountSource
	sum       int // tokens counted by event
	blind     int // events that bore text without a count
	finish    string
	lastEvent timeline.Instant
	gaps      []int64
}

// found is a token event and where it ended.
type found struct {
	event timeline.TokenEvent
	end   int64
}

// NewTracker returns a tracker of the request r, of which the caller knows the ids, the place and the time of sending.
// Events beyond maxEventBytes are counted and skipped; zero means a default of 8 MiB. The caller has to close it.
func NewTracker(sink timeline.RequestSink, r timeline.Request, maxEventBytes int) *Tracker {
	t := &Tracker{sink: sink, r: r, parser: wire.NewParser(), sse: sse.Decoder{MaxBytes: maxEventBytes}}
	t.final = wire.Usage{Cached: wire.Absent, Reasoning: wire.Absent}
	t.emit = t.event
	t.r.Choices = max(t.r.Choices, 1)
	t.r.Dialect = wire.Generic.String()
	return t
}

// Asked takes the request's path and body, or as much of the body as is at hand.
func (t *Tracker) Asked(path string, body []byte) {
	op, _ := wire.OperationOf(path)
	t.r.Operation = string(op)
	q, _ := t.parser.ParseRequest(body)
	q = bounded(q)
	t.r.Model, t.r.Streaming, t.r.MaxTokens, t.r.Choices = q.Model, q.Stream, q.MaxTokens, q.Choices
	t.echo = q.Echo
}

// Open announces the request. It is called once, when the request is about to be sent.
func (t *Tracker) Open(at timeline.Instant) {
	t.r.Sent = at
	t.open = true
	r := t.r
	t.sink.OpenRequest(&r)
}

// Sent corrects the time of sending to when the request was written out.
func (t *Tracker) Sent(at timeline.Instant) { t.r.Sent = at }

// Head takes the head of the response.
func (t *Tracker) Head(at timeline.Instant, status int, contentType, contentEncoding string) {
	t.r.Head, t.r.HTTPStatus = at, status
	t.before = at
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	stream := mediaType == "text/event-stream" || mediaType == "" && t.r.Streaming
	encoding := strings.ToLower(strings.TrimSpace(contentEncoding))
	switch {
	case status >= 400:
		return // an error's body is content
	case encoding != "" && encoding != "identity" && encoding != "gzip" && encoding != "x-gzip":
	case stream:
		t.form = formStream
		t.gaps = make([]int64, 0, maxGaps)
	case mediaType == "application/json" || mediaType == "":
		t.form = formReply
	}
	if encoding != "" && encoding != "identity" {
		t.r.Flags |= timeline.FlagCompressed
		if t.form != formNone {
			t.zipped = newInflater(t.feed)
		}
	}
	if stream {
		t.r.Streaming = true
	}
}

// Read takes bytes of the response's body that were read together, and their stamp. It keeps no reference to b.
func (t *Tracker) Read(b []byte, st Stamp) {
	if len(b) == 0 || t.closed {
		return
	}
	// Stamps of two sources on one stream must not make time run backwards.
	st.At = max(st.At, t.stamp.At, t.r.Head)
	again := st.Read == t.stamp.Read && !t.stamp.At.IsZero()
	if !again && !t.stamp.At.IsZero() {
		t.before = t.stamp.At
	}
	t.stamp = st
	t.release(again)
	if t.zipped != nil {
		t.zipped.feed(b)
	} else {
		t.feed(b)
	}
	t.flush()
	t.stampEnding()
}

// feed takes bytes of the body as they are once decompressed.
func (t *Tracker) feed(b []byte) {
	t.tail = b[len(b)-1]
	switch t.form {
	case formStream:
		t.sse.Feed(b, t.emit)
	case formReply:
		t.keepReply(b)
	case formNone:
	}
}

func (t *Tracker) keepReply(b []byte) {
	limit := t.sse.MaxBytes
	if limit <= 0 {
		limit = sse.DefaultMaxBytes
	}
	if len(t.reply)+len(b) > limit {
		t.reply, t.form = nil, formNone
		t.r.Flags |= timeline.FlagUnparsed
		return
	}
	t.reply = append(t.reply, b...)
}

// event takes one server-sent event.
func (t *Tracker) event(e sse.Event) {
	if t.done || e.Kind == sse.Comment {
		return
	}
	if e.Kind == sse.Oversize {
		t.r.Flags |= timeline.FlagUnparsed
		t.oversize = true
		return
	}
	c, whole := t.parser.Parse(e.Data)
	t.inBand = t.inBand || c.Error || string(e.Type) == "error"
	if !whole && e.Unterminated {
		return // half an event: the end of the stream says the rest
	}
	if !whole || !c.Known {
		t.r.Flags |= timeline.FlagUnparsed
		return
	}
	t.chunk(c, e.End)
}

// flush gives the token events of a read their stamps. The stamp belongs to the newest byte: an event that another
// one follows has it only as an upper bound.
func (t *Tracker) flush() {
	if len(t.batch) == 0 {
		return
	}
	newest := t.batch[len(t.batch)-1].end
	// The LF of a CRLF that ended the event is no later news.
	own := newest == t.sse.Offset() || newest == t.sse.Offset()-1 && t.tail == '\n'
	for i := range t.batch {
		f := &t.batch[i]
		f.event.At, f.event.After, f.event.Stamp = t.stamp.At, t.stamp.At, t.stamp.Source
		if f.end != newest {
			f.event.Coalesced = true
		}
		if f.end != newest || !own {
			f.event.After = t.before
		}
		if t.stamp.Shared && i == len(t.batch)-1 {
			t.held, t.holding = f.event, true
			continue
		}
		t.deliver(f.event)
	}
	t.batch = t.batch[:0]
}

// stampEnding gives the finish that came without text the stamp of its read.
func (t *Tracker) stampEnding() {
	e := &t.ending.event
	if t.ending.end == 0 || !e.At.IsZero() {
		return
	}
	e.At, e.After, e.Stamp = t.stamp.At, t.before, t.stamp.Source
	if t.ending.end == t.sse.Offset() {
		e.After = e.At
	}
}

// release delivers the event that was held, now that it is known whether the read after it had the same stamp.
func (t *Tracker) release(again bool) {
	if !t.holding {
		return
	}
	t.holding = false
	if again {
		t.held.Coalesced, t.held.After = true, t.before
	}
	t.deliver(t.held)
}

func (t *Tracker) deliver(e timeline.TokenEvent) {
	r := &t.r
	r.Events++
	if e.Stamp == timeline.StampKernel {
		r.KernelStamped++
	}
	if e.Coalesced {
		r.Coalesced++
	}
	if bearing := e.Source == timeline.CountNone || e.Tokens > 0; bearing {
		if r.First.IsZero() {
			r.First = e.At
			r.FirstTokens = int(e.Tokens)
			if e.Source == timeline.CountNone {
				r.FirstTokens = 0 // settled at the end
			}
		}
		r.Last = e.At
	}
	t.gap(e.At)
	t.sink.AddToken(e)
}

// maxGaps is how many gaps from the start of a stream are kept to judge the first of them by.
const maxGaps = 64

func (t *Tracker) gap(at timeline.Instant) {
	if !t.lastEvent.IsZero() && len(t.gaps) < maxGaps {
		t.gaps = append(t.gaps, int64(at.Sub(t.lastEvent)))
	}
	t.lastEvent = at
}
