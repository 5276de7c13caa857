package record_test

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters/record"
)

const sec = timeline.Instant(time.Second)

func meta() record.Meta {
	return record.Meta{
		Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Host: "h", BootID: "boot-1",
		GPUs:    []timeline.GPU{{UUID: "GPU-a", Name: "A"}, {UUID: "GPU-b", Name: "B"}},
		Targets: []timeline.Target{{Name: "t", EngineURL: "http://127.0.0.1:8000", GPUs: []string{"GPU-a"}}},
	}
}

// all collects rows by value and fails on a fault.
func all[T any](t *testing.T, seq iter.Seq2[*T, error]) []T {
	t.Helper()
	var rows []T
	for r, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, *r)
	}
	return rows
}

func create(t *testing.T, o record.Options) (*record.Writer, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	w, err := record.Create(dir, meta(), o)
	if err != nil {
		t.Fatal(err)
	}
	return w, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openReader(t *testing.T, dir string) *record.Reader {
	t.Helper()
	r, err := record.OpenReader(dir)
	must(t, err)
	return r
}

// fullRequest has every field set that a recording keeps.
func fullRequest() timeline.Request {
	return timeline.Request{
		Ref: 1<<63 + 5, ID: "id-1", TraceID: "0af7651916cd43dd8448eb211c80319c", SpanID: "b7ad6b7169203331",
		ParentID: "00f067aa0ba902b7", Sampled: true, Target: "t", Upstream: "http://127.0.0.1:8000", Dialect: "openai",
		Operation: "chat", Model: "m", Streaming: true, Client: "proxy",
		Sent: sec, Head: 2 * sec, First: 3 * sec, Last: 4 * sec, Done: 5 * sec, ClockBound: 3 * time.Microsecond,
		Status: timeline.StatusTruncated, HTTPStatus: 200, Finish: "length",
		PromptTokens: 0, PromptKnown: true, CachedTokens: 3, OutputTokens: 9, Counted: timeline.CountFinal,
		ReasoningTokens: 2, FirstTokens: 1, MaxTokens: 10, Choices: 2, Events: 8, KernelStamped: 7, Coalesced: 1,
		Flags: timeline.FlagBacklog | timeline.FlagMultipleChoices,
		Engine: timeline.EngineTimings{
			PromptTokens: 1, PromptTime: 2, OutputTokens: 3, OutputTime: 4, TimeToFirst: 5, QueueTime: 6, PerOutputMean: 7,
		},
	}
}

func fullCell() correlate.Cell {
	c := correlate.Cell{
		Target: "t", Span: timeline.Span{Start: sec, End: 2 * sec}, Tokens: 50, Active: 2, Decoding: 1.5,
		WindowTPOT: timeline.Known(0.02), Batch: timeline.Known(2), Waiting: timeline.Known(0),
		OutputTokens: timeline.Absent("no engine metrics"), PromptTokens: timeline.Known(1), ContextSum: timeline.Known(2),
		KVUsage: timeline.Known(0.5), Preemptions: timeline.Known(0), Steps: timeline.Absent("not told"),
		EngineTPOT: timeline.Known(0.021), Coverage: timeline.Known(1), Windows: 9, CoveredS: 0.99,
		DRAMBytes: timeline.Known(1e12), ThrottledS: 0.1, ModelledBytes: timeline.Absent("no model"), Decode: true,
		Verdict: verdict.Verdict{
			Label: timeline.Memory, Reason: "r", Shares: timeline.Shares{Memory: 0.8, Host: 0.2}, Roof: timeline.Interval{Low: 0.7, High: 0.9},
			Confidence: timeline.High, Overlays: []timeline.Overlay{timeline.Throttled, timeline.Preempted}, Caps: []string{"a; b", "c"},
		},
		Level: timeline.L3,
	}
	c.Counters[timeline.DRAMUtil] = correlate.Mean{Value: 0.8, CoveredS: 0.99}
	c.PerGPU = []correlate.GPUCell{
		{GPU: 0, UUID: "GPU-a", Windows: 4, CoveredS: 0.5, DRAMBytes: timeline.Known(5e11), ThrottledS: map[string]float64{"sw_power_cap": 0.1}},
		{GPU: 1, UUID: "GPU-b", Windows: 5, CoveredS: 0.49, DRAMBytes: timeline.Absent("no windows")},
	}
	c.PerGPU[1].Counters[timeline.Power] = correlate.Mean{Value: 700, CoveredS: 1}
	return c
}

func TestEveryFieldComesBack(t *testing.T) {
	w, dir := create(t, record.Options{})
	sample := timeline.Sample{GPU: 1, Over: timeline.Span{Start: sec, End: sec + 110e6}, Slack: 7}
	sample.Put(timeline.DRAMUtil, 0.5)
	sample.Put(timeline.SMUtil, 0) // zero is not absent
	engine := timeline.EngineSample{Target: "t", Over: timeline.Span{Start: sec, End: sec + 1}}
	engine.Put(timeline.Running, 3)
	host := timeline.HostSample{Over: timeline.Span{Start: sec, End: 2 * sec}}
	host.Put(timeline.HostLoad1, 1.5)
	anchor := timeline.Anchor{Mono: sec, Real: 17e17, Boot: 2e9, Width: 40, BootID: "boot-1"}
	events := []timeline.Event{
		{At: sec, Kind: timeline.EventMarker, GPU: timeline.NoGPU, Detail: "x"},
		{At: 2 * sec, Kind: timeline.EventGPULost, GPU: 1, Target: "t"},
	}
	tokens := []timeline.TokenEvent{
		{Ref: 9, At: 2 * sec, After: sec, Tokens: 2, Choice: 1, Source: timeline.CountUsage, Kind: timeline.KindReasoning, Stamp: timeline.StampClient, Coalesced: true},
		{Ref: 9, At: 3 * sec, After: 3 * sec, Source: timeline.CountNone, Kind: timeline.KindEmpty, Stamp: timeline.StampKernel},
	}
	request, cell := fullRequest(), fullCell()
	w.AddSample(&sample)
	w.AddEngine(&engine)
	w.AddHost(&host)
	w.AddAnchor(anchor)
	for _, e := range events {
		w.AddEvent(e)
	}
	for _, e := range tokens {
		w.AddToken(e)
	}
	w.AddOpen(&request)
	w.AddRequest(&request)
	w.AddRequest(&timeline.Request{Ref: 2, Sent: sec}) // nothing happened to it
	w.AddCell(&cell)
	must(t, w.Close())

	r := openReader(t, dir)
	opened := timeline.Request{
		Ref: request.Ref, ID: request.ID, TraceID: request.TraceID, SpanID: request.SpanID, ParentID: request.ParentID,
		Sampled: true, Target: "t", Upstream: request.Upstream, Dialect: "openai", Operation: "chat", Model: "m",
		Streaming: true, Client: "proxy", Sent: sec, MaxTokens: 10, Choices: 2,
	}
	for name, diff := range map[string]string{
		"samples":  cmp.Diff([]timeline.Sample{sample}, all(t, r.Samples())),
		"engine":   cmp.Diff([]timeline.EngineSample{engine}, all(t, r.Engine())),
		"host":     cmp.Diff([]timeline.HostSample{host}, all(t, r.Host())),
		"anchors":  cmp.Diff([]timeline.Anchor{anchor}, all(t, r.Anchors())),
		"events":   cmp.Diff(events, all(t, r.Events())),
		"tokens":   cmp.Diff(tokens, all(t, r.Tokens())),
		"opens":    cmp.Diff([]timeline.Request{opened}, all(t, r.Opens())),
		"requests": cmp.Diff([]timeline.Request{request, {Ref: 2, Sent: sec}}, all(t, r.Requests())),
		"cells":    cmp.Diff([]correlate.Cell{cell}, all(t, r.Cells())),
	} {
		if diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", name, diff)
		}
	}
	want := meta()
	want.Schema = record.Schema
	if diff := cmp.Diff(want, r.Meta()); diff != "" {
		t.Errorf("meta mismatch (-want +got):\n%s", diff)
	}
}

func TestExtentIsThatOfTheMeasuredRows(t *testing.T) {
	w, dir := create(t, record.Options{SegmentAge: 10 * time.Second, BatchRows: 3})
	if _, _, ok := openReader(t, dir).Extent("boot-1"); ok {
		t.Error("Extent() of an empty recording")
	}
	for i := range timeline.Instant(40) {
		w.AddToken(timeline.TokenEvent{Ref: 1, At: (i + 7) * sec})
		w.AddAnchor(timeline.Anchor{Mono: (i + 6) * sec})
		must(t, w.Flush())
	}
	must(t, w.Close())
	first, last, ok := openReader(t, dir).Extent("boot-1")
	if !ok || first != 6*sec || last != 46*sec {
		t.Errorf("Extent() = %d, %d, %v, want 6 s and 46 s", first/sec, last/sec, ok)
	}
}

func TestATornTailLosesOnlyTheLastBatch(t *testing.T) {
	w, dir := create(t, record.Options{})
	path := filepath.Join(dir, "tokens-000001.arrows")
	var sizes []int64
	for i := range 5 {
		for j := range 10 {
			w.AddToken(timeline.TokenEvent{Ref: uint64(i), At: timeline.Instant(i*10+j) * sec})
		}
		must(t, w.Flush())
		info, err := os.Stat(path)
		must(t, err)
		sizes = append(sizes, info.Size())
	}
	whole, err := os.ReadFile(path)
	must(t, err)
	for cut := range len(whole) + 1 {
		near := slices.ContainsFunc(sizes, func(s int64) bool { return s-2 <= int64(cut) && int64(cut) <= s+9 })
		if !near && cut%11 != 0 {
			continue
		}
		must(t, os.WriteFile(path, whole[:cut], 0o600))
		want := 0
		torn := true
		for _, s := range sizes {
			if int64(cut) >= s {
				want += 10
			}
			torn = torn && int64(cut) != s
		}
		var got int
		var fault error
		for _, err := range openReader(t, dir).Tokens() {
			if err != nil {
				fault = errors.Join(fault, err)
				continue
			}
			got++
		}
		if got != want {
			t.Fatalf("cut at %d: %d rows, want %d", cut, got, want)
		}
		// The end of the schema is a clean end too.
		if errors.Is(fault, record.ErrTorn) != torn && want > 0 {
			t.Fatalf("cut at %d: fault %v, want torn %v", cut, fault, torn)
		}
		if fault != nil && !strings.Contains(fault.Error(), "tokens-000001.arrows") {
			t.Fatalf("fault %q does not name the file", fault)
		}
	}
}

func TestMergeIsInOrderOfTime(t *testing.T) {
	w, dir := create(t, record.Options{BatchRows: 7})
	for i := range timeline.Instant(400) {
		at := (i + 1) * 100e6
		w.AddSample(&timeline.Sample{GPU: 0, Over: timeline.Span{Start: at - 100e6, End: at}})
		// Two clients whose reports come in turns, one three seconds behind.
		w.AddToken(timeline.TokenEvent{Ref: 1, At: at})
		if at > 3*sec {
			w.AddToken(timeline.TokenEvent{Ref: 2, At: at - 3*sec})
		}
		if i%10 == 0 {
			w.AddOpen(&timeline.Request{Ref: uint64(i + 10), Sent: at})
			w.AddRequest(&timeline.Request{Ref: uint64(i + 10), Sent: at, Done: at})
		}
		must(t, w.Flush())
	}
	must(t, w.Close())
	r := openReader(t, dir)
	var last timeline.Instant
	var kind record.Kind
	counts := map[record.Kind]int{}
	for row, err := range r.Merge("boot-1") {
		must(t, err)
		if row.At < last || row.Late {
			t.Fatalf("%s at %v after %v", row.Kind, row.At, last)
		}
		if row.At == last && row.Kind < kind {
			t.Fatalf("%s after %s of the same instant", row.Kind, kind)
		}
		last, kind = row.At, row.Kind
		counts[row.Kind]++
	}
	want := map[record.Kind]int{record.Samples: 400, record.Tokens: 400 + 370, record.Opens: 40, record.Requests: 40}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("rows mismatch (-want +got):\n%s", diff)
	}
}

func TestARowFarOutOfOrderIsMarkedLate(t *testing.T) {
	w, dir := create(t, record.Options{BatchRows: 10})
	for i := range timeline.Instant(100) {
		w.AddToken(timeline.TokenEvent{Ref: 1, At: (i + 100) * sec})
	}
	w.AddToken(timeline.TokenEvent{Ref: 2, At: sec})
	must(t, w.Close())
	var late []uint64
	for row, err := range openReader(t, dir).Merge("boot-1") {
		must(t, err)
		if row.Late {
			late = append(late, row.Token.Ref)
		}
	}
	if diff := cmp.Diff([]uint64{2}, late); diff != "" {
		t.Errorf("late rows mismatch (-want +got):\n%s", diff)
	}
}

func TestOpenReaderNamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct{ name, meta, want string }{
		{"no meta", "", "no such file"},
		{"other schema", `{"schema":"tpotscope.recording/2"}`, `schema is "tpotscope.recording/2", want "tpotscope.recording/1"`},
		{"no JSON", `{`, "meta.json: unexpected end of JSON input"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.meta != "" {
				must(t, os.WriteFile(filepath.Join(dir, "meta.json"), []byte(tt.meta), 0o600))
			}
			_, err := record.OpenReader(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("OpenReader() = %v, want %q", err, tt.want)
			}
		})
	}
}
