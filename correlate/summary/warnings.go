package summary

import (
	"fmt"
	"math/bits"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// pathShare of the probe's TPOT that the engine does not account for is a finding of its own.
const pathShare = 0.1

// warnings lists what a reader must know before trusting the figures, the gravest first.
func (b *Builder) warnings(r *Report, p *pool) []string {
	w := []string{}
	say := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if r.Simulated {
		say("simulated: these are figures of a model, not of a GPU")
	}
	if c := r.TrafficCoverage; c.OK() {
		switch {
		case c.Value < fullCoverage:
			say("the probe saw %.0f %% of the engine's output tokens: measured bytes per token are withheld", 100*c.Value)
		case c.Value > 1.05:
			say("the probe counted %.0f %% of the engine's output tokens: counts or targets do not match", 100*c.Value)
		}
	} else if c.Why != noProbe && (p.counts.Total > 0 || b.cells.count > 0) {
		say("traffic coverage is unknown: %s", c.Why)
	}
	b.decodeWarnings(r, say)
	if t, e := r.TPOT, r.EngineTPOT; t.OK() && e.OK() && t.Mean.Value > (1+pathShare)*e.Value {
		say("clients see %.1f ms a token, the engine accounts for %.1f ms: the rest is on the way", 1e3*t.Mean.Value, 1e3*e.Value)
	}
	if r.ITL.OK() && r.ITL.Flag != "" || r.ICL.OK() && r.ICL.Flag != "" {
		say("gaps are blurred: %.0f %% of the token events shared a read", 100*p.coalescedShare())
	}
	for _, f := range doubts() {
		if n := p.flags[bits.TrailingZeros16(uint16(f.flag))]; n > 0 {
			say("%d of %d requests: %s", n, p.usable(), f.text)
		}
	}
	b.eventWarnings(say)
	return w
}

// decodeWarnings are about the verdict and its counters.
func (b *Builder) decodeWarnings(r *Report, say func(string, ...any)) {
	d := &b.cells.d
	if d.seconds > 0 && d.covered < 0.9*d.seconds {
		say("trusted counter windows cover %.0f %% of the decoding time", 100*d.covered/d.seconds)
	}
	if d.seconds > 0 && d.determined < d.seconds && d.determined > 0 {
		say("no verdict for %.0f %% of the decoding time", 100*(1-d.determined/d.seconds))
	}
	if _, ok := d.counters[timeline.GraphicsUtil].Value(); !ok && d.covered > 0 {
		say("graphics activity is not read: host and launch time are not told apart")
	}
	if d.stepsGuessed {
		say("the engine counts no steps: they are taken as output tokens over batch, one token a request and step")
	}
	if r.Decode.Reason == verdict.ReasonLegacy {
		say("only duty cycles are read on this GPU: they say nothing of bandwidth")
	}
	if len(r.Targets) > 1 {
		say("%d targets are put together: their TPOT need not be alike", len(r.Targets))
	}
}

// doubt is one of a request's flags in words.
type doubt struct {
	flag timeline.Flags
	text string
}

// doubts lists the flags that bear on latencies. Coalesced reads have a warning of their own.
func doubts() []doubt {
	return []doubt{
		{timeline.FlagNoCount, "no token count was told, so that they have no TPOT"},
		{timeline.FlagHiddenTokens, "hidden tokens were counted, and how many is not told"},
		{timeline.FlagFirstAssumed, "the first event is assumed to have borne one token"},
		{timeline.FlagCountMismatch, "token counts by event do not add up to the engine's total"},
		{timeline.FlagBacklog, "tokens had piled up behind a late first event, so that TPOT is low and TTFT high"},
		{timeline.FlagEventsDropped, "token events were dropped, so that they have no gaps"},
		{timeline.FlagUnparsed, "some events were not understood"},
		{timeline.FlagCompressed, "stamps are of a compressed stream"},
		{timeline.FlagMultipleChoices, "several choices share a stream, and TPOT is over all of them"},
		{timeline.FlagUnalignedClock, "their clock could not be tied to this host's"},
	}
}

// eventWarnings are about what happened to the recording.
func (b *Builder) eventWarnings(say func(string, ...any)) {
	for _, e := range []struct {
		kind timeline.EventKind
		text string
	}{
		{timeline.EventSamplerLost, "the counter reader was lost"},
		{timeline.EventGPULost, "a GPU was lost"},
		{timeline.EventGap, "counters are missing over a span"},
		{timeline.EventSuspend, "the host was suspended"},
		{timeline.EventPause, "the host or the agent did not run for a while"},
		{timeline.EventClockStep, "the wall clock was set"},
		{timeline.EventEngineRestart, "the engine was restarted"},
		{timeline.EventEngineDown, "the engine was not reachable"},
		{timeline.EventDropped, "a full queue dropped readings"},
		{timeline.EventCounterSource, "windows of a GPU's activity come from dcgm-exporter, not from the driver"},
		{timeline.EventCounterMismatch, "driver and dcgm-exporter tell different means of one counter"},
	} {
		switch n := b.events[e.kind]; {
		case n == 1:
			say("once: %s", e.text)
		case n > 1:
			say("%d times: %s", n, e.text)
		}
	}
}
