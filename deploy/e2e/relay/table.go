package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// summary is a way's medians over the rounds. Latencies are what the way adds to the direct one of the same round.
type summary struct {
	name               string
	p50, p99, cpu      []time.Duration // by round
	rss                int64
	busy               float64
	lost               int
	medP50, medP99, us time.Duration
}

func summarise(name string, results, direct []result) summary {
	s := summary{name: name}
	var rss []int64
	var busy []float64
	for i, r := range results {
		s.p50 = append(s.p50, r.p50-direct[i].p50)
		s.p99 = append(s.p99, r.p99-direct[i].p99)
		s.cpu = append(s.cpu, r.cpu)
		s.lost += r.lost
		rss = append(rss, r.rss)
		busy = append(busy, r.busy)
	}
	s.medP50, s.medP99, s.us, s.rss, s.busy = median(s.p50), median(s.p99), median(s.cpu), median(rss), median(busy)
	return s
}

// median returns the middle value; of two the lower one.
func median[T cmp.Ordered](values []T) T {
	s := slices.Sorted(slices.Values(values))
	return s[(len(s)-1)/2]
}

// report prints the table and the bars, and returns how many events tpotscope lost.
func (b *bench) report(out io.Writer, results map[string][]result) int {
	direct := results[wayDirect]
	base := summarise(wayDirect, direct, direct)
	var p50, p99 []time.Duration
	for _, r := range direct {
		p50, p99 = append(p50, r.p50), append(p99, r.p99)
	}
	fmt.Fprintf(out, "%-20s %14s %14s %13s %8s %6s %6s\n", "medians of rounds", "added p50", "added p99", "CPU/event", "RSS", "lost", "busy")
	fmt.Fprintf(out, "%-20s %14s %14s %13s %8s %6d %5.0f%%\n", "(direct, its own)", micros(median(p50)), micros(median(p99)), "", "", base.lost, 100*base.busy)
	ways := map[string]summary{}
	lost := 0
	for _, name := range b.names {
		s := summarise(name, results[name], direct)
		ways[name] = s
		if name == wayAgent || name == wayAlone {
			lost += s.lost
		}
		fmt.Fprintf(out, "%-20s %14s %14s %13s %8s %6d %5.0f%%\n", name, micros(s.medP50), micros(s.medP99), micros(s.us), fmt.Sprintf("%d MB", s.rss>>20), s.lost, 100*s.busy)
	}
	fmt.Fprintln(out)
	for _, name := range []string{wayAgent, wayAlone} {
		if _, ok := ways[name]; !ok {
			continue
		}
		fmt.Fprintf(out, "%s: ratios of medians (range of the rounds' own ratios)\n", name)
		for _, bar := range bars {
			if peer, ok := ways[bar.peer]; ok {
				fmt.Fprintln(out, "  "+bar.judge(ways[name], peer))
			}
		}
		verdict := "holds"
		if ways[name].lost > 0 {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "  %-6s %-24s %d of them\n", verdict, "0 events lost", ways[name].lost)
	}
	return lost
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f us", float64(d)/1e3) }

// bar is what the proxy is held to beside a peer.
type bar struct {
	what string
	peer string
	most float64
	of   func(summary) (time.Duration, []time.Duration)
}

var bars = []bar{
	{"added p50", wayNginx, 1, ofP50},
	{"added p50", wayHAProxy, 1, ofP50},
	{"added p99", wayNginx, 1, ofP99},
	{"added p99", wayHAProxy, 1.25, ofP99},
	{"CPU per event", wayNginx, 1.25, ofCPU},
}

func ofP50(s summary) (time.Duration, []time.Duration) { return s.medP50, s.p50 }
func ofP99(s summary) (time.Duration, []time.Duration) { return s.medP99, s.p99 }
func ofCPU(s summary) (time.Duration, []time.Duration) { return s.us, s.cpu }

// judge says in one line whether the bar holds, and whether the rounds agree on it. A peer that adds nothing measurable
// gives no ratio.
func (b bar) judge(s, peer summary) string {
	what := fmt.Sprintf("%s <= %.2f x %s", b.what, b.most, b.peer)
	if b.most == 1 {
		what = fmt.Sprintf("%s <= %s", b.what, b.peer)
	}
	mine, own := b.of(s)
	theirs, others := b.of(peer)
	if theirs <= 0 {
		return fmt.Sprintf("%-6s %-32s no ratio: %s adds %s", "?", what, b.peer, micros(theirs))
	}
	if mine <= 0 {
		return fmt.Sprintf("%-6s %-32s it adds nothing that can be measured: %s", "holds", what, micros(mine))
	}
	ratio := float64(mine) / float64(theirs)
	least, most := math.Inf(1), math.Inf(-1)
	under, rounds := 0, 0
	for i := range own {
		if others[i] <= 0 {
			continue
		}
		rounds++
		r := float64(own[i]) / float64(others[i])
		least, most = min(least, r), max(most, r)
		if r <= b.most {
			under++
		}
	}
	verdict := "holds"
	if ratio > b.most {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%-6s %-32s %.2f (%.2f to %.2f; %d of %d rounds hold)", verdict, what, ratio, least, most, under, rounds)
}
