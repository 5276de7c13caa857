package ipc

import "encoding/binary"

// fbTable is a FlatBuffers table ("FlatBuffers internals": a signed offset to a table of field offsets, then the fields).
// Whatever lies outside its buffer reads as absent. So does what comes after more was read than the buffer holds twice:
// tables may overlap, and a small hostile buffer could list the same text without end.
type fbTable struct {
	buf    []byte
	pos    int
	budget *int // bytes of vectors that may still be read; shared by all tables of a buffer
}

// fbRoot returns the root table of a message.
func fbRoot(buf []byte) (fbTable, bool) {
	off, ok := u32(buf, 0)
	budget := 2 * len(buf)
	return fbTable{buf, int(off), &budget}, ok && int(off) < len(buf)
}

func u32(buf []byte, at int) (uint32, bool) {
	if at < 0 || at > len(buf)-4 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(buf[at:]), true
}

// field returns where the i-th field lies, and whether width bytes of it are there.
func (t fbTable) field(i, width int) (int, bool) {
	back, ok := u32(t.buf, t.pos)
	vtable := t.pos - int(int32(back))
	if !ok || vtable < 0 || vtable > len(t.buf)-4 {
		return 0, false
	}
	size := int(binary.LittleEndian.Uint16(t.buf[vtable:]))
	slot := 4 + 2*i
	if slot+2 > size || vtable+slot+2 > len(t.buf) {
		return 0, false
	}
	off := int(binary.LittleEndian.Uint16(t.buf[vtable+slot:]))
	at := t.pos + off
	return at, off != 0 && at <= len(t.buf)-width
}

func (t fbTable) byte(i int) byte {
	if at, ok := t.field(i, 1); ok {
		return t.buf[at]
	}
	return 0
}

func (t fbTable) int16(i int) int16 {
	if at, ok := t.field(i, 2); ok {
		return int16(binary.LittleEndian.Uint16(t.buf[at:]))
	}
	return 0
}

func (t fbTable) int32(i int) int32 {
	if at, ok := t.field(i, 4); ok {
		return int32(binary.LittleEndian.Uint32(t.buf[at:]))
	}
	return 0
}

func (t fbTable) int64(i int) int64 {
	if at, ok := t.field(i, 8); ok {
		return int64(binary.LittleEndian.Uint64(t.buf[at:]))
	}
	return 0
}

// follow returns where the i-th field, an offset, leads to.
func (t fbTable) follow(i int) (int, bool) {
	at, ok := t.field(i, 4)
	if !ok {
		return 0, false
	}
	off, _ := u32(t.buf, at)
	return at + int(off), int(off) < len(t.buf)-at
}

func (t fbTable) child(i int) (fbTable, bool) {
	at, ok := t.follow(i)
	return fbTable{t.buf, at, t.budget}, ok
}

// vector returns where the elements of the i-th field begin and how many there are, each of width bytes.
func (t fbTable) vector(i, width int) (at, n int) {
	at, ok := t.follow(i)
	if !ok {
		return 0, 0
	}
	count, ok := u32(t.buf, at)
	if !ok || int(count) > (len(t.buf)-at-4)/width || int(count)*width > *t.budget {
		return 0, 0
	}
	*t.budget -= int(count) * width
	return at + 4, int(count)
}

func (t fbTable) string(i int) string {
	at, n := t.vector(i, 1)
	return string(t.buf[at : at+n])
}

// tables returns the tables that the i-th field lists.
func (t fbTable) tables(i int) []fbTable {
	at, n := t.vector(i, 4)
	list := make([]fbTable, 0, n)
	for range n {
		off, _ := u32(t.buf, at)
		list = append(list, fbTable{t.buf, at + int(off), t.budget})
		at += 4
	}
	return list
}

// pairs returns the keys and values that the i-th field lists.
func (t fbTable) pairs(i int) map[string]string {
	pairs := map[string]string{}
	for _, kv := range t.tables(i) {
		pairs[kv.string(0)] = kv.string(1)
	}
	return pairs
}
