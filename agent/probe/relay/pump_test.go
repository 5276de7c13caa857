package relay_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestAStreamThatPausesInsideAChunkHoldsUpOnlyItself(t *testing.T) {
	goOn := make(chan struct{})
	up := scripted(t, func(c net.Conn, req *http.Request) {
		head := streamHead + chunked(ev(text))
		if req.Header.Get("X-Slow") == "" {
			for _, piece := range []string{head, chunked(ev(text)), chunked(ev(finish, done)), lastChunk} {
				_, _ = io.WriteString(c, piece)
			}
			return
		}
		// The second chunk's length breaks off, and so does its event.
		second := chunked(ev(text))
		_, _ = io.WriteString(c, head)
		_, _ = io.WriteString(c, second[:1])
		<-goOn
		_, _ = io.WriteString(c, second[1:20])
		_, _ = io.WriteString(c, second[20:]+chunked(ev(finish, done))+lastChunk)
	})
	g := newRig(t, up, nil)
	c := client(t)
	want := ev(text) + ev(text) + ev(finish, done)
	const slow, quick = 4, 20
	var wg sync.WaitGroup
	for range slow {
		wg.Go(func() {
			if a := post(t, c, g.url+chatPath, chatBody, "X-Slow", "1"); a.body != want || a.cut {
				t.Errorf("the client of a stream that pauses saw %q", a.body)
			}
		})
	}
	eventually(t, "streams that pause", func() bool { return g.relay.Stats().Bytes >= slow*uint64(len(ev(text))) })
	for range quick {
		if a := post(t, c, g.url+chatPath, chatBody); a.body != want || a.cut {
			t.Errorf("a client beside streams that pause saw %q", a.body)
		}
	}
	close(goOn)
	wg.Wait()
	for _, r := range g.settle(t, slow+quick) {
		if r.Status != timeline.StatusOK || r.Events != 2 {
			t.Errorf("record says %v with %d events", r.Status, r.Events)
		}
	}
}

func TestLargeEventsPassWholeBesideSmallOnes(t *testing.T) {
	large := strings.Repeat("w", 700<<10)
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for range 5 {
			body := ev(text)
			if r.Header.Get("X-Large") != "" {
				body = ev(`{"choices":[{"index":0,"delta":{"content":"` + large + `"}}]}`)
			}
			_, _ = io.WriteString(w, body)
			_ = flush.Flush()
		}
		_, _ = io.WriteString(w, ev(finish, done))
	})
	g := newRig(t, up, nil)
	c := client(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			header, size := []string{}, 5*len(ev(text))
			if i%4 == 0 {
				header, size = []string{"X-Large", "1"}, 5*(len(ev(text))-1+len(large))
			}
			if a := post(t, c, g.url+chatPath, chatBody, header...); len(a.body) != size+len(ev(finish, done)) || a.cut {
				t.Errorf("a client saw %d bytes, want %d", len(a.body), size+len(ev(finish, done)))
			}
		})
	}
	wg.Wait()
	for _, r := range g.settle(t, 16) {
		if r.Status != timeline.StatusOK || r.Events != 5 {
			t.Errorf("record says %v with %d events", r.Status, r.Events)
		}
	}
}
