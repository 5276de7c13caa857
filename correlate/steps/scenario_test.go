package steps_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/steps"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// arrivals are the tokens of a scenario, each late by up to jitter.
func arrivals(tl *scenario.Timeline, jitter time.Duration) []steps.Token {
	r := rand.New(rand.NewPCG(1, 2))
	var out []steps.Token
	for _, q := range tl.Requests() {
		var last timeline.Instant
		for i := 0; i < len(q.Tokens); {
			n := 1
			for i+n < len(q.Tokens) && q.Tokens[i+n] == q.Tokens[i] {
				n++
			}
			last = max(last, begin.Add(q.Tokens[i]+time.Duration(r.Float64()*float64(jitter))))
			i += n
			out = append(out, steps.Token{At: last, Stream: uint64(q.Index + 1), Tokens: int32(n), Context: int32(q.PromptTokens + i)})
		}
	}
	slices.SortStableFunc(out, func(a, b steps.Token) int { return cmp.Compare(a.At, b.At) })
	return out
}

// yielding are the steps of a scenario that yield tokens.
func yielding(tl *scenario.Timeline) []scenario.Step {
	yields := map[time.Duration]bool{}
	for _, q := range tl.Requests() {
		for _, at := range q.Tokens {
			yields[at] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(tl.Steps(0)), func(s scenario.Step) bool { return !yields[s.End] })
}

// stepped is the mean of the true steps in a reading's span: from one step that yields tokens to the next.
func stepped(all []scenario.Step, over timeline.Span, jitter time.Duration) (steps.Observation, int) {
	var o steps.Observation
	n, linked, last := 0.0, 0.0, time.Duration(0)
	for _, s := range all {
		if end := begin.Add(s.End); end.Add(jitter) > over.Start && end < over.End {
			n++
			if last > 0 {
				linked++
				o.Time += (s.End - last).Seconds()
			}
			o.Batch += float64(s.DecodeBatch)
			o.Context += float64(s.Contexts)
			o.Prompt += float64(s.PromptTokens)
		}
		last = s.End
	}
	m := max(1, n)
	return steps.Observation{Time: o.Time / max(1, linked), Batch: o.Batch / m, Context: o.Context / m, Prompt: o.Prompt / m}, int(n)
}

// TestScenarios reads the tokens of the simulated engine, whose physics knows nothing of this package: readings that
// hold are its steps, and no testimony contradicts what limited them.
func TestScenarios(t *testing.T) {
	const jitter = time.Millisecond
	for _, tt := range []struct {
		name string
		part float64           // of readings that hold at least
		says []steps.Testimony // that may be; none: the model is another, and is not asked
	}{
		{"library/memory_bound", 1, []steps.Testimony{steps.MemoryLike}},
		{"library/quant_bf16", 1, []steps.Testimony{steps.MemoryLike}},
		{"testdata/swing", 1, []steps.Testimony{steps.MemoryLike}},
		{"testdata/batch_growth", 1, []steps.Testimony{steps.MemoryLike}},
		{"testdata/speculation", 1, []steps.Testimony{steps.MemoryLike, steps.NotIdentifiable}},
		{"library/prefill_storm", 1, []steps.Testimony{steps.MemoryLike, steps.NotIdentifiable}},
		{"library/power_cap", 1, []steps.Testimony{steps.NotIdentifiable}},
		{"library/host_stall", 1, []steps.Testimony{steps.NotMemoryLike, steps.NotIdentifiable}},
		{"testdata/prefill_mixed", 1, nil},
		{"library/demo", 1, nil},
		{"testdata/launch_eager", 1, nil},
		{"testdata/busy_moe", 1, nil},
		{"testdata/prefill_compute", 0.3, nil}, // four steps a second
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := os.Open("../scenario/" + tt.name + ".scenario")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			sc, err := scenario.Parse(tt.name, f)
			if err != nil {
				t.Fatal(err)
			}
			tl, err := sc.Run()
			if err != nil {
				t.Fatal(err)
			}
			all := yielding(tl)
			hold, n, worst := 0, 0, 0.0
			h := steps.NewHistory(steps.DefaultHistory)
			for _, r := range read(arrivals(tl, jitter), strings.Contains(tt.name, "speculation")) {
				n++
				if !r.Holds {
					continue
				}
				hold++
				o, count := stepped(all, r.Over, jitter)
				off := max(math.Abs(r.Time.Value/o.Time-1), math.Abs(float64(r.Steps)/float64(max(1, count))-1))
				if worst = max(worst, off); off > 0.02 {
					t.Errorf("%d steps of %.4f s in %v, the engine made %d of %.4f s", r.Steps, r.Time.Value, r.Over, count, o.Time)
				}
				o.Time = r.Time.Value
				h.Add(o)
			}
			t.Logf("%d of %d readings hold, at most %.2f %% off", hold, n, 100*worst)
			if float64(hold) < tt.part*float64(n) {
				t.Errorf("%d of %d readings hold", hold, n)
			}
			if w := h.Witness(dense); tt.says != nil {
				t.Logf("%s\n%s", w.Says, strings.Join(w.Reasons, "\n"))
				if !slices.Contains(tt.says, w.Says) {
					t.Errorf("says %s, want one of %v", w.Says, tt.says)
				}
			}
		})
	}
}
