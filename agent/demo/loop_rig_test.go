package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

const (
	restFirst = 3 * time.Second // at the least, before a scenario begins: agents come up
	restLast  = 1500 * time.Millisecond
	// proxied is the most token events a second that come through the proxy; more are reported, as by a client that stamps
	// its own tokens. A proxy of a busy test host is busy with itself.
	proxied = 300
	// mostGap is the longest that the driver's page may not be written. Its counters are refreshed each 100 ms; what comes one
	// or two refreshes late carries its own time.
	mostGap = 250 * time.Millisecond
)

// rig is one whole agent and what it measures: a scenario's GPUs, engines and clients.
type rig struct {
	*ready

	clock *hostclock.Clock
	epoch timeline.Instant
	lib   string // the simulated driver library; empty: devices in this process
	bins  string
	dir   string // of the recording
	temp  string
	log   *slog.Logger

	page *sim.Page
	gaps []timeline.Span // in which the page should have been written and was not; of write until it ends
}

// run plays the scenario into a recording.
func (r *rig) run(ctx context.Context) error {
	var listeners []net.Listener
	var urls []string
	for range r.tl.Targets() {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners, urls = append(listeners, ln), append(urls, "http://"+ln.Addr().String())
	}
	// Cells lie on whole seconds of the clock, as those of a perfect observer do on the scenario's.
	start := r.clock.Now()
	r.epoch = start.Add(restFirst + time.Second - time.Duration(start)%time.Second)
	ready := make(chan agent.Doors, 1)
	ag, cfg, err := r.agent(ctx, urls, r.epoch.Sub(start), func(d agent.Doors) { ready <- d })
	if err != nil {
		return err
	}
	ctx, end := context.WithTimeout(ctx, r.epoch.Add(r.tl.Duration()+restLast).Sub(r.clock.Now()))
	defer end()
	serve, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	g, ctx := errgroup.WithContext(ctx)
	for i, ln := range listeners {
		llm, err := llmsim.New(llmsim.Config{Model: r.tl.Targets()[i].Model, Now: r.clock.Now, Epoch: r.epoch, Plan: r.tl, Target: i, Precise: true})
		if err != nil {
			return err
		}
		g.Go(func() error { return llm.Run(serve, ln) })
	}
	if r.page != nil {
		g.Go(func() error { return r.write(serve) })
	}
	g.Go(func() error {
		defer stopServing()
		return ag.Run(ctx)
	})
	g.Go(func() error {
		select {
		case d := <-ready:
			return r.clients(ctx, &cfg, d, urls[0])
		case <-ctx.Done():
			return errors.New("the agent did not come up in time")
		}
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// agent makes the production agent of the rig.
func (r *rig) agent(ctx context.Context, urls []string, rest time.Duration, up func(agent.Doors)) (*agent.Agent, agent.Config, error) {
	cfg := agent.DefaultConfig()
	cfg.Version, cfg.StateDir, cfg.Socket, cfg.Record.Dir = "test", r.temp, filepath.Join(r.temp, "s"), r.dir
	cfg.Metrics.Listen, cfg.OTLP.Disabled = "127.0.0.1:0", true
	cfg.Targets = r.tl.Targets()
	for i := range cfg.Targets {
		cfg.Targets[i].EngineURL = urls[i]
	}
	if r.proxied() {
		cfg.Proxy.Listen, cfg.Proxy.Upstream, cfg.Proxy.Target = "127.0.0.1:0", urls[0], cfg.Targets[0].Name
	}
	world, habits := newLaterWorld(r.tl, rest, os.Getpid()), sim.Options{Jitter: 2 * time.Millisecond, Lag: 2 * time.Millisecond}
	deps := agent.Deps{HelperDir: r.bins, Simulated: true, Ready: up}
	if r.lib == "" {
		deps.Counters = agent.Lasting{Local: remote.NewLocal(sim.NewLibrary(world, habits, r.clock.Now), agent.Sampling(&cfg), r.clock.Now)}
	} else {
		path := filepath.Join(r.temp, "page")
		var err error
		if r.page, err = sim.NewPage(path, world, habits, r.clock.Now); err != nil {
			return nil, cfg, err
		}
		cfg.NVML.Library = r.lib
		deps.HelperEnv = []string{sim.EnvPage + "=" + path}
	}
	if err := cfg.Validate(); err != nil {
		return nil, cfg, err
	}
	ag, err := agent.New(ctx, cfg, deps, r.log)
	return ag, cfg, err
}

// write keeps the page up to date, and notes when it could not.
func (r *rig) write(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	last := r.clock.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := r.page.Write(); err != nil {
			return err
		}
		now := r.clock.Now()
		if now.Sub(last) > mostGap {
			r.gaps = append(r.gaps, timeline.Span{Start: last, End: now})
		}
		last = now
	}
}

// close lets go of the page.
func (r *rig) close() {
	if r.page != nil {
		_ = r.page.Close() // nothing is written to it any more
	}
}

// proxied reports whether the requests are sent through the agent's proxy.
func (r *rig) proxied() bool {
	events := 0
	for _, q := range r.tl.Requests() {
		events += len(q.Tokens)
	}
	return len(r.tl.Targets()) == 1 && r.tl.Scenario().Probe.ClockBound == 0 && float64(events) < proxied*r.tl.Duration().Seconds()
}

// clients sends the requests, or reports them.
func (r *rig) clients(ctx context.Context, cfg *agent.Config, d agent.Doors, direct string) error {
	if !r.proxied() {
		return r.report(ctx, cfg)
	}
	if _, err := llmsim.Play(ctx, llmsim.PlayerConfig{
		BaseURL: "http://" + d.Proxy, Direct: direct, Model: r.tl.Targets()[0].Model, Now: r.clock.Now, Epoch: r.epoch, Usage: true, Continuous: true,
	}, r.tl.Requests()); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// farAway carries calls to an agent that each take so long there, and so long back.
type farAway struct {
	http.RoundTripper

	leg time.Duration
}

func (f farAway) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(f.leg)
	resp, err := f.RoundTripper.RoundTrip(req)
	time.Sleep(f.leg)
	return resp, err
}

// peerOffset is how far the clock of a probe elsewhere is behind this host's.
const peerOffset = 3200 * time.Millisecond

// report tells the agent of each token when it comes, as a client does that stamps its own. A probe whose clock has a bound
// is one on another host, so far away that this is the bound.
func (r *rig) report(ctx context.Context, cfg *agent.Config) error {
	c := ingest.DefaultClientConfig()
	c.URL, c.Source, c.Process, c.BootID, c.Now = "unix:"+cfg.Socket, "loop", "1", r.clock.BootID(), r.clock.Now
	behind := time.Duration(0)
	if bound := r.tl.Scenario().Probe.ClockBound; bound > 0 {
		behind = peerOffset
		c.URL, c.BootID, c.Now = "http://agent", "elsewhere", func() timeline.Instant { return r.clock.Now().Add(-behind) }
		socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", cfg.Socket)
		}}
		defer socket.CloseIdleConnections()
		c.HTTP = &http.Client{Transport: farAway{socket, bound}}
	}
	client, err := ingest.NewClient(c)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error {
		return tell(ctx, r.clock.Now, client, r.observed, r.epoch.Add(-behind).Sub(r.observed.Origin), behind)
	})
	return g.Wait()
}

// tell hands over what the probe saw, each thing when it comes. The probe's times are those of o and shift more; its clock
// is behind the host's.
func tell(ctx context.Context, now func() timeline.Instant, to timeline.RequestSink, o *scenario.Observed, shift, behind time.Duration) error {
	requests := slices.Clone(o.Requests)
	closing := make([]int, 0, len(requests))
	for i := range requests {
		r := &requests[i]
		for _, t := range []*timeline.Instant{&r.Sent, &r.Head, &r.First, &r.Last, &r.Done} {
			if *t != 0 {
				*t = t.Add(shift)
			}
		}
		r.ClockBound = 0 // the agent has to find it
		if r.Status != timeline.StatusUnfinished {
			closing = append(closing, i)
		}
	}
	slices.SortFunc(closing, func(a, b int) int { return cmp.Compare(requests[a].Done, requests[b].Done) })
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	opened, closed, told := 0, 0, 0
	for opened < len(requests) || told < len(o.Tokens) || closed < len(closing) {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		at := now().Add(-behind)
		for ; opened < len(requests) && requests[opened].Sent <= at; opened++ {
			r := requests[opened]
			r.Head, r.First, r.Last, r.Done, r.Status, r.OutputTokens, r.Events, r.FirstTokens = 0, 0, 0, 0, 0, 0, 0, 0
			to.OpenRequest(&r)
		}
		for ; told < len(o.Tokens) && o.Tokens[told].At.Add(shift) <= at; told++ {
			e := o.Tokens[told]
			e.At, e.After = e.At.Add(shift), e.After.Add(shift)
			to.AddToken(e)
		}
		for ; closed < len(closing) && requests[closing[closed]].Done <= at; closed++ {
			to.CloseRequest(&requests[closing[closed]])
		}
	}
	<-ctx.Done()
	return nil
}

// ready is a scenario that is ready to be played: what takes the processor for long is done before anything plays.
type ready struct {
	name     string
	tl       *scenario.Timeline
	pure     *concluded
	observed *scenario.Observed // requests and tokens alone
}

func prepare(name string, s *scenario.Scenario) (*ready, error) {
	tl, err := s.Run()
	if err != nil {
		return nil, err
	}
	r := &ready{name: name, tl: tl, observed: tl.Observe(scenario.Instruments{})}
	r.pure = purely(r.observed)
	r.observed.Samples, r.observed.Engine, r.observed.Events = nil, nil, nil
	return r, nil
}

// The ways besides the pure one.
const (
	localWay = "in process"
	cWay     = "C library"
)

// heard are the rigs that played a scenario, by way.
type heard map[string]*rig

// playBoth plays a scenario on both ways at once, with recordings below dir.
func playBoth(ctx context.Context, sc *ready, dir, bins string, log *slog.Logger) (heard, error) {
	clock, err := hostclock.New()
	if err != nil {
		return nil, err
	}
	rigs := heard{localWay: {}, cWay: {lib: filepath.Join(bins, "nvmlsim", "libnvidia-ml.so.1")}}
	var g errgroup.Group
	for way, r := range rigs {
		r.ready, r.clock, r.bins, r.log = sc, clock, bins, log
		if r.temp, err = os.MkdirTemp(dir, ""); err != nil {
			return nil, errors.Join(err, g.Wait())
		}
		r.dir = filepath.Join(r.temp, "run")
		g.Go(func() error {
			defer r.close()
			if err := r.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			return nil
		})
	}
	return rigs, g.Wait()
}

// conclude replays the recordings and compares what they say.
func (h heard) conclude(ctx context.Context) ([]row, error) {
	ways := map[string]*concluded{}
	for way, r := range h {
		c, err := replayed(ctx, r.dir, r.epoch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way, err)
		}
		c.gaps = r.gaps
		ways[way] = c
		ways[pureWay] = r.pure
		if err := os.RemoveAll(r.temp); err != nil {
			return nil, err
		}
	}
	for _, r := range h {
		return rows(r.ready, ways), nil
	}
	return nil, errors.New("nothing was played")
}
