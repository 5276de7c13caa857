package timeline_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestSpanAlgebra(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	span := func() timeline.Span {
		return timeline.Span{Start: timeline.Instant(rng.IntN(20)), End: timeline.Instant(rng.IntN(20))}
	}
	for range 20_000 {
		a, b := span(), span()
		in, un := a.Intersect(b), a.Union(b)
		if a.Overlap(b) != b.Overlap(a) {
			t.Fatalf("%v and %v overlap unevenly", a, b)
		}
		if a.Overlap(a) != a.Duration() || a.Duration() < 0 || a.Empty() != (a.Duration() == 0) {
			t.Fatalf("%v does not cover itself", a)
		}
		common := 0
		for i := range timeline.Instant(20) {
			both := a.Contains(i) && b.Contains(i)
			if both {
				common++
			}
			if both != in.Contains(i) {
				t.Fatalf("%d is in one of %v, %v and not in their intersection %v", i, a, b, in)
			}
			if (a.Contains(i) || b.Contains(i)) && !un.Contains(i) {
				t.Fatalf("%d is in %v or %v and not in their union %v", i, a, b, un)
			}
		}
		if time.Duration(common) != a.Overlap(b) {
			t.Fatalf("%v and %v share %d instants, Overlap says %d", a, b, common, a.Overlap(b))
		}
		if !a.Empty() && (a.Mid() < a.Start || a.Mid() >= a.End) {
			t.Fatalf("middle of %v is %d", a, a.Mid())
		}
	}
}

func TestAnchorGoesThereAndBack(t *testing.T) {
	a := timeline.Anchor{Mono: 5_000, Real: 1_700_000_000_000_000_123}
	for _, at := range []timeline.Instant{1, 4_999, 5_000, 900_000_000_000} {
		if got := a.Instant(a.Unix(at)); got != at {
			t.Errorf("instant %d comes back as %d", at, got)
		}
	}
	if got := a.Time(5_000 + timeline.Instant(time.Second)); got.Location() != time.UTC || got.UnixNano() != a.Real+1e9 {
		t.Errorf("Time() = %v", got)
	}
}

func TestMeasureTravelsThroughJSON(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    timeline.Measure
		want string
	}{
		{"a number is a number", timeline.Known(0.0125), `0.0125`},
		{"zero is not absent", timeline.Measure{}, `0`},
		{"absent says why", timeline.Absent("no count"), `{"absent":"no count"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := json.Marshal(tt.m)
			if err != nil || string(b) != tt.want {
				t.Fatalf("Marshal() = %s, %v, want %s", b, err, tt.want)
			}
			back := timeline.Known(99)
			if err := json.Unmarshal(b, &back); err != nil || back != tt.m {
				t.Errorf("comes back as %+v, %v", back, err)
			}
		})
	}
	var m timeline.Measure
	if err := json.Unmarshal([]byte(`null`), &m); err != nil || m.OK() {
		t.Errorf("null reads as %+v, %v, want absent", m, err)
	}
	for _, bad := range []string{`"x"`, `{"absent":3}`, `[1]`, `{}`, `{"absent":""}`} {
		if err := json.Unmarshal([]byte(bad), &m); err == nil {
			t.Errorf("Unmarshal(%s) has no error", bad)
		}
	}
}

func FuzzMeasure(f *testing.F) {
	for _, s := range []string{`0`, ` 12.5e-3 `, `{"absent":"why"}`, `{"absent":""}`, `null`, `{`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m timeline.Measure
		if json.Unmarshal(b, &m) != nil {
			return
		}
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("%q reads as %+v and does not write: %v", b, m, err)
		}
		var back timeline.Measure
		if err := json.Unmarshal(out, &back); err != nil || back != m {
			t.Fatalf("%+v comes back as %+v, %v", m, back, err)
		}
	})
}

func TestNamesComeBack(t *testing.T) {
	seen := map[string]bool{}
	for c := range timeline.Counter(timeline.NumCounters) {
		got, ok := timeline.ParseCounter(c.String())
		if !ok || got != c || seen[c.String()] {
			t.Errorf("counter %d is called %q and comes back as %d, %v", c, c, got, ok)
		}
		seen[c.String()] = true
	}
	for _, c := range []timeline.Confidence{timeline.NoConfidence, timeline.Low, timeline.Medium, timeline.High} {
		b, err := c.MarshalText()
		back := timeline.High
		if e := back.UnmarshalText(b); err != nil || e != nil || back != c {
			t.Errorf("confidence %v comes back as %v", c, back)
		}
	}
	for _, l := range []timeline.EvidenceLevel{timeline.L0, timeline.L1, timeline.L2, timeline.L3} {
		b, err := l.MarshalText()
		back := timeline.L3
		if e := back.UnmarshalText(b); err != nil || e != nil || back != l {
			t.Errorf("level %v comes back as %v", l, back)
		}
	}
	for _, unknown := range []string{"", "nothing", "Sm_util"} {
		if c, ok := timeline.ParseCounter(unknown); ok {
			t.Errorf("ParseCounter(%q) = %v", unknown, c)
		}
	}
}

func TestUnknownValuesHaveANameAndDoNotPanic(t *testing.T) {
	for name, got := range map[string]string{
		"counter":        timeline.Counter(200).String(),
		"engine counter": timeline.EngineCounter(200).String(),
		"host counter":   timeline.HostCounter(200).String(),
		"state":          timeline.State(200).String(),
		"status":         timeline.Status(200).String(),
		"kind":           timeline.TokenKind(200).String(),
		"source":         timeline.CountSource(200).String(),
		"stamp":          timeline.StampSource(200).String(),
		"confidence":     timeline.Confidence(200).String(),
		"level":          timeline.EvidenceLevel(200).String(),
	} {
		if got == "" {
			t.Errorf("an unknown %s has no name", name)
		}
	}
}

func TestSampleHoldsWhatWasPutAndNoMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 500 {
		var s timeline.Sample
		want := map[timeline.Counter]float64{}
		for range rng.IntN(10) {
			c, v := timeline.Counter(rng.IntN(timeline.NumCounters)), rng.Float64()
			s.Put(c, v)
			want[c] = v
		}
		for c := range timeline.Counter(timeline.NumCounters) {
			v, ok := s.Get(c)
			w, has := want[c]
			if ok != has || ok && v != w {
				t.Fatalf("%v reads %v, %v, want %v, %v", c, v, ok, w, has)
			}
		}
	}
	var e timeline.EngineSample
	e.Put(timeline.OutputSecs, 0)
	if v, ok := e.Get(timeline.OutputSecs); !ok || v != 0 {
		t.Error("a counter that reads zero is absent")
	}
	if _, ok := e.Get(timeline.Running); ok {
		t.Error("a counter that was not put has a value")
	}
}

func TestGPMIsWhatIsWindowed(t *testing.T) {
	for c := range timeline.Counter(timeline.NumCounters) {
		if c.Windowed() != timeline.GPM.Has(c) {
			t.Errorf("%v is windowed: %v, in the GPM set: %v", c, c.Windowed(), timeline.GPM.Has(c))
		}
	}
}

func TestThrottlingIsNeitherIdleNorASetting(t *testing.T) {
	want := []string{"sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake"}
	if diff := cmp.Diff(want, timeline.ReasonNames(timeline.ReasonThrottles)); diff != "" {
		t.Errorf("reasons mismatch (-want +got):\n%s", diff)
	}
	if got := timeline.ReasonNames(0); got != nil {
		t.Errorf("no reason reads %v", got)
	}
}

func TestSharesKeepTheirSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var sum timeline.Shares
	var weight float64
	for range 100 {
		var v [5]float64
		total := 0.0
		for i := range v {
			v[i] = rng.Float64()
			total += v[i]
		}
		s := timeline.Shares{Memory: v[0], Compute: v[1], Launch: v[2], Host: v[3], Other: v[4]}.Scale(1 / total)
		if math.Abs(s.Sum()-1) > 1e-12 {
			t.Fatalf("sum %v", s.Sum())
		}
		w := rng.Float64()
		sum, weight = sum.Add(s, w), weight+w
	}
	if got := sum.Scale(1 / weight).Sum(); math.Abs(got-1) > 1e-12 {
		t.Errorf("a weighted mean of shares sums to %v", got)
	}
}

func TestDerivedBandwidth(t *testing.T) {
	// NVIDIA H100 SXM data sheet: 3.35 TB/s; 2619 MHz on 5120 bits.
	g := timeline.GPU{MaxMemClockHz: 2619e6, BusWidthBits: 5120}
	if got := g.DerivedBandwidth(); math.Abs(got/3.352e12-1) > 1e-3 {
		t.Errorf("DerivedBandwidth() = %v", got)
	}
	if got := (timeline.GPU{}).DerivedBandwidth(); got != 0 {
		t.Errorf("an unknown GPU has %v", got)
	}
}

func TestUUIDsCompareWhateverTheirSpelling(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{" gpu-ABCDEF01-2345 ", "GPU-abcdef01-2345"},
		{"MIG-0A1B", "MIG-0a1b"},
		{"ABCDEF01-2345-6789", "abcdef01-2345-6789"},
		{"", ""},
		{"GPU-abcdef01-2345-67", "GPU-abcdef01-2345-67"},
	} {
		got := timeline.NormalizeUUID(tt.in)
		if got != tt.want || timeline.NormalizeUUID(got) != got {
			t.Errorf("NormalizeUUID(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := timeline.ShortUUID("GPU-abcdef01-2345-67"); got != "abcdef01" {
		t.Errorf("ShortUUID() = %q", got)
	}
	if got := timeline.ShortUUID("MIG-abcdef01-2345-67"); got != "MIG-abcdef01" {
		t.Errorf("ShortUUID() = %q", got)
	}
	if got := timeline.ShortUUID("x"); got != "x" {
		t.Errorf("ShortUUID() = %q", got)
	}
}

func TestRequestSpans(t *testing.T) {
	r := timeline.Request{Sent: 10, Head: 12, First: 20, Last: 90}
	if got := r.Over(); got != (timeline.Span{Start: 10, End: 90}) {
		t.Errorf("an open request is over %v, want its last sign of life", got)
	}
	r.Done = 95
	if got := r.Over(); got.End != 95 || r.Decode() != (timeline.Span{Start: 20, End: 90}) {
		t.Errorf("Over() = %v, Decode() = %v", got, r.Decode())
	}
	if r.PrefillOnly() {
		t.Error("a request without a limit is called prefill only")
	}
	r.MaxTokens = 1
	if !r.PrefillOnly() {
		t.Error("a request of one token is not called prefill only")
	}
}

func TestFailure(t *testing.T) {
	failed := map[timeline.Status]bool{
		timeline.StatusHTTPError: true, timeline.StatusInBand: true, timeline.StatusTruncated: true,
		timeline.StatusUpstream: true, timeline.StatusTimeout: true,
	}
	for s := timeline.StatusOK; s <= timeline.StatusUnfinished; s++ {
		if s.Failed() != failed[s] {
			t.Errorf("%v failed: %v", s, s.Failed())
		}
	}
}

func TestRingKeepsTheNewestInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 300 {
		size := rng.IntN(9)
		if rng.IntN(3) == 0 {
			size = rng.IntN(200) // more than a ring begins with
		}
		r := timeline.NewRing[int](size)
		var model []int
		var dropped uint64
		for i := range rng.IntN(60 + 3*size) {
			if rng.IntN(6+size) == 0 {
				limit := i - rng.IntN(10+size)
				r.PopWhile(func(v *int) bool { return *v < limit })
				for len(model) > 0 && model[0] < limit {
					model = model[1:]
				}
				continue
			}
			r.Push(i)
			model = append(model, i)
			if len(model) > size {
				model = model[1:]
				dropped++
			}
		}
		var got []int
		for v := range r.All() {
			got = append(got, *v)
		}
		if !slices.Equal(got, model) || r.Len() != len(model) || r.Dropped() != dropped || r.Cap() != size {
			t.Fatalf("ring of %d holds %v, dropped %d, want %v, dropped %d", size, got, r.Dropped(), model, dropped)
		}
		for i := range model {
			if *r.At(i) != model[i] {
				t.Fatalf("At(%d) = %d, want %d", i, *r.At(i), model[i])
			}
		}
	}
}

func TestRingPushAllocatesNothing(t *testing.T) {
	var s timeline.Sample
	for _, size := range []int{16, 100} {
		r := timeline.NewRing[timeline.Sample](size)
		for range size {
			r.Push(s) // a ring that has been full once has all its room
		}
		if n := testing.AllocsPerRun(100, func() { r.Push(s) }); n != 0 {
			t.Errorf("Push into a ring of %d allocates %v times", size, n)
		}
	}
	var zero timeline.Ring[int]
	zero.Push(1)
	if zero.Len() != 0 || zero.Dropped() != 1 {
		t.Errorf("the zero ring holds %d and dropped %d", zero.Len(), zero.Dropped())
	}
}

func TestRingTakesMemoryForWhatItHolds(t *testing.T) {
	const capacity = 1 << 16
	allocations := testing.AllocsPerRun(10, func() {
		r := timeline.NewRing[timeline.Sample](capacity)
		for range 1000 {
			r.Push(timeline.Sample{})
			r.PopWhile(func(*timeline.Sample) bool { return r.Len() > 20 })
		}
	})
	if allocations > 2 {
		t.Errorf("a ring that holds 20 values at once was grown: %v allocations", allocations)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := timeline.NewRing[timeline.Sample](capacity)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > capacity {
		t.Errorf("an empty ring of %d takes %d bytes", r.Cap(), took)
	}
}

func TestASetYieldsItsCountersInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		set := timeline.CounterSet(rng.Uint64()) & (1<<timeline.NumCounters - 1)
		var want []timeline.Counter
		for c := range timeline.Counter(timeline.NumCounters) {
			if set.Has(c) {
				want = append(want, c)
			}
		}
		if got := slices.Collect(set.All()); !slices.Equal(got, want) {
			t.Fatalf("%b yields %v, want %v", set, got, want)
		}
		for c := range set.All() {
			if c != want[0] {
				t.Fatalf("%b yields %v first, want %v", set, c, want[0])
			}
			break
		}
	}
}

func TestCountersAreOrderedByKind(t *testing.T) {
	if timeline.NumCounters > 63 {
		t.Fatalf("%d counters do not fit into a set", timeline.NumCounters)
	}
	seen := map[string]bool{}
	for c := range timeline.Counter(timeline.NumCounters) {
		if c.Windowed() && c.Cumulative() {
			t.Errorf("%v is both an average and cumulative", c)
		}
		back, ok := timeline.ParseCounter(c.String())
		if !ok || back != c || seen[c.String()] {
			t.Errorf("%d is spelt %q, which reads as %d", c, c, back)
		}
		seen[c.String()] = true
		if c.Unit() == "s" != (c >= timeline.ThrottlePower && c <= timeline.ThrottleSyncBoost) {
			t.Errorf("%v is in %q", c, c.Unit())
		}
	}
}
