// Command load measures what the agent and its helper cost on a busy node: eight simulated GPUs behind the real
// binding at the default rates, 256 streams of 50 tokens a second reported over the agent's socket, eight engines
// scraped, recording on, metrics and spans sent over OTLP. Everything is on loopback and ends with the program.
//
// With -soak it does in minutes what a node does in days, and looks for what grows: requests are a twelfth as long,
// reporting processes go and leave their requests open, engines restart, the helper crashes, GPUs are cut into other
// instances, and the recording is so small that its segments are deleted all the time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// options are what the command line says.
type options struct {
	bin     string
	gpus    int
	streams int
	rate    float64 // tokens per second of a stream
	length  int     // tokens of a request
	warmup  time.Duration
	over    time.Duration
	profile string
	set     multi
	verbose bool
	soak    bool
}

// multi is a flag that may be given several times.
type multi []string

func (m *multi) String() string     { return fmt.Sprint(*m) }
func (m *multi) Set(s string) error { *m = append(*m, s); return nil }

const longest = 10 * time.Minute

func parse() (options, error) {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder of tpotscope, tpotscope-nvml and nvmlsim/libnvidia-ml.so.1")
	flag.IntVar(&o.gpus, "gpus", 8, "simulated GPUs, one engine each")
	flag.IntVar(&o.streams, "streams", 256, "concurrent requests")
	flag.Float64Var(&o.rate, "rate", 50, "tokens per second of each stream")
	flag.IntVar(&o.length, "tokens", 250, "tokens of a request")
	flag.DurationVar(&o.warmup, "warmup", 5*time.Second, "before the first sample is taken")
	flag.DurationVar(&o.over, "for", time.Minute, "how long is measured, at most 10m; of a soak 2m")
	flag.BoolVar(&o.soak, "soak", false, "shorten requests, replace reporters, restart engines, change the list of GPUs and turn the recording over, and fail if anything grows")
	flag.StringVar(&o.profile, "profile", "", "run the agent in a process of this program instead, and write its CPU profile to this file (heap: .heap)")
	flag.Var(&o.set, "set", "configuration value for the agent, as in record.enabled=false; may be repeated")
	flag.BoolVar(&o.verbose, "v", false, "show the agent's log and each second")
	flag.Parse()
	if o.soak {
		o.length = max(2, o.length/soakChurn)
		if !given("for") {
			o.over = soakFor
		}
	}
	var errs []error
	if o.over < 10*time.Second || o.over > longest {
		errs = append(errs, fmt.Errorf("-for %v: want 10s to %v", o.over, longest))
	}
	if o.gpus < 1 || o.gpus+soakMIG > sim.MaxGPUs {
		errs = append(errs, fmt.Errorf("-gpus %d: want 1 to %d", o.gpus, sim.MaxGPUs-soakMIG))
	}
	if o.streams < 0 || o.rate <= 0 || o.rate > 1000 || o.length < 2 {
		errs = append(errs, errors.New("-streams, -rate or -tokens: out of range"))
	}
	if o.profile != "" && len(o.set) > 0 {
		errs = append(errs, errors.New("-set: not with -profile"))
	}
	var err error
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

// given reports whether a flag is on the command line.
func given(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

func main() {
	if config := os.Getenv(envAgent); config != "" {
		exit(runAgent(config, os.Getenv(envProfile)))
	}
	res, err := run()
	if err != nil {
		exit(err)
	}
	fmt.Print(res)
	if !res.holds() {
		os.Exit(1)
	}
}

func run() (*result, error) {
	o, err := parse()
	if err != nil {
		return nil, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return measure(ctx, o)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	os.Exit(0)
}

// measure sets the world up, plays it and takes it down.
func measure(ctx context.Context, o options) (*result, error) {
	dir, err := os.MkdirTemp("", "tpotscope-load-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	clock, err := hostclock.New()
	if err != nil {
		return nil, fmt.Errorf("read clocks: %w", err)
	}
	world := sim.Waves{Count: o.gpus, For: time.Hour}
	if o.soak {
		world.MIG = soakMIG
	}
	page, err := sim.NewPage(filepath.Join(dir, "nvml.page"), world, sim.Options{Jitter: 2 * time.Millisecond, Lag: 2 * time.Millisecond}, clock.Now)
	if err != nil {
		return nil, fmt.Errorf("make the simulated driver's page: %w", err)
	}
	defer func() { _ = page.Close() }()

	ctx, end := context.WithCancel(ctx)
	defer end()
	g, gctx := errgroup.WithContext(ctx)
	traffic := newTraffic(o, clock)
	outer, err := newServer(gctx, traffic)
	if err != nil {
		return nil, err
	}
	g.Go(func() error { return page.Run(gctx) })
	g.Go(func() error { return outer.run(gctx) })

	site := &site{dir: dir, world: world, page: page, url: outer.url(), o: o}
	res, err := site.run(gctx, clock, traffic)
	if err == nil {
		res.received = outer.received()
	}
	end()
	return res, errors.Join(err, ignoreEnd(g.Wait()))
}

func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
