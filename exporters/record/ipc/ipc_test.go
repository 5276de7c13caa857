package ipc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowipc "github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

// written returns the stream that Arrow's own writer makes of batches of so many rows each.
func written(tb testing.TB, schema *arrow.Schema, fill func(b *array.RecordBuilder, row int), batches []int, opts ...arrowipc.Option) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := arrowipc.NewWriter(&buf, append(opts, arrowipc.WithSchema(schema))...)
	build := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	row := 0
	for _, n := range batches {
		for range n {
			fill(build, row)
			row++
		}
		if err := w.Write(build.NewRecordBatch()); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func flatSchema() *arrow.Schema {
	names := arrow.NewMetadata([]string{"names"}, []string{"a,b"})
	md := arrow.NewMetadata([]string{"k"}, []string{"v"})
	return arrow.NewSchema([]arrow.Field{
		{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "u", Type: arrow.PrimitiveTypes.Uint8, Metadata: names},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	}, &md)
}

// fillFlat makes rows of which every third lacks what can be lacked.
func fillFlat(b *array.RecordBuilder, row int) {
	b.Field(2).(*array.Uint8Builder).Append(uint8(row))
	if row%3 == 2 {
		for _, i := range []int{0, 1, 3, 4} {
			b.Field(i).AppendNull()
		}
		return
	}
	b.Field(0).(*array.Int64Builder).Append(-int64(row))
	b.Field(1).(*array.Float64Builder).Append(float64(row) / 4)
	b.Field(3).(*array.BooleanBuilder).Append(row%2 == 0)
	b.Field(4).(*array.StringBuilder).Append(strings.Repeat("x", row%5))
}

// spell reads all rows as text, and the fault that ended them.
func spell(tb testing.TB, b []byte) ([]string, error) {
	tb.Helper()
	unpacker, err := ipc.NewUnpacker()
	if err != nil {
		tb.Fatal(err)
	}
	defer unpacker.Close()
	s, err := ipc.Open(io.NopCloser(bytes.NewReader(b)), int64(len(b)), unpacker)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var rows []string
	for {
		if err := s.Next(); err != nil {
			return rows, err
		}
		for i := range s.Rows() {
			var row strings.Builder
			next := 0
			for _, name := range []string{"i", "f", "u", "b", "s"} {
				row.WriteString(" " + value(s.Find(name, &next), i))
			}
			rows = append(rows, row.String())
		}
	}
}

func value(c *ipc.Column, i int) string {
	switch {
	case c == nil:
		return "absent"
	case !c.Valid(i):
		return "null"
	}
	switch c.Type {
	case ipc.Int64:
		return strconv.FormatInt(c.Int64(i), 10)
	case ipc.Float64:
		return fmt.Sprint(c.Float64(i))
	case ipc.Uint8:
		return strconv.Itoa(int(c.Uint8(i)))
	case ipc.Bool:
		return strconv.FormatBool(c.Bool(i))
	case ipc.String:
		text, ok := c.Bytes(i)
		return fmt.Sprintf("%q %v", text, ok)
	case ipc.Unsupported:
	}
	return "unsupported"
}

// want spells rows as spell does.
func want(n int) []string {
	var rows []string
	for row := range n {
		if row%3 == 2 {
			rows = append(rows, fmt.Sprintf(" null null %d null null", uint8(row)))
			continue
		}
		rows = append(rows, fmt.Sprintf(" %d %v %d %v %q true", -row, float64(row)/4, uint8(row), row%2 == 0, strings.Repeat("x", row%5)))
	}
	return rows
}

func TestStreamsOfArrowsWriterAreRead(t *testing.T) {
	for name, opts := range map[string][]arrowipc.Option{
		"packed":            {arrowipc.WithZstd()},
		"packed if it pays": {arrowipc.WithZstd(), arrowipc.WithMinSpaceSavings(0.5)},
		"not packed":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := written(t, flatSchema(), fillFlat, []int{1, 0, 100, 1000}, opts...)
			got, err := spell(t, b)
			if !errors.Is(err, io.EOF) {
				t.Fatalf("Next() = %v at the end, want EOF", err)
			}
			if diff := cmp.Diff(want(1101), got); diff != "" {
				t.Errorf("rows mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMetadataIsRead(t *testing.T) {
	b := written(t, flatSchema(), fillFlat, []int{1})
	unpacker, err := ipc.NewUnpacker()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ipc.Open(io.NopCloser(bytes.NewReader(b)), int64(len(b)), unpacker)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next := 0
	if got := s.Metadata("k") + s.Find("u", &next).Metadata("names"); got != "va,b" {
		t.Errorf("metadata %q, want %q", got, "va,b")
	}
}

func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	one := func(typ arrow.DataType) *arrow.Schema {
		return arrow.NewSchema([]arrow.Field{{Name: "c", Type: typ, Nullable: true}}, nil)
	}
	null := func(b *array.RecordBuilder, _ int) { b.Field(0).AppendNull() }
	for name, b := range map[string][]byte{
		"a list":       written(t, one(arrow.ListOf(arrow.PrimitiveTypes.Int64)), null, []int{1}),
		"32 bits":      written(t, one(arrow.PrimitiveTypes.Int32), null, []int{1}),
		"a dictionary": written(t, one(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}), null, []int{1}),
		"lz4":          written(t, flatSchema(), fillFlat, []int{100}, arrowipc.WithLZ4()),
		"big batches":  written(t, flatSchema(), fillFlat, []int{ipc.MaxRows + 1}),
		"no arrow":     []byte("PAR1 and so on, for more bytes than a prefix takes"),
	} {
		t.Run(name, func(t *testing.T) {
			if rows, err := spell(t, b); !errors.Is(err, ipc.ErrDamaged) {
				t.Errorf("%d rows, %v, want damaged", len(rows), err)
			}
		})
	}
}

func TestEveryPrefixIsTornOrEndsBetweenBatches(t *testing.T) {
	b := written(t, flatSchema(), fillFlat, []int{10, 10, 10}, arrowipc.WithZstd())
	all := want(30)
	clean := 0
	for cut := range b {
		rows, err := spell(t, b[:cut])
		switch {
		case errors.Is(err, io.EOF):
			clean++
		case !errors.Is(err, ipc.ErrTorn):
			t.Fatalf("cut at %d: %v, want torn", cut, err)
		}
		if len(rows)%10 != 0 {
			t.Fatalf("cut at %d: %d rows, want whole batches", cut, len(rows))
		}
		if diff := cmp.Diff(all[:len(rows)], append([]string{}, rows...)); diff != "" {
			t.Fatalf("cut at %d: rows mismatch (-want +got):\n%s", cut, diff)
		}
	}
	// After the schema, and after each of the batches.
	if clean != 4 {
		t.Errorf("%d prefixes end cleanly, want 4", clean)
	}
}

func FuzzStream(f *testing.F) {
	for _, opts := range [][]arrowipc.Option{nil, {arrowipc.WithZstd()}} {
		f.Add(written(f, flatSchema(), fillFlat, []int{3, 20}, opts...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := spell(t, b)
		if !errors.Is(err, io.EOF) && !errors.Is(err, ipc.ErrTorn) && !errors.Is(err, ipc.ErrDamaged) {
			t.Errorf("%v, want the end, torn or damaged", err)
		}
		// A batch takes a head of more than 64 bytes.
		if len(rows) > len(b)/64*ipc.MaxRows {
			t.Errorf("%d rows of %d bytes", len(rows), len(b))
		}
	})
}
