package summary

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
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
}

// bin is a group's place; concurrency is -1 where it is not known.
type bin struct{ length, concurrency int }

func newPool(exact int) *pool {
	return &pool{
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
	p.level = max(p.level, levelOf(r.Client))
	if r.PromptKnown {
		p.prompt += float64(r.PromptTokens)
	} else {
		p.promptUnknown++
	}
	if warm || r.Status != timeline.StatusOK {
		return
	}
	p.measure(ph)
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

// levelOf is the evidence that a kind of observer gives.
func levelOf(client string) timeline.EvidenceLevel {
	switch client {
	case "tap", "capture":
		return timeline.L2
	case "span", "otlp":
		return timeline.L1
	}
	return timeline.L3
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
