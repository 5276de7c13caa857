package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// commands are all subcommands.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.recordCommand(), a.reportCommand(),
		a.agentCommand(), a.burstCommand(), a.proxyCommand(),
		a.doctorCommand(), a.configCommand(), a.demoCommand(),
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
}

func (f *reportFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.json, "json", false, "print the report as JSON (schema "+summary.Schema+")")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print everything, however long")
	fl.DurationVar(&f.warmup, "warmup", 0, "leave out what came this soon after the first reading")
	fl.StringVar(&f.target, "target", "", "report on this target alone")
}

func (a *app) reportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use: "report RUN", GroupID: "ask", Short: "what bounded decode in a recording, and how fast tokens came", Args: cobra.ExactArgs(1),
		Long: `Report replays a recording through the engine that judges live data and says what bounded decode, how sure that is
and what would refute it, with TTFT and TPOT over requests.

RUN is a directory, or @last, @prev or @NAME of the recordings below the state directory; @agent is the agent's own.`,
		Example: `  tpotscope report @last
  tpotscope report @last --since 20s --until 40s
  tpotscope report ./run1 --json | jq .tpot_s.p99`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			dir, err := findRun(cfg.StateDir, args[0])
			if err != nil {
				return &exitStatus{exitUsage, err}
			}
			return a.printReport(cmd.Context(), dir, &f)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&f.part.since, "since", "", "from here on: a duration since the start (-5m: before the end), 15:04:05, or RFC 3339")
	cmd.Flags().StringVar(&f.part.until, "until", "", "up to here")
	return cmd
}

// printReport builds and prints the report of the recording in dir.
func (a *app) printReport(ctx context.Context, dir string, f *reportFlags) error {
	bar := a.progress("replaying " + filepath.Base(dir))
	rep, err := buildReport(ctx, dir, f.part, summary.Config{Warmup: f.warmup, Target: f.target}, bar.at)
	bar.done()
	if err != nil {
		return err
	}
	if f.json {
		return report.JSON(a.out, rep)
	}
	if err := report.Text(a.out, rep, a.reportOptions(f.verbose)); err != nil {
		return err
	}
	if rep.Requests.Total == 0 && rep.Decode.Windows == 0 {
		return &exitStatus{exitEvidence, errors.New("not enough evidence: the recording holds neither requests nor counter windows")}
	}
	return nil
}

func (a *app) reportOptions(verbose bool) report.Options {
	width, terminal := a.terminal()
	return report.Options{Width: width, Color: terminal && a.env.get("NO_COLOR") == "", Verbose: verbose}
}

func (a *app) importCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "import FILE -o DIR", GroupID: "data", Short: "turn a file of another tool, or a scenario, into a recording", Args: cobra.ExactArgs(1),
		Long: `Import makes a recording of what it understands. It understands scenarios: files of tpotscope's own text format, or the
name of a shipped one. What comes of a scenario is marked as simulated everywhere.`,
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
	cmd := &cobra.Command{
		Use: "config", GroupID: "check", Short: "check or print the agent's configuration", Args: cobra.ArbitraryArgs, RunE: groupOnly,
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "check [FILE]", Short: "check a configuration file and say every fault at once", Args: cobra.MaximumNArgs(1),
			Example: "  tpotscope config check /etc/tpotscope/config.yaml",
			RunE: func(_ *cobra.Command, args []string) error {
				if len(args) == 1 {
					a.config = args[0]
				}
				if _, err := a.load(nil); err != nil {
					return err
				}
				_, err := fmt.Fprintln(a.out, "configuration is fine")
				return err
			},
		},
		&cobra.Command{
			Use: "print", Short: "print every value and where it came from", Args: cobra.NoArgs,
			Example: "  tpotscope config print --set nvml.period=200ms",
			RunE: func(*cobra.Command, []string) error {
				flags, err := a.overrides()
				if err != nil {
					return err
				}
				_, all, err := loadConfig(a.env, a.env.configFile(a.config), flags)
				if err != nil {
					return &exitStatus{exitUsage, fmt.Errorf("configuration: %w", err)}
				}
				return printSettings(a.out, all)
			},
		},
	)
	for _, c := range cmd.Commands() {
		c.Args = usageArgs(c.Args)
	}
	return cmd
}
