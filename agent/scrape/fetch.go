package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// Bounds of what is read from an engine.
const (
	maxMetricsBytes  = 4 << 20
	maxIdentityBytes = 1 << 20
)

// Reasons why an engine gave nothing. They are what an event's detail says, and hold nothing that the engine sent.
var (
	errRefused    = errors.New("connection refused")
	errTimeout    = errors.New("no answer in time")
	errNoAnswer   = errors.New("no answer")
	errTooLarge   = errors.New("answer too large")
	errTooMany    = errors.New("too many series")
	errUnreadable = errors.New("metrics not readable")
	errUnknown    = errors.New("metrics of no known engine")
)

// statusError is an answer that is not 200.
type statusError int

// Error names the status.
func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// get reads one page of the engine.
func (s *Scraper) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return fetch(ctx, s.http, s.base+path, s.cfg.Token, limit)
}

// client returns a client for endpoints of this node or its neighbours.
func client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // such an endpoint is never reached through a proxy of the environment
			MaxIdleConns:           2,
			MaxResponseHeaderBytes: 64 << 10,
			IdleConnTimeout:        90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// fetch reads one page. An answer that is not 200, a redirect among them, is an error.
func fetch(ctx context.Context, c *http.Client, page, token string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	if strings.HasSuffix(page, "/metrics") {
		// Without this an engine may choose OpenMetrics, which names counters otherwise.
		req.Header.Set("Accept", "text/plain;version=0.0.4")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, reason(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, reason(err)
	}
	if int64(len(body)) > limit {
		return nil, errTooLarge
	}
	return body, nil
}

// reason reduces an error of the HTTP client to one of the words above.
func reason(err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errRefused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return errTimeout
	}
	return errNoAnswer
}
