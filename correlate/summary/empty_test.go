package summary_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// idleCell returns the i-th second of a target that does nothing.
func idleCell(i int) correlate.Cell {
	c := memoryCell(rand.New(rand.NewPCG(1, 1)), i, 0)
	c.Active, c.Decoding, c.Decode, c.Level, c.Matched.Engine = 0, 0, false, timeline.L0, 0
	c.OutputTokens, c.Batch = timeline.Known(0), timeline.Known(0)
	c.EngineTPOT, c.Coverage = timeline.Absent("no token came"), timeline.Absent("no probe")
	c.Verdict = verdict.Withhold(verdict.ReasonIdle)
	return c
}

func TestAnEmptyReportSaysWhy(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		cfg        summary.Config
		fill       func(b *summary.Builder)
	}{
		{"nothing", "the recording holds no readings", summary.Config{}, func(*summary.Builder) {}},
		{"another target", "no target x: there is llama", summary.Config{Target: "x"}, nil},
		{
			"a span after the end", "nothing lies in the span that was asked for: the recording runs from 2026-11-30 12:00:00 to 2026-11-30 12:01:00 UTC, 1m1s",
			summary.Config{Anchor: anchor(), Since: second(500)},
			nil,
		},
		{"a span before the start", "nothing lies in the span that was asked for: the recording is 1m1s long", summary.Config{Until: second(-5)}, nil},
		{"all warm-up", "the warm-up of 1m30s left nothing of 1m1s", summary.Config{Warmup: 90 * time.Second}, nil},
		{
			"a few requests, all warm-up", "the warm-up of 1m30s left nothing of 2s",
			summary.Config{Warmup: 90 * time.Second},
			func(b *summary.Builder) {
				rng := rand.New(rand.NewPCG(1, 1))
				for i := range 2 {
					c, p := memoryCell(rng, i, 1), phase(float64(i), 40, 0.02)
					b.AddCell(&c)
					b.AddPhase(&p)
				}
			},
		},
		{
			"an idle engine", "nothing decoded: counters were read for 12s, and the engine told of no work for 12s",
			summary.Config{},
			func(b *summary.Builder) {
				for i := range 12 {
					c := idleCell(i)
					b.AddCell(&c)
				}
			},
		},
		{
			"no engine", "nothing decoded: counters were read for 4s, and no engine told of work",
			summary.Config{},
			func(b *summary.Builder) {
				for i := range 4 {
					c := idleCell(i)
					no := timeline.Absent("the engine is not scraped")
					c.OutputTokens, c.Batch, c.PromptTokens, c.Waiting = no, no, no, no
					b.AddCell(&c)
				}
			},
		},
		{"a minute of decode", "", summary.Config{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := recording(tt.cfg, 1)
			if tt.fill != nil {
				b = summary.New(tt.cfg)
				tt.fill(b)
			}
			r := b.Report()
			if r.Empty != tt.want {
				t.Errorf("Empty = %q, want %q", r.Empty, tt.want)
			}
			if tt.want != "" && (r.Decode.Bound != timeline.Undetermined || r.Decode.Reason != tt.want) {
				t.Errorf("decode is %s (%s), want it withheld for the same reason", r.Decode.Bound, r.Decode.Reason)
			}
		})
	}
}

func TestAnIdleEngineIsNotSaidToBeUncounted(t *testing.T) {
	b := summary.New(summary.Config{})
	for i := range 12 {
		c := idleCell(i)
		b.AddCell(&c)
	}
	r := b.Report()
	if !strings.HasPrefix(r.TrafficCoverage.Why, "no probe") || r.Tokens.Source == "probe" || r.Tokens.Output.Value != 0 {
		t.Errorf("coverage %+v, tokens %+v", r.TrafficCoverage, r.Tokens)
	}
}

func TestTheEnginesTokensStandWithoutAProbeThoughItsScrapesLackTheEnds(t *testing.T) {
	b := summary.New(summary.Config{})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 5 {
		c := memoryCell(rng, i, 0)
		c.Active, c.Decoding, c.Level = 0, 0, timeline.L0
		if i == 0 || i == 4 {
			c.OutputTokens = timeline.Absent("no scrapes over this time")
		}
		b.AddCell(&c)
	}
	if k := b.Report().Tokens; k.Source != "engine" || k.Output.Value != 2400 || k.PerSecond.Value != 800 {
		t.Errorf("tokens %+v", k)
	}
}

// TestOneCoverageHoldsForAllOfAReport gives cells whose own coverage is wrong or unknown, as it is at the ends of a
// run, beside counts that agree.
func TestOneCoverageHoldsForAllOfAReport(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	b := summary.New(summary.Config{})
	for i := range 12 {
		c := memoryCell(rng, i, 1)
		c.Coverage = timeline.Known(0.83)
		c.Verdict.Ceiling, c.Verdict.Traffic = timeline.Medium, "the probe saw 83 % of the traffic"
		c.Verdict.Caps = []string{c.Verdict.Traffic}
		b.AddCell(&c)
	}
	r := b.Report()
	if r.TrafficCoverage.Value != 1 || r.Decode.Confidence != timeline.High || len(r.Decode.HeldDown) != 0 || !r.Decode.BytesPerToken.Measured.OK() {
		t.Errorf("coverage %+v, confidence %s, held down by %q, bytes %+v", r.TrafficCoverage, r.Decode.Confidence, r.Decode.HeldDown, r.Decode.BytesPerToken)
	}

	b = summary.New(summary.Config{})
	for i := range 12 {
		c := memoryCell(rng, i, 0.6)
		c.Coverage = timeline.Known(1) // the cells think otherwise
		b.AddCell(&c)
	}
	r = b.Report()
	if r.Decode.Confidence > timeline.Medium || !slices.Equal(r.Decode.HeldDown, []string{"the probe saw 60 % of the traffic"}) {
		t.Errorf("confidence %s, held down by %q", r.Decode.Confidence, r.Decode.HeldDown)
	}
}

func TestOnlyWholeIntervalsInsideTheSpanCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	b := summary.New(summary.Config{Since: second(2), Until: second(8)})
	for i := range 12 {
		c := memoryCell(rng, i, 1)
		c.Matched.Over = timeline.Span{Start: second(float64(i) - 0.9), End: second(float64(i) + 0.1)}
		if i == 2 {
			c.Matched.Probe = 0 // of the interval that begins before the span
		}
		b.AddCell(&c)
	}
	if got := b.Report().TrafficCoverage; got != timeline.Known(1) {
		t.Errorf("coverage %+v, want that of the whole intervals inside", got)
	}
	b = summary.New(summary.Config{Since: second(1), Until: second(3)})
	for i := range 12 {
		c := memoryCell(rng, i, 1.08)
		c.Matched.Over = timeline.Span{Start: second(float64(i) - 0.9), End: second(float64(i) + 0.1)}
		b.AddCell(&c)
	}
	if r := b.Report(); math.Abs(r.TrafficCoverage.Value-1.08) > 1e-9 { // of the three intervals that touch it
		t.Errorf("coverage %+v of two seconds", r.TrafficCoverage)
	}
	b = summary.New(summary.Config{})
	c := memoryCell(rng, 0, 1)
	b.AddCell(&c)
	if r := b.Report(); r.TrafficCoverage.OK() || !strings.Contains(r.TrafficCoverage.Why, "two whole intervals") {
		t.Errorf("coverage %+v of one interval, want it unknown", r.TrafficCoverage)
	}
}

func TestTooManyTokensAreAFindingWhenThatIsClear(t *testing.T) {
	says := func(probe func(i int) float64) bool {
		rng := rand.New(rand.NewPCG(4, 4))
		b := summary.New(summary.Config{})
		for i := range 20 {
			c := memoryCell(rng, i, 1)
			c.Matched.Probe = probe(i)
			b.AddCell(&c)
		}
		return slices.ContainsFunc(b.Report().Warnings, func(w string) bool { return strings.Contains(w, "do not match") })
	}
	if !says(func(int) float64 { return 1000 }) {
		t.Error("a quarter too many in each second is no finding")
	}
	if says(func(i int) float64 { return 200 + 1500*float64(i%2) }) {
		t.Error("six percent too many of what scatters by a factor is a finding")
	}
	if says(func(int) float64 { return 830 }) {
		t.Error("four percent too many are a finding")
	}
}

func TestClausesOfCellsAreSummarised(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	b := summary.New(summary.Config{})
	for i := range 40 {
		c := memoryCell(rng, i, 1)
		if i >= 10 && i < 30 {
			c.Verdict.Ceiling, c.Verdict.Watched = timeline.Medium, timeline.Medium
			c.Verdict.Caps = []string{fmt.Sprintf("measured bytes are %.2f of modelled ones", 0.80+0.01*float64(i-10)), "SM activity is not read"}
		}
		b.AddCell(&c)
	}
	want := []string{"measured bytes are 0.80 to 0.99 of modelled ones in 50 % of the cells, between 10s and 30s", "SM activity is not read"}
	if got := b.Report().Decode.HeldDown; !slices.Equal(got, want) {
		t.Errorf("held down by %q, want %q", got, want)
	}
}

func TestOverlaysHaveTheirShare(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	b := summary.New(summary.Config{})
	for i := range 50 {
		c := memoryCell(rng, i, 1)
		if i < 2 {
			c.Verdict.Overlays = append(c.Verdict.Overlays, timeline.Throttled)
		}
		if i < 20 {
			c.Verdict.Overlays = append(c.Verdict.Overlays, timeline.PrefillInterference)
		}
		b.AddCell(&c)
	}
	d := b.Report().Decode
	if !slices.Equal(d.Overlays, []timeline.Overlay{timeline.PrefillInterference}) {
		t.Errorf("overlays %v, want the one that holds for a tenth of the time", d.Overlays)
	}
	if want := []summary.OverlayPart{{timeline.Throttled, 0.04}, {timeline.PrefillInterference, 0.4}}; !slices.Equal(d.Beside, want) {
		t.Errorf("shares %v, want %v", d.Beside, want)
	}
}

func TestTheSpanIsThatOfTheData(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	b := summary.New(summary.Config{Anchor: anchor()})
	for i := range 73 {
		c := memoryCell(rng, i, 1)
		c.Data = c.Span
		if i == 0 {
			c.Data.Start = second(0.6)
		}
		if i == 72 {
			c.Data.End = second(72.4)
		}
		b.AddCell(&c)
	}
	r := b.Report()
	if s := r.Span.Seconds; s < 71.79 || s > 71.81 {
		t.Errorf("span of %v s, want 71.8", s)
	}
	if d := r.Decode.DecodeS; d < 71.79 || d > 71.81 {
		t.Errorf("%v s of decode, want 71.8", d)
	}
}

func TestEndsThatNobodyRecordedAreSaidFirst(t *testing.T) {
	b := summary.New(summary.Config{})
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range 20 {
		c, p := memoryCell(rng, i, 1), phase(float64(i), 40, 0.02)
		p.Request.Status, p.Request.Done = timeline.StatusUnfinished, 0
		b.AddCell(&c)
		b.AddPhase(&p)
	}
	b.AddFault("read requests-000001.arrows: torn")
	r := b.Report()
	if r.Requests.EndUnknown != 20 || r.Requests.Unfinished != 20 || r.TPOT.Absent != "the ends of 20 requests are not recorded" {
		t.Errorf("requests %+v, TPOT %q", r.Requests, r.TPOT.Absent)
	}
	if len(r.Warnings) < 2 || !strings.HasPrefix(r.Warnings[0], "the ends of 20 of 20 requests") || r.Warnings[1] != r.Faults[0] {
		t.Errorf("warnings %q, faults %q", r.Warnings, r.Faults)
	}
}

func TestCountsAreWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	b := summary.New(summary.Config{})
	for i := range 10 {
		c := memoryCell(rng, i, 1)
		c.OutputTokens, c.PromptTokens = timeline.Known(435.3), timeline.Known(0.1)
		b.AddCell(&c)
	}
	j, err := json.Marshal(b.Report().Tokens)
	if err != nil || !strings.HasPrefix(string(j), `{"output":4353,"prompt":1,`) {
		t.Errorf("tokens %s, %v", j, err)
	}
}

func TestGPUsOfOtherLivesAreLeftOut(t *testing.T) {
	b := recording(summary.Config{}, 1)
	b.SetGPUs([]timeline.GPU{{UUID: "GPU-other"}, {UUID: "GPU-aaaa"}, {UUID: "GPU-third"}})
	if got := b.Report().GPUs; len(got) != 1 || got[0].UUID != "GPU-aaaa" {
		t.Errorf("GPUs %+v, want the one that was read", got)
	}
}
