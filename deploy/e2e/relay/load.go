package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// load is what each way carries in its turn. Only the window is measured: before it connections are made and the proxy
// warms up, after it streams end.
type load struct {
	streams, rate      int
	lead, window, tail time.Duration
}

// events is how many events each stream has.
func (l load) events() int {
	return int((l.lead+l.window+l.tail)*time.Duration(l.rate)/time.Second) + 1
}

// turn is what one turn of one way gave.
type turn struct {
	lags     []time.Duration // from sending to receipt, of the events received in the window
	lost     int             // events that were asked for and did not come
	disorder int             // events that came twice or out of their order
	err      error           // why the first stream that broke off did
}

// stream is one reply as the client sees it.
type stream struct {
	lags     []lag
	disorder int
	err      error
}

type lag struct {
	at  timeline.Instant
	lag time.Duration
}

// drive sends one turn of load to addr. It calls edge at the beginning and at the end of the window.
func (l load) drive(ctx context.Context, clock *hostclock.Clock, addr string, edge func(received int)) turn {
	ctx, cancel := context.WithTimeout(ctx, 2*(l.lead+l.window+l.tail)+10*time.Second)
	defer cancel()
	streams := make([]stream, l.streams)
	var received atomic.Int64
	var wg sync.WaitGroup
	begin := clock.Now()
	for i := range streams {
		s := &streams[i]
		s.lags = make([]lag, 0, l.events())
		wg.Go(func() { s.err = s.follow(ctx, clock, addr, l.request(addr, i), &received) })
	}
	from, to := begin.Add(l.lead), begin.Add(l.lead+l.window)
	pause(ctx, from.Sub(clock.Now()))
	from = clock.Now()
	edge(int(received.Load()))
	pause(ctx, to.Sub(clock.Now()))
	edge(int(received.Load()))
	to = clock.Now()
	wg.Wait()

	var t turn
	for i := range streams {
		s := &streams[i]
		t.lost += l.events() - len(s.lags)
		t.disorder += s.disorder
		if t.err == nil {
			t.err = s.err
		}
		for _, g := range s.lags {
			if g.at >= from && g.at < to {
				t.lags = append(t.lags, g.lag)
			}
		}
	}
	slices.Sort(t.lags)
	return t
}

// request is the i-th stream's request.
func (l load) request(addr string, i int) string {
	body := fmt.Sprintf(`{"model":"bench","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"seed":%d,"messages":[{"role":"user","content":"hi"}]}`, l.events(), i)
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", addr, len(body), body)
}

// follow sends one request and reads its reply to the end. The time of receipt is taken when a read returns.
func (s *stream) follow(ctx context.Context, clock *hostclock.Clock, addr, request string, received *atomic.Int64) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := io.WriteString(c, request); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 32<<10), &http.Request{Method: http.MethodPost})
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("read reply: status %d", resp.StatusCode)
	}
	var scan scanner
	buf := make([]byte, 32<<10)
	for done := false; ; {
		n, err := resp.Body.Read(buf)
		now := clock.Now()
		before := len(s.lags)
		done = scan.feed(buf[:n], func(sent timeline.Instant, number int) {
			if number != len(s.lags) {
				s.disorder++
			}
			s.lags = append(s.lags, lag{now, now.Sub(sent)})
		}) || done
		received.Add(int64(len(s.lags) - before))
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && done:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("read reply: it ended before its end")
		default:
			return fmt.Errorf("read reply: %w", err)
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// quantile returns the q-th part of sorted lags, by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
