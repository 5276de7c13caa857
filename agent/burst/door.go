package burst

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Path is where an agent takes the wish for a burst, by POST, with its length as a parameter named for.
const Path = "/v1/burst"

// reply is the JSON form of what comes back.
type reply struct {
	ForS  float64 `json:"for_s,omitempty"`
	Error string  `json:"error,omitempty"`
}

// ServeHTTP begins a burst, or says why not.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d := autoFor
	var err error
	if text := r.URL.Query().Get("for"); text != "" {
		if d, err = time.ParseDuration(text); err != nil {
			err = fmt.Errorf("for: no duration: %w", ErrLength)
		}
	}
	if err == nil {
		err = c.Start(d)
	}
	status, body := http.StatusOK, reply{ForS: d.Seconds()}
	if err != nil {
		status, body = http.StatusServiceUnavailable, reply{Error: err.Error()}
		switch {
		case errors.Is(err, ErrLength):
			status = http.StatusBadRequest
		case errors.Is(err, ErrRunning):
			status = http.StatusConflict
		case errors.Is(err, ErrOff):
			status = http.StatusForbidden
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error says that the client went away
}

const (
	askTime  = 5 * time.Second // that an agent may take to answer
	maxReply = 1 << 12         // bytes
)

// Ask asks the agent on that socket for a burst.
func Ask(ctx context.Context, socket string, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	address := "http://agent" + Path + "?for=" + url.QueryEscape(d.String())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask for burst: %w", err)
	}
	resp, err := transport.RoundTrip(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent runs on %s", socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission for %s: use sudo, or the group that the agent runs as", socket)
	case err != nil:
		return fmt.Errorf("ask agent on %s: %w", socket, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("ask agent on %s: %w", socket, err)
	}
	var said reply
	if err := json.Unmarshal(body, &said); err != nil || resp.StatusCode != http.StatusOK && said.Error == "" {
		return fmt.Errorf("ask agent on %s: it answers %s and knows no bursts", socket, resp.Status)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.ToValidUTF8(said.Error, "\uFFFD"))
	}
	return nil
}
