package record_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

func TestFilesAreTheOwnersAlone(t *testing.T) {
	w, dir := create(t, record.Options{})
	w.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
	must(t, w.Close())
	info, err := os.Stat(dir)
	must(t, err)
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("directory has mode %o, want 700", got)
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 3 {
		t.Errorf("%d files, want meta.json, tokens and the lock", len(entries))
	}
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %o, want 600", e.Name(), got)
		}
	}
}

func TestARestartBeginsASegmentAndMapsItsGPUs(t *testing.T) {
	w, dir := create(t, record.Options{})
	w.AddSample(&timeline.Sample{GPU: 1, Over: timeline.Span{Start: 1, End: sec}})
	must(t, w.Close())
	before, err := os.ReadFile(filepath.Join(dir, "samples-000001.arrows"))
	must(t, err)

	m := meta()
	m.BootID = "boot-2"
	m.GPUs = []timeline.GPU{{UUID: "GPU-b"}, {UUID: "GPU-c"}} // other order, one gone, one new
	w, err = record.Open(dir, m, record.Options{})
	must(t, err)
	for i := range 2 {
		w.AddSample(&timeline.Sample{GPU: i, Over: timeline.Span{Start: 1, End: 2}})
	}
	must(t, w.Close())

	after, err := os.ReadFile(filepath.Join(dir, "samples-000001.arrows"))
	must(t, err)
	if string(before) != string(after) {
		t.Error("the first segment changed")
	}
	r := openReader(t, dir)
	var got []string
	for _, s := range all(t, r.Samples()) {
		got = append(got, r.Meta().GPUs[s.GPU].UUID)
	}
	if diff := cmp.Diff([]string{"GPU-b", "GPU-b", "GPU-c"}, got); diff != "" {
		t.Errorf("GPUs mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"boot-1", "boot-2"}, r.Boots()); diff != "" {
		t.Errorf("Boots() mismatch (-want +got):\n%s", diff)
	}
	var kinds []record.Kind
	for row, err := range r.Merge("boot-2") {
		must(t, err)
		kinds = append(kinds, row.Kind)
	}
	if diff := cmp.Diff([]record.Kind{record.Events, record.Samples, record.Samples}, kinds); diff != "" {
		t.Errorf("rows of the second boot mismatch (-want +got):\n%s", diff)
	}
	if e := all(t, r.Events()); len(e) != 1 || e[0].Kind != timeline.EventSegment {
		t.Errorf("events %v, want that another process goes on", e)
	}
}

func TestRequestsOfTwoProcessesKeepTheirNumbersApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for range 2 {
		w, err := record.Open(dir, meta(), record.Options{})
		must(t, err)
		w.AddOpen(&timeline.Request{Ref: 1, Sent: sec})
		w.AddToken(timeline.TokenEvent{Ref: 1, At: 2 * sec})
		w.AddRequest(&timeline.Request{Ref: 1, Sent: sec, Done: 3 * sec})
		must(t, w.Close())
	}
	r := openReader(t, dir)
	opens, tokens, requests := all(t, r.Opens()), all(t, r.Tokens()), all(t, r.Requests())
	for i := range 2 {
		if opens[i].Ref != tokens[i].Ref || tokens[i].Ref != requests[i].Ref {
			t.Errorf("process %d: numbers %d, %d and %d, want one", i, opens[i].Ref, tokens[i].Ref, requests[i].Ref)
		}
	}
	if opens[0].Ref != 1 || opens[1].Ref == 1 {
		t.Errorf("numbers %d and %d, want 1 and another", opens[0].Ref, opens[1].Ref)
	}
}

func TestAddingATokenAllocatesNothing(t *testing.T) {
	w, _ := create(t, record.Options{BatchRows: 4096})
	for range 4000 {
		w.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
	}
	must(t, w.Flush())
	if n := testing.AllocsPerRun(1000, func() { w.AddToken(timeline.TokenEvent{Ref: 1, At: sec}) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	must(t, w.Close())
}

func TestOpenMakesARecordingWhereThereIsNone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for range 2 {
		w, err := record.Open(dir, meta(), record.Options{})
		must(t, err)
		w.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
		must(t, w.Close())
	}
	if n := len(all(t, openReader(t, dir).Tokens())); n != 2 {
		t.Errorf("%d tokens, want one of each process", n)
	}
}

func TestCreateRefusesARecording(t *testing.T) {
	_, dir := create(t, record.Options{})
	if _, err := record.Create(dir, meta(), record.Options{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create() over a recording: %v, want exists", err)
	}
}

func TestTheRingKeepsTheNewest(t *testing.T) {
	const limit = 200_000
	w, dir := create(t, record.Options{MaxBytes: limit, SegmentBytes: 20_000})
	for i := range timeline.Instant(300) {
		for j := range timeline.Instant(100) {
			w.AddToken(timeline.TokenEvent{Ref: uint64(i*7919+j*104729) % 1e9, At: i*sec + j*1e6 + i*j%997})
		}
		must(t, w.Flush())
	}
	s := w.Stats()
	must(t, w.Close())
	if s.Deleted == 0 || s.Bytes > limit || s.Written <= limit {
		t.Errorf("stats %+v: want deleted files and at most %d bytes", s, limit)
	}
	if s.BytesPerHour <= 0 || s.Rows["tokens"] != 30_000 || s.Dropped["tokens"] != 0 {
		t.Errorf("stats %+v: want a rate, 30000 rows and none dropped", s)
	}
	var size int64
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		size += info.Size()
	}
	if size > limit+2000 {
		t.Errorf("directory holds %d bytes, want at most %d and %s", size, limit, "meta.json")
	}
	tokens := all(t, openReader(t, dir).Tokens())
	if n := len(tokens); n == 0 || tokens[n-1].At.Seconds() < 299 {
		t.Errorf("%d rows, want the newest", n)
	}
}

func TestASegmentEndsByAge(t *testing.T) {
	w, dir := create(t, record.Options{SegmentAge: 10 * time.Second})
	for i := range timeline.Instant(35) {
		w.AddEvent(timeline.Event{At: (i + 1) * sec, Kind: timeline.EventMarker, GPU: timeline.NoGPU})
		must(t, w.Flush())
	}
	must(t, w.Close())
	for n := range 4 {
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("events-%06d.arrows", n+1))); err != nil {
			t.Error(err)
		}
	}
	if n := len(all(t, openReader(t, dir).Events())); n != 35 {
		t.Errorf("%d events, want 35", n)
	}
}

func TestARecordingIsOneWritersAtATime(t *testing.T) {
	a, dir := create(t, record.Options{})
	a.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
	before, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	must(t, err)
	other := meta()
	other.Note = "another process"
	if _, err := record.Open(dir, other, record.Options{}); !errors.Is(err, record.ErrBusy) {
		t.Errorf("Open() of a recording that is being written: %v, want %v", err, record.ErrBusy)
	}
	after, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	must(t, err)
	if string(before) != string(after) {
		t.Error("a writer that was refused changed meta.json")
	}
	must(t, a.Close())
	b, err := record.Open(dir, other, record.Options{})
	must(t, err)
	must(t, b.Close())
	if n := len(all(t, openReader(t, dir).Tokens())); n != 1 {
		t.Errorf("%d tokens, want 1", n)
	}
}

// A pipe would be waited for, and a device never ends.
func TestWhatIsNoFileIsRefused(t *testing.T) {
	w, dir := create(t, record.Options{})
	w.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
	must(t, w.Close())
	must(t, os.Rename(filepath.Join(dir, "tokens-000001.arrows"), filepath.Join(dir, "kept")))
	must(t, unix.Mkfifo(filepath.Join(dir, "tokens-000001.arrows"), 0o600))
	said := 0
	for _, err := range openReader(t, dir).Tokens() {
		if err != nil {
			said++
		}
	}
	if said != 1 {
		t.Errorf("a pipe in place of a file was told %d times, want once", said)
	}
	must(t, os.Remove(filepath.Join(dir, "meta.json")))
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, "meta.json")))
	if _, err := record.OpenReader(dir); err == nil {
		t.Error("a device passes for meta.json")
	}
}

func TestAWriterThatWasClosedTakesNothing(t *testing.T) {
	w, dir := create(t, record.Options{BatchRows: 2})
	must(t, w.Close())
	for range 3 {
		w.AddToken(timeline.TokenEvent{Ref: 1, At: sec})
	}
	if n := w.Stats().Dropped["tokens"]; n != 3 {
		t.Errorf("%d rows dropped, want 3", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "tokens-000001.arrows")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat() = %v, want no file", err)
	}
}
