package replay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/importer"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

const sec = timeline.Instant(time.Second)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// recorded returns the directory of a recording of the library's scenario.
func recorded(t *testing.T, name string) string {
	t.Helper()
	s, err := scenario.Open(name)
	must(t, err)
	tl, err := s.Run()
	must(t, err)
	dir := filepath.Join(t.TempDir(), "run")
	must(t, importer.FromScenario(t.Context(), tl, dir, importer.ScenarioOptions{}))
	return dir
}

func reader(tb testing.TB, dir string) *record.Reader {
	tb.Helper()
	r, err := record.OpenReader(dir)
	must(tb, err)
	return r
}

// spelt replays dir and returns all that was said as text, piece by piece.
func spelt(t *testing.T, dir string) (string, replay.Result) {
	t.Helper()
	var b strings.Builder
	result, err := replay.Run(t.Context(), reader(t, dir), correlate.DefaultConfig(), func(o *correlate.Output) error {
		for i := range o.Cells {
			fmt.Fprintf(&b, "%+v\n", o.Cells[i])
		}
		for i := range o.Phases {
			fmt.Fprintf(&b, "%+v\n", o.Phases[i])
		}
		return nil
	}, nil)
	must(t, err)
	return b.String(), result
}

func TestTheSameRecordingGivesTheSameOutput(t *testing.T) {
	dir := recorded(t, "demo")
	a, ra := spelt(t, dir)
	b, rb := spelt(t, dir)
	if a != b {
		t.Error("two replays differ")
	}
	if diff := cmp.Diff(ra, rb); diff != "" {
		t.Errorf("results differ:\n%s", diff)
	}
	if ra.Rows == 0 || ra.Late != 0 || len(ra.Faults) != 0 || ra.Stats.Cells < 70 || ra.Stats.Phases < 100 {
		t.Errorf("result %+v, want a minute of cells and their phases", ra)
	}
}

func TestNothingOfARecordingComesLateToTheEngine(t *testing.T) {
	_, r := spelt(t, recorded(t, "memory_bound"))
	s := r.Stats
	if s.LateSamples+s.LateTokens+s.LateRequests+s.DroppedReadings+s.DroppedTokens+s.EvictedRequests+s.UnknownTargets > 0 {
		t.Errorf("the engine left something out: %+v", s)
	}
}

func TestACancelledReplayKeepsWhatItSaid(t *testing.T) {
	dir := recorded(t, "memory_bound")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var kept []string
	take := func(into *[]string) func(o *correlate.Output) error {
		return func(o *correlate.Output) error {
			for i := range o.Cells {
				*into = append(*into, fmt.Sprintf("%+v", o.Cells[i]))
			}
			return nil
		}
	}
	_, err := replay.Run(ctx, reader(t, dir), correlate.DefaultConfig(), func(o *correlate.Output) error {
		if err := take(&kept)(o); err != nil {
			return err
		}
		if len(kept) >= 10 {
			cancel()
		}
		return nil
	}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Run() = %v, want cancelled", err)
	}
	var all []string
	_, err = replay.Run(t.Context(), reader(t, dir), correlate.DefaultConfig(), take(&all), nil)
	must(t, err)
	if len(kept) < 10 || len(kept) >= len(all) {
		t.Fatalf("%d cells of %d, want some", len(kept), len(all))
	}
	if diff := cmp.Diff(all[:len(kept)], kept); diff != "" {
		t.Errorf("what was said before the end differs:\n%s", diff)
	}
}

func TestAnErrorOfTheReceiverEndsTheReplay(t *testing.T) {
	full := errors.New("full")
	calls := 0
	_, err := replay.Run(t.Context(), reader(t, recorded(t, "memory_bound")), correlate.DefaultConfig(), func(*correlate.Output) error {
		calls++
		return full
	}, nil)
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("Run() = %v after %d calls, want the receiver's error after one", err, calls)
	}
}

func TestADamagedFileIsReportedAndTheRestReplayed(t *testing.T) {
	dir := recorded(t, "memory_bound")
	path := filepath.Join(dir, "requests-000001.arrows")
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, b[:len(b)/2], 0o600))
	_, r := spelt(t, dir)
	var fault *record.FileError
	if len(r.Faults) != 1 || !errors.As(r.Faults[0], &fault) || !errors.Is(fault, record.ErrTorn) || fault.File != "requests-000001.arrows" {
		t.Errorf("faults %v, want the torn file of requests", r.Faults)
	}
	if r.Stats.Cells < 55 {
		t.Errorf("%d cells, want those of a minute", r.Stats.Cells)
	}
}

func TestProgressGrowsToOne(t *testing.T) {
	var done []float64
	_, err := replay.Run(t.Context(), reader(t, recorded(t, "demo")), correlate.DefaultConfig(),
		func(*correlate.Output) error { return nil }, func(f float64) { done = append(done, f) })
	must(t, err)
	for i := 1; i < len(done); i++ {
		if done[i] < done[i-1] || done[i] > 1 {
			t.Fatalf("progress %v", done)
		}
	}
	if n := len(done); n < 10 || done[n-2] < 0.9 || done[n-1] != 1 {
		t.Errorf("progress %v, want it to end at one", done)
	}
}

func TestEachBootHasATimelineOfItsOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	m := record.Meta{GPUs: []timeline.GPU{{UUID: "GPU-a", Name: "NVIDIA H100 80GB HBM3", GPM: true}}}
	// The second boot's clock reads less than the first's.
	for i, from := range []timeline.Instant{5000, 10} {
		m.BootID = fmt.Sprintf("boot-%d", i+1)
		open := record.Create
		if i > 0 {
			open = record.Open
		}
		w, err := open(dir, m, record.Options{})
		must(t, err)
		for n := range timeline.Instant(100) {
			s := timeline.Sample{Over: timeline.Span{Start: from*sec + n*110e6, End: from*sec + (n+1)*110e6}}
			s.Put(timeline.DRAMUtil, 0.5)
			s.Put(timeline.SMUtil, 0.5)
			s.Put(timeline.GraphicsUtil, 0.5)
			w.AddSample(&s)
		}
		must(t, w.Close())
	}
	var starts []timeline.Instant
	result, err := replay.Run(t.Context(), reader(t, dir), correlate.DefaultConfig(), func(o *correlate.Output) error {
		for i := range o.Cells {
			starts = append(starts, o.Cells[i].Span.Start/sec)
		}
		return nil
	}, nil)
	must(t, err)
	if result.Late != 0 || result.Stats.LateSamples != 0 {
		t.Errorf("result %+v, want nothing late", result)
	}
	for _, want := range []timeline.Instant{5000, 5010, 10, 20} {
		found := false
		for _, s := range starts {
			found = found || s == want
		}
		if !found {
			t.Errorf("cells start at %v, want one at %d s", starts, want)
		}
	}
}

func TestRequestsOfAKilledObserverEndWhereItsTokensDo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	m := record.Meta{BootID: "boot", Targets: []timeline.Target{{Name: "t"}}}
	stream := func(w *record.Writer, from, to timeline.Instant) {
		r := timeline.Request{Ref: 1, Target: "t", Streaming: true, Sent: from * sec}
		w.AddOpen(&r)
		for at := from*sec + sec/2; at < to*sec; at += sec / 20 {
			w.AddToken(timeline.TokenEvent{
				Ref: 1, At: at, After: at, Tokens: 1, Source: timeline.CountUsage, Kind: timeline.KindContent, Stamp: timeline.StampKernel,
			})
		}
		must(t, w.Flush())
	}
	w, err := record.Create(dir, m, record.Options{})
	must(t, err)
	stream(w, 100, 110)                             // and then it is killed
	must(t, os.Remove(filepath.Join(dir, ".lock"))) // which a dead process does not hold
	w, err = record.Open(dir, m, record.Options{})
	must(t, err)
	stream(w, 120, 130)
	must(t, w.Close())

	var phases []correlate.Phase
	decoding := map[timeline.Instant]float64{}
	_, err = replay.Run(t.Context(), reader(t, dir), correlate.DefaultConfig(), func(o *correlate.Output) error {
		phases = append(phases, o.Phases...)
		for i := range o.Cells {
			decoding[o.Cells[i].Span.Start/sec] = o.Cells[i].Decoding
		}
		return nil
	}, nil)
	must(t, err)
	if len(phases) != 2 {
		t.Fatalf("%d phases, want one of each process", len(phases))
	}
	for i, p := range phases {
		r := &p.Request
		if r.Status != timeline.StatusUnfinished || r.Done != 0 || r.OutputTokens != 190 || r.Events != 190 || !p.Latency.TPOT.OK() {
			t.Errorf("phase %d: status %s, %d tokens, TPOT %+v, want 190 of an unfinished request", i, r.Status, r.OutputTokens, p.Latency.TPOT)
		}
	}
	if decoding[105] != 1 || decoding[115] != 0 || decoding[125] != 1 {
		t.Errorf("decoding %v at 105, %v at 115 and %v at 125 s, want 1, 0 and 1", decoding[105], decoding[115], decoding[125])
	}
}

// TestEachLifeOfTheAgentHasItsOwnGPU goes on with a recording on another GPU each time, which meta.json then lists beside
// those of before.
func TestEachLifeOfTheAgentHasItsOwnGPU(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for life := range timeline.Instant(3) {
		uuid := fmt.Sprintf("GPU-%d", life)
		w, err := record.Open(dir, record.Meta{
			BootID: "boot", GPUs: []timeline.GPU{{UUID: uuid, Name: "NVIDIA H100 80GB HBM3", GPM: true}}, Targets: []timeline.Target{{Name: "vllm"}},
		}, record.Options{})
		must(t, err)
		base := (1000 + 20*life) * sec
		for n := range timeline.Instant(140) { // fourteen seconds, and six of silence
			at := base + n*sec/10
			s := timeline.Sample{Over: timeline.Span{Start: at, End: at + sec/10}, Slack: 20_000}
			for c := timeline.GraphicsUtil; c <= timeline.DRAMUtil; c++ {
				s.Put(c, 0.9)
			}
			w.AddSample(&s)
			if n%10 == 0 {
				e := timeline.EngineSample{Target: "vllm", Over: timeline.Span{Start: at, End: at + 1e6}}
				e.Put(timeline.Running, 4)
				e.Put(timeline.OutputTotal, float64(n))
				e.Put(timeline.PromptTotal, 0)
				w.AddEngine(&e)
			}
		}
		must(t, w.Close())
	}
	judged := map[string]int{}
	_, err := replay.Run(t.Context(), reader(t, dir), correlate.DefaultConfig(), func(o *correlate.Output) error {
		for i := range o.Cells {
			c := &o.Cells[i]
			life := (c.Span.Start/sec - 1000) / 20
			for _, g := range c.PerGPU {
				if g.Windows > 0 && g.UUID != fmt.Sprintf("GPU-%d", life) {
					t.Errorf("a cell at %d s is of %s", c.Span.Start/sec, g.UUID)
				}
			}
			if c.Verdict.OK() && len(c.PerGPU) == 1 {
				judged[c.PerGPU[0].UUID]++
			}
		}
		return nil
	}, nil)
	must(t, err)
	for life := range 3 {
		if n := judged[fmt.Sprintf("GPU-%d", life)]; n < 12 {
			t.Errorf("%d cells of life %d have a verdict, want twelve of fourteen: %v", n, life, judged)
		}
	}
}

func TestAConfigurationThatIsNotValidIsRefused(t *testing.T) {
	cfg := correlate.DefaultConfig()
	cfg.Cell = time.Millisecond
	if _, err := replay.Run(t.Context(), reader(t, recorded(t, "memory_bound")), cfg, nil, nil); err == nil {
		t.Error("Run() took cells of a millisecond")
	}
}

// BenchmarkRun replays a node at default rates: the time is of one second of it.
func BenchmarkRun(b *testing.B) {
	for _, streams := range []int{0, 64, 256} {
		b.Run(fmt.Sprintf("gpus=8/streams=%d", streams), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "run")
			tokens := node(b, dir, 8, streams, b.N)
			r := reader(b, dir)
			b.ReportAllocs()
			b.ResetTimer()
			result, err := replay.Run(b.Context(), r, correlate.DefaultConfig(), func(*correlate.Output) error { return nil }, nil)
			must(b, err)
			b.ReportMetric(float64(tokens)/float64(b.N), "tokens/op")
			b.ReportMetric(float64(result.Stats.Phases)/float64(b.N), "requests/op")
		})
	}
}

// node records seconds of a node whose GPUs serve one engine each, streams over all of them at 50 tokens a second and
// 200 tokens a request.
func node(b *testing.B, dir string, gpus, streams, seconds int) int {
	b.Helper()
	var m record.Meta
	for i := range gpus {
		uuid := fmt.Sprintf("GPU-6f1c3f0a-0000-4000-8000-%012d", i)
		m.GPUs = append(m.GPUs, timeline.GPU{UUID: uuid, Name: "NVIDIA H100 80GB HBM3", GPM: true})
		m.Targets = append(m.Targets, timeline.Target{Name: fmt.Sprint("t", i), GPUs: []string{uuid}})
	}
	w, err := record.Create(dir, m, record.Options{MaxBytes: -1})
	must(b, err)
	tokens, length := 0, 200
	for s := range timeline.Instant(seconds) {
		base := (s + 1000) * sec
		for tick := range timeline.Instant(9) {
			for g := range gpus {
				at := base + tick*111e6
				over := timeline.Span{Start: at, End: at + 111e6}
				fast := timeline.Sample{GPU: g, Over: over, Slack: 20_000}
				for c := timeline.GraphicsUtil; c <= timeline.DRAMUtil; c++ {
					fast.Put(c, 0.1*float64(c+1))
				}
				w.AddSample(&fast)
				clocks := timeline.Sample{GPU: g, Over: timeline.Span{Start: at, End: at + 30_000}, Slack: 15_000}
				clocks.Put(timeline.SMClock, 1.98e9)
				clocks.Put(timeline.EventReasons, 0)
				w.AddSample(&clocks)
			}
		}
		for i := range 50 * streams {
			n := int(s)*50 + i/streams // of the stream
			r := timeline.Request{
				Ref: uint64(n/length*streams+i%streams) + 1, Target: fmt.Sprint("t", i%streams%gpus), Streaming: true, Model: "m",
			}
			at := base + timeline.Instant(i)*sec/timeline.Instant(50*streams)
			if n%length == 0 {
				r.Sent = at - 1e6
				w.AddOpen(&r)
			}
			w.AddToken(timeline.TokenEvent{
				Ref: r.Ref, At: at, After: at, Tokens: 1, Source: timeline.CountUsage, Kind: timeline.KindContent,
			})
			tokens++
			if n%length == length-1 {
				r.Done, r.Last, r.First, r.Sent = at+1, at, at-timeline.Instant(length-1)*sec/50, at-4*sec
				r.OutputTokens, r.Counted, r.FirstTokens, r.Events = length, timeline.CountUsage, 1, length
				w.AddRequest(&r)
			}
		}
		must(b, w.Flush())
	}
	must(b, w.Close())
	return tokens
}
