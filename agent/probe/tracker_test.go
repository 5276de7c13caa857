package probe_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger keeps what a tracker hands over.
type ledger struct {
	opened, closed []timeline.Request
	tokens         []timeline.TokenEvent
}

func (l *ledger) OpenRequest(r *timeline.Request)  { l.opened = append(l.opened, *r) }
func (l *ledger) AddToken(e timeline.TokenEvent)   { l.tokens = append(l.tokens, e) }
func (l *ledger) CloseRequest(r *timeline.Request) { l.closed = append(l.closed, *r) }

// read is one read of a body, at so many milliseconds after the request was sent.
type read struct {
	at    int
	bytes string
}

const start = timeline.Instant(1e12)

func at(ms int) timeline.Instant {
	return start.Add(time.Duration(ms) * time.Millisecond)
}

func ev(payloads ...string) string {
	return "data: " + strings.Join(payloads, "\n\ndata: ") + "\n\n"
}

type stream struct {
	path, body  string
	status      int
	contentType string
	encoding    string
	reads       []read
	end         probe.End
	limit       int
}

func (s stream) run(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{}
	tr := probe.NewTracker(l, timeline.Request{Ref: 7}, s.limit)
	if s.path == "" {
		s.path = "/v1/chat/completions"
	}
	if s.body == "" {
		s.body = `{"model":"m","stream":true}`
	}
	if s.contentType == "" {
		s.contentType = "text/event-stream; charset=utf-8"
	}
	if s.status == 0 {
		s.status = 200
	}
	tr.Asked(s.path, []byte(s.body))
	tr.Open(start)
	if s.status > 0 {
		tr.Head(at(5), s.status, s.contentType, s.encoding)
	}
	last := 5
	for i, r := range s.reads {
		tr.Read([]byte(r.bytes), probe.Stamp{At: at(r.at), Source: timeline.StampKernel, Read: uint64(i + 1)})
		last = r.at
	}
	tr.Close(at(last+1), s.end)
	if len(l.opened) != 1 || len(l.closed) != 1 {
		t.Fatalf("%d opened and %d closed, want one each", len(l.opened), len(l.closed))
	}
	return l
}

const (
	role     = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`
	text     = `{"choices":[{"index":0,"delta":{"content":"x"}}]}`
	think    = `{"choices":[{"index":0,"delta":{"reasoning_content":"x"}}]}`
	cut      = `{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`
	finish   = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	doneMark = `[DONE]`
)

func usage(prompt, completion int) string {
	return fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, prompt, completion)
}

// counting is a chunk with a cumulative count.
func counting(delta string, choice, completion int) string {
	return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{%s}}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}`, choice, delta, completion)
}

const word = `"content":"x"`

func TestStampsBelongToTheNewestByteOfARead(t *testing.T) {
	half := ev(text)
	l := stream{reads: []read{
		{10, ev(text)},
		{20, ev(text, text, text)},
		{30, ev(text) + half[:12]},
		{40, half[12:]},
		{50, "data: " + text + "\r\n\r\n"},
		{60, ev(text, finish, doneMark)},
	}}.run(t)
	type stamp struct {
		after, at int
		coalesced bool
	}
	want := []stamp{
		{10, 10, false},
		{10, 20, true},
		{10, 20, true},
		{20, 20, false},
		{20, 30, false}, // the half event behind it is newer
		{40, 40, false},
		{50, 50, false},
		{50, 60, false}, // the terminal marker behind it is newer, but bears no token
	}
	var got []stamp
	for _, e := range l.tokens {
		got = append(got, stamp{int(e.After.Sub(start) / 1e6), int(e.At.Sub(start) / 1e6), e.Coalesced})
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(stamp{})); diff != "" {
		t.Errorf("stamps mismatch (-want +got):\n%s", diff)
	}
	r := l.closed[0]
	if r.Events != 8 || r.KernelStamped != 8 || r.Coalesced != 2 || r.Flags&timeline.FlagCoalesced == 0 {
		t.Errorf("events, kernel stamped, coalesced = %d, %d, %d, flags %v", r.Events, r.KernelStamped, r.Coalesced, r.Flags.Names())
	}
}

func TestAReadThatComesInPartsGivesItsStampToTheLastPart(t *testing.T) {
	l := &ledger{}
	tr := probe.NewTracker(l, timeline.Request{}, 0)
	tr.Asked("/v1/completions", []byte(`{"stream":true}`))
	tr.Open(start)
	tr.Head(at(1), 200, "text/event-stream", "")
	feed := func(ms int, n uint64) {
		tr.Read([]byte(ev(text)), probe.Stamp{At: at(ms), Read: n, Shared: true})
	}
	feed(10, 1)
	feed(20, 2)
	feed(20, 2)
	feed(30, 3)
	if len(l.tokens) != 3 {
		t.Errorf("%d token events before the end, want the last one held", len(l.tokens))
	}
	tr.Close(at(31), probe.EndEOF)
	var got []string
	for _, e := range l.tokens {
		got = append(got, fmt.Sprint(int(e.After.Sub(start)/1e6), int(e.At.Sub(start)/1e6), e.Coalesced))
	}
	if diff := cmp.Diff([]string{"10 10 false", "10 20 true", "20 20 false", "30 30 false"}, got); diff != "" {
		t.Errorf("stamps mismatch (-want +got):\n%s", diff)
	}
}

func TestEveryChunkingGivesTheSameTokens(t *testing.T) {
	whole := ev(counting(`"role":"assistant"`, 0, 0), counting(word, 0, 1)) + ": ping\r\n\r\n" + ev(counting(word, 0, 4), counting(``, 0, 5), finish, usage(9, 5), doneMark)
	tokens := func(piece int) []string {
		var reads []read
		for i := 0; i < len(whole); i += piece {
			reads = append(reads, read{10 + i, whole[i:min(i+piece, len(whole))]})
		}
		var out []string
		l := stream{reads: reads}.run(t)
		for _, e := range l.tokens {
			out = append(out, fmt.Sprint(e.Tokens, e.Kind, e.Source))
		}
		return append(out, fmt.Sprint(l.closed[0].OutputTokens, l.closed[0].Status))
	}
	want := tokens(len(whole))
	for piece := 1; piece < 64; piece++ {
		if diff := cmp.Diff(want, tokens(piece)); diff != "" {
			t.Fatalf("pieces of %d: tokens mismatch (-whole +pieces):\n%s", piece, diff)
		}
	}
}

func TestOnlyTheFirstCloseCounts(t *testing.T) {
	l := &ledger{}
	tr := probe.NewTracker(l, timeline.Request{}, 0)
	tr.Close(at(1), probe.EndUpstream)
	tr.Close(at(2), probe.EndEOF)
	tr.Read([]byte(ev(text)), probe.Stamp{At: at(3)})
	if len(l.opened) != 1 || len(l.closed) != 1 || l.closed[0].Status != timeline.StatusUpstream || len(l.tokens) != 0 {
		t.Errorf("opened %d, closed %d, tokens %d", len(l.opened), len(l.closed), len(l.tokens))
	}
}

// hole takes everything and keeps nothing.
type hole struct{}

func (hole) OpenRequest(*timeline.Request)  {}
func (hole) AddToken(timeline.TokenEvent)   {}
func (hole) CloseRequest(*timeline.Request) {}

func newStream() *probe.Tracker {
	tr := probe.NewTracker(hole{}, timeline.Request{}, 0)
	tr.Asked("/v1/chat/completions", []byte(`{"stream":true}`))
	tr.Open(start)
	tr.Head(at(1), 200, "text/event-stream", "")
	return tr
}

func TestReadDoesNotAllocate(t *testing.T) {
	tr := newStream()
	chunk := []byte(ev(counting(word, 0, 1)))
	ms := 2
	one := func() {
		tr.Read(chunk, probe.Stamp{At: at(ms), Read: uint64(ms)})
		ms++
	}
	for range 100 {
		one()
	}
	if got := testing.AllocsPerRun(100, one); got != 0 {
		t.Errorf("Read() allocates %v times, want 0", got)
	}
}

func FuzzTracker(f *testing.F) {
	f.Add(ev(role, text, finish, usage(1, 2), doneMark), uint8(5), uint8(0), false)
	f.Add(ev(counting(word, 3, 9), `{"error":1}`), uint8(1), uint8(1), true)
	f.Add(`{"choices":[],"usage":{"completion_tokens":3}}`, uint8(9), uint8(4), false)
	f.Fuzz(func(t *testing.T, body string, piece, end uint8, reply bool) {
		s := stream{end: probe.End(end % 6)}
		if reply {
			s.contentType = "application/json"
		}
		for i := 0; i < len(body); i += int(piece) + 1 {
			s.reads = append(s.reads, read{10 + i, body[i:min(i+int(piece)+1, len(body))]})
		}
		l := s.run(t)
		r := l.closed[0]
		if r.OutputTokens < 0 || r.FirstTokens < 0 || r.Events != len(l.tokens) || r.Coalesced > r.Events {
			t.Fatalf("impossible record %+v", briefOf(&r))
		}
		if r.First > r.Last || r.Last > r.Done {
			t.Fatalf("time runs backwards: %+v", briefOf(&r))
		}
		var last timeline.Instant
		for _, e := range l.tokens {
			if e.At < last || e.After > e.At || e.Tokens < 0 {
				t.Fatalf("impossible event %+v", e)
			}
			last = e.At
		}
	})
}

func BenchmarkTracker(b *testing.B) {
	tr := newStream()
	chunk := []byte(ev(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":1024,"total_tokens":1033,"completion_tokens":9}}`))
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		tr.Read(chunk, probe.Stamp{At: start + timeline.Instant(n), Read: n})
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
