package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/compare"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// compareFlags are the flags of compare.
type compareFlags struct {
	json, verbose    bool
	html             string
	margin           float64
	failOn           []string
	warmup           time.Duration
	target, targetB  string
	partA, partB     span
	runA, runB, dirA string
	dirB             string
}

// What --fail-on takes.
const (
	failRegression = "regression"
	failNotSaved   = "not-saved"
	failAny        = "any"
)

func (a *app) compareCommand() *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use: "compare A B", GroupID: "ask", Short: "what changed between two builds, GPUs or times", Args: two,
		Long: `Compare says what changed from recording A to recording B of one model: did a
number format save the DRAM bandwidth it promised, did an engine upgrade cost
time and where, is the other GPU faster.

It compares bytes and time per engine step at the same batch, context and prompt
work: at a fixed arrival rate a faster build runs a smaller batch. All ratios
are B over A. The verdict is one of
  realised              bytes fell, and half or more of the time that they
                        should save came
  bytes_saved_not_time  bytes fell, and less than half of that time came
  bytes_not_saved       under half of the bytes that the format should save
  regression            slower by more than the margin
  improvement           faster by more than the margin, and no bytes explain it
  no_difference         the whole interval lies within the margin
  refused, undetermined with the reason, and what would help

Both need a minute or more of the same kind of load, and the same instrument:
the engine's metrics, or the proxy. A and B are RUNs: a directory, or @last,
@prev or @NAME. --since-a and its kin compare two times of one recording.

It exits with 3 where there is no verdict. --fail-on makes it exit with 4 on a
regression, on bytes or time not-saved, or on any; any exits with 10 on every
other change beyond the margin.`,
		Example: `  tpotscope compare @prev @last
  tpotscope compare ./bf16 ./fp8 -v
  tpotscope compare ./old ./new --fail-on regression --json | jq .time_ratio
  tpotscope compare @last @last --until-a 10m --since-b 10m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			f.runA, f.runB = args[0], args[1]
			return a.compare(cmd.Context(), &f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.json, "json", false, "print the comparison as JSON (schema "+compare.Schema+")")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print everything, with the table of bins")
	fl.StringVar(&f.html, "html", "", "write the comparison as one HTML page to this file too")
	fl.Float64Var(&f.margin, "margin", compare.DefaultMargin, "what counts as no difference: 0.03 is 3 % of A's time")
	fl.StringSliceVar(&f.failOn, "fail-on", nil, "exit with 4 on: regression, not-saved, any (then with 10 on other changes)")
	fl.DurationVar(&f.warmup, "warmup", 0, "leave out what came this soon after the first reading, on both sides")
	fl.StringVar(&f.target, "target", "", "compare this target alone")
	fl.StringVar(&f.targetB, "target-b", "", "the target in B, if it has another name there")
	fl.StringVar(&f.partA.since, "since-a", "", "A from here on: a duration since the start (-5m: before the end), or a time, as in report")
	fl.StringVar(&f.partA.until, "until-a", "", "A up to here, in the same forms")
	fl.StringVar(&f.partB.since, "since-b", "", "B from here on")
	fl.StringVar(&f.partB.until, "until-b", "", "B up to here")
	return cmd
}

// two takes the two recordings that are compared.
func two(cmd *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return fmt.Errorf("%s needs two RUNs, A and B: each a directory, @last, @prev or @NAME; got %d", cmd.Name(), len(args))
	}
	return nil
}

// check returns the fault of the flags.
func (f *compareFlags) check(cmd *cobra.Command) error {
	if err := (compare.Options{Margin: f.margin}).Validate(); err != nil {
		return usage(cmd, fmt.Errorf("--margin: %w", err))
	}
	known := []string{failRegression, failNotSaved, failAny}
	for _, w := range f.failOn {
		if !slices.Contains(known, w) {
			return usage(cmd, fmt.Errorf("--fail-on: %q is not one of %s", w, strings.Join(known, ", ")))
		}
	}
	if f.warmup < 0 {
		return usage(cmd, fmt.Errorf("--warmup: %v is negative", f.warmup))
	}
	if f.targetB == "" {
		f.targetB = f.target
	}
	return nil
}

// compare replays both recordings, and prints what differs.
func (a *app) compare(ctx context.Context, f *compareFlags) error {
	cfg, err := a.load(nil)
	if err != nil {
		return err
	}
	if f.dirA, err = a.findRun(cfg.StateDir, f.runA); err != nil {
		return err
	}
	if f.dirB, err = a.findRun(cfg.StateDir, f.runB); err != nil {
		return err
	}
	x, err := a.loadRecording(ctx, f.dirA, f.partA, compare.Config{Name: nameOf(f.runA, f.dirA), Target: f.target, Warmup: f.warmup})
	if err != nil {
		return ofSide("A", err)
	}
	y, err := a.loadRecording(ctx, f.dirB, f.partB, compare.Config{Name: nameOf(f.runB, f.dirB), Target: f.targetB, Warmup: f.warmup})
	if err != nil {
		return ofSide("B", err)
	}
	if both := x.Overlap(y); both > 0 && sameRun(f.dirA, f.dirB) && f.target == f.targetB {
		y.AddFault(fmt.Sprintf("%v of it are in A too: what is compared with itself does not differ", both.Round(time.Second)))
	}
	r, err := compare.Of(x, y, compare.Options{Margin: f.margin, Seed: 1})
	if err != nil {
		return err
	}
	if f.json {
		err = report.CompareJSON(a.out, r)
	} else {
		err = report.Compare(a.out, r, a.reportOptions(f.verbose))
	}
	if err == nil && f.html != "" {
		err = a.writePage(f.html, func(w io.Writer) error { return report.CompareHTML(w, r, report.Options{}) })
	}
	if err != nil {
		return err
	}
	return f.status(r)
}

// sameRun reports whether two directories are one.
func sameRun(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// ofSide says of which side an error is, and names the flag of that side.
func ofSide(side string, err error) error {
	var status *exitStatus
	if !errors.As(err, &status) || status.err == nil {
		return fmt.Errorf("%s: %w", side, err)
	}
	for _, flag := range []string{"--since", "--until"} {
		if rest, ok := strings.CutPrefix(status.err.Error(), flag+": "); ok {
			return &exitStatus{status.code, fmt.Errorf("%s-%s: %s", flag, strings.ToLower(side), rest)}
		}
	}
	return &exitStatus{status.code, fmt.Errorf("%s: %w", side, status.err)}
}

// nameOf is what a recording is called in print: as it was asked for, or its folder.
func nameOf(run, dir string) string {
	if strings.HasPrefix(run, "@") {
		return run
	}
	return filepath.Base(dir)
}

// loadRecording replays the recording in dir for a comparison.
func (a *app) loadRecording(ctx context.Context, dir string, part span, c compare.Config) (*compare.Recording, error) {
	r, err := record.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	if c.Anchor, err = firstAnchor(r); err != nil {
		return nil, err
	}
	if c.Since, c.Until, err = part.resolve(r, c.Anchor); err != nil {
		return nil, err
	}
	meta := r.Meta()
	c.GPUs, c.Targets = meta.GPUs, meta.Targets
	c.Simulated = meta.Simulated || slices.ContainsFunc(meta.GPUs, func(g timeline.GPU) bool { return g.Simulated })
	rec := compare.New(c)
	bar := a.progress("replaying " + filepath.Base(dir))
	defer bar.done()
	faults, err := replayRun(ctx, r, func(o *correlate.Output) error {
		for i := range o.Cells {
			rec.AddCell(&o.Cells[i])
		}
		for i := range o.Phases {
			rec.AddPhase(&o.Phases[i])
		}
		return nil
	}, bar.at)
	if err != nil {
		return nil, err
	}
	for e, err := range r.Engine() {
		if err == nil { // its fault is told already
			rec.AddEngine(e)
		}
	}
	for _, text := range faults {
		rec.AddFault(text)
	}
	if n := len(r.Boots()); n > 1 {
		rec.AddFault(fmt.Sprintf("it spans %d boots of its host, whose times do not compare: ask for a part of one", n))
	}
	return rec, nil
}

// status is the exit status that the verdict asks for.
func (f *compareFlags) status(r *compare.Report) error {
	if !r.Verdict.Decided() {
		return &exitStatus{exitEvidence, fmt.Errorf("no verdict: %s", r.Reason)}
	}
	on := func(w string) bool { return slices.Contains(f.failOn, w) }
	slower := r.Slower || r.Verdict == compare.Regression
	unsaved := r.Verdict == compare.NotSaved || r.Verdict == compare.NotTime
	switch {
	case on(failRegression) && slower, on(failNotSaved) && unsaved, on(failAny) && (slower || unsaved):
		return &exitStatus{exitNegative, errors.New("--fail-on: " + r.Reason)}
	case on(failAny) && r.Verdict != compare.NoDifference:
		return &exitStatus{exitChange, errors.New("--fail-on any: " + r.Reason)}
	}
	return nil
}
