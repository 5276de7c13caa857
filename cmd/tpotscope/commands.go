package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/correlate/slo"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// commands are all subcommands.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.recordCommand(), a.reportCommand(), a.compareCommand(),
		a.agentCommand(), a.burstCommand(), a.proxyCommand(),
		a.doctorCommand(), a.rooflineCommand(), a.configCommand(), a.demoCommand(), a.versionCommand(),
		a.importCommand(), a.exportCommand(), a.seriesCommand(),
	}
}

// load puts the configuration together and validates it. Some flags of a command stand for keys.
func (a *app) load(more map[string]string) (agent.Config, error) {
	flags, err := a.overrides()
	if err != nil {
		return agent.Config{}, err
	}
	for k, v := range more {
		if v != "" {
			flags[k] = v
		}
	}
	cfg, _, err := loadConfig(a.env, a.env.configFile(a.config), flags)
	if err != nil {
		return cfg, &exitStatus{exitUsage, fmt.Errorf("configuration: %w", err)}
	}
	return cfg, nil
}

// needState returns an error of usage if there is no state directory.
func needState(stateDir string) error {
	if stateDir == "" {
		return &exitStatus{exitUsage, fmt.Errorf("configuration: %w", agent.ErrNoStateDir)}
	}
	return nil
}

// needSocket returns an error of usage if it is not known where the agent's socket is.
func needSocket(cfg *agent.Config) error {
	if cfg.Socket == "" {
		return &exitStatus{exitUsage, errors.New("configuration: socket: missing: set it, or TPOTSCOPE_SOCKET, XDG_RUNTIME_DIR or HOME")}
	}
	return nil
}

// programDir is the folder of this binary, where its helper is looked for first.
func programDir() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return filepath.Dir(path)
}

// reportFlags are what report and record have in common.
type reportFlags struct {
	json, verbose bool
	warmup        time.Duration
	target        string
	part          span
	html          string
	slo           []string
	goodput       string

	objectives []slo.Objective
	bounds     []slo.Bound
}

func (f *reportFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.json, "json", false, "print the report as JSON (schema "+summary.Schema+")")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print everything, however long")
	fl.DurationVar(&f.warmup, "warmup", 0, "leave out what came this soon after the first reading")
	fl.StringVar(&f.target, "target", "", "report on this target alone")
	fl.StringVar(&f.html, "html", "", "write the report as one HTML page to this file too")
	fl.StringArrayVar(&f.slo, "slo", nil, "objective to judge, such as tpot.p90<50ms: ttft, tpot, itl or e2e, of p50, p90, p99 (any pN), mean or max; may be repeated")
	fl.StringVar(&f.goodput, "goodput", "", "count requests that keep all of these, such as ttft<2s,tpot<50ms")
}

func (a *app) reportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use: "report RUN", GroupID: "ask", Short: "what bounded decode in a recording, and how fast tokens came", Args: one(aRun),
		Long: `Report replays a recording through the engine that judges live data and says
what bounded decode, how sure that is and what would refute it, with TTFT and
TPOT over requests. Where model, number format and GPU are known it holds the
time of a step against what the byte model expects, and says what would help.

--slo judges one statistic of one latency, over requests that went well outside
the warm-up; --goodput counts requests that keep several limits at once. Met or
missed is said only where the sample decides it.

It exits with 4 if an objective is missed, and with 3 if one cannot be decided
or the recording holds nothing to tell of.

RUN is a directory, or @last, @prev or @NAME of the recordings below the state
directory; @agent is the agent's own. @last and @prev pass over recordings that
hold nothing.

Times are printed in UTC, and read so: --since and --until take
  90s, -5m                 since the start; before the end if negative
  15:04:05                 a time of day in UTC, of the recording's first day
  2006-01-02 15:04:05      as it is printed, in UTC
  2006-01-02T15:04:05Z     RFC 3339, with any zone`,
		Example: `  tpotscope report @last
  tpotscope report @last --since 20s --until 40s
  tpotscope report @last --slo 'tpot.p90<50ms' --goodput 'ttft<2s,tpot<50ms'
  tpotscope report @last --html report.html
  tpotscope report ./run1 --json | jq .tpot_s.p99`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.objective(); err != nil {
				return err
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			dir, err := a.findRun(cfg.StateDir, args[0])
			if err != nil {
				return err
			}
			return a.printReport(cmd.Context(), dir, &f)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&f.part.since, "since", "", "from here on: a duration since the start (-5m: before the end), 15:04:05 UTC, \"2006-01-02 15:04:05\" UTC, or RFC 3339")
	cmd.Flags().StringVar(&f.part.until, "until", "", "up to here, in the same forms")
	return cmd
}

// printReport builds and prints the report of the recording in dir.
func (a *app) printReport(ctx context.Context, dir string, f *reportFlags) error {
	bar := a.progress("replaying " + filepath.Base(dir))
	rep, err := buildReport(ctx, dir, f.part, summary.Config{Warmup: f.warmup, Target: f.target, Objectives: f.objectives, Goodput: f.bounds}, bar.at)
	bar.done()
	if err != nil {
		return err
	}
	if f.json {
		err = report.JSON(a.out, rep)
	} else {
		err = report.Text(a.out, rep, a.reportOptions(f.verbose))
	}
	if err == nil && f.html != "" {
		err = a.writePage(f.html, func(w io.Writer) error { return report.HTML(w, rep, report.Options{}) })
	}
	if err == nil {
		err = statusOf(rep)
	}
	return err
}

func (a *app) reportOptions(verbose bool) report.Options {
	width, _ := a.terminal()
	return report.Options{Width: width, Color: a.escapes(a.out) && a.env.get("NO_COLOR") == "", Verbose: verbose}
}

func (a *app) importCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "import FILE -o DIR", GroupID: "data", Short: "turn a scenario into a recording", Args: one("a FILE: a scenario, or the name of a shipped one"),
		Long: `Import makes a recording of a scenario: a file of tpotscope's own text format,
or the name of a shipped one. What comes of it is marked as SIMULATED
everywhere.

The shipped ones:
` + wrap(scenarios(), "  "),
		Example: `  tpotscope import demo -o ./demo-run
  tpotscope report ./demo-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needFlags(cmd, "output"); err != nil {
				return err
			}
			return a.importScenario(cmd.Context(), args[0], out)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "directory to make")
	return cmd
}

func (a *app) configCommand() *cobra.Command {
	var checkJSON, printJSON bool
	cmd := &cobra.Command{
		Use: "config", GroupID: "check", Short: "check or print the configuration", Args: cobra.ArbitraryArgs, RunE: groupOnly,
		Long: `Config checks or prints the configuration that the other commands use. A flag
wins over a variable ` + variablePrefix + `KEY, that over the file, that over the OTEL_*
variables, and those over the defaults.`,
		Example: `  tpotscope config check /etc/tpotscope/config.yaml
  tpotscope config print --set nvml.period=200ms
  TPOTSCOPE_SCRAPE_INTERVAL=2s tpotscope config print --json`,
	}
	check := &cobra.Command{
		Use: "check [FILE]", Short: "check the configuration and say every fault at once", Args: cobra.MaximumNArgs(1),
		Long: `Check reads the file, the environment and the flags as the agent would, and says
every fault at once: each with its line and key where it is the file's.`,
		Example: "  tpotscope config check /etc/tpotscope/config.yaml",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.config = args[0]
			}
			return a.checkConfig(checkJSON)
		},
	}
	show := &cobra.Command{
		Use: "print", Short: "print every value and where it came from",
		Long: `Print prints every value and where it came from, in the form of a file. Values
of headers are secrets, and are not shown.`,
		Example: "  tpotscope config print --set nvml.period=200ms",
		RunE:    func(*cobra.Command, []string) error { return a.printConfig(printJSON) },
	}
	check.Flags().BoolVar(&checkJSON, "json", false, "print the outcome as JSON (schema "+configSchema+")")
	show.Flags().BoolVar(&printJSON, "json", false, "print as JSON (schema "+configSchema+")")
	cmd.AddCommand(check, show)
	for _, c := range cmd.Commands() {
		if c.Args == nil {
			c.Args = none
		}
		c.Args = usageArgs(c.Args)
	}
	return cmd
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: "check", Short: "print the version", Example: "  tpotscope version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.out, "tpotscope %s, %s, %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
