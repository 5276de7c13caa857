// Command relay measures what tpotscope's proxy adds to a token stream, beside nginx, HAProxy and Go's ReverseProxy in one
// run. It starts an engine that only sends, puts each proxy in front of it, and takes turns: in each round every proxy, and
// the direct way, carries the same streams for some seconds. It speaks of medians over rounds and of ratios, since the
// machine may have other work; it times nothing against a wall.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	// What is started here is told to end when this thread ends, so that it must not end early.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// run runs the part that the first argument names; without one, the whole measurement.
func run(ctx context.Context, args []string) error {
	part := ""
	if len(args) > 0 {
		part = args[0]
	}
	switch part {
	case "origin":
		return serveOrigin(ctx, args[1:])
	case "reverse":
		return serveReverse(ctx, args[1:])
	}
	b, err := options(args)
	if err != nil {
		return err
	}
	// The limit is far beyond what a run takes: nothing that hangs may hold the machine for ever.
	turns := time.Duration(b.rounds * (len(b.names) + 1))
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute+2*turns*(b.load.lead+b.load.window+b.load.tail), errors.New("the run took too long"))
	defer cancel()
	return b.run(ctx)
}

// options reads the measurement's flags.
func options(args []string) (*bench, error) {
	b := &bench{load: load{lead: time.Second, tail: 500 * time.Millisecond}}
	fs := flag.NewFlagSet("relay", flag.ContinueOnError)
	fs.IntVar(&b.load.streams, "streams", 128, "streams at once")
	fs.IntVar(&b.load.rate, "rate", 50, "events a second of each stream")
	fs.IntVar(&b.rounds, "rounds", 5, "rounds; each proxy has one turn in each")
	fs.DurationVar(&b.load.window, "turn", 5*time.Second, "measured time of one turn")
	fs.StringVar(&b.pattern, "pattern", patternSpread, "spread: streams are out of step; step: all send at the same instants, as a batch's step does")
	fs.StringVar(&b.bin.tpotscope, "tpotscope", "", "path of tpotscope")
	fs.StringVar(&b.bin.nginx, "nginx", "", "path of nginx")
	fs.StringVar(&b.bin.haproxy, "haproxy", "", "path of haproxy")
	fs.StringVar(&b.bin.libs, "library-path", "", "where nginx and haproxy find shared libraries beside the system's")
	var names string
	fs.StringVar(&names, "ways", strings.Join(allWays, ","), "the proxies to measure; bars need their peer")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	b.bin.self = self
	var faults []error
	for name := range strings.SplitSeq(names, ",") {
		b.names = append(b.names, strings.TrimSpace(name))
		if !slices.Contains(allWays, b.names[len(b.names)-1]) {
			faults = append(faults, fmt.Errorf("-ways: %q is none of %s", name, strings.Join(allWays, ",")))
		}
	}
	for _, p := range []struct{ flag, path string }{{"tpotscope", b.bin.tpotscope}, {"nginx", b.bin.nginx}, {"haproxy", b.bin.haproxy}} {
		if !filepath.IsAbs(p.path) {
			faults = append(faults, fmt.Errorf("-%s: want an absolute path", p.flag))
		}
	}
	if b.load.streams < 1 || b.load.rate < 1 || b.load.rate > 1000 || b.rounds < 1 || b.load.window < time.Second {
		faults = append(faults, errors.New("want at least one stream, a rate of 1 to 1000, one round and a turn of one second"))
	}
	if b.pattern != patternSpread && b.pattern != patternStep {
		faults = append(faults, fmt.Errorf("-pattern %s: want %s or %s", b.pattern, patternSpread, patternStep))
	}
	return b, errors.Join(faults...)
}
