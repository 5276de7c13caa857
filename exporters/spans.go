package exporters

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// SpanPolicy decides which requests have their span exported. All ways out share it, so that an exemplar in one points
// to a span that another sends.
type SpanPolicy struct {
	Enabled   bool          `yaml:"enabled"`
	PerSecond float64       `yaml:"per_second"` // refill of the token bucket
	Burst     float64       `yaml:"burst"`      // its size; half of it is reserved for spans worth keeping
	SlowTPOT  time.Duration `yaml:"slow_tpot"`  // zero: twice the target's usual TPOT
	SlowTTFT  time.Duration `yaml:"slow_ttft"`  // zero: TTFT makes no request slow
}

// DefaultSpanPolicy bounds an incident to 50 spans a second, after a burst of 500.
func DefaultSpanPolicy() SpanPolicy { return SpanPolicy{PerSecond: 50, Burst: 500} }

// Decision is what became of one request's span.
type Decision struct {
	Export  bool // the span goes out
	Keep    bool // slow, failed or throttled: worth keeping by whoever samples downstream
	Limited bool // would have gone out, but for the limit
}

const (
	usualAfter  = 20   // requests before a target's usual TPOT is known
	usualWeight = 0.02 // of each further request, on the logarithm
	usualFactor = 2    // times the usual is slow
)

// usual follows the geometric mean of a target's TPOT.
type usual struct {
	n   int
	log float64
}

// spanLimiter is a token bucket that runs on the time of the requests.
type spanLimiter struct {
	policy SpanPolicy
	tokens float64
	at     timeline.Instant
	usual  map[string]usual
}

func newSpanLimiter(p SpanPolicy) *spanLimiter {
	return &spanLimiter{policy: p, tokens: p.Burst, usual: map[string]usual{}}
}

// decide says what becomes of p's span, and takes note of p.
func (l *spanLimiter) decide(p *correlate.Phase) Decision {
	d := Decision{Keep: p.Request.Status.Failed() || l.slow(p) || p.ThrottledS > 0 || slices.Contains(p.Overlays, timeline.Throttled)}
	if !l.policy.Enabled || !p.Request.Sampled || p.Request.TraceID == "" || p.Request.SpanID == "" {
		return d
	}
	if at := p.Request.Over().End; at > l.at {
		if l.at != 0 {
			l.tokens = min(l.policy.Burst, l.tokens+at.Sub(l.at).Seconds()*l.policy.PerSecond)
		}
		l.at = at
	}
	need := 1.0
	if !d.Keep {
		need += max(0, min(l.policy.Burst/2, l.policy.Burst-1))
	}
	if l.tokens < need {
		d.Limited = true
		return d
	}
	l.tokens--
	d.Export = true
	return d
}

// slow reports whether p took longer than the policy or its target's habit says.
func (l *spanLimiter) slow(p *correlate.Phase) bool {
	if ttft := p.Latency.TTFT; l.policy.SlowTTFT > 0 && ttft.OK() && ttft.Value > l.policy.SlowTTFT.Seconds() {
		return true
	}
	tpot := p.Latency.TPOT
	if !tpot.OK() || tpot.Value <= 0 {
		return false
	}
	if l.policy.SlowTPOT > 0 {
		return tpot.Value > l.policy.SlowTPOT.Seconds()
	}
	u, logged := l.usual[p.Request.Target], math.Log(tpot.Value)
	slow := u.n >= usualAfter && logged > u.log+math.Log(usualFactor)
	u.n++
	u.log += (logged - u.log) * max(usualWeight, 1/float64(u.n))
	l.usual[p.Request.Target] = u
	return slow
}
