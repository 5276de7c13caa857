// Package sse reads server-sent events (the event stream grammar of the WHATWG HTML standard, section 9.2.6) from
// pieces of any size. It knows where in the stream each event ended, so that an event can be given the time of the
// read that completed it. It does not know what the events mean.
//
// Two leniencies beyond the standard, which real clients of token streams share: an event that the end of the stream
// cuts off is reported, marked as unterminated, and comments are reported, since they tell of keep-alives.
package sse

import "bytes"

// Kind says what an [Event] is.
type Kind uint8

// The kinds of event.
const (
	Message  Kind = iota // one or more data lines, ended by a blank line
	Comment              // a line that begins with a colon
	Oversize             // a message beyond the size limit, whose data was thrown away
)

// Event is one message or comment. Data, Type and ID are valid only until emit returns.
type Event struct {
	Kind         Kind
	Data         []byte // the data lines joined by LF; empty for comments
	Type         []byte // of the event field; empty means "message"
	ID           []byte // the last event id of the stream so far
	End          int64  // count of the stream's bytes up to and including the last byte of the event
	Unterminated bool   // the stream ended before the blank line
}

// DefaultMaxBytes is the size limit of one event's data and of one line unless another is asked for. Chunks that carry
// log probabilities or hidden states run to megabytes.
const DefaultMaxBytes = 8 << 20

// Decoder cuts a byte stream into events. The zero Decoder is ready for use. It allocates only while its buffers grow
// to the largest event of the stream. It is not safe for concurrent use.
type Decoder struct {
	MaxBytes int // limit of an event's data and of a line; zero means DefaultMaxBytes

	line     []byte // the part of a line that earlier pieces brought, cut off after the limit
	data     []byte
	kind     []byte
	id       []byte
	read     int64 // bytes of earlier pieces
	hasData  bool
	oversize bool
	started  bool // the first line, which alone may begin with a byte order mark, is over
	afterCR  bool // a line ended with CR, so that LF right after it belongs to it
}

// Offset returns how many bytes have been fed.
func (d *Decoder) Offset() int64 { return d.read }

func (d *Decoder) limit() int {
	if d.MaxBytes > 0 {
		return d.MaxBytes
	}
	return DefaultMaxBytes
}

// Feed takes the next bytes of the stream and emits the events that they complete. It keeps no reference to chunk.
func (d *Decoder) Feed(chunk []byte, emit func(Event)) {
	rest := chunk
	if d.afterCR && len(rest) > 0 {
		d.afterCR = false
		if rest[0] == '\n' {
			rest = rest[1:]
		}
	}
	lf, cr := next(rest, 0, '\n'), next(rest, 0, '\r')
	at := 0
	for at < len(rest) {
		end := min(lf, cr)
		if end == len(rest) {
			d.keep(rest[at:])
			break
		}
		after := end + 1
		if end == cr {
			if after == len(rest) {
				d.afterCR = true
			} else if rest[after] == '\n' {
				after++
			}
		}
		d.endLine(rest[at:end], d.read+int64(len(chunk)-len(rest)+end+1), emit)
		at = after
		if lf < at {
			lf = next(rest, at, '\n')
		}
		if cr < at {
			cr = next(rest, at, '\r')
		}
	}
	d.read += int64(len(chunk))
}

// next returns the index of the first c in b from at on, or len(b).
func next(b []byte, at int, c byte) int {
	if i := bytes.IndexByte(b[at:], c); i >= 0 {
		return at + i
	}
	return len(b)
}

// Close ends the stream: what it cut off is emitted as an unterminated event.
func (d *Decoder) Close(emit func(Event)) {
	if len(d.line) > 0 {
		d.endLine(nil, d.read, emit)
	}
	d.dispatch(d.read, true, emit)
}

// keep stores the beginning of a line whose end has not come: as much beyond the limit as tells that the line is too
// long, and what its field is.
func (d *Decoder) keep(b []byte) {
	room := d.limit() + len(byteOrderMark) + len("event: ") - len(d.line)
	d.line = append(d.line, b[:min(len(b), max(room, 0))]...)
}

const byteOrderMark = "\xef\xbb\xbf"

// endLine takes a whole line: what was kept of it, then tail. end is the stream's length with the line's terminator.
func (d *Decoder) endLine(tail []byte, end int64, emit func(Event)) {
	line := tail
	if len(d.line) > 0 {
		d.keep(tail)
		line = d.line
	}
	if !d.started {
		d.started = true
		line = bytes.TrimPrefix(line, []byte(byteOrderMark))
	}
	switch {
	case len(line) == 0:
		d.dispatch(end, false, emit)
	case line[0] == ':':
		emit(Event{Kind: Comment, ID: d.id, End: end})
	default:
		d.field(line)
	}
	d.line = d.line[:0]
}

// field takes one line that is neither blank nor a comment. A line beyond the limit counts as what its name says.
func (d *Decoder) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	tooLong := len(line) > d.limit()
	switch string(name) {
	case "data":
		if tooLong || d.oversize || len(d.data)+len(value)+1 > d.limit() {
			d.oversize, d.data = true, d.data[:0]
			return
		}
		if d.hasData {
			d.data = append(d.data, '\n')
		}
		d.hasData = true
		d.data = append(d.data, value...)
	case "event":
		if !tooLong {
			d.kind = append(d.kind[:0], value...)
		}
	case "id":
		if !tooLong && bytes.IndexByte(value, 0) < 0 {
			d.id = append(d.id[:0], value...)
		}
	}
}

// dispatch emits the message that the fields so far make up, if they hold any data.
func (d *Decoder) dispatch(end int64, unterminated bool, emit func(Event)) {
	switch {
	case d.oversize:
		emit(Event{Kind: Oversize, Type: d.kind, ID: d.id, End: end, Unterminated: unterminated})
	case d.hasData:
		emit(Event{Kind: Message, Data: d.data, Type: d.kind, ID: d.id, End: end, Unterminated: unterminated})
	}
	d.data, d.kind, d.hasData, d.oversize = d.data[:0], d.kind[:0], false, false
}
