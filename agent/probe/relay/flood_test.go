package relay_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestADeadUpstreamDoesNotFloodTheLog sends hundreds of requests to a port on which nobody listens: each has its record and
// its answer, and the log has a few lines, one of which tells of the others.
func TestADeadUpstreamDoesNotFloodTheLog(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	g := newRig(t, "http://"+addr, nil)
	c := client(t)
	began := time.Now()
	const requests = 300
	for range requests {
		if a := post(t, c, g.url+chatPath, chatBody); a.status != http.StatusBadGateway {
			t.Fatalf("status %d, want 502", a.status)
		}
	}
	g.settle(t, requests)
	n := requests
	eventually(t, "a line that tells of the others", func() bool {
		if strings.Contains(strings.ReplaceAll(g.log.String(), "more_not_logged=0", ""), "more_not_logged=") {
			return true
		}
		n++
		post(t, c, g.url+chatPath, chatBody)
		return false
	})
	lines, most := len(g.log.failures()), 20+2+int(time.Since(began).Seconds())
	if lines > most || lines >= n {
		t.Errorf("%d lines of %d failed requests, want %d at most", lines, n, most)
	}
}
