package steps_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func steady() play {
	return play{seed: 3, batch: 12, step: constant(10 * ms), jitter: uniform(ms), length: 100, stretch: 10 * time.Second}
}

func TestNoStepIsLostOrCountedTwiceAtSeams(t *testing.T) {
	p := steady()
	p.step = noisy(7*ms, 0.4)
	tokens, tr := p.run()
	total := 0
	var last timeline.Instant
	for _, r := range read(tokens, false) {
		if !r.Holds {
			t.Fatalf("%v does not hold: %s", r.Over, r.Reason)
		}
		total += r.Steps
		last = r.Over.End
	}
	want := 0
	for _, at := range tr.ends {
		if at < last {
			want++
		}
	}
	// The last step waits for the next stretch, and one at the very end may come after it by its jitter.
	if total > want || total < want-2 {
		t.Errorf("%d steps read, the engine made %d", total, want)
	}
}

func TestOrderWithinAStretchDoesNotMatter(t *testing.T) {
	p := steady()
	tokens, _ := p.run()
	want := read(tokens, false)
	r := rand.New(rand.NewPCG(9, 9))
	end := begin.Add(time.Second)
	for from := 0; from < len(tokens); {
		to := from
		for to < len(tokens) && tokens[to].At < end {
			to++
		}
		r.Shuffle(to-from, func(i, k int) { tokens[from+i], tokens[from+k] = tokens[from+k], tokens[from+i] })
		from, end = to, end.Add(time.Second)
	}
	got := read(tokens, false)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("readings of shuffled tokens differ (-in order +shuffled):\n%s", diff)
	}
}

func TestTheSameCallsGiveTheSameReadings(t *testing.T) {
	p := steady()
	tokens, _ := p.run()
	if diff := cmp.Diff(read(tokens, false), read(tokens, false)); diff != "" {
		t.Error(diff)
	}
}

func TestTimeWithoutStreamsIsNoStep(t *testing.T) {
	e := steps.New(steps.DefaultConfig())
	// Two requests, a second apart: the gap between them is no step of a second.
	for i := range 40 {
		e.Add(steps.Token{At: begin.Add(time.Duration(i) * 10 * ms), Stream: 1, Tokens: 1})
		e.Add(steps.Token{At: begin.Add(time.Duration(i)*10*ms + 1500*ms), Stream: 2, Tokens: 1})
	}
	r := e.Cut(steps.Cut{Over: timeline.Span{Start: begin, End: begin.Add(4 * time.Second)}})
	if !r.Holds || r.Steps != 79 || r.Time.Value < 0.00999 || r.Time.Value > 0.01001 {
		t.Errorf("%d steps of %v s, holds %v: %s; want 79 of 0.01", r.Steps, r.Time, r.Holds, r.Reason)
	}
	if r.Context.OK() {
		t.Errorf("the sum of contexts is %v, though none was told", r.Context.Value)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	over := func(i int) timeline.Span {
		return timeline.Span{Start: begin.Add(time.Duration(i) * time.Second), End: begin.Add(time.Duration(i+1) * time.Second)}
	}
	t.Run("events", func(t *testing.T) {
		e := steps.New(steps.Config{MaxEvents: 100, MaxStreams: 10})
		taken := 0
		for i := range 500 {
			if e.Add(steps.Token{At: begin.Add(time.Duration(i) * ms), Stream: uint64(i % 2), Tokens: 1}) {
				taken++
			}
		}
		if taken != 100 {
			t.Errorf("%d events taken, want 100", taken)
		}
		if r := e.Cut(steps.Cut{Over: over(0)}); r.Holds || !strings.Contains(r.Reason, "dropped") || r.Quality.Dropped < 0.7 {
			t.Errorf("holds %v though %.2f were dropped: %s", r.Holds, r.Quality.Dropped, r.Reason)
		}
		if !e.Add(steps.Token{At: begin.Add(1500 * ms), Stream: 1, Tokens: 1}) {
			t.Error("no room after a cut")
		}
	})
	t.Run("streams", func(t *testing.T) {
		e := steps.New(steps.Config{MaxEvents: 1000, MaxStreams: 10})
		taken := 0
		for i := range 50 {
			if e.Add(steps.Token{At: begin.Add(time.Duration(i) * ms), Stream: uint64(i), Tokens: 1}) {
				taken++
			}
		}
		if taken != 10 {
			t.Errorf("%d streams taken, want 10", taken)
		}
		// Streams that are gone make room, at the latest when nothing came of them for some seconds.
		e.Cut(steps.Cut{Over: over(8)})
		for i := 9; i < 60; i++ {
			e.Cut(steps.Cut{Over: over(i)})
			for k := range 100 {
				at := over(i + 1).Start.Add(time.Duration(k) * 10 * ms)
				if !e.Add(steps.Token{At: at, Stream: uint64(100 + i), Tokens: 1}) {
					t.Fatalf("second %d: no room for a stream", i)
				}
			}
		}
	})
	t.Run("late events", func(t *testing.T) {
		e := steps.New(steps.DefaultConfig())
		for i := range 200 {
			e.Add(steps.Token{At: begin.Add(time.Duration(i) * 10 * ms), Stream: 1, Tokens: 1})
		}
		if r := e.Cut(steps.Cut{Over: over(0)}); !r.Holds {
			t.Fatal(r.Reason)
		}
		if e.Add(steps.Token{At: begin.Add(10 * ms), Stream: 2, Tokens: 1}) {
			t.Error("an event of steps that were read is taken")
		}
	})
}

func TestAddAllocatesNothingOnceGrown(t *testing.T) {
	p := steady()
	tokens, _ := p.run()
	e := steps.New(steps.DefaultConfig())
	lap := timeline.Instant(0)
	feed := func() {
		for _, tok := range tokens {
			tok.At += lap
			e.Add(tok)
		}
		lap += timeline.Instant(11 * time.Second)
		e.Cut(steps.Cut{Over: timeline.Span{Start: begin, End: begin + lap}})
	}
	for range 3 {
		feed()
	}
	// What is left is the text of a reason, if any.
	if n := testing.AllocsPerRun(5, feed); n > 8 {
		t.Errorf("%v allocations for %d events", n, len(tokens))
	}
}

// FuzzEstimator feeds arbitrary events: whatever comes, counts are conserved and parts are parts.
func FuzzEstimator(f *testing.F) {
	f.Add([]byte{1, 10, 2, 10, 1, 10, 2, 10, 1, 255, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		e := steps.New(steps.Config{MaxEvents: 64, MaxStreams: 8})
		at, cut, taken := begin, begin, 0
		for i := 0; i+1 < len(in); i += 2 {
			at = at.Add(time.Duration(int8(in[i+1])) * 3 * ms)
			if e.Add(steps.Token{At: at, Stream: uint64(in[i] % 16), Tokens: int32(in[i] >> 4), Context: int32(int8(in[i]))}) {
				taken++
			}
			if in[i]%7 == 0 {
				next := cut.Add(200 * ms)
				check(t, e.Cut(steps.Cut{Over: timeline.Span{Start: cut, End: next}, Speculates: in[i]%2 == 0}), &taken)
				cut = next
			}
		}
		check(t, e.Cut(steps.Cut{Over: timeline.Span{Start: cut, End: cut.Add(time.Hour)}}), &taken)
	})
}

func check(t *testing.T, r steps.Reading, taken *int) {
	t.Helper()
	q := r.Quality
	for _, part := range []float64{q.Absent, q.Doubled, q.Several, q.Dropped} {
		if !(part >= 0 && part <= 1) {
			t.Fatalf("a part of %v: %+v", part, q)
		}
	}
	if r.Holds == (r.Reason != "") || r.Holds && (!r.Time.OK() || !(r.Time.Value > 0)) {
		t.Fatalf("holds %v because %q with steps of %v", r.Holds, r.Reason, r.Time)
	}
	if *taken -= r.Steps; r.Holds && *taken < 0 {
		t.Fatalf("more steps were read than events came")
	}
}

func TestTheEnginesCountStandsAboveArrivals(t *testing.T) {
	over := timeline.Span{Start: begin, End: begin.Add(time.Second)}
	arrivals := steps.Reading{
		Over: over, Source: steps.Arrivals, Steps: 100, Holds: true,
		Time: timeline.Known(0.01), Streams: timeline.Known(8), Context: timeline.Known(900), Tokens: timeline.Known(1),
	}
	engine := steps.Counted(over, 101, time.Second)
	best := steps.Best(engine, arrivals)
	if best.Source != steps.Engine || best.Steps != 101 || best.Streams.Value != 8 {
		t.Errorf("best is %+v", best)
	}
	if d := steps.Disagreement(engine, arrivals); d != "" {
		t.Errorf("a step more or less is a disagreement: %s", d)
	}
	if d := steps.Disagreement(steps.Counted(over, 140, time.Second), arrivals); !strings.Contains(d, "+40 %") {
		t.Errorf("140 steps against 100 is %q", d)
	}
	for _, none := range []steps.Reading{steps.Counted(over, 0, time.Second), steps.Counted(over, 50, 0)} {
		if none.Holds || none.Reason == "" || steps.Best(none, arrivals).Source != steps.Arrivals || steps.Disagreement(none, arrivals) != "" {
			t.Errorf("no count stands above arrivals: %+v", none)
		}
	}
	arrivals.Holds = false
	if best := steps.Best(engine, arrivals); best.Streams.OK() || steps.Disagreement(engine, arrivals) != "" {
		t.Errorf("what does not hold is used: %+v", best)
	}
}
