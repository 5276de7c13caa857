package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

// The defaults of Options.
const (
	DefaultMaxBytes     = 2 << 30
	DefaultSegmentBytes = 64 << 20
	DefaultSegmentAge   = 15 * time.Minute
	DefaultBatchRows    = 8192
)

// refBits is how many bits the numbers of one process's requests may take. The bits above tell processes apart: each
// begins with a segment of its own, and counts its requests from one.
const refBits = 40

// Options bound a recording. The zero Options are the defaults.
type Options struct {
	// MaxBytes is the size of the ring: whole segments are deleted, oldest first, so that the files stay below it.
	// Negative: keep everything. At most SegmentBytes plus one batch a kind lie above it for a moment.
	MaxBytes int64
	// SegmentBytes and SegmentAge end a segment by size, and by the time of its rows.
	SegmentBytes int64
	SegmentAge   time.Duration
	// BatchRows is the number of rows of one kind after which a batch is written without waiting for Flush. At most
	// [ipc.MaxRows].
	BatchRows int

	create func(path string) (diskFile, error)
}

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.MaxBytes > 0 {
		// A ring of few segments loses much of itself at once.
		o.SegmentBytes = max(1, min(o.SegmentBytes, o.MaxBytes/8))
	}
	if o.SegmentAge <= 0 {
		o.SegmentAge = DefaultSegmentAge
	}
	if o.BatchRows <= 0 {
		o.BatchRows = DefaultBatchRows
	}
	o.BatchRows = min(o.BatchRows, ipc.MaxRows)
	if o.create == nil {
		o.create = createFile
	}
	return o
}

// Stats say what a Writer did since it was made.
type Stats struct {
	Bytes        int64            // of all segment files in the directory
	Written      int64            // bytes written
	Files        int              // begun
	Deleted      int              // files deleted to stay below MaxBytes
	Rows         map[string]int64 // written, by kind
	Dropped      map[string]int64 // rows that could not be written, by kind
	BytesPerHour float64          // of the time of the rows; zero until there are two instants
}

// Writer writes a recording. It is synchronous: Flush, and an Add that fills a batch, wait for the disk. It is not safe
// for concurrent use. A disk that is full loses what it cannot take: the rows are counted as dropped, the error is
// returned once, and a later Flush begins a new segment as soon as there is room.
type Writer struct {
	lock    *os.File // held while this process writes
	dir     string
	opts    Options
	meta    Meta
	gpus    gpuList // as the positions of this process go
	number  int     // of the segment
	refs    uint64  // added to the numbers of requests
	closed  bool
	kept    []file // of ended segments
	held    int64  // bytes of kept
	deleted int
	written int64
	begun   int
	late    []error // of Adds, for the next Flush

	first, newest timeline.Instant // of all rows
	segmentStart  timeline.Instant // of the segment's first row

	packer   *ipc.Packer // of all streams, one after the other
	anchors  *stream[timeline.Anchor]
	events   *stream[timeline.Event]
	engine   *stream[timeline.EngineSample]
	host     *stream[timeline.HostSample]
	samples  *stream[timeline.Sample]
	opens    *stream[timeline.Request]
	tokens   *stream[timeline.TokenEvent]
	requests *stream[timeline.Request]
	cells    *stream[cellRow]
}

// Create makes a recording in dir, which is made too if it is missing. A dir that holds a recording is refused.
func Create(dir string, m Meta, o Options) (*Writer, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, metaName)); !errors.Is(err, os.ErrNotExist) {
		if err == nil {
			err = os.ErrExist
		}
		return nil, fmt.Errorf("create recording: %s: %w", filepath.Join(dir, metaName), err)
	}
	return open(dir, m, o)
}

// Open continues the recording in dir with its next segment, for the process and boot that m describes, and makes one
// if there is none. Meta keeps what it held: its creation, and GPUs and targets that m does not name. Requests are
// numbered anew above those of earlier processes, and an event of kind segment, at the first row's instant, says that
// what they left open has no end.
func Open(dir string, m Meta, o Options) (*Writer, error) {
	old, err := readMeta(dir)
	if errors.Is(err, os.ErrNotExist) {
		return Create(dir, m, o)
	}
	if err != nil {
		return nil, err
	}
	all := m
	all.Created = old.Created
	all.GPUs, all.Targets = latestGPUs(old.GPUs, m.GPUs), latestTargets(old.Targets, m.Targets)
	w, err := open(dir, all, o)
	if err != nil {
		return nil, err
	}
	w.gpus.gpus = slices.Clone(m.GPUs)
	return w, nil
}

func open(dir string, m Meta, o Options) (*Writer, error) {
	held, err := lock(dir)
	if err != nil {
		return nil, err
	}
	w := &Writer{dir: dir, lock: held, opts: o.withDefaults(), number: 1}
	if w.packer, err = ipc.NewPacker(); err == nil {
		err = w.begin(m)
	}
	if err != nil {
		_ = held.Close() // nothing is written
		return nil, err
	}
	return w, nil
}

// begin describes the recording and makes ready for its next segment.
func (w *Writer) begin(m Meta) error {
	dir := w.dir
	files, err := listFiles(dir)
	if err != nil {
		return err
	}
	m.Schema = Schema
	w.meta = m
	w.gpus.gpus = slices.Clone(m.GPUs)
	for _, f := range files {
		w.number = max(w.number, f.number+1)
		w.keep(f)
	}
	w.refs = uint64(w.number-1) << refBits
	if err := writeMeta(dir, &w.meta); err != nil {
		return err
	}
	w.anchors = newStream(anchorTable())
	w.events = newStream(eventTable(&w.gpus))
	w.engine = newStream(engineTable())
	w.host = newStream(hostTable())
	w.samples = newStream(sampleTable(&w.gpus))
	w.opens = newStream(openTable())
	w.tokens = newStream(tokenTable())
	w.requests = newStream(requestTable())
	w.cells = newStream(cellTable(&w.gpus))
	return nil
}

// SetGPUs hands over the list of GPUs that later samples, events and cells refer to by position.
func (w *Writer) SetGPUs(gpus []timeline.GPU) error {
	w.gpus.gpus = slices.Clone(gpus)
	all := latestGPUs(w.meta.GPUs, gpus)
	if slices.Equal(all, w.meta.GPUs) {
		return nil
	}
	w.meta.GPUs = all
	return writeMeta(w.dir, &w.meta)
}

// SetTargets adds to, or corrects, the targets that the recording describes.
func (w *Writer) SetTargets(targets []timeline.Target) error {
	w.meta.Targets = latestTargets(w.meta.Targets, targets)
	return writeMeta(w.dir, &w.meta)
}

// AddSample adds a reading of a GPU.
func (w *Writer) AddSample(s *timeline.Sample) { add(w, w.samples, *s) }

// AddEngine adds a scrape of an engine.
func (w *Writer) AddEngine(s *timeline.EngineSample) { add(w, w.engine, *s) }

// AddHost adds a reading of the host.
func (w *Writer) AddHost(s *timeline.HostSample) { add(w, w.host, *s) }

// AddAnchor adds a reading of the host's clocks.
func (w *Writer) AddAnchor(a timeline.Anchor) { add(w, w.anchors, a) }

// AddEvent adds an event of the node.
func (w *Writer) AddEvent(e timeline.Event) { add(w, w.events, e) }

// AddOpen adds a request when it is sent, so that its tokens find it even if its end is never recorded.
func (w *Writer) AddOpen(r *timeline.Request) { add(w, w.opens, w.renumbered(r)) }

// AddToken adds a token event.
func (w *Writer) AddToken(e timeline.TokenEvent) {
	e.Ref += w.refs
	add(w, w.tokens, e)
}

// AddRequest adds a request when it has ended.
func (w *Writer) AddRequest(r *timeline.Request) { add(w, w.requests, w.renumbered(r)) }

// renumbered returns r with the number that it has in this recording.
func (w *Writer) renumbered(r *timeline.Request) timeline.Request {
	c := *r
	c.Ref += w.refs
	return c
}

// AddCell adds a conclusion about a target's cell.
func (w *Writer) AddCell(c *correlate.Cell) {
	for _, row := range cellRows(nil, c) {
		add(w, w.cells, row)
	}
}

// add takes a row of one kind, and writes a batch when there are enough. A Writer that was closed takes none.
func add[T any](w *Writer, s *stream[T], row T) {
	if w.closed {
		s.dropped++
		return
	}
	s.rows = append(s.rows, row)
	if at := s.table.at(&s.rows[len(s.rows)-1]); at != 0 {
		if w.newest == 0 && w.refs > 0 {
			e := timeline.Event{At: at, Kind: timeline.EventSegment, GPU: timeline.NoGPU, Detail: "another process goes on"}
			w.events.rows = append(w.events.rows, e)
		}
		if w.first == 0 || at < w.first {
			w.first = at
		}
		w.newest = max(w.newest, at)
		if w.segmentStart == 0 {
			w.segmentStart = at
		}
	}
	if len(s.rows) < w.opts.BatchRows {
		return
	}
	if err := s.flush(w); err != nil {
		w.late = append(w.late, err)
	}
	w.rotate()
}

// streams lists what the Writer writes, in the order of kinds.
func (w *Writer) streams() []flusher {
	return []flusher{w.anchors, w.events, w.engine, w.host, w.samples, w.opens, w.tokens, w.requests, w.cells}
}

// Flush writes a batch of each kind that has rows. Call it once a second: what was added before the last Flush survives
// the death of the process.
func (w *Writer) Flush() error {
	if w.closed {
		return fmt.Errorf("flush recording: %w", os.ErrClosed)
	}
	errs := w.late
	w.late = nil
	for _, s := range w.streams() {
		if err := s.flush(w); err != nil {
			errs = append(errs, err)
		}
	}
	w.rotate()
	return errors.Join(errs...)
}

// Close writes what is left and ends the segment. A Writer that was closed stays closed.
func (w *Writer) Close() error {
	if w.closed {
		return nil
	}
	err := errors.Join(w.Flush(), w.end(), w.lock.Close())
	w.packer.Close()
	w.closed = true
	return err
}

// end closes the files of the segment.
func (w *Writer) end() error {
	var errs []error
	for _, s := range w.streams() {
		f, err := s.end(w)
		if err != nil {
			errs = append(errs, err)
		}
		if f.number > 0 {
			w.keep(f)
		}
	}
	w.number++
	w.segmentStart = 0
	return errors.Join(errs...)
}

// rotate ends the segment if it is big or old, and deletes the oldest files if there are too many bytes.
func (w *Writer) rotate() {
	open := w.openBytes()
	old := w.segmentStart != 0 && w.newest.Sub(w.segmentStart) >= w.opts.SegmentAge
	if open >= w.opts.SegmentBytes || old && open > 0 {
		if err := w.end(); err != nil {
			w.late = append(w.late, err)
		}
		open = 0
	}
	if w.opts.MaxBytes < 0 {
		return
	}
	for len(w.kept) > 0 && w.held+open > w.opts.MaxBytes {
		w.deleteOldest()
	}
}

func (w *Writer) openBytes() int64 {
	var n int64
	for _, s := range w.streams() {
		n += s.bytes()
	}
	return n
}

func (w *Writer) keep(f file) {
	w.kept = append(w.kept, f)
	w.held += f.bytes
}

// deleteOldest deletes the files of the oldest segment that has ended, so that no kind outlives what it belongs to.
func (w *Writer) deleteOldest() {
	n := slices.MinFunc(w.kept, func(a, b file) int { return a.number - b.number }).number
	w.kept = slices.DeleteFunc(w.kept, func(f file) bool {
		if f.number != n {
			return false
		}
		w.held -= f.bytes
		err := os.Remove(filepath.Join(w.dir, fileName(f.kind, f.number)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.late = append(w.late, fmt.Errorf("delete old segment: %w", err))
		}
		w.deleted++
		return true
	})
}

// Stats returns what the Writer did so far.
func (w *Writer) Stats() Stats {
	s := Stats{
		Bytes: w.held + w.openBytes(), Written: w.written, Files: w.begun, Deleted: w.deleted,
		Rows: map[string]int64{}, Dropped: map[string]int64{},
	}
	for i, f := range w.streams() {
		rows, dropped := f.counts()
		s.Rows[Kind(i).String()], s.Dropped[Kind(i).String()] = rows, dropped
	}
	if d := w.newest.Sub(w.first); d > 0 {
		s.BytesPerHour = float64(w.written) / d.Hours()
	}
	return s
}
