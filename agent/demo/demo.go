// Package demo runs the whole path without a GPU and without a network: a scenario's GPUs behind the driver's
// interface, a scenario's server behind a real socket, real clients, and between them the production agent with its
// helper, proxy, recording and exporters. It ends with the report of what was found beside the scenario's truth, which
// the agent never sees.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/stats"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// Options say what is run and how.
type Options struct {
	Scenario  string        // name of a shipped scenario, or a file
	Dir       string        // where the recording goes; must not hold one
	HelperDir string        // where the helper is looked for before PATH
	Library   string        // the simulated driver's library; empty or missing: devices in this process
	Duration  time.Duration // zero: the scenario's own
	Version   string
	Log       *slog.Logger
	Say       func(string)                         // takes one line when something begins
	Progress  func(phase string, done, of float64) // seconds
}

// Result is what a run found, and what was so.
type Result struct {
	Simulated bool            `json:"simulated"`
	Scenario  string          `json:"scenario"`
	Path      string          `json:"counters_path"` // how counters were read
	Report    *summary.Report `json:"report"`
	Phases    []Phase         `json:"phases"`
	Requests  Requests        `json:"requests"`
	Received  Received        `json:"received"` // by the OTLP receiver
	Cost      Cost            `json:"cost"`
	Dir       string          `json:"recording"`
	Partial   bool            `json:"partial,omitempty"` // interrupted: only what ran is compared
}

// Phase compares what was found in one phase with the truth.
type Phase struct {
	Name       string              `json:"name"`
	Found      timeline.Label      `json:"found"`
	Confidence timeline.Confidence `json:"confidence"`
	Overlays   []timeline.Overlay  `json:"overlays,omitempty"`
	Shares     timeline.Shares     `json:"shares"`
	Truth      timeline.Shares     `json:"truth"`
	Dominant   string              `json:"truth_dominant"`
	Share      float64             `json:"truth_dominant_share"`
	FoundTPOT  timeline.Measure    `json:"found_tpot_mean_s"`
	TrueTPOT   timeline.Measure    `json:"truth_tpot_mean_s"`
	Throttled  timeline.Measure    `json:"found_throttled_share"`
	TrueThrot  float64             `json:"truth_throttled_share"`
	Agrees     bool                `json:"agrees"`
}

// Requests counts what clients sent and what the agent saw of it.
type Requests struct {
	Sent          int              `json:"sent"`
	Answered      int              `json:"answered"` // whole, as the clients saw it
	Seen          int              `json:"seen"`     // by the proxy
	ClientTPOT    timeline.Measure `json:"client_tpot_p50_s"`
	KernelStamped float64          `json:"kernel_stamped_share"` // of the token events
}

// Cost is what the agent took.
type Cost struct {
	AgentCores float64 `json:"agent_and_helper_cores"` // mean; in a demo the process also plays server and clients
	RSSBytes   float64 `json:"rss_bytes"`
	HelperRSS  float64 `json:"helper_rss_bytes"`
	HelperCPU  float64 `json:"helper_cores"`
}

// dominantShare is what one limiter must hold of the time for a single label to be right; below it a mixture is. Within
// shareSlack of it either is.
const (
	dominantShare = 0.6
	shareSlack    = 0.05
)

// settle is how long the demo goes on after the scenario, so that what was sent in it still comes.
const settle = 2 * time.Second

// stage is a demo that is set up.
type stage struct {
	o     Options
	clock *hostclock.Clock
	tl    *scenario.Timeline
	epoch timeline.Instant
	page  *sim.Page // nil: devices in this process
	local *sim.Library
	sink  *receiver
	llm   *llmsim.Server
	path  string
	temp  string // for the socket, whose path must be short, and the page
	ended timeline.Instant
}

// Run runs the demo until it is over or ctx ends; then it compares what there is.
func Run(ctx context.Context, o Options) (*Result, error) {
	st := &stage{o: o}
	defer st.tearDown()
	if err := st.setUp(ctx); err != nil {
		return nil, err
	}
	res := &Result{Simulated: true, Scenario: st.tl.Name(), Path: st.path, Dir: o.Dir, Phases: []Phase{}}
	res.Requests.ClientTPOT = median(nil)
	if err := st.play(ctx, res); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		res.Partial = true
	}
	return res, st.compare(context.WithoutCancel(ctx), res)
}

// setUp makes the simulated world: the timeline, the driver's page, the receiver.
func (st *stage) setUp(ctx context.Context) error {
	s, err := agent.OpenScenario(st.o.Scenario)
	if err != nil {
		return err
	}
	if st.tl, err = s.Run(); err != nil {
		return fmt.Errorf("run scenario: %w", err)
	}
	if st.clock, err = hostclock.New(); err != nil {
		return fmt.Errorf("read clocks: %w", err)
	}
	if st.temp, err = os.MkdirTemp("", "tpotscope-demo-"); err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	if st.sink, err = newReceiver(ctx); err != nil {
		return err
	}
	world, habits := sim.Scenario(st.tl, os.Getpid()), sim.Options{Jitter: 2 * time.Millisecond, Lag: 2 * time.Millisecond}
	st.epoch = st.clock.Now()
	if missing := st.missing(); missing != "" {
		st.path = "devices in this process (" + missing + ")"
		st.local = sim.NewLibrary(world, habits, st.clock.Now)
	} else {
		st.path = "helper process, go-nvml, simulated libnvidia-ml.so.1"
		if st.page, err = sim.NewPage(st.pagePath(), world, habits, st.clock.Now); err != nil {
			return fmt.Errorf("make the simulated driver's page: %w", err)
		}
	}
	st.llm, err = llmsim.New(llmsim.Config{
		Model: st.tl.Targets()[0].Model, Now: st.clock.Now, Epoch: st.epoch, Plan: until{st.tl, st.duration()}, Free: llmsim.DefaultPace(), Precise: true,
	})
	if err != nil {
		return fmt.Errorf("make the simulated server: %w", err)
	}
	return nil
}

// missing says what is not there of what the way through the helper takes; nothing if all is.
func (st *stage) missing() string {
	if st.o.Library == "" {
		return "no simulated driver library was named"
	}
	if _, err := os.Stat(st.o.Library); err != nil {
		return "there is no simulated driver library: `make nvmlsim` builds it and needs gcc"
	}
	if _, err := remote.Find(st.o.HelperDir); err != nil {
		return "there is no " + remote.HelperName + ": `make` builds it and needs gcc"
	}
	return ""
}

// tearDown lets go of what setUp made, as far as it came.
func (st *stage) tearDown() {
	if st.sink != nil {
		st.sink.close()
	}
	if st.page != nil {
		_ = st.page.Close() // it was only read
	}
	if st.temp != "" {
		_ = os.RemoveAll(st.temp) // a leftover in the temporary directory harms nobody
	}
}

// pagePath is where the simulated driver's page lies.
func (st *stage) pagePath() string { return filepath.Join(st.temp, "nvml.page") }

// until is a scenario whose server counts no further than the demo plays: requests that nobody sends are not served.
type until struct {
	*scenario.Timeline
	end time.Duration
}

// Engine returns what the server counts at t.
func (u until) Engine(target int, t time.Duration) scenario.EngineState {
	return u.Timeline.Engine(target, min(t, u.end))
}

// duration is how long the demo plays.
func (st *stage) duration() time.Duration {
	if st.o.Duration > 0 {
		return min(st.o.Duration, st.tl.Duration())
	}
	return st.tl.Duration()
}

// config is the agent's: nothing that a production agent would not have.
func (st *stage) config(engineURL string) agent.Config {
	target := st.tl.Targets()[0]
	target.EngineURL, target.GPUs = engineURL, nil
	cfg := agent.DefaultConfig()
	cfg.Version = st.o.Version
	cfg.StateDir, cfg.Socket = st.o.Dir, filepath.Join(st.temp, "agent.sock")
	cfg.Record.Dir = st.o.Dir
	cfg.NVML.Library = st.o.Library
	cfg.Targets = []timeline.Target{target}
	cfg.Metrics.Listen = "127.0.0.1:0"
	cfg.Proxy.Listen, cfg.Proxy.Upstream, cfg.Proxy.Target = "127.0.0.1:0", engineURL, target.Name
	cfg.OTLP.Endpoint.URL = st.sink.url()
	cfg.OTLP.Interval = 5 * time.Second
	return cfg
}

// play runs everything until the scenario is over.
func (st *stage) play(ctx context.Context, res *Result) error {
	ctx, end := context.WithTimeout(ctx, st.epoch.Add(st.duration()+settle).Sub(st.clock.Now()))
	defer end()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("open the simulated server: %w", err)
	}
	ready := make(chan agent.Doors, 1)
	ag, err := st.newAgent(ctx, "http://"+ln.Addr().String(), func(d agent.Doors) { ready <- d })
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	// The server and the receiver outlive the agent, which is still sending.
	serve, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return st.llm.Run(serve, ln) })
	g.Go(func() error { return st.sink.run(serve) })
	if st.page != nil {
		g.Go(func() error { return st.page.Run(serve) })
	}
	g.Go(func() error {
		defer stopServing()
		return ag.Run(ctx)
	})
	g.Go(func() error {
		select {
		case d := <-ready:
			st.o.Say(fmt.Sprintf("proxy on %s, http://%s/metrics", d.Proxy, d.Metrics))
			return st.clients(ctx, "http://"+d.Proxy, "http://"+ln.Addr().String(), res)
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return st.announce(ctx, res, ag) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	res.Received = st.sink.received()
	return nil
}

// newAgent makes a production agent: all that tells it from one is where its counters come from.
func (st *stage) newAgent(ctx context.Context, engineURL string, ready func(agent.Doors)) (*agent.Agent, error) {
	cfg := st.config(engineURL)
	deps := agent.Deps{HelperDir: st.o.HelperDir, Simulated: true, Note: "demo: scenario " + st.tl.Name(), Ready: ready}
	if st.page != nil {
		deps.HelperEnv = append(deps.HelperEnv, sim.EnvPage+"="+st.pagePath())
	} else {
		deps.Counters = agent.Lasting{Local: remote.NewLocal(st.local, agent.Sampling(&cfg), st.clock.Now)}
	}
	return agent.New(ctx, cfg, deps, st.o.Log)
}

// clients plays the clients of the scenario's first target against the proxy, and those whom its probe does not see against
// the server itself.
func (st *stage) clients(ctx context.Context, url, server string, res *Result) error {
	var requests []scenario.Request
	for _, r := range st.tl.Requests() {
		if r.Target == 0 && r.Arrival < st.duration() {
			requests = append(requests, r)
		}
	}
	played, err := llmsim.Play(ctx, llmsim.PlayerConfig{
		BaseURL: url, Direct: server, Model: st.tl.Targets()[0].Model, Now: st.clock.Now, Epoch: st.epoch, MaxInFlight: llmsim.DefaultInFlight,
		Usage: true, Continuous: true,
	}, requests)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("play the clients: %w", err)
	}
	var tpot []float64
	for i := range played {
		p := &played[i]
		res.Requests.Sent++
		if p.Err == nil && p.Terminal {
			res.Requests.Answered++
			if d := p.TPOT(1); d > 0 {
				tpot = append(tpot, d.Seconds())
			}
		}
	}
	res.Requests.ClientTPOT = median(tpot)
	return nil
}

// announce tells which phase is being played, and reads what the agent costs.
func (st *stage) announce(ctx context.Context, res *Result, ag *agent.Agent) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			st.ended = st.clock.Now()
			return nil
		case <-tick.C:
			at, name := st.clock.Now().Sub(st.epoch), "warming up"
			for _, p := range st.tl.Phases() {
				if p.Span.Contains(at) {
					name = p.Name
				}
			}
			st.o.Progress(name, min(at.Seconds(), st.duration().Seconds()), st.duration().Seconds())
			if c, ok := ag.Cost(); ok {
				res.Cost = Cost(c)
			}
		}
	}
}

func median(v []float64) timeline.Measure {
	if len(v) == 0 {
		return timeline.Absent("no request got two chunks")
	}
	slices.Sort(v)
	return timeline.Known(stats.Median(v))
}
