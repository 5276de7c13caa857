package llmsim

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func FuzzPlayerReads(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":[1,2]}]}\n\ndata: [DONE]\n\n")
	f.Add("data: {\"error\":{}}\r\n\r\n: ping\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		var at timeline.Instant
		p := player{cfg: PlayerConfig{Now: func() timeline.Instant { at++; return at }}}
		var out Played
		err := p.read(bufio.NewReaderSize(strings.NewReader(stream), 16), &out)
		if out.Terminal != strings.Contains(stream, "data: [DONE]") && err == nil {
			t.Errorf("terminal = %v", out.Terminal)
		}
		if err == nil && !out.Terminal {
			t.Error("a stream without its marker is whole")
		}
		if out.First > out.Last || out.Chunks > strings.Count(stream, "data: ") {
			t.Errorf("impossible record %+v", out)
		}
	})
}

func FuzzAccept(f *testing.F) {
	f.Add(`{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":3}`, "merge=2,slow=1ms")
	f.Add(`{"prompt":"x","n":1}`, "")
	f.Fuzz(func(t *testing.T, body, fault string) {
		s, err := New(Config{Now: func() timeline.Instant { return 1 }})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set(FaultHeader, fault)
		rep, status, why := s.accept(r, chat)
		if (why == "") != (status == 0) {
			t.Fatalf("status %d with reason %q", status, why)
		}
		if why != "" {
			return
		}
		n := 0
		for i, e := range rep.events {
			n += e.tokens
			if e.tokens < 1 || i > 0 && e.at <= rep.events[i-1].at {
				t.Errorf("event %d = %+v after %+v", i, e, rep.events[i-1])
			}
		}
		if n != rep.total || n < 1 || n > maxTokens {
			t.Errorf("%d tokens in events, %d in total", n, rep.total)
		}
	})
}
