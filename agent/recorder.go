package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// recorder writes what the store queues, and the cells that come out, once a second. A disk that is full or slow
// loses rows, which are counted; it never holds up what measures or concludes.
type recorder struct {
	store *Store
	log   *slog.Logger

	// Of the one goroutine that runs the recorder.
	writer  *record.Writer                 // nil while the recording cannot be begun
	open    func() (*record.Writer, error) // begins it
	again   time.Time                      // when that is tried next
	targets []timeline.Target              // as they were told last while there was no writer
	back    pending
	spare   []correlate.Cell
	calm    int   // writes since the last one that lost rows
	why     error // what the disk said last
	vague   bool  // meta.json does not hold all that is known: writing it failed

	lost    atomic.Uint64 // rows that the disk did not take, and cells that found no place in the queue
	failing atomic.Bool   // rows were lost of late

	mu    sync.Mutex
	cells []correlate.Cell
}

// maxPendingCells bounds the cells that wait to be written.
const maxPendingCells = 1 << 12

// openAgain is the time between two attempts to begin a recording.
const openAgain = 10 * time.Second

// newRecorder begins a segment in dir, which may hold a recording already. An agent that comes back to a disk that is
// full, or that has been damaged meanwhile, is needed all the same: then it goes on without a recording, says so, and
// begins it when it can. A place that never held one, or in which another process writes, is an error.
func newRecorder(dir string, m record.Meta, o record.Options, store *Store, log *slog.Logger) (*recorder, error) {
	r := &recorder{store: store, log: log}
	r.open = func() (*record.Writer, error) {
		w, err := record.Open(dir, m, o)
		if err != nil {
			return nil, fmt.Errorf("open recording: %w", err)
		}
		return w, nil
	}
	var err error
	if r.writer, err = r.open(); err != nil {
		if errors.Is(err, record.ErrBusy) || !record.Holds(dir) {
			return nil, err
		}
		r.failing.Store(true)
		r.log.Warn("recording loses rows", slog.Any("err", err))
	}
	return r, nil
}

// reopen begins the recording if that failed before, and reports whether there is one.
func (r *recorder) reopen(now time.Time) bool {
	if r.writer != nil {
		return true
	}
	if now.Before(r.again) {
		return false
	}
	r.again = now.Add(openAgain)
	w, err := r.open()
	if err != nil {
		return false // as was said
	}
	r.writer = w
	if r.back.gpus == nil {
		r.back.gpus = r.store.GPUs()
	}
	if r.back.targets == nil {
		r.back.targets = r.targets
	}
	return true
}

// skip counts what was drained and cannot be written.
func (r *recorder) skip() {
	q := &r.back
	if q.targets != nil {
		r.targets = q.targets
	}
	rows := len(q.samples) + len(q.engine) + len(q.host) + len(q.anchors) + len(q.opens) + len(q.requests) + len(q.tokens) + len(q.events)
	r.lost.Add(uint64(rows + len(r.takeCells())))
}

// addCells queues conclusions.
func (r *recorder) addCells(cells []correlate.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := min(len(cells), maxPendingCells-len(r.cells))
	r.cells = append(r.cells, cells[:room]...)
	r.lost.Add(uint64(len(cells) - room))
}

// takeCells hands over the queued conclusions.
func (r *recorder) takeCells() []correlate.Cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.cells
	clear(r.spare) // lets go of what the cells hold
	r.cells, r.spare = r.spare[:0], full
	return full
}

// run writes each second until done is closed, and then writes what is left.
func (r *recorder) run(done <-chan struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.write(time.Now())
		case <-done:
			r.write(time.Now())
			return r.close()
		}
	}
}

func (r *recorder) close() error {
	if r.writer == nil {
		return nil
	}
	if err := r.writer.Close(); err != nil {
		return fmt.Errorf("close recording: %w", err)
	}
	return nil
}

// write hands everything queued to the writer and flushes it.
func (r *recorder) write(now time.Time) {
	r.back = r.store.drain(r.back)
	if !r.reopen(now) {
		r.skip()
		return
	}
	before := r.dropped()
	err := r.describe()
	r.addRows()
	for _, c := range r.takeCells() {
		r.writer.AddCell(&c)
	}
	if flushed := r.writer.Flush(); err == nil {
		err = flushed
	}
	lost := r.dropped() - before
	r.lost.Add(lost)
	r.tell(lost > 0 || r.vague, err)
}

// calmWrites is how many writes in a row must lose nothing for a recording to go on: a disk that is nearly full takes one
// row and not the next.
const calmWrites = 5

// tell notes whether rows were lost, and logs when that changes.
func (r *recorder) tell(failing bool, err error) {
	if err != nil {
		r.why = err // of a kind of row whose trouble goes on it is not told again
	}
	if r.calm++; failing {
		r.calm = 0
	}
	switch was := r.failing.Load(); {
	case failing && !was:
		r.failing.Store(true)
		r.log.Warn("recording loses rows", slog.Any("err", r.why))
	case was && r.calm >= calmWrites:
		r.failing.Store(false)
		r.log.Info("recording goes on", slog.Uint64("rows_lost", r.lost.Load()))
	case err != nil && !was:
		r.log.Warn("recording complains", slog.Any("err", err))
	}
}

// rows returns how many rows were written.
func (r *recorder) rows() int64 {
	if r.writer == nil {
		return 0
	}
	var n int64
	for _, rows := range r.writer.Stats().Rows {
		n += rows
	}
	return n
}

// dropped returns how many rows the disk did not take so far.
func (r *recorder) dropped() uint64 {
	var n int64
	for _, rows := range r.writer.Stats().Dropped {
		n += rows
	}
	return uint64(n)
}

// describe writes down what the rows refer to, again if that failed before.
func (r *recorder) describe() error {
	var err error
	if r.back.gpus != nil {
		err = r.writer.SetGPUs(r.back.gpus)
	}
	if r.back.targets != nil || r.vague {
		err = errors.Join(err, r.writer.SetTargets(r.back.targets))
	}
	if r.vague = err != nil; r.vague {
		return fmt.Errorf("describe recording: %w", err)
	}
	return nil
}

// addRows hands what was drained to the writer.
func (r *recorder) addRows() {
	q, w := &r.back, r.writer
	for i := range q.anchors {
		w.AddAnchor(q.anchors[i])
	}
	for i := range q.samples {
		w.AddSample(&q.samples[i])
	}
	for i := range q.engine {
		w.AddEngine(&q.engine[i])
	}
	for i := range q.host {
		w.AddHost(&q.host[i])
	}
	for i := range q.opens {
		w.AddOpen(&q.opens[i])
	}
	for i := range q.tokens {
		w.AddToken(q.tokens[i])
	}
	for i := range q.requests {
		w.AddRequest(&q.requests[i])
	}
	for i := range q.events {
		w.AddEvent(q.events[i])
	}
}
