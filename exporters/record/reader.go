package record

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// ErrTorn says that a file ends inside a batch, as it does when its writer died: all batches before are whole.
var ErrTorn = errors.New("ends inside a batch")

// ErrDamaged says that a file holds bytes that make no batch: what comes after them cannot be read.
var ErrDamaged = errors.New("damaged")

// FileError is what is wrong with one file of a recording. Its rows before the fault were delivered, and what reads
// the recording goes on with the next file. Err is, or wraps, [ErrTorn] or [ErrDamaged], or tells why the file cannot
// be read at all.
type FileError struct {
	File string // name inside the recording's directory
	Rows int64  // read before
	Err  error
}

// Error names the file, what is wrong, and how much of it was read.
func (e *FileError) Error() string {
	return fmt.Sprintf("read %s: %v (after %d rows)", e.File, e.Err, e.Rows)
}

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

// Reader reads a recording, also one that is being written. It is not safe for concurrent use, but several Readers of
// one recording are.
//
// Iterators deliver rows in the order of the files. A fault of a file comes as a nil row with a [*FileError], once,
// and the iteration goes on: who wants all there is keeps going, who wants certainty stops. Rows are valid until the
// next step.
type Reader struct {
	dir   string
	meta  Meta
	gpus  gpuList
	files []bootFile
}

// bootFile is a segment file and the boot during which it was written: instants of different boots never compare.
type bootFile struct {
	file
	boot string
}

// OpenReader opens the recording in dir.
func OpenReader(dir string) (*Reader, error) {
	m, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	files, err := listFiles(dir)
	if err != nil {
		return nil, err
	}
	r := &Reader{dir: dir, meta: m, gpus: gpuList{m.GPUs}}
	slices.SortStableFunc(files, func(a, b file) int { return a.number - b.number })
	for _, f := range files {
		r.files = append(r.files, bootFile{f, r.bootOf(f)})
	}
	r.inheritBoots()
	return r, nil
}

// bootOf returns the boot that f's schema names, and nothing if f is too short or too damaged to tell.
func (r *Reader) bootOf(f file) string {
	disk, err := os.Open(r.path(f))
	if err != nil {
		return ""
	}
	s, err := openStream(disk, f.bytes)
	if err != nil {
		return ""
	}
	defer s.Release()
	boot, _ := s.Schema().Metadata().GetValue("boot_id")
	return boot
}

// inheritBoots gives a file that does not tell its boot that of its neighbours, so that its fault is reported there.
func (r *Reader) inheritBoots() {
	boot := r.meta.BootID
	for i := range r.files {
		if r.files[i].boot == "" {
			r.files[i].boot = boot
		}
		boot = r.files[i].boot
	}
}

// Meta returns what meta.json says. Positions of GPUs in rows refer to its list.
func (r *Reader) Meta() Meta { return r.meta }

// Dir returns the directory of the recording.
func (r *Reader) Dir() string { return r.dir }

// Boots returns the boots of the host during which the recording was written, in order. Rows of different boots have
// no common timeline.
func (r *Reader) Boots() []string {
	var boots []string
	for _, f := range r.files {
		if !slices.Contains(boots, f.boot) {
			boots = append(boots, f.boot)
		}
	}
	return boots
}

func (r *Reader) path(f file) string { return filepath.Join(r.dir, fileName(f.kind, f.number)) }

// of returns the files of kind k, in order, of one boot or, without one, of all.
func (r *Reader) of(k Kind, boot string, all bool) []file {
	var files []file
	for _, f := range r.files {
		if f.kind == k && (all || f.boot == boot) {
			files = append(files, f.file)
		}
	}
	return files
}

// Anchors yields the readings of the host's clocks.
func (r *Reader) Anchors() iter.Seq2[*timeline.Anchor, error] { return scan(r, anchorTable()) }

// Events yields the events of the node.
func (r *Reader) Events() iter.Seq2[*timeline.Event, error] { return scan(r, eventTable(&r.gpus)) }

// Engine yields the scrapes of engines.
func (r *Reader) Engine() iter.Seq2[*timeline.EngineSample, error] { return scan(r, engineTable()) }

// Host yields the readings of the host.
func (r *Reader) Host() iter.Seq2[*timeline.HostSample, error] { return scan(r, hostTable()) }

// Samples yields the readings of GPUs.
func (r *Reader) Samples() iter.Seq2[*timeline.Sample, error] { return scan(r, sampleTable(&r.gpus)) }

// Opens yields requests as they were sent.
func (r *Reader) Opens() iter.Seq2[*timeline.Request, error] { return scan(r, openTable()) }

// Tokens yields the token events.
func (r *Reader) Tokens() iter.Seq2[*timeline.TokenEvent, error] { return scan(r, tokenTable()) }

// Requests yields requests as they ended.
func (r *Reader) Requests() iter.Seq2[*timeline.Request, error] { return scan(r, requestTable()) }

// Cells yields what was concluded when the recording was written.
func (r *Reader) Cells() iter.Seq2[*correlate.Cell, error] {
	return func(yield func(*correlate.Cell, error) bool) {
		var cell *correlate.Cell
		for row, err := range scan(r, cellTable(&r.gpus)) {
			switch {
			case err != nil:
				if !yield(nil, err) {
					return
				}
			case row.whole():
				if cell != nil && !yield(cell, nil) {
					return
				}
				c := row.Cell
				cell = &c
			case cell != nil && cell.Target == row.Target && cell.Span == row.Span:
				cell.PerGPU = append(cell.PerGPU, row.perGPU(&r.gpus))
			}
		}
		if cell != nil {
			yield(cell, nil)
		}
	}
}

// scan yields the rows of all files of a kind.
func scan[T any](r *Reader, t *table[T]) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for _, f := range r.of(t.kind, "", true) {
			if !scanFile(r, f, t, yield) {
				return
			}
		}
	}
}

// scanFile yields the rows of one file, and reports whether to go on.
func scanFile[T any](r *Reader, f file, t *table[T], yield func(*T, error) bool) bool {
	b := openBatches(r.path(f), f, t)
	defer b.close()
	for {
		rows, err := b.next()
		for i := range rows {
			if !yield(&rows[i], nil) {
				return false
			}
		}
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return yield(nil, err)
		}
	}
}

// batches reads one file batch by batch, into the same rows.
type batches[T any] struct {
	table *table[T]
	file  file
	ipc   *batchStream
	rows  []T
	read  int64
	ended error // what next returns from now on
}

// openBatches opens a file. That it cannot be read is for next to say.
func openBatches[T any](path string, f file, t *table[T]) *batches[T] {
	b := &batches[T]{table: t, file: f}
	disk, err := os.Open(path)
	if err != nil {
		b.fail(err)
		return b
	}
	b.open(disk, f.bytes)
	return b
}

// open reads the schema from disk, of which size bytes are to be read, and takes disk over.
func (b *batches[T]) open(disk io.ReadCloser, size int64) {
	s, err := openStream(disk, size)
	if err != nil {
		b.fail(err)
		return
	}
	b.ipc = s
}

// fail ends the file with err.
func (b *batches[T]) fail(err error) {
	b.ended = &FileError{File: fileName(b.file.kind, b.file.number), Rows: b.read, Err: err}
}

// next returns the next batch, valid until the one after, or [io.EOF], or a [*FileError].
func (b *batches[T]) next() ([]T, error) {
	if b.ended != nil {
		return nil, b.ended
	}
	batch, err := b.ipc.next()
	if errors.Is(err, io.EOF) {
		b.ended = io.EOF
		return nil, b.ended
	}
	if err == nil {
		err = b.load(batch)
	}
	if err != nil {
		b.fail(err)
		return nil, b.ended
	}
	b.read += int64(len(b.rows))
	return b.rows, nil
}

// load turns a batch into rows. The batch comes from a file that may be damaged in ways that Arrow does not check.
func (b *batches[T]) load(batch arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	n := batch.NumRows()
	if n < 0 || n > maxBatchRows {
		return fmt.Errorf("%w: a batch of %d rows", ErrDamaged, n)
	}
	b.rows = slices.Grow(b.rows[:0], int(n))[:n]
	clear(b.rows)
	if b.table.init != nil {
		for i := range b.rows {
			b.table.init(&b.rows[i])
		}
	}
	for _, c := range b.table.columns {
		at := batch.Schema().FieldIndices(c.field.Name)
		if len(at) == 0 {
			continue
		}
		if err := c.get(chunk{batch.Column(at[0]), batch.Schema().Field(at[0])}, b.rows); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	if b.table.check == nil {
		return nil
	}
	for i := range b.rows {
		if err := b.table.check(&b.rows[i]); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return nil
}

func (b *batches[T]) close() {
	if b.ipc != nil {
		b.ipc.Release()
	}
}

// batchStream is an Arrow stream in a file that may be torn, damaged or hostile.
type batchStream struct {
	*ipc.Reader

	disk io.Closer
}

// openStream reads the schema from disk and takes disk over.
func openStream(disk io.ReadCloser, size int64) (*batchStream, error) {
	limits := []ipc.Option{
		ipc.WithAllocator(boundedAllocator{}),
		ipc.WithMetadataSizeLimit(min(maxBufferBytes, max(1, size))),
		ipc.WithBodySizeLimit(min(maxBufferBytes, max(1, size))),
	}
	r, err := ipc.NewReaderFromMessageReader(ipc.NewMessageReader(bufio.NewReaderSize(disk, 1<<16), limits...), limits...)
	if err != nil {
		return nil, errors.Join(fault(err, true), disk.Close())
	}
	return &batchStream{r, disk}, nil
}

// Release closes the file.
func (s *batchStream) Release() {
	s.Reader.Release()
	_ = s.disk.Close() // was only read
}

// next returns the next batch, valid until the one after.
func (s *batchStream) next() (arrow.RecordBatch, error) {
	if s.Next() {
		return s.RecordBatch(), nil
	}
	if s.Err() == nil {
		return nil, io.EOF
	}
	return nil, fault(s.Err(), false)
}

// fault says whether a stream is torn or damaged. A file without a whole schema is torn: its writer died first.
func fault(err error, schema bool) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || schema && errors.Is(err, io.EOF) {
		return ErrTorn
	}
	var disk *os.PathError
	if errors.As(err, &disk) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// maxBufferBytes bounds each allocation for a batch, whatever the file says of its own sizes: a batch of the most
// rows is well below.
const maxBufferBytes = 32 << 20

// boundedAllocator allocates for a reader. What it refuses it answers with nothing, on which Arrow's reader fails the
// batch.
type boundedAllocator struct{}

// Allocate returns size bytes, or none if that is more than a batch may take.
func (boundedAllocator) Allocate(size int) []byte {
	if size < 0 || size > maxBufferBytes {
		return nil
	}
	return make([]byte, size)
}

// Reallocate returns b with a new size, or none if that is more than a batch may take.
func (a boundedAllocator) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) && size >= 0 {
		return b[:size]
	}
	grown := a.Allocate(size)
	copy(grown, b)
	return grown
}

// Free does nothing: the collector takes what is left.
func (boundedAllocator) Free([]byte) {}
