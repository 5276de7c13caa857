package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// said puts a verdict into words.
func said(d *summary.Decode) string {
	switch d.Bound {
	case timeline.Memory:
		return "Decode is bound by memory bandwidth"
	case timeline.Compute:
		return "Decode is bound by compute"
	case timeline.Balanced:
		return "Decode is near both roofs at once"
	case timeline.Mixed:
		if len(d.Mixture) > 0 && (d.Mixture[0].Label != timeline.Mixed || d.Mixture[0].Share < dominant) {
			return "No single limit dominates decode"
		}
		if d.Reason == summary.ReasonNotCounted {
			return "What bounds decode is not told apart from prompt work: " + d.Reason
		}
		return "Prompts share the decode steps, and no limit dominates"
	case timeline.Host:
		return "Decode waits for the host"
	case timeline.Launch:
		return "Decode is bound by kernel launches"
	case timeline.HostOrLaunch:
		return "Decode waits for the host or for kernel launches"
	case timeline.Communication:
		return "Decode waits for other ranks"
	case timeline.Busy:
		return "Decode keeps the SMs busy, far from either roof"
	case timeline.Undetermined:
	}
	return "What bounds decode is undetermined"
}

// dominant is the part of the decoding time that a label must hold to be that of the whole.
const dominant = 0.6

// headline is the answer in one sentence: what bounded decode, how sure that is, and how fast tokens came.
func headline(r *summary.Report) string {
	d := &r.Decode
	var b strings.Builder
	b.WriteString(said(d))
	switch {
	case d.Bound == timeline.Undetermined && d.Shares.OK() && d.DecodeS > 0: // the counters are there, and none of it leads
		fmt.Fprintf(&b, " (%s: %s)", d.Reason, shareList(d.Shares.Value))
	case d.Bound == timeline.Undetermined:
		fmt.Fprintf(&b, " (%s)", d.Reason)
	default:
		fmt.Fprintf(&b, " (%s, %s confidence)", d.Bound, d.Confidence)
	}
	if r.Empty != "" && d.DecodeS <= 0 {
		b.WriteByte('.')
		return b.String()
	}
	b.WriteString(": ")
	b.WriteString(pace(r))
	b.WriteByte('.')
	return b.String()
}

// pace says how fast tokens came, by clients or else by the engine.
func pace(r *summary.Report) string {
	t := &r.TPOT
	if !t.OK() {
		if e := r.EngineTPOT; e.OK() {
			return "mean TPOT " + latency(e.Value) + " by the engine's own account"
		}
		return "TPOT is unknown (" + t.Absent + ")"
	}
	parts := []string{}
	missing := []string{}
	for _, q := range []struct {
		name string
		m    timeline.Measure
	}{{"p50", t.P50}, {"p90", t.P90}, {"p99", t.P99}} {
		if q.m.OK() {
			parts = append(parts, q.name+nbsp+latency(q.m.Value))
		} else {
			missing = append(missing, q.name)
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "mean"+nbsp+latency(t.Mean.Value))
	}
	s := "TPOT " + strings.Join(parts, ", ") + " over " + plural(t.N, "request")
	if len(missing) > 0 {
		s += ", too few for " + strings.Join(missing, " and ")
	}
	return s
}

// spanRows say what the report is about.
func spanRows(p *page, r *summary.Report) {
	when := seconds(r.Span.Seconds)
	if !r.Span.Start.IsZero() {
		from, to := r.Span.Start.In(p.o.Zone), r.Span.End.In(p.o.Zone)
		clock := "15:04:05"
		if r.Span.Seconds < shortSpan {
			clock = "15:04:05.000"
		}
		end := clock + " MST"
		if from.Format("2006-01-02") != to.Format("2006-01-02") {
			end = "2006-01-02 " + end
		}
		when = from.Format("2006-01-02 "+clock) + " to " + to.Format(end) + ", " + when
	} else if r.Span.Seconds > 0 {
		when += ", at no known time of day"
	}
	if names := slices.DeleteFunc(slices.Clone(r.Targets), func(name string) bool { return name == "" }); len(names) > 0 {
		when += ", " + strings.Join(names, ", ")
	}
	if r.Span.Seconds > 0 || r.Empty == "" {
		p.row("span", must, when)
	}
	if r.Empty != "" {
		text := "none"
		if r.HasEvidence() {
			text = fmt.Sprintf("%s, %s", r.Evidence, sources(r.Evidence))
		}
		p.row("evidence", must, text)
		return
	}
	p.row("evidence", must, fmt.Sprintf("%s, %s; %s", r.Evidence, sources(r.Evidence), coverage(r)))
	q := &r.Requests
	if q.Total > 0 || r.Evidence > timeline.L0 {
		p.row("requests", must, ends(r, p.o.Verbose))
	}
	if p.o.Verbose && q.Total > 0 {
		p.row("warm-up", wanted, q.WarmupRule)
	}
	if q.Total > 0 || r.Tokens.Output.OK() {
		p.row("tokens", useful, tokens(&r.Tokens))
	}
}

// shortSpan is the length in seconds below which times print their milliseconds.
const shortSpan = 10

// ends says how the requests ended, and first of how many nobody knows.
func ends(r *summary.Report, verbose bool) string {
	q := &r.Requests
	parts := []string{}
	if q.EndUnknown > 0 {
		text := "ends not recorded for " + count(float64(q.EndUnknown))
		if len(r.Faults) > 0 {
			text += " (the recording is torn)"
		}
		parts = append(parts, text)
	}
	if q.OK > 0 || q.EndUnknown < q.Total || q.Total == 0 {
		parts = append(parts, count(float64(q.OK))+" ok")
	}
	for _, c := range []struct {
		n    int
		name string
	}{{q.Failed, "failed"}, {q.Truncated, "truncated"}, {q.Cancelled, "cancelled"}, {q.Unfinished - q.EndUnknown, "unfinished"}} {
		if c.n > 0 {
			parts = append(parts, count(float64(c.n))+" "+c.name)
		}
	}
	s := count(float64(q.Total)) + ": " + strings.Join(parts, ", ")
	if q.PrefillOnly > 0 {
		s += fmt.Sprintf("; %s asked for one token", count(float64(q.PrefillOnly)))
	}
	if q.Warmup > 0 {
		s += fmt.Sprintf("; %s left out as warm-up", count(float64(q.Warmup)))
		if !verbose {
			s += " (" + q.WarmupRule + ")"
		}
	}
	return s
}

// coverage says how much of the traffic the probe saw.
func coverage(r *summary.Report) string {
	if c := r.TrafficCoverage; c.OK() {
		return summary.SeenPercent(c.Value) + nbsp + "% of the output tokens seen"
	} else if strings.HasPrefix(c.Why, "no probe") {
		return c.Why
	}
	return "traffic coverage " + absent(r.TrafficCoverage.Why)
}

// sources says what a level rests on.
func sources(l timeline.EvidenceLevel) string {
	switch l {
	case timeline.L0:
		return "the engine's own metrics"
	case timeline.L1:
		return "the engine's spans"
	case timeline.L2:
		return "a passive capture"
	case timeline.L3:
	}
	return "token times at the client"
}

func tokens(t *summary.Tokens) string {
	one := func(m timeline.Measure, what string) string {
		if !m.OK() {
			return what + " " + absent(m.Why)
		}
		return count(m.Value) + " " + what
	}
	s := one(t.Output, "out")
	if t.PerSecond.OK() {
		s += ", " + count(t.PerSecond.Value) + " a second"
	}
	if t.Source != "" && t.Output.OK() {
		s += " by the " + t.Source
	}
	s += "; " + one(t.Prompt, "in prompts")
	if t.PromptSource != "" && t.Prompt.OK() {
		s += " by the " + t.PromptSource
	}
	return s
}
