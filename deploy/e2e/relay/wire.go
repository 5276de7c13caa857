package main

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// The reply, in the shape of OpenAI's streaming chat completions. The text of an event is the instant of its sending and
// its number, both of fixed width.
const (
	replyHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"

	replyBefore = `data: {"id":"chatcmpl-5f0c9b3e7d2a4c61","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{"content":"`
	replyAfter  = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	replyFinish = `data: {"id":"chatcmpl-5f0c9b3e7d2a4c61","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}` + "\n\n"
	replyUsage  = `data: {"id":"chatcmpl-5f0c9b3e7d2a4c61","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":%d}}` + "\n\n"

	atDigits, numberDigits = 19, 6
	textLength             = atDigits + 1 + numberDigits
)

// framed puts payload into a chunk of the chunked transfer coding.
func framed(payload string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(payload), payload) }

// chunk is one event in its chunk, made once and then only changed.
type chunk struct {
	bytes []byte
	text  []byte // the part of bytes that changes
}

func newChunk() *chunk {
	b := []byte(framed(replyBefore + string(make([]byte, textLength)) + replyAfter))
	at := bytes.IndexByte(b, 0)
	return &chunk{bytes: b, text: b[at : at+textLength]}
}

func (c *chunk) set(at timeline.Instant, number int) {
	digits(c.text[:atDigits], int64(at))
	c.text[atDigits] = ' '
	digits(c.text[atDigits+1:], int64(number))
}

// digits writes v in decimal over all of b.
func digits(b []byte, v int64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
}

// scanner finds the origin's events in a stream that comes in pieces.
type scanner struct {
	kept []byte // the beginning of an event whose end has not come
}

var (
	eventEnd   = []byte("\n\n")
	textMarker = []byte(`"delta":{"content":"`)
	doneMarker = []byte("data: [DONE]")
)

// feed takes the next piece, and calls found for each event with text that ends in it. It reports whether the stream
// said that it is over.
func (s *scanner) feed(piece []byte, found func(sent timeline.Instant, number int)) bool {
	b := piece
	if len(s.kept) > 0 {
		s.kept = append(s.kept, piece...)
		b = s.kept
	}
	done := false
	for {
		end := bytes.Index(b, eventEnd)
		if end < 0 {
			break
		}
		if sent, number, ok := stamp(b[:end]); ok {
			found(sent, number)
		} else if bytes.HasPrefix(b, doneMarker) {
			done = true
		}
		b = b[end+len(eventEnd):]
	}
	s.kept = append(s.kept[:0], b...)
	return done
}

// stamp reads an event's text.
func stamp(event []byte) (timeline.Instant, int, bool) {
	at := bytes.Index(event, textMarker)
	if at < 0 || len(event) < at+len(textMarker)+textLength {
		return 0, 0, false
	}
	text := event[at+len(textMarker):][:textLength]
	sent, err := strconv.ParseInt(string(text[:atDigits]), 10, 64)
	if err != nil {
		return 0, 0, false
	}
	number, err := strconv.Atoi(string(text[atDigits+1:]))
	return timeline.Instant(sent), number, err == nil
}
