package relay_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestContentReachesNoLogAndNoRecord plants one word in everything that is content, sends it through every kind of
// end, and looks for it in all that the relay leaves behind. The same search must find it where it may be: in an id.
func TestContentReachesNoLogAndNoRecord(t *testing.T) {
	const canary = "cAnArY17"
	body := `{"model":"m","stream":true,"stop":"` + canary + `","tools":[{"function":{"name":"` + canary + `"}}],"messages":[{"role":"user","content":"` + canary + `"}],"prompt":"` + canary + `"}`
	chunk := func(delta string) string { return `{"choices":[{"index":0,"delta":{` + delta + `}}]}` }
	ends := map[string][]string{
		"ok": {streamHead + chunked(ev(
			chunk(`"content":"`+canary+`"`), chunk(`"reasoning":"`+canary+`"`), chunk(`"tool_calls":[{"function":{"arguments":"`+canary+`"}}]`),
			`{"id":"`+canary+`","choices":[{"index":0,"delta":{},"finish_reason":"`+canary+`"}]}`, done)) + lastChunk},
		"error object":   {streamHead + chunked("event: error\ndata: {\"error\":{\"message\":\""+canary+"\",\"code\":\""+canary+"\"}}\n\n") + lastChunk},
		"error status":   {"HTTP/1.1 400 " + canary + "\r\nX-Canary: " + canary + "\r\nContent-Length: 8\r\n\r\n" + canary},
		"not HTTP":       {canary + " " + canary + "\r\n\r\n"},
		"a broken head":  {"HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\n"},
		"a broken chunk": {streamHead + chunked(ev(text)) + canary + "\r\n"},
		"no JSON":        {streamHead + chunked(ev(canary, `{"`+canary+`":1}`)) + lastChunk},
		"half an event":  {streamHead + chunked(`data: {"choices":[{"delta":{"content":"`+canary)},
		"a whole reply":  {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + `{"choices":[{"message":{"content":"` + canary + `"}}]}`},
		"no type":        {"HTTP/1.1 200 OK\r\nContent-Type: " + canary + "\r\n\r\n" + canary},
	}
	for name, pieces := range ends {
		for _, id := range []string{"plain", canary} {
			t.Run(name+" with id "+id, func(t *testing.T) {
				g := newRig(t, rawServer(t, pieces...), nil)
				post(t, client(t), g.url+chatPath+"?key="+canary, body, "X-Request-Id", id, "Authorization", canary, "Traceparent", canary, "Tracestate", canary)
				g.settle(t, 1)
				if err := g.stop(); err != nil {
					t.Fatal(err)
				}
				left, err := json.Marshal([]any{g.ledger.opened, g.ledger.tokens, g.ledger.closed, fmt.Sprint(g.relay.Stats()), g.log.String()})
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Contains(string(left), canary); got != (id == canary) {
					t.Errorf("the canary is found: %v, want %v, in %s", got, id == canary, left)
				}
			})
		}
	}
}

// TestPassedRequestsLeaveNoContent looks for content of requests that are not observed.
func TestPassedRequestsLeaveNoContent(t *testing.T) {
	const canary = "cAnArY18"
	for name, pieces := range map[string][]string{"not HTTP": {canary + "\r\n\r\n"}, "a broken chunk": {streamHead + chunked(canary) + canary + "\r\n"}} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, rawServer(t, pieces...), nil)
			a := post(t, client(t), g.url+"/v1/embeddings?key="+canary, canary, "Authorization", canary)
			if name == "not HTTP" && a.status != http.StatusBadGateway {
				t.Errorf("status %d, want 502", a.status)
			}
			if err := g.stop(); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(g.log.String(), canary) {
				t.Errorf("log holds content: %s", g.log.String())
			}
		})
	}
}
