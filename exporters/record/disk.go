package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrBusy says that another process writes the recording.
var ErrBusy = errors.New("another process writes it")

// lockName is the file that a writer holds while it writes.
const lockName = ".lock"

// errNotFile says that something with the name of a file is none: a pipe would be waited for, a device never ends.
var errNotFile = errors.New("not a regular file")

// openRegular opens a file for reading, and nothing else.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: path, Err: errNotFile}
	}
	return os.Open(path)
}

// lock takes dir for one writer. The lock goes with the process, however that ends.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("lock recording: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return f, nil // a file system without locks is written without one
	case errors.Is(err, unix.EWOULDBLOCK):
		err = ErrBusy
	}
	_ = f.Close() // nothing was written
	return nil, fmt.Errorf("lock recording %s: %w", dir, err)
}
