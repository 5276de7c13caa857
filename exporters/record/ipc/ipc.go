// Package ipc reads Arrow IPC streams that may be torn, damaged or hostile, within stated bounds. It knows the part of
// the format that recordings use: flat columns of five types, packed with zstd or not at all, and no dictionaries.
//
// Arrow's own reader is not used because it allocates by lengths that it takes from the file unchecked, so that one
// flipped bit ends the process for lack of memory, and because it starts a decompressor for each buffer, which costs
// five times the rest where batches are small.
package ipc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxMessageBytes bounds the head of one message: a batch of a hundred columns needs five kilobytes.
	maxMessageBytes = 1 << 20
	// maxBodyBytes bounds a batch on disk, and all its buffers once they are unpacked.
	maxBodyBytes = 64 << 20
)

// MaxRows is the most rows that a batch may hold.
const MaxRows = 16384

// ErrTorn says that a file ends inside a message, as it does when its writer died: all batches before are whole.
var ErrTorn = errors.New("ends inside a batch")

// ErrDamaged says that a file holds bytes that make no message: what comes after them cannot be read.
var ErrDamaged = errors.New("damaged")

// Stream reads the batches of one file. It is not safe for concurrent use.
type Stream struct {
	disk     io.Closer
	in       *bufio.Reader
	unpacker *zstd.Decoder
	left     int64 // bytes of the file that were not read
	metadata map[string]string
	columns  []Column
	rows     int

	head   []byte
	body   []byte
	spare  [][]byte // unpacked buffers of the batch before, by position
	budget int64
}

// Open reads the schema from disk, of which size bytes are to be read, and takes disk over, also when it fails.
func Open(disk io.ReadCloser, size int64, unpacker *zstd.Decoder) (*Stream, error) {
	s := &Stream{disk: disk, in: bufio.NewReaderSize(disk, 1<<16), unpacker: unpacker, left: size}
	head, err := s.message()
	if errors.Is(err, io.EOF) {
		err = ErrTorn // the writer died before its first write was whole
	}
	if err == nil {
		err = s.schema(head)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the file.
func (s *Stream) Close() { _ = s.disk.Close() } // was only read

// Left returns how many bytes of the file were not read.
func (s *Stream) Left() int64 { return s.left }

// Rows returns how many rows the batch has that Next read.
func (s *Stream) Rows() int { return s.rows }

// Metadata returns the value of that key in the schema's metadata, empty if there is none.
func (s *Stream) Metadata(key string) string { return s.metadata[key] }

// Find returns the column of that name, or nil. It is valid until the batch after. Columns are best asked for in the
// order in which they were written, which next remembers from call to call, from zero on.
func (s *Stream) Find(name string, next *int) *Column {
	for i := range s.columns {
		if c := &s.columns[(*next+i)%len(s.columns)]; c.Name == name {
			*next += i + 1
			return c
		}
	}
	return nil
}

// fill reads len(b) bytes.
func (s *Stream) fill(b []byte) error {
	n, err := io.ReadFull(s.in, b)
	s.left -= int64(n)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTorn
	}
	return err
}

// The kinds of message, as Message.fbs of the Arrow format numbers them.
const (
	schemaMessage = 1
	batchMessage  = 3
)

// message reads the next message: its head is returned, its body lies in s.body. It returns [io.EOF] at the end of
// the stream, marked or not.
func (s *Stream) message() (fbTable, error) {
	var prefix [8]byte // a continuation marker and the length of the head
	if err := s.fill(prefix[:4]); err != nil {
		return fbTable{}, err
	}
	if binary.LittleEndian.Uint32(prefix[:4]) != math.MaxUint32 {
		return fbTable{}, fmt.Errorf("%w: no message where one should begin", ErrDamaged)
	}
	if err := s.whole(s.fill(prefix[4:])); err != nil {
		return fbTable{}, err
	}
	n := int64(binary.LittleEndian.Uint32(prefix[4:]))
	switch {
	case n == 0:
		return fbTable{}, io.EOF
	case n > maxMessageBytes:
		return fbTable{}, fmt.Errorf("%w: a message with a head of %d bytes", ErrDamaged, n)
	case n > s.left:
		return fbTable{}, ErrTorn
	}
	s.head = sized(s.head, int(n))
	if err := s.whole(s.fill(s.head)); err != nil {
		return fbTable{}, err
	}
	head, ok := fbRoot(s.head)
	length := head.int64(3)
	switch {
	case !ok || length < 0 || length > maxBodyBytes:
		return fbTable{}, fmt.Errorf("%w: a message with a body of %d bytes", ErrDamaged, length)
	case length > s.left:
		return fbTable{}, ErrTorn
	}
	s.body = sized(s.body, int(length))
	return head, s.whole(s.fill(s.body))
}

// whole turns the end of the file inside a message into ErrTorn.
func (s *Stream) whole(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrTorn
	}
	return err
}

// sized returns b with n bytes, in its own memory if that suffices.
func sized(b []byte, n int) []byte {
	if n <= cap(b) {
		return b[:n]
	}
	return make([]byte, n)
}

// schema takes the columns and the metadata from a schema message.
func (s *Stream) schema(message fbTable) error {
	schema, ok := message.child(2)
	if message.byte(1) != schemaMessage || !ok {
		return fmt.Errorf("%w: does not begin with a schema", ErrDamaged)
	}
	if schema.int16(0) != 0 {
		return fmt.Errorf("%w: not little-endian", ErrDamaged)
	}
	for _, f := range schema.tables(1) {
		c := Column{Name: f.string(0), Type: typeOf(f), metadata: f.pairs(6)}
		if c.Type == Unsupported {
			return fmt.Errorf("%w: column %q has %s", ErrDamaged, c.Name, c.Type)
		}
		s.columns = append(s.columns, c)
	}
	s.metadata = schema.pairs(2)
	return nil
}

// typeOf returns the type of a field, by the numbers of Schema.fbs of the Arrow format.
func typeOf(f fbTable) Type {
	const (
		integer, floatingPoint, utf8, boolean = 2, 3, 5, 6
		double                                = 2
	)
	t, ok := f.child(3)
	if _, dictionary := f.child(4); !ok || dictionary {
		return Unsupported
	}
	switch kind := f.byte(2); {
	case kind == integer && t.int32(0) == 64 && t.byte(1) == 1:
		return Int64
	case kind == integer && t.int32(0) == 8 && t.byte(1) == 0:
		return Uint8
	case kind == floatingPoint && t.int16(0) == double:
		return Float64
	case kind == utf8:
		return String
	case kind == boolean:
		return Bool
	}
	return Unsupported
}

// Next reads the next batch. It returns [io.EOF] at the end of the stream, marked or not, and otherwise [ErrTorn],
// [ErrDamaged] or what the disk said.
func (s *Stream) Next() error {
	message, err := s.message()
	if err != nil {
		return err
	}
	batch, ok := message.child(2)
	if message.byte(1) != batchMessage || !ok {
		return fmt.Errorf("%w: a message that is no batch", ErrDamaged)
	}
	rows := batch.int64(0)
	if rows < 0 || rows > MaxRows {
		return fmt.Errorf("%w: a batch of %d rows", ErrDamaged, rows)
	}
	s.rows = int(rows)
	packed := false
	if compression, ok := batch.child(3); ok {
		if packed = true; compression.byte(0) != 1 {
			return fmt.Errorf("%w: packed by other means than zstd", ErrDamaged)
		}
	}
	s.budget = maxBodyBytes
	nodes, n := batch.vector(1, 16)
	buffers := &bufferList{stream: s, packed: packed}
	buffers.at, buffers.n = batch.vector(2, 16)
	if n != len(s.columns) {
		return fmt.Errorf("%w: a batch of %d columns, want %d", ErrDamaged, n, len(s.columns))
	}
	for i := range s.columns {
		c := &s.columns[i]
		length := binary.LittleEndian.Uint64(s.head[nodes+16*i:])
		c.nulls = int(min(binary.LittleEndian.Uint64(s.head[nodes+16*i+8:]), MaxRows))
		if length != uint64(rows) {
			return fmt.Errorf("%w: column %s has %d rows, want %d", ErrDamaged, c.Name, length, rows)
		}
		if err := buffers.load(c, s.rows); err != nil {
			return fmt.Errorf("%w: column %s: %w", ErrDamaged, c.Name, err)
		}
	}
	return nil
}

// bufferList hands out the buffers of a batch in their order.
type bufferList struct {
	stream *Stream
	packed bool
	at, n  int // where the list lies in the head
	i      int
}

// load gives c its buffers.
func (l *bufferList) load(c *Column, rows int) error {
	c.valid, c.offsets = nil, nil
	bitmap := (rows + 7) / 8
	valid, err := l.next(bitmap, bitmap+64)
	if err != nil && c.nulls > 0 {
		return err
	}
	if c.nulls > 0 {
		c.valid = valid
	}
	need := 0
	switch c.Type {
	case Int64, Float64:
		need = 8 * rows
	case Uint8:
		need = rows
	case Bool:
		need = bitmap
	case String:
		if rows > 0 {
			need = 4 * (rows + 1)
		}
		if c.offsets, err = l.next(need, need+64); err != nil {
			return err
		}
		c.data, err = l.next(0, maxBodyBytes)
		return err
	case Unsupported:
	}
	c.data, err = l.next(need, need+64)
	return err
}

var (
	errNoBuffer = errors.New("a buffer is missing")
	errBuffer   = errors.New("a buffer of the wrong size")
)

// next returns the next buffer, of at least need and at most limit bytes.
func (l *bufferList) next(need, limit int) ([]byte, error) {
	if l.i >= l.n {
		return nil, errNoBuffer
	}
	entry := l.stream.head[l.at+16*l.i:]
	offset, length := binary.LittleEndian.Uint64(entry), binary.LittleEndian.Uint64(entry[8:])
	i := l.i
	l.i++
	body := l.stream.body
	if offset > uint64(len(body)) || length > uint64(len(body))-offset {
		return nil, errBuffer
	}
	b := body[offset : offset+length]
	if l.packed && length > 0 {
		var err error
		if b, err = l.stream.unpack(i, b, limit); err != nil {
			return nil, err
		}
	}
	if len(b) < need || len(b) > limit && l.packed {
		return nil, errBuffer
	}
	return b, nil
}

// unpack returns the buffer at position i, which says how long it is unpacked, -1 meaning that it is not packed.
func (s *Stream) unpack(i int, b []byte, limit int) ([]byte, error) {
	if len(b) < 8 {
		return nil, errBuffer
	}
	size := int64(binary.LittleEndian.Uint64(b))
	if size == -1 {
		return b[8:], nil
	}
	s.budget -= size
	if size < 0 || size > int64(limit) || s.budget < 0 {
		return nil, errBuffer
	}
	for len(s.spare) <= i {
		s.spare = append(s.spare, nil)
	}
	if cap(s.spare[i]) < int(size) {
		s.spare[i] = make([]byte, 1<<bits.Len(uint(size)))
	}
	out, err := s.unpacker.DecodeAll(b[8:], s.spare[i][:0:size])
	if err != nil {
		return nil, err
	}
	if len(out) != int(size) {
		return nil, errBuffer
	}
	return out, nil
}

// NewUnpacker returns a decoder for [Open] that never grows what it is handed. Streams may share it.
func NewUnpacker() (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(maxBodyBytes))
	if err != nil {
		return nil, fmt.Errorf("make decompressor: %w", err)
	}
	return d, nil
}
