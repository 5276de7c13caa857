package record

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Condition says how a file ends.
type Condition string

// The conditions of a file.
const (
	Complete Condition = "complete" // its writer ended it
	Unended  Condition = "unended"  // whole batches, and no end: is being written, or its writer died between two batches
	Torn     Condition = "torn"     // ends inside a batch: its writer died, or is writing
	Damaged  Condition = "damaged"  // holds what makes no batch
	Closed   Condition = "closed"   // cannot be read for a reason that is not in the file
)

// FileCheck is what one file of a recording holds.
type FileCheck struct {
	File      string           `json:"file"`
	Kind      string           `json:"kind"`
	BootID    string           `json:"boot_id,omitempty"`
	Bytes     int64            `json:"bytes"`
	Rows      int64            `json:"rows"`
	First     timeline.Instant `json:"first_ns,omitempty"` // earliest and latest instants of its rows
	Last      timeline.Instant `json:"last_ns,omitempty"`
	Condition Condition        `json:"condition"`
	Detail    string           `json:"detail,omitempty"`
}

// Verify reads the whole recording and says of each file what it holds and how it ends, in the order of segments.
func (r *Reader) Verify() []FileCheck {
	checks := make([]FileCheck, 0, len(r.files))
	for _, f := range r.files {
		c := r.check(f.file)
		c.BootID = f.boot
		checks = append(checks, c)
	}
	return checks
}

func (r *Reader) check(f file) FileCheck {
	switch f.kind {
	case Anchors:
		return check(r, f, anchorTable())
	case Events:
		return check(r, f, eventTable(&r.gpus))
	case Engine:
		return check(r, f, engineTable())
	case Host:
		return check(r, f, hostTable())
	case Samples:
		return check(r, f, sampleTable(&r.gpus))
	case Opens:
		return check(r, f, openTable())
	case Tokens:
		return check(r, f, tokenTable())
	case Requests:
		return check(r, f, requestTable())
	}
	return check(r, f, cellTable(&r.gpus))
}

func check[T any](r *Reader, f file, t *table[T]) FileCheck {
	c := FileCheck{File: fileName(f.kind, f.number), Kind: f.kind.String(), Bytes: f.bytes, Condition: Complete}
	b := openBatches(r, f, t)
	defer b.close()
	for {
		rows, err := b.next()
		for i := range rows {
			at := t.at(&rows[i])
			if c.Rows++; c.Rows == 1 {
				c.First, c.Last = at, at
			}
			c.First, c.Last = min(c.First, at), max(c.Last, at)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, ErrTorn):
			c.Condition = Torn
		case errors.Is(err, ErrDamaged):
			c.Condition, c.Detail = Damaged, cause(err)
		case !errors.Is(err, io.EOF):
			c.Condition, c.Detail = Closed, cause(err)
		case !ended(r.path(f)):
			c.Condition = Unended
		}
		return c
	}
}

// cause returns what is wrong, without the name of the file.
func cause(err error) string {
	var f *FileError
	if errors.As(err, &f) {
		return f.Err.Error()
	}
	return err.Error()
}

// ended reports whether the file at path closes with the mark of an ended Arrow stream: a continuation marker and a
// length of zero (Arrow columnar format, "IPC Streaming Format").
func ended(path string) bool {
	const mark = "\xff\xff\xff\xff\x00\x00\x00\x00"
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // was only read
	if _, err := f.Seek(-int64(len(mark)), io.SeekEnd); err != nil {
		return false
	}
	var tail [len(mark)]byte
	_, err = io.ReadFull(f, tail[:])
	return err == nil && string(tail[:]) == mark
}

// String says in one line what the file holds.
func (c FileCheck) String() string {
	s := fmt.Sprintf("%s: %s, %d rows, %d bytes", c.File, c.Condition, c.Rows, c.Bytes)
	if c.Detail != "" {
		s += ": " + c.Detail
	}
	return s
}
