package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// compare replays the recording once, into the report of the whole and one of each phase, and puts the truth beside
// them.
func (st *stage) compare(ctx context.Context, res *Result) error {
	r, err := record.OpenReader(st.o.Dir)
	if err != nil {
		return err
	}
	anchor := timeline.Anchor{}
	for a, err := range r.Anchors() {
		if err == nil {
			anchor = *a
			break
		}
	}
	whole := summary.New(summary.Config{Anchor: anchor, Targets: r.Meta().Targets})
	whole.SetGPUs(r.Meta().GPUs)
	played := st.played()
	parts := make([]*summary.Builder, len(played))
	for i, p := range played {
		parts[i] = summary.New(summary.Config{Anchor: anchor, Since: st.epoch.Add(p.Span.From), Until: st.epoch.Add(p.Span.To)})
		parts[i].SetGPUs(r.Meta().GPUs)
	}
	builders := slices.Concat(parts, []*summary.Builder{whole})
	tokens, kernel := 0, 0
	_, err = replay.Run(ctx, r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		for _, b := range builders {
			for i := range o.Cells {
				b.AddCell(&o.Cells[i])
			}
			for i := range o.Phases {
				b.AddPhase(&o.Phases[i])
			}
		}
		for i := range o.Phases {
			tokens += o.Phases[i].Request.Events
			kernel += o.Phases[i].Request.KernelStamped
		}
		return nil
	}, nil)
	if err != nil {
		return fmt.Errorf("replay the demo: %w", err)
	}
	res.Report = whole.Report()
	res.Report.Simulated = true
	res.Requests.Seen = res.Report.Requests.Total
	if tokens > 0 {
		res.Requests.KernelStamped = float64(kernel) / float64(tokens)
	}
	for i, p := range played {
		truth := st.tl.Truth(0, p.Span.From, p.Span.To)
		one := comparePhase(p, parts[i].Report(), &truth)
		one.TrueTPOT = st.trueTPOT(p.Span)
		res.Phases = append(res.Phases, one)
	}
	return nil
}

// played returns the phases that were played to their end.
func (st *stage) played() []scenario.Phase {
	return slices.DeleteFunc(slices.Clone(st.tl.Phases()), func(p scenario.Phase) bool {
		return p.Span.To > min(st.duration(), st.ended.Sub(st.epoch))
	})
}

func comparePhase(p scenario.Phase, found *summary.Report, truth *scenario.Truth) Phase {
	d := &found.Decode
	out := Phase{
		Name: p.Name, Found: d.Bound, Confidence: d.Confidence, Overlays: d.Overlays, Truth: truth.Shares,
		Dominant: truth.Dominant.String(), Share: truth.Share,
		FoundTPOT: found.TPOT.Mean, Throttled: d.ThrottledShare,
		TrueThrot: truth.Throttled.Seconds() / (truth.To - truth.From).Seconds(),
	}
	if !found.TPOT.OK() {
		out.FoundTPOT = timeline.Absent(found.TPOT.Absent)
	}
	if d.Shares.OK() {
		out.Shares = d.Shares.Value
	}
	out.Agrees = agrees(d.Bound, truth)
	return out
}

// trueTPOT is the mean TPOT, by the scenario's own schedule, of the requests that a report of the phase is about: those
// whose decode has its middle in it.
func (st *stage) trueTPOT(span scenario.Span) timeline.Measure {
	sum, n := 0.0, 0
	for _, r := range st.tl.Requests() {
		if len(r.Tokens) < 2 || r.Tokens[len(r.Tokens)-1] > st.duration() {
			continue
		}
		if mid := (r.First() + r.Tokens[len(r.Tokens)-1]) / 2; span.Contains(mid) {
			sum += r.TPOT().Seconds()
			n++
		}
	}
	if n == 0 {
		return timeline.Absent("no request decoded in the phase")
	}
	return timeline.Known(sum / float64(n))
}

// agrees reports whether a label is right: the dominant limiter's where one holds 60 % of the time, else a word for a
// mixture. So close to the line that the counters' own error decides, both are right.
func agrees(found timeline.Label, truth *scenario.Truth) bool {
	mixture := found == timeline.Mixed || found == timeline.Balanced || found == timeline.Busy
	switch {
	case truth.Share < dominantShare-shareSlack:
		return mixture
	case truth.Share < dominantShare+shareSlack && mixture:
		return true
	}
	switch truth.Dominant {
	case scenario.LimitMemory:
		return found == timeline.Memory
	case scenario.LimitCompute:
		return found == timeline.Compute
	case scenario.LimitLaunch:
		return found == timeline.Launch || found == timeline.HostOrLaunch
	case scenario.LimitHost:
		return found == timeline.Host || found == timeline.HostOrLaunch
	case scenario.LimitOther, scenario.LimitComm:
		return found == timeline.Busy || found == timeline.Communication
	}
	return false
}
