package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// begun makes a recorder in dir.
func begun(t *testing.T, dir string, s *Store) (*recorder, *bytes.Buffer, error) {
	t.Helper()
	var told bytes.Buffer
	r, err := newRecorder(dir, record.Meta{BootID: "boot"}, record.Options{}, s, slog.New(slog.NewTextHandler(&told, nil)))
	return r, &told, err
}

func TestAnAgentThatComesBackToADamagedRecordingGoesOnAndBeginsItWhenItCan(t *testing.T) {
	dir := t.TempDir()
	s := newStore(true)
	r, _, err := begun(t, dir, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(dir, "meta.json")
	good, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(meta, good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}

	r, told, err := begun(t, dir, s)
	if err != nil {
		t.Fatalf("the agent does not come up: %v", err)
	}
	s.SetGPUs([]timeline.GPU{{UUID: "GPU-1"}})
	s.SetTargets([]timeline.Target{{Name: "main"}})
	add := func() { s.AddHost(&timeline.HostSample{Over: timeline.Span{Start: 1, End: 2}}) }
	at := time.Unix(1, 0)
	for range 3 {
		add()
		r.write(at)
	}
	if n := strings.Count(told.String(), "recording loses rows"); n != 1 || !r.failing.Load() || r.lost.Load() != 3 {
		t.Errorf("it was said %d times, and %d rows were lost; want once, and three", n, r.lost.Load())
	}
	if err := os.WriteFile(meta, good, 0o600); err != nil {
		t.Fatal(err)
	}
	at = at.Add(openAgain)
	add()
	for range calmWrites {
		r.write(at)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(told.String(), "recording goes on") || r.failing.Load() || r.rows() != 1 {
		t.Errorf("with the recording mended %d rows were written and it was said:\n%s", r.rows(), told)
	}
	again, err := record.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m := again.Meta(); len(m.GPUs) != 1 || len(m.Targets) != 1 {
		t.Errorf("it names %d GPUs and %d targets, want those that were told before it began", len(m.GPUs), len(m.Targets))
	}
}

// A disk that is nearly full takes one row and not the next.
func TestADiskThatIsNearlyFullDoesNotFloodTheLog(t *testing.T) {
	r, told, err := begun(t, t.TempDir(), newStore(true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.close() }()
	r.tell(true, errors.New("no space left on device"))
	for range 100 {
		r.tell(false, nil)
		r.tell(true, nil)
	}
	if n := strings.Count(told.String(), "\n"); n != 1 || !r.failing.Load() || !strings.Contains(told.String(), "no space left") {
		t.Errorf("two hundred seconds of that are %d lines:\n%.400s", n, told)
	}
	for range calmWrites {
		r.tell(false, nil)
	}
	if r.failing.Load() || strings.Count(told.String(), "recording goes on") != 1 {
		t.Errorf("once it is over it is said:\n%.400s", told)
	}
}

func TestAPlaceThatNeverHeldARecordingIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := begun(t, filepath.Join(file, "run"), newStore(true)); err == nil {
		t.Error("a place that is a file was taken")
	}
	dir := t.TempDir()
	r, _, err := begun(t, dir, newStore(true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.close() }()
	if _, _, err := begun(t, dir, newStore(true)); !errors.Is(err, record.ErrBusy) {
		t.Errorf("a recording that another writes: %v, want %v", err, record.ErrBusy)
	}
}

func TestAQueueLetsGoOfWhatABurstTook(t *testing.T) {
	s := newStore(true)
	for i := range maxPendingRequests {
		s.Source("").OpenRequest(&timeline.Request{Ref: uint64(i + 1), ID: "name", Sent: 1})
	}
	full := s.drain(pending{})
	if len(full.opens) != maxPendingRequests {
		t.Fatalf("%d requests were queued", len(full.opens))
	}
	full.reset()
	few := pending{opens: append(make([]timeline.Request, 0, 8), timeline.Request{ID: "name"})}
	few.reset()
	if cap(full.opens) > maxIdle || few.opens[:1][0].ID != "" || cap(few.opens) != 8 {
		t.Errorf("an empty queue keeps room for %d requests, and holds %q", cap(full.opens), few.opens[:1][0].ID)
	}
}
