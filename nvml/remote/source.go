package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// Options say which helper is run and how.
type Options struct {
	Helper  string                 // path of the binary; empty: what Find finds
	Find    func() (string, error) // where the binary is; asked again until it is there, and at each start
	Library string                 // path of the driver's library; empty: what the loader finds
	Env     []string               // added to the helper's environment, NAME=value
	Config  nvml.Config
	Logger  *slog.Logger // takes the helper's stderr; nil discards it
	Now     func() timeline.Instant
}

const (
	// startTime is how long a helper may take to its first list of GPUs: initialising a driver without persistence mode
	// takes seconds a GPU.
	startTime = time.Minute
	// silentTime is how long a helper may say nothing after that. It beats each 500 ms unless all GPUs are stuck.
	silentTime = 5 * time.Second
	// termTime is how long a helper is given to free what it holds; it promises five seconds.
	termTime = 6 * time.Second
	// killTime is how long the kernel is given to end it after that.
	killTime = 2 * time.Second
	// exitTime is how long the end of the frames and the end of the process may be apart.
	exitTime = 100 * time.Millisecond
	// maxAbandoned is how many helpers may be stuck in the kernel before no other is started.
	maxAbandoned = 2

	minFind     = time.Second // between two looks for a helper that is not there, at first
	minBackoff  = 250 * time.Millisecond
	maxBackoff  = 30 * time.Second
	healthyTime = time.Minute // after which a loss is the first again
)

// Why a helper is given up.
var (
	errSilent = errors.New("helper says nothing")
	errSlow   = errors.New("helper does not start")
	errEnded  = errors.New("helper ended")
)

// Stats are a source's own counts since it was made.
type Stats struct {
	PID          int    // of the helper that runs; zero if none
	Starts       uint64 // helpers started
	Restarts     uint64 // of them, after a loss
	Killed       uint64 // helpers that did not end when asked to
	Abandoned    uint64 // helpers that did not die when killed
	AbandonedNow int    // of them, still there
	Stopped      bool   // too many are: no other is started until one dies
	Frames       uint64
	LastLoss     string       // why the last helper was lost
	GPUs         []nvml.Stats // of each sampler, by position, as last told
}

// Source reads GPUs through helpers: one at a time, started again when it is lost. A helper that does not even die is
// abandoned; after the second one no other is started until one of them is gone.
type Source struct {
	opts             Options
	spawn            func() (*process, error)
	looks            looks         // of the goroutine of Run
	graveyardChanged chan struct{} // capacity 1

	mu        sync.Mutex
	stats     Stats
	running   *process             // nil between two helpers
	bursting  timeline.Instant     // until when clocks are to be read at the highest rate
	inventory []timeline.Inventory // of each GPU, by position, as last told
}

var _ nvml.Source = (*Source)(nil)

// NewSource returns a source. The configuration must be valid.
func NewSource(opts Options) *Source {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{opts: opts, graveyardChanged: make(chan struct{}, 1)}
	s.spawn = func() (*process, error) {
		path, err := s.find()
		if err != nil {
			return nil, err
		}
		return spawn(path, helperArgs(opts), opts.Env)
	}
	return s
}

// helperArgs returns the flags that tell the helper its configuration.
func helperArgs(o Options) []string {
	args := []string{
		"--period", o.Config.Period.String(), "--fast-period", o.Config.FastPeriod.String(),
		"--slow-period", o.Config.SlowPeriod.String(), "--duty-budget", fmt.Sprint(o.Config.DutyBudget),
	}
	if o.Library != "" {
		args = append(args, "--library", o.Library)
	}
	return args
}

// Stats returns the source's counts so far.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.GPUs = append([]nvml.Stats(nil), s.stats.GPUs...)
	return st
}

// Inventory returns what is on and around each GPU, by position, as last told. A GPU of which nothing was told yet has
// an inventory whose At is zero.
func (s *Source) Inventory() []timeline.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]timeline.Inventory(nil), s.inventory...)
}

// ErrNoHelper says that no helper runs that could take a command.
var ErrNoHelper = errors.New("no helper runs")

// commandTime is how long a helper may take to take a command: it has a pipe's buffer for it, and a reader of its own.
const commandTime = time.Second

// Burst has the helper read clocks and the reasons that hold them at the highest rate for d from now on; zero ends a
// burst. A helper that is started later goes on with what is left of it.
func (s *Source) Burst(d time.Duration) error {
	s.mu.Lock()
	p := s.running
	s.mu.Unlock()
	if err := command(p, d); err != nil {
		return err
	}
	s.mu.Lock()
	s.bursting = s.opts.Now().Add(d)
	s.mu.Unlock()
	return nil
}

// resume has a helper that was just started go on with the burst that the one before it was at.
func (s *Source) resume(p *process) {
	s.mu.Lock()
	left := s.bursting.Sub(s.opts.Now())
	s.mu.Unlock()
	if left <= 0 {
		return
	}
	if err := command(p, left); err != nil {
		s.opts.Logger.Info("burst not resumed", slog.Any("err", err))
	}
}

// command tells a helper to begin a burst.
func command(p *process, d time.Duration) error {
	frame, err := appendJSON(nil, kindBurst, burst{For: d})
	if err != nil {
		return fmt.Errorf("command burst: %w", err)
	}
	if p == nil {
		return fmt.Errorf("command burst: %w", ErrNoHelper)
	}
	if to, ok := p.stdin.(interface{ SetWriteDeadline(t time.Time) error }); ok {
		//nolint:forbidigo // the deadline of a file is a time of day
		if err := to.SetWriteDeadline(time.Now().Add(commandTime)); err != nil {
			return fmt.Errorf("command burst: %w", err)
		}
	}
	if _, err := p.stdin.Write(frame); err != nil {
		return fmt.Errorf("command burst: %w", err)
	}
	return nil
}

// setRunning notes which helper takes commands.
func (s *Source) setRunning(p *process) {
	s.mu.Lock()
	s.running = p
	s.mu.Unlock()
}

func (s *Source) count(change func(*Stats)) {
	s.mu.Lock()
	change(&s.stats)
	s.mu.Unlock()
}

// Run keeps a helper running until ctx ends. It leaves no helper behind but those that the kernel holds.
func (s *Source) Run(ctx context.Context, sink timeline.GPUSink) error {
	if err := s.opts.Config.Validate(); err != nil {
		return fmt.Errorf("run helper: %w", err)
	}
	in := newInbox(s, sink)
	if !s.awaitHelper(ctx, in) {
		return nil
	}
	backoff, looking := minBackoff, false
	for {
		began := s.opts.Now()
		lost := s.runHelper(ctx, in)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		looked := errors.Is(lost, errLook)
		if s.opts.Now().Sub(began) > healthyTime || looked {
			backoff = minBackoff
		} else if looking {
			s.looks.seldom()
		}
		looking = looked
		if !sleep(ctx, backoff/2+rand.N(backoff)) || !s.awaitGraveyard(ctx, in) {
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
		s.count(func(st *Stats) { st.Restarts++ })
	}
}

// sleep waits for d; it reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// awaitGraveyard waits, if too many helpers were abandoned, until one of them is gone. It reports false if ctx ended.
func (s *Source) awaitGraveyard(ctx context.Context, in *inbox) bool {
	for said := false; ; said = true {
		s.mu.Lock()
		stopped := s.stats.AbandonedNow >= maxAbandoned
		s.stats.Stopped = stopped
		s.mu.Unlock()
		if !stopped {
			return true
		}
		if !said {
			why := fmt.Sprintf("%d helpers hang in the driver and do not die; no other is started until one is gone", maxAbandoned)
			s.opts.Logger.Error("no gpu helper is started", slog.String("cause", why))
			in.stopped(why)
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.graveyardChanged:
		}
	}
}

// runHelper runs one helper to its end. When it is lost, that is said before it is ended and waited for.
func (s *Source) runHelper(ctx context.Context, in *inbox) error {
	in.begin()
	p, err := s.spawn()
	if err != nil {
		s.lost(in, err)
		s.count(func(st *Stats) { st.LastLoss = err.Error() })
		return err
	}
	s.count(func(st *Stats) { st.Starts, st.PID = st.Starts+1, p.pid })
	s.setRunning(p)
	s.resume(p)
	lines := newLines(s.opts.Logger, s.opts.Now)
	failed, read, logged := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() { failed <- in.receive(p); close(read) }()
	go func() { lines.copy(p.stderr); close(logged) }()
	err = s.watch(ctx, in, failed)
	if ctx.Err() == nil {
		if errors.Is(err, errEnded) && waitEnd(p, exitTime) {
			await(logged, exitTime)
			err = reason(err, p.exit(), lines.last())
		}
		s.lost(in, err)
	}
	s.setRunning(nil)
	gone := s.end(p)
	if !gone {
		s.abandon(p)
	} else {
		await(read, exitTime) // the last frames of a helper that was asked to end
	}
	p.release()
	<-logged
	<-read
	s.count(func(st *Stats) { st.PID, st.LastLoss = 0, err.Error() })
	return err
}

// lost says that a helper is given up on: at once, however long it takes to end.
func (s *Source) lost(in *inbox, why error) {
	in.lost(why.Error())
	if errors.Is(why, errLook) {
		s.opts.Logger.Info("gpu helper starts anew", slog.Any("why", why))
		return
	}
	s.opts.Logger.Warn("gpu helper lost", slog.Any("error", why))
}

// reason says why a helper ended, in the most telling words there are.
func reason(err, exit error, lastLine string) error {
	if exit != nil {
		err = fmt.Errorf("%w: %w", err, exit)
	}
	if lastLine != "" {
		err = fmt.Errorf("%w: %s", err, lastLine)
	}
	return err
}

// watch waits until the helper is of no more use: it ended, it says nothing, or ctx ended.
func (s *Source) watch(ctx context.Context, in *inbox, failed <-chan error) error {
	ticker := time.NewTicker(silentTime / 10)
	defer ticker.Stop()
	began := s.opts.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-ticker.C:
			now := s.opts.Now()
			started, last := in.progress()
			switch {
			case !started && now.Sub(began) > startTime:
				return errSlow
			case started && now.Sub(last) > silentTime:
				return errSilent
			case started && s.looks.look(in.lostGPUs(), now):
				return errLook
			}
		}
	}
}

// end asks the helper to end, then makes it. It reports whether the helper is gone.
func (s *Source) end(p *process) bool {
	_ = p.stdin.Close()
	_ = p.signal(syscall.SIGTERM) // it may be gone already
	if waitEnd(p, termTime) {
		return true
	}
	s.count(func(st *Stats) { st.Killed++ })
	_ = p.signal(os.Kill)
	return waitEnd(p, killTime)
}

func waitEnd(p *process, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

// abandon leaves a helper that does not die to the kernel, and counts it for as long as it is there.
func (s *Source) abandon(p *process) {
	s.count(func(st *Stats) { st.Abandoned++; st.AbandonedNow++ })
	s.opts.Logger.Error("gpu helper does not die, abandoned", slog.Int("pid", p.pid))
	go func() { // ends with the helper, which the kernel decides
		<-p.ended
		s.count(func(st *Stats) { st.AbandonedNow-- })
		select {
		case s.graveyardChanged <- struct{}{}:
		default:
		}
	}()
}
