// Package burst has clocks and the reasons that hold them read at the highest rate for a while: when a person asks for
// it, and by itself at the onset of an anomaly. It knows what an anomaly is and how often a burst may be; it reads no
// GPU, which is its source's to do.
package burst

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Bounds of a burst, and what begins one by itself lasts.
const (
	Min      = time.Second
	Max      = time.Minute
	autoFor  = 30 * time.Second
	autoRest = 5 * time.Minute // from one that began by itself to the next
)

// What an anomaly is.
const (
	calmCells = 30  // decoding cells without throttling before an onset
	pastCells = 60  // decoding cells whose median a TPOT is compared with
	slowRatio = 1.5 // of a TPOT to that median
	slowCells = 2   // in a row
)

// Mode says who may begin a burst.
type Mode string

// The modes.
const (
	Auto   Mode = "auto"   // anomalies and people
	Manual Mode = "manual" // people
	Off    Mode = "off"    // nobody
)

// Validate reports whether m is one of the modes.
func (m Mode) Validate() error {
	if !slices.Contains([]Mode{Auto, Manual, Off}, m) {
		return fmt.Errorf("burst: %q is not one of auto, manual, off", string(m))
	}
	return nil
}

// Why a burst does not begin.
var (
	ErrOff      = errors.New("bursts are off (nvml.burst)")
	ErrNoSource = errors.New("the agent reads no GPU that could")
	ErrRunning  = errors.New("a burst is running")
	ErrLength   = fmt.Errorf("want %v to %v", Min, Max)
)

// Config says what bursts are made of.
type Config struct {
	Mode   Mode
	Source func(time.Duration) error // nil: ErrNoSource
	Now    func() timeline.Instant
	Event  func(timeline.Event) // takes one event of each burst
	Logger *slog.Logger
}

// Control begins bursts, one at a time. It is safe for concurrent use.
type Control struct {
	cfg Config

	mu      sync.Mutex
	until   timeline.Instant // end of the newest burst
	rests   timeline.Instant // until then none begins by itself
	targets map[string]*past
	count   uint64
	why     string // of the newest burst
	began   timeline.Instant
}

// New returns a control that has begun no burst.
func New(cfg Config) *Control {
	return &Control{cfg: cfg, targets: map[string]*past{}}
}

// State is what is known of bursts so far.
type State struct {
	Mode     Mode    `json:"mode"`
	Count    uint64  `json:"count"`
	RunningS float64 `json:"running_s,omitempty"` // that the one under way still takes
	LastAgeS float64 `json:"last_age_s,omitempty"`
	LastWhy  string  `json:"last_why,omitempty"`
}

// State returns what is known of bursts so far.
func (c *Control) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Mode: c.cfg.Mode, Count: c.count, LastWhy: c.why}
	if now := c.cfg.Now(); c.count > 0 {
		s.LastAgeS, s.RunningS = now.Sub(c.began).Seconds(), max(0, c.until.Sub(now)).Seconds()
	}
	return s
}

// Start begins a burst that somebody asked for. The error is, or wraps, one of the Err values, or is the source's.
func (c *Control) Start(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start(d, "", "asked for")
}

// start begins a burst. The lock is held.
func (c *Control) start(d time.Duration, target, why string) error {
	now := c.cfg.Now()
	switch {
	case c.cfg.Mode == Off:
		return ErrOff
	case c.cfg.Source == nil:
		return ErrNoSource
	case d < Min || d > Max:
		return fmt.Errorf("a burst of %v: %w", d, ErrLength)
	case now < c.until:
		return fmt.Errorf("%w for another %v", ErrRunning, c.until.Sub(now).Round(time.Second))
	}
	if err := c.cfg.Source(d); err != nil {
		return fmt.Errorf("begin burst: %w", err)
	}
	c.until, c.began, c.why = now.Add(d), now, why
	c.count++
	c.cfg.Event(timeline.Event{At: now, Kind: timeline.EventBurst, GPU: timeline.NoGPU, Target: target, Detail: fmt.Sprintf("%v: %s", d, why)})
	c.cfg.Logger.Info("burst begins", slog.Duration("for", d), slog.String("target", target), slog.String("cause", why))
	return nil
}

// Look takes in what was concluded and what happened, in the order of time, and begins a burst at an anomaly.
func (c *Control) Look(cells []correlate.Cell, events []timeline.Event) {
	if c.cfg.Mode != Auto || c.cfg.Source == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	target, why := "", ""
	for i := range events {
		if events[i].Kind == timeline.EventXid {
			why = "the driver told a critical error"
		}
	}
	for i := range cells {
		if w := c.anomaly(&cells[i]); w != "" && why == "" {
			target, why = cells[i].Target, w
		}
	}
	now := c.cfg.Now()
	if why == "" || now < c.rests {
		return
	}
	switch err := c.start(autoFor, target, why); {
	case err == nil:
		c.rests = now.Add(autoRest)
	case !errors.Is(err, ErrRunning):
		c.cfg.Logger.Debug("burst not begun", slog.String("cause", why), slog.Any("err", err))
	}
}

// maxTargets bounds the targets whose past is kept.
const maxTargets = 256

// past is what the newest decoding cells of a target were like.
type past struct {
	calm int       // in a row without throttling, up to calmCells
	slow int       // in a row
	tpot []float64 // s, up to pastCells, oldest first
}

// anomaly takes in one cell and says what is wrong with it, if that begins here. The lock is held.
func (c *Control) anomaly(cell *correlate.Cell) string {
	if !cell.Decode {
		return ""
	}
	p := c.targets[cell.Target]
	if p == nil {
		if len(c.targets) >= maxTargets {
			return ""
		}
		p = &past{}
		c.targets[cell.Target] = p
	}
	throttled, slow := p.throttled(cell), p.slower(cell)
	switch {
	case throttled:
		return "throttling began"
	case slow:
		return "time per output token rose"
	}
	return ""
}

// throttled takes in a cell and reports whether throttling begins with it.
func (p *past) throttled(c *correlate.Cell) bool {
	if !slices.Contains(c.Verdict.Overlays, timeline.Throttled) {
		p.calm = min(p.calm+1, calmCells)
		return false
	}
	onset := p.calm == calmCells
	p.calm = 0
	return onset
}

// slower takes in a cell and reports whether it is the one with which tokens have come slower for long enough.
func (p *past) slower(c *correlate.Cell) bool {
	if !c.WindowTPOT.OK() {
		return false
	}
	now := c.WindowTPOT.Value
	if len(p.tpot) == pastCells && now > slowRatio*median(p.tpot) {
		p.slow++
	} else {
		p.slow = 0
	}
	if len(p.tpot) == pastCells {
		p.tpot = p.tpot[:copy(p.tpot, p.tpot[1:])]
	}
	p.tpot = append(p.tpot, now)
	return p.slow == slowCells
}

// median returns the middle of what is not in order.
func median(values []float64) float64 {
	var room [pastCells]float64
	sorted := room[:copy(room[:], values)]
	slices.Sort(sorted)
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
