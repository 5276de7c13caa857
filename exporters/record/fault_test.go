package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// disk is a device with room for a number of bytes.
type disk struct {
	room int
}

type fullFile struct {
	record.DiskFile
	disk *disk
}

// Write takes what fits, as a file system does.
func (f *fullFile) Write(p []byte) (int, error) {
	n := min(len(p), f.disk.room)
	f.disk.room -= n
	if m, err := f.DiskFile.Write(p[:n]); err != nil || n < len(p) {
		return m, errors.Join(err, syscall.ENOSPC)
	}
	return n, nil
}

func TestAFullDiskDropsAndRecovers(t *testing.T) {
	d := &disk{room: 1 << 20}
	w, dir := create(t, record.WithCreate(record.Options{}, func(path string) (record.DiskFile, error) {
		f, err := record.CreateFile(path)
		return &fullFile{f, d}, err
	}))
	second := func(i int) error {
		for j := range 50 {
			at := timeline.Instant(i)*sec + timeline.Instant(j)*20e6
			w.AddToken(timeline.TokenEvent{Ref: uint64(i), At: at})
			w.AddEvent(timeline.Event{At: at, Kind: timeline.EventMarker, GPU: timeline.NoGPU})
		}
		return w.Flush()
	}
	must(t, second(1))
	d.room = 100 // the next batch fits in part
	err := second(2)
	if !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), syscall.ENOSPC.Error()) != 2 {
		t.Errorf("Flush() on a full disk = %v, want ENOSPC for each of two kinds", err)
	}
	for i := 3; i < 6; i++ {
		if err := second(i); err != nil {
			t.Errorf("Flush() on a disk that is still full = %v, want it told once", err)
		}
	}
	d.room = 1 << 20
	must(t, second(6))
	must(t, w.Close())

	if s := w.Stats(); s.Dropped["tokens"] != 200 || s.Rows["tokens"] != 100 {
		t.Errorf("stats %+v, want 200 tokens dropped and 100 written", s)
	}
	r := openReader(t, dir)
	var refs []uint64
	for _, e := range all(t, r.Tokens()) {
		if n := len(refs); n == 0 || refs[n-1] != e.Ref {
			refs = append(refs, e.Ref)
		}
	}
	if fmt.Sprint(refs) != "[1 6]" {
		t.Errorf("seconds %v, want the first and the last", refs)
	}
	for _, c := range r.Verify() {
		if c.Condition != record.Complete && c.Condition != record.Unended {
			t.Errorf("%v, want whole batches only", c)
		}
	}
}

func TestVerifyTellsHowFilesEnd(t *testing.T) {
	w, dir := create(t, record.Options{})
	fill := func(kind func(at timeline.Instant)) {
		for i := range timeline.Instant(100) {
			kind(sec + i*1e6)
		}
	}
	fill(func(at timeline.Instant) { w.AddToken(timeline.TokenEvent{Ref: 1, At: at}) })
	fill(func(at timeline.Instant) { w.AddRequest(&timeline.Request{Ref: 1, Done: at}) })
	fill(func(at timeline.Instant) { w.AddOpen(&timeline.Request{Ref: 1, Sent: at}) })
	fill(func(at timeline.Instant) { w.AddEngine(&timeline.EngineSample{Over: timeline.Span{End: at}}) })
	must(t, w.Close())
	edit := func(name string, change func([]byte) []byte) {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, change(b), 0o600))
	}
	edit("requests-000001.arrows", func(b []byte) []byte { return b[:len(b)-8] })
	edit("opens-000001.arrows", func(b []byte) []byte { return b[:len(b)-20] })
	edit("engine-000001.arrows", func(b []byte) []byte { copy(b[len(b)-300:], make([]byte, 200)); return b })

	want := map[string]record.Condition{
		"tokens-000001.arrows": record.Complete, "requests-000001.arrows": record.Unended,
		"opens-000001.arrows": record.Torn, "engine-000001.arrows": record.Damaged,
	}
	for _, c := range openReader(t, dir).Verify() {
		if c.Condition != want[c.File] {
			t.Errorf("%v, want %s", c, want[c.File])
		}
		if c.Condition == record.Complete && (c.Rows != 100 || c.First != sec || c.Last != sec+99e6) {
			t.Errorf("%+v, want 100 rows from 1 s", c)
		}
		delete(want, c.File)
	}
	if len(want) > 0 {
		t.Errorf("not checked: %v", want)
	}
}

// killedDir names the environment variable by which the test binary learns that it is the child to be killed.
const killedDir = "TPOTSCOPE_TEST_KILLED_DIR"

// TestMain runs the child of the kill test, or the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv(killedDir); dir != "" {
		if err := writeForever(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// writeForever writes rows and flushes them every 20 ms, and prints the number of each flush when it is done.
func writeForever(dir string) error {
	w, err := record.Create(dir, meta(), record.Options{})
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		for i := range 100 {
			w.AddToken(timeline.TokenEvent{Ref: uint64(n), At: timeline.Instant(n*100+i) * 1e6})
		}
		w.AddRequest(&timeline.Request{Ref: uint64(n), Done: timeline.Instant(n) * 1e8})
		if err := w.Flush(); err != nil {
			return err
		}
		if _, err := fmt.Println(n); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // in the child alone: real time for the parent to kill it at any moment
	}
}

func TestKill9LosesAtMostWhatWasNotFlushed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL here")
	}
	self, err := os.Executable()
	must(t, err)
	dir := filepath.Join(t.TempDir(), "run")
	child := exec.Command(self)
	child.Env = append(os.Environ(), killedDir+"="+dir)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	flushed := 0
	var line []byte
	one := make([]byte, 1)
	for flushed < 25 {
		if _, err := io.ReadFull(out, one); err != nil {
			t.Fatalf("child ended early: %v", err)
		}
		if one[0] != '\n' {
			line = append(line, one[0])
			continue
		}
		flushed, err = strconv.Atoi(string(line))
		must(t, err)
		line = line[:0]
	}
	must(t, child.Process.Kill())
	rest, err := io.ReadAll(out)
	must(t, err)
	flushed += bytes.Count(rest, []byte("\n"))
	if err := child.Wait(); err == nil {
		t.Fatal("the child was not killed")
	}

	r := openReader(t, dir)
	tokens, requests := 0, 0
	for row, err := range r.Merge("boot-1") {
		switch {
		case errors.Is(err, record.ErrTorn):
		case err != nil:
			t.Fatal(err)
		case row.Kind == record.Tokens:
			tokens++
		case row.Kind == record.Requests:
			requests++
		}
	}
	if tokens < 100*flushed || requests < flushed {
		t.Errorf("%d tokens and %d requests, want at least %d and %d", tokens, requests, 100*flushed, flushed)
	}
	// The next process goes on in its own segment.
	w, err := record.Open(dir, meta(), record.Options{})
	must(t, err)
	w.AddToken(timeline.TokenEvent{Ref: 1e6, At: 1e15})
	must(t, w.Close())
	if _, err := os.Stat(filepath.Join(dir, "tokens-000002.arrows")); err != nil {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "run")
	m := meta()
	m.GPUs = nil
	w, err := record.Create(dir, m, record.Options{})
	if err != nil {
		f.Fatal(err)
	}
	request, cell := fullRequest(), fullCell()
	cell.PerGPU = nil
	for i := range 40 {
		w.AddToken(timeline.TokenEvent{Ref: uint64(i), At: timeline.Instant(i), Source: timeline.CountUsage})
		w.AddRequest(&request)
		w.AddCell(&cell)
		if i%20 == 0 {
			if err := w.Flush(); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	for _, k := range []record.Kind{record.Tokens, record.Requests, record.Cells} {
		b, err := os.ReadFile(filepath.Join(dir, k.String()+"-000001.arrows"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(k))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		rows, err := record.ReadTable(t, record.Kind(kind), io.NopCloser(bytes.NewReader(b)), int64(len(b)))
		var fault *record.FileError
		if !errors.Is(err, io.EOF) && !errors.As(err, &fault) {
			t.Errorf("error %v names no file", err)
		}
		// A batch takes a head of more than 64 bytes, and holds a bounded number of rows.
		if rows > int64(len(b)/64)*16384 {
			t.Errorf("%d rows of %d bytes", rows, len(b))
		}
	})
}

func FuzzMeta(f *testing.F) {
	f.Add([]byte(`{"schema":"tpotscope.recording/1","gpus":[{"uuid":"GPU-a"}],"targets":null}`))
	f.Add([]byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := record.ParseMeta(b); err == nil && m.Schema != record.Schema {
			t.Errorf("took schema %q", m.Schema)
		}
	})
}
