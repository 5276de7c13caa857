package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"
)

// What the agent and its helper may take, together.
const (
	mostCores = 0.05
	mostRSS   = 150e6
)

// second is one second of the measurement.
type second struct {
	at            float64 // s since the first
	agent, helper float64 // cores
	rssA, rssH    float64 // bytes
	fdsA, fdsH    float64 // open files and connections
	helperLife    int     // of which helper
}

// result is what was measured.
type result struct {
	o            options
	seconds      []second
	totalA       float64 // cores over the whole span, exact
	totalH       float64
	helpers      int // processes seen
	tokens       uint64
	lostByClient uint64
	received     counts
	dropSeries   []string
	log          string

	// Of a soak.
	requests                  uint64
	reporters, left, restarts int
	segments                  int

	recorded       map[string]int64 // bytes, by kind
	recordedTokens uint64
	health         struct {
		Status string
		Why    []string
		Drops  map[string]uint64
		GPUs   []struct{ State string }
		Helper struct{ Restarts uint64 }
	}
}

// watch reads what the agent and its helper take once a second, from the end of the warm-up until ctx ends.
func (r *result) watch(ctx context.Context, p *process) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(r.o.warmup):
	}
	pid := p.cmd.Process.Pid
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	began := time.Now()
	helper, first, firstH, err := r.look(pid, 0)
	if err != nil {
		return err
	}
	last, lastH, lastAt := first, firstH, began
	for {
		select {
		case <-ctx.Done():
			took := lastAt.Sub(began).Seconds()
			r.totalA, r.totalH = (last.cpu-first.cpu).Seconds()/took, (lastH.cpu-firstH.cpu).Seconds()/took
			return nil
		case <-clock.C:
		}
		now := time.Now()
		h, a, b, err := r.look(pid, helper)
		if err != nil {
			return err
		}
		if h != helper { // another helper starts at zero
			helper, lastH, firstH = h, reading{}, reading{cpu: firstH.cpu - lastH.cpu}
		}
		dt := now.Sub(lastAt).Seconds()
		r.seconds = append(r.seconds, second{
			at: now.Sub(began).Seconds(), agent: (a.cpu - last.cpu).Seconds() / dt, helper: (b.cpu - lastH.cpu).Seconds() / dt,
			rssA: a.rss, rssH: b.rss, fdsA: a.fds, fdsH: b.fds, helperLife: r.helpers,
		})
		if r.o.verbose {
			fmt.Fprintf(os.Stderr, "%4.0f s  agent %5.2f %%, %6.1f MB, %.0f files  helper %5.2f %%, %6.1f MB, %.0f files\n",
				now.Sub(began).Seconds(), 100*(a.cpu-last.cpu).Seconds()/dt, a.rss/1e6, a.fds, 100*(b.cpu-lastH.cpu).Seconds()/dt, b.rss/1e6, b.fds)
		}
		last, lastH, lastAt = a, b, now
	}
}

// look reads both processes. A helper that is gone is looked for again.
func (r *result) look(agent, helper int) (int, reading, reading, error) {
	_, a, err := readProcess(agent)
	if err != nil {
		return 0, a, reading{}, fmt.Errorf("the agent ended: %w", err)
	}
	if parent, h, err := readProcess(helper); helper != 0 && err == nil && parent == agent {
		return helper, a, h, nil
	}
	if helper = child(agent); helper == 0 {
		return 0, a, reading{}, nil
	}
	r.helpers++
	if _, h, err := readProcess(helper); err == nil {
		return helper, a, h, nil
	}
	return 0, a, reading{}, nil // it ended between two looks
}

// column returns one value of each second.
func (r *result) column(f func(second) float64) []float64 {
	out := make([]float64, len(r.seconds))
	for i, s := range r.seconds {
		out[i] = f(s)
	}
	return out
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return stat.Quantile(q, stat.Empirical, sorted, nil)
}

// slope returns how memory grew over the second half, in bytes per minute.
func (r *result) slope() float64 {
	half := r.seconds[len(r.seconds)/2:]
	x, y := make([]float64, len(half)), make([]float64, len(half))
	for i, s := range half {
		x[i], y[i] = s.at/60, s.rssA+s.rssH
	}
	_, b := stat.LinearRegression(x, y, nil, false)
	return b
}

func (r *result) cores() float64 { return r.totalA + r.totalH }

func (r *result) maxRSS() float64 {
	return slices.Max(r.column(func(s second) float64 { return s.rssA + s.rssH }))
}

// lost returns how many rows did not get through, as the reporter and the agent count them; and tokens that are not in
// the recording, whoever lost them.
func (r *result) lost() uint64 {
	n := r.lostByClient
	if !r.o.soak {
		n += r.tokens - min(r.tokens, r.recordedTokens)
	}
	for _, d := range r.health.Drops {
		n += d
	}
	return n
}

// holds reports whether the cost is within the bars, and nothing was lost; of a soak, whether nothing grew.
func (r *result) holds() bool {
	if r.o.soak {
		return r.flat()
	}
	return r.cores() <= mostCores && r.maxRSS() <= mostRSS && r.lost() == 0 && r.health.Helper.Restarts == 0 && len(r.dropSeries) == 0
}

// String returns what was measured as lines for people.
func (r *result) String() string {
	w := &strings.Builder{}
	both := func(f func(second) float64) string {
		v := r.column(f)
		return fmt.Sprintf("%6.2f %%   p95 %6.2f %%", 100*stat.Mean(v, nil), 100*quantile(v, 0.95))
	}
	verdict := func(ok bool) string {
		switch {
		case r.o.soak:
			return "not judged here"
		case ok:
			return "holds"
		}
		return "MISSED"
	}
	n := len(r.seconds)
	fmt.Fprintf(w, "%d simulated GPUs, %d streams x %g tokens/s, %d s after %v; %d processors, %s\n",
		r.o.gpus, r.o.streams, r.o.rate, n, r.o.warmup, runtime.NumCPU(), runtime.Version())
	if r.o.profile != "" {
		fmt.Fprintf(w, "the agent ran under the profiler: %s\n", r.o.profile)
	}
	fmt.Fprintf(w, "  of one core  agent   mean %s\n", both(func(s second) float64 { return s.agent }))
	fmt.Fprintf(w, "               helper  mean %s\n", both(func(s second) float64 { return s.helper }))
	fmt.Fprintf(w, "               both    mean %s   bar %.0f %%: %s\n",
		both(func(s second) float64 { return s.agent + s.helper }), 100*mostCores, verdict(r.cores() <= mostCores))
	last := r.seconds[n-1]
	fmt.Fprintf(w, "  resident     max %.1f MB   agent %.1f MB, helper %.1f MB at the end; second half %+.2f MB/min   bar %.0f MB: %s\n",
		r.maxRSS()/1e6, last.rssA/1e6, last.rssH/1e6, r.slope()/1e6, mostRSS/1e6, verdict(r.maxRSS() <= mostRSS))
	if r.o.soak {
		fmt.Fprint(w, r.growth())
	}
	fmt.Fprintf(w, "  tokens       %d sent (%.0f/s), %d recorded; %d rows dropped by the reporter\n",
		r.tokens, float64(r.tokens)/(r.o.warmup+r.o.over).Seconds(), r.recordedTokens, r.lostByClient)
	fmt.Fprintf(w, "  agent        %s %s; %d helper restarts; dropped %v %s\n", r.health.Status, strings.Join(r.health.Why, "; "),
		r.health.Helper.Restarts, r.health.Drops, strings.Join(r.dropSeries, " "))
	fmt.Fprintf(w, "  OTLP         %d requests, %d points, %d spans, %d refused\n", r.received.Requests, r.received.Points, r.received.Spans, r.received.Refused)
	hourly, total := 3600/(r.o.warmup+r.o.over).Seconds()/1e6, 0.0
	fmt.Fprint(w, "  recording    MB/h:")
	for _, kind := range slices.Sorted(maps.Keys(r.recorded)) {
		fmt.Fprintf(w, " %s %.1f,", kind, float64(r.recorded[kind])*hourly)
		total += float64(r.recorded[kind]) * hourly
	}
	fmt.Fprintf(w, " all %.0f\n", total)
	for line := range strings.Lines(r.log) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			fmt.Fprintf(w, "  log          %s", line)
		}
	}
	return w.String()
}
