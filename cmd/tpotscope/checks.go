package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/demo"
	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/agent/importer"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/report"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON, calibrate bool
	var engines []string
	var with string
	cmd := &cobra.Command{
		Use: "doctor", GroupID: "check", Short: "what this node can measure, what not, why, and who can change it",
		Long: `Doctor checks clocks, socket stamps, helper, driver, GPUs, permissions, engine,
agent and disk, and changes nothing. It exits with 1 if a check failed.

With --calibrate it says what is known of each GPU's peaks. With --with it also
runs a command's known loads on each GPU, which must be idle, and keeps what the
GPU reaches below state_dir for the agent.`,
		Example: `  tpotscope doctor
  tpotscope doctor --engine http://10.0.0.5:8000 --json
  tpotscope doctor --calibrate --with "python3 deploy/gpucheck/kernels.py"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(nil)
			if err == nil && with != "" {
				err = canCalibrate(cmd, calibrate, cfg.StateDir)
			}
			if err != nil {
				return err
			}
			for _, e := range engines {
				if err := agent.CheckURL(e); err != nil {
					return usage(cmd, fmt.Errorf("--engine: %w: want http://HOST:PORT", err))
				}
			}
			for _, t := range cfg.Targets {
				engines = append(engines, t.EngineURL)
			}
			mapped := slices.ContainsFunc(cfg.Targets, func(t timeline.Target) bool { return len(t.GPUs) > 0 })
			o := doctor.Options{
				HelperDir: programDir(), Helper: cfg.NVML.Helper, Library: cfg.NVML.Library, Env: os.Environ(),
				Engines: engines, Socket: cfg.Socket, StateDir: cfg.StateDir,
				DCGM: cfg.DCGM.URL, Mapped: mapped, Calibrate: calibrate, With: with, Say: func(line string) { a.say("%s\n", line) },
			}
			if cfg.NVML.Source != agent.SourceHelper {
				o.NoCounters = "nvml.source is " + cfg.NVML.Source
			}
			r := doctor.Run(cmd.Context(), o)
			if asJSON {
				err = r.JSON(a.out)
			} else {
				err = r.Text(a.out)
			}
			if err == nil && r.Worst() == doctor.Failed {
				err = &exitStatus{code: exitError}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON (schema "+doctor.Schema+")")
	cmd.Flags().BoolVar(&calibrate, "calibrate", false, "say what is known of each GPU's peaks")
	cmd.Flags().StringVar(&with, "with", "", "with --calibrate: measure with the loads that this `command` runs")
	cmd.Flags().StringArrayVar(&engines, "engine", nil, "base URL of an engine (default: the usual local ports)")
	return cmd
}

// canCalibrate returns an error of usage if loads are to be run and what they tell is not asked for, or has no place.
func canCalibrate(cmd *cobra.Command, calibrate bool, stateDir string) error {
	if !calibrate {
		return usage(cmd, errors.New("--with needs --calibrate"))
	}
	return needState(stateDir)
}

// demoOptions are the flags of demo.
type demoOptions struct {
	scenario, dir string
	length        time.Duration
	json, verbose bool
}

func (a *app) demoCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use: "demo", GroupID: "check", Short: "the whole path, simulated: no GPU, no network, under two minutes",
		Long: `Demo plays a scenario: a simulated H100 behind the driver's own interface, a
simulated LLM server behind a real socket, real clients, and between them the
agent as it runs in production. It ends with the report and prints the
scenario's truth, which the agent never sees, beside what was found. It exits
with 4 if they do not agree, and with 3 if no phase was played to its end.
Everything it makes is labelled SIMULATED.

The shipped scenarios, with how long they are and what --for is the least that
plays a whole phase:
` + scenarioTimes(),
		Example: "  tpotscope demo\n  tpotscope demo --for 30s -o ./demo-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive(cmd, "for"); err != nil {
				return err
			}
			return a.demo(cmd.Context(), &o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.scenario, "scenario", "demo", "a scenario file, or a shipped scenario: "+scenarios())
	fl.StringVarP(&o.dir, "output", "o", "", "keep the recording in this directory (default: by time, below the state directory)")
	fl.DurationVar(&o.length, "for", 0, "end after this much of the scenario (see above for the least that plays a whole phase)")
	fl.BoolVar(&o.json, "json", false, "print everything as JSON")
	fl.BoolVarP(&o.verbose, "verbose", "v", false, "print the whole report")
	return cmd
}

func (a *app) demo(ctx context.Context, o *demoOptions) error {
	if o.dir == "" {
		cfg, err := a.load(nil)
		if err != nil {
			return err
		}
		if err := needState(cfg.StateDir); err != nil {
			return err
		}
		o.dir = freshRun(cfg.StateDir, "demo-")
	}
	if holdsRecording(o.dir) {
		return &exitStatus{exitUsage, fmt.Errorf("%s holds a recording already: name another directory with -o", o.dir)}
	}
	if _, err := agent.OpenScenario(o.scenario); err != nil {
		return &exitStatus{exitUsage, fmt.Errorf("--scenario: %w", err)}
	}
	library, err := filepath.Abs(filepath.Join(programDir(), "nvmlsim", "libnvidia-ml.so.1"))
	if err != nil {
		return err
	}
	live := a.escapes(a.err)
	last := ""
	res, err := demo.Run(ctx, demo.Options{
		Scenario: o.scenario, Dir: o.dir, HelperDir: programDir(), Library: library, Duration: o.length, Version: version, Log: a.quietLog(),
		Say: func(line string) { a.say("SIMULATED %s\n", line) },
		Progress: func(phase string, done, of float64) {
			if live {
				a.say("\r\x1b[K%3.0f of %.0f s  %s", done, of, phase)
			} else if phase != last {
				a.say("%3.0f of %.0f s  %s\n", done, of, phase)
			}
			last = phase
		},
	})
	if live {
		a.say("\r\x1b[K")
	}
	if err != nil {
		return err
	}
	if err := a.printDemo(res, o); err != nil {
		return err
	}
	for _, p := range res.Phases {
		if !p.Agrees {
			return &exitStatus{exitNegative, errors.New("what was found does not agree with the truth")}
		}
	}
	if len(res.Phases) == 0 {
		return &exitStatus{exitEvidence, errors.New("no phase was played to its end" + least(o.scenario))}
	}
	return nil
}

// firstWhole is when the first phase of a scenario has been played to its end.
func firstWhole(s *scenario.Scenario) (time.Duration, bool) {
	at, ok := time.Duration(0), false
	for _, p := range s.Phases {
		if !ok || p.Span.To < at {
			at, ok = p.Span.To, true
		}
	}
	return at, ok
}

// least says how much of a scenario plays a whole phase.
func least(name string) string {
	s, err := agent.OpenScenario(name)
	if err != nil {
		return ""
	}
	at, ok := firstWhole(s)
	if !ok {
		return ": the scenario has none"
	}
	return fmt.Sprintf(": the first takes --for %v", at)
}

// scenarioTimes lists the shipped scenarios.
func scenarioTimes() string {
	var lines []string
	for _, name := range scenario.Library() {
		s, err := scenario.Open(name)
		if err != nil {
			continue
		}
		line := fmt.Sprintf("  %-18s %v", name, s.Length)
		if at, ok := firstWhole(s); ok {
			line += fmt.Sprintf(", --for %v", at)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// printDemo prints the report and the comparison.
func (a *app) printDemo(res *demo.Result, o *demoOptions) error {
	if o.json {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		return enc.Encode(res)
	}
	if err := report.Text(a.out, res.Report, a.reportOptions(o.verbose)); err != nil {
		return err
	}
	return res.Text(a.out)
}

// importScenario turns a scenario into a recording.
func (a *app) importScenario(ctx context.Context, name, dir string) error {
	s, err := agent.OpenScenario(name)
	if err != nil {
		return &exitStatus{exitUsage, err}
	}
	tl, err := s.Run()
	if err != nil {
		return fmt.Errorf("run scenario: %w", err)
	}
	if err := importer.FromScenario(ctx, tl, dir, importer.ScenarioOptions{}); err != nil {
		return err
	}
	a.say("SIMULATED recording of %v in %s: see `tpotscope report %s`\n", tl.Duration(), dir, dir)
	return nil
}

func (a *app) seriesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "series", GroupID: "data", Short: "the catalogue of exported series, as a Markdown table",
		Example: "  tpotscope series",
		RunE:    func(*cobra.Command, []string) error { return exporters.Markdown(a.out) },
	}
}
