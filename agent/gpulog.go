package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// gpuLog is what the store hears of GPUs, and tells people of it what they have to know, not too often.
type gpuLog struct {
	timeline.GPUSink

	log *slog.Logger
	now func() timeline.Instant

	mu     sync.Mutex
	said   map[toldOf]*told
	listed bool                   // the driver has listed GPUs
	helper string                 // why the helper was lost, which its own log says
	open   map[int]timeline.Event // gaps that windows have not ended, by GPU
	warned map[int]warning        // GPUs of which it was said that counters are missing
	faults map[int]timeline.Event // the last error that the driver told of each GPU
	paces  map[int]*pace          // of what comes of each GPU
}

// warning is why counters are missing, and since when.
type warning struct {
	cause string
	since timeline.Instant
}

// toldOf is what is told once in a while.
type toldOf struct {
	kind   timeline.EventKind
	gpu    int
	detail string
}

type told struct {
	at       timeline.Instant
	repeated int
}

// isLost stands for the cause of a GPU whose loss was said: no gap adds to that.
const isLost = "is lost"

// maxSaid bounds what is remembered of what was said.
const maxSaid = 1 << 10

func newGPULog(next timeline.GPUSink, log *slog.Logger, now func() timeline.Instant) *gpuLog {
	return &gpuLog{
		GPUSink: next, log: log, now: now, said: map[toldOf]*told{}, open: map[int]timeline.Event{}, warned: map[int]warning{},
		faults: map[int]timeline.Event{}, paces: map[int]*pace{},
	}
}

// pace is how often something comes.
type pace struct {
	windows bool               // only windows of activity count
	first   timeline.Instant   // since when
	ends    []timeline.Instant // of what came in the last paceTime
}

// paceTime is the time over which a pace is taken.
const paceTime = 10 * time.Second

// AddSample hands a reading on and counts it: a window, or what a GPU without windows gives.
func (l *gpuLog) AddSample(s *timeline.Sample) {
	l.GPUSink.AddSample(s)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.paces[s.GPU]
	if p == nil {
		p = &pace{first: s.Over.End}
		l.paces[s.GPU] = p
	}
	window := s.Has&timeline.GPM != 0
	if p.windows && !window {
		return
	}
	if window && !p.windows {
		*p = pace{windows: true, first: s.Over.End, ends: p.ends[:0]}
	}
	old := 0
	for old < len(p.ends) && p.ends[old] <= s.Over.End.Add(-paceTime) {
		old++
	}
	p.ends = append(p.ends[:copy(p.ends, p.ends[old:])], s.Over.End)
}

// rate returns how many windows of a GPU were handed on per second of late; of one without windows, how many readings.
// It returns false while too few were to say.
func (l *gpuLog) rate(gpu int, now timeline.Instant) (float64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.paces[gpu]
	if p == nil {
		return 0, false
	}
	over := min(now.Sub(p.first), paceTime)
	if over < paceTime/10 {
		return 0, false
	}
	n := 0
	for _, end := range p.ends {
		if end > now.Add(-over) && end <= now {
			n++
		}
	}
	return float64(n) / over.Seconds(), true
}

// AddInventory hands an inventory on to a sink that wants it.
func (l *gpuLog) AddInventory(v timeline.Inventory) {
	if to, ok := l.GPUSink.(timeline.InventorySink); ok {
		to.AddInventory(v)
	}
}

// SetGPUs hands the list of GPUs on, and says the first.
func (l *gpuLog) SetGPUs(gpus []timeline.GPU) {
	l.mu.Lock()
	first := !l.listed && len(gpus) > 0
	l.listed = l.listed || first
	l.mu.Unlock()
	if first {
		l.log.Info("gpus are read", listing(gpus)...)
	}
	l.GPUSink.SetGPUs(gpus)
}

// listing says how many GPUs of which models there are, the driver's version, and whether they are simulated.
func listing(gpus []timeline.GPU) []any {
	var models []string
	simulated := false
	for _, g := range gpus {
		simulated = simulated || g.Simulated
		if !slices.Contains(models, g.Name) {
			models = append(models, g.Name)
		}
	}
	attrs := []any{slog.Int("count", len(gpus)), slog.String("model", strings.Join(models, ", "))}
	if gpus[0].Driver != "" {
		attrs = append(attrs, slog.String("driver", gpus[0].Driver))
	}
	if simulated {
		attrs = append(attrs, slog.String("devices", "SIMULATED"))
	}
	return attrs
}

// neverRead begins what is told where the helper was lost because there never was a driver.
const neverRead = timeline.NeverRead

// reword says of a loss of the helper that there was nothing to lose.
func (l *gpuLog) reword(e *timeline.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == timeline.EventSamplerLost && !l.listed && strings.Contains(e.Detail, nvml.ErrNoLibrary.Error()) {
		e.Detail = neverRead + ": " + e.Detail
	}
}

// AddEvent hands an event on and says it. A gap waits: most are over with the next window.
func (l *gpuLog) AddEvent(e timeline.Event) {
	l.reword(&e)
	l.GPUSink.AddEvent(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind { //nolint:exhaustive // the other kinds are none of a driver's troubles
	case timeline.EventSamplerLost:
		l.helper = e.Detail
		clear(l.open) // that is said of all
	case timeline.EventGap:
		if e.Detail != l.helper && l.warned[e.GPU].cause != isLost {
			l.open[e.GPU] = e
		}
	case timeline.EventGPULost:
		delete(l.open, e.GPU)
		again := e.GPU != timeline.NoGPU && l.warned[e.GPU].cause == isLost
		l.warned[e.GPU] = warning{isLost, e.At}
		if !again { // a helper that starts again tells it in the words of another call
			l.say(l.log.Warn, "gpu is lost", &e)
		}
	case timeline.EventXid, timeline.EventGPUFault:
		l.faults[e.GPU] = e
		l.say(l.log.Warn, "gpu tells an error", &e)
	case timeline.EventCapability:
		l.say(l.log.Warn, "gpu counters changed", &e)
	case timeline.EventMIGChange:
		l.say(l.log.Info, "gpu is cut anew", &e)
	case timeline.EventRate:
		l.say(l.log.Info, "gpu is read at another rate", &e)
	case timeline.EventDropped:
		l.say(l.log.Warn, "gpu readings were dropped", &e)
	}
}

// gapTime is how long counters have to be missing to be worth a word.
const gapTime = time.Second

// look says which gaps lasted, and which GPUs are read again, by the newest windows. What is so of several GPUs is one
// line.
func (l *gpuLog) look(latest map[int]timeline.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	missing, first := map[string][]int{}, map[string]timeline.Event{}
	for _, gpu := range slices.Sorted(maps.Keys(l.open)) {
		e := l.open[gpu]
		cause := strings.Map(withoutDigits, e.Detail)
		switch {
		case latest[gpu] > e.At:
			delete(l.open, gpu)
		case now.Sub(e.At) >= gapTime && l.warned[gpu].cause != cause:
			l.warned[gpu] = warning{cause, e.At}
			if missing[cause] == nil {
				first[cause] = e
			}
			missing[cause] = append(missing[cause], gpu)
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(missing)) {
		e := first[cause]
		l.say(l.log.Warn, "gpu counters are missing", &e, missing[cause]...)
	}
	var back []int
	for _, gpu := range slices.Sorted(maps.Keys(l.warned)) {
		if _, open := l.open[gpu]; !open && latest[gpu] > l.warned[gpu].since && now.Sub(latest[gpu]) < gapTime {
			delete(l.warned, gpu)
			back = append(back, gpu)
		}
	}
	if len(back) > 0 {
		l.say(l.log.Info, "gpu counters are back", &timeline.Event{GPU: back[0]}, back...)
	}
}

// say logs one event, of several GPUs if they are named, and the same again once a minute with a count. The lock is held.
func (l *gpuLog) say(write func(string, ...any), message string, e *timeline.Event, gpus ...int) {
	key := toldOf{e.Kind, e.GPU, strings.Map(withoutDigits, e.Detail)}
	now, repeated := l.now(), 0
	if e.Kind == timeline.EventXid && l.numbered(e, now) < maxNumbered {
		key.detail = e.Detail // the number is what it is about
	}
	if len(l.said) > maxSaid {
		clear(l.said)
	}
	if t := l.said[key]; t != nil {
		if now.Sub(t.at) < sayAgainAfter {
			t.repeated++
			return
		}
		repeated = t.repeated
	}
	l.said[key] = &told{at: now}
	var attrs []any
	if len(gpus) > 1 {
		attrs = append(attrs, slog.Any("gpus", gpus))
	} else if e.GPU != timeline.NoGPU {
		attrs = append(attrs, slog.Int("gpu", e.GPU))
	}
	if e.Detail != "" {
		attrs = append(attrs, slog.String("cause", e.Detail))
	}
	if repeated > 0 {
		attrs = append(attrs, slog.Int("repeated", repeated))
	}
	write(message, attrs...)
}

// maxNumbered bounds the errors of a GPU that are told apart by their numbers: a driver knows under two hundred, of which
// a broken GPU tells a few, and one that makes them up must not fill the log.
const maxNumbered = 16

// numbered returns how many other errors of a GPU were told by their numbers of late. The lock is held.
func (l *gpuLog) numbered(e *timeline.Event, now timeline.Instant) int {
	n := 0
	for k, t := range l.said {
		if k.kind == e.Kind && k.gpu == e.GPU && k.detail != e.Detail && now.Sub(t.at) < sayAgainAfter {
			n++
		}
	}
	return n
}

// withoutDigits drops the digits of a text, so that times that differ make no other text.
func withoutDigits(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
}

// lastFault returns the last error that the driver told of a GPU.
func (l *gpuLog) lastFault(gpu int) (timeline.Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.faults[gpu]
	return e, ok
}

// sayAgainAfter bounds how often one and the same loss of the helper is logged.
const sayAgainAfter = time.Minute

// helperLog is a log of the helper's losses that people can stand: the first of its kind at once, and while it repeats
// itself once a minute with a count. The helper's own lines are for who looks for them.
type helperLog struct {
	slog.Handler
	now func() timeline.Instant

	mu       sync.Mutex
	why      string
	said     timeline.Instant
	repeated int
}

func newHelperLog(log *slog.Logger, now func() timeline.Instant) *slog.Logger {
	return slog.New(&helperLog{Handler: log.Handler(), now: now})
}

// Handle logs, lowers or counts one record.
func (h *helperLog) Handle(ctx context.Context, r slog.Record) error {
	why := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			why = a.Value.String()
		}
		return true
	})
	if r.Level == slog.LevelInfo {
		r.Level = slog.LevelDebug
	}
	if why == "" || r.Level != slog.LevelWarn {
		return h.pass(ctx, r)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if why == h.why && now.Sub(h.said) < sayAgainAfter {
		h.repeated++
		return nil
	}
	if why != h.why {
		h.repeated = 0
	}
	short := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	if strings.Contains(why, nvml.ErrNoLibrary.Error()) {
		short.Message = "no NVIDIA driver here: see tpotscope doctor"
		r.Level = slog.LevelDebug // in the driver's words
	} else {
		short.AddAttrs(slog.String("cause", why))
		r.Level = slog.LevelDebug - 1 // is said already
	}
	if h.repeated > 0 {
		short.AddAttrs(slog.Int("repeated", h.repeated))
	}
	h.why, h.said, h.repeated = why, now, 0
	return errors.Join(h.pass(ctx, short), h.pass(ctx, r))
}

// pass hands a record on if its level is wanted.
func (h *helperLog) pass(ctx context.Context, r slog.Record) error {
	if !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
