package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/summary"
)

// objective reads what is to be judged. Every fault is told at once.
func (f *reportFlags) objective() error {
	var errs []error
	for _, text := range f.slo {
		o, err := slo.Parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--slo: %w", err))
			continue
		}
		f.objectives = append(f.objectives, o)
	}
	if f.goodput != "" {
		var err error
		if f.bounds, err = slo.ParseBounds(f.goodput); err != nil {
			errs = append(errs, fmt.Errorf("--goodput: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &exitStatus{exitUsage, err}
	}
	return nil
}

// writePage writes a page into a file of its own, once it is whole.
func (a *app) writePage(path string, render func(io.Writer) error) error {
	var b bytes.Buffer
	if err := render(&b); err != nil {
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil { //nolint:gosec // a page to look at, with no more in it than the recordings that it is of
		return fmt.Errorf("write page: %w", err)
	}
	a.say("wrote %s\n", path)
	return nil
}

// statusOf returns the status that a report asks for: that there is nothing to tell of, or what became of its objectives.
func statusOf(rep *summary.Report) error {
	if rep.Empty != "" {
		return &exitStatus{exitEvidence, fmt.Errorf("not enough evidence: %s", rep.Empty)}
	}
	var missed, open []string
	for i := range rep.SLO {
		switch r := &rep.SLO[i]; r.Outcome {
		case slo.Missed:
			missed = append(missed, r.Objective)
		case slo.Undecided:
			open = append(open, r.Objective+" ("+r.Why+")")
		case slo.Met:
		}
	}
	switch {
	case len(missed) > 0:
		return &exitStatus{exitNegative, fmt.Errorf("missed: %s", strings.Join(missed, ", "))}
	case len(open) > 0:
		return &exitStatus{exitEvidence, fmt.Errorf("not enough evidence: %s", strings.Join(open, "; "))}
	}
	return nil
}
