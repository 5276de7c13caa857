package summary

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/latency"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// coalescedLimit is the share of token events without a stamp of their own above which gaps are published flagged.
const coalescedLimit = 0.05

// edges of the bins of output length and of concurrency. TPOT changes with the batch by far less than twofold from
// one power of two to the next.
var (
	lengthEdges      = [...]float64{2, 16, 64, 256, 1024, 4096, 16384}
	concurrencyEdges = [...]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
)

// pool is what the requests say.
type pool struct {
	cfg    *Config
	exact  int
	counts Requests
	level  timeline.EvidenceLevel

	ttft, tpot, tpotN1, itl, icl, e2e *series

	took      stats.WeightedMean // s, length of a request
	groups    map[bin]*series
	flags     [16]int // how many requests carry each doubt
	events    int
	coalesced int

	prompt        float64
	promptUnknown int
	cached        bool // some prompt was served from a cache in part

	shares []slo.Share // for each objective
	good   *slo.Counter
}

// bin is a group's place; concurrency is -1 where it is not known.
type bin struct{ length, concurrency int }

func newPool(cfg *Config) *pool {
	exact := cfg.Exact
	return &pool{
		cfg: cfg, shares: make([]slo.Share, len(cfg.Objectives)), good: slo.NewCounter(cfg.Goodput),
		exact: exact, groups: map[bin]*series{},
		ttft: newSeries(exact), tpot: newSeries(exact), tpotN1: newSeries(exact),
		itl: newSeries(exact), icl: newSeries(exact), e2e: newSeries(exact),
	}
}

// usable is how many requests the percentiles can be of.
func (p *pool) usable() int { return max(p.ttft.values.Len(), p.e2e.values.Len()) }

// add takes one request.
func (p *pool) add(ph *correlate.Phase, warm bool) {
	r := &ph.Request
	p.count(r, warm)
	p.level = max(p.level, correlate.LevelOf(r.Client))
	if r.PromptKnown {
		p.prompt += float64(r.PromptTokens)
	} else {
		p.promptUnknown++
	}
	p.cached = p.cached || r.CachedTokens > 0
	if warm {
		return
	}
	p.judged(ph)
	if r.Status == timeline.StatusOK {
		p.measure(ph)
	}
}

// measure takes the latencies of a request that went well, outside the warm-up. A request that asked for one token
// has a TTFT like any other, but its end and its pace are of another kind.
func (p *pool) measure(ph *correlate.Phase) {
	r, l := &ph.Request, &ph.Latency
	at := r.Over().End
	for i := range p.flags {
		if l.Flags&(1<<i) != 0 {
			p.flags[i]++
		}
	}
	p.ttft.add(at, l.TTFT)
	if r.PrefillOnly() {
		return
	}
	p.took.Add(r.Over().Duration().Seconds(), 1)
	p.e2e.add(at, l.E2E)
	p.tpot.add(at, l.TPOT)
	p.tpotN1.add(at, l.TPOTN1)
	p.itl.addAll(at, l.ITL)
	p.icl.addAll(at, l.ICL)
	events := max(r.Events, len(l.ICL))
	p.events += events
	p.coalesced += min(r.Coalesced, events)
	if !l.TPOT.OK() {
		return
	}
	p.counts.TPOTDefined++
	k := bin{place(lengthEdges[:], float64(l.N)), -1}
	if ph.Concurrency.OK() {
		k.concurrency = place(concurrencyEdges[:], ph.Concurrency.Value)
	}
	g := p.groups[k]
	if g == nil {
		g = newSeries(p.exact)
		p.groups[k] = g
	}
	g.add(at, l.TPOT)
}

// count takes a request into the counts.
func (p *pool) count(r *timeline.Request, warm bool) {
	c := &p.counts
	c.Total++
	switch r.Status {
	case timeline.StatusOK:
		c.OK++
	case timeline.StatusTruncated:
		c.Truncated++
	case timeline.StatusCancelled:
		c.Cancelled++
	case timeline.StatusUnfinished:
		c.Unfinished++
		if r.Done.IsZero() {
			c.EndUnknown++
		}
	default:
		c.Failed++
	}
	if r.PrefillOnly() {
		c.PrefillOnly++
	}
	if warm {
		c.Warmup++
	}
}

// place returns the last edge that v reaches, the first if it reaches none.
func place(edges []float64, v float64) int {
	i, found := slices.BinarySearch(edges, v)
	if !found {
		i--
	}
	return max(0, i)
}

// span returns the bin at the i-th edge.
func span(edges []float64, i int) Range {
	r := Range{Low: edges[i]}
	if i+1 < len(edges) {
		r.High = edges[i+1]
	}
	return r
}

// alike is the time within which requests share steps: about the mean length of one.
func (p *pool) alike() time.Duration {
	s, _ := p.took.Value()
	return time.Duration(s * float64(time.Second))
}

// fill puts the latencies into the report.
func (p *pool) fill(r *Report) {
	none := "no request"
	switch {
	case p.counts.EndUnknown > 0 && p.counts.EndUnknown == p.counts.Total:
		none = fmt.Sprintf("the ends of %d requests are not recorded", p.counts.Total)
	case p.counts.EndUnknown > 0 && p.counts.OK == 0:
		none = fmt.Sprintf("none of %d requests went well, and the ends of %d are not recorded", p.counts.Total, p.counts.EndUnknown)
	case p.counts.Total > 0 && p.counts.OK == 0:
		none = fmt.Sprintf("none of %d requests went well", p.counts.Total)
	case p.counts.OK > 0 && p.usable() == 0:
		none = "all requests fall into the warm-up"
	case p.counts.OK > 0 && p.counts.PrefillOnly >= p.counts.OK:
		none = "all requests asked for one token"
	}
	alike := p.alike()
	r.TTFT, r.E2E = p.ttft.stat(alike, none), p.e2e.stat(alike, none)
	r.TPOT, r.TPOTN1 = p.tpot.stat(alike, none), p.tpotN1.stat(alike, none)
	if p.e2e.values.Len() > 0 {
		none = "no request tells the tokens of each event"
	}
	r.ITL = p.itl.stat(alike, none)
	if p.e2e.values.Len() > 0 {
		none = "no request has two events"
	}
	r.ICL = p.icl.stat(alike, none)
	for _, s := range []*Stat{&r.ITL, &r.ICL} {
		no := Maybe[timeline.Interval]{Why: "gaps of one request are not independent of each other"}
		if s.OK() {
			s.CI95P50, s.CI95P90, s.CI95P99, s.Intervals = no, no, no, byBlocks
		}
	}
	if share := p.coalescedShare(); share > coalescedLimit {
		flag := fmt.Sprintf("%.0f %% of the token events shared a read and have no stamp of their own", 100*share)
		for _, s := range []*Stat{&r.ITL, &r.ICL} {
			if s.OK() {
				s.Flag = flag
			}
		}
	}
}

func (p *pool) coalescedShare() float64 {
	if p.events == 0 {
		return 0
	}
	return float64(p.coalesced) / float64(p.events)
}

// groupList returns the groups, by output length and then by concurrency, the unknown one last.
func (p *pool) groupList() []Group {
	keys := make([]bin, 0, len(p.groups))
	for k := range p.groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b bin) int {
		return cmp.Or(cmp.Compare(a.length, b.length), cmp.Compare(uint(a.concurrency), uint(b.concurrency)))
	})
	out := make([]Group, 0, len(keys))
	for _, k := range keys {
		s := p.groups[k]
		g := Group{OutputTokens: span(lengthEdges[:], k.length), Requests: s.values.Len(), TPOT: s.stat(p.alike(), "no request")}
		if k.concurrency >= 0 {
			g.Concurrency.Value = span(concurrencyEdges[:], k.concurrency)
		} else {
			g.Concurrency.Why = "concurrency is not known"
		}
		out = append(out, g)
	}
	return out
}

// judged takes a request outside the warm-up into what was asked for.
func (p *pool) judged(ph *correlate.Phase) {
	r, l := &ph.Request, &ph.Latency
	at := r.Over().End
	switch r.Status {
	case timeline.StatusOK:
	case timeline.StatusCancelled, timeline.StatusUnfinished:
		p.good.GiveUp()
		return
	default:
		p.good.Fail(at)
		return
	}
	tokens := l.N
	if l.Flags&timeline.FlagNoCount != 0 {
		tokens = -1
	}
	p.good.Add(at, func(name slo.Latency) timeline.Measure { return paceOf(r, l, name) }, tokens)
	for i, o := range p.cfg.Objectives {
		p.shares[i].Units++
		switch {
		case o.Latency == slo.ITL && !r.PrefillOnly():
			kept := 0
			for _, gap := range l.ITL {
				if gap < o.Limit.Seconds() {
					kept++
				}
			}
			p.shares[i].Add(at, kept, len(l.ITL))
		case o.Latency == slo.ITL:
		default:
			p.hold(i, r, at, latencyOf(l, o.Latency))
		}
	}
}

// hold holds a request's latency against the limit of an objective. Those that asked for one token have a TTFT alone.
func (p *pool) hold(i int, r *timeline.Request, at timeline.Instant, m timeline.Measure) {
	o := p.cfg.Objectives[i]
	if !m.OK() || o.Latency != slo.TTFT && r.PrefillOnly() {
		return
	}
	kept := 0
	if m.Value < o.Limit.Seconds() {
		kept = 1
	}
	p.shares[i].Add(at, kept, 1)
}

// latencyOf returns a request's latency by name.
func latencyOf(l *latency.Record, name slo.Latency) timeline.Measure {
	switch name {
	case slo.TTFT:
		return l.TTFT
	case slo.TPOT:
		return l.TPOT
	case slo.E2E:
		return l.E2E
	case slo.ITL:
	}
	return timeline.Absent("it has many")
}

// paceOf returns what a bound of goodput is on. A request of one token has no pace, and none that could be too slow.
func paceOf(r *timeline.Request, l *latency.Record, name slo.Latency) timeline.Measure {
	m := latencyOf(l, name)
	if name == slo.TPOT && (r.PrefillOnly() || m.Why == latency.WhyOneToken || m.Why == latency.WhyAllInFirst) {
		return timeline.Known(0)
	}
	return m
}

// judge puts what became of the objectives into the report; the rates are over so many seconds.
func (p *pool) judge(r *Report, cfg *Config, seconds float64) {
	for i, o := range cfg.Objectives {
		s, stat := p.of(r, o.Latency)
		v := slo.Values{N: s.values.Len(), Why: stat.Absent, Quantile: s.values.Quantile, Max: s.max, Alike: p.alike()}
		v.Mean, _ = s.mean.Mean()
		if iv := stat.CI95Mean; stat.OK() && iv.OK() {
			v.MeanCI = &iv.Value
		}
		share := p.shares[i]
		if o.Latency != slo.ITL {
			share.Units = 0 // each value is a request's own
		}
		r.SLO = append(r.SLO, slo.Judge(o, &share, &v))
	}
	if len(r.SLO) > 0 {
		r.SLOOutcome = slo.Worst(r.SLO)
	}
	if len(cfg.Goodput) > 0 {
		g := p.good.Goodput(seconds, p.alike())
		r.Goodput = &g
	}
}

// of returns a latency's values, and what the report says of them.
func (p *pool) of(r *Report, name slo.Latency) (*series, *Stat) {
	switch name {
	case slo.TTFT:
		return p.ttft, &r.TTFT
	case slo.ITL:
		return p.itl, &r.ITL
	case slo.E2E:
		return p.e2e, &r.E2E
	case slo.TPOT:
	}
	return p.tpot, &r.TPOT
}

// measured returns how long the report's span is without the warm-up that was asked for.
func (b *Builder) measured() float64 {
	start := b.span.Start
	if b.cfg.Warmup > 0 {
		start = max(start, b.start.Add(b.cfg.Warmup))
	}
	return max(0, b.span.End.Sub(start)).Seconds()
}
