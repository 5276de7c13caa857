// Package agent is the node daemon: it wires what measures (helper, probes, scrapers, host) to the store, runs the
// correlation engine over it each second, and hands what comes out to the ways out and to the recording. It is the one
// place where things are started, and it joins whatever it starts.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/agent/route"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml"
)

// shutdownGrace bounds what the ways out may take to send what they hold when the agent stops.
const shutdownGrace = 5 * time.Second

// Deps are what an agent is given from outside. The zero Deps are those of a production agent.
type Deps struct {
	Counters  nvml.Source      // instead of what the configuration names
	HelperDir string           // where the helper is looked for before PATH
	HelperEnv []string         // added to the helper's environment
	Sinks     []exporters.Sink // beside the configured ways out
	Ready     func(Doors)      // called once, when everything listens
	Simulated bool             // what is measured is a simulation, and everything says so
	Note      string           // stands in the recording
}

// Doors are the addresses on which an agent listens. A closed door is empty.
type Doors struct {
	Metrics string
	Proxy   string
	Socket  string
}

// Agent is one node's agent. Make it with New and run it once.
type Agent struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	clock *hostclock.Clock
	store *Store
	told  *gpuLog

	relay    *relay.Relay
	counters nvml.Source
	bursts   *burst.Control
	dcgm     *scrape.DCGM // nil: not read
	measured calibration.File
	eta      map[string]verdict.Eta // what the GPUs that are listed were measured to reach; written by calibration.Match alone
	router   *route.Router
	sink     timeline.GPUSink // of GPUs: the store, and what stands before it
	targets  *targets
	recorder *recorder
	ways     ways
	host     atomic.Pointer[timeline.HostSample]
	refused  ingest.Refused // of what reporters told
	suspends atomic.Uint64  // of this host
	started  timeline.Instant
}

// New returns an agent of that configuration, which must be valid.
func New(ctx context.Context, cfg Config, deps Deps, log *slog.Logger) (*Agent, error) {
	if err := cfg.CheckStateDir(); err != nil {
		return nil, err
	}
	clock, err := hostclock.New()
	if err != nil {
		return nil, fmt.Errorf("read clocks: %w", err)
	}
	engine := correlate.DefaultConfig()
	engine.Cell, engine.Lateness, engine.Warmup, engine.Targets = cfg.Engine.Cell, cfg.Engine.Lateness, cfg.Engine.Warmup, cfg.Targets
	engine.Eta, engine.AllowForeign = map[string]verdict.Eta{}, cfg.Engine.AllowForeign
	if err := engine.Validate(); err != nil {
		return nil, fmt.Errorf("correlation: %w", err)
	}
	a := &Agent{cfg: cfg, deps: deps, log: log, clock: clock, started: clock.Now(), eta: engine.Eta}
	if a.measured, err = calibration.Load(cfg.StateDir); err != nil {
		log.Warn("calibration not used", slog.Any("err", err))
	}
	a.store = NewStore(correlate.New(engine), cfg.Record.Enabled)
	a.store.now = clock.Now
	a.told = newGPULog(a.store, log, clock.Now)
	a.sink = watchLinks(calibration.Match(a.measured, a.eta, a.told, log), log)
	a.targets = newTargets(cfg.Targets, a.store)
	if anchor, err := clock.Anchor(); err == nil {
		a.store.AddAnchor(anchor)
	}
	if a.counters, err = a.source(); err != nil {
		return nil, err
	}
	a.bursts = a.newBursts()
	if err := a.openDCGM(); err != nil {
		return nil, err
	}
	if a.ways, err = a.openWays(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// openRecording begins a segment in the agent's recording.
func (a *Agent) openRecording() (*recorder, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	config, err := json.Marshal(calibration.Recorded{Calibration: a.measured, AllowForeign: a.cfg.Engine.AllowForeign})
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	return newRecorder(a.cfg.RecordDir(), record.Meta{
		Config:  config,
		Created: time.Now().UTC(), Host: host, BootID: a.clock.BootID(), Targets: a.cfg.Targets,
		Versions: map[string]string{"tpotscope": a.cfg.Version}, Simulated: a.deps.Simulated, Note: a.deps.Note,
	}, record.Options{MaxBytes: a.cfg.Record.MaxBytes}, a.store, a.log)
}

// Run runs the agent until ctx ends. The contexts of what measures end with ctx; the later stages end when nothing
// comes any more, so that what is in flight is still told and recorded.
func (a *Agent) Run(ctx context.Context) error {
	doors, err := a.listen(ctx)
	if err == nil && a.cfg.Record.Enabled {
		// Not before the doors are open: an agent that cannot start leaves no empty recording.
		if a.recorder, err = a.openRecording(); err != nil {
			doors.close()
		}
	}
	if err != nil {
		return errors.Join(err, a.abandon(ctx))
	}
	late, stopLate := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLate()
	outlets, lateCtx := errgroup.WithContext(late)
	a.ways.start(lateCtx, outlets)
	outlets.Go(func() error { return a.serveMetrics(lateCtx, doors.metrics) })

	measured, concluded := make(chan struct{}), make(chan struct{})
	var stages errgroup.Group
	stages.Go(func() error { defer close(concluded); return a.conclude(late, measured) })
	if a.recorder != nil {
		stages.Go(func() error { return a.recorder.run(concluded) })
	}

	measuring, stopMeasuring := context.WithCancel(ctx)
	defer stopMeasuring()
	defer context.AfterFunc(lateCtx, stopMeasuring)() // a way out that failed for good ends the agent
	springs, springCtx := errgroup.WithContext(measuring)
	a.startSprings(springCtx, springs, doors)
	if a.deps.Ready != nil {
		a.deps.Ready(doors.addresses(a.cfg.Socket))
	}
	errSprings := ended(springs.Wait())
	a.log.Info("agent stops: what is in flight is still told and recorded")
	close(measured)
	errStages := stages.Wait()
	grace, cancel := context.WithTimeout(late, shutdownGrace)
	defer cancel()
	errWays := a.ways.shutdown(grace)
	stopLate()
	err = errors.Join(errSprings, errStages, errWays, ended(outlets.Wait()))
	a.sayStopped()
	return err
}

// sayStopped says what the agent leaves behind.
func (a *Agent) sayStopped() {
	attrs := []any{slog.Duration("ran", a.clock.Now().Sub(a.started).Round(time.Second))}
	if a.recorder != nil {
		attrs = append(attrs, slog.String("recording", a.cfg.RecordDir()), slog.Int64("rows", a.recorder.rows()), slog.Uint64("rows_lost", a.recorder.lost.Load()))
	}
	if a.ways.otlp != nil {
		attrs = append(attrs, slog.Uint64("exports_lost", a.ways.lost()))
	}
	a.log.Info("agent stopped", attrs...)
}

// abandon lets go of what New opened.
func (a *Agent) abandon(ctx context.Context) error {
	if a.relay != nil {
		a.relay.Close()
	}
	return a.ways.shutdown(ctx)
}

// ended returns err unless it only says that the end was asked for.
func ended(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// startSprings starts everything that measures.
func (a *Agent) startSprings(ctx context.Context, g *errgroup.Group, d doors) {
	g.Go(func() error { return a.clock.Run(ctx, time.Second, a.store.AddAnchor, a.addClockEvent) })
	sink := a.sink
	if a.dcgm != nil {
		sink = a.router.Driver()
		g.Go(func() error { return a.dcgm.Run(ctx) })
	}
	if a.counters != nil {
		g.Go(func() error { return a.counters.Run(ctx, sink) })
	}
	for _, t := range a.cfg.Targets {
		g.Go(func() error { return a.scrape(ctx, t) })
	}
	g.Go(func() error { return a.watchHost(ctx) })
	g.Go(func() error { return a.watchStrangers(ctx) })
	g.Go(func() error { return a.watchMapping(ctx) })
	if d.proxy != nil {
		g.Go(func() error { return a.relay.Serve(ctx, d.proxy) })
	}
	if d.socket != nil {
		g.Go(func() error { return a.serveSocket(ctx, d.socket) })
	}
}

// addClockEvent takes what happened to the host's clocks.
func (a *Agent) addClockEvent(e timeline.Event) {
	if e.Kind == timeline.EventSuspend {
		a.suspends.Add(1)
	}
	a.store.AddEvent(e)
}

// conclude closes a cell each time one is due and hands out what came of it, until measured is closed and the rest is
// told.
func (a *Agent) conclude(ctx context.Context, measured <-chan struct{}) error {
	tick := time.NewTicker(a.cfg.Engine.Cell)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			var out correlate.Output
			events := a.store.Advance(&out, a.clock.Now().Add(-a.cfg.Engine.Lateness))
			a.bursts.Look(out.Cells, events)
			a.tell(ctx, &out, events)
		case <-measured:
			var out correlate.Output
			events := a.store.Flush(&out)
			a.tell(ctx, &out, events)
			return nil
		}
	}
}

// tell hands a batch to every way out and to the recording.
func (a *Agent) tell(ctx context.Context, out *correlate.Output, events []timeline.Event) {
	a.told.look(a.store.newest())
	b := &exporters.Batch{
		Anchor: a.store.Anchor(), GPUs: a.store.GPUs(), Cells: out.Cells, Phases: out.Phases, Events: events,
		Self: append(a.self(), a.cost()...), Unread: a.unread(), Capabilities: a.capabilities(),
	}
	if a.recorder != nil {
		a.recorder.addCells(out.Cells)
	}
	a.ways.consume(ctx, b)
}

// doors are the agent's listeners.
type doors struct {
	metrics, proxy, socket net.Listener
}

func (d doors) addresses(socket string) Doors {
	var out Doors
	if d.metrics != nil {
		out.Metrics = d.metrics.Addr().String()
	}
	if d.proxy != nil {
		out.Proxy = d.proxy.Addr().String()
	}
	if d.socket != nil {
		out.Socket = socket
	}
	return out
}

func (d doors) close() {
	for _, l := range []net.Listener{d.metrics, d.proxy, d.socket} {
		if l != nil {
			_ = l.Close() // nothing was accepted yet
		}
	}
}
