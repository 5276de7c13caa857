package scrape

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// DCGMConfig says where NVIDIA's dcgm-exporter is read.
type DCGMConfig struct {
	URL      string        `yaml:"url"`      // http://HOST:9400, with or without /metrics; empty: it is not read
	Interval time.Duration `yaml:"interval"` // longest time between two looks; in between it is looked at when new values are due
}

// DefaultDCGMConfig returns the defaults: not read, and looked at every ten seconds at least.
func DefaultDCGMConfig() DCGMConfig { return DCGMConfig{Interval: 10 * time.Second} }

// Enabled reports whether an exporter is to be read.
func (c DCGMConfig) Enabled() bool { return c.URL != "" }

// Validate names everything that is wrong with c.
func (c DCGMConfig) Validate() error {
	var errs []error
	if c.Enabled() {
		switch u, err := url.Parse(c.URL); {
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			errs = append(errs, errors.New("url: want http://HOST:9400"))
		case u.User != nil:
			errs = append(errs, errors.New("url: credentials in a URL end up in logs: leave them out"))
		}
	}
	if c.Interval < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("interval: %v is too short, the least is 100ms", c.Interval))
	}
	return errors.Join(errs...)
}

// DCGMReading is what the exporter told of one GPU over one of its own collection intervals.
type DCGMReading struct {
	GPU     timeline.GPU    // as far as the exporter names it
	Windows timeline.Sample // means over the interval; its GPU is [timeline.NoGPU]
	Gauges  timeline.Sample // at the interval's end; its GPU is [timeline.NoGPU]
	Every   time.Duration   // the collection interval as it was seen so far; zero while it is not known
}

// DCGMSink takes what a DCGM reads. Both functions are called from the goroutine of Run alone, and must not block.
type DCGMSink struct {
	Reading func(*DCGMReading)
	Event   func(timeline.Event)
}

// DCGMStats counts what was read, and what was refused and why.
type DCGMStats struct {
	Looks       uint64        `json:"looks"`
	Failed      uint64        `json:"failed,omitempty"` // looks without a readable answer
	Collections uint64        `json:"collections"`      // new values seen
	Every       time.Duration `json:"every_ns"`         // between two collections
	DCGMRefused
}

const (
	// leastPeriod is the shortest collection interval that is followed. DCGM's profiling counters mean nothing below
	// 100 ms on Hopper (NVIDIA/DCGM#310), and exporters are run at seconds; of a faster one every value stands for a
	// second all the same, of which it is a part.
	leastPeriod = time.Second
	leastStep   = 50 * time.Millisecond
	learnStep   = time.Second // between looks while the collection interval is not known
	fastFor     = time.Minute // after which a fast exporter is watched closely again
	dcgmTimeout = 2 * time.Second
	spacings    = 5 // last times between collections whose median is the interval
	enough      = 3 // of them make it known
)

// DCGM reads one dcgm-exporter. The exporter shows the newest value of each counter with neither its time nor its
// interval. So it is looked at often enough to see when values change: each such moment ends one collection interval
// and begins the next, and is known to half the time between two looks.
type DCGM struct {
	page string
	cfg  DCGMConfig
	now  func() timeline.Instant
	sink DCGMSink
	http *http.Client

	trust  map[string]*trust
	last   map[string]uint64 // values of each GPU, hashed
	looked timeline.Instant  // middle of the last look that was answered
	edge   timeline.Instant  // when values changed last
	slack  time.Duration     // to which that is known
	fast   timeline.Instant  // until then the exporter is taken to collect more often than is followed
	gaps   []time.Duration
	mute   string

	mu    sync.Mutex
	stats DCGMStats
}

// NewDCGM returns a reader of the exporter that cfg names.
func NewDCGM(cfg DCGMConfig, now func() timeline.Instant, sink DCGMSink) (*DCGM, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	page := strings.TrimRight(cfg.URL, "/")
	if !strings.HasSuffix(page, "/metrics") {
		page += "/metrics"
	}
	return &DCGM{page: page, cfg: cfg, now: now, sink: sink, http: client(), trust: map[string]*trust{}}, nil
}

// Stats returns what was counted so far. It may be called while Run runs.
func (d *DCGM) Stats() DCGMStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Run reads until ctx ends, and then returns nil. An exporter that does not answer is an event, not an error.
func (d *DCGM) Run(ctx context.Context) error {
	defer d.http.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		_ = d.Once(ctx) // told to the sink as an event
		timer.Reset(d.wait(d.now()))
	}
}

// wait returns how long nothing new is expected.
func (d *DCGM) wait(now timeline.Instant) time.Duration {
	period := d.period()
	if period == 0 {
		return min(learnStep, d.cfg.Interval)
	}
	if now < d.fast {
		return leastPeriod
	}
	step := max(period/20, leastStep)
	due := d.edge.Add(period*9/10 - d.slack)
	switch {
	case now < due:
		return min(max(due.Sub(now), leastStep), d.cfg.Interval)
	case now < due.Add(period):
		return min(step, d.cfg.Interval)
	default: // values of an idle GPU may not change at all
		return min(max(period/4, step), d.cfg.Interval)
	}
}

// period returns the collection interval, zero while it is not known.
func (d *DCGM) period() time.Duration {
	if len(d.gaps) < enough {
		return 0
	}
	sorted := slices.Clone(d.gaps)
	slices.Sort(sorted)
	return max(leastPeriod, sorted[len(sorted)/2])
}

// Once looks a single time. It returns the reason if the exporter gave no readable page.
func (d *DCGM) Once(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, dcgmTimeout)
	defer cancel()
	begun := d.now()
	body, err := fetch(asked, d.http, d.page, "", maxMetricsBytes)
	at := begun + (d.now()-begun)/2
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var rows []DCGMRow
	var refused DCGMRefused
	if err == nil {
		rows, refused, err = TranslateDCGM(body)
	}
	d.tell(at, err)
	d.count(func(s *DCGMStats) {
		s.Looks++
		if err != nil {
			s.Failed++
		}
	})
	if err != nil {
		return err
	}
	d.look(at, rows, refused)
	return nil
}

func (d *DCGM) count(change func(*DCGMStats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.stats)
}

// tell says once that the exporter does not answer, and once that it does again.
func (d *DCGM) tell(at timeline.Instant, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why == d.mute {
		return
	}
	d.mute = why
	if why == "" {
		why = "ok"
	}
	if d.sink.Event != nil {
		d.sink.Event(timeline.Event{At: at, Kind: timeline.EventCapability, GPU: timeline.NoGPU, Detail: "dcgm-exporter: " + why})
	}
}

// look takes a page that was shown at that moment, and hands on what is new.
func (d *DCGM) look(at timeline.Instant, rows []DCGMRow, refused DCGMRefused) {
	was := d.looked
	d.looked = at
	if !d.changed(rows) {
		d.fast = 0
		return
	}
	d.count(func(s *DCGMStats) { s.Collections++; s.add(refused) })
	if was.IsZero() {
		return // the first values have been there for who knows how long
	}
	from, fromSlack := d.edge, d.slack
	to, toSlack := was+(at-was)/2, at.Sub(was)/2
	if at < d.fast {
		to, toSlack = at, leastStep
	} else {
		d.relearn(at, toSlack)
	}
	d.edge, d.slack = to, toSlack
	maps.DeleteFunc(d.trust, func(uuid string, _ *trust) bool { _, there := d.last[uuid]; return !there })
	for i := range rows {
		d.judge(&rows[i])
	}
	if from.IsZero() {
		return
	}
	width := to.Sub(from)
	period := d.period()
	if period > 0 && width > period*3/2 {
		// Collections without a change have passed unseen: the values speak for the last of them alone.
		from, width = to.Add(-period), period
	} else {
		d.gaps = append(d.gaps, width)
		d.gaps = d.gaps[max(0, len(d.gaps)-spacings):]
		period = d.period()
		d.count(func(s *DCGMStats) { s.Every = period })
	}
	if width < period*3/4 {
		return // shorter than what the exporter collects over: its hand was caught in the middle
	}
	over := timeline.Span{Start: from, End: to}
	for i := range rows {
		d.hand(&rows[i], over, max(fromSlack, toSlack), period)
	}
}

// relearn notes that values had changed before they were due: the exporter collects more often than was thought. Of one
// that collects several times a second each value stands for the second since the last look, of which it is a part.
func (d *DCGM) relearn(at timeline.Instant, slack time.Duration) {
	period := d.period()
	if period == 0 || d.slack > period/10 || slack <= period/10 {
		return
	}
	if period > leastPeriod*11/10 {
		d.gaps = nil
		return
	}
	d.fast = at.Add(fastFor)
}

// changed reports whether any GPU shows other values than at the last look.
func (d *DCGM) changed(rows []DCGMRow) bool {
	prints := make(map[string]uint64, len(rows))
	changed := false
	for i := range rows {
		p := rows[i].print()
		prints[rows[i].GPU.UUID] = p
		if was, ok := d.last[rows[i].GPU.UUID]; !ok || was != p {
			changed = true
		}
	}
	d.last = prints
	return changed
}

// judge drops the values of a new collection that contradict themselves.
func (d *DCGM) judge(r *DCGMRow) {
	t := d.trust[r.GPU.UUID]
	if t == nil {
		t = &trust{}
		d.trust[r.GPU.UUID] = t
	}
	frozen := t.judge(r)
	d.count(func(s *DCGMStats) { s.Frozen += frozen })
}

func (d *DCGM) hand(r *DCGMRow, over timeline.Span, slack, every time.Duration) {
	out := DCGMReading{GPU: r.GPU, Every: every}
	out.Windows = timeline.Sample{GPU: timeline.NoGPU, Over: over, Slack: int64(slack)}
	edge := timeline.Span{Start: over.End.Add(-slack), End: over.End.Add(slack)}
	out.Gauges = timeline.Sample{GPU: timeline.NoGPU, Over: edge, Slack: int64(slack)}
	for c := range timeline.Counter(timeline.NumCounters) {
		switch v, ok := r.Get(c); {
		case !ok:
		case c.Windowed():
			out.Windows.Put(c, v)
		default:
			out.Gauges.Put(c, v)
		}
	}
	d.sink.Reading(&out)
}
