package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

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
	dir := filepath.Join(st.o.Dir, "recording")
	r, err := record.OpenReader(dir)
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
	whole := summary.New(summary.Config{Anchor: anchor})
	whole.SetGPUs(r.Meta().GPUs)
	played := st.played()
	parts := make([]*summary.Builder, len(played))
	for i, p := range played {
		parts[i] = summary.New(summary.Config{Anchor: anchor, Since: st.epoch.Add(p.Span.From), Until: st.epoch.Add(p.Span.To)})
		parts[i].SetGPUs(r.Meta().GPUs)
	}
	tokens, kernel := 0, 0
	_, err = replay.Run(ctx, r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		for _, b := range append(parts, whole) {
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
	res.Report, res.Dir = whole.Report(), dir
	res.Report.Simulated = true
	res.Requests.Seen = res.Report.Requests.Total
	if tokens > 0 {
		res.Requests.KernelStamped = float64(kernel) / float64(tokens)
	}
	for i, p := range played {
		truth := st.tl.Truth(0, p.Span.From, p.Span.To)
		res.Phases = append(res.Phases, comparePhase(p, parts[i].Report(), &truth))
	}
	return nil
}

// played returns the phases that were played to their end.
func (st *stage) played() []scenario.Phase {
	return slices.DeleteFunc(slices.Clone(st.tl.Phases()), func(p scenario.Phase) bool {
		return p.Span.To > st.duration()+time.Second
	})
}

func comparePhase(p scenario.Phase, found *summary.Report, truth *scenario.Truth) Phase {
	d := &found.Decode
	out := Phase{
		Name: p.Name, Found: d.Bound, Confidence: d.Confidence, Overlays: d.Overlays, Truth: truth.Shares,
		Dominant: truth.Dominant.String(), Share: truth.Share,
		FoundTPOT: found.TPOT.Mean, TrueTPOT: truth.TPOT.Seconds(), Throttled: d.ThrottledShare,
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

// agrees reports whether a label is right: the dominant limiter's where one holds 60 % of the time, else a word for a
// mixture.
func agrees(found timeline.Label, truth *scenario.Truth) bool {
	if truth.Share < dominantShare {
		return found == timeline.Mixed || found == timeline.Balanced || found == timeline.Busy
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
	case scenario.LimitOther:
		return found == timeline.Busy || found == timeline.Communication
	}
	return false
}
