package remote

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// inbox turns the frames of one helper after another into one source: it keeps the positions of the GPUs, and says what
// a loss means for what was read.
type inbox struct {
	source *Source
	sink   timeline.GPUSink

	mu       sync.Mutex
	last     timeline.Instant // of a frame
	started  bool             // this helper told its GPUs
	ended    bool             // this helper was given up: what it still says is not taken
	why      string           // the last helper was lost
	gpus     []timeline.GPU   // every GPU that any helper told, by position
	position []int            // of this helper's GPUs
	states   map[stateKey]timeline.State
	gone     map[int]bool // positions of the GPUs that are lost
	missing  bool         // this helper could not open all that the driver lists
}

type stateKey struct {
	gpu  int
	call string
}

// maxGPUs is the most GPUs that a helper may list: four times what a server of this time holds.
const maxGPUs = 64

// errRefused wraps the helper's own word that there is nothing to read.
var errRefused = errors.New("helper has nothing to read")

func newInbox(s *Source, sink timeline.GPUSink) *inbox {
	return &inbox{source: s, sink: sink, states: map[stateKey]timeline.State{}, gone: map[int]bool{}}
}

// progress returns whether the running helper told its GPUs, and when it last said anything.
func (in *inbox) progress() (bool, timeline.Instant) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.started, in.last
}

// begin makes ready for the next helper.
func (in *inbox) begin() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.started, in.ended, in.missing = false, false, false
}

// lostGPUs returns how many GPUs are known to be lost. Those that could not be opened count as one.
func (in *inbox) lostGPUs() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := len(in.gone)
	if in.missing && n == 0 {
		n = 1
	}
	return n
}

// receive hands on what the helper says until its frames end.
func (in *inbox) receive(p *process) error {
	frames := newFrameReader(p.frames)
	for {
		k, payload, err := frames.next()
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		in.source.count(func(st *Stats) { st.Frames++ })
		if err := in.take(k, payload, p.pid); err != nil {
			return err
		}
	}
}

// take hands on one frame.
func (in *inbox) take(k kind, payload []byte, pid int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return nil
	}
	in.last = in.source.opts.Now()
	switch k {
	case kindGPUs:
		gpus, err := decodeJSON[[]timeline.GPU](payload)
		if err != nil {
			return err
		}
		if len(gpus) > maxGPUs {
			return fmt.Errorf("list of %d gpus: %w", len(gpus), errFrame)
		}
		in.takeGPUs(gpus, pid)
	case kindSample:
		var s timeline.Sample
		if err := decodeSample(payload, &s); err != nil {
			return err
		}
		if err := in.place(&s.GPU); err != nil {
			return err
		}
		in.sink.AddSample(&s)
	case kindCapability:
		c, err := decodeJSON[timeline.Capability](payload)
		if err := errors.Join(err, in.place(&c.GPU)); err != nil {
			return err
		}
		in.setState(c)
	case kindEvent:
		e, err := decodeJSON[timeline.Event](payload)
		if err := errors.Join(err, in.place(&e.GPU)); err != nil {
			return err
		}
		in.takeLoss(&e)
		in.sink.AddEvent(e)
	case kindStats:
		return in.takeStats(payload)
	case kindInventory:
		v, err := decodeJSON[timeline.Inventory](payload)
		if err := errors.Join(err, in.place(&v.GPU)); err != nil {
			return err
		}
		return in.takeInventory(v)
	case kindRefused:
		r, err := decodeJSON[refused](payload)
		return errors.Join(err, fmt.Errorf("%w: %s", errRefused, r.Why))
	case kindHello, kindBeat, kindBurst:
	default:
		return fmt.Errorf("kind %d: %w", k, errFrame)
	}
	return nil
}

// takeLoss notes which GPU is lost, if the event says so.
func (in *inbox) takeLoss(e *timeline.Event) {
	switch {
	case e.Kind != timeline.EventGPULost:
	case e.GPU == timeline.NoGPU:
		in.missing = true
	default:
		in.gone[e.GPU] = true
	}
}

// place turns a helper's index of a GPU into its position.
func (in *inbox) place(gpu *int) error {
	if *gpu == timeline.NoGPU {
		return nil
	}
	if *gpu < 0 || *gpu >= len(in.position) {
		return fmt.Errorf("gpu %d of %d: %w", *gpu, len(in.position), errFrame)
	}
	*gpu = in.position[*gpu]
	return nil
}

func (in *inbox) takeStats(payload []byte) error {
	st, err := decodeJSON[samplerStats](payload)
	if err := errors.Join(err, in.place(&st.GPU)); err != nil {
		return err
	}
	if st.GPU < 0 {
		return errFrame
	}
	in.source.count(func(s *Stats) {
		for len(s.GPUs) <= st.GPU {
			s.GPUs = append(s.GPUs, nvml.Stats{})
		}
		s.GPUs[st.GPU] = st.Stats
	})
	return nil
}

// takeInventory keeps what is on and around a GPU, and hands it on if the sink takes it.
func (in *inbox) takeInventory(v timeline.Inventory) error {
	if v.GPU < 0 {
		return fmt.Errorf("inventory of no gpu: %w", errFrame)
	}
	s := in.source
	s.mu.Lock()
	for len(s.inventory) <= v.GPU {
		s.inventory = append(s.inventory, timeline.Inventory{GPU: len(s.inventory), NUMANode: timeline.NoNUMANode})
	}
	s.inventory[v.GPU] = v
	s.mu.Unlock()
	if to, ok := in.sink.(timeline.InventorySink); ok {
		to.AddInventory(v)
	}
	return nil
}

// find returns the position of a GPU that an earlier helper told, or -1. The UUID decides; GPUs of one UUID, which virtual
// machines that were copied have, are told apart by where they are on the bus.
func (in *inbox) find(g *timeline.GPU, taken map[int]bool) int {
	same := func(k timeline.GPU) bool {
		return timeline.NormalizeUUID(k.UUID) == timeline.NormalizeUUID(g.UUID)
	}
	at := -1
	for i, k := range in.gpus {
		if taken[i] || !same(k) {
			continue
		}
		if k.PCIBusID == g.PCIBusID {
			return i
		}
		if at < 0 {
			at = i
		}
	}
	return at
}

// takeGPUs gives each GPU the position that it had, or one after all others.
func (in *inbox) takeGPUs(gpus []timeline.GPU, pid int) {
	in.position = make([]int, len(gpus))
	present := make(map[int]bool, len(gpus))
	for i, g := range gpus {
		at := in.find(&g, present)
		if at < 0 {
			at = len(in.gpus)
			in.gpus = append(in.gpus, g)
		}
		in.gpus[at], in.position[i], present[at] = g, at, true
		delete(in.gone, at)
	}
	in.started = true
	in.sink.SetGPUs(slices.Clone(in.gpus))
	driver := ""
	if len(gpus) > 0 {
		driver = gpus[0].Driver
	}
	in.sink.AddEvent(timeline.Event{
		At: in.last, Kind: timeline.EventSamplerStarted, GPU: timeline.NoGPU,
		Detail: fmt.Sprintf("helper %d, driver %s, %d gpus", pid, driver, len(gpus)),
	})
	for at := range in.gpus {
		if !present[at] {
			in.loseGPU(at)
		}
	}
}

// loseGPU says that a GPU which an earlier helper told is not there any more.
func (in *inbox) loseGPU(at int) {
	const why = "the driver does not list it any more"
	in.gone[at] = true
	in.sink.AddEvent(timeline.Event{At: in.last, Kind: timeline.EventGPULost, GPU: at, Detail: why})
	in.setStates(timeline.StateLost, why, func(k stateKey, st timeline.State) bool {
		return k.gpu == at && st != timeline.StateUnsupported
	})
}

// setState hands a state on if it is another than before.
func (in *inbox) setState(c timeline.Capability) {
	k := stateKey{c.GPU, c.Call}
	if in.states[k] == c.State {
		return
	}
	in.states[k] = c.State
	in.sink.AddCapability(c)
}

// setStates sets the states that which selects, in a fixed order.
func (in *inbox) setStates(to timeline.State, why string, which func(stateKey, timeline.State) bool) {
	keys := make([]stateKey, 0, len(in.states))
	for k, st := range in.states {
		if which(k, st) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b stateKey) int {
		return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.call, b.call))
	})
	for _, k := range keys {
		in.setState(timeline.Capability{GPU: k.gpu, Call: k.call, State: to, Detail: why})
	}
}

// lost says at once that the running helper is of no more use: its counters stop here.
func (in *inbox) lost(why string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	again := !in.started && why == in.why // a helper that does not start is not worth a word each time
	in.ended, in.why = true, why
	if again {
		return
	}
	at := in.source.opts.Now()
	in.sink.AddEvent(timeline.Event{At: at, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU, Detail: why})
	for gpu := range in.gpus {
		in.sink.AddEvent(timeline.Event{At: at, Kind: timeline.EventGap, GPU: gpu, Detail: why})
	}
	in.setStates(timeline.StateStale, why, func(_ stateKey, st timeline.State) bool { return st == timeline.StateOK })
}

// stopped says that no helper is started any more.
func (in *inbox) stopped(why string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	at := in.source.opts.Now()
	in.sink.AddEvent(timeline.Event{At: at, Kind: timeline.EventSamplerLost, GPU: timeline.NoGPU, Detail: why})
	in.setStates(timeline.StateTimeout, why, func(_ stateKey, st timeline.State) bool {
		return st != timeline.StateUnsupported && st != timeline.StateLost
	})
}

// A GPU that was lost may come back by a reset, of which no open driver tells. It is looked for by starting the helper
// anew, which opens the driver again and costs the other GPUs about a second: soon at first, since a reset that somebody
// is at takes seconds, and seldom later, since a GPU that fell off the bus stays away until a reboot.
const (
	firstLook  = 10 * time.Second
	lastLook   = 5 * time.Minute
	foundAgain = time.Minute // without a lost GPU, after which a loss is the first again
)

// errLook says that a helper is ended to look for lost GPUs.
var errLook = errors.New("the driver is opened again to look for a lost gpu")

// looks says when to look for lost GPUs. It is used by one goroutine.
type looks struct {
	wait  time.Duration    // before the next look; zero: nothing was lost yet
	due   timeline.Instant // zero: nothing is lost
	most  int              // GPUs lost at once since then
	whole timeline.Instant // since when nothing was lost; zero: something is
}

// look reports, with as many GPUs lost as that at now, whether it is time to look for them.
func (l *looks) look(lost int, now timeline.Instant) bool {
	switch {
	case lost == 0:
		l.due = 0
		if l.whole.IsZero() {
			l.whole = now
		}
		if now.Sub(l.whole) >= foundAgain {
			l.wait, l.most = 0, 0
		}
		return false
	case lost > l.most: // another one
		l.wait, l.due = firstLook, now.Add(firstLook)
	case l.due.IsZero():
		l.due = now.Add(l.wait)
	}
	l.most, l.whole = max(l.most, lost), 0
	if now < l.due {
		return false
	}
	l.due, l.wait = 0, min(2*l.wait, lastLook)
	return true
}

// seldom has the next look wait for as long as any does: the driver did not take the last one well.
func (l *looks) seldom() { l.wait = lastLook }
