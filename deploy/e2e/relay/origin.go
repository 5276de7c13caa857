package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// The ways in which streams lie in time to each other.
const (
	patternSpread = "spread"
	patternStep   = "step"
)

// ask is the part of a chat completion's request that the origin goes by. The seed says which stream it is.
type ask struct {
	MaxTokens int `json:"max_tokens"`
	Seed      int `json:"seed"`
}

// origin is an engine that computes nothing: it sends events at their time, each with the instant of its sending inside.
type origin struct {
	clock   *hostclock.Clock
	streams int
	rate    int
	pattern string
}

// serveOrigin serves until ctx ends.
func serveOrigin(ctx context.Context, args []string) error {
	var o origin
	var listen string
	fs := flag.NewFlagSet("origin", flag.ContinueOnError)
	fs.StringVar(&listen, "listen", "", "address to listen on")
	fs.IntVar(&o.streams, "streams", 128, "streams at once")
	fs.IntVar(&o.rate, "rate", 50, "events a second of each stream")
	fs.StringVar(&o.pattern, "pattern", patternSpread, "spread or step")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if o.clock, err = hostclock.New(); err != nil {
		return fmt.Errorf("read clocks: %w", err)
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	base, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(base, func() { _ = ln.Close() })()
	for {
		c, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		conns.Go(func() {
			defer context.AfterFunc(base, func() { _ = c.Close() })()
			o.serve(c)
			_ = c.Close()
		})
	}
}

// serve answers the requests of one connection. A connection that breaks ends it: the client side counts what is missing.
func (o *origin) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		var a ask
		if req.Method != http.MethodPost || json.Unmarshal(body, &a) != nil {
			if _, err := io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"); err != nil {
				return
			}
			continue
		}
		if o.stream(c, a) != nil {
			return
		}
	}
}

// stream sends one reply. An event whose time has passed is sent at once, so that none is left out.
func (o *origin) stream(c net.Conn, a ask) error {
	if _, err := io.WriteString(c, replyHead); err != nil {
		return err
	}
	period := time.Second / time.Duration(o.rate)
	due := o.first(period, a.Seed)
	chunk := newChunk()
	for i := range a.MaxTokens {
		time.Sleep(due.Sub(o.clock.Now()))
		chunk.set(o.clock.Now(), i)
		if _, err := c.Write(chunk.bytes); err != nil {
			return err
		}
		due = due.Add(period)
	}
	_, err := fmt.Fprintf(c, "%s%s%s0\r\n\r\n", framed(replyFinish), framed(fmt.Sprintf(replyUsage, a.MaxTokens)), framed("data: [DONE]\n\n"))
	return err
}

// first is when the first event of the stream is due: on a grid that all streams share, and in the stream's own place
// between two of its points unless all keep step.
func (o *origin) first(period time.Duration, seed int) timeline.Instant {
	grid := timeline.Instant(period)
	at := (o.clock.Now()/grid + 1) * grid
	if o.pattern == patternSpread {
		at = at.Add(period * time.Duration(seed%o.streams) / time.Duration(o.streams))
	}
	return at
}
