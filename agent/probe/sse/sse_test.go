package sse_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/probe/sse"
)

type event struct {
	Kind       sse.Kind
	Data, Type string
	ID         string
	End        int64
	Cut        bool
}

func record(events *[]event) func(sse.Event) {
	return func(e sse.Event) {
		*events = append(*events, event{e.Kind, string(e.Data), string(e.Type), string(e.ID), e.End, e.Unterminated})
	}
}

// decode feeds stream in pieces of the given size, all at once if it is zero.
func decode(stream string, piece, limit int) []event {
	var events []event
	emit := record(&events)
	d := sse.Decoder{MaxBytes: limit}
	if piece <= 0 {
		piece = max(len(stream), 1)
	}
	for at := 0; at < len(stream); at += piece {
		d.Feed([]byte(stream[at:min(at+piece, len(stream))]), emit)
	}
	d.Close(emit)
	return events
}

func message(data string, end int64) event { return event{Data: data, End: end} }

func TestDecoder(t *testing.T) {
	tests := []struct {
		name, stream string
		limit        int
		want         []event
	}{
		{name: "one event", stream: "data: x\n\n", want: []event{message("x", 9)}},
		{name: "the space after the colon is optional", stream: "data:x\n\n", want: []event{message("x", 8)}},
		{name: "only one space is removed", stream: "data:  x\n\n", want: []event{message(" x", 10)}},
		{name: "CRLF ends lines, and the event ends with the CR of the blank line", stream: "data: x\r\n\r\n", want: []event{message("x", 10)}},
		{name: "CR alone ends lines", stream: "data: x\r\rdata: y\r\r", want: []event{message("x", 9), message("y", 18)}},
		{name: "line ends may be mixed", stream: "data: x\r\n\ndata: y\n\r", want: []event{message("x", 10), message("y", 19)}},
		{name: "data lines join with LF", stream: "data: a\ndata\ndata:b\n\n", want: []event{message("a\n\nb", 21)}},
		{name: "a data line without value is an empty message", stream: "data\n\n", want: []event{message("", 6)}},
		{name: "a byte order mark is skipped once", stream: "\xef\xbb\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n", want: []event{message("x", 12)}},
		{name: "comments are told", stream: ": ping\n\n:\n", want: []event{{Kind: sse.Comment, End: 7}, {Kind: sse.Comment, End: 10}}},
		{name: "a comment inside an event does not end it", stream: "data: a\n:c\ndata: b\n\n", want: []event{{Kind: sse.Comment, End: 11}, message("a\nb", 20)}},
		{
			name: "type lasts for one event, id for the stream", stream: "event: e\nid: 7\ndata: x\n\ndata: y\n\n",
			want: []event{{Data: "x", Type: "e", ID: "7", End: 24}, {Data: "y", ID: "7", End: 33}},
		},
		{name: "an id with NUL is ignored", stream: "id: a\x00b\ndata: x\n\n", want: []event{message("x", 17)}},
		{name: "an event without data is none", stream: "event: e\n\nid: 1\n\nretry: 5\n\n"},
		{name: "unknown fields and lines without colon are ignored", stream: "foo: 1\nbar\nDATA: z\ndata: x\n\n", want: []event{message("x", 28)}},
		{name: "a cut-off event is told as such", stream: "data: x\n", want: []event{{Data: "x", End: 8, Cut: true}}},
		{name: "a cut-off line is told as such", stream: "data: {\"a", want: []event{{Data: `{"a`, End: 9, Cut: true}}},
		{name: "data inside data is content", stream: "data: {\"t\":\"data: q\"}\n\n", want: []event{message(`{"t":"data: q"}`, 23)}},
		{
			name: "an event beyond the limit is skipped without losing step", limit: 10, stream: "data: 0123456789\n\ndata: x\n\n",
			want: []event{{Kind: sse.Oversize, End: 18}, message("x", 27)},
		},
		{
			name: "lines that add up beyond the limit are too", limit: 12, stream: "data: 01234\ndata: 56789ab\ndata: 1\n\ndata: x\n\n",
			want: []event{{Kind: sse.Oversize, End: 35}, message("x", 44)},
		},
		{name: "a comment beyond the limit is a comment", limit: 4, stream: ": long long\n\nd:\n\n", want: []event{{Kind: sse.Comment, End: 12}}},
		{name: "nothing is no event", stream: ""},
		{name: "blank lines are no events", stream: "\n\n\r\r\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{0, 1, 2, 3, 5} {
				if diff := cmp.Diff(tt.want, decode(tt.stream, piece, tt.limit)); diff != "" {
					t.Errorf("in pieces of %d: events mismatch (-want +got):\n%s", piece, diff)
				}
			}
		})
	}
}

func TestEveryCutOfAStreamGivesTheSameEvents(t *testing.T) {
	stream := "\xef\xbb\xbf: hi\r\n\r\nevent: a\r\ndata: {\"x\":\"é\"}\r\n\r\ndata: 1\ndata: 2\n\nid: 3\rdata: z\r\rdata: cut"
	want := decode(stream, 0, 0)
	for cut := range len(stream) {
		var got []event
		var d sse.Decoder
		d.Feed([]byte(stream[:cut]), record(&got))
		d.Feed([]byte(stream[cut:]), record(&got))
		d.Close(record(&got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("cut at %d: events mismatch (-want +got):\n%s", cut, diff)
		}
	}
}

func TestMegabyteEventsPass(t *testing.T) {
	big := strings.Repeat("y", 1<<20)
	got := decode("data: "+big+"\n\ndata: x\n\n", 4096, 0)
	if len(got) != 2 || got[0].Data != big || got[1].Data != "x" {
		t.Fatalf("%d events, want the big one and the one after it", len(got))
	}
}

func TestFeedDoesNotAllocate(t *testing.T) {
	var d sse.Decoder
	n := 0
	emit := func(sse.Event) { n++ }
	whole := []byte("id: 1\nevent: e\ndata: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
	d.Feed(whole, emit)
	if got := testing.AllocsPerRun(100, func() {
		d.Feed(whole[:20], emit)
		d.Feed(whole[20:], emit)
	}); got != 0 {
		t.Errorf("Feed() allocates %v times, want 0", got)
	}
	if n < 100 {
		t.Errorf("%d events, want one a run", n)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add("data: x\r\n\r\n: ping\ndata\ndata: y\n\n", uint8(3), uint8(0))
	f.Add("\xef\xbb\xbfevent: error\rdata: {}\r\rid: 1\n", uint8(1), uint8(6))
	f.Add("data: [DONE]\n\n\n\n:\n\rdata: cut", uint8(7), uint8(4))
	f.Fuzz(func(t *testing.T, stream string, piece, limit uint8) {
		want := decode(stream, 0, int(limit))
		got := decode(stream, int(piece)+1, int(limit))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("pieces of %d, limit %d: events mismatch (-whole +pieces):\n%s", int(piece)+1, limit, diff)
		}
		last := int64(0)
		for _, e := range got {
			if e.End < last || e.End > int64(len(stream)) {
				t.Fatalf("event ends at %d after %d of %d", e.End, last, len(stream))
			}
			last = e.End
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	for _, size := range []int{64, 256, 4096} {
		b.Run(fmt.Sprintf("event=%dB", size), func(b *testing.B) {
			ev := []byte("data: " + strings.Repeat("x", size) + "\n\n")
			var d sse.Decoder
			emit := func(sse.Event) {}
			b.SetBytes(int64(len(ev)))
			b.ReportAllocs()
			for b.Loop() {
				d.Feed(ev, emit)
			}
		})
	}
}
