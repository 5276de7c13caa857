package outlook

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// bytes adds what a cell's steps moved, and the band of what the model expects.
func (t *Tally) bytes(c *correlate.Cell, st roofline.Step, n float64) {
	s := &t.sums
	u := roofline.Unknown{Padding: true, Draft: st.Sequences > 0}
	plain := t.model.Bytes(st, u).Scale(n)
	u.Prefix = true
	shared := t.model.Bytes(st, u).Scale(n)
	own, common := verdict.RhoBand(plain, c.Steps.OK()), verdict.RhoBand(shared, c.Steps.OK())
	s.read, s.estimate = s.read+c.DRAMBytes.Value, s.estimate+plain.Estimate
	s.low, s.high = s.low+own.Low*plain.Estimate, s.high+own.High*plain.Estimate
	s.lowShared, s.highShared = s.lowShared+common.Low*plain.Estimate, s.highShared+common.High*plain.Estimate
	for _, r := range plain.Reasons {
		s.why = s.why.with(r.What, plain.Estimate)
	}
	for _, r := range shared.Reasons {
		s.whyShared = s.whyShared.with(r.What, plain.Estimate)
	}
}

// cause widens the band of so many of the bytes.
type cause struct {
	what  string
	bytes float64
}

// causes stand in the order in which they were met.
type causes []cause

func (cs causes) with(what string, bytes float64) causes {
	i := slices.IndexFunc(cs, func(c cause) bool { return c.what == what })
	if i < 0 {
		return append(cs, cause{what, bytes})
	}
	cs[i].bytes += bytes
	return cs
}

// fewSteps is a part that is not worth a word: while requests come in, a gauge of the batch that lags looks as if tokens were
// drafted.
const fewSteps = 0.1

// told returns the causes that hold for more than a few of the bytes.
func (cs causes) told(all float64) []string {
	var out []string
	for _, c := range cs {
		if c.bytes >= fewSteps*all {
			out = append(out, c.what)
		}
	}
	return out
}

// Traffic is the measured DRAM traffic over what the byte model expects, and where that may lie without being a finding.
type Traffic struct {
	Rho     float64
	Band    timeline.Interval
	Reasons []string // what makes the band wide, beside what counters are off
}

// Traffic returns the traffic of the steps; shared says that sequences have parts of their prompts in common. It is false
// where the model is not known, or no traffic was read.
func (t *Tally) Traffic(shared bool) (Traffic, bool) {
	s := &t.sums
	if s.estimate <= 0 {
		return Traffic{}, false
	}
	out := Traffic{Rho: s.read / s.estimate, Band: timeline.Interval{Low: s.low / s.estimate, High: s.high / s.estimate}, Reasons: s.why.told(s.estimate)}
	if shared {
		out.Band, out.Reasons = timeline.Interval{Low: s.lowShared / s.estimate, High: s.highShared / s.estimate}, s.whyShared.told(s.estimate)
	}
	return out, true
}
