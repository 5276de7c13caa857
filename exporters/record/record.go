// Package record keeps what was measured, and what was concluded from it, in a directory that other tools read too:
// meta.json and numbered segment files, one a kind of row, each an Arrow IPC stream with zstd. It knows the shape of
// the rows and the state of the files; it draws no conclusion, reads no clock and waits for nothing but the disk.
//
// A process that starts again writes the next segment and never appends: bytes after the end of an Arrow stream are
// lost to its readers. Whole batches survive the death of the process at any moment. Files are synchronised with the
// disk when a segment is closed, not at every batch, so that a loss of power costs at most the open segment.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Schema names the format of a recording. A reader refuses another one.
const Schema = "tpotscope.recording/1"

const (
	metaName  = "meta.json"
	extension = ".arrows"
	// Token times tell of a conversation more than its operator may see, so that only the owner reads a recording.
	fileMode os.FileMode = 0o600
	dirMode  os.FileMode = 0o700
	// maxMetaBytes bounds what is read as meta.json: a node of GPUs and targets needs a few kilobytes.
	maxMetaBytes = 8 << 20
)

// Meta is the recording's meta.json.
type Meta struct {
	Schema    string            `json:"schema"`
	Created   time.Time         `json:"created"`
	Host      string            `json:"host,omitempty"`
	BootID    string            `json:"boot_id,omitempty"` // of the latest process that wrote; each file carries its own
	GPUs      []timeline.GPU    `json:"gpus"`
	Targets   []timeline.Target `json:"targets"`
	Config    json.RawMessage   `json:"config,omitempty"` // the configuration as its owner spells it
	Versions  map[string]string `json:"versions,omitempty"`
	Simulated bool              `json:"simulated,omitempty"`
	Note      string            `json:"note,omitempty"`
}

// Kind is a kind of row, and so a kind of segment file.
type Kind uint8

// The kinds of row. All but Cells are measured; Cells are concluded.
const (
	Anchors  Kind = iota
	Events        // of the node, not of token streams
	Engine        // scrapes of engines
	Host          // readings of the host
	Samples       // readings of GPUs
	Opens         // requests as they were sent, for those whose end is never seen
	Tokens        // token events
	Requests      // requests as they ended
	Cells

	numKinds = iota
)

var kindNames = [numKinds]string{"anchors", "events", "engine", "host", "samples", "opens", "tokens", "requests", "cells"}

// String returns the kind as file names spell it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Kinds lists the kinds of row in the order in which rows of one instant are merged.
func Kinds() []Kind {
	return []Kind{Anchors, Events, Engine, Host, Samples, Opens, Tokens, Requests, Cells}
}

// fileName returns the name of the file of kind k in segment n.
func fileName(k Kind, n int) string { return fmt.Sprintf("%s-%06d%s", k, n, extension) }

// parseName is the inverse of fileName.
func parseName(name string) (k Kind, n int, ok bool) {
	stem, found := strings.CutSuffix(name, extension)
	kind, number, cut := strings.Cut(stem, "-")
	if !found || !cut || len(number) < 6 {
		return 0, 0, false
	}
	n, err := strconv.Atoi(number)
	if err != nil || n <= 0 {
		return 0, 0, false
	}
	for i, s := range kindNames {
		if s == kind {
			return Kind(i), n, true
		}
	}
	return 0, 0, false
}

// file is one segment file as a directory lists it.
type file struct {
	kind   Kind
	number int
	bytes  int64
}

// listFiles returns the segment files of dir by kind, then number.
func listFiles(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list recording: %w", err)
	}
	var files []file
	for _, e := range entries {
		k, n, ok := parseName(e.Name())
		if !ok || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // a ring deleted it meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list recording: %w", err)
		}
		files = append(files, file{k, n, info.Size()})
	}
	return files, nil
}

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

// Holds reports whether dir holds a recording, whatever its state.
func Holds(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, metaName))
	return err == nil
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

// readMeta reads and checks dir's meta.json.
func readMeta(dir string) (Meta, error) {
	path := filepath.Join(dir, metaName)
	info, err := os.Stat(path)
	if err != nil {
		return Meta{}, fmt.Errorf("open recording: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Meta{}, fmt.Errorf("open recording: %s: %w", path, errNotFile)
	}
	if info.Size() > maxMetaBytes {
		return Meta{}, fmt.Errorf("open recording: %s: %d bytes are more than a description takes", path, info.Size())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Meta{}, fmt.Errorf("open recording: %w", err)
	}
	return parseMeta(path, raw)
}

func parseMeta(path string, raw []byte) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(raw, &m); err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", path, err)
	}
	if m.Schema != Schema {
		return Meta{}, fmt.Errorf("read %s: schema is %q, want %q", path, m.Schema, Schema)
	}
	return m, nil
}

// writeMeta replaces dir's meta.json in one step, so that a reader sees the old one or the new one.
func writeMeta(dir string, m *Meta) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", metaName, err)
	}
	tmp, err := os.OpenFile(filepath.Join(dir, metaName+".tmp"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return fmt.Errorf("write %s: %w", metaName, err)
	}
	_, err = tmp.Write(append(raw, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, metaName))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", metaName, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

func latestGPUs(old, add []timeline.GPU) []timeline.GPU {
	return latest(old, add, func(a, b *timeline.GPU) bool { return a.UUID == b.UUID })
}

func latestTargets(old, add []timeline.Target) []timeline.Target {
	return latest(old, add, func(a, b *timeline.Target) bool { return a.Name == b.Name })
}

// latest returns old with those of add that it lacks, each in its latest description.
func latest[T any](old, add []T, same func(a, b *T) bool) []T {
	all := slices.Clone(old)
	for i := range add {
		if at := slices.IndexFunc(all, func(o T) bool { return same(&o, &add[i]) }); at >= 0 {
			all[at] = add[i]
		} else {
			all = append(all, add[i])
		}
	}
	return all
}

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
		c := r.check(f.file, -1)
		c.BootID = f.boot
		checks = append(checks, c)
	}
	return checks
}

// check reads f, or its first batches if most is positive.
func (r *Reader) check(f file, most int) FileCheck {
	switch f.kind {
	case Anchors:
		return check(r, f, most, anchorTable())
	case Events:
		return check(r, f, most, eventTable(&r.gpus))
	case Engine:
		return check(r, f, most, engineTable())
	case Host:
		return check(r, f, most, hostTable())
	case Samples:
		return check(r, f, most, sampleTable(&r.gpus))
	case Opens:
		return check(r, f, most, openTable())
	case Tokens:
		return check(r, f, most, tokenTable())
	case Requests:
		return check(r, f, most, requestTable())
	default:
		return check(r, f, most, cellTable(&r.gpus))
	}
}

func check[T any](r *Reader, f file, most int, t *table[T]) FileCheck {
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
		most--
		switch {
		case err == nil && most != 0:
			continue
		case err == nil: // enough
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
	if f, ok := errors.AsType[*FileError](err); ok {
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
