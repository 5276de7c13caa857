package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// runsDir holds the recordings that record makes, each named by its start.
func runsDir(stateDir string) string { return filepath.Join(stateDir, "recordings") }

// freshRun returns a directory for a recording that begins at this moment, which nobody has made yet.
func freshRun(stateDir, prefix string) string {
	dir := filepath.Join(runsDir(stateDir), prefix+time.Now().Format("2006-01-02T15-04-05"))
	for unique, n := dir, 2; ; n++ {
		if _, err := os.Stat(unique); err != nil {
			return unique
		}
		unique = fmt.Sprintf("%s-%d", dir, n)
	}
}

// findRun returns the directory of a recording: a path, or @last, @prev or @NAME of those below the state directory.
func findRun(stateDir, run string) (string, error) {
	name, short := strings.CutPrefix(run, "@")
	if !short {
		switch st, err := os.Stat(run); {
		case err != nil:
			return "", fmt.Errorf("no recording at %s (a directory, or @last, @prev, @NAME)", run)
		case !st.IsDir():
			return "", fmt.Errorf("%s is a file: `tpotscope import %s` makes a recording of what it understands", run, run)
		}
		return run, nil
	}
	dirs, err := listRuns(runsDir(stateDir))
	if err != nil {
		return "", err
	}
	switch {
	case name != "last" && name != "prev":
		if slices.Contains(dirs, name) || name == agentRun && holdsRecording(filepath.Join(runsDir(stateDir), name)) {
			return filepath.Join(runsDir(stateDir), name), nil
		}
		if near := nearest(name, dirs); near != "" {
			return "", fmt.Errorf("no recording @%s below %s (did you mean @%s?)", name, runsDir(stateDir), near)
		}
		return "", fmt.Errorf("no recording @%s below %s", name, runsDir(stateDir))
	case name == "last" && len(dirs) > 0:
		return filepath.Join(runsDir(stateDir), dirs[len(dirs)-1]), nil
	case name == "prev" && len(dirs) > 1:
		return filepath.Join(runsDir(stateDir), dirs[len(dirs)-2]), nil
	}
	return "", fmt.Errorf("there are %d recordings below %s, so there is no @%s: make one with `tpotscope record`",
		len(dirs), runsDir(stateDir), name)
}

// agentRun is the name of the agent's own recording. It is never the last one: it goes on.
const agentRun = "agent"

func holdsRecording(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "meta.json"))
	return err == nil
}

// listRuns returns the names of the recordings in dir but for the agent's, in the order in which they began.
func listRuns(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	type run struct {
		name string
		made time.Time
	}
	var runs []run
	for _, e := range entries {
		if e.Name() == agentRun || !holdsRecording(filepath.Join(dir, e.Name())) {
			continue
		}
		r, err := record.OpenReader(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // what cannot be read is named by its path, and says why then
		}
		runs = append(runs, run{e.Name(), r.Meta().Created})
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Or(a.made.Compare(b.made), cmp.Compare(a.name, b.name)) })
	names := make([]string, len(runs))
	for i, r := range runs {
		names[i] = r.name
	}
	return names, nil
}

// span is a part of a recording, by wall-clock time or by the time since its start.
type span struct {
	since, until string
}

// instant places a moment of the command line on the recording's timeline: RFC 3339, a time of day of the recording's
// first day in local time, or a duration since the recording's start, before its end if negative.
func instant(text string, first, last timeline.Instant, a timeline.Anchor) (timeline.Instant, error) {
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return last.Add(d), nil
		}
		return first.Add(d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return a.Instant(t.UnixNano()), nil
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			day := time.Unix(0, a.Unix(first)).Local() //nolint:gosmopolitan // people type the time of their own clock
			at := time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, day.Location())
			return a.Instant(at.UnixNano()), nil
		}
	}
	return 0, fmt.Errorf("%q is no time: want a duration since the start (90s; -5m counts from the end), 15:04:05, or 2006-01-02T15:04:05Z", text)
}

// replayRun replays the recording in dir and hands each piece of output to emit.
func replayRun(ctx context.Context, r *record.Reader, emit func(*correlate.Output) error, progress func(float64)) ([]string, error) {
	res, err := replay.Run(ctx, r, correlate.DefaultConfig(), emit, progress)
	var warnings []string
	for _, f := range res.Faults {
		warnings = append(warnings, f.Error())
	}
	if res.Late > 0 {
		warnings = append(warnings, fmt.Sprintf("%d rows were too far out of order to be put right", res.Late))
	}
	return warnings, err
}

// firstAnchor returns the first reading of the clocks that a recording holds.
func firstAnchor(r *record.Reader) (timeline.Anchor, error) {
	boot := r.Meta().BootID
	if boots := r.Boots(); len(boots) > 0 {
		boot = boots[0]
	}
	for a, err := range r.Anchors() {
		if err == nil && (a.BootID == boot || boot == "") {
			return *a, nil
		}
	}
	return timeline.Anchor{}, fmt.Errorf("%s holds no reading of the clocks: nothing in it can be placed in time", r.Dir())
}

// buildReport replays the recording in dir into a report.
func buildReport(ctx context.Context, dir string, part span, cfg summary.Config, progress func(float64)) (*summary.Report, error) {
	r, err := record.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	if cfg.Anchor, err = firstAnchor(r); err != nil {
		return nil, err
	}
	if cfg.Since, cfg.Until, err = part.resolve(r, cfg.Anchor); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, &exitStatus{exitUsage, err}
	}
	b := summary.New(cfg)
	b.SetGPUs(r.Meta().GPUs)
	warnings, err := replayRun(ctx, r, func(o *correlate.Output) error {
		for i := range o.Cells {
			b.AddCell(&o.Cells[i])
		}
		for i := range o.Phases {
			b.AddPhase(&o.Phases[i])
		}
		return nil
	}, progress)
	if err != nil {
		return nil, err
	}
	for e, err := range r.Events() {
		if err == nil {
			b.AddEvent(e)
		}
	}
	rep := b.Report()
	rep.Simulated = rep.Simulated || r.Meta().Simulated
	rep.Warnings = append(rep.Warnings, warnings...)
	return rep, nil
}

// resolve returns the bounds of the part on the recording's timeline; zero where it is open.
func (p span) resolve(r *record.Reader, a timeline.Anchor) (timeline.Instant, timeline.Instant, error) {
	if p.since == "" && p.until == "" {
		return 0, 0, nil
	}
	first, last, err := extent(r)
	if err != nil {
		return 0, 0, err
	}
	var since, until timeline.Instant
	if p.since != "" {
		if since, err = instant(p.since, first, last, a); err != nil {
			return 0, 0, &exitStatus{exitUsage, fmt.Errorf("--since: %w", err)}
		}
	}
	if p.until != "" {
		if until, err = instant(p.until, first, last, a); err != nil {
			return 0, 0, &exitStatus{exitUsage, fmt.Errorf("--until: %w", err)}
		}
	}
	return since, until, nil
}

// extent returns the instants of the first and last reading or token of a recording.
func extent(r *record.Reader) (timeline.Instant, timeline.Instant, error) {
	if boots := r.Boots(); len(boots) > 0 {
		if first, last, ok := r.Extent(boots[0]); ok {
			return first, last, nil
		}
	}
	return 0, 0, &exitStatus{exitEvidence, fmt.Errorf("%s is empty", r.Dir())}
}
