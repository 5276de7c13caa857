package importer_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/importer"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters/record"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, name string) *scenario.Timeline {
	t.Helper()
	s, err := scenario.Open(name)
	must(t, err)
	tl, err := s.Run()
	must(t, err)
	return tl
}

// imported returns the recording of a scenario.
func imported(t *testing.T, tl *scenario.Timeline) *record.Reader {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	must(t, importer.FromScenario(t.Context(), tl, dir, importer.ScenarioOptions{}))
	r, err := record.OpenReader(dir)
	must(t, err)
	return r
}

func TestAScenarioIsRecordedAsItWas(t *testing.T) {
	tl := run(t, "demo")
	r := imported(t, tl)
	if m := r.Meta(); !m.Simulated || len(m.GPUs) != 1 || len(m.Targets) != 1 || m.Created.Year() != 2026 {
		t.Errorf("meta %+v, want a simulated node of one GPU and one target", m)
	}
	truth := tl.Truth(0, 0, tl.Duration())
	var seconds, dram float64
	for s, err := range r.Samples() {
		must(t, err)
		if u, ok := s.Get(timeline.DRAMUtil); ok {
			seconds += s.Over.Duration().Seconds()
			dram += u * s.Over.Duration().Seconds()
		}
	}
	if length := tl.Duration().Seconds(); seconds < length-0.25 || seconds > length {
		t.Errorf("windows cover %.3f s of %.3f", seconds, length)
	}
	if got := dram / seconds; math.Abs(got-truth.DRAMUtil) > 0.005 {
		t.Errorf("mean DRAM utilisation %.4f, want %.4f", got, truth.DRAMUtil)
	}
	want := map[uint64]int{}
	for _, q := range tl.Requests() {
		want[uint64(q.Index)+1] = len(q.Tokens)
	}
	got := map[uint64]int{}
	for e, err := range r.Tokens() {
		must(t, err)
		got[e.Ref]++
	}
	finished := 0
	for q, err := range r.Requests() {
		must(t, err)
		if got[q.Ref] != q.Events {
			t.Errorf("request %d has %d token events, its record says %d", q.Ref, got[q.Ref], q.Events)
		}
		if got[q.Ref] == 0 {
			got[q.Ref] = 0 // known, and without tokens
		}
		if q.Status == timeline.StatusOK {
			finished++
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens a request mismatch (-want +got):\n%s", diff)
	}
	if finished != truth.Finished {
		t.Errorf("%d requests finished, want %d", finished, truth.Finished)
	}
	for _, c := range r.Verify() {
		if c.Condition != record.Complete {
			t.Errorf("%v, want complete", c)
		}
	}
}

func TestTheSameScenarioGivesTheSameBytes(t *testing.T) {
	tl := run(t, "memory_bound")
	a, b := imported(t, tl), imported(t, tl)
	entries, err := os.ReadDir(a.Dir())
	must(t, err)
	if len(entries) < 6 {
		t.Errorf("%d files, want one of each measured kind", len(entries))
	}
	for _, e := range entries {
		x, err := os.ReadFile(filepath.Join(a.Dir(), e.Name()))
		must(t, err)
		y, err := os.ReadFile(filepath.Join(b.Dir(), e.Name()))
		must(t, err)
		if !bytes.Equal(x, y) {
			t.Errorf("%s differs", e.Name())
		}
	}
}

func TestAnImportThatIsCancelledKeepsWhatCameBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "run")
	err := importer.FromScenario(ctx, run(t, "memory_bound"), dir, importer.ScenarioOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("FromScenario() = %v, want cancelled", err)
	}
	if _, err := record.OpenReader(dir); err != nil {
		t.Error(err)
	}
}

func TestAWindowTooShortForTheInstrumentIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	err := importer.FromScenario(t.Context(), run(t, "memory_bound"), dir, importer.ScenarioOptions{Window: 50 * time.Millisecond})
	if err == nil {
		t.Error("FromScenario() took windows of 50 ms")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it made %s all the same", dir)
	}
}

// origin is where scenarios start on the timeline of their recordings.
const origin = timeline.Instant(1000 * time.Second)

// said is what the cells of a span say: the mean shares over those with a verdict, and how long each label holds.
type said struct {
	shares        timeline.Shares
	weight        float64
	labels        map[timeline.Label]int
	cells, phases int
}

// within sums up the cells of target that lie wholly inside span.
func within(out *correlate.Output, target string, span scenario.Span) said {
	s := said{labels: map[timeline.Label]int{}}
	for i := range out.Cells {
		c := &out.Cells[i]
		if c.Target != target || c.Span.Start < origin.Add(span.From) || c.Span.End > origin.Add(span.To) {
			continue
		}
		s.cells++
		s.labels[c.Verdict.Label]++
		if sum := c.Verdict.Shares.Sum(); sum > 0 {
			s.shares = s.shares.Add(c.Verdict.Shares, 1)
			s.weight++
		}
	}
	if s.weight > 0 {
		s.shares = s.shares.Scale(1 / s.weight)
	}
	for i := range out.Phases {
		p := &out.Phases[i]
		if p.Request.Target == target && p.Request.First >= origin.Add(span.From) && p.Request.Last <= origin.Add(span.To) {
			s.phases++
		}
	}
	return s
}

func replayed(t *testing.T, r *record.Reader) *correlate.Output {
	t.Helper()
	all := &correlate.Output{}
	_, err := replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		all.Cells = append(all.Cells, o.Cells...)
		all.Phases = append(all.Phases, o.Phases...)
		return nil
	}, nil)
	must(t, err)
	return all
}

// The counters tell the time at the DRAM roof and the time without work directly: what is said of both has to be near
// the truth in every scenario. Compute and launch are told apart by inference, and are only logged here: the verdict's
// own tests hold them to account.
func TestWhatIsSaidOfAScenarioIsNearItsTruth(t *testing.T) {
	for _, name := range scenario.Library() {
		t.Run(name, func(t *testing.T) {
			tl := run(t, name)
			out := replayed(t, imported(t, tl))
			for _, p := range tl.Phases() {
				for i, target := range tl.Targets() {
					checkPhase(t, out, target.Name, p, tl.Truth(i, p.Span.From, p.Span.To), blind(tl, p.Span))
				}
			}
		})
	}
}

// blind returns the most cells of a span in which faults of the instrument leave too little to judge by.
func blind(tl *scenario.Timeline, span scenario.Span) int {
	n := 0
	for _, f := range tl.CounterFaults() {
		if over := min(f.Over.To, span.To) - max(f.Over.From, span.From); over > 0 && slices.Contains([]string{"gap", "nan", "hang", "no_permission"}, f.Name) {
			n += int(over/time.Second) + 1
		}
	}
	return n
}

func checkPhase(t *testing.T, out *correlate.Output, target string, p scenario.Phase, truth scenario.Truth, blind int) {
	t.Helper()
	s := within(out, target, p.Span)
	t.Logf("%s truth: %s %.2f %+.2f", p.Name, truth.Dominant, truth.Share, truth.Shares)
	t.Logf("%s said:  %v %+.2f", p.Name, s.labels, s.shares)
	if whole := int(p.Span.Length() / time.Second); s.cells < whole-2 || s.phases == 0 {
		t.Errorf("%s: %d cells and %d phases of requests, want about %d and some", p.Name, s.cells, s.phases, whole)
	}
	if d := s.shares.Memory - truth.Shares.Memory; math.Abs(d) > 0.08 {
		t.Errorf("%s: memory's share is %.3f, want %.3f", p.Name, s.shares.Memory, truth.Shares.Memory)
	}
	// Where kernels are launched one by one, the time between them is the host's and the launches' at once.
	if d := s.shares.Host + s.shares.Launch - truth.Shares.Host - truth.Shares.Launch; math.Abs(d) > 0.08 {
		t.Errorf("%s: host's and launch's share is %.3f, want %.3f", p.Name, s.shares.Host+s.shares.Launch, truth.Shares.Host+truth.Shares.Launch)
	}
	judged := s.cells - min(s.labels[timeline.Undetermined], blind)
	if truth.Shares.Memory > 0.7 && s.labels[timeline.Memory] < judged*9/10 {
		t.Errorf("%s: labels %v, want memory", p.Name, s.labels)
	}
	if sum := s.shares.Sum(); math.Abs(sum-1) > 1e-6 {
		t.Errorf("%s: shares sum to %v", p.Name, sum)
	}
}

// A probe that sees a part of the requests leaves the engine's own counts whole, and tokens that were merged on their way
// are recorded as the chunks that arrived.
func TestOnlyWhatTheProbeSeesIsRecorded(t *testing.T) {
	s, err := scenario.Parse("part", strings.NewReader(`seed 4
duration 10s
gpu h100
target main model=Llama-3.1-8B
engine merge=30ms
load streams=16 prompt=100 output=60..90
probe coverage=40% clock_bound=3ms
`))
	must(t, err)
	tl, err := s.Run()
	must(t, err)
	r := imported(t, tl)
	seen, chunks := map[uint64]int{}, 0
	for _, q := range tl.Requests() {
		if q.Observed {
			seen[uint64(q.Index)+1] = len(q.Tokens)
		}
	}
	for e, err := range r.Tokens() {
		must(t, err)
		seen[e.Ref] -= int(e.Tokens)
		chunks++
	}
	tokens := 0
	for q, err := range r.Requests() {
		must(t, err)
		tokens += q.OutputTokens
		if q.ClockBound != 3*time.Millisecond {
			t.Errorf("request %d: its clock is bound by %s", q.Ref, q.ClockBound)
		}
		if left := seen[q.Ref]; left != 0 && q.Status == timeline.StatusOK {
			t.Errorf("request %d: %d tokens more were made than recorded", q.Ref, left)
		}
	}
	if all := len(tl.Requests()); len(seen) < all/4 || len(seen) > all*6/10 || chunks*2 > tokens {
		t.Errorf("%d of %d requests seen, %d tokens in %d chunks", len(seen), all, tokens, chunks)
	}
	var last float64
	for e, err := range r.Engine() {
		must(t, err)
		last, _ = e.Get(timeline.OutputTotal)
	}
	if want := tl.Engine(0, tl.Duration()).OutputTokens; int(last) != want {
		t.Errorf("the engine counts %g tokens, want %d", last, want)
	}
}

// What an instrument does not show, and who else is on the GPU, is in the recording as an agent would have it.
func TestFaultsOfTheInstrumentAreRecordedAsAnAgentWould(t *testing.T) {
	sc, err := scenario.Parse("faulty", strings.NewReader(`seed 9
duration 24s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=8 prompt=100 output=2000
counter gap 3s..7s
counter no_permission 9s..13s
fault neighbour 30% 15s..24s
`))
	must(t, err)
	tl, err := sc.Run()
	must(t, err)
	r := imported(t, tl)
	windows := map[int]int{} // by second
	for s, err := range r.Samples() {
		must(t, err)
		if s.Has&timeline.GPM != 0 {
			windows[int(s.Over.End.Sub(origin)/time.Second)]++
		}
	}
	for second, want := range map[int]bool{2: true, 4: false, 5: false, 8: true, 10: false, 11: false, 14: true, 20: true} {
		if (windows[second] >= 5) != want {
			t.Errorf("second %d: %d windows, want some: %v", second, windows[second], want)
		}
	}
	reasons := map[string]int{}
	_, err = replay.Run(t.Context(), r, correlate.DefaultConfig(), func(o *correlate.Output) error {
		for i := range o.Cells {
			reasons[o.Cells[i].Verdict.Reason]++
		}
		return nil
	}, nil)
	must(t, err)
	for reason, least := range map[string]int{verdict.ReasonForeign: 7, verdict.ReasonLegacy: 3, verdict.ReasonWindows: 3} {
		if reasons[reason] < least {
			t.Errorf("%d cells say %q, want %d: %v", reasons[reason], reason, least, reasons)
		}
	}
}
