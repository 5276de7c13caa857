package summary

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// level of all intervals in a report.
const level = 0.95

// Stat is the distribution of one latency, or the reason why there is none.
type Stat struct {
	Absent      string                   `json:"-"`
	N           int                      `json:"n"`
	Mean        timeline.Measure         `json:"mean"`
	P50         timeline.Measure         `json:"p50"`
	P90         timeline.Measure         `json:"p90"`
	P99         timeline.Measure         `json:"p99"`
	CI95Mean    Maybe[timeline.Interval] `json:"ci95_mean"`
	CI95P50     Maybe[timeline.Interval] `json:"ci95_p50"` // by the binomial law, for values taken as independent
	CI95P90     Maybe[timeline.Interval] `json:"ci95_p90"`
	CI95P99     Maybe[timeline.Interval] `json:"ci95_p99"`
	Intervals   string                   `json:"intervals"`      // how they come about
	Percentiles string                   `json:"percentiles"`    // their type
	Flag        string                   `json:"flag,omitempty"` // a doubt about all of it
}

// How intervals come about.
const (
	byBlocks   = "mean by blocks of time"
	byBinomial = "percentiles by the binomial law, requests assumed independent"
)

// OK reports whether there is a distribution.
func (s Stat) OK() bool { return s.Absent == "" }

// statFields is Stat without its methods.
type statFields Stat

// MarshalJSON writes the distribution, or {"absent": "why"}.
func (s Stat) MarshalJSON() ([]byte, error) {
	if s.Absent != "" {
		return json.Marshal(absent{s.Absent})
	}
	return json.Marshal(statFields(s))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Stat) UnmarshalJSON(b []byte) error {
	var a absent
	if err := json.Unmarshal(b, &a); err != nil {
		return fmt.Errorf("read distribution: %w", err)
	}
	*s = Stat{Absent: a.Absent}
	if a.Absent != "" {
		return nil
	}
	if err := json.Unmarshal(b, (*statFields)(s)); err != nil {
		return fmt.Errorf("read distribution: %w", err)
	}
	return nil
}

// series gathers one latency. Its memory is bounded.
type series struct {
	values *stats.Distribution
	mean   stats.TimeMean
	max    float64
	why    map[string]int // how often it was absent, by reason
}

func newSeries(exact int) *series {
	return &series{values: stats.NewDistribution(exact), why: map[string]int{}}
}

// add takes a latency that was known at instant t.
func (s *series) add(t timeline.Instant, m timeline.Measure) {
	if !m.OK() {
		s.why[m.Why]++
		return
	}
	if s.values.Add(m.Value) {
		s.mean.Add(t, m.Value)
		s.max = max(s.max, m.Value)
	}
}

// addAll takes many values that were known at about instant t.
func (s *series) addAll(t timeline.Instant, xs []float64) {
	var sum float64
	n := 0
	for _, x := range xs {
		if s.values.Add(x) {
			sum += x
			n++
			s.max = max(s.max, x)
		}
	}
	s.mean.AddSum(t, n, sum)
}

// stat returns the distribution. Values within the time alike are held to be alike. None is what to say where nothing
// was even absent.
func (s *series) stat(alike time.Duration, none string) Stat {
	n := s.values.Len()
	if n == 0 {
		return Stat{Absent: s.reasons(none)}
	}
	out := Stat{N: n, Percentiles: stats.Linear.String(), Intervals: byBlocks + "; " + byBinomial}
	if !s.values.Exact() {
		out.Percentiles = fmt.Sprintf("sketch, within %.0f %%", 100*stats.Accuracy)
	}
	mean, _ := s.mean.Mean()
	out.Mean = timeline.Known(mean)
	out.P50, out.P90, out.P99 = s.percentile(50), s.percentile(90), s.percentile(99)
	out.CI95P50, out.CI95P90, out.CI95P99 = s.interval(50), s.interval(90), s.interval(99)
	if iv, ok := s.mean.Interval(level, alike); ok {
		out.CI95Mean.Value = timeline.Interval{Low: max(0, iv.Low), High: iv.High}
	} else {
		out.CI95Mean.Why = "fewer than ten independent blocks of time"
	}
	return out
}

// percentile returns a percentile that the sample bounds on both sides.
func (s *series) percentile(p int) timeline.Measure {
	q := float64(p) / 100
	n, needs := s.values.Len(), stats.QuantileNeeds(q, level)
	if n < needs {
		return timeline.Absent(fmt.Sprintf("p%d needs %d values, there are %d", p, needs, n))
	}
	v, ok := s.values.Quantile(q)
	if !ok {
		return timeline.Absent("no values")
	}
	return timeline.Known(v)
}

// interval returns the interval of a percentile. Of a sketch its ends are as far off as the sketch is.
func (s *series) interval(p int) Maybe[timeline.Interval] {
	q := float64(p) / 100
	n, needs := s.values.Len(), stats.QuantileNeeds(q, level)
	if n < needs {
		return Maybe[timeline.Interval]{Why: fmt.Sprintf("needs %d values, there are %d", needs, n)}
	}
	if s.values.Exact() {
		if iv, ok := stats.QuantileInterval(s.values.Sorted(), q, level); ok {
			return Maybe[timeline.Interval]{Value: iv}
		}
		return Maybe[timeline.Interval]{Why: "no values bound it"}
	}
	// Of so many values the ranks are normal.
	half := 1.96 * math.Sqrt(q*(1-q)/float64(n))
	low, okLow := s.values.Quantile(q - half)
	high, okHigh := s.values.Quantile(q + half)
	if !okLow || !okHigh {
		return Maybe[timeline.Interval]{Why: "no values bound it"}
	}
	return Maybe[timeline.Interval]{Value: timeline.Interval{Low: low * (1 - stats.Accuracy), High: high * (1 + stats.Accuracy)}}
}

// reasons lists why values were absent, the most frequent first.
func (s *series) reasons(none string) string {
	if len(s.why) == 0 {
		return none
	}
	why := slices.SortedFunc(maps.Keys(s.why), func(a, b string) int {
		if d := s.why[b] - s.why[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, 0, len(why))
	for _, w := range why[:min(3, len(why))] {
		parts = append(parts, fmt.Sprintf("%s (%d)", w, s.why[w]))
	}
	if rest := len(why) - len(parts); rest > 0 {
		parts = append(parts, fmt.Sprintf("%d more reasons", rest))
	}
	return strings.Join(parts, "; ")
}

// flight is TPOT of the streams in flight over one cell.
type flight struct {
	over timeline.Span
	tpot float64
}

// paces are those of one target from one source, in order of time: two sources differ by what lies between them, so that
// a series of both would show a change where one of them began. There is a bound to them: of more, every second one is
// kept, then every fourth, and so on.
type paces struct {
	kept         []flight
	stride, skip int
	seconds      float64 // that all are of
}

func (p *paces) add(over timeline.Span, m timeline.Measure) {
	if !m.OK() {
		return
	}
	p.seconds += over.Duration().Seconds()
	if p.skip++; p.skip < p.stride {
		return
	}
	p.skip = 0
	if p.kept = append(p.kept, flight{over, m.Value}); len(p.kept) < maxTimed {
		return
	}
	for i := range maxTimed / 2 {
		p.kept[i] = p.kept[2*i+1]
	}
	p.kept = p.kept[:maxTimed/2]
	p.stride = max(1, p.stride) * 2
}

// settlesFrom is by how much the part before must differ from the rest to be worth a word: the rule cuts off a little of
// any series that varies.
const settlesFrom = 0.05

// steady says from when on the pace of the report's only target is steady.
func (cs *cells) steady(start timeline.Instant) Steady {
	names := cs.names()
	out := Steady{Differs: timeline.Absent("it is steady, or that is not known")}
	if len(names) != 1 {
		out.SettledS = timeline.Absent("not of one target")
		return out
	}
	t := cs.byTarget[names[0]]
	kept := t.seen.kept
	if 2*t.seen.seconds < t.told.seconds { // the probe saw little of it
		kept = t.told.kept
	}
	out.Cells = len(kept)
	xs := make([]float64, len(kept))
	for i := range kept {
		xs[i] = kept[i].tpot
	}
	const least = 5 * stats.MinBlocks
	n, ok := stats.MSER5(xs)
	switch {
	case len(xs) < least:
		out.SettledS = timeline.Absent(fmt.Sprintf("needs %d cells with a TPOT, there are %d", least, len(xs)))
		return out
	case !ok && variation(xs) >= settlesFrom:
		out.SettledS = timeline.Absent(neverSteady)
		return out
	}
	out.SettledS = timeline.Known(0)
	if !ok || n == 0 {
		return out
	}
	before, after := meanOf(xs[:n]), meanOf(xs[n:])
	if after <= 0 || before/after > 1-settlesFrom && before/after < 1+settlesFrom {
		return out
	}
	out.SettledS, out.Differs = number(kept[n].over.Start.Sub(start).Seconds()), number(before/after)
	return out
}

// neverSteady says that the rule found no steady part.
const neverSteady = "TPOT settles in no part of the span"

// variation is the coefficient of variation of means over five cells each, which tells states from noise.
func variation(xs []float64) float64 {
	const batch = 5
	all := meanOf(xs)
	var ss float64
	n := 0
	for ; (n+1)*batch <= len(xs); n++ {
		d := meanOf(xs[n*batch:(n+1)*batch]) - all
		ss += d * d
	}
	if all <= 0 || n == 0 {
		return 0
	}
	return math.Sqrt(ss/float64(n)) / all
}

func meanOf(xs []float64) float64 {
	var s float64
	for _, x := range xs {
		s += x
	}
	return s / float64(len(xs))
}
