package otlp

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
)

// The protocols.
const (
	HTTPProtobuf = "http/protobuf"
	GRPC         = "grpc"
)

// Endpoint says where a signal goes and how. Fields left empty are taken from the next weaker source.
type Endpoint struct {
	URL         string            `yaml:"url"`         // of a receiver: http://host:4318, https://host/path; for grpc also host:4317
	Protocol    string            `yaml:"protocol"`    // "http/protobuf" (the default) or "grpc"
	Headers     map[string]string `yaml:"headers"`     // go out with each request; never stored
	Timeout     time.Duration     `yaml:"timeout"`     // of one attempt
	Compression string            `yaml:"compression"` // "gzip" (the default) or "none"
	CAFile      string            `yaml:"ca_file"`
	CertFile    string            `yaml:"cert_file"`
	KeyFile     string            `yaml:"key_file"`
	Insecure    *bool             `yaml:"insecure"` // grpc without TLS, where the URL has no scheme

	base bool // URL is one for all signals: the signal's path comes after it
}

// over returns e with what it leaves open taken from weaker. A URL brings its path rule along.
func (e Endpoint) over(weaker Endpoint) Endpoint {
	out := Endpoint{
		URL: e.URL, base: e.base,
		Protocol: cmp.Or(e.Protocol, weaker.Protocol), Headers: e.Headers, Timeout: cmp.Or(e.Timeout, weaker.Timeout),
		Compression: cmp.Or(e.Compression, weaker.Compression), CAFile: cmp.Or(e.CAFile, weaker.CAFile),
		CertFile: cmp.Or(e.CertFile, weaker.CertFile), KeyFile: cmp.Or(e.KeyFile, weaker.KeyFile), Insecure: cmp.Or(e.Insecure, weaker.Insecure),
	}
	if out.URL == "" {
		out.URL, out.base = weaker.URL, weaker.base
	}
	if out.Headers == nil {
		out.Headers = weaker.Headers
	}
	return out
}

// validate names the fault of an endpoint that is used.
func (e Endpoint) validate(signal spool.Signal) error {
	if e.URL == "" {
		return nil
	}
	if holdsCredentials(e.URL) {
		return fmt.Errorf("%s: endpoint: credentials in a URL end up where they are seen: send them as headers", signal)
	}
	if _, err := e.spoolConfig(signal); err != nil {
		return fmt.Errorf("%s: %w", signal, err)
	}
	return nil
}

// holdsCredentials reports whether the authority of a URL, or of a bare host:port, holds a user.
func holdsCredentials(s string) bool {
	if _, after, ok := strings.Cut(s, "://"); ok {
		s = after
	}
	authority, _, _ := strings.Cut(s, "/")
	return strings.Contains(authority, "@")
}

// spoolConfig turns e into what a spool wants.
func (e Endpoint) spoolConfig(signal spool.Signal) (spool.Config, error) {
	cfg := spool.DefaultConfig()
	cfg.Signal, cfg.Headers = signal, e.Headers
	cfg.Timeout = cmp.Or(e.Timeout, cfg.Timeout)
	switch e.Compression {
	case "", "gzip":
	case "none":
		cfg.Gzip = false
	default:
		return cfg, fmt.Errorf("compression %q: want gzip or none", e.Compression)
	}
	var err error
	if cfg.TLS, err = e.tls(); err != nil {
		return cfg, err
	}
	switch e.Protocol {
	case "", HTTPProtobuf:
		cfg.Endpoint, err = e.httpURL(signal)
	case GRPC:
		cfg.GRPC = true
		cfg.Endpoint, cfg.Plaintext, err = e.grpcTarget()
	default:
		err = fmt.Errorf("protocol %q: want %s or %s", e.Protocol, HTTPProtobuf, GRPC)
	}
	return cfg, err
}

// httpURL returns the URL that requests go to: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
func (e Endpoint) httpURL(signal spool.Signal) (string, error) {
	u, err := url.Parse(e.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", fmt.Errorf("endpoint: want http://host:4318 or https://host for %s", HTTPProtobuf)
	}
	switch {
	case e.base:
		u = u.JoinPath("v1", string(signal))
	case u.Path == "":
		u.Path = "/"
	}
	return u.String(), nil
}

// grpcTarget returns host:port and whether to speak without TLS: the scheme says so, else Insecure.
func (e Endpoint) grpcTarget() (target string, plaintext bool, err error) {
	hostport, plaintext := e.URL, e.Insecure != nil && *e.Insecure
	if strings.Contains(hostport, "://") {
		u, err := url.Parse(hostport)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
			return "", false, errors.New("endpoint: want host:4317, http://host:4317 or https://host:4317 for grpc")
		}
		hostport, plaintext = u.Host, u.Scheme == "http"
	}
	if hostport == "" {
		return "", false, errors.New("endpoint: want host:4317 for grpc")
	}
	if _, _, err := net.SplitHostPort(hostport); err != nil {
		hostport = net.JoinHostPort(strings.Trim(hostport, "[]"), "4317")
	}
	return hostport, plaintext, nil
}

// tls reads the files that e names; nil stands for the system's roots and no certificate of one's own.
func (e Endpoint) tls() (*tls.Config, error) {
	if e.CAFile == "" && e.CertFile == "" && e.KeyFile == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CAFile != "" {
		pem, err := os.ReadFile(e.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate authority: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read certificate authority %s: no certificate in it", e.CAFile)
		}
	}
	if e.CertFile != "" || e.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
