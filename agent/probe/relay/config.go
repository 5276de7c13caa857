package relay

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// Config says where a relay listens, where it sends, and how long it waits.
type Config struct {
	Listen   string `yaml:"listen"`   // host:port; there is no default port
	Upstream string `yaml:"upstream"` // http or https URL of the engine; its path is put before the client's
	Target   string `yaml:"target"`   // name of the target that records carry, if known

	CAFile   string `yaml:"upstream_ca_file"`  // PEM file of the authorities to trust instead of the system's
	Insecure bool   `yaml:"upstream_insecure"` // do not verify the upstream's certificate

	DialTimeout   time.Duration `yaml:"dial_timeout"`   // of connecting, and of the handshake after it; zero waits for ever
	HeadTimeout   time.Duration `yaml:"head_timeout"`   // from the request to the response's head; zero waits for ever
	StreamTimeout time.Duration `yaml:"stream_timeout"` // between two reads of a body; zero waits for ever
	IdleTimeout   time.Duration `yaml:"idle_timeout"`   // of connections between requests, on both sides
	Grace         time.Duration `yaml:"grace"`          // for requests in flight when the relay stops

	// MaxBodyBytes is how much of a request's body is held, so that the request can be sent again when an idle
	// connection turns out to be dead. Longer bodies are streamed and sent once.
	MaxBodyBytes int64 `yaml:"max_body_bytes"`
	// MaxEventBytes is the largest event of a stream that is read; larger ones pass, but are not counted.
	MaxEventBytes int `yaml:"max_event_bytes"`
	// InjectUsage asks the engine for its final token count on behalf of clients that did not, and takes the extra
	// event out of what they receive.
	InjectUsage bool `yaml:"inject_usage"`
}

// DefaultConfig returns the defaults; Listen and Upstream have none.
func DefaultConfig() Config {
	return Config{
		DialTimeout:   10 * time.Second,
		IdleTimeout:   2 * time.Minute,
		Grace:         10 * time.Second,
		MaxBodyBytes:  32 << 20,
		MaxEventBytes: 8 << 20,
	}
}

// Validate reports every fault of the configuration. Listen may be empty for a relay that is given its listener.
func (c *Config) Validate() error {
	var faults []error
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			faults = append(faults, fmt.Errorf("listen: %w", err))
		}
	}
	if _, err := c.upstream(); err != nil {
		faults = append(faults, err)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"dial_timeout", c.DialTimeout},
		{"head_timeout", c.HeadTimeout},
		{"stream_timeout", c.StreamTimeout},
		{"idle_timeout", c.IdleTimeout},
		{"grace", c.Grace},
	} {
		if d.value < 0 {
			faults = append(faults, fmt.Errorf("%s: %v is negative", d.name, d.value))
		}
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"max_body_bytes", c.MaxBodyBytes},
		{"max_event_bytes", int64(c.MaxEventBytes)},
	} {
		if n.value < 0 || n.value > maxLimit {
			faults = append(faults, fmt.Errorf("%s: %d is out of range (0 to %d)", n.name, n.value, maxLimit))
		}
	}
	return errors.Join(faults...)
}

// maxLimit bounds the limits themselves: each request may hold as much.
const maxLimit = 1 << 30

// upstream parses the upstream's URL. Its errors do not repeat the URL, which may hold a secret.
func (c *Config) upstream() (*url.URL, error) {
	u, err := url.Parse(c.Upstream)
	switch {
	case c.Upstream == "":
		return nil, errors.New("upstream: missing")
	case err != nil:
		return nil, errors.New("upstream: not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("upstream: not an http or https URL")
	case u.Host == "":
		return nil, errors.New("upstream: no host")
	case u.User != nil:
		return nil, errors.New("upstream: credentials do not belong in the URL; clients send their own")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("upstream: a query or fragment has no meaning here")
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u, nil
}
