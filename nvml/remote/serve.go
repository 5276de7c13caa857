package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// flushTime is how long the last frames may take to be written.
const flushTime = 500 * time.Millisecond

// Serve is the helper: it opens the driver, samples all GPUs and writes frames to w, until ctx ends, stdin ends (the
// agent is gone), w breaks, or nothing is left to read. Then it frees what the driver gave and closes it, and returns
// within five seconds. An error that wraps ErrStuck means that the driver still holds a call, and was left open; the
// process should end all the same.
func Serve(ctx context.Context, open func() (nvml.Library, error), cfg nvml.Config, w io.Writer, stdin io.Reader,
	now func() timeline.Instant,
) error {
	return serveWithin(ctx, open, cfg, w, stdin, now, residentMemory)
}

// serveWithin is Serve with what tells how much memory the helper holds.
func serveWithin(ctx context.Context, open func() (nvml.Library, error), cfg nvml.Config, w io.Writer, stdin io.Reader,
	now func() timeline.Instant, memory func() uint64,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdinEnded := make(chan struct{})
	bursts := make(chan time.Duration, 1) // the newest command counts
	go func() {
		defer close(stdinEnded)
		readCommands(stdin, func(d time.Duration) { replace(bursts, d) })
		cancel()
	}()
	out := newOutbox(w)
	written := make(chan error, 1)
	go func() {
		err := out.run()
		cancel()
		written <- err
	}()
	out.putJSON(kindHello, hello{Protocol: protocol, Version: protocolVersion})
	err := serve(ctx, open, cfg, out, bursts, now, memory)
	out.close()
	err = errors.Join(err, await(written, flushTime))
	if c, ok := stdin.(io.Closer); ok {
		_ = c.Close() // a terminal or a pipe in blocking mode keeps its reader; the process ends anyway
		_ = await(stdinEnded, flushTime)
	}
	return err
}

// replace puts v into a channel of one place, instead of what waits there.
func replace[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}

// await waits for a goroutine to end, but not for long.
func await[T any](ended <-chan T, atMost time.Duration) T {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case v := <-ended:
		return v
	case <-timer.C:
		var none T
		return none
	}
}

// opened is the outcome of opening the driver.
type opened struct {
	lib   nvml.Library
	fleet *fleet
	err   error
}

// serve opens the driver and samples until ctx ends, or the process holds too much memory.
func serve(ctx context.Context, open func() (nvml.Library, error), cfg nvml.Config, out *outbox, bursts <-chan time.Duration,
	now func() timeline.Instant, memory func() uint64,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan opened, 1)
	go func() { done <- openFleet(open, cfg, now) }() // opening a driver can hang like any other call
	o, ok := awaitOpen(ctx, done)
	if !ok {
		return fmt.Errorf("open driver: %w", ErrStuck)
	}
	if o.err != nil {
		out.putJSON(kindRefused, refused{Why: o.err.Error()})
		return o.err
	}
	o.fleet.start(out, now())
	beats, guard := 0, memoryGuard{read: memory}
	err := o.fleet.run(ctx, out, bursts, func() {
		out.putJSON(kindBeat, struct{}{})
		if beats++; beats%2 == 0 {
			o.fleet.report(out, now())
		}
		if beats%memoryBeats == 0 {
			if err := guard.check(); err != nil {
				cancel(err)
			}
		}
	})
	if cause := context.Cause(ctx); errors.Is(cause, errMemory) {
		err = errors.Join(cause, err)
	}
	if errors.Is(err, ErrStuck) {
		return fmt.Errorf("stop sampling: %w", err)
	}
	if cerr := o.lib.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close driver: %w", cerr))
	}
	return err
}

// maxMemory is what a helper may hold: twenty times what it needs. Libraries of drivers, and long-lived monitors on top of
// them, have been seen to grow slowly (NVIDIA/dcgm-exporter#292, NVIDIA/gpu-operator#340), and nothing but the end of the
// process gives that back. A helper that holds much from the start may hold memoryGrowth times that: another would too.
const (
	maxMemory    = 256 << 20
	memoryGrowth = 2
)

// memoryBeats is how many beats lie between two looks at the memory.
const memoryBeats = 10

// errMemory says that the helper holds too much.
var errMemory = errors.New("the helper holds too much memory, and is started anew: the driver's library may leak")

// memoryGuard compares what the helper holds with what it held when that was first looked at.
type memoryGuard struct {
	read func() uint64
	most uint64 // zero: not looked at yet
}

// check returns errMemory if the helper holds more than it may.
func (g *memoryGuard) check() error {
	held := g.read()
	if g.most == 0 {
		g.most = max(maxMemory, memoryGrowth*held)
	}
	if held > g.most {
		return fmt.Errorf("%d MiB: %w", held>>20, errMemory)
	}
	return nil
}

// residentMemory returns what this process holds in memory (proc(5): the second number of statm, in pages), zero where that
// is not told.
func residentMemory() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// awaitOpen waits until the driver is open. Once the end is asked for, it does not wait for long.
func awaitOpen(ctx context.Context, done <-chan opened) (opened, bool) {
	select {
	case o := <-done:
		return o, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case o := <-done:
		return o, true
	case <-timer.C:
		return opened{}, false
	}
}

func openFleet(open func() (nvml.Library, error), cfg nvml.Config, now func() timeline.Instant) opened {
	lib, err := open()
	if err != nil {
		return opened{err: fmt.Errorf("open driver: %w", err)}
	}
	f, err := newFleet(lib, cfg, now)
	if err != nil {
		return opened{err: errors.Join(err, lib.Close())}
	}
	return opened{lib: lib, fleet: f}
}

// report sends the samplers' counts, and says what had to be dropped.
func (f *fleet) report(out *outbox, at timeline.Instant) {
	for i, s := range f.stats() {
		out.putJSON(kindStats, samplerStats{GPU: i, Stats: s})
	}
	if n := out.takeDropped(); n > 0 {
		out.AddEvent(timeline.Event{
			At: at, Kind: timeline.EventDropped, GPU: timeline.NoGPU,
			Detail: fmt.Sprintf("%d frames of the helper, because the agent did not read", n),
		})
	}
}

// maxPending is how many bytes may wait for a reader that is slow: about 20 s of eight GPUs at default rates. What comes
// on top is dropped and counted; a sampler never waits.
const maxPending = 256 << 10

// flushEvery is how long samples wait for more of them. Eight GPUs give some 180 frames a second, and each write wakes
// both processes; samples are judged seconds later, so that they can come twenty times a second. What is no sample
// does not wait, and takes along what does.
const flushEvery = 50 * time.Millisecond

// outbox is the sink of the helper's samplers: it turns what they tell into frames and writes them behind their back.
// It is safe for concurrent use.
type outbox struct {
	w      io.Writer
	wake   chan struct{} // capacity 1: samples are pending
	urgent chan struct{} // capacity 1: something else is pending, or the outbox is closed

	mu      sync.Mutex
	pending []byte
	spare   []byte // the buffer that is not pending: the two swap
	dropped uint64 // frames, since it was last said
	closed  bool
}

func newOutbox(w io.Writer) *outbox {
	return &outbox{w: w, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
}

// run writes what is put until close, or until a write fails.
func (o *outbox) run() error {
	pause := time.NewTimer(flushEvery)
	defer pause.Stop()
	for {
		select {
		case <-o.urgent:
		case <-o.wake:
			pause.Reset(flushEvery)
			select {
			case <-o.urgent:
			case <-pause.C:
			}
		}
		o.mu.Lock()
		out, closed := o.pending, o.closed
		o.pending = o.spare[:0]
		o.mu.Unlock()
		if len(out) > 0 {
			if _, err := o.w.Write(out); err != nil {
				return fmt.Errorf("write frames: %w", err)
			}
		}
		o.mu.Lock()
		o.spare = out
		o.mu.Unlock()
		if closed {
			return nil
		}
	}
}

// close ends run once what is pending was written.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	signal(o.urgent)
}

// signal leaves a token in a channel of one place.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a frame that is written at once, or drops it if too much is pending.
func (o *outbox) put(add func([]byte) []byte) {
	o.mu.Lock()
	if len(o.pending) >= maxPending || o.closed {
		o.dropped++
	} else {
		o.pending = add(o.pending)
	}
	o.mu.Unlock()
	signal(o.urgent)
}

// putJSON adds a frame that holds v. What does not encode, or is longer than a frame may be, is dropped and counted.
func (o *outbox) putJSON(k kind, v any) {
	o.put(func(b []byte) []byte {
		out, err := appendJSON(b, k, v)
		if err != nil {
			o.dropped++
		}
		return out
	})
}

// takeDropped returns how many frames were dropped since the last call.
func (o *outbox) takeDropped() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.dropped
	o.dropped = 0
	return n
}

// SetGPUs sends the list of GPUs.
func (o *outbox) SetGPUs(gpus []timeline.GPU) { o.putJSON(kindGPUs, gpus) }

// AddSample sends a sample, soon.
func (o *outbox) AddSample(s *timeline.Sample) {
	o.mu.Lock()
	if len(o.pending) >= maxPending || o.closed {
		o.dropped++
	} else {
		o.pending = appendSample(o.pending, s)
	}
	o.mu.Unlock()
	signal(o.wake)
}

// AddCapability sends a counter's state.
func (o *outbox) AddCapability(c timeline.Capability) { o.putJSON(kindCapability, c) }

// AddEvent sends an event.
func (o *outbox) AddEvent(e timeline.Event) { o.putJSON(kindEvent, e) }

// maxListed is how many processes of a GPU are sent: enough for people, and for a frame.
const maxListed = 512

// AddInventory sends what is on and around a GPU.
func (o *outbox) AddInventory(v timeline.Inventory) {
	v.Processes = v.Processes[:min(len(v.Processes), maxListed)]
	o.putJSON(kindInventory, v)
}
