package summary

import (
	"encoding/json"
	"fmt"
	"maps"
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
	Percentiles string                   `json:"percentiles"`    // their type
	Flag        string                   `json:"flag,omitempty"` // a doubt about all of it
}

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
	out := Stat{N: n, Percentiles: stats.Linear.String()}
	if !s.values.Exact() {
		out.Percentiles = fmt.Sprintf("sketch, within %.0f %%", 100*stats.Accuracy)
	}
	mean, _ := s.mean.Mean()
	out.Mean = timeline.Known(mean)
	out.P50, out.P90, out.P99 = s.percentile(50), s.percentile(90), s.percentile(99)
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
