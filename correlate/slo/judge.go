package slo

import (
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// level of all intervals.
const level = 0.95

// Outcome is what is said of an objective.
type Outcome string

// The outcomes. A miss or a hit is said only where the interval of what was seen lies on one side of the objective.
const (
	Met       Outcome = "met"
	Missed    Outcome = "missed"
	Undecided Outcome = "undecided" // the sample is too small, or too close to the limit
)

// Worst returns the outcome that stands for all of them: a miss before a doubt, and a doubt before a hit. It is Met for
// none.
func Worst(rs []Result) Outcome {
	worst := Met
	for i := range rs {
		switch rs[i].Outcome {
		case Missed:
			return Missed
		case Undecided:
			worst = Undecided
		case Met:
		}
	}
	return worst
}

// Result is an objective and what became of it.
type Result struct {
	Objective string             `json:"objective"`
	Latency   Latency            `json:"latency"`
	Statistic string             `json:"statistic"`
	LimitS    float64            `json:"limit_s"`
	Value     timeline.Measure   `json:"value_s"` // of the statistic
	N         int                `json:"n"`
	Kept      timeline.Measure   `json:"kept"`                // part of the values below the limit
	KeptCI95  *timeline.Interval `json:"kept_ci95,omitempty"` // nil where there is none
	Needed    float64            `json:"needed,omitempty"`    // part that must be below, of a percentile or a maximum
	MeanCI95  *timeline.Interval `json:"mean_ci95,omitempty"` // of an objective on a mean
	Interval  string             `json:"interval"`            // how the interval was found
	Outcome   Outcome            `json:"outcome"`
	Why       string             `json:"why,omitempty"` // it is undecided, or what a hit does not say
}

// Share is how many values were below a limit, with what is known of how alike values near in time are.
type Share struct {
	Kept, N int
	Units   int // independent of each other at most where time does not tell: requests; zero where each value is one
	over    stats.TimeMean
}

// Add takes n values that came at about instant t, of which so many kept the limit.
func (s *Share) Add(t timeline.Instant, kept, n int) {
	s.Kept, s.N = s.Kept+kept, s.N+n
	s.over.AddSum(t, n, float64(kept))
}

// Interval returns the interval of the share: Wilson's, for as many independent values as vary as much as the share did
// from one stretch of time to the next, each at least as long as alike, the time over which values are alike. It says
// how that number came about.
func (s *Share) Interval(alike time.Duration) (timeline.Interval, string, bool) {
	if s.N == 0 {
		return timeline.Interval{}, "", false
	}
	n := float64(s.N)
	if s.Units > 0 {
		n = min(n, float64(s.Units))
	}
	how := "Wilson, requests assumed independent"
	p := float64(s.Kept) / float64(s.N)
	if iv, ok := s.over.Interval(level, alike); ok && p > 0 && p < 1 {
		se := (iv.High - iv.Low) / 2 / z95
		free := float64(s.N)
		if se > 0 {
			free = min(free, p*(1-p)/(se*se))
		}
		if n = max(1, math.Floor(free)); n < float64(s.N) {
			how = fmt.Sprintf("Wilson, as of %.0f independent values: those near in time are alike", n)
		}
	}
	kept := int(math.Round(p * n))
	if s.Kept < s.N && kept >= int(n) && n > 1 {
		kept = int(n) - 1 // some were over the limit
	}
	iv, ok := stats.Wilson(kept, int(n), level)
	return iv, how, ok
}

// z95 is the half width of a normal 95 % interval in standard deviations.
const z95 = 1.959964

// Values are the distribution of a latency.
type Values struct {
	N        int
	Why      string // there are none
	Quantile func(p float64) (float64, bool)
	Mean     float64
	MeanCI   *timeline.Interval
	Max      float64
	Alike    time.Duration // over which values are alike
}

// Judge says whether o was kept.
func Judge(o Objective, s *Share, v *Values) Result {
	out := Result{
		Objective: o.String(), Latency: o.Latency, Statistic: o.Statistic(), LimitS: o.Limit.Seconds(), N: s.N,
		Value: timeline.Absent(v.Why), Kept: timeline.Absent(v.Why), Outcome: Undecided, Interval: "none",
	}
	if s.N == 0 || v.N == 0 {
		if out.Why = v.Why; out.Why == "" {
			out.Why = "no values"
			out.Value, out.Kept = timeline.Absent(out.Why), timeline.Absent(out.Why)
		}
		return out
	}
	out.Kept = timeline.Known(float64(s.Kept) / float64(s.N))
	if iv, how, ok := s.Interval(v.Alike); ok {
		out.KeptCI95, out.Interval = &iv, how
	}
	switch o.Kind {
	case Mean:
		out.mean(v)
	case Max:
		out.max(v)
	case Percentile:
		out.percentile(o, v)
	}
	return out
}

// mean judges an objective on the mean.
func (r *Result) mean(v *Values) {
	r.Value, r.MeanCI95 = timeline.Known(v.Mean), v.MeanCI
	r.Interval = "by blocks of time"
	switch iv := v.MeanCI; {
	case iv == nil:
		r.Interval = "none"
		r.Why = "the mean has no interval: fewer than ten independent blocks of time"
	case iv.High < r.LimitS:
		r.Outcome = Met
	case iv.Low >= r.LimitS:
		r.Outcome = Missed
	default:
		r.Why = fmt.Sprintf("too close: the mean's 95 %% interval is %s to %s", short(iv.Low), short(iv.High))
	}
}

// max judges an objective on the greatest value. That it was kept is said of the values that were seen alone.
func (r *Result) max(v *Values) {
	r.Value, r.Needed = timeline.Known(v.Max), 1
	if v.Max >= r.LimitS {
		r.Outcome = Missed
		return
	}
	r.Outcome = Met
	if r.KeptCI95 != nil {
		r.Why = fmt.Sprintf("of those seen; up to %s %% of others may exceed it", percent(1-r.KeptCI95.Low))
	}
}

// percentile judges an objective on a percentile.
func (r *Result) percentile(o Objective, v *Values) {
	r.Needed = o.Part
	if x, ok := v.Quantile(o.Part); ok {
		r.Value = timeline.Known(x)
	}
	if r.KeptCI95 == nil {
		r.Why = "the share below the limit has no interval"
		return
	}
	needs := stats.QuantileNeeds(o.Part, level)
	if r.N < needs {
		r.Value = timeline.Absent(fmt.Sprintf("%s needs %d values, there are %d", r.Statistic, needs, r.N))
	}
	switch iv := r.KeptCI95; {
	case iv.Low >= o.Part:
		r.Outcome = Met
	case iv.High < o.Part:
		r.Outcome = Missed
	case r.N < needs:
		r.Why = fmt.Sprintf("too few: %s needs %d values, there are %d", r.Statistic, needs, r.N)
	default:
		r.Why = fmt.Sprintf("too close: %s %% of %d are below, 95 %% interval %s to %s %%",
			percent(r.Kept.Value), r.N, percent(iv.Low), percent(iv.High))
	}
}

// percent writes a part of one in percent.
func percent(x float64) string { return fmt.Sprintf("%.3g", 100*x) }

// short writes seconds with three digits.
func short(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.3g ms", 1e3*s)
	}
	return fmt.Sprintf("%.3g s", s)
}
