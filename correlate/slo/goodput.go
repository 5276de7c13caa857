package slo

import (
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Goodput is how many requests kept all bounds, and the tokens they brought. Requests that their client gave up, and
// those whose end nobody saw, are not judged; those that failed are, and kept nothing. Good requests never exceed the
// requests judged, nor their tokens.
type Goodput struct {
	Bounds   []string           `json:"bounds"`
	Requests int                `json:"requests"` // judged
	Good     int                `json:"good"`
	Failed   int                `json:"failed"`  // of those judged
	Unknown  int                `json:"unknown"` // not judged: a latency with a bound is not known
	Given    int                `json:"given_up"`
	Attained timeline.Measure   `json:"attained"` // good over judged
	CI95     *timeline.Interval `json:"attained_ci95,omitempty"`
	Interval string             `json:"interval,omitempty"`
	Seconds  float64            `json:"seconds"` // that the rates are over

	RequestsPerS     timeline.Measure `json:"requests_per_second"` // judged
	GoodRequestsPerS timeline.Measure `json:"good_requests_per_second"`
	TokensPerS       timeline.Measure `json:"tokens_per_second"` // output tokens of the judged
	GoodTokensPerS   timeline.Measure `json:"good_tokens_per_second"`
}

// Counter counts good requests.
type Counter struct {
	bounds     []Bound
	share      Share
	failed     int
	unknown    int
	given      int
	uncounted  int // judged, without a count of tokens
	tokens     float64
	goodTokens float64
}

// NewCounter returns a counter of requests that keep all bounds.
func NewCounter(bounds []Bound) *Counter { return &Counter{bounds: bounds} }

// GiveUp takes a request that is not judged: its client went away, or its end is not known.
func (c *Counter) GiveUp() { c.given++ }

// Fail takes a request that failed at about instant t.
func (c *Counter) Fail(t timeline.Instant) {
	c.failed++
	c.share.Add(t, 0, 1)
}

// Add takes a request that went well and ended at about instant t, with its latencies in seconds and its output tokens;
// tokens are negative where nobody counts them.
func (c *Counter) Add(t timeline.Instant, latency func(Latency) timeline.Measure, tokens int) {
	good, known := true, true
	for _, b := range c.bounds {
		switch m := latency(b.Latency); {
		case !m.OK():
			known = false
		case !(m.Value < b.Limit.Seconds()):
			good = false
		}
	}
	if good && !known { // one bound that is broken is enough to know
		c.unknown++
		return
	}
	n := max(0, tokens)
	if tokens < 0 {
		c.uncounted++
	}
	c.tokens += float64(n)
	if !good {
		c.share.Add(t, 0, 1)
		return
	}
	c.goodTokens += float64(n)
	c.share.Add(t, 1, 1)
}

// Goodput returns what was counted, over so many seconds. Requests within the time alike are held to be alike.
func (c *Counter) Goodput(seconds float64, alike time.Duration) Goodput {
	out := Goodput{
		Requests: c.share.N, Good: c.share.Kept, Failed: c.failed, Unknown: c.unknown, Given: c.given, Seconds: seconds,
		Attained: timeline.Absent("no request can be judged"),
	}
	for _, b := range c.bounds {
		out.Bounds = append(out.Bounds, b.String())
	}
	if c.share.N > 0 {
		out.Attained = timeline.Known(float64(c.share.Kept) / float64(c.share.N))
	}
	if iv, how, ok := c.share.Interval(alike); ok {
		out.CI95, out.Interval = &iv, how
	}
	rate := func(n float64) timeline.Measure {
		if !(seconds > 0) || math.IsInf(n/seconds, 0) {
			return timeline.Absent("the span is empty")
		}
		return timeline.Known(n / seconds)
	}
	out.RequestsPerS, out.GoodRequestsPerS = rate(float64(c.share.N)), rate(float64(c.share.Kept))
	out.TokensPerS, out.GoodTokensPerS = rate(c.tokens), rate(c.goodTokens)
	if c.uncounted > 0 {
		out.TokensPerS = timeline.Absent("some requests tell no count of tokens")
		out.GoodTokensPerS = out.TokensPerS
	}
	return out
}
