package probe_test

import (
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/agent/probe"
)

func TestAskUsage(t *testing.T) {
	const wish = `"stream_options":{"include_usage":true},`
	for body, want := range map[string]string{
		`{"stream":true}`:                       `{` + wish + `"stream":true}`,
		" \n{ \"stream\": true }":               " \n{" + wish + " \"stream\": true }",
		`{"stream":false}`:                      "",
		`{}`:                                    "",
		`[]`:                                    "",
		`{"stream":true`:                        "",
		`{"stream":true} trailing`:              "",
		`{"stream":true,"stream_options":null}`: "",
		`{"stream":true,"stream_options":{"include_usage":false}}`: "",
	} {
		got, ok := probe.AskUsage([]byte(body))
		if want == "" {
			want = body
		}
		if string(got) != want || ok != (want != body) {
			t.Errorf("AskUsage(%s) = %s, %v, want %s", body, got, ok, want)
		}
	}
}

// filtered puts a stream through a filter in pieces.
func filtered(s string, piece, limit int) string {
	f := probe.NewUsageFilter(limit)
	var out strings.Builder
	for i := 0; i < len(s); i += piece {
		out.Write(f.Feed([]byte(s[i:min(i+piece, len(s))])))
	}
	out.Write(f.Rest())
	return out.String()
}

func TestUsageFilter(t *testing.T) {
	crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	for _, tt := range []struct {
		name, stream, want string
		limit              int
	}{
		{"the usage event is taken out", ev(text, finish, usage(1, 2), doneMark), ev(text, finish, doneMark), 0},
		{"with any line end", crlf(ev(text, usage(1, 2), doneMark)), crlf(ev(text, doneMark)), 0},
		{"a usage beside a choice passes", ev(counting(word, 0, 1), doneMark), ev(counting(word, 0, 1), doneMark), 0},
		{"comments pass", ": a\n\n" + ev(text) + ": b\n\n" + ev(usage(1, 2)) + ": c\n\n", ": a\n\n" + ev(text) + ": b\n" + ": c\n\n", 0},
		{"an error beside a usage passes", ev(`{"usage":{"completion_tokens":1},"error":{}}`), ev(`{"usage":{"completion_tokens":1},"error":{}}`), 0},
		{"what is cut off passes", ev(text) + "data: {", ev(text) + "data: {", 0},
		{"beyond the limit all passes", ev(strings.Repeat("y", 500), usage(1, 2)), ev(strings.Repeat("y", 500), usage(1, 2)), 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 7, 1 << 20} {
				if tt.limit > 0 && piece > tt.limit {
					continue // a whole event in one piece is not held
				}
				if got := filtered(tt.stream, piece, tt.limit); got != tt.want {
					t.Errorf("in pieces of %d: %q, want %q", piece, got, tt.want)
				}
			}
		})
	}
}

func TestTheFilterHoldsNoCompleteEvent(t *testing.T) {
	f := probe.NewUsageFilter(0)
	if got := string(f.Feed([]byte(ev(text) + "data: "))); got != ev(text) {
		t.Errorf("Feed() = %q, want the whole event", got)
	}
	if got := string(f.Feed([]byte("x\n\n: ping\n"))); got != "data: x\n\n: ping\n" {
		t.Errorf("Feed() = %q, want the event and the comment", got)
	}
}

func FuzzUsageFilter(f *testing.F) {
	f.Add(ev(text, usage(1, 2), doneMark), uint8(3))
	f.Add(": x\r\n\r\ndata: {\r\r: y\n\n", uint8(1))
	f.Fuzz(func(t *testing.T, s string, piece uint8) {
		got := filtered(s, int(piece)+1, 0)
		if whole := filtered(s, len(s)+1, 0); got != whole {
			t.Fatalf("in pieces of %d: %q, whole %q", int(piece)+1, got, whole)
		}
		if !strings.Contains(s, "usage") && got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
