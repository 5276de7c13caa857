package ipc

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"
)

// packWindow is how far back a packed buffer refers: columns of a second are seldom longer, and the compressor keeps
// tables and history for it. At its fastest level a recording of a busy node is one part in a hundred longer than at
// the default one, and the compressor takes a quarter of the memory.
const packWindow = 128 << 10

// Packer packs the batches of streams that Arrow's own writer made without compression. Streams share it one after the
// other: Arrow's writer keeps two compressors a stream, of more than a megabyte each. It is not safe for concurrent use.
type Packer struct {
	zstd *zstd.Encoder
	head *flatbuffers.Builder
	list []extent
	out  []byte
	body []byte
}

// extent is where a buffer lies in a body.
type extent struct{ offset, length int64 }

// NewPacker returns a packer. Each buffer it packs carries a checksum.
func NewPacker() (*Packer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(packWindow),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(true))
	if err != nil {
		return nil, fmt.Errorf("make compressor: %w", err)
	}
	return &Packer{zstd: enc, head: flatbuffers.NewBuilder(1 << 10)}, nil
}

// Close lets go of the compressor.
func (p *Packer) Close() { _ = p.zstd.Close() } // nothing is pending

// Pack returns messages, which are whole, with the batches among them packed. What it returns is valid until the next
// call.
func (p *Packer) Pack(messages []byte) ([]byte, error) {
	p.out = p.out[:0]
	for len(messages) > 0 {
		if len(messages) < 8 || binary.LittleEndian.Uint32(messages) != math.MaxUint32 {
			return nil, fmt.Errorf("%w: no message where one should begin", ErrDamaged)
		}
		size := int64(8) + int64(binary.LittleEndian.Uint32(messages[4:]))
		if size > int64(len(messages)) {
			return nil, ErrTorn
		}
		if size == 8 { // the end of the stream
			p.out = append(p.out, messages...)
			break
		}
		head, ok := fbRoot(messages[8:size])
		length := head.int64(3)
		if !ok || length < 0 {
			return nil, fmt.Errorf("%w: a message with a body of %d bytes", ErrDamaged, length)
		}
		if length > int64(len(messages))-size {
			return nil, ErrTorn
		}
		batch, ok := head.child(2)
		if _, packed := batch.child(3); ok && head.byte(1) == batchMessage && !packed {
			if err := p.pack(head, batch, messages[size:size+length]); err != nil {
				return nil, err
			}
		} else {
			p.out = append(p.out, messages[:size+length]...)
		}
		messages = messages[size+length:]
	}
	return p.out, nil
}

// pack appends one batch.
func (p *Packer) pack(head, batch fbTable, body []byte) error {
	p.list, p.body = p.list[:0], p.body[:0]
	at, n := batch.vector(2, 16)
	for ; n > 0; n-- {
		offset, length := binary.LittleEndian.Uint64(head.buf[at:]), binary.LittleEndian.Uint64(head.buf[at+8:])
		if offset > uint64(len(body)) || length > uint64(len(body))-offset {
			return fmt.Errorf("%w: %w", ErrDamaged, errBuffer)
		}
		p.add(body[offset : offset+length])
		at += 16
	}
	packed := p.describe(head, batch)
	p.out = binary.LittleEndian.AppendUint32(p.out, math.MaxUint32)
	p.out = binary.LittleEndian.AppendUint32(p.out, uint32(padded(len(packed))))
	p.out = append(p.out, packed...)
	p.out = pad(p.out)
	p.out = append(p.out, p.body...)
	return nil
}

// add appends a buffer to the body: its length, -1 for one that packing makes no shorter, and what it holds.
func (p *Packer) add(b []byte) {
	start := len(p.body)
	if len(b) > 0 {
		p.body = binary.LittleEndian.AppendUint64(p.body, uint64(len(b)))
		p.body = p.zstd.EncodeAll(b, p.body)
		if len(p.body)-start-8 >= len(b) {
			p.body = binary.LittleEndian.AppendUint64(p.body[:start], math.MaxUint64)
			p.body = append(p.body, b...)
		}
	}
	p.list = append(p.list, extent{int64(start), int64(len(p.body) - start)})
	p.body = pad(p.body)
}

// describe returns the head of the packed batch. Fields have the numbers of Message.fbs of the Arrow format.
func (p *Packer) describe(head, batch fbTable) []byte {
	b := p.head
	b.Reset()
	at, columns := batch.vector(1, 16)
	b.StartVector(16, columns, 8)
	for i := columns - 1; i >= 0; i-- { // a builder builds from the end
		b.Prep(8, 16)
		b.PrependUint64(binary.LittleEndian.Uint64(head.buf[at+16*i+8:]))
		b.PrependUint64(binary.LittleEndian.Uint64(head.buf[at+16*i:]))
	}
	nodes := b.EndVector(columns)
	b.StartVector(16, len(p.list), 8)
	for _, e := range slices.Backward(p.list) {
		b.Prep(8, 16)
		b.PrependInt64(e.length)
		b.PrependInt64(e.offset)
	}
	buffers := b.EndVector(len(p.list))

	const codecZstd = 1
	b.StartObject(2)
	b.PrependByteSlot(0, codecZstd, 0)
	compression := b.EndObject()

	b.StartObject(4)
	b.PrependInt64Slot(0, batch.int64(0), 0)
	b.PrependUOffsetTSlot(1, nodes, 0)
	b.PrependUOffsetTSlot(2, buffers, 0)
	b.PrependUOffsetTSlot(3, compression, 0)
	record := b.EndObject()

	b.StartObject(4)
	b.PrependInt16Slot(0, head.int16(0), 0)
	b.PrependByteSlot(1, batchMessage, 0)
	b.PrependUOffsetTSlot(2, record, 0)
	b.PrependInt64Slot(3, int64(len(p.body)), 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes()
}

// padded is n up to the next multiple of eight, where the parts of a message begin.
func padded(n int) int { return (n + 7) &^ 7 }

// pad appends zeros up to the next multiple of eight.
func pad(b []byte) []byte {
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
