package ipc

import (
	"encoding/binary"
	"math"
)

// Type is the type of a column.
type Type uint8

// The types of column.
const (
	Unsupported Type = iota
	Int64
	Uint8
	Float64
	Bool
	String
)

var typeNames = [...]string{"an unsupported type", "int64", "uint8", "float64", "bool", "string"}

// String returns the type's name.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return typeNames[Unsupported]
}

// Column is one column of the batch that a Stream read last. Its buffers are long enough for the batch's rows. Row
// numbers have to be below that, and methods have to fit the type: neither is checked.
type Column struct {
	Name string
	Type Type

	metadata map[string]string
	nulls    int
	valid    []byte // a bit a row; nil: all are valid
	offsets  []byte // of strings
	data     []byte
}

// Metadata returns the value of that key in the column's metadata, empty if there is none.
func (c *Column) Metadata(key string) string { return c.metadata[key] }

// Nulls returns how many rows have no value, as the file says.
func (c *Column) Nulls() int { return c.nulls }

// Valid reports whether row i has a value.
func (c *Column) Valid(i int) bool { return c.valid == nil || c.valid[i/8]>>(i%8)&1 != 0 }

// Int64 returns row i of an Int64 column.
func (c *Column) Int64(i int) int64 { return int64(binary.LittleEndian.Uint64(c.data[8*i:])) }

// Float64 returns row i of a Float64 column.
func (c *Column) Float64(i int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(c.data[8*i:]))
}

// Bool returns row i of a Bool column.
func (c *Column) Bool(i int) bool { return c.data[i/8]>>(i%8)&1 != 0 }

// Uint8 returns row i of a Uint8 column.
func (c *Column) Uint8(i int) uint8 { return c.data[i] }

// Bytes returns row i of a String column, and false if the file has it outside the text there is.
func (c *Column) Bytes(i int) ([]byte, bool) {
	from, to := binary.LittleEndian.Uint32(c.offsets[4*i:]), binary.LittleEndian.Uint32(c.offsets[4*i+4:])
	if from > to || uint64(to) > uint64(len(c.data)) {
		return nil, false
	}
	return c.data[from:to], true
}
