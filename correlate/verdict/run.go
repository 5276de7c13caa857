package verdict

import (
	"cmp"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Dominant is the part of the time that a label must hold to be that of all of it.
const Dominant = 0.60

const (
	halfHigh   = 0.05 // widest half of an interval at high confidence
	halfMedium = 0.10
	blockWidth = time.Second // cells hold at least five windows, so that a second is the longer of the two
	determined = 0.5         // of the time, for a run to have a label
)

// Timed is the verdict of one cell and the time it holds.
type Timed struct {
	Verdict Verdict
	Over    timeline.Span
}

// Run says what bounded a run of cells, which stand in order of time. Its label is the one that holds at least 60 % of
// the determined time, else mixed. Its shares are means over the time that was split into shares. Its confidence rests
// on intervals of the deciding quantities over all cells of the label's kind, whatever their own label, so that choosing
// by label does not make the run look surer than it is: over blocks of at least a second, none of fewer than ten.
func Run(cells []Timed) Verdict {
	var all, sure, placed float64
	var out Verdict
	byLabel := map[timeline.Label]float64{}
	for i := range cells {
		c := &cells[i]
		sec := c.Over.Duration().Seconds()
		all += sec
		byLabel[c.Verdict.Label] += sec
		for _, o := range c.Verdict.Overlays {
			if !slices.Contains(out.Overlays, o) {
				out.Overlays = append(out.Overlays, o)
			}
		}
		if c.Verdict.OK() {
			sure += sec
		}
		if !c.Verdict.Placed() {
			continue
		}
		placed += sec
		out.Shares = out.Shares.Add(c.Verdict.Shares, sec)
		out.D, out.C = out.D+sec*c.Verdict.D, out.C+sec*c.Verdict.C
		out.Roof.Low, out.Roof.High = out.Roof.Low+sec*c.Verdict.Roof.Low, out.Roof.High+sec*c.Verdict.Roof.High
	}
	if placed > 0 {
		out.Shares = out.Shares.Scale(1 / placed)
		out.D, out.C, out.Roof.Low, out.Roof.High = out.D/placed, out.C/placed, out.Roof.Low/placed, out.Roof.High/placed
	}
	out.Rank = rankOf(cells)
	if sure <= 0 || sure < determined*all {
		return undecided(cells, out)
	}
	out.Label, out.Reason = timeline.Mixed, ReasonChanging
	for _, l := range timeline.Labels() {
		if l != timeline.Undetermined && byLabel[l] >= Dominant*sure {
			out.Label, out.Reason = l, reasonOf(cells, l)
		}
	}
	judgeRun(cells, &out)
	return out
}

// undecided is the verdict of a run without enough determined time: the reason that took longest, beside the shares of
// what could be split.
func undecided(cells []Timed, v Verdict) Verdict {
	v.Label, v.Reason = timeline.Undetermined, ReasonNoCells
	byReason := map[string]time.Duration{}
	var longest time.Duration
	for i := range cells {
		c := &cells[i]
		if c.Verdict.OK() {
			continue
		}
		byReason[c.Verdict.Reason] += c.Over.Duration()
		if d := byReason[c.Verdict.Reason]; d > longest {
			longest, v.Reason = d, c.Verdict.Reason
		}
	}
	return v
}

// reasonOf is what the cell in the middle of those with that label rests on, by what decides the label. Of cells that are mixed because nobody counts prompts and
// those that are mixed by what was measured, the kind that held longer speaks.
func reasonOf(cells []Timed, l timeline.Label) string {
	var counted, not time.Duration
	var told []*Verdict
	for i := range cells {
		switch c := &cells[i]; {
		case c.Verdict.Label != l:
		case c.Verdict.Reason == ReasonNotCounted:
			not += c.Over.Duration()
		default:
			counted += c.Over.Duration()
			told = append(told, &c.Verdict)
		}
	}
	if not > counted {
		return ReasonNotCounted
	}
	if len(told) == 0 {
		return ""
	}
	kind := told[len(told)/2].Mixed
	high, medium := bounds(l, kind)
	if deciding := slices.Concat(high, medium); len(deciding) > 0 {
		slices.SortStableFunc(told, func(x, y *Verdict) int { return cmp.Compare(deciding[0].of(x), deciding[0].of(y)) })
	}
	return told[len(told)/2].Reason
}

// judgeRun sets confidence, interval and what held the confidence down.
func judgeRun(cells []Timed, out *Verdict) {
	if out.Reason == ReasonChanging { // there is no one quantity that could have an interval
		out.Ceiling, out.Confidence, out.Caps = timeline.Low, timeline.Low, []string{ReasonChanging}
		return
	}
	var kind []Timed
	kind, out.Mixed = like(cells, out.Label)
	out.Ceiling = reach(kind, out.Label)
	for _, c := range kind {
		if c.Verdict.Label != out.Label || c.Verdict.Ceiling > out.Ceiling {
			continue
		}
		for _, why := range c.Verdict.Caps {
			if len(out.Caps) < maxCaps && !slices.Contains(out.Caps, why) {
				out.Caps = append(out.Caps, why)
			}
		}
	}
	out.Confidence = min(out.Ceiling, intervalConfidence(kind, out))
}

// reach returns the most that enough of the cells with that label can reach.
func reach(cells []Timed, l timeline.Label) timeline.Confidence {
	var all float64
	var could [timeline.High + 1]float64 // time of cells that could reach each confidence
	for i := range cells {
		v := &cells[i].Verdict
		if v.Label != l {
			continue
		}
		sec := cells[i].Over.Duration().Seconds()
		all += sec
		for k := timeline.Low; k <= v.Ceiling; k++ {
			could[k] += sec
		}
	}
	ceiling := timeline.Low
	for k := timeline.Low; k <= timeline.High; k++ {
		if could[k] >= reachPart*all {
			ceiling = k
		}
	}
	return ceiling
}

// reachPart is the part of a run's time whose cells must each be able to reach a confidence for the run to have it: a
// few cells at its ends, of which less is known, hold nothing down.
const reachPart = 0.8

// maxCaps bounds the clauses of a run: cells word theirs with their own numbers.
const maxCaps = 8

// like returns the cells of the kind that holds most of the label's time, decode-only or mixed, and which of the two that
// is. A cell in which no share was large enough for a label is of a kind too: without it a run would look surer than it
// is.
func like(cells []Timed, l timeline.Label) ([]Timed, bool) {
	var mixed, plain float64
	for i := range cells {
		c := &cells[i]
		if c.Verdict.Label != l {
			continue
		}
		if c.Verdict.Mixed {
			mixed += c.Over.Duration().Seconds()
		} else {
			plain += c.Over.Duration().Seconds()
		}
	}
	out := make([]Timed, 0, len(cells))
	for i := range cells {
		if c := &cells[i]; c.Verdict.Placed() && c.Verdict.Mixed == (mixed > plain) {
			out = append(out, *c)
		}
	}
	return out, mixed > plain
}

// rankOf returns the rank that the others waited for over a run: the one that cells name, if most of those that name one
// name it; or the one that leads in most of all cells, by more on average than the errors of single cells leave of chance.
func rankOf(cells []Timed) string {
	named, leads, by := map[string]int{}, map[string]int{}, map[string]float64{}
	all, rated := 0, 0
	for i := range cells {
		v := &cells[i].Verdict
		if !v.Placed() {
			continue
		}
		all++
		if v.Rank != "" {
			rated++
			named[v.Rank]++
		}
		if v.Lead != "" {
			leads[v.Lead]++
			by[v.Lead] += v.LeadBy
		}
	}
	best := ""
	for rank, n := range named {
		if float64(n) >= Dominant*float64(rated) && float64(n) >= namedPart*float64(all) {
			best = rank
		}
	}
	if best != "" {
		return best
	}
	for rank, n := range leads {
		if n >= minLeads && float64(n) >= leadPart*float64(all) && by[rank] >= rankSpread*float64(all) {
			best = rank
		}
	}
	return best
}

const (
	namedPart = 0.25 // of a run's cells: fewer that name a rank are chance
	leadPart  = 0.80 // of a run's cells: one of two equal ranks leads in half of them
	minLeads  = 5
)

// intervalConfidence returns what the intervals of the deciding quantities allow.
func intervalConfidence(cells []Timed, out *Verdict) timeline.Confidence {
	high, medium := bounds(out.Label, out.Mixed)
	if len(medium) == 0 || len(cells) == 0 {
		return timeline.Low
	}
	width := cells[0].Over.Duration()
	block := max(1, int((blockWidth+width-1)/max(1, width)))
	if len(cells)/block < stats.MinBlocks {
		out.Caps = append(out.Caps, "fewer than ten blocks of time")
		return timeline.Low
	}
	group := (len(cells) + maxUnits - 1) / maxUnits
	xs := make([]float64, len(cells)/group)
	interval := func(b bound) (timeline.Interval, bool) {
		for i := range xs {
			var sum float64
			for k := range group {
				sum += b.of(&cells[i*group+k].Verdict)
			}
			xs[i] = sum / float64(group)
		}
		return stats.MeanInterval(xs, (block+group-1)/group, 0.95)
	}
	if c, ok := holds(high, interval, halfHigh, out); ok && c {
		return timeline.High
	}
	if c, ok := holds(medium, interval, halfMedium, out); ok && c {
		if len(high) > 0 {
			out.Caps = append(out.Caps, "the interval is wide or crosses a threshold")
		}
		return timeline.Medium
	}
	out.Caps = append(out.Caps, "the interval crosses a threshold")
	return timeline.Low
}

// maxUnits bounds the values of an interval: longer runs are averaged over neighbours first, which only makes the blocks
// longer.
const maxUnits = 1000

// holds reports whether all bounds hold over their whole interval, of which the first is narrow enough. It notes the
// first interval in out.
func holds(bs []bound, interval func(bound) (timeline.Interval, bool), half float64, out *Verdict) (bool, bool) {
	if len(bs) == 0 {
		return false, false
	}
	all := true
	for i, b := range bs {
		iv, ok := interval(b)
		if !ok {
			return false, false
		}
		if i == 0 {
			out.CI = iv
			all = all && (iv.High-iv.Low)/2 <= half
		}
		if all = all && iv.Low >= b.above; !all {
			break
		}
	}
	return all, true
}

// Sheet compares what a device reached with what is achievable of its kind.
type Sheet struct {
	Reached float64 `json:"reached"` // of the achievable DRAM rate, while SMs were busy: the 99th percentile over cells
	Cells   int     `json:"cells"`   // that were memory-bound
	Short   bool    `json:"short"`   // by more than what kernels differ by: a finding
}

// shortOfSheet is what healthy devices reach at least under memory-bound load.
const shortOfSheet = 0.9

// AgainstSheet reports what a device reached in those cells that were memory-bound by decode alone, and false if there are
// too few. What is achievable comes from the kind of the device, never from its own history, which a device that was slow
// from its first boot on would have made its own measure.
func AgainstSheet(cells []Timed) (Sheet, bool) {
	var reached []float64
	for i := range cells {
		v := &cells[i].Verdict
		busy := v.Shares.Memory + v.Shares.Compute + v.Shares.Other
		if v.Label == timeline.Memory && !v.Mixed && busy > 0 {
			reached = append(reached, min(1, v.D/busy))
		}
	}
	if len(reached) < stats.MinBlocks {
		return Sheet{Cells: len(reached)}, false
	}
	slices.Sort(reached)
	p99, _ := stats.Quantile(reached, 0.99, stats.Linear)
	return Sheet{Reached: p99, Cells: len(reached), Short: p99 < shortOfSheet}, true
}
