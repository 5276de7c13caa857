package summary

import (
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// matched is what the probe and the engine counted between the same scrapes, and how that scattered from cell to cell.
type matched struct {
	correlate.Matched
	cells      float64
	pp, pe, ee float64 // sums of squares and products
}

func (m *matched) add(o correlate.Matched) {
	if o.Intervals == 0 {
		return
	}
	m.Add(o)
	m.cells++
	m.pp, m.pe, m.ee = m.pp+o.Probe*o.Probe, m.pe+o.Probe*o.Engine, m.ee+o.Engine*o.Engine
}

// tooMany reports whether the probe clearly counted more than the engine: over the limit by more than what may be on its
// way, and by two standard errors of the ratio (Cochran, Sampling Techniques, chapter 6). Engines that count a request's
// tokens at its end scatter too much for that.
func (m *matched) tooMany() bool {
	if m.cells < 3 || m.Engine <= 0 || m.Probe <= overCoverage*m.Engine+m.Slack {
		return false
	}
	r := m.Probe / m.Engine
	scatter := max(0, m.pp-2*r*m.pe+r*r*m.ee) * m.cells / (m.cells - 1)
	return r-2*math.Sqrt(scatter)/m.Engine > overCoverage
}

// SeenPercent writes traffic coverage in percent, with as many decimals as tell it from the part that is enough.
func SeenPercent(coverage float64) string {
	decimals := 0
	if coverage > 0 && coverage < 0.01 {
		decimals = 1
	}
	return verdict.Below(100*coverage, 100*fullCoverage, decimals)
}

// overCoverage is the part of the engine's output tokens beyond which the probe cannot have seen them.
const overCoverage = 1.05

// coverage returns the probe's part of the engine's output tokens, of what was counted.
func (cs *cells) coverage(p *pool, inside *matched, touching *correlate.Matched) timeline.Measure {
	told := slices.ContainsFunc(cs.names(), func(name string) bool { return cs.byTarget[name].engineS > 0 })
	switch {
	case !told && inside.Intervals == 0:
		return timeline.Absent("the engine's output tokens are not counted")
	case !cs.probed && p.counts.Total == 0:
		return timeline.Absent(noProbe)
	}
	if m := inside.Coverage(); m.OK() {
		return m
	}
	// A span of a few scrapes holds few whole intervals; those across its ends say the same of it.
	return touching.Coverage()
}

// noProbe says that the engine alone was asked, so that no part of the traffic is missing.
const noProbe = "no probe: the engine's own counts cover all traffic"

// engineTPOT returns the engine's own mean.
func (cs *cells) engineTPOT() timeline.Measure {
	if v, ok := cs.engine.Value(); ok {
		return timeline.Known(v)
	}
	return timeline.Absent("the engine tells no inter-token latency")
}

// nobody says why there are no output tokens.
const nobody = "neither the engine nor a probe counts them"

// told is the part of the time in which an engine must have told for its counts to stand for the whole span.
const told = 0.9

const (
	// keptCounts is how many cells' counts wait until it is known whether requests were cut off in them.
	keptCounts = 64
	// cutTogether is how far apart requests end that are cut off at once.
	cutTogether = 250 * time.Millisecond
	// cutTail is how near before such an end a stretch must not come: what winds a load down is under way by then, and
	// one usual interval between scrapes of a second is the last to hold any of it.
	cutTail = 1500 * time.Millisecond
)

// counts are what the probe and the engine counted between scrapes. Where a target's last requests are cut off, the
// engine has counted tokens that no client was left to receive: a stretch at or near that end says nothing of what part
// of the traffic the probe sees.
type counts struct {
	inside   matched           // the report's span
	touching correlate.Matched // also across its ends
	newest   []counted         // not in the sums yet
	cut      map[string]timeline.Instant
	ended    map[string]timeline.Instant // the last request of each target, however it ended
}

// counted is one cell's part.
type counted struct {
	target           string
	m                correlate.Matched
	inside, touching bool
}

func newCounts() counts {
	return counts{cut: map[string]timeline.Instant{}, ended: map[string]timeline.Instant{}}
}

// add takes a cell's counts.
func (c *counts) add(n *counted) {
	if len(c.newest) == keptCounts {
		c.inside, c.touching = c.newest[0].into(c.inside, c.touching)
		c.newest = slices.Delete(c.newest, 0, 1)
	}
	c.newest = append(c.newest, *n)
}

// into returns the sums with n.
func (n *counted) into(inside matched, touching correlate.Matched) (matched, correlate.Matched) {
	if n.inside {
		inside.add(n.m)
	}
	if n.touching {
		touching.Add(n.m)
	}
	return inside, touching
}

// end takes note of the end of a request.
func (c *counts) end(r *timeline.Request) {
	at := r.Over().End
	c.ended[r.Target] = max(c.ended[r.Target], at)
	switch r.Status { //nolint:exhaustive // the other ends cut nothing off
	case timeline.StatusCancelled, timeline.StatusUnfinished, timeline.StatusTruncated:
		c.cut[r.Target] = max(c.cut[r.Target], at)
	}
}

// all returns the counts up to where each target's last requests were cut off.
func (c *counts) all() (matched, correlate.Matched) {
	inside, touching := c.inside, c.touching
	for i := range c.newest {
		n := &c.newest[i]
		cut, ok := c.cut[n.target]
		if ok && c.ended[n.target].Sub(cut) < cutTogether && n.m.Over.End > cut.Add(-cutTail) {
			continue
		}
		inside, touching = n.into(inside, touching)
	}
	return inside, touching
}
