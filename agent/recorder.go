package agent

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// recorder writes what the store queues, and the cells that come out, once a second. A disk that is full or slow
// loses rows, which are counted; it never holds up what measures.
type recorder struct {
	store *Store
	log   *slog.Logger

	mu     sync.Mutex
	cells  []correlate.Cell
	writer *record.Writer
	back   pending
	faults uint64 // of the writer
}

// maxPendingCells bounds the cells that wait to be written.
const maxPendingCells = 1 << 12

// newRecorder begins a segment in dir, which may hold a recording already.
func newRecorder(dir string, m record.Meta, o record.Options, store *Store, log *slog.Logger) (*recorder, error) {
	w, err := record.Open(dir, m, o)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	return &recorder{store: store, log: log, writer: w}, nil
}

// addCells queues conclusions.
func (r *recorder) addCells(cells []correlate.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cells)+len(cells) <= maxPendingCells {
		r.cells = append(r.cells, cells...)
	}
}

// run writes each second until done is closed, and then writes what is left.
func (r *recorder) run(done <-chan struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.write()
		case <-done:
			r.write()
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.writer.Close(); err != nil {
				return fmt.Errorf("close recording: %w", err)
			}
			return nil
		}
	}
}

// write hands everything queued to the writer and flushes it.
func (r *recorder) write() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back = r.store.drain(r.back)
	q, w := &r.back, r.writer
	if q.gpus != nil {
		if err := w.SetGPUs(q.gpus); err != nil {
			r.fault(err)
		}
	}
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
	for i := range r.cells {
		w.AddCell(&r.cells[i])
	}
	r.cells = r.cells[:0]
	if err := w.Flush(); err != nil {
		r.fault(err)
	}
}

func (r *recorder) fault(err error) {
	r.faults++
	r.log.Warn("recording loses rows", slog.Any("err", err))
}

// failed returns how often the disk did not take what it was given.
func (r *recorder) failed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.faults
}
