package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/calibration"
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
	dir := filepath.Join(runsDir(stateDir), prefix+time.Now().UTC().Format("2006-01-02T15-04-05Z"))
	for unique, n := dir, 2; ; n++ {
		if _, err := os.Stat(unique); err != nil {
			return unique
		}
		unique = fmt.Sprintf("%s-%d", dir, n)
	}
}

// findRun returns the directory of the recording that is asked for, and says which it passed over.
func (a *app) findRun(stateDir, run string) (string, error) {
	dir, passed, err := findRun(stateDir, run)
	if err != nil {
		return "", &exitStatus{exitUsage, err}
	}
	if len(passed) > 0 {
		a.say("%s is %s: passed over %s, which %s nothing\n", run, filepath.Base(dir), strings.Join(passed, ", "), plural(len(passed), "holds", "hold"))
	}
	return dir, nil
}

// findRun returns the directory of a recording: a path, or @last, @prev or @NAME of those below the state directory.
// @last and @prev are of those that hold something; it returns the names of the later ones that do not.
func findRun(stateDir, run string) (string, []string, error) {
	name, short := strings.CutPrefix(run, "@")
	if !short {
		switch st, err := os.Stat(run); {
		case err != nil:
			return "", nil, fmt.Errorf("no recording at %s (a directory, or @last, @prev, @NAME)", run)
		case !st.IsDir():
			return "", nil, fmt.Errorf("%s is a file: `tpotscope import %s` makes a recording of what it understands", run, run)
		case !holdsRecording(run):
			return "", nil, fmt.Errorf("no recording at %s: the directory has no meta.json", run)
		}
		return run, nil, nil
	}
	if err := needState(stateDir); err != nil {
		return "", nil, err
	}
	dirs, err := listRuns(runsDir(stateDir))
	if err != nil {
		return "", nil, err
	}
	if name == "last" || name == "prev" {
		return latestRun(runsDir(stateDir), dirs, name)
	}
	if slices.Contains(dirs, name) || name == agentRun && holdsRecording(filepath.Join(runsDir(stateDir), name)) {
		return filepath.Join(runsDir(stateDir), name), nil, nil
	}
	if near := nearest(name, append(dirs, "last", "prev")); near != "" {
		return "", nil, fmt.Errorf("no recording @%s below %s (did you mean @%s?)", name, runsDir(stateDir), near)
	}
	return "", nil, fmt.Errorf("no recording @%s below %s", name, runsDir(stateDir))
}

// latestRun returns the last recording of dirs that holds something, or the one before it, and those passed over.
func latestRun(base string, dirs []string, name string) (string, []string, error) {
	nth := 1
	if name == "prev" {
		nth = 2
	}
	var passed []string
	found := 0
	for _, d := range slices.Backward(dirs) {
		dir := filepath.Join(base, d)
		if r, err := record.OpenReader(dir); err != nil || holdsNothing(r) {
			passed = append(passed, d)
			continue
		}
		if found++; found == nth {
			return dir, passed, nil
		}
	}
	empty := ""
	if len(passed) > 0 {
		empty = fmt.Sprintf(" that %s something", plural(found, "holds", "hold"))
	}
	return "", nil, fmt.Errorf("there %s %d %s below %s%s, so there is no @%s: make one with `tpotscope record`",
		plural(found, "is", "are"), found, plural(found, "recording", "recordings"), base, empty, name)
}

// plural returns the word for n things.
func plural(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// holdsNothing reports whether a recording holds neither counters nor an engine's metrics nor requests.
func holdsNothing(r *record.Reader) bool {
	return !some(r.Samples()) && !some(r.Requests()) && !some(r.Opens()) && !some(r.Engine())
}

// some reports whether there is a row.
func some[T any](rows iter.Seq2[*T, error]) bool {
	for _, err := range rows {
		if err == nil {
			return true
		}
	}
	return false
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

// Forms of a moment on the command line, beside durations. What names no zone is in that of the reports, UTC.
var (
	dateForms = []string{
		time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
	}
	dayForms = []string{"15:04:05", "15:04"}
)

// instant places a moment of the command line on the recording's timeline: a date and time, a time of day of the
// recording's first day, or a duration since the recording's start, before its end if negative.
func instant(text string, first, last timeline.Instant, a timeline.Anchor) (timeline.Instant, error) {
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return last.Add(d), nil
		}
		return first.Add(d), nil
	}
	bare := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "UTC"))
	for _, form := range dateForms {
		if t, err := time.ParseInLocation(form, bare, time.UTC); err == nil {
			return a.Instant(t.UnixNano()), nil
		}
	}
	for _, form := range dayForms {
		if t, err := time.Parse(form, bare); err == nil {
			day := time.Unix(0, a.Unix(first)).UTC()
			at := time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
			return a.Instant(at.UnixNano()), nil
		}
	}
	return 0, fmt.Errorf("%q is no time: want a duration since the start (90s; -5m counts from the end), 15:04:05 or 2006-01-02 15:04:05, both in UTC, or 2006-01-02T15:04:05Z", text)
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
	cfg.Targets, cfg.Eta = r.Meta().Targets, calibration.OfRecording(r.Meta().Config, r.Meta().GPUs)
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
	for _, text := range warnings {
		b.AddFault(text)
	}
	rep := b.Report()
	rep.Simulated = rep.Simulated || r.Meta().Simulated
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
