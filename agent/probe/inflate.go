package probe

import (
	"compress/gzip"
	"errors"
	"io"
)

// inflater decompresses a gzip stream that comes in pieces. The decompressor pulls, so that it runs in a goroutine of
// its own, but never beside its owner: a call returns only when all that its piece gives is out.
type inflater struct {
	decoded func([]byte)
	pieces  chan []byte
	hungry  chan struct{} // the goroutine wants the next piece
	done    chan struct{}
	rest    []byte // of the piece at hand
	ended   bool
	err     error // once done
}

// newInflater starts an inflater that hands what it decompresses to decoded. It ends with close.
func newInflater(decoded func([]byte)) *inflater {
	i := &inflater{decoded: decoded, pieces: make(chan []byte), hungry: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.err = i.run()
	}()
	i.settle()
	return i
}

func (i *inflater) run() error {
	zr, err := gzip.NewReader(i)
	if err != nil {
		return err
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := zr.Read(buf)
		if n > 0 {
			i.decoded(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Read is the decompressor's side.
func (i *inflater) Read(p []byte) (int, error) {
	for len(i.rest) == 0 {
		if i.ended {
			return 0, io.EOF
		}
		i.hungry <- struct{}{}
		piece, ok := <-i.pieces
		i.rest, i.ended = piece, !ok
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}

// settle waits until the goroutine has nothing left to work on.
func (i *inflater) settle() {
	select {
	case <-i.hungry:
	case <-i.done:
	}
}

// feed takes the next piece. It keeps no reference to it.
func (i *inflater) feed(b []byte) {
	select {
	case <-i.done:
		return // over or broken: nothing more is read
	default:
	}
	i.pieces <- b
	i.settle()
}

// close ends the stream and tells whether all of it could be read.
func (i *inflater) close() error {
	close(i.pieces)
	<-i.done
	return i.err
}
