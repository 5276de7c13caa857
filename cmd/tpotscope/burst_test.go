package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/burst"
)

func TestBurstAsksTheAgentOnItsSocket(t *testing.T) {
	p := newPlace(t)
	if o := p.run(t, "burst").want(t, exitError); o.err != "tpotscope: no agent runs on "+p.socket+"\n" {
		t.Errorf("without an agent: %s", o.err)
	}
	if o := p.run(t, "burst", "--for", "2m").want(t, exitUsage); !strings.Contains(o.err, "--for: 2m0s: want 1s to 1m0s") {
		t.Errorf("two minutes: %s", o.err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket, Net: "unix"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	must(t, dead.Close())
	if o := p.run(t, "burst").want(t, exitError); o.err != "tpotscope: no agent runs on "+p.socket+"\n" {
		t.Errorf("on the socket of an agent that died: %s", o.err)
	}
	must(t, os.Remove(p.socket))
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", p.socket)
	must(t, err)
	asked := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+burst.Path, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("for")
		_, _ = w.Write([]byte(`{"for_s":10}`))
	})
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}}
	srv.Start()
	defer srv.Close()
	if o := p.run(t, "burst", "--for", "10s").want(t, exitOK); !strings.Contains(o.out, "highest rate for 10s") {
		t.Errorf("it says %q", o.out)
	}
	if got := <-asked; got != "10s" {
		t.Errorf("asked for %s, want 10s", got)
	}
}
