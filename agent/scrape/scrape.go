// Package scrape reads what an LLM engine tells of itself on its Prometheus endpoint: batch, queue, KV cache use and
// cumulative counts. It turns each engine's names into the one set of [timeline.EngineCounter], and says when an
// engine comes, goes or restarts. It knows no GPU, and it draws no conclusion from what it reads.
//
// Nothing but numbers and the names of models leaves this package: the bodies that it reads are neither kept nor
// logged.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Config says which engine is read, and how.
type Config struct {
	Target   string        // the name that samples and events carry
	URL      string        // base URL of the engine; /metrics and /v1/models are below it
	Interval time.Duration // between two scrapes
	Timeout  time.Duration // of one scrape, and of each question for the engine's identity
	Token    string        // bearer token for the engine's API, where it wants one; /metrics gets it too
}

// DefaultConfig returns the defaults: each second, and a scrape that has not ended before the next is due has failed.
func DefaultConfig() Config {
	return Config{Interval: time.Second, Timeout: 900 * time.Millisecond}
}

// Validate names everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("engine url %q: want http://HOST:PORT or https://HOST:PORT", c.URL))
	}
	if c.Interval < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("scrape interval %v: want at least 100ms", c.Interval))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("scrape timeout %v: want more than zero", c.Timeout))
	}
	return errors.Join(errs...)
}

// Identity is what an engine tells of itself that does not change while it runs. What it does not tell is zero.
type Identity struct {
	Engine      string  // "vllm", "sglang" or "llama.cpp"; empty if it tells no metrics to know it by
	Model       string  // the name requests use
	Root        string  // the repository or file that was loaded, where told
	DType       string  // of the weights, in the engine's own word
	Quant       string  // quantization method, in the engine's own word
	KVDType     string  // of the KV cache, in the engine's own word; "auto" is left out
	Version     string  // of the engine
	MaxContext  int     // tokens
	Slots       int     // requests that can run at once, for engines with a fixed number
	TP          int     // tensor-parallel degree
	Parameters  float64 // of the model
	WeightBytes float64 // size of the model's weights
}

// Sink takes what a scraper reads. Each function may be nil, is called from the goroutine of Run alone, and must not
// block. The sample is the callee's to keep.
type Sink struct {
	Sample   func(*timeline.EngineSample)
	Event    func(timeline.Event)
	Identity func(Identity) // once an engine start, when it has answered
}

// Scraper reads one engine.
type Scraper struct {
	cfg  Config
	base string
	now  func() timeline.Instant
	sink Sink
	http *http.Client

	health  health
	asked   bool // the identity was told since the engine's last start
	askedAt timeline.Instant
	slots   float64 // told by the identity, for BusyFraction; zero if not
}

// New returns a scraper of the engine that cfg names.
func New(cfg Config, now func() timeline.Instant, sink Sink) (*Scraper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scraper{
		cfg: cfg, base: strings.TrimRight(cfg.URL, "/"), now: now, sink: sink,
		http: client(),
	}, nil
}

// Run scrapes until ctx ends, and then returns nil. An engine that does not answer is an event, not an error.
func (s *Scraper) Run(ctx context.Context) error {
	defer s.http.CloseIdleConnections()
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		_ = s.Once(ctx) // told to the sink as an event
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once scrapes a single time and tells the sink what it found. It returns the reason if the engine gave no readable
// metrics.
func (s *Scraper) Once(ctx context.Context) error {
	sample, id, err := s.read(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	at := s.now()
	if err != nil {
		s.emit(s.health.failed(at, s.cfg.Target, err))
		if answers(err) {
			s.identify(ctx, at, Identity{})
		}
		return err
	}
	events := s.health.answered(at, sample)
	s.emit(events)
	for _, e := range events {
		if e.Kind == timeline.EventEngineUp || e.Kind == timeline.EventEngineRestart {
			s.asked, s.slots, s.askedAt = false, 0, 0
		}
	}
	if r, ok := sample.Get(timeline.Running); ok && s.slots > 0 {
		sample.Put(timeline.BusyFraction, min(1, r/s.slots))
	}
	if s.sink.Sample != nil {
		s.sink.Sample(sample)
	}
	s.identify(ctx, at, id)
	return nil
}

// identify asks the engine who it is if it has not told since it started. id holds what its metrics told.
func (s *Scraper) identify(ctx context.Context, at timeline.Instant, id Identity) {
	if s.asked || !s.askedAt.IsZero() && at.Sub(s.askedAt) < identityRetry {
		return
	}
	s.askedAt = at
	s.askIdentity(ctx, id)
}

func (s *Scraper) emit(events []timeline.Event) {
	if s.sink.Event == nil {
		return
	}
	for _, e := range events {
		s.sink.Event(e)
	}
}

// read scrapes the metrics and translates them. The identity it returns holds what the metrics told.
func (s *Scraper) read(ctx context.Context) (*timeline.EngineSample, Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	start := s.now()
	body, err := s.get(ctx, "/metrics", maxMetricsBytes)
	end := s.now()
	if err != nil {
		return nil, Identity{}, err
	}
	sample := &timeline.EngineSample{Target: s.cfg.Target, Over: timeline.Span{Start: start, End: end}}
	id, err := Translate(body, sample)
	if err != nil {
		return nil, Identity{}, err
	}
	return sample, id, nil
}
