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
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK         = 0
	exitError      = 1
	exitUsage      = 2
	exitEvidence   = 3   // not enough evidence to say anything
	exitNegative   = 4   // a negative verdict
	exitChange     = 10  // a significant change
	exitCannotRun  = 126 // CMD is there and cannot be run, as shells have it
	exitNotFound   = 127 // CMD is not there
	exitInterrupt  = 130
	interruptCodes = 128
)

func main() {
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as it is below nohup
		ends = append(ends, syscall.SIGHUP)
	}
	term, stopTerm := signal.NotifyContext(context.Background(), ends...)
	// Libraries that log by themselves are not heard: net/http quotes what an upstream sent unasked, which is content.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(term, os.Interrupt)
	context.AfterFunc(ctx, func() { signal.Reset(append(ends, os.Interrupt)...) }) // a second signal ends the command at once
	env := environment{lookup: os.LookupEnv, names: variableNames, root: os.Geteuid() == 0, terminated: func() bool { return term.Err() != nil }}
	code := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, env)
	stop()
	stopTerm()
	os.Exit(code)
}

// variableNames are those of the process's environment, in order.
func variableNames() []string {
	var names []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
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
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // what it was about then is of no interest
		a.say("tpotscope: interrupted\n")
		if env.terminated != nil && env.terminated() {
			return interruptCodes + int(syscall.SIGTERM)
		}
		return exitInterrupt
	}
	a.say("tpotscope: %v\n", err)
	return exitError
}

const longHelp = `tpotscope tells why the time per output token (TPOT) of an LLM server on a GPU
node is what it is.

It samples the GPU's counters, takes the token timestamps of real requests, puts
both on one clock, says what bounded decode and how sure that is, and sends the
correlated series and spans to OpenTelemetry and Prometheus.

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
	flags.StringVar(&a.config, "config", "", "configuration file (default: "+configVariable+", else "+defaultConfigFile+" if there is one)")
	flags.StringArrayVar(&a.set, "set", nil, "set one configuration value, as in --set nvml.period=200ms")
	flags.StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	root.AddGroup(
		&cobra.Group{ID: "ask", Title: "Ask:"}, &cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "check", Title: "Check:"}, &cobra.Group{ID: "data", Title: "Data:"},
	)
	root.AddCommand(a.commands()...)
	for _, c := range root.Commands() {
		if c.Args == nil {
			c.Args = none
		}
		c.Args = usageArgs(c.Args)
	}
	root.SetHelpCommand(helpCommand())
	wrapHelp(root)
	return root
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
