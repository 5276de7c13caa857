package exporters_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
)

const second = timeline.Instant(time.Second)

// cell returns second i of a target that decodes on one GPU.
func cell(i int, target, uuid string, label timeline.Label) correlate.Cell {
	c := correlate.Cell{
		Target: target, Span: timeline.Span{Start: timeline.Instant(i) * second, End: timeline.Instant(i+1) * second},
		Tokens: 90, OutputTokens: timeline.Known(100), PromptTokens: timeline.Absent("not told"), Decode: true,
		Batch: timeline.Known(8), Verdict: verdict.Verdict{Label: label, Shares: timeline.Shares{Memory: 0.75, Other: 0.25}},
		WindowTPOT: timeline.Absent("no tokens"), Waiting: timeline.Known(0), Coverage: timeline.Known(0.9),
		KVUsage: timeline.Absent("not told"), Preemptions: timeline.Absent("not told"), Steps: timeline.Known(12),
		EngineTPOT: timeline.Absent("not told"), DRAMBytes: timeline.Known(1e12), ModelledBytes: timeline.Absent("no model"),
	}
	p := correlate.GPUCell{UUID: uuid, CoveredS: 0.9, Windows: 9, DRAMBytes: timeline.Known(1e12), ThrottledS: map[string]float64{"sw_power_cap": 0.25}}
	p.Counters[timeline.SMUtil] = correlate.Mean{Value: 0.5, CoveredS: 0.9}
	p.Counters[timeline.Power] = correlate.Mean{Value: 600, CoveredS: 1}
	p.Counters[timeline.NVLinkTx] = correlate.Mean{Value: 5e9, CoveredS: 1}
	c.PerGPU = []correlate.GPUCell{p}
	return c
}

// values returns all series by name and label values.
func values(s *exporters.State) map[string]float64 {
	m := map[string]float64{}
	for _, x := range s.Append(nil) {
		v := x.Value
		if x.Buckets != nil {
			v = float64(x.Buckets.Count)
		}
		m[exporters.Lookup(x.ID).Prom+"{"+strings.Join(x.Labels, ",")+"}"] = v
	}
	return m
}

func check(t *testing.T, s *exporters.State, want map[string]float64) {
	t.Helper()
	got := values(s)
	for k, w := range want {
		g, ok := got[k]
		switch {
		case math.IsNaN(w) && ok:
			t.Errorf("%s = %g, want no series", k, g)
		case !math.IsNaN(w) && (!ok || math.Abs(g-w) > 1e-9*math.Abs(w)):
			t.Errorf("%s = %g (there: %v), want %g", k, g, ok, w)
		}
	}
}

var absent = math.NaN()

func TestWhatIntegratesGrowsByCells(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	for i := range 4 {
		label := timeline.Memory
		if i == 3 {
			label = timeline.Undetermined
		}
		c := cell(i+10, "llama", "GPU-a", label)
		s.AddCell(&c)
	}
	check(t, s, map[string]float64{
		"tpotscope_gpu_dram_bytes_total{GPU-a,llama}":                     4e12,
		"tpotscope_gpu_sm_active_seconds_total{GPU-a,llama}":              1.8,
		"tpotscope_gpu_tensor_active_seconds_total{GPU-a,llama}":          absent,
		"tpotscope_gpu_covered_seconds_total{GPU-a,llama}":                3.6,
		"tpotscope_gpu_throttled_seconds_total{GPU-a,llama,sw_power_cap}": 1,
		"tpotscope_gpu_throttled_seconds_total{GPU-a,llama,hw_thermal}":   0,
		"tpotscope_gpu_power_watts{GPU-a,llama}":                          600,
		"tpotscope_gpu_temperature_celsius{GPU-a,llama}":                  absent,
		"tpotscope_gpu_nvlink_sent_bytes_total{GPU-a,llama}":              2e10,
		"tpotscope_gpu_nvlink_received_bytes_total{GPU-a,llama}":          absent,
		"tpotscope_gpu_pcie_generation{GPU-a,llama}":                      absent,
		"tpotscope_gpu_xids_total{GPU-a,llama}":                           absent,
		"tpotscope_decode_seconds_total{llama,memory}":                    3,
		"tpotscope_decode_seconds_total{llama,undetermined}":              1,
		"tpotscope_decode_seconds_total{llama,host}":                      0,
		"tpotscope_decode_share_seconds_total{llama,memory}":              2.25,
		"tpotscope_tokens_total{llama,output}":                            400,
		"tpotscope_tokens_total{llama,observed}":                          360,
		"tpotscope_tokens_total{llama,prompt}":                            0,
		"tpotscope_steps_total{llama}":                                    48,
		"tpotscope_preemptions_total{llama}":                              absent,
		"tpotscope_batch{llama}":                                          8,
		"tpotscope_kv_cache_usage_ratio{llama}":                           absent,
		"tpotscope_dram_bytes_total{llama}":                               absent,
		"tpotscope_target_info{llama,,,L0,false}":                         1,
		"tpotscope_requests_total{llama,ok}":                              0,
	})
}

func TestAGaugeGoesAwayWithItsReading(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard})
	c := cell(1, "llama", "GPU-a", timeline.Memory)
	s.AddCell(&c)
	check(t, s, map[string]float64{"tpotscope_batch{llama}": 8})
	c = cell(2, "llama", "GPU-a", timeline.Memory)
	c.Batch = timeline.Absent("engine down")
	s.AddCell(&c)
	check(t, s, map[string]float64{"tpotscope_batch{llama}": absent})
}

func TestGPUSeriesGoWithTheSamplerAndComeBackWithSamples(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard})
	gpus := []timeline.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}
	batch := func(i int, covered bool, events ...timeline.Event) {
		t.Helper()
		b := exporters.Batch{GPUs: gpus, Events: events}
		for _, g := range gpus {
			c := cell(i, "t-"+g.UUID, g.UUID, timeline.Memory)
			if !covered {
				c.PerGPU[0] = correlate.GPUCell{UUID: g.UUID, DRAMBytes: timeline.Absent("no windows")}
			}
			b.Cells = append(b.Cells, c)
		}
		if err := s.Consume(&b); err != nil {
			t.Fatal(err)
		}
	}
	const a, b = "tpotscope_gpu_dram_bytes_total{GPU-a,t-GPU-a}", "tpotscope_gpu_dram_bytes_total{GPU-b,t-GPU-b}"
	batch(1, true)
	check(t, s, map[string]float64{a: 1e12, b: 1e12})

	batch(2, true, timeline.Event{At: 2*second + second/2, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
	check(t, s, map[string]float64{a: absent, b: absent, "tpotscope_decode_seconds_total{t-GPU-a,memory}": 2})
	batch(3, false)
	check(t, s, map[string]float64{a: absent, b: absent})
	batch(4, true)
	check(t, s, map[string]float64{a: 3e12, b: 3e12})

	batch(5, true, timeline.Event{At: 5*second + 1, Kind: timeline.EventGPULost, GPU: 1})
	check(t, s, map[string]float64{a: 4e12, b: absent})

	// What was read before a loss is no sign that samples are back, even if its cell comes after the word of the loss.
	word := exporters.Batch{Events: []timeline.Event{{At: 6*second + second/2, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU}}}
	if err := s.Consume(&word); err != nil {
		t.Fatal(err)
	}
	batch(6, true)
	check(t, s, map[string]float64{a: absent, b: absent})
	batch(7, true)
	check(t, s, map[string]float64{a: 6e12, b: 6e12})

	// A late word of an old loss hides nothing that has come since.
	batch(8, true, timeline.Event{At: 3 * second, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
	check(t, s, map[string]float64{a: 7e12, b: 7e12})
}

func TestAGPUThatIsNotReadHasNoSeriesAndOneWithoutWindowsComesBack(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	gpus := []timeline.GPU{{UUID: "GPU-a"}}
	batch := func(n int, unread []int, events ...timeline.Event) {
		t.Helper()
		c := cell(n, "main", "GPU-a", timeline.Undetermined)
		c.PerGPU[0].CoveredS = 0
		c.PerGPU[0].Counters[timeline.Power] = correlate.Mean{Value: 300, CoveredS: 1}
		if err := s.Consume(&exporters.Batch{GPUs: gpus, Cells: []correlate.Cell{c}, Unread: unread, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	const power = "tpotscope_gpu_power_watts{GPU-a,main}"
	batch(1, nil)
	check(t, s, map[string]float64{power: 300})
	batch(2, []int{0, 7, -1})
	check(t, s, map[string]float64{power: absent})
	batch(3, nil)
	check(t, s, map[string]float64{power: 300})
	batch(4, nil, timeline.Event{At: 4*second + 1, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU})
	check(t, s, map[string]float64{power: absent})
	batch(5, nil)
	check(t, s, map[string]float64{power: 300})
}

func TestTheTrafficOfASharedGPUIsCountedOnce(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{})
	for i := range 3 {
		for _, target := range []string{"one", "two"} {
			c := cell(i+1, target, "GPU-a", timeline.Undetermined)
			s.AddCell(&c)
		}
	}
	var sum float64
	for k, v := range values(s) {
		if strings.HasPrefix(k, "tpotscope_gpu_dram_bytes_total") {
			sum += v
		}
	}
	if sum != 3e12 {
		t.Errorf("sum over targets is %g, want 3e12", sum)
	}
}

func TestATargetThatStoppedKeepsItsCountersOnly(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard})
	old, young := cell(1, "old", "GPU-a", timeline.Memory), cell(60, "young", "GPU-b", timeline.Memory)
	s.AddCell(&old)
	s.AddCell(&young)
	check(t, s, map[string]float64{
		"tpotscope_tokens_total{old,output}": 100, "tpotscope_batch{old}": absent, "tpotscope_target_info{old,,,L0,false}": absent,
		"tpotscope_gpu_dram_bytes_total{GPU-a,old}": absent, "tpotscope_batch{young}": 8,
	})
}

// phase returns a request that ended at second i.
func phase(i int, tpot float64, change ...func(*correlate.Phase)) correlate.Phase {
	end := timeline.Instant(i) * second
	p := correlate.Phase{Request: timeline.Request{
		Target: "llama", TraceID: fmt.Sprintf("%032x", i), SpanID: fmt.Sprintf("%016x", i), Sampled: true,
		Sent: end - second/2, First: end - second/4, Last: end, Done: end,
	}}
	p.Latency.TPOT, p.Latency.TTFT = timeline.Known(tpot), timeline.Known(0.25)
	p.Latency.ITL = []float64{tpot, 2 * tpot, tpot}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestOnlyGoodRequestsFeedTheHistograms(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full})
	for i, change := range []func(*correlate.Phase){
		func(*correlate.Phase) {},
		func(p *correlate.Phase) { p.Warmup = true },
		func(p *correlate.Phase) { p.Request.Status = timeline.StatusTruncated },
		func(p *correlate.Phase) { p.Request.Status = timeline.StatusCancelled },
		func(p *correlate.Phase) { p.Latency.TPOT = timeline.Absent("one token") },
	} {
		p := phase(i+1, 0.01, change)
		s.AddPhase(&p)
	}
	check(t, s, map[string]float64{
		"tpotscope_tpot_seconds{llama}": 1, "tpotscope_ttft_seconds{llama}": 2, "tpotscope_itl_seconds{llama}": 6,
		"tpotscope_requests_total{llama,ok}": 3, "tpotscope_requests_total{llama,truncated}": 1, "tpotscope_requests_total{llama,cancelled}": 1,
	})
}

func TestReadingsOfTheAgentMustBeInTheCatalogue(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard, Version: "1.2.3"})
	err := s.Consume(&exporters.Batch{Self: []exporters.Self{
		{Name: "tpotscope.ring.drops", Labels: []string{"tokens"}, Value: 3},
		{Name: "tpotscope.ring.drops", Labels: []string{"tokens"}, Value: 4},
		{Name: "tpotscope.agent.cpu_cores", Value: 0.04},
		{Name: "tpotscope.build.info", Labels: []string{"1.2.3"}, Value: 1},
		{Name: "tpotscope.agent.cpu_cores", Labels: []string{"x"}, Value: 1},
		{Name: "tpotscope.batch", Labels: []string{"llama"}, Value: 1},
		{Name: "tpotscope.nonsense", Value: 1},
	}})
	if err == nil || strings.Count(err.Error(), "not in the catalogue") != 3 {
		t.Errorf("Consume() = %v, want three readings refused", err)
	}
	check(t, s, map[string]float64{
		"tpotscope_ring_drops_total{tokens}": 4, "tpotscope_agent_cpu_cores{}": 0.04, "tpotscope_build_info{1.2.3}": 1, "tpotscope_batch{llama}": absent,
	})
}

func exemplars(s *exporters.State) int {
	n := 0
	for _, x := range s.Append(nil) {
		if x.Buckets != nil && x.ID == exporters.TPOT {
			n += len(x.Buckets.Exemplars(0))
		}
	}
	return n
}

func TestSpansInAnIncidentAreBoundedAndTheTellingOnesStay(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Spans: exporters.SpanPolicy{Enabled: true, PerSecond: 0, Burst: 10, SlowTPOT: 50 * time.Millisecond}})
	var ordinary, kept, limited int
	for i := range 40 {
		tpot := 0.01
		if i >= 20 {
			tpot = 0.1
		}
		p := phase(i+1, tpot)
		d := s.AddPhase(&p)
		if d.Keep != (i >= 20) {
			t.Errorf("request %d: keep is %v", i, d.Keep)
		}
		switch {
		case d.Limited && !d.Export:
			limited++
		case d.Keep:
			kept++
		default:
			ordinary++
		}
	}
	if ordinary != 5 || kept != 5 || limited != 30 {
		t.Errorf("%d ordinary, %d kept, %d limited; want 5, 5, 30", ordinary, kept, limited)
	}
	if got := exemplars(s); got != 2 {
		t.Errorf("%d exemplars, want one ordinary and one slow", got)
	}
}

func TestAnUnsampledRequestHasNoSpanAndNoExemplar(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Spans: exporters.SpanPolicy{Enabled: true, PerSecond: 10, Burst: 10}})
	p := phase(1, 0.01, func(p *correlate.Phase) { p.Request.Sampled = false })
	if d := s.AddPhase(&p); d.Export || d.Limited {
		t.Errorf("AddPhase() = %+v, want no span", d)
	}
	if got := exemplars(s); got != 0 {
		t.Errorf("%d exemplars, want none", got)
	}
}

func TestTheBucketRefillsWithTheTimeOfTheRequests(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Spans: exporters.SpanPolicy{Enabled: true, PerSecond: 1, Burst: 1}})
	for i := range 5 {
		p := phase(i+1, 0.01)
		if d := s.AddPhase(&p); !d.Export {
			t.Errorf("request %d is not exported, a second after the last", i)
		}
	}
	p := phase(5, 0.01)
	if d := s.AddPhase(&p); d.Export {
		t.Error("a second request of the same instant is exported beyond the limit")
	}
}

func TestSlowIsTwiceTheUsualWhereNoThresholdIsSet(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Spans: exporters.DefaultSpanPolicy()})
	for i := range 30 {
		p := phase(i+1, 0.02)
		if d := s.AddPhase(&p); d.Keep {
			t.Fatalf("request %d of the usual pace is called slow", i)
		}
	}
	for tpot, want := range map[float64]bool{0.035: false, 0.05: true} {
		p := phase(40, tpot)
		if d := s.AddPhase(&p); d.Keep != want {
			t.Errorf("TPOT %g: keep is %v, want %v", tpot, d.Keep, want)
		}
	}
}

func TestWithoutSpansTheCallersTraceIsTheExemplar(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{})
	own := phase(1, 0.01)
	s.AddPhase(&own)
	if got := exemplars(s); got != 0 {
		t.Errorf("%d exemplars of traces that nobody exports", got)
	}
	called := phase(2, 0.01, func(p *correlate.Phase) { p.Request.ParentID = "00000000000000aa" })
	s.AddPhase(&called)
	for _, x := range s.Append(nil) {
		if x.ID != exporters.TPOT {
			continue
		}
		if e := x.Buckets.Exemplars(0); len(e) != 1 || e[0].SpanID != "00000000000000aa" {
			t.Errorf("exemplars %v, want the caller's span", e)
		}
	}
}

func TestNoSeriesStandsTwice(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Full, Version: "1.2.3"})
	c, p := cell(1, "llama", "GPU-a", timeline.Memory), phase(2, 0.01)
	s.AddCell(&c)
	s.AddPhase(&p)
	if err := s.Consume(&exporters.Batch{Self: []exporters.Self{{Name: "tpotscope.build.info", Labels: []string{"1.2.3"}, Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	if series := s.Append(nil); len(series) != len(values(s)) {
		t.Errorf("%d series have %d names", len(series), len(values(s)))
	}
}

func TestATargetOfASimulationSaysSo(t *testing.T) {
	s := exporters.NewState(exporters.StateConfig{Profile: exporters.Standard})
	device, model := cell(1, "llama", "GPU-1", timeline.Memory), cell(1, "model", "GPU-2", timeline.Memory)
	bare := cell(1, "bare", "", timeline.Memory)
	bare.PerGPU = nil // no GPU is known to be its own
	gpus := []timeline.GPU{{UUID: "GPU-1"}, {UUID: "GPU-2", Simulated: true}}
	if err := s.Consume(&exporters.Batch{GPUs: gpus, Cells: []correlate.Cell{device, model, bare}}); err != nil {
		t.Fatal(err)
	}
	check(t, s, map[string]float64{
		"tpotscope_target_info{llama,,,L0,false}": 1, "tpotscope_target_info{model,,,L0,true}": 1, "tpotscope_target_info{bare,,,L0,true}": 1,
	})
}

func TestLevelsAreThoseThatCanBeHad(t *testing.T) {
	for _, m := range exporters.Catalogue() {
		if m.Level != timeline.L0 && m.Level != timeline.L3 {
			t.Errorf("%s is said to come from %s, which nothing gives", m.Name, m.Level)
		}
	}
}
