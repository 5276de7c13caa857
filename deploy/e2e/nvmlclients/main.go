// Command nvmlclients plays GPUs into the page of the simulated driver library, and tells what there is to be seen: for each
// line on standard input one line of JSON with what every GPU showed since the last line. It ends with its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nvmlclients:", err)
		os.Exit(1)
	}
}

func run() error {
	path := flag.String("page", "", "file of the page")
	name := flag.String("scenario", "", "scenario to play; empty: square waves on three GPUs, the first of them cut into two")
	version := flag.String("driver", sim.DefaultDriver, "version that the driver tells")
	flag.Parse()
	world, err := worldOf(*name)
	if err != nil {
		return err
	}
	began := time.Now()
	now := func() timeline.Instant { return timeline.Instant(time.Second + time.Since(began)) }
	page, err := sim.NewPage(*path, world, sim.Options{Driver: *version}, now)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- page.Run(ctx) }()
	err = answer(world, page)
	stop()
	return errors.Join(err, <-done, page.Close())
}

func worldOf(name string) (sim.World, error) {
	if name == "" {
		return sim.Waves{Count: 3, MIG: 2}, nil
	}
	s, err := scenario.Open(name)
	if err != nil {
		return nil, err
	}
	tl, err := s.Run()
	if err != nil {
		return nil, err
	}
	return sim.Scenario(tl, 4000), nil
}

// truth is what a GPU is, and what it showed at each moment since the last question.
type truth struct {
	timeline.GPU
	Showed []shown
}

type shown struct {
	sim.Gauges
	EnergyJ float64
}

const (
	step = 20 * time.Millisecond
	old  = 250 * time.Millisecond // the page's refreshes are up to this old
)

// answer tells the truth for each line that is asked for.
func answer(world sim.World, page *sim.Page) error {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	last := time.Duration(0)
	for in.Scan() {
		now := page.Elapsed()
		var all []truth
		for i, g := range world.GPUs() {
			t := truth{GPU: g}
			for at := max(0, last-old); at <= now; at += step {
				t.Showed = append(t.Showed, shown{world.At(i, at), world.Integral(i, timeline.Energy, at)})
			}
			all = append(all, t)
		}
		last = now
		if err := out.Encode(all); err != nil {
			return err
		}
	}
	return in.Err()
}
