package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/outlook"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/report"
)

var update = flag.Bool("update", false, "rewrite golden files")

func known(v float64) timeline.Measure { return timeline.Known(v) }

// stat returns a distribution about a median.
func stat(n int, p50 float64) summary.Stat {
	s := summary.Stat{N: n, Mean: known(1.02 * p50), P50: known(p50), P90: known(1.15 * p50), P99: known(1.6 * p50), Percentiles: "linear_r7"}
	s.CI95Mean.Value = timeline.Interval{Low: 1.01 * p50, High: 1.03 * p50}
	s.CI95P50.Value = timeline.Interval{Low: 0.99 * p50, High: 1.01 * p50}
	s.CI95P90.Value = timeline.Interval{Low: 1.12 * p50, High: 1.19 * p50}
	s.CI95P99.Value = timeline.Interval{Low: 1.5 * p50, High: 1.8 * p50}
	if n < 368 {
		s.P99 = timeline.Absent(fmt.Sprintf("p99 needs 368 values, there are %d", n))
		s.CI95P99 = summary.Maybe[timeline.Interval]{Why: fmt.Sprintf("needs 368 values, there are %d", n)}
	}
	return s
}

// memory is a quiet report of a memory-bound node.
func memory() *summary.Report {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := &summary.Report{
		Schema: summary.Schema, Span: summary.Span{Start: at, End: at.Add(10 * time.Minute), Seconds: 600}, Targets: []string{"llama-70b"},
		Evidence: timeline.L3, TrafficCoverage: known(0.998),
		Requests: summary.Requests{Total: 4210, OK: 4196, Failed: 3, Cancelled: 11, Warmup: 2, WarmupRule: "the first two requests", TPOTDefined: 4194},
		TPOT:     stat(4194, 0.0213), TPOTN1: stat(4194, 0.0213), TTFT: stat(4194, 0.184), E2E: stat(4194, 11.2), ITL: stat(1_320_400, 0.0207), ICL: stat(1_290_113, 0.0209),
		EngineTPOT: known(0.021),
		Tokens:     summary.Tokens{Output: known(1_324_594), Prompt: known(8_123_400), PerSecond: known(2207.7), Source: "engine"},
		GPUs: []summary.GPU{{
			UUID: "GPU-8f1c2d3e-0000-1111-2222-333344445555", Name: "NVIDIA H100 80GB HBM3", Index: 0,
			DRAM: known(0.771), SM: known(0.92), Tensor: known(0.11), Graphics: known(0.99), SMClockHz: known(1.755e9), PowerW: known(612), Temperature: known(63),
			ThrottledS: map[string]float64{"sw_power_cap": 31.5}, Windows: 5900, CoveredS: 590,
		}},
		Decode: summary.Decode{
			Bound: timeline.Memory, Reason: "DRAM at 86 % of achievable", Confidence: timeline.High,
			Refute:  "a minute at this TPOT reads DRAM below 60 % of achievable",
			Mixture: []correlate.Part{{Label: timeline.Memory, Share: 0.91}, {Label: timeline.Mixed, Share: 0.09}},
			Windows: 5900, DecodeS: 598, CoveredS: 590, ResolutionS: known(0.1), DRAM: known(0.771), SM: known(0.92), Tensor: known(0.11),
			BytesPerStep: summary.Bytes{Measured: known(44.9e9), Modelled: known(43.1e9)}, BytesPerToken: summary.Bytes{Measured: known(1.41e9), Modelled: known(1.35e9)},
			MBU: known(0.74), ThrottledShare: known(0.153), Overlays: []timeline.Overlay{timeline.Throttled, timeline.PrefillInterference},
			Beside: []summary.OverlayPart{{Overlay: timeline.Throttled, Share: 0.2}, {Overlay: timeline.PrefillInterference, Share: 0.31}, {Overlay: timeline.Preempted, Share: 0.04}},
		},
		Groups: []summary.Group{
			{OutputTokens: summary.Range{Low: 64, High: 256}, Concurrency: summary.Maybe[summary.Range]{Value: summary.Range{Low: 1, High: 2}}, Requests: 40, TPOT: stat(40, 0.0142)},
			{OutputTokens: summary.Range{Low: 256, High: 1024}, Concurrency: summary.Maybe[summary.Range]{Value: summary.Range{Low: 32, High: 64}}, Requests: 4000, TPOT: stat(4000, 0.0215)},
			{OutputTokens: summary.Range{Low: 16384}, Concurrency: summary.Maybe[summary.Range]{Why: "concurrency is not known"}, Requests: 154, TPOT: stat(154, 0.0231)},
		},
		Step: outlook.Step{
			MeasuredS: known(0.0204), FloorS: known(0.0142), ExpectedS: known(0.0158), InChunksS: known(0.0166), OverFloor: known(1.437), OverExpected: known(1.291),
			Steps: 29_314, DecodeS: 598, StepsFrom: "engine", Batch: 45.2, Context: 2214, Prompt: 277, Model: "Llama-3.1-70B", DType: "fp8", KVDType: "bf16",
			GPU: "NVIDIA H100 80GB HBM3", TP: 2, Bandwidth: 0.9, Origin: "table", Assumed: []string{"93 % of peak tensor rate achievable", "all-reduces as on four H100"},
		},
		Help: []outlook.Help{
			{What: "kv_fp8", Name: "fp8 KV cache", SavesS: 0.0026, StepS: 0.0204, Part: 0.127, ActsOn: "memory", Share: 0.858, Basis: "byte model, expected"},
			{What: "weights_4bit", Name: "4-bit weights (awq)", SavesS: 0.0024, StepS: 0.0204, Part: 0.118, ActsOn: "memory", Share: 0.858, Basis: "byte model, expected", AtMost: true, Capped: true},
			{What: "host", Name: "host gaps closed", SavesS: 0.00139, StepS: 0.0204, Part: 0.068, ActsOn: "host", Share: 0.068, Basis: "measured share", AtMost: true},
			{What: "prompt", Name: "prompt work on other GPUs", SavesS: 0.00052, StepS: 0.0204, Part: 0.025, ActsOn: "memory, compute", Share: 0.858, Basis: "byte model, expected", AtMost: true},
		},
		Steady:   summary.Steady{Cells: 598, SettledS: known(0), Differs: timeline.Absent("it is steady, or that is not known")},
		Warnings: []string{},
	}
	r.Decode.Rho, r.Decode.RhoBand.Value = known(1.042), timeline.Interval{Low: 0.9, High: 1.27}
	r.Decode.Shares.Value = timeline.Shares{Memory: 0.858, Other: 0.062, Launch: 0.012, Host: 0.068}
	r.Decode.Roof.Value = timeline.Interval{Low: 0.858, High: 0.97}
	return r
}

// partial is a report whose probe saw a part of the traffic, of a sick node.
func partial() *summary.Report {
	r := memory()
	r.TrafficCoverage = known(0.31)
	why := timeline.Absent("traffic coverage is 0.31, below 0.95")
	r.Decode.BytesPerStep.Measured, r.Decode.BytesPerToken.Measured, r.Decode.MBU, r.Decode.Rho = why, why, why, why
	r.Decode.Confidence = timeline.Medium
	r.Decode.HeldDown = []string{"the probe saw 31 % of the traffic", "the interval is wide or crosses a threshold", "achievable bandwidth is assumed"}
	r.TPOT, r.E2E = stat(120, 0.0213), stat(120, 11.2)
	r.TPOT.CI95Mean = summary.Maybe[timeline.Interval]{Why: "fewer than ten independent blocks of time"}
	r.ITL = summary.Stat{Absent: "no request tells the tokens of each event"}
	r.ICL.Flag = "21 % of the token events shared a read and have no stamp of their own"
	r.Warnings = []string{
		"the probe saw 31 % of the engine's output tokens: measured bytes per token are withheld",
		"trusted counter windows cover 82 % of the decoding time",
		"clients see 21.7 ms a token, the engine accounts for 18.0 ms: the rest is on the way",
		"gaps are blurred: 21 % of the token events shared a read",
		"17 of 120 requests: the first event is assumed to have borne one token",
		"3 times: counters are missing over a span",
	}
	return r
}

// engineOnly is a report without a probe, on GPUs whose counters say little.
func engineOnly() *summary.Report {
	r := memory()
	none := summary.Stat{Absent: "no request"}
	r.Evidence, r.Requests = timeline.L0, summary.Requests{WarmupRule: "none"}
	r.TPOT, r.TPOTN1, r.TTFT, r.E2E, r.ITL, r.ICL = none, none, none, none, none, none
	r.TrafficCoverage = timeline.Absent("no probe: the engine's own counts cover all traffic")
	r.Groups = []summary.Group{}
	no := timeline.Absent("legacy counters only")
	d := &r.Decode
	*d = summary.Decode{
		Bound: timeline.Undetermined, Reason: "legacy counters only", Mixture: []correlate.Part{{Label: timeline.Undetermined, Share: 1}},
		DecodeS: 598, ResolutionS: no, DRAM: no, SM: no, Tensor: no, MBU: no, ThrottledShare: known(0),
		BytesPerStep: summary.Bytes{Measured: no, Modelled: no}, BytesPerToken: summary.Bytes{Measured: no, Modelled: no}, Rho: no,
	}
	d.RhoBand.Why = d.Reason
	unknown := timeline.Absent("neither model nor number format is known")
	r.Step = outlook.Step{MeasuredS: known(0.0204), FloorS: unknown, ExpectedS: unknown, InChunksS: unknown, OverFloor: unknown, OverExpected: unknown, StepsFrom: "engine"}
	r.Help = nil
	d.Shares.Why, d.Roof.Why = d.Reason, d.Reason
	r.GPUs[0] = summary.GPU{UUID: "GPU-1", Name: "Tesla T4", DRAM: no, SM: no, Tensor: no, Graphics: no, SMClockHz: known(1.59e9), PowerW: known(69), Temperature: known(70)}
	r.Warnings = []string{"only duty cycles are read on this GPU: they say nothing of bandwidth"}
	return r
}

// simulated is a report of eight simulated GPUs.
func simulated() *summary.Report {
	r := memory()
	r.Simulated = true
	r.Warnings = []string{"simulated: these are figures of a model, not of a GPU", "2 targets are put together: their TPOT need not be alike"}
	r.Targets = []string{"llama-a", "llama-b"}
	g := r.GPUs[0]
	r.GPUs = nil
	for i := range 8 {
		h := g
		h.Index, h.UUID, h.Simulated = i, fmt.Sprintf("GPU-%08d-sim", i), true
		h.DRAM, h.SMClockHz = known(0.77+0.005*float64(i)), known(1.755e9-20e6*float64(i))
		r.GPUs = append(r.GPUs, h)
	}
	return r
}

// changing is a report of a node whose limit changed.
func changing() *summary.Report {
	r := memory()
	d := &r.Decode
	d.Bound, d.Confidence, d.Reason = timeline.Mixed, timeline.Low, "no label holds 60 % of the time: it changes over time, and --since and --until ask about a part"
	d.Mixture = []correlate.Part{{Label: timeline.Memory, Share: 0.55}, {Label: timeline.Host, Share: 0.45}}
	d.OverTime = []summary.Stretch{
		{Label: timeline.Memory, StartS: 0, EndS: 290, Seconds: 290, Share: 0.48},
		{Label: timeline.Host, StartS: 290, EndS: 560, Seconds: 270, Share: 0.45},
		{Label: timeline.Memory, StartS: 560, EndS: 600, Seconds: 40, Share: 0.07},
	}
	return r
}

// asked is a report that was asked for objectives.
func asked() *summary.Report {
	r := memory()
	r.SLO = []slo.Result{
		{Objective: "tpot.p90<25ms", Outcome: slo.Met, LimitS: 0.025, N: 4194, Value: known(0.0245), Kept: known(0.931), KeptCI95: &timeline.Interval{Low: 0.919, High: 0.942}, Needed: 0.9},
		{Objective: "ttft.p99<200ms", Outcome: slo.Missed, LimitS: 0.2, N: 4194, Value: known(0.294), Kept: known(0.88), KeptCI95: &timeline.Interval{Low: 0.861, High: 0.895}, Needed: 0.99},
		{
			Objective: "tpot.p99.9<50ms", Outcome: slo.Undecided, LimitS: 0.05, N: 1200, Value: timeline.Absent("p99.9 needs 3688 values, there are 1200"), Kept: known(1),
			KeptCI95: &timeline.Interval{Low: 0.9968, High: 1}, Needed: 0.999, Why: "too few: p99.9 needs 3688 values, there are 1200",
		},
		{Objective: "itl.max<1s", Outcome: slo.Met, LimitS: 1, N: 1_320_400, Value: known(0.31), Kept: known(1), KeptCI95: &timeline.Interval{Low: 0.9991, High: 1}, Needed: 1, Why: "of those seen; up to 0.09 % of others may exceed it"},
	}
	r.SLOOutcome = slo.Missed
	r.Goodput = &slo.Goodput{
		Bounds: []string{"ttft<200ms", "tpot<25ms"}, Requests: 4197, Good: 3441, Failed: 3, Given: 11, Attained: known(0.82), CI95: &timeline.Interval{Low: 0.79, High: 0.846},
		Seconds: 600, RequestsPerS: known(6.995), GoodRequestsPerS: known(5.735), TokensPerS: known(2206.1), GoodTokensPerS: known(1809.3),
	}
	return r
}

// hostile is a report whose names hold what a terminal would obey.
func hostile() *summary.Report {
	r := memory()
	r.Targets = []string{"\x1b[2Jred\x07", "\u202eevil", strings.Repeat("long", 60)}
	r.GPUs[0].Name = "GPU\r\n\x1b]0;title\x07"
	r.Decode.Reason = "a\x00b"
	return r
}

func cases() map[string]*summary.Report {
	return map[string]*summary.Report{
		"memory": memory(), "partial": partial(), "engine_only": engineOnly(), "simulated": simulated(),
		"changing": changing(), "asked": asked(),
		"empty": summary.New(summary.Config{}).Report(),
	}
}

func text(t *testing.T, r *summary.Report, o report.Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Text(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTextGolden(t *testing.T) {
	for name, r := range cases() {
		for variant, o := range map[string]report.Options{
			"80": {Width: 80}, "120": {Width: 120}, "verbose": {Width: 80, Verbose: true}, "color": {Width: 80, Color: true},
		} {
			t.Run(name+"/"+variant, func(t *testing.T) {
				got := text(t, r, o)
				path := filepath.Join("testdata", name+"."+variant+".golden")
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("page mismatch (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestPageFitsItsTerminal(t *testing.T) {
	all := cases()
	long := partial()
	for i := range 40 {
		long.Warnings = append(long.Warnings, fmt.Sprintf("warning %d of a recording in which whatever could go wrong did, at some length, twice over and then again", i))
	}
	all["long"] = long
	for name, r := range all {
		for _, width := range []int{0, 60, 72, 80, 100, 120, 300} {
			for _, verbose := range []bool{false, true} {
				page := text(t, r, report.Options{Width: width, Verbose: verbose})
				lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
				most := 22
				if name == "asked" {
					most = 24 // objectives come on top, and the page still fits the smallest usual terminal
				}
				if !verbose && len(lines) > most {
					t.Errorf("%s at %d columns has %d lines", name, width, len(lines))
				}
				limit := width
				if width == 0 {
					limit = 80
				}
				for _, l := range lines {
					// The tables are 71 columns wide and are not cut.
					if n := utf8.RuneCountInString(l); n > max(limit, 78) {
						t.Errorf("%s at %d columns: %d columns in %q", name, width, n, l)
					}
					if strings.TrimRight(l, " ") != l {
						t.Errorf("%s at %d columns: trailing space in %q", name, width, l)
					}
				}
			}
		}
	}
}

func TestNothingIsCutSilently(t *testing.T) {
	r := partial()
	for i := range 20 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("warning %d", i))
	}
	if page := text(t, r, report.Options{}); !strings.HasSuffix(page, "more with -v\n") {
		t.Errorf("a page that was cut does not say so:\n%s", page)
	}
	page := text(t, r, report.Options{Verbose: true})
	for _, w := range r.Warnings {
		if !strings.Contains(strings.Join(strings.Fields(page), " "), w) {
			t.Errorf("the verbose page lacks %q", w)
		}
	}
}

func TestHeadline(t *testing.T) {
	for name, want := range map[string]string{
		"memory":      "Decode is bound by memory bandwidth (memory, high confidence): TPOT p50 21.3 ms, p90 24.5 ms, p99 34.1 ms over 4,194 requests.",
		"partial":     "Decode is bound by memory bandwidth (memory, medium confidence): TPOT p50 21.3 ms, p90 24.5 ms over 120 requests, too few for p99.",
		"engine_only": "What bounds decode is undetermined (legacy counters only): mean TPOT 21.0 ms by the engine's own account.",
		"empty":       "What bounds decode is undetermined (the recording holds no readings).",
	} {
		page := strings.Join(strings.Fields(text(t, cases()[name], report.Options{})), " ")
		if !strings.HasPrefix(page, want) {
			t.Errorf("%s: page starts %.200q, want %q", name, page, want)
		}
	}
}

func TestEveryLabelHasItsSentence(t *testing.T) {
	seen := map[string]timeline.Label{}
	for _, l := range timeline.Labels() {
		r := memory()
		r.Decode.Bound = l
		r.Decode.Mixture = []correlate.Part{{Label: l, Share: 1}}
		first, _, _ := strings.Cut(text(t, r, report.Options{Width: 110}), "(")
		if other, ok := seen[first]; ok {
			t.Errorf("%s and %s read alike: %q", l, other, first)
		}
		seen[first] = l
	}
}

func TestMixedSaysWhichOfTwoKinds(t *testing.T) {
	r := memory()
	r.Decode.Bound = timeline.Mixed
	r.Decode.Mixture = []correlate.Part{{Label: timeline.Memory, Share: 0.5}, {Label: timeline.Host, Share: 0.5}}
	if page := text(t, r, report.Options{}); !strings.HasPrefix(page, "No single limit dominates") {
		t.Errorf("half memory and half host reads:\n%s", page)
	}
	r.Decode.Mixture = []correlate.Part{{Label: timeline.Mixed, Share: 0.9}, {Label: timeline.Memory, Share: 0.1}}
	if page := text(t, r, report.Options{}); !strings.HasPrefix(page, "Prompts share") {
		t.Errorf("mixed steps read:\n%s", page)
	}
}

func TestAChangeOverTimeIsShown(t *testing.T) {
	r := changing()
	if page := text(t, r, report.Options{Width: 110}); !strings.Contains(page, "over time   memory 0m00s-4m50s, host 4m50s-9m20s, memory 9m20s-10m00s") {
		t.Errorf("the page does not say what changed when:\n%s", page)
	}
	r.Decode.Bound = timeline.Mixed
	r.Warnings = slices.Repeat([]string{"something that must be known too, in words that take a line or two of a page"}, 5)
	if page := text(t, r, report.Options{Width: 60}); !strings.Contains(page, "over time") {
		t.Errorf("where decode changed the page has no place for when:\n%s", page)
	}
	r.Warnings = nil
	for i := range r.Decode.OverTime {
		s := &r.Decode.OverTime[i]
		s.StartS, s.EndS = s.StartS/10, s.EndS/10
		s.Target = []string{"a", "b"}[min(i, 1)]
	}
	page := text(t, r, report.Options{Width: 110, Verbose: true})
	for _, want := range []string{"over time   a: memory 0-29 s\n", "            b: host 29-56 s, memory 56-60 s\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestUndeterminedPrintsItsShares(t *testing.T) {
	r := memory()
	r.Decode.Bound, r.Decode.Reason = timeline.Undetermined, "no share dominates"
	r.Decode.Shares.Value = timeline.Shares{Memory: 0.4, Host: 0.35, Other: 0.25}
	if page := text(t, r, report.Options{Width: 110}); !strings.Contains(page, "(no share dominates: memory 40 %, host 35 %, other 25 %)") {
		t.Errorf("the headline does not print the shares:\n%s", page)
	}
}

func TestColoursOnlyWhenAsked(t *testing.T) {
	for name, r := range cases() {
		bare := text(t, r, report.Options{})
		if strings.Contains(bare, "\x1b") {
			t.Errorf("%s has escapes without being asked", name)
		}
		coloured := text(t, r, report.Options{Color: true})
		for _, code := range []string{"\x1b[1m\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"} {
			coloured = strings.ReplaceAll(coloured, code, "")
		}
		if trim(coloured) != trim(bare) {
			t.Errorf("%s: colours move words:\n%s", name, cmp.Diff(bare, coloured))
		}
	}
}

// trim takes spaces off the ends of lines: a coloured column keeps its own.
func trim(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestNamesCannotDriveTheTerminal(t *testing.T) {
	for _, verbose := range []bool{false, true} {
		page := text(t, hostile(), report.Options{Verbose: verbose})
		for _, r := range page {
			if r != '\n' && (r < ' ' || r == 0x7f || r == 0x202e) {
				t.Errorf("page holds %U", r)
			}
		}
	}
}

func TestTimesPrintTheirZone(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	if page := text(t, memory(), report.Options{Zone: zone}); !strings.Contains(page, "2026-11-30 13:00:00 to 13:10:00 CET") {
		t.Errorf("page lacks the zone:\n%s", page)
	}
	if page := text(t, memory(), report.Options{}); !strings.Contains(page, "12:10:00 UTC") {
		t.Errorf("page lacks UTC:\n%s", page)
	}
}

func TestJSONIsTheReport(t *testing.T) {
	for name, r := range cases() {
		var b bytes.Buffer
		if err := report.JSON(&b, r); err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b.Bytes(), &m); err != nil || m["schema"] != "tpotscope.report/1" {
			t.Errorf("%s: schema %v, %v", name, m["schema"], err)
		}
	}
}

// full refuses every write.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAFullDiskIsAnError(t *testing.T) {
	if err := report.Text(full{}, memory(), report.Options{}); !errors.Is(err, errFull) {
		t.Errorf("Text() = %v", err)
	}
	if err := report.JSON(full{}, memory()); !errors.Is(err, errFull) {
		t.Errorf("JSON() = %v", err)
	}
	if err := report.HTML(full{}, memory(), report.Options{}); !errors.Is(err, errFull) {
		t.Errorf("HTML() = %v", err)
	}
}
