package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// diskFile is what a segment needs of an *os.File.
type diskFile interface {
	io.WriteCloser
	Truncate(size int64) error
	Sync() error
}

// createFile creates path and refuses one that exists: it would be another writer's.
func createFile(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
}

// flusher is a stream of any kind.
type flusher interface {
	flush(w *Writer) error
	end(w *Writer) (file, error)
	bytes() int64
	counts() (rows, dropped int64)
}

// stream writes the rows of one kind: into one file a segment, which begins with the first row.
type stream[T any] struct {
	table   *table[T]
	rows    []T
	build   *array.RecordBuilder
	seg     *segment // nil: none begun
	failing bool     // the last attempt failed, and was told
	written int64
	dropped int64
}

// segment is an open file. A batch is encoded in memory first, so that the disk sees whole batches in one write, and
// one that did not fit is cut off again.
type segment struct {
	file
	disk diskFile
	ipc  *ipc.Writer
	buf  bytes.Buffer
	pack bool
}

func newStream[T any](t *table[T]) *stream[T] { return &stream[T]{table: t} }

func (s *stream[T]) bytes() int64 {
	if s.seg == nil {
		return 0
	}
	return s.seg.bytes
}

func (s *stream[T]) counts() (rows, dropped int64) { return s.written, s.dropped }

// flush writes the rows as batches. Rows that cannot be written are dropped. The error is of the first failure in a
// row of them.
func (s *stream[T]) flush(w *Writer) error {
	if len(s.rows) == 0 {
		return nil
	}
	rows := s.rows
	s.rows = s.rows[:0]
	defer clear(rows) // lets go of their strings
	for len(rows) > 0 {
		batch := rows[:min(len(rows), w.opts.BatchRows)]
		if err := s.write(w, batch); err != nil {
			s.dropped += int64(len(rows))
			if s.failing {
				return nil
			}
			s.failing = true
			return fmt.Errorf("record %s: %w", s.table.kind, err)
		}
		s.failing = false
		s.written += int64(len(batch))
		rows = rows[len(batch):]
	}
	return nil
}

func (s *stream[T]) write(w *Writer, rows []T) error {
	if s.seg == nil {
		seg, err := begin(w, s.table)
		if err != nil {
			return err
		}
		s.seg = seg
	}
	if s.build == nil {
		s.build = array.NewRecordBuilder(memory.DefaultAllocator, s.table.schema(w.meta.BootID))
	}
	s.build.Reserve(len(rows)) // a builder that grows by doubling copies as much again
	for i, c := range s.table.columns {
		c.put(s.build.Field(i), rows)
	}
	batch := s.build.NewRecordBatch()
	defer batch.Release()
	var n int64
	err := s.seg.ipc.Write(batch)
	if err != nil {
		err = fmt.Errorf("encode batch: %w", err) // half of it may lie in the buffer
	} else {
		n, err = s.seg.store(w)
	}
	w.written += n
	if err != nil {
		s.abandon(w, err)
	}
	return err
}

// maxTries is how many segments of another process in the same directory are stepped over.
const maxTries = 1000

// begin makes the file of a stream in the Writer's segment, or in the next one that no other process has begun.
func begin[T any](w *Writer, t *table[T]) (*segment, error) {
	disk, err := w.opts.create(filepath.Join(w.dir, fileName(t.kind, w.number)))
	for try := 0; errors.Is(err, os.ErrExist) && try < maxTries; try++ {
		w.number++
		disk, err = w.opts.create(filepath.Join(w.dir, fileName(t.kind, w.number)))
	}
	if err != nil {
		return nil, fmt.Errorf("begin segment: %w", err)
	}
	seg := &segment{file: file{kind: t.kind, number: w.number}, disk: disk}
	switch t.kind {
	case Anchors, Events, Host: // a row or two a second: packed they would be bigger
	default:
		seg.pack = true
	}
	seg.ipc = ipc.NewWriter(&seg.buf, ipc.WithSchema(t.schema(w.meta.BootID)))
	w.begun++
	return seg, nil
}

// store moves what was encoded to the disk.
func (g *segment) store(w *Writer) (int64, error) {
	defer g.buf.Reset()
	b := g.buf.Bytes()
	if g.pack {
		var err error
		if b, err = w.packer.Pack(b); err != nil {
			return 0, fmt.Errorf("pack batch: %w", err)
		}
	}
	n, err := g.disk.Write(b)
	if err != nil {
		return 0, errors.Join(err, g.disk.Truncate(g.bytes))
	}
	g.bytes += int64(n)
	return int64(n), nil
}

// abandon gives up the segment's file after a write that failed, and lets the next batch begin another segment. An
// empty file goes.
func (s *stream[T]) abandon(w *Writer, cause error) {
	seg := s.seg
	s.seg = nil
	err := seg.disk.Close()
	if seg.bytes == 0 {
		err = errors.Join(err, os.Remove(filepath.Join(w.dir, fileName(seg.kind, seg.number))))
	} else {
		w.keep(seg.file)
		w.number++
	}
	if err != nil && !errors.Is(cause, err) {
		w.late = append(w.late, fmt.Errorf("abandon %s: %w", fileName(seg.kind, seg.number), err))
	}
}

// end writes the end of the stream and closes the file, and returns what it was. There may be none.
func (s *stream[T]) end(w *Writer) (file, error) {
	if s.seg == nil {
		return file{}, nil
	}
	seg := s.seg
	s.seg = nil
	err := seg.ipc.Close()
	if err == nil {
		_, err = seg.store(w)
	}
	err = errors.Join(err, seg.disk.Sync(), seg.disk.Close())
	if err != nil {
		err = fmt.Errorf("close %s: %w", fileName(seg.kind, seg.number), err)
	}
	return seg.file, err
}
