package record

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

// table says how rows of type T lie in a file: its columns, and the instant by which rows are merged.
type table[T any] struct {
	kind    Kind
	at      func(*T) timeline.Instant
	init    func(*T)       // sets what a row holds before it is read; nil: zero
	check   func(*T) error // refuses a row that was read; nil: none
	columns []column[T]
}

// column moves one field between rows and an Arrow array, a whole batch at a time. A file that lacks the column
// leaves the field as it is; a file that has it with another type is refused.
type column[T any] struct {
	field arrow.Field
	typ   ipc.Type
	put   func(b array.Builder, rows []T)
	get   func(c *ipc.Column, rows []T) error // c has the column's type
}

// The keys of a file's schema metadata.
const (
	schemaKey = "schema"
	kindKey   = "kind"
	bootKey   = "boot_id"
)

// namesKey is the key of a code column's field metadata: the names of codes 0, 1, 2 ..., separated by commas.
const namesKey = "names"

func (t *table[T]) schema(bootID string) *arrow.Schema {
	fields := make([]arrow.Field, len(t.columns))
	for i, c := range t.columns {
		fields[i] = c.field
	}
	md := arrow.NewMetadata([]string{schemaKey, kindKey, bootKey}, []string{Schema, t.kind.String(), bootID})
	return arrow.NewSchema(fields, &md)
}

type integer interface {
	~int | ~int32 | ~int64 | ~uint16 | ~uint64
}

// intColumn stores an integer as 64 bits.
func intColumn[T any, V integer](name string, at func(*T) *V) column[T] {
	return maybeIntColumn(name, func(r *T) (int64, bool) { return int64(*at(r)), true }, func(r *T, v int64) { *at(r) = V(v) })
}

// zeroIntColumn is an intColumn whose zero means that there is none.
func zeroIntColumn[T any, V integer](name string, at func(*T) *V) column[T] {
	return maybeIntColumn(name, func(r *T) (int64, bool) { return int64(*at(r)), *at(r) != 0 }, func(r *T, v int64) { *at(r) = V(v) })
}

// maybeIntColumn stores an integer that a row may lack.
func maybeIntColumn[T any](name string, get func(*T) (int64, bool), set func(*T, int64)) column[T] {
	return column[T]{
		field: arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		typ:   ipc.Int64,
		put: func(b array.Builder, rows []T) {
			ints, _ := b.(*array.Int64Builder)
			for i := range rows {
				if v, ok := get(&rows[i]); ok {
					ints.Append(v)
				} else {
					ints.AppendNull()
				}
			}
		},
		get: func(c *ipc.Column, rows []T) error {
			for i := range rows {
				if c.Valid(i) {
					set(&rows[i], c.Int64(i))
				}
			}
			return nil
		},
	}
}

// floatColumn stores a number that a row may lack.
func floatColumn[T any](name string, get func(*T) (float64, bool), set func(*T, float64)) column[T] {
	return column[T]{
		field: arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		typ:   ipc.Float64,
		put: func(b array.Builder, rows []T) {
			floats, _ := b.(*array.Float64Builder)
			for i := range rows {
				if v, ok := get(&rows[i]); ok {
					floats.Append(v)
				} else {
					floats.AppendNull()
				}
			}
		},
		get: func(c *ipc.Column, rows []T) error {
			if c.Nulls() >= len(rows) {
				return nil
			}
			for i := range rows {
				if c.Valid(i) {
					set(&rows[i], c.Float64(i))
				}
			}
			return nil
		},
	}
}

// boolColumn stores a yes or no.
func boolColumn[T any](name string, at func(*T) *bool) column[T] {
	return column[T]{
		field: arrow.Field{Name: name, Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		typ:   ipc.Bool,
		put: func(b array.Builder, rows []T) {
			bools, _ := b.(*array.BooleanBuilder)
			for i := range rows {
				bools.Append(*at(&rows[i]))
			}
		},
		get: func(c *ipc.Column, rows []T) error {
			for i := range rows {
				*at(&rows[i]) = c.Valid(i) && c.Bool(i)
			}
			return nil
		},
	}
}

// stringColumn stores a text; an empty one is none.
func stringColumn[T any, S ~string](name string, at func(*T) *S) column[T] {
	return textColumn(name,
		func(r *T) string { return string(*at(r)) },
		func(r *T, s string) error { *at(r) = S(s); return nil })
}

// textColumn stores what get spells; an empty text is none, and is not handed to set. A text that the row before
// had too is handed over as the same string, so that repeated names share their memory.
func textColumn[T any](name string, get func(*T) string, set func(*T, string) error) column[T] {
	return column[T]{
		field: arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true},
		typ:   ipc.String,
		put: func(b array.Builder, rows []T) {
			texts, _ := b.(*array.StringBuilder)
			for i := range rows {
				if s := get(&rows[i]); s != "" {
					texts.Append(s)
				} else {
					texts.AppendNull()
				}
			}
		},
		get: func(c *ipc.Column, rows []T) error {
			return getTexts(c, rows, set)
		},
	}
}

// getTexts hands each text of c to set.
func getTexts[T any](c *ipc.Column, rows []T, set func(*T, string) error) error {
	if c.Nulls() >= len(rows) {
		return nil
	}
	last := ""
	for i := range rows {
		if !c.Valid(i) {
			continue
		}
		text, ok := c.Bytes(i)
		if !ok {
			return errOutside
		}
		if string(text) != last {
			last = string(text)
		}
		if err := set(&rows[i], last); err != nil {
			return err
		}
	}
	return nil
}

// errOutside is the fault of a text whose bounds lie outside the file's text.
var errOutside = errors.New("a text outside the texts there are")

// code is a number with a name, such as a kind or a source.
type code interface {
	~uint8
	String() string
}

// namedColumn stores a code by its name. It is for few rows: tables of people read it best.
func namedColumn[T any, V code](name string, at func(*T) *V) column[T] {
	names := codeNames[V]()
	return textColumn(name, func(r *T) string { return (*at(r)).String() }, func(r *T, s string) error {
		i := slices.Index(names, s)
		if i < 0 {
			return fmt.Errorf("no such value: %q", s)
		}
		*at(r) = V(i)
		return nil
	})
}

// codeColumn stores a code as a byte, and the names of all codes once in the field's metadata. Readers go by the
// name, so that codes may be numbered anew. It is for many rows.
func codeColumn[T any, V code](name string, at func(*T) *V) column[T] {
	names := codeNames[V]()
	md := arrow.NewMetadata([]string{namesKey}, []string{strings.Join(names, ",")})
	return column[T]{
		field: arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Uint8, Nullable: true, Metadata: md},
		typ:   ipc.Uint8,
		put: func(b array.Builder, rows []T) {
			codes, _ := b.(*array.Uint8Builder)
			for i := range rows {
				codes.Append(uint8(*at(&rows[i])))
			}
		},
		get: func(c *ipc.Column, rows []T) error {
			listed := strings.Split(c.Metadata(namesKey), ",")
			means := make([]V, len(listed))
			for i, n := range listed {
				means[i] = V(max(0, slices.Index(names, n))) // a name of a later version counts as code 0
			}
			for i := range rows {
				v := c.Uint8(i)
				if int(v) >= len(means) {
					return fmt.Errorf("code %d has no name", v)
				}
				*at(&rows[i]) = means[v]
			}
			return nil
		},
	}
}

// codeNames lists the names of V from code 0 on. Past the last code, String falls back to a name that was listed.
func codeNames[V code]() []string {
	var names []string
	for c := range 256 {
		n := V(c).String()
		if slices.Contains(names, n) {
			break
		}
		names = append(names, n)
	}
	return names
}
