package agent

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// arrived keeps what arrives of a reporter.
type arrived struct {
	tokens map[uint64][]timeline.Instant
	closed map[uint64]timeline.Request
}

func (a *arrived) OpenRequest(*timeline.Request) {}
func (a *arrived) AddToken(e timeline.TokenEvent) {
	a.tokens[e.Ref] = append(a.tokens[e.Ref], e.At)
}
func (a *arrived) CloseRequest(r *timeline.Request) { a.closed[r.Ref] = *r }

// network carries calls to a handler, each leg with a delay of its own.
type network struct {
	h     http.Handler
	rng   *rand.Rand
	slow  time.Duration // of the way there: what makes the two legs differ
	calls int
}

func (n *network) leg(base time.Duration) {
	d := base + time.Duration(n.rng.ExpFloat64()*float64(40*time.Microsecond))
	if n.rng.IntN(10) == 0 {
		d += time.Duration(n.rng.ExpFloat64() * float64(2*time.Millisecond))
	}
	time.Sleep(d)
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	n.calls++
	n.leg(50*time.Microsecond + n.slow)
	rec := httptest.NewRecorder()
	n.h.ServeHTTP(rec, req)
	n.leg(50 * time.Microsecond)
	return rec.Result(), nil
}

// pair is a reporter whose clock is 3.2 s behind the host's and 12 ppm slower.
type pair struct {
	begin    time.Time
	boot     string // of the reporter
	suspends atomic.Uint64
	got      *arrived
	net      *network
	refused  ingest.Refused
}

const (
	apart = 3200 * time.Millisecond
	ppm   = 12e-6
)

func (p *pair) host() timeline.Instant { return timeline.Instant(time.Hour + time.Since(p.begin)) }

func (p *pair) peer() timeline.Instant {
	return timeline.Instant(time.Hour - apart + time.Duration(float64(time.Since(p.begin))/(1+ppm)))
}

func newPair(t *testing.T, boot string, slow time.Duration) (*pair, *ingest.Client) {
	t.Helper()
	p := &pair{begin: time.Now(), boot: boot, got: &arrived{map[uint64][]timeline.Instant{}, map[uint64]timeline.Request{}}}
	_, h, err := ingest.NewHandler(ingest.Config{
		Sink: func(ingest.Source) timeline.RequestSink { return p.got }, Now: p.host, Refused: &p.refused,
		Anchor:  func() timeline.Anchor { return timeline.Anchor{Mono: p.host(), BootID: "this-boot"} },
		Aligner: func(ingest.Source) ingest.Aligner { return newAligner(&p.suspends) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.net = &network{h: h, rng: rand.New(rand.NewPCG(7, 7)), slow: slow}
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process, cfg.BootID, cfg.Now = "http://agent", "proxy", "p1", boot, p.peer
	cfg.HTTP = &http.Client{Transport: p.net}
	c, err := ingest.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

// stream reports requests of fifty tokens for a while, one after another, and returns when they came by the host's clock.
func (p *pair) stream(t *testing.T, c *ingest.Client, d time.Duration) map[uint64][]timeline.Instant {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	truth := map[uint64][]timeline.Instant{}
	for ref := uint64(1); time.Since(p.begin) < d; ref++ {
		r := timeline.Request{Ref: ref, Sent: p.peer()}
		c.OpenRequest(&r)
		for range 50 {
			time.Sleep(90 * time.Millisecond)
			at := p.peer()
			truth[ref] = append(truth[ref], p.host())
			c.AddToken(timeline.TokenEvent{Ref: ref, At: at, After: at, Tokens: 1})
			if r.First == 0 {
				r.First = at
			}
			r.Last = at
		}
		r.Done, r.OutputTokens = p.peer(), 50
		c.CloseRequest(&r)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return truth
}

func TestTimesOfAnotherHostArriveWithinTheirBound(t *testing.T) {
	for name, tt := range map[string]struct {
		boot string
		slow time.Duration
		most time.Duration // bound of the last request
	}{
		"another host":         {"another-boot", 0, 400 * time.Microsecond},
		"a slow way there":     {"another-boot", 8 * time.Millisecond, 6 * time.Millisecond},
		"a namespace of times": {"this-boot", 0, 400 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, c := newPair(t, tt.boot, tt.slow)
				truth := p.stream(t, c, 3*time.Minute)
				if len(p.got.closed) != len(truth) {
					t.Fatalf("%d of %d requests arrived; refused %v", len(p.got.closed), len(truth), p.refused.Counts())
				}
				var worst, last time.Duration
				for ref, times := range truth {
					r := p.got.closed[ref]
					if len(p.got.tokens[ref]) != len(times) {
						t.Fatalf("%d of %d tokens arrived", len(p.got.tokens[ref]), len(times))
					}
					for i, at := range times {
						off := p.got.tokens[ref][i].Sub(at).Abs()
						worst = max(worst, off)
						if off > r.ClockBound+2 {
							t.Fatalf("token %d of request %d is %v off, with a bound of %v", i, ref, off, r.ClockBound)
						}
					}
					if off := r.Last.Sub(r.First) - times[49].Sub(times[0]); off.Abs() > 60*time.Microsecond { // twice 30 ppm of 4.4 s at most
						t.Fatalf("decode of request %d is %v longer than it was", ref, off)
					}
					if ref == uint64(len(truth)) {
						last = r.ClockBound
					}
				}
				if last <= 0 || last > tt.most {
					t.Errorf("the last bound is %v, want at most %v", last, tt.most)
				}
				t.Logf("worst error %v, last bound %v, %d calls", worst, last, p.net.calls)
			})
		})
	}
}

func TestASuspendForgetsWhatWasKnownOfAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var suspends atomic.Uint64
		a := newAligner(&suspends)
		x := ingest.Exchange{T1: 1e9, T2: 4e9, T3: 4e9 + 10, T4: 1e9 + 1000}
		a.Add(x)
		if at, bound, ok := a.Local(2e9); !ok || at < 5e9-1000 || at > 5e9+1000 || bound > time.Millisecond {
			t.Errorf("Local() = %d, %v, %v", at, bound, ok)
		}
		suspends.Add(1)
		if _, _, ok := a.Local(2e9); ok {
			t.Error("after a suspend the clock is still known")
		}
		a.Add(ingest.Exchange{T1: 10e9, T2: 11e9, T3: 11e9 + 10, T4: 10e9 + 1000})
		if at, _, ok := a.Local(10e9); !ok || at < 11e9-1000 || at > 11e9+1000 {
			t.Errorf("after a new exchange: %d, %v", at, ok)
		}
	})
}
