package demo

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

const testdata = "../../correlate/scenario/testdata"

// some of the scenarios, one of each kind: a label, an overlay, a gate and a grade.
var some = []string{"labels/memory", "overlays/preempted", "gates/mig", "grades/isolated"}

// own are scenarios of what whole agents alone can get wrong: an engine that comes up anew and counts from zero, and requests
// that go around the proxy.
func own() map[string]string {
	return map[string]string{
		"restart": `seed 61
duration 24s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=16 stagger=2ms prompt=200 output=300..400
phase before 2s..9s
fault restart 2s 10s..11s
phase after 15s..23s
`,
		"half_seen": `seed 62
duration 14s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=6 stagger=2ms prompt=200 output=50..100
probe coverage=50%
phase decode 3s..13s
`,
	}
}

// parse reads a scenario of that name.
func parse(name string) (*scenario.Scenario, error) {
	if text := own()[name]; text != "" {
		return scenario.Parse(name, strings.NewReader(text))
	}
	f, err := os.Open(filepath.Join(testdata, name+".scenario"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return scenario.Parse(name, f)
}

// known are disagreements that are known, with what is behind each. They are printed, and one that has gone is an error too,
// so that the list does not outlive them.
func known() map[string]string {
	return map[string]string{}
}

// open reads scenarios and makes them ready, longest first.
func open(t *testing.T, names []string, longest time.Duration) []*ready {
	t.Helper()
	all := make([]*ready, len(names))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() error {
			s, err := parse(name)
			if err != nil {
				return err
			}
			inTime(s, longest)
			all[i], err = prepare(name, s)
			return err
		})
	}
	must(t, g.Wait())
	slices.SortStableFunc(all, func(a, b *ready) int { return cmp.Compare(b.tl.Duration(), a.tl.Duration()) })
	return all
}

// bearable is how many GPUs this host is asked to bear at once, in whole agents that read them on both ways: five a core
// leave room for what else it does.
func bearable() int64 { return int64(max(4, 5*min(8, runtime.GOMAXPROCS(0)))) }

// loop plays scenarios and keeps what they say.
type loop struct {
	dir, bins string
	log       *slog.Logger
	say       func(format string, args ...any)
}

// sideBySide plays scenarios, as many at once as the host can bear, and then concludes.
func (l *loop) sideBySide(ctx context.Context, all []*ready) (rows [][]row, errs []error) {
	rows, errs = make([][]row, len(all)), make([]error, len(all))
	played := make([]heard, len(all))
	most := bearable()
	room := semaphore.NewWeighted(most)
	var wg sync.WaitGroup
	for i, sc := range all {
		weight := min(most, int64(max(1, len(sc.tl.GPUs()))))
		if errs[i] = room.Acquire(ctx, weight); errs[i] != nil {
			continue
		}
		wg.Go(func() {
			defer room.Release(weight)
			played[i], errs[i] = playBoth(ctx, sc, l.dir, l.bins, l.log)
		})
	}
	wg.Wait()
	for i := range all {
		if errs[i] == nil {
			rows[i], errs[i] = played[i].conclude(ctx)
		}
	}
	return rows, errs
}

// play plays scenarios side by side, and once more and alone those that the host starved and those that say something
// else: what a busy host did to one does not come again.
func (l *loop) play(ctx context.Context, all []*ready) ([]row, []error) {
	first, errs := l.sideBySide(ctx, all)
	for i, sc := range all {
		bad := func(r row) bool {
			return len(r.starved) > 0 || len(r.wrong) > 0 && known()[r.scenario] == ""
		}
		if errs[i] == nil && !slices.ContainsFunc(first[i], bad) {
			continue
		}
		l.say("once more, alone: %s: %v%s", sc.name, errs[i], table(first[i]))
		again, err := l.sideBySide(ctx, all[i:i+1])
		first[i], errs[i] = again[0], err[0]
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", sc.name, errs[i])
		}
	}
	rows := slices.Concat(first...)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.scenario, b.scenario) })
	return rows, slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// table prints what was said.
func table(all []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-36s %-12s %-34s %-26s %-26s %-26s %-6s %s\n", "scenario", "phase", "claim", "pure", "in process", "C library", "shares", "agree")
	for i := range all {
		r := &all[i]
		agree := "yes"
		switch {
		case len(r.starved) > 0:
			agree = "STARVED"
		case len(r.wrong) > 0 && known()[r.scenario] != "":
			agree = "NO, known: " + known()[r.scenario]
		case len(r.wrong) > 0:
			agree = "NO"
		}
		fmt.Fprintf(&b, "%-36s %-12s %-34s %-26s %-26s %-26s %6.3f %s\n", r.scenario, r.phase, r.claim, r.said[pureWay], r.said[localWay], r.said[cWay], r.shares, agree)
		for _, line := range slices.Concat(r.wrong, r.starved) {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

func checkLoop(t *testing.T, names []string, longest time.Duration) {
	t.Helper()
	bins, missing := built(t)
	if missing != "" {
		t.Skipf("the way through the helper and the C library: %s", missing)
	}
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // that of the test is too long for a socket
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	l := &loop{dir: dir, bins: bins, log: slog.New(slog.DiscardHandler), say: t.Logf}
	began := time.Now()
	all, errs := l.play(t.Context(), open(t, names, longest))
	t.Logf("%d scenarios in %v%s", len(names), time.Since(began).Round(time.Second), table(all))
	for _, err := range errs {
		t.Error(err)
	}
	seen := map[string]bool{}
	for i := range all {
		r := &all[i]
		seen[r.scenario] = true
		if why := known()[r.scenario]; why != "" && len(r.starved) == 0 {
			if len(r.wrong) == 0 {
				t.Errorf("%s agrees, and is known not to: %s", r.scenario, why)
			}
			continue
		}
		if len(r.wrong) > 0 || len(r.starved) > 0 {
			t.Errorf("%s, %s: %s", r.scenario, r.phase, strings.Join(slices.Concat(r.wrong, r.starved), "; "))
		}
	}
	if len(seen) != len(names) {
		t.Errorf("%d scenarios were heard of, of %d: %v", len(seen), len(names), slices.Sorted(maps.Keys(seen)))
	}
}

// TestTheLoopIsClosedForEachKindOfScenario plays a label, an overlay, a gate and a grade through whole agents: what is said
// of devices in this process and of those behind the driver's library is what a perfect observer says.
func TestTheLoopIsClosedForEachKindOfScenario(t *testing.T) {
	t.Parallel()
	checkLoop(t, some, 6*time.Second)
}

// TestTheLoopIsClosed plays every scenario that there is.
func TestTheLoopIsClosed(t *testing.T) {
	only := os.Getenv("TPOTSCOPE_CLOSED_LOOP")
	if only == "" {
		t.Skip("takes minutes of real time: make closed-loop")
	}
	names := slices.Collect(maps.Keys(own()))
	for _, pattern := range []string{"*.scenario", "*/*.scenario"} {
		paths, err := filepath.Glob(filepath.Join(testdata, pattern))
		must(t, err)
		for _, path := range paths {
			name, err := filepath.Rel(testdata, strings.TrimSuffix(path, ".scenario"))
			must(t, err)
			names = append(names, name)
		}
	}
	if len(names) < 60 {
		t.Errorf("%d scenarios", len(names))
	}
	if only != "all" {
		names = strings.Split(only, ",")
	}
	checkLoop(t, names, 10*time.Second)
}
