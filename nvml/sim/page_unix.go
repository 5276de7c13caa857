//go:build unix

package sim

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapPage creates the file at path and maps it for writing. The mapping ends with unmap.
func mapPage(path string) (words []uint64, unmap func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("create page: %w", err)
	}
	defer func() { _ = f.Close() }() // the mapping outlives the descriptor
	bytes := 8 * pageWords()
	if err := f.Truncate(int64(bytes)); err != nil {
		return nil, nil, fmt.Errorf("size page: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map page: %w", err)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8), func() error { return unix.Munmap(mem) }, nil
}
