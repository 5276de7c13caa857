package record

import (
	"cmp"
	"errors"
	"io"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Row is one measured row of a merged recording: the pointer that Kind names is set, the others are nil.
type Row struct {
	Kind Kind
	At   timeline.Instant
	Late bool // a row with a later instant came before it

	Anchor  *timeline.Anchor
	Event   *timeline.Event
	Engine  *timeline.EngineSample
	Host    *timeline.HostSample
	Sample  *timeline.Sample
	Request *timeline.Request // of Opens and Requests
	Token   *timeline.TokenEvent
}

const (
	// reorderWindow is how far rows of one kind may be out of order and still come out in order: a remote client
	// reports its tokens in batches, and every writer holds rows back for a second.
	reorderWindow = 5 * time.Second
	// reorderRows bounds the rows of one kind that wait to be put in order.
	reorderRows = 1 << 17
)

// Merge yields all measured rows of one boot in the order of their instants: of readings when they ended, of a request
// when it was sent and when it ended, of tokens when they came. Rows of one instant come in the order of [Kinds]. It
// holds a few seconds of each kind in memory, whatever the size of the recording. A row that is further out of order
// comes as soon as it is read and is marked late.
func (r *Reader) Merge(boot string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		sources := []feed{
			newSource(r, boot, anchorTable(), func(row *Row, v *timeline.Anchor) { row.Anchor = v }),
			newSource(r, boot, eventTable(&r.gpus), func(row *Row, v *timeline.Event) { row.Event = v }),
			newSource(r, boot, engineTable(), func(row *Row, v *timeline.EngineSample) { row.Engine = v }),
			newSource(r, boot, hostTable(), func(row *Row, v *timeline.HostSample) { row.Host = v }),
			newSource(r, boot, sampleTable(&r.gpus), func(row *Row, v *timeline.Sample) { row.Sample = v }),
			newSource(r, boot, openTable(), func(row *Row, v *timeline.Request) { row.Request = v }),
			newSource(r, boot, tokenTable(), func(row *Row, v *timeline.TokenEvent) { row.Token = v }),
			newSource(r, boot, requestTable(), func(row *Row, v *timeline.Request) { row.Request = v }),
		}
		defer func() {
			for _, s := range sources {
				s.close()
			}
		}()
		merge(sources, yield)
	}
}

// feed is a source of any kind.
type feed interface {
	// head returns the instant of the next row, after it has read what it needs to know it.
	head() (timeline.Instant, bool)
	// fault returns and forgets a fault of a file that was met, or nil.
	fault() error
	// emit hands over the next row.
	emit(row *Row)
	close()
}

// merge yields the rows of sources, always the earliest, and of equal ones that of the first source.
func merge(sources []feed, yield func(*Row, error) bool) {
	var newest timeline.Instant
	var row Row
	for {
		first, second := earliest(sources)
		for _, s := range sources {
			if !faults(s, yield) {
				return
			}
		}
		if first < 0 {
			return
		}
		// Rows come in runs of one kind: what is before all other kinds needs no further comparison.
		for {
			at, ok := sources[first].head()
			if !ok || !second.after(at, first) {
				break
			}
			row = Row{Kind: Kind(first), At: at, Late: at < newest}
			newest = max(newest, at)
			sources[first].emit(&row)
			if !yield(&row, nil) {
				return
			}
		}
	}
}

// place is an instant, and the number of what stands there: a source at its next row, or a row.
type place struct {
	at    timeline.Instant
	index int
}

// after reports whether p comes after the next row, at t, of source i.
func (p place) after(t timeline.Instant, i int) bool { return t < p.at || t == p.at && i < p.index }

// earliest returns the source with the earliest row, or -1, and the place of the one after it.
func earliest(sources []feed) (int, place) {
	never := place{1<<63 - 1, len(sources)}
	first, second := never, never
	for i, s := range sources {
		t, ok := s.head()
		switch {
		case !ok:
		case first.after(t, i):
			first, second = place{t, i}, first
		case second.after(t, i):
			second = place{t, i}
		}
	}
	if first == never {
		return -1, never
	}
	return first.index, second
}

// faults yields the faults that s met, and reports whether to go on.
func faults(s feed, yield func(*Row, error) bool) bool {
	for err := s.fault(); err != nil; err = s.fault() {
		if !yield(nil, err) {
			return false
		}
	}
	return true
}

// source delivers the rows of one kind, over all files of one boot, in order as far as its window reaches.
type source[T any] struct {
	r     *Reader
	table *table[T]
	set   func(*Row, *T)

	files  []file // not begun
	open   *batches[T]
	faults []error

	ready  []T // in order, from next on
	next   int
	wait   []T // not yet in order
	newest timeline.Instant

	order []place // of sort
	moved []T
}

func newSource[T any](r *Reader, boot string, t *table[T], set func(*Row, *T)) feed {
	return &source[T]{r: r, table: t, set: set, files: r.of(t.kind, boot, false)}
}

func (s *source[T]) head() (timeline.Instant, bool) {
	if s.next == len(s.ready) && !s.fill() {
		return 0, false
	}
	return s.table.at(&s.ready[s.next]), true
}

func (s *source[T]) emit(row *Row) {
	s.set(row, &s.ready[s.next])
	s.next++
}

func (s *source[T]) fault() error {
	if len(s.faults) == 0 {
		return nil
	}
	err := s.faults[0]
	s.faults = s.faults[1:]
	return err
}

func (s *source[T]) close() {
	if s.open != nil {
		s.open.close()
	}
}

// fill puts the next rows in order: all that nothing in the window can come before. It reports whether there are any.
func (s *source[T]) fill() bool {
	oldest := timeline.Instant(1<<63 - 1)
	for i := range s.wait {
		oldest = min(oldest, s.table.at(&s.wait[i]))
	}
	more := true
	for more && len(s.wait) < reorderRows && (len(s.wait) == 0 || s.newest.Sub(oldest) < 2*reorderWindow) {
		var rows []T
		rows, more = s.read()
		for i := range rows {
			at := s.table.at(&rows[i])
			oldest, s.newest = min(oldest, at), max(s.newest, at)
		}
		s.wait = append(s.wait, rows...)
	}
	s.sort()
	n := len(s.wait)
	if more {
		horizon := s.newest.Add(-reorderWindow)
		n = sort.Search(n, func(i int) bool { return s.table.at(&s.wait[i]) >= horizon })
		if n == 0 {
			n = (len(s.wait) + 1) / 2 // more rows than the window may hold
		}
	}
	s.ready = append(s.ready[:0], s.wait[:n]...)
	s.next = 0
	rest := copy(s.wait, s.wait[n:])
	clear(s.wait[rest:])
	s.wait = s.wait[:rest]
	return n > 0
}

// sort puts the waiting rows in order, and leaves those of one instant in theirs.
func (s *source[T]) sort() {
	sorted := true
	s.order = s.order[:0]
	for i := range s.wait {
		at := s.table.at(&s.wait[i])
		sorted = sorted && (i == 0 || s.order[i-1].at <= at)
		s.order = append(s.order, place{at, i})
	}
	if sorted {
		return
	}
	// Rows are big: their places are sorted, and each row moves once.
	slices.SortFunc(s.order, func(a, b place) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.index, b.index)) })
	s.moved = slices.Grow(s.moved[:0], len(s.wait))
	for _, p := range s.order {
		s.moved = append(s.moved, s.wait[p.index])
	}
	s.wait, s.moved = s.moved, s.wait
	clear(s.moved)
}

// read returns the next batch of the files, valid until the one after, and whether there may be more.
func (s *source[T]) read() ([]T, bool) {
	for {
		if s.open == nil {
			if len(s.files) == 0 {
				return nil, false
			}
			s.open = openBatches(s.r, s.files[0], s.table)
			s.files = s.files[1:]
		}
		rows, err := s.open.next()
		if err == nil {
			return rows, true
		}
		if !errors.Is(err, io.EOF) {
			s.faults = append(s.faults, err)
		}
		s.open.close()
		s.open = nil
	}
}
