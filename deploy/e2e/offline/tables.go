package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// rowGroup is how many rows a group of a Parquet file has, as DuckDB itself writes them.
const rowGroup = 122_880

// tables are the Parquet files.
type tables struct {
	windows, requests *table
	err               error
}

// table is one Parquet file.
type table struct {
	b *array.RecordBuilder
	w *pqarrow.FileWriter
	n int
}

func newTables(dir string) (*tables, error) {
	i64, f64 := arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float64
	windows, err := newTable(filepath.Join(dir, "windows.parquet"), []arrow.Field{
		{Name: "gpu", Type: arrow.PrimitiveTypes.Int32}, {Name: "start_ns", Type: i64}, {Name: "end_ns", Type: i64},
		{Name: "graphics", Type: f64}, {Name: "sm", Type: f64}, {Name: "tensor", Type: f64}, {Name: "dram", Type: f64},
	})
	if err != nil {
		return nil, err
	}
	requests, err := newTable(filepath.Join(dir, "requests.parquet"), []arrow.Field{
		{Name: "ref", Type: i64}, {Name: "gpu", Type: arrow.PrimitiveTypes.Int32}, {Name: "sent_ns", Type: i64},
		{Name: "first_ns", Type: i64}, {Name: "last_ns", Type: i64}, {Name: "tokens", Type: arrow.PrimitiveTypes.Int32},
	})
	return &tables{windows: windows, requests: requests}, err
}

func newTable(path string, fields []arrow.Field) (*table, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	schema := arrow.NewSchema(fields, nil)
	w, err := pqarrow.NewFileWriter(schema, f, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd)), pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &table{b: array.NewRecordBuilder(memory.DefaultAllocator, schema), w: w}, nil
}

func (t *tables) window(s *timeline.Sample) {
	b := t.windows.b
	b.Field(0).(*array.Int32Builder).Append(int32(s.GPU))
	b.Field(1).(*array.Int64Builder).Append(int64(s.Over.Start))
	b.Field(2).(*array.Int64Builder).Append(int64(s.Over.End))
	for i, c := range []timeline.Counter{timeline.GraphicsUtil, timeline.SMUtil, timeline.TensorUtil, timeline.DRAMUtil} {
		b.Field(3 + i).(*array.Float64Builder).Append(s.Value[c])
	}
	t.err = errors.Join(t.err, t.windows.row())
}

func (t *tables) request(gpu int, r *timeline.Request) {
	b := t.requests.b
	b.Field(0).(*array.Int64Builder).Append(int64(r.Ref))
	b.Field(1).(*array.Int32Builder).Append(int32(gpu))
	b.Field(2).(*array.Int64Builder).Append(int64(r.Sent))
	b.Field(3).(*array.Int64Builder).Append(int64(r.First))
	b.Field(4).(*array.Int64Builder).Append(int64(r.Last))
	b.Field(5).(*array.Int32Builder).Append(int32(r.OutputTokens))
	t.err = errors.Join(t.err, t.requests.row())
}

// row counts a row, and writes a group once it is full.
func (t *table) row() error {
	if t.n++; t.n < rowGroup {
		return nil
	}
	return t.flush()
}

func (t *table) flush() error {
	t.n = 0
	batch := t.b.NewRecordBatch()
	defer batch.Release()
	return t.w.Write(batch)
}

func (t *tables) close() error {
	return errors.Join(t.windows.flush(), t.requests.flush(), t.windows.w.Close(), t.requests.w.Close())
}
