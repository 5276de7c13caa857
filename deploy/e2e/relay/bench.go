package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
)

// bench is one whole measurement.
type bench struct {
	bin     programs
	load    load
	rounds  int
	pattern string
	names   []string // of the proxies

	clock   *hostclock.Clock
	origin  string // its address
	agent   *process
	socket  string // of the agent
	metrics string // address of the agent's
	started []*process
	broken  []breach
}

// breach is a turn in which streams broke off.
type breach struct {
	way   *way
	round int
	err   error
}

// result is what one turn of one way gave.
type result struct {
	p50, p99 time.Duration // from sending to receipt
	cpu      time.Duration // of the proxy, for one event
	rss      int64
	events   int
	lost     int // that did not come, came twice or out of order
	busy     float64
	broken   error // why the first stream that broke off did
}

// run measures, prints, and stops whatever it started. Events that tpotscope lost are an error; slowness is not.
func (b *bench) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "tpotscope-relay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.clock, err = hostclock.New(); err != nil {
		return fmt.Errorf("read clocks: %w", err)
	}
	defer func() {
		for _, p := range slices.Backward(b.started) {
			p.stop()
		}
	}()
	ways, err := b.openAll(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Printf("%d streams x %d events/s (%s), %d rounds of %v a way, on 127.0.0.1\n\n", b.load.streams, b.load.rate, b.pattern, b.rounds, b.load.window)
	results := map[string][]result{}
	for round := range b.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d:", round+1, b.rounds)
		for i := range ways {
			w := ways[(i+round)%len(ways)] // so that each way comes after each other one
			r, err := b.turn(ctx, w)
			if err != nil {
				return fmt.Errorf("measure %s: %w", w.name, err)
			}
			fmt.Fprintf(os.Stderr, "  %s %v", w.name, r.p50.Round(time.Microsecond))
			results[w.name] = append(results[w.name], r)
			if r.broken != nil {
				b.broken = append(b.broken, breach{w, round, r.broken})
			}
		}
		fmt.Fprintln(os.Stderr)
	}
	lost := b.report(os.Stdout, results)
	b.say(ctx, os.Stdout, ways)
	b.explain(os.Stdout)
	if lost > 0 {
		return fmt.Errorf("tpotscope lost %d events, or put them out of order", lost)
	}
	return nil
}

// openAll starts the origin, the agent and the proxies.
func (b *bench) openAll(ctx context.Context, dir string) ([]*way, error) {
	var err error
	if b.origin, err = freePort(); err != nil {
		return nil, err
	}
	p, err := start("origin", dir, nil, b.bin.self, "origin", "-listen", b.origin, "-streams", strconv.Itoa(b.load.streams), "-rate", strconv.Itoa(b.load.rate), "-pattern", b.pattern)
	if err != nil {
		return nil, err
	}
	b.started = append(b.started, p)
	if err := p.answering(ctx, "tcp", b.origin); err != nil {
		return nil, err
	}
	if err := b.openAgent(ctx, dir); err != nil {
		return nil, err
	}
	ways := []*way{{name: wayDirect, addr: b.origin}}
	for _, name := range b.names {
		w, err := b.open(ctx, name, dir)
		if err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// turn gives w its turn.
func (b *bench) turn(ctx context.Context, w *way) (result, error) {
	type edge struct {
		received int
		used     usage
		machine  machine
	}
	var edges []edge
	var faults []error
	t := b.load.drive(ctx, b.clock, w.addr, func(received int) {
		u, err1 := used(w.pids)
		m, err2 := whole()
		edges = append(edges, edge{received, u, m})
		faults = append(faults, err1, err2)
	})
	if err := errors.Join(faults...); err != nil {
		return result{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return result{}, err
	}
	from, to := edges[0], edges[1]
	r := result{
		p50: quantile(t.lags, .5), p99: quantile(t.lags, .99),
		rss: to.used.rss, events: to.received - from.received, lost: t.lost + t.disorder,
		broken: t.err,
		busy:   float64(to.machine.busy-from.machine.busy) / float64(max(to.machine.all-from.machine.all, 1)),
	}
	if r.events == 0 {
		return result{}, errors.New("no event came in the window")
	}
	r.cpu = (to.used.cpu - from.used.cpu) / time.Duration(r.events)
	return r, nil
}

// say stops tpotscope's proxies and prints the last lines of each, and what the agent took of them.
func (b *bench) say(ctx context.Context, out io.Writer, ways []*way) {
	fmt.Fprintln(out)
	for _, w := range ways {
		if w.name != wayAlone && w.name != wayAgent {
			continue
		}
		for line := range strings.Lines(w.proc.stop()) {
			if strings.Contains(line, "token events") {
				fmt.Fprintf(out, "%s: %s", w.name, line)
			}
		}
	}
	tokens, requests, err := b.taken(ctx)
	if err != nil {
		fmt.Fprintf(out, "agent: what it took is not known: %v\n", err)
		return
	}
	fmt.Fprintf(out, "agent: correlated %.0f token events of %.0f complete requests", tokens, requests)
	if u, err := used([]int{b.agent.cmd.Process.Pid}); err == nil {
		fmt.Fprintf(out, "; it used %v of processor time and holds %d MB", u.cpu, u.rss>>20)
	}
	fmt.Fprintln(out)
}

// explain says why streams broke off, and what the process at fault, if it is one, wrote.
func (b *bench) explain(out io.Writer) {
	for _, x := range b.broken {
		fmt.Fprintf(out, "%s, round %d: a stream broke off: %v\n", x.way.name, x.round+1, x.err)
		if x.way.proc != nil {
			fmt.Fprint(out, x.way.proc.stop())
		}
	}
}

// taken reads from the agent's metrics what it made of the reports. The agent waits for late samples, so that the last
// requests show some seconds after they were reported.
func (b *bench) taken(ctx context.Context) (tokens, requests float64, err error) {
	want := float64(b.rounds * b.load.streams)
	for range 20 {
		page, err := fetch(ctx, "http://"+b.metrics+"/metrics")
		if err != nil {
			return 0, 0, err
		}
		tokens, requests = sum(page, `tpotscope_tokens_total{kind="observed"`), sum(page, `tpotscope_requests_total{status="ok"`)
		if requests >= want {
			break
		}
		pause(ctx, 500*time.Millisecond)
	}
	return tokens, requests, nil
}

func fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return string(page), err
}

// sum adds up the series of a metrics page that begin so.
func sum(page, begin string) float64 {
	total := 0.0
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, begin) {
			continue
		}
		_, value, _ := strings.Cut(line, "} ")
		if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			total += v
		}
	}
	return total
}
