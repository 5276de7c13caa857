package clock

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// minForSkew is the least number of exchanges whose quickest quarter gives a line.
	minForSkew = 16
	// minSpread is the least time over which a slope of microseconds means anything.
	minSpread = 30 * time.Second
)

// Estimate is what an epoch's exchanges say of the offset. It stays as it is while its estimator goes on.
type Estimate struct {
	Epoch     int
	N         int              // exchanges it rests on
	At        timeline.Instant // on the peer's clock: the newest exchange's end
	Offset    time.Duration    // at At: add to the peer's clock to get the host's
	Bound     time.Duration    // at At: the offset is off by no more, whatever the network did
	Sigma     time.Duration    // spread of single exchanges about the line; zero without a line
	SkewPPM   float64          // how much faster the host's clock runs; zero if SkewKnown is false
	SkewKnown bool

	band band
	line line
}

// Estimate returns the estimate from the exchanges of the current epoch, and false if there are none.
func (e *Estimator) Estimate() (Estimate, bool) {
	if len(e.xs) == 0 {
		return Estimate{}, false
	}
	est := Estimate{
		Epoch: e.epoch, N: len(e.xs), At: e.xs[len(e.xs)-1].T4,
		band: band{slices.Clip(e.xs), e.drift()},
	}
	if l, ok := fit(e.xs, e.drift()); ok {
		est.line, est.SkewKnown = l, true
		est.SkewPPM, est.Sigma = l.slope*1e6, time.Duration(l.sigma)
	}
	off, bound := est.offset(est.At)
	est.Offset, est.Bound = time.Duration(math.Round(off)), time.Duration(math.Ceil(bound))
	return est, true
}

// Local returns the peer's instant on the host's timeline, and the bound of its error. It keeps the order of instants.
func (e Estimate) Local(peer timeline.Instant) (timeline.Instant, time.Duration) {
	off, bound := e.offset(peer)
	return peer + timeline.Instant(math.Round(off)), time.Duration(math.Ceil(bound))
}

// offset returns the offset at the peer's instant t, and the bound of its error, in nanoseconds. Both ends of the band
// and the line move by less than time does, so that no two instants change their order.
func (e Estimate) offset(t timeline.Instant) (value, bound float64) {
	if len(e.band.xs) == 0 {
		return 0, math.MaxInt64 / 2
	}
	lo, hi := e.band.at(t)
	mid := (lo + hi) / 2
	if e.SkewKnown {
		mid = min(max(e.line.at(t), lo), hi)
	}
	return mid, max(hi-mid, mid-lo)
}

// band is the range in which exchanges and drift leave the offset.
type band struct {
	xs    []Exchange
	drift float64
}

// at returns the ends of the band at the peer's instant t.
func (b band) at(t timeline.Instant) (lo, hi float64) {
	lo, hi = math.Inf(-1), math.Inf(1)
	for i := range b.xs {
		x := &b.xs[i]
		hi = min(hi, float64(x.T2-x.T1)+b.drift*math.Abs(float64(t-x.T1)))
		lo = max(lo, float64(x.T3-x.T4)-b.drift*math.Abs(float64(t-x.T4)))
	}
	return lo, hi
}

// line is an offset that changes evenly.
type line struct {
	from        timeline.Instant
	base, slope float64
	sigma       float64
}

func (l line) at(t timeline.Instant) float64 { return l.base + l.slope*float64(t-l.from) }

// fit draws the least-squares line through the exchanges with the shortest round trips, a quarter of all. Queueing
// only ever lengthens a trip, so the quick ones are the ones that tell (the minimum filter of NTP).
func fit(xs []Exchange, drift float64) (line, bool) {
	if len(xs) < minForSkew || xs[len(xs)-1].T4.Sub(xs[0].T1) < minSpread {
		return line{}, false
	}
	best := quickest(xs)
	l := line{from: best[0].T1}
	var mt, mo float64
	for _, x := range best {
		mt += float64(x.mid()-l.from) / float64(len(best))
		mo += float64(x.Offset()) / float64(len(best))
	}
	var tt, to float64
	for _, x := range best {
		dt := float64(x.mid()-l.from) - mt
		tt += dt * dt
		to += dt * (float64(x.Offset()) - mo)
	}
	if math.Sqrt(tt/float64(len(best))) < float64(minSpread)/4 {
		return line{}, false
	}
	l.slope = min(max(to/tt, -drift), drift)
	l.base = mo - l.slope*mt
	var ss float64
	for _, x := range best {
		d := float64(x.Offset()) - l.at(x.mid())
		ss += d * d
	}
	l.sigma = math.Sqrt(ss / float64(len(best)-2))
	return l, true
}

// quickest returns the quarter of the exchanges with the shortest round trips, in the order of time.
func quickest(xs []Exchange) []Exchange {
	out := slices.Clone(xs)
	slices.SortStableFunc(out, func(a, b Exchange) int { return cmp.Compare(a.RTT(), b.RTT()) })
	out = out[:max(4, len(out)/4)]
	slices.SortFunc(out, func(a, b Exchange) int { return cmp.Compare(a.T1, b.T1) })
	return out
}

// mid is the middle of the exchange on the peer's clock.
func (x Exchange) mid() timeline.Instant { return x.T1 + (x.T4-x.T1)/2 }
