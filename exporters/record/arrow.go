package record

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxMessageBytes bounds the head of one message: a batch of a hundred columns needs five kilobytes.
	maxMessageBytes = 1 << 20
	// maxBodyBytes bounds a batch on disk, and all its buffers once they are unpacked.
	maxBodyBytes = 64 << 20
)

// arrayType is the type of a column, of those that a recording holds.
type arrayType uint8

const (
	unsupportedType arrayType = iota
	int64Type
	uint8Type
	float64Type
	boolType
	stringType
)

var typeNames = [...]string{"an unsupported type", "int64", "uint8", "float64", "bool", "string"}

func (t arrayType) String() string { return typeNames[t] }

// chunk is one column of one batch. Its buffers are long enough for its rows, and are valid until the next batch.
type chunk struct {
	name  string
	typ   arrayType
	codes []string // the names that codes stand for, if it holds codes

	rows    int
	nulls   int
	valid   []byte // a bit a row; nil: all are valid
	offsets []byte // of strings
	data    []byte
}

func (c *chunk) isValid(i int) bool { return c.valid == nil || c.valid[i/8]>>(i%8)&1 != 0 }

func (c *chunk) int64(i int) int64 { return int64(binary.LittleEndian.Uint64(c.data[8*i:])) }

func (c *chunk) float64(i int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(c.data[8*i:]))
}

func (c *chunk) bool(i int) bool { return c.data[i/8]>>(i%8)&1 != 0 }

// bytes returns the text of row i, and false if the file has it outside the text there is.
func (c *chunk) bytes(i int) ([]byte, bool) {
	from, to := binary.LittleEndian.Uint32(c.offsets[4*i:]), binary.LittleEndian.Uint32(c.offsets[4*i+4:])
	if from > to || uint64(to) > uint64(len(c.data)) {
		return nil, false
	}
	return c.data[from:to], true
}

// arrowStream reads an Arrow IPC stream from a file that may be torn, damaged or hostile.
type arrowStream struct {
	disk   io.Closer
	in     *bufio.Reader
	zstd   *zstd.Decoder
	left   int64 // bytes of the file that were not read
	boot   string
	chunks []chunk
	rows   int

	head   []byte
	body   []byte
	spare  [][]byte // unpacked buffers of the batch before, by position
	budget int64
}

// openStream reads the schema from disk, of which size bytes are to be read, and takes disk over.
func openStream(disk io.ReadCloser, size int64, unpack *zstd.Decoder) (*arrowStream, error) {
	s := &arrowStream{disk: disk, in: bufio.NewReaderSize(disk, 1<<16), zstd: unpack, left: size}
	head, err := s.message()
	if errors.Is(err, io.EOF) {
		err = ErrTorn // the writer died before its first write was whole
	}
	if err == nil {
		err = s.schema(head)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *arrowStream) close() { _ = s.disk.Close() } // was only read

// fill reads len(b) bytes.
func (s *arrowStream) fill(b []byte) error {
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
func (s *arrowStream) message() (fbTable, error) {
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
func (s *arrowStream) whole(err error) error {
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

// schema takes the columns and the boot from a schema message.
func (s *arrowStream) schema(message fbTable) error {
	schema, ok := message.child(2)
	if message.byte(1) != schemaMessage || !ok {
		return fmt.Errorf("%w: does not begin with a schema", ErrDamaged)
	}
	if schema.int16(0) != 0 {
		return fmt.Errorf("%w: not little-endian", ErrDamaged)
	}
	for _, f := range schema.tables(1) {
		c := chunk{name: f.string(0), typ: typeOf(f)}
		if c.typ == unsupportedType {
			return fmt.Errorf("%w: column %q has %s", ErrDamaged, c.name, c.typ)
		}
		if names, ok := f.pairs(6)[namesKey]; ok {
			c.codes = strings.Split(names, ",")
		}
		s.chunks = append(s.chunks, c)
	}
	md := schema.pairs(2)
	if md["schema"] != Schema {
		return fmt.Errorf("%w: schema is %q, want %q", ErrDamaged, md["schema"], Schema)
	}
	s.boot = md["boot_id"]
	return nil
}

// typeOf returns the type of a field, by the numbers of Schema.fbs of the Arrow format.
func typeOf(f fbTable) arrayType {
	const (
		integer, floatingPoint, utf8, boolean = 2, 3, 5, 6
		double                                = 2
	)
	t, ok := f.child(3)
	if _, dictionary := f.child(4); !ok || dictionary {
		return unsupportedType
	}
	switch kind := f.byte(2); {
	case kind == integer && t.int32(0) == 64 && t.byte(1) == 1:
		return int64Type
	case kind == integer && t.int32(0) == 8 && t.byte(1) == 0:
		return uint8Type
	case kind == floatingPoint && t.int16(0) == double:
		return float64Type
	case kind == utf8:
		return stringType
	case kind == boolean:
		return boolType
	}
	return unsupportedType
}

// next reads the next batch into s.chunks.
func (s *arrowStream) next() error {
	message, err := s.message()
	if err != nil {
		return err
	}
	batch, ok := message.child(2)
	if message.byte(1) != batchMessage || !ok {
		return fmt.Errorf("%w: a message that is no batch", ErrDamaged)
	}
	rows := batch.int64(0)
	if rows < 0 || rows > maxBatchRows {
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
	if n != len(s.chunks) {
		return fmt.Errorf("%w: a batch of %d columns, want %d", ErrDamaged, n, len(s.chunks))
	}
	for i := range s.chunks {
		c := &s.chunks[i]
		length := binary.LittleEndian.Uint64(s.head[nodes+16*i:])
		c.nulls = int(min(binary.LittleEndian.Uint64(s.head[nodes+16*i+8:]), maxBatchRows))
		if length != uint64(rows) {
			return fmt.Errorf("%w: column %s has %d rows, want %d", ErrDamaged, c.name, length, rows)
		}
		if err := buffers.load(c, s.rows); err != nil {
			return fmt.Errorf("%w: column %s: %w", ErrDamaged, c.name, err)
		}
	}
	return nil
}

// find returns the column of that name, or nil. Columns are asked for in their order, which next remembers.
func (s *arrowStream) find(name string, next *int) *chunk {
	for i := range s.chunks {
		if c := &s.chunks[(*next+i)%len(s.chunks)]; c.name == name {
			*next += i + 1
			return c
		}
	}
	return nil
}

// bufferList hands out the buffers of a batch in their order.
type bufferList struct {
	stream *arrowStream
	packed bool
	at, n  int // where the list lies in the head
	i      int
}

// load gives c its buffers.
func (l *bufferList) load(c *chunk, rows int) error {
	c.rows, c.valid, c.offsets = rows, nil, nil
	bitmap := (rows + 7) / 8
	valid, err := l.next(bitmap, bitmap+64)
	if err != nil && c.nulls > 0 {
		return err
	}
	if c.nulls > 0 {
		c.valid = valid
	}
	need := 0
	switch c.typ {
	case int64Type, float64Type:
		need = 8 * rows
	case uint8Type:
		need = rows
	case boolType:
		need = bitmap
	case stringType:
		if rows > 0 {
			need = 4 * (rows + 1)
		}
		if c.offsets, err = l.next(need, need+64); err != nil {
			return err
		}
		c.data, err = l.next(0, maxBodyBytes)
		return err
	case unsupportedType:
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
func (s *arrowStream) unpack(i int, b []byte, limit int) ([]byte, error) {
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
	out, err := s.zstd.DecodeAll(b[8:], s.spare[i][:0:size])
	if err != nil {
		return nil, err
	}
	if len(out) != int(size) {
		return nil, errBuffer
	}
	return out, nil
}

// newUnpacker returns a decoder that never grows what it is handed.
func newUnpacker() (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(maxBodyBytes))
	if err != nil {
		return nil, fmt.Errorf("make decompressor: %w", err)
	}
	return d, nil
}
