package record

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

// ErrTorn says that a file ends inside a batch, as it does when its writer died: all batches before are whole.
var ErrTorn = ipc.ErrTorn

// ErrDamaged says that a file holds bytes that make no batch: what comes after them cannot be read.
var ErrDamaged = ipc.ErrDamaged

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
	zstd  *zstd.Decoder
	meta  Meta
	gpus  gpuList
	files []bootFile
	read  int64 // bytes of files that iterators went through
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
	unpack, err := ipc.NewUnpacker()
	if err != nil {
		return nil, err
	}
	r := &Reader{dir: dir, zstd: unpack, meta: m, gpus: gpuList{m.GPUs}}
	slices.SortStableFunc(files, func(a, b file) int { return a.number - b.number })
	for _, f := range files {
		r.files = append(r.files, bootFile{f, r.bootOf(f)})
	}
	r.inheritBoots()
	return r, nil
}

// bootOf returns the boot that f's schema names, and nothing if f is too short or too damaged to tell.
func (r *Reader) bootOf(f file) string {
	disk, err := openRegular(r.path(f))
	if err != nil {
		return ""
	}
	s, err := ipc.Open(disk, f.bytes, r.zstd)
	if err != nil {
		return ""
	}
	defer s.Close()
	return s.Metadata(bootKey)
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

// Progress returns how many bytes all iterators of the Reader have gone through, and how many the measured rows of the
// recording take.
func (r *Reader) Progress() (read, total int64) {
	for _, f := range r.files {
		if f.kind != Cells {
			total += f.bytes
		}
	}
	return r.read, total
}

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

// Extent returns the earliest and the latest instant of the measured rows of one boot, and whether there are any. It
// reads little: of each kind the first batch and the last file.
func (r *Reader) Extent(boot string) (first, last timeline.Instant, ok bool) {
	var span timeline.Span
	for _, k := range Kinds() {
		files := r.of(k, boot, false)
		if k == Cells || len(files) == 0 {
			continue
		}
		head, tail := r.check(files[0], 1), r.check(files[len(files)-1], -1)
		for _, c := range []FileCheck{head, tail} {
			if c.Rows == 0 {
				continue
			}
			if !ok {
				span, ok = timeline.Span{Start: c.First, End: c.Last}, true
			}
			span.Start, span.End = min(span.Start, c.First), max(span.End, c.Last)
		}
	}
	return span.Start, span.End, ok
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
	b := openBatches(r, f, t)
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
	table  *table[T]
	file   file
	stream *ipc.Stream
	rows   []T
	read   int64
	total  *int64 // bytes read of all files
	ended  error  // what next returns from now on
}

// openBatches opens a file. That it cannot be read is for next to say.
func openBatches[T any](r *Reader, f file, t *table[T]) *batches[T] {
	b := &batches[T]{table: t, file: f}
	disk, err := openRegular(r.path(f))
	if err != nil {
		b.fail(err)
		return b
	}
	b.open(disk, f.bytes, r.zstd)
	b.total = &r.read
	return b
}

// open reads the schema from disk, of which size bytes are to be read, and takes disk over.
func (b *batches[T]) open(disk io.ReadCloser, size int64, unpack *zstd.Decoder) {
	s, err := ipc.Open(disk, size, unpack)
	if err != nil {
		b.fail(err)
		return
	}
	b.stream = s
	if got := s.Metadata(schemaKey); got != Schema {
		b.fail(fmt.Errorf("%w: schema is %q, want %q", ErrDamaged, got, Schema))
	}
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
	left := b.stream.Left()
	err := b.stream.Next()
	*b.total += left - b.stream.Left()
	if errors.Is(err, io.EOF) {
		b.ended = io.EOF
		return nil, b.ended
	}
	if err == nil {
		err = b.load()
	}
	if err != nil {
		b.fail(err)
		return nil, b.ended
	}
	b.read += int64(len(b.rows))
	return b.rows, nil
}

// load turns the stream's batch into rows.
func (b *batches[T]) load() error {
	n := b.stream.Rows()
	b.rows = slices.Grow(b.rows[:0], n)[:n]
	clear(b.rows)
	if b.table.init != nil {
		for i := range b.rows {
			b.table.init(&b.rows[i])
		}
	}
	next := 0
	for i := range b.table.columns {
		c := &b.table.columns[i]
		held := b.stream.Find(c.field.Name, &next)
		switch {
		case held == nil:
			continue
		case held.Type != c.typ:
			return fmt.Errorf("%w: column %s holds %s, want %s", ErrDamaged, held.Name, held.Type, c.typ)
		}
		if err := c.get(held, b.rows); err != nil {
			return fmt.Errorf("%w: column %s: %w", ErrDamaged, held.Name, err)
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
	if b.stream != nil {
		b.stream.Close()
	}
}
