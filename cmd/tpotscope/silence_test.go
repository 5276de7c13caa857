package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An upstream that sends more than it announced does not get its content into what the command prints.
func TestUnaskedContentIsNotPrinted(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-unasked-answer"
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	extra := make(chan struct{})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			<-extra
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"+canary)
			_ = c.Close()
		}
	}()
	p := newPlace(t)
	proxy := p.process(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://"+ln.Addr().String())
	must(t, proxy.Start())
	url := "http://" + find(t, &proxy.err, relayAddress) + "/v1/chat/completions"
	resp, err := http.Post(url, "application/json", strings.NewReader(`{"messages":[]}`))
	must(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	must(t, resp.Body.Close())
	close(extra)
	time.Sleep(200 * time.Millisecond) // the transport reads what came, and nothing tells when
	must(t, proxy.Process.Signal(syscall.SIGTERM))
	if err := proxy.Wait(); err != nil {
		t.Errorf("proxy: %v", err)
	}
	if all := proxy.err.String() + proxy.out.String(); strings.Contains(all, canary) || strings.Contains(all, "Unsolicited") {
		t.Errorf("the proxy printed what an upstream sent unasked:\n%s", all)
	}
}
