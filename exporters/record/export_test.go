package record

import (
	"io"
	"testing"

	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

// DiskFile is what a segment writes to.
type DiskFile = diskFile

// WithCreate returns o with create in place of the making of files.
func WithCreate(o Options, create func(path string) (DiskFile, error)) Options {
	o.create = create
	return o
}

// CreateFile makes a segment file as a Writer does.
func CreateFile(path string) (DiskFile, error) { return createFile(path) }

// ReadTable reads disk as a file of kind k and returns how many rows came before its end or fault.
func ReadTable(tb testing.TB, k Kind, disk io.ReadCloser, size int64) (int64, error) {
	tb.Helper()
	gpus := &gpuList{}
	switch k {
	case Requests:
		return readAll(requestTable(), disk, size)
	case Tokens:
		return readAll(tokenTable(), disk, size)
	case Cells:
		return readAll(cellTable(gpus), disk, size)
	default:
		return readAll(sampleTable(gpus), disk, size)
	}
}

func readAll[T any](tab *table[T], disk io.ReadCloser, size int64) (int64, error) {
	b := &batches[T]{table: tab, file: file{tab.kind, 1, size}, total: new(int64)}
	unpack, err := ipc.NewUnpacker()
	if err != nil {
		return 0, err
	}
	b.open(disk, size, unpack)
	defer b.close()
	for {
		if _, err := b.next(); err != nil {
			return b.read, err
		}
	}
}

// ParseMeta reads a meta.json.
func ParseMeta(raw []byte) (Meta, error) { return parseMeta(metaName, raw) }
