// Command tpotscope tells why the time per output token of an LLM server on a GPU node is what it is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK         = 0
	exitError      = 1
	exitUsage      = 2
	exitEvidence   = 3 // not enough evidence to say anything
	exitNegative   = 4 // a negative verdict
	exitInterrupt  = 130
	interruptCodes = 128
)

func main() {
	term, stopTerm := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, stop := signal.NotifyContext(term, os.Interrupt)
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) }) // a second signal ends the command at once
	env := environment{lookup: os.LookupEnv, root: os.Geteuid() == 0, terminated: func() bool { return term.Err() != nil }}
	code := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, env)
	stop()
	stopTerm()
	os.Exit(code)
}

// streams are the command's own.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// exitStatus is an error that asks for an exit code of its own. Its message may be empty: then nothing is printed.
type exitStatus struct {
	code int
	err  error
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitStatus) Unwrap() error { return e.err }

// app is what every subcommand shares.
type app struct {
	streams
	env      environment
	config   string
	set      []string
	logLevel string
	log      *slog.Logger
}

// run is the whole command but for the process around it.
func run(ctx context.Context, args []string, s streams, env environment) int {
	a := &app{streams: s, env: env}
	root := a.root()                          //nolint:contextcheck // cobra hands the context to each command when it runs
	root.SetArgs(append([]string{}, args...)) // nil would stand for the process's own
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	err := root.ExecuteContext(ctx)
	var status *exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		if status.err != nil {
			a.say("tpotscope: %v\n", status.err)
		}
		return status.code
	}
	a.say("tpotscope: %v\n", err)
	return exitError
}

const longHelp = `tpotscope tells why the time per output token (TPOT) of an LLM server on a GPU node is what it is.

It samples the GPU's counters, takes the token timestamps of real requests, puts both on one clock, says what bounded
decode and how sure that is, and sends the correlated series and spans to OpenTelemetry and Prometheus.

Start with: tpotscope doctor`

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "tpotscope", Short: "why the time per output token is what it is", Long: longHelp,
		SilenceErrors: true, SilenceUsage: true, Version: version,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.openLog() },
		Args:              cobra.ArbitraryArgs,
		RunE:              groupOnly,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.config, "config", "", "configuration file (default "+defaultConfigFile+" if there is one)")
	flags.StringArrayVar(&a.set, "set", nil, "set one configuration value, as in --set nvml.period=200ms")
	flags.StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	root.AddGroup(
		&cobra.Group{ID: "ask", Title: "Ask:"}, &cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "check", Title: "Check:"}, &cobra.Group{ID: "data", Title: "Data:"},
	)
	root.AddCommand(a.commands()...)
	for _, c := range root.Commands() {
		if c.Args == nil {
			c.Args = cobra.NoArgs
		}
		c.Args = usageArgs(c.Args)
	}
	return root
}

// usage marks an error as one of usage and points to the help.
func usage(cmd *cobra.Command, err error) error {
	return &exitStatus{exitUsage, fmt.Errorf("%w\nsee: %s --help", err, cmd.CommandPath())}
}

func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(cmd, err)
		}
		return nil
	}
}

var unknownFlag = regexp.MustCompile(`^unknown flag: --(\S+)$`)

// flagError adds the nearest flag to a complaint about an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(m[1], names); near != "" {
			err = fmt.Errorf("%w (did you mean --%s?)", err, near)
		}
	}
	return usage(cmd, err)
}

// needFlags returns an error of usage if one of the flags was not given.
func needFlags(cmd *cobra.Command, names ...string) error {
	var missing []string
	for _, name := range names {
		if !cmd.Flags().Changed(name) {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		return usage(cmd, fmt.Errorf("%s needs %s", cmd.Name(), strings.Join(missing, " and ")))
	}
	return nil
}

// groupOnly is what a command does that only holds others.
func groupOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, unknownCommand(cmd, args[0]))
	}
	return cmd.Help()
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := nearest(name, names); near != "" {
		return fmt.Errorf("there is no command %q (did you mean %q?)", name, near)
	}
	return fmt.Errorf("there is no command %q", name)
}

// openLog makes the logger: text on standard error.
func (a *app) openLog() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return &exitStatus{exitUsage, fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", a.logLevel)}
	}
	a.log = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	return nil
}

// overrides returns the --set flags by key.
func (a *app) overrides() (map[string]string, error) {
	m := map[string]string{}
	for _, s := range a.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, &exitStatus{exitUsage, fmt.Errorf("--set: %q is not KEY=VALUE", s)}
		}
		m[key] = value
	}
	return m, nil
}
