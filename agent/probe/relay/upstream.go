package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// readBuffer is how much is read from the upstream at once. A read of a body returns what one read of the connection
// brought as long as both have this size, which is what ties stamps to bytes.
const readBuffer = 32 << 10

// newTransport returns a transport whose connections stamp their reads, below TLS too. It speaks HTTP/1.1 only: in
// HTTP/2 one read holds the frames of many streams.
func newTransport(c *Config, clock *hostclock.Clock, stats *counters) (*http.Transport, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, InsecureSkipVerify: c.Insecure}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read authorities: no certificate in %s", c.CAFile)
		}
	}
	dialer := &net.Dialer{Timeout: c.DialTimeout, Control: control}
	dial := func(ctx context.Context, network, addr string, shared bool) (*conn, error) {
		plain, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newConn(plain, clock, stats, shared)
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			k, err := dial(ctx, network, addr, false)
			if err != nil {
				return nil, err
			}
			return k, nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			k, err := dial(ctx, network, addr, true)
			if err != nil {
				return nil, err
			}
			cfg := secure.Clone()
			cfg.ServerName, _, _ = net.SplitHostPort(addr)
			s := tls.Client(k, cfg)
			if err := shake(ctx, s, c.DialTimeout); err != nil {
				return nil, errors.Join(errTLS, err, k.Close())
			}
			return s, nil
		},
		DisableCompression:    true, // what the client accepts is the client's business
		MaxIdleConnsPerHost:   1024,
		IdleConnTimeout:       c.IdleTimeout,
		ResponseHeaderTimeout: c.HeadTimeout,
		ReadBufferSize:        readBuffer,
	}, nil
}

// shake does the handshake within limit, which is none if zero: one that never comes to an end would outlive its request.
func shake(ctx context.Context, c *tls.Conn, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return c.HandshakeContext(ctx)
}

// marks are the stamps of a connection's reads, and who they are for: a connection serves one exchange after another,
// and reads on as soon as a response is over.
type marks struct {
	shared bool // a read of the connection may come as several reads of a body

	mu    sync.Mutex // guards all below, and what box points to
	at    timeline.Instant
	reads uint64
	box   *probe.Stamp
}

// deliver makes later stamps go to box. What comes from now on came after now: nothing is due before the request.
func (m *marks) deliver(box *probe.Stamp, now timeline.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.box, m.at = box, now
}

// forget ends the delivery to box, unless an exchange after it has taken the place.
func (m *marks) forget(box *probe.Stamp) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.box == box {
		m.box = nil
	}
}

// mark takes the stamp of a read.
func (m *marks) mark(at timeline.Instant, source timeline.StampSource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = at
	m.reads++
	if m.box != nil {
		*m.box = probe.Stamp{At: at, Source: source, Read: m.reads, Shared: m.shared}
	}
}

// floor returns the instant before which the next bytes cannot have come.
func (m *marks) floor() timeline.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// look returns what box holds.
func (m *marks) look(box *probe.Stamp) probe.Stamp {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *box
}

// stamped returns the stamping connection under c.
func stamped(c net.Conn) *conn {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	k, _ := c.(*conn)
	return k
}

// The causes for which a relay itself ends a request, and the mark of a failed handshake.
var (
	errStopped = errors.New("relay stopped")
	errSilent  = errors.New("upstream silent for too long")
	errTLS     = errors.New("tls handshake")
	errStatus  = errors.New("no final status")
)

// fault names what went wrong on the way to the upstream in one fixed word: errors themselves quote what they met,
// which may be content.
type fault string

const (
	faultClient      fault = "client_gone"
	faultStopped     fault = "relay_stopped"
	faultTimeout     fault = "timeout"
	faultRefused     fault = "refused"
	faultReset       fault = "reset"
	faultClosed      fault = "closed"
	faultUnreachable fault = "unreachable"
	faultName        fault = "unknown_host"
	faultTLS         fault = "tls"
	faultMalformed   fault = "malformed_response"
)

// classify names the fault behind err, which a request under ctx met.
func classify(ctx context.Context, err error) fault {
	var name *net.DNSError
	var network net.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopped):
		return faultStopped
	case errors.Is(cause, errSilent):
		return faultTimeout
	case cause != nil:
		return faultClient
	case errors.As(err, &name):
		return faultName
	case errors.As(err, &network) && network.Timeout():
		return faultTimeout
	case errors.Is(err, errTLS):
		return faultTLS
	case errors.Is(err, syscall.ECONNREFUSED):
		return faultRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return faultReset
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return faultUnreachable
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return faultClosed
	}
	return faultMalformed
}

// says is what a client is told of each fault.
var says = map[fault]string{
	faultTimeout:     "the upstream did not answer in time",
	faultRefused:     "the upstream refused the connection",
	faultReset:       "the upstream reset the connection",
	faultClosed:      "the upstream closed the connection without an answer",
	faultUnreachable: "the upstream cannot be reached",
	faultName:        "the upstream's name cannot be resolved",
	faultTLS:         "the TLS handshake with the upstream did not succeed",
	faultMalformed:   "the upstream's answer is not HTTP",
	faultStopped:     "the relay is stopping",
}

// refuse answers a request that got no response, in the shape of the OpenAI API's errors.
func refuse(w http.ResponseWriter, f fault) {
	status := http.StatusBadGateway
	switch f {
	case faultClient:
		return
	case faultTimeout:
		status = http.StatusGatewayTimeout
	case faultStopped:
		status = http.StatusServiceUnavailable
	default:
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":{"message":"%s","type":"upstream_error","param":null,"code":"upstream_%s"}}`+"\n", says[f], f)
}
