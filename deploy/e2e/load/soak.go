package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// What a soak does in minutes that a node does in days.
const (
	soakFor     = 2 * time.Minute
	soakChurn   = 12       // requests are that much shorter: ten times as many begin and end
	soakBytes   = 16 << 20 // of the recording, the least there may be: whole segments come and go
	soakSources = 8        // that report, and are replaced one by one
	soakMIG     = 1        // instances that come and go

	sourceLife   = 12 * time.Second // then another process reports in its place
	engineLife   = 3 * time.Second  // then one engine restarts
	instanceLife = 25 * time.Second // then the list of GPUs changes, for which the driver is opened again
	settling     = 10               // seconds: what a helper takes to hold all it needs
	floorOver    = 5                // seconds: resident memory goes up and down with each collection of garbage
)

// What a soak may grow by over its second half.
const mostGrowth = 1e6 // bytes of resident memory a minute, of each process

// reporters are the processes that report to the agent. Each observes a part of the requests.
type reporters struct {
	cfg ingest.ClientConfig

	mu      sync.Mutex
	all     []reporter
	made    int
	left    int // requests that nobody will ever end
	open    map[uint64]timeline.Request
	newest  uint64 // number of the newest request
	dropped uint64 // rows, by those that have ended
}

type reporter struct {
	client *ingest.Client
	from   uint64 // the first request that it knows
	end    context.CancelFunc
	ended  chan error
}

var _ timeline.RequestSink = (*reporters)(nil)

// newReporters starts n processes. The caller ends them.
func newReporters(ctx context.Context, s *site, clock *hostclock.Clock, process string, n int) (*reporters, error) {
	cfg := ingest.DefaultClientConfig()
	cfg.URL, cfg.Source, cfg.Process = "unix:"+s.socket(), "load", process
	cfg.BootID, cfg.Now = clock.BootID(), clock.Now
	r := &reporters{cfg: cfg, all: make([]reporter, n), open: map[uint64]timeline.Request{}}
	for i := range r.all {
		if err := r.start(ctx, i); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// start puts another process at a position.
func (r *reporters) start(ctx context.Context, i int) error {
	cfg := r.cfg
	r.made++
	cfg.Process += "-" + strconv.Itoa(r.made)
	client, err := ingest.NewClient(cfg)
	if err != nil {
		return fmt.Errorf("make the reporter: %w", err)
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- client.Run(running) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[i] = reporter{client: client, from: r.newest + 1, end: end, ended: ended}
	return nil
}

// stop ends a process, which sends what it has.
func (r *reporters) stop(one reporter) error {
	one.end()
	err := ignoreEnd(<-one.ended)
	tokens, requests := one.client.Dropped()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped += tokens + requests
	return err
}

// stopAll ends all processes.
func (r *reporters) stopAll() error {
	var errs []error
	for i := range r.all {
		errs = append(errs, r.stop(r.all[i]))
	}
	return errors.Join(errs...)
}

// replace replaces one process after the other until ctx ends. Every other one dies and leaves its requests open, which
// the agent has to give up on by itself; the rest close them as a process does that is asked to end.
func (r *reporters) replace(ctx context.Context) error {
	return every(ctx, sourceLife/time.Duration(len(r.all)), func(n int) error {
		i := n % len(r.all)
		r.mu.Lock()
		old := r.all[i]
		r.mu.Unlock()
		if err := r.start(context.WithoutCancel(ctx), i); err != nil {
			return err
		}
		dies := (n+n/len(r.all))%2 == 0 // each position by turns
		for _, q := range r.leave(i) {
			if dies {
				r.left++
				continue
			}
			q.Status, q.Done = timeline.StatusUnfinished, max(q.Sent, r.cfg.Now())
			old.client.CloseRequest(&q)
		}
		return r.stop(old)
	})
}

// leave returns the requests that nobody at a position observes any more.
func (r *reporters) leave(i int) []timeline.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []timeline.Request
	for ref, q := range r.open {
		if ref%uint64(len(r.all)) == uint64(i) && ref < r.all[i].from {
			left = append(left, q)
			delete(r.open, ref)
		}
	}
	return left
}

// of returns who observes a request, or nil if that process is gone.
func (r *reporters) of(ref uint64) *ingest.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.all[ref%uint64(len(r.all))]
	if ref < one.from {
		return nil
	}
	r.newest = max(r.newest, ref)
	return one.client
}

// OpenRequest hands a request to who observes it.
func (r *reporters) OpenRequest(q *timeline.Request) {
	if c := r.of(q.Ref); c != nil {
		r.mu.Lock()
		r.open[q.Ref] = *q
		r.mu.Unlock()
		c.OpenRequest(q)
	}
}

// AddToken hands a token to who observes its request.
func (r *reporters) AddToken(e timeline.TokenEvent) {
	if c := r.of(e.Ref); c != nil {
		c.AddToken(e)
	}
}

// CloseRequest hands a request to who observed it.
func (r *reporters) CloseRequest(q *timeline.Request) {
	if c := r.of(q.Ref); c != nil {
		r.mu.Lock()
		delete(r.open, q.Ref)
		r.mu.Unlock()
		c.CloseRequest(q)
	}
}

// every calls f at a period until ctx ends, with the number of the call.
func every(ctx context.Context, period time.Duration, f func(n int) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := f(n); err != nil {
			return err
		}
	}
}

// disturb does to the agent what days do to it, until ctx ends.
func disturb(ctx context.Context, o options, page *sim.Page, r *reporters, traffic *traffic) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.replace(gctx) })
	g.Go(func() error {
		return every(gctx, engineLife, func(n int) error {
			traffic.engines[n%o.gpus].restart()
			return nil
		})
	})
	g.Go(func() error {
		// Up to the last quarter, so that the helper whose growth is looked at is one.
		early, stop := context.WithTimeout(gctx, o.over*3/4)
		defer stop()
		return every(early, instanceLife, func(n int) error {
			if err := page.SetPresent(o.gpus, n%2 == 1); err != nil { // the instance is listed behind all GPUs
				return err
			}
			const cutAnew = 0x100 // nvmlEventMigConfigChange
			return page.Tell(0, cutAnew, 0)
		})
	})
	g.Go(func() error {
		for _, mode := range []sim.Fault{{GPU: 1, Call: int(nvml.CallTemperature), Mode: sim.ModeCrash}, {GPU: 1, Call: int(nvml.CallTemperature)}} {
			select {
			case <-gctx.Done():
				return nil
			case <-time.After(o.over / 20):
			}
			if err := page.SetFault(mode); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// trend is how something grew.
type trend struct {
	perMinute float64
	within    float64 // two standard errors of it
}

// trendOf fits a line. Neighbouring seconds are alike, so that they count as fewer than they are: n (1-r)/(1+r), where
// r is the correlation of a second's residual with the one before (Bayley and Hammersley, 1946).
func trendOf(at, values []float64) trend {
	if len(at) < 4 {
		return trend{within: math.Inf(1)}
	}
	x := make([]float64, len(at))
	for i := range at {
		x[i] = at[i] / 60
	}
	a, b := stat.LinearRegression(x, values, nil, false)
	residuals := make([]float64, len(x))
	var squares float64
	for i := range x {
		residuals[i] = values[i] - a - b*x[i]
		squares += residuals[i] * residuals[i]
	}
	if squares == 0 {
		return trend{b, 0}
	}
	r := min(0.95, max(0, stat.Correlation(residuals[1:], residuals[:len(residuals)-1], nil)))
	n := float64(len(x))
	spread := stat.Variance(x, nil) * (n - 1)
	return trend{b, 2 * math.Sqrt(squares/max(1, n*(1-r)/(1+r)-2)/spread)}
}

// column is something that must not grow, of one process.
type column struct {
	name  string
	value func(second) float64
	rows  func(*result) []second // that are looked at
	most  float64                // a minute
	unit  float64
}

var columns = []column{
	{"agent   MB ", func(s second) float64 { return s.rssA }, (*result).half, mostGrowth, 1e6},
	{"helper  MB ", func(s second) float64 { return s.rssH }, (*result).lastHelper, mostGrowth, 1e6},
	{"agent   fds", func(s second) float64 { return s.fdsA }, (*result).withHelper, 0, 1}, // which a helper takes some of
	{"helper  fds", func(s second) float64 { return s.fdsH }, (*result).lastHelper, 0, 1},
}

// half returns the second half of the measurement.
func (r *result) half() []second { return r.seconds[len(r.seconds)/2:] }

// withHelper returns the seconds of the second half in which there is a helper.
func (r *result) withHelper() []second {
	return slices.DeleteFunc(slices.Clone(r.half()), func(s second) bool { return s.rssH == 0 })
}

// lastHelper returns what is settled of the last helper's life.
func (r *result) lastHelper() []second {
	rows := r.half()
	last := rows[len(rows)-1].helperLife
	rows = rows[slices.IndexFunc(rows, func(s second) bool { return s.helperLife == last }):]
	return rows[min(settling, len(rows)-1):]
}

// grows reports whether a column grew by more than it may, and by more than chance.
func (r *result) grows(c column) (trend, bool) {
	var at, values []float64
	for rows := range slices.Chunk(c.rows(r), floorOver) {
		least := slices.MinFunc(rows, func(a, b second) int { return cmp.Compare(c.value(a), c.value(b)) })
		at, values = append(at, rows[0].at), append(values, c.value(least))
	}
	t := trendOf(at, values)
	return t, math.IsInf(t.within, 1) || t.perMinute > max(c.most, t.within, 1e-9)
}

// flat reports whether a soak ended as it began, and lost nothing but what has to go.
func (r *result) flat() bool {
	return !slices.ContainsFunc(columns, func(c column) bool { _, bad := r.grows(c); return bad }) &&
		r.lost() == 0 && r.held() <= soakBytes && r.segments >= 8
}

// held returns the bytes of the recording.
func (r *result) held() int64 {
	var n int64
	for _, size := range r.recorded {
		n += size
	}
	return n
}

// growth returns what grew as lines for people.
func (r *result) growth() string {
	w := &strings.Builder{}
	fmt.Fprintf(w, "  soak         %d requests, %d reporting processes that left %d requests open, %d engine restarts, %d helpers, %d segments, %.1f of %.1f MB held\n",
		r.requests, r.reporters, r.left, r.restarts, r.helpers, r.segments, float64(r.held())/1e6, float64(soakBytes)/1e6)
	for _, c := range columns {
		t, bad := r.grows(c)
		rows := c.rows(r)
		word := "flat"
		switch {
		case len(rows) == 0:
			fmt.Fprintf(w, "  %s  never there\n", c.name)
			continue
		case bad:
			word = "GROWS"
		}
		first, last := rows[0], rows[len(rows)-1]
		fmt.Fprintf(w, "  %s  %8.2f to %8.2f over %.0f s; %+.2f a minute, give or take %.2f: %s\n",
			c.name, c.value(first)/c.unit, c.value(last)/c.unit, last.at-first.at, t.perMinute/c.unit, t.within/c.unit, word)
	}
	return w.String()
}

// segmentsOf returns the number of the newest segment in a recording.
func segmentsOf(dir string) int {
	paths, _ := filepath.Glob(filepath.Join(dir, "*-[0-9]*.arrows"))
	newest := 0
	for _, path := range paths {
		_, number, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".arrows"), "-")
		if n, err := strconv.Atoi(number); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
}
