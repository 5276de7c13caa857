package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/agent/route"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// source returns where counters come from: what was handed in, the helper, a simulation, or nothing.
func (a *Agent) source() (nvml.Source, error) {
	n := &a.cfg.NVML
	switch {
	case a.deps.Counters != nil:
		return a.deps.Counters, nil
	case n.Source == sourceOff:
		return nil, nil // no source is what the configuration asks for
	case strings.HasPrefix(n.Source, simPrefix):
		return a.simulation(strings.TrimPrefix(n.Source, simPrefix))
	}
	return remote.NewSource(remote.Options{
		Helper: n.Helper, Find: func() (string, error) { return remote.Find(a.deps.HelperDir) }, Library: n.Library, Env: a.deps.HelperEnv,
		Config: n.sampling(), Logger: newHelperLog(a.log, a.clock.Now), Now: a.clock.Now,
	}), nil
}

// openDCGM makes the reader of dcgm-exporter, where one is configured, and the router that keeps its windows and the
// driver's apart.
func (a *Agent) openDCGM() error {
	if !a.cfg.DCGM.Enabled() {
		return nil
	}
	a.router = route.New(route.Config{
		Cell: a.cfg.Engine.Cell, Lateness: a.cfg.Engine.Lateness, Driver: a.counters != nil, Logger: a.log,
	}, a.sink)
	var err error
	if a.dcgm, err = scrape.NewDCGM(a.cfg.DCGM, a.clock.Now, scrape.DCGMSink{
		Reading: a.router.Exporter,
		Event: func(e timeline.Event) {
			a.log.Info("dcgm-exporter", slog.String("detail", e.Detail))
			a.store.AddEvent(e)
		},
	}); err != nil {
		return fmt.Errorf("open dcgm: %w", err)
	}
	return nil
}

// simulation plays a scenario on devices in this process. The name is that of a shipped scenario or of a file.
func (a *Agent) simulation(name string) (nvml.Source, error) {
	s, err := OpenScenario(name)
	if err != nil {
		return nil, err
	}
	tl, err := s.Run()
	if err != nil {
		return nil, fmt.Errorf("run scenario %s: %w", name, err)
	}
	a.log.Warn("counters are SIMULATED", slog.String("scenario", tl.Name()))
	a.deps.Simulated = true
	lib := sim.NewLibrary(sim.Scenario(tl), sim.Options{Loop: true}, a.clock.Now)
	return Lasting{remote.NewLocal(lib, a.cfg.NVML.sampling(), a.clock.Now)}, nil
}

// OpenScenario opens a scenario by the name of a file, else by that of a shipped one.
func OpenScenario(name string) (*scenario.Scenario, error) {
	f, err := os.Open(name)
	switch {
	case err == nil:
		defer func() { _ = f.Close() }() // it was only read
		return scenario.Parse(filepath.Base(name), f)
	case os.IsNotExist(err) && !strings.ContainsRune(name, filepath.Separator):
		s, err := scenario.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open scenario: there is no file %q, and of the shipped ones only %s", name,
				strings.Join(scenario.Library(), ", "))
		}
		return s, nil
	}
	return nil, fmt.Errorf("open scenario: %w", pathCause(err))
}

// pathCause names the file of a failed open without the call.
func pathCause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Path, p.Err)
	}
	return err
}

// scrape reads one target's engine until ctx ends.
func (a *Agent) scrape(ctx context.Context, t timeline.Target) error {
	cfg := scrape.DefaultConfig()
	cfg.Target, cfg.URL = t.Name, t.EngineURL
	cfg.Interval, cfg.Timeout = a.cfg.Scrape.Interval, a.cfg.Scrape.Timeout
	s, err := scrape.New(cfg, a.clock.Now, scrape.Sink{
		Sample: a.store.AddEngine,
		Event: func(e timeline.Event) {
			a.log.Info("engine", slog.String("target", t.Name), slog.String("event", string(e.Kind)), slog.String("detail", e.Detail))
			a.store.AddEvent(e)
		},
		Identity: func(id scrape.Identity) {
			a.log.Info("engine identified", slog.String("target", t.Name), slog.String("engine", id.Engine), slog.String("model", id.Model))
			a.targets.identify(t.Name, id, a.ways.setTargets)
		},
	})
	if err != nil {
		return fmt.Errorf("target %s: %w", t.Name, err)
	}
	return s.Run(ctx)
}

// openRelay returns the proxy inside the agent, or nil if it is off.
func (a *Agent) openRelay() (*relay.Relay, error) {
	cfg := a.cfg.Proxy
	if cfg.Upstream == "" {
		return nil, nil // the proxy is off
	}
	if cfg.Target == "" {
		cfg.Target = a.targets.ofUpstream(cfg.Upstream)
	}
	r, err := relay.New(cfg, a.clock, a.store.Source(cfg.Target), nil, a.log)
	if err != nil {
		return nil, fmt.Errorf("open proxy: %w", err)
	}
	return r, nil
}

// Sampling returns the rates at which cfg has GPUs read.
func Sampling(cfg *Config) nvml.Config { return cfg.NVML.sampling() }

// targets keeps what is known of each target: what the configuration says, and for what it leaves open, what the
// engine tells and its processes show.
type targets struct {
	store      *Store
	configured []timeline.Target

	mu    sync.Mutex
	list  []timeline.Target
	told  map[string]scrape.Identity // by its engine, by name
	found map[string]found           // of those that name no GPUs, by name
}

func newTargets(list []timeline.Target, store *Store) *targets {
	return &targets{
		store: store, configured: list, list: slices.Clone(list), told: map[string]scrape.Identity{}, found: map[string]found{},
	}
}

// identify fills what the configuration leaves open of a target with what its engine told, in place of what an engine
// before it told. It hands the targets to tell in the order in which they came to be known.
func (t *targets) identify(name string, id scrape.Identity, tell func([]timeline.Target)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told[name] = id
	t.spread(tell)
}

// spread puts together what is known of each target and hands it on. The lock is held.
func (t *targets) spread(tell func([]timeline.Target)) {
	for i := range t.configured {
		one := t.configured[i]
		if len(one.GPUs) == 0 {
			one.GPUs = t.found[one.Name].uuids
		}
		if id, ok := t.told[one.Name]; ok {
			fill(&one, id)
		}
		t.list[i] = one
	}
	told := slices.Clone(t.list)
	t.store.SetTargets(told)
	tell(told)
}

func fill(t *timeline.Target, id scrape.Identity) {
	if t.Model == "" {
		if t.Model = id.Root; t.Model == "" {
			t.Model = id.Model
		}
	}
	if t.DType == "" {
		if t.DType = id.Quant; t.DType == "" {
			t.DType = id.DType
		}
	}
	if t.KVDType == "" {
		t.KVDType = id.KVDType
	}
	if t.TP == 0 {
		t.TP = id.TP
	}
}

// ofUpstream returns the name of the target that an upstream's requests belong to: the one whose engine it is, else
// the only one, else none.
func (t *targets) ofUpstream(upstream string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		if strings.TrimRight(t.list[i].EngineURL, "/") == strings.TrimRight(upstream, "/") {
			return t.list[i].Name
		}
	}
	if len(t.list) == 1 {
		return t.list[0].Name
	}
	return ""
}

// only returns the name of the target if there is but one, for observers that do not say which.
func (t *targets) only() string { return t.ofUpstream("") }

// lookAround is how often it is asked whose processes compute on the GPUs.
const lookAround = 10 * time.Second

// watchStrangers says of each GPU whether a process that is not an engine's computes on it, until ctx ends.
func (a *Agent) watchStrangers(ctx context.Context) error {
	urls := make([]string, len(a.cfg.Targets))
	for i := range a.cfg.Targets {
		urls[i] = a.cfg.Targets[i].EngineURL
	}
	strangers, ok := host.NewStrangers(urls)
	if !ok {
		return nil
	}
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for _, c := range strangers.Look(ctx, a.clock.Now(), a.store.inventories()) {
				a.store.AddCapability(c)
			}
		}
	}
}
