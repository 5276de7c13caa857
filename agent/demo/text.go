package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Text writes the comparison for people.
func (r *Result) Text(w io.Writer) error {
	var b strings.Builder
	if len(r.Phases) > 0 {
		r.comparison(&b)
	} else {
		b.WriteString("\nSIMULATED: no phase was played to its end, so that there is nothing to hold\nagainst the truth.\n")
	}
	if r.Partial {
		b.WriteString("interrupted: phases that were not played to their end are left out\n")
	}
	fmt.Fprintf(&b, "\ncounters came through: %s\n", r.Path)
	fmt.Fprintf(&b, "requests: %d sent, %d answered whole, %d seen by the proxy\n", r.Requests.Sent, r.Requests.Answered, r.Requests.Seen)
	fmt.Fprintf(&b, "TPOT on the clients' own clock: p50 %s; kernel-stamped events: %.1f %%\n",
		clientTPOT(r.Requests.ClientTPOT), 100*r.Requests.KernelStamped)
	fmt.Fprintf(&b, "an OTLP receiver got %d requests: %d metrics, %d points, %d spans\n",
		r.Received.Requests, r.Received.Metrics, r.Received.Points, r.Received.Spans)
	b.WriteString(r.Cost.text())
	fmt.Fprintf(&b, "recording: tpotscope report %s\n", r.Dir)
	_, err := io.WriteString(w, b.String())
	return err
}

// comparison is the table of the phases.
func (r *Result) comparison(b *strings.Builder) {
	b.WriteString("\nSIMULATED: found, beside the scenario's truth, which the agent never saw.\n" +
		"Shares of time in %: memory/compute/launch/host/other; TPOT mean, ms.\n\n")
	fmt.Fprintf(b, "%-13s %-8s %-6s %-14s %-14s %-10s %s\n", "phase", "found", "sure", "found", "true", "TPOT/true", "agree")
	for _, p := range r.Phases {
		mark := "yes"
		if !p.Agrees {
			mark = "NO"
		}
		fmt.Fprintf(b, "%-13s %-8s %-6s %-14s %-14s %-10s %s\n", p.Name, p.Found, p.Confidence, shares(p.Shares), shares(p.Truth),
			ms(p.FoundTPOT)+"/"+ms(p.TrueTPOT), mark)
		if len(p.Overlays) > 0 {
			fmt.Fprintf(b, "%-13s also: %s", "", overlays(p.Overlays))
			if p.Throttled.OK() {
				fmt.Fprintf(b, "; clocks held %.0f %%, truth %.0f %%", 100*p.Throttled.Value, 100*p.TrueThrot)
			}
			b.WriteByte('\n')
		}
	}
}

// text says what the agent took. Without a helper there is nothing to tell of one.
func (c Cost) text() string {
	helper := "no helper ran"
	if c.HelperRSS > 0 {
		helper = fmt.Sprintf("helper: %.1f %% of a core, %.0f MB resident", 100*c.HelperCPU, c.HelperRSS/1e6)
	}
	return fmt.Sprintf("%s\nthis process, which also plays server and clients: %.1f %% of a core, %.0f MB\n",
		helper, 100*max(0, c.AgentCores-c.HelperCPU), (c.RSSBytes-c.HelperRSS)/1e6)
}

func shares(s timeline.Shares) string {
	return fmt.Sprintf("%2.0f/%2.0f/%2.0f/%2.0f/%2.0f", 100*s.Memory, 100*s.Compute, 100*s.Launch, 100*s.Host, 100*s.Other)
}

func ms(m timeline.Measure) string {
	if !m.OK() {
		return "-"
	}
	return fmt.Sprintf("%.1f", 1000*m.Value)
}

func clientTPOT(m timeline.Measure) string {
	if !m.OK() {
		return "not defined"
	}
	return fmt.Sprintf("%.2f ms", 1000*m.Value)
}

func overlays(list []timeline.Overlay) string {
	words := make([]string, len(list))
	for i, o := range list {
		words[i] = strings.ReplaceAll(string(o), "_", " ")
	}
	return strings.Join(words, ", ")
}
