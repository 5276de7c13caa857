// Command tpotscope-nvml reads the GPUs of this host through the driver's library and writes what it reads to
// descriptor 3, for the agent that started it. It is a process of its own because the library can end, hang or hold the
// process it is loaded into. For people there is --probe.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/libnvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// version is set by the linker.
var version = "dev"

// framesFD is the descriptor that frames are written to.
const framesFD = 3

// flags are the command's flags.
type flags struct {
	driver  string
	cfg     nvml.Config
	probe   bool
	version bool
}

func main() {
	// The loops sleep most of the time, each on its own. With more processors every tick wakes a second thread that looks
	// for work and finds none, a fifth of what the helper takes. A call that does not come back does not hold the
	// processor: the runtime takes it from a thread that is in C.
	runtime.GOMAXPROCS(1)
	if err := run(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "tpotscope-nvml:", err)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	f, err := parse(args)
	if err != nil {
		return err
	}
	if f.version {
		_, err := fmt.Fprintln(os.Stdout, version)
		return err
	}
	if err := f.cfg.Validate(); err != nil {
		return err
	}
	clock, err := hostclock.New()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if f.probe {
		return probe(ctx, os.Stdout, f, clock)
	}
	frames := os.NewFile(framesFD, "frames")
	if st, err := frames.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return errors.New("write frames: descriptor 3 is no pipe; the agent starts this command, people want --probe")
	}
	open := func() (nvml.Library, error) {
		lib, err := libnvml.Open(f.driver)
		if err == nil && lib.Note() != "" {
			fmt.Fprintln(os.Stderr, remote.NotePrefix+lib.Note()) // the agent logs it
		}
		return lib, err
	}
	return remote.Serve(ctx, open, f.cfg, frames, os.Stdin, clock.Now)
}

func parse(args []string) (flags, error) {
	f := flags{cfg: nvml.DefaultConfig()}
	fs := flag.NewFlagSet("tpotscope-nvml", flag.ContinueOnError)
	fs.StringVar(&f.driver, "library", "", "path of the driver's library; empty: what the loader finds")
	fs.DurationVar(&f.cfg.Period, "period", f.cfg.Period, "length of a window of activity")
	fs.DurationVar(&f.cfg.FastPeriod, "fast-period", f.cfg.FastPeriod, "between readings of clocks and their reasons")
	fs.DurationVar(&f.cfg.SlowPeriod, "slow-period", f.cfg.SlowPeriod, "between readings of all else")
	fs.Float64Var(&f.cfg.DutyBudget, "duty-budget", f.cfg.DutyBudget, "share of a thread that calls of one GPU may take")
	fs.BoolVar(&f.probe, "probe", false, "print the GPUs and what can be read of them as JSON, and exit")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("parse arguments: %q is no flag", fs.Arg(0))
	}
	return f, nil
}

// probe reads all GPUs for a few windows and prints what came of it.
func probe(ctx context.Context, w io.Writer, f flags, clock *hostclock.Clock) error {
	lib, err := libnvml.Open(f.driver)
	if err != nil {
		return err
	}
	p, err := remote.Probe(ctx, lib, f.cfg, clock.Now)
	if !errors.Is(err, remote.ErrStuck) { // closing would hang too
		err = errors.Join(err, lib.Close())
	}
	if err != nil && len(p.GPUs) == 0 {
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Driver           string   `json:"driver"`
		DriverNote       string   `json:"driver_note,omitempty"`
		MissingFunctions []string `json:"missing_functions"`
		remote.Findings
	}{lib.Driver(), lib.Note(), lib.Missing(), p})
}
