package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// tail is how long recording goes on after the command ended, so that the window that its last token lies in is whole.
const tail = 300 * time.Millisecond

// recordOptions are the flags of record.
type recordOptions struct {
	reportFlags
	dir, engine, nvmlSource, listen, upstream string
	model, dtype                              string
	length                                    time.Duration
	quiet                                     bool
}

func (a *app) recordCommand() *cobra.Command {
	var o recordOptions
	cmd := &cobra.Command{
		Use: "record [-- CMD...]", GroupID: "ask", Short: "record while a command runs, then report", Args: cobra.ArbitraryArgs,
		Long: `Record finds the engine, samples GPUs, engine and host while CMD runs (or until --for or Ctrl-C), and then reports. CMD's
input, output, user and exit code are its own: with a CMD the report goes to standard error. With --listen a proxy stamps the tokens of requests that go through it, and CMD gets
its address as OPENAI_BASE_URL.`,
		Example: `  tpotscope record -- vllm bench serve --model M --num-prompts 200
  tpotscope record --listen 127.0.0.1:8001 --upstream http://127.0.0.1:8000 -- python my_client.py
  tpotscope record --for 60s`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.record(cmd.Context(), &o, args) },
	}
	o.register(cmd)
	fl := cmd.Flags()
	fl.StringVarP(&o.dir, "output", "o", "", "directory of the recording (default: by time, below the state directory)")
	fl.StringVar(&o.engine, "engine", "", "base URL of the engine (default: whoever answers on the usual local ports)")
	fl.StringVar(&o.nvmlSource, "nvml", "", "where counters come from: helper, off, or sim:NAME")
	fl.StringVar(&o.listen, "listen", "", "HOST:PORT of a proxy for the time of the recording")
	fl.StringVar(&o.upstream, "upstream", "", "engine that the proxy sends to (default: the engine)")
	fl.StringVar(&o.model, "model", "", "model, where the engine does not tell")
	fl.StringVar(&o.dtype, "dtype", "", "number format of the weights, where the engine does not tell")
	fl.DurationVar(&o.length, "for", 0, "end after this long")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "do not report at the end")
	return cmd
}

// record runs an agent of its own around a command.
func (a *app) record(ctx context.Context, o *recordOptions, command []string) error {
	temp, err := os.MkdirTemp("", "tpotscope-record-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // a leftover in the temporary directory harms nobody
	cfg, err := a.recordConfig(ctx, o, temp)
	if err != nil {
		return err
	}
	a.say("recording to %s\n", cfg.Record.Dir)
	ready := make(chan agent.Doors, 1)
	deps := a.agentDeps()
	deps.Ready = func(d agent.Doors) { ready <- d }
	ag, err := agent.New(ctx, cfg, deps, a.quietLog())
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	var code int
	g.Go(func() error { defer stop(); return ag.Run(run) })
	g.Go(func() error {
		defer stop()
		select {
		case d := <-ready:
			var err error
			code, err = a.during(run, o, command, d)
			return err
		case <-run.Done():
			return nil
		}
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if !o.quiet {
		// An interrupt ends the recording, not the report of it.
		shown := *a
		if len(command) > 0 {
			shown.out = a.err // standard output is the command's
		}
		if err := shown.printReport(context.WithoutCancel(ctx), cfg.Record.Dir, &o.reportFlags); err != nil && code == 0 {
			return err
		}
	}
	if code != 0 {
		return &exitStatus{code: code}
	}
	return nil
}

// recordConfig is an agent's configuration for one recording: no doors but the proxy, no ways out, and a directory of
// its own, so that the agent of this node may run beside it.
func (a *app) recordConfig(ctx context.Context, o *recordOptions, temp string) (agent.Config, error) {
	cfg, err := a.load(map[string]string{"nvml.source": o.nvmlSource})
	if err != nil {
		return cfg, err
	}
	if o.dir == "" {
		o.dir = freshRun(cfg.StateDir, "")
	}
	if holdsRecording(o.dir) {
		return cfg, &exitStatus{exitUsage, fmt.Errorf("%s holds a recording already: name another directory with -o", o.dir)}
	}
	cfg.Record.Enabled, cfg.Record.Dir = true, o.dir
	cfg.Metrics.Listen, cfg.OTLP.Disabled = "", true
	cfg.Socket = filepath.Join(temp, "agent.sock") // its path must be short
	if len(cfg.Targets) == 0 || o.engine != "" {
		cfg.Targets = a.findTarget(ctx, o)
	}
	cfg.Proxy.Listen, cfg.Proxy.Upstream, cfg.Proxy.Target = "", "", ""
	if o.listen != "" {
		if o.upstream == "" && len(cfg.Targets) > 0 {
			o.upstream = cfg.Targets[0].EngineURL
		}
		cfg.Proxy.Listen, cfg.Proxy.Upstream = o.listen, o.upstream
	} else if o.upstream != "" {
		return cfg, &exitStatus{exitUsage, errors.New("--upstream needs --listen")}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, &exitStatus{exitUsage, err}
	}
	return cfg, nil
}

// findTarget returns the engine that was named or that answers on a usual port.
func (a *app) findTarget(ctx context.Context, o *recordOptions) []timeline.Target {
	target := timeline.Target{Name: "default", EngineURL: o.engine, Model: o.model, DType: o.dtype}
	switch {
	case target.EngineURL == "" && o.upstream != "":
		target.EngineURL = o.upstream
	case target.EngineURL == "":
		found := doctor.FindEngines(ctx, doctor.UsualEngines())
		if len(found) == 0 {
			a.say("no engine tells its metrics on the usual local ports: recording without; name one with --engine\n")
			return nil
		}
		target.EngineURL = found[0].URL
		a.say("engine: %s at %s\n", strings.TrimSpace(found[0].Kind+" "+found[0].Model), found[0].URL)
	}
	return []timeline.Target{target}
}

// quietLog logs warnings only: the terminal is the command's.
func (a *app) quietLog() *slog.Logger {
	level := slog.LevelWarn
	if a.logLevel == "debug" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
}

// during waits for the command, the time or the interrupt, and returns the command's exit code.
func (a *app) during(ctx context.Context, o *recordOptions, command []string, d agent.Doors) (int, error) {
	if o.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.length)
		defer cancel()
	}
	if len(command) == 0 {
		if o.length == 0 {
			a.say("press Ctrl-C to stop and report\n")
		}
		<-ctx.Done()
		return 0, nil
	}
	code, err := a.runChild(ctx, command, d)
	time.Sleep(tail)
	return code, err
}

// runChild runs the command with this process's own streams. When the end is asked for, the command is asked in the
// same way, and waited for.
func (a *app) runChild(ctx context.Context, command []string, d agent.Doors) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	cmd.Env = os.Environ()
	if d.Proxy != "" {
		cmd.Env = append(cmd.Env, "OPENAI_BASE_URL=http://"+loopback(d.Proxy)+"/v1", "OPENAI_API_BASE=http://"+loopback(d.Proxy)+"/v1")
	}
	cmd.Env = append(cmd.Env, "TPOTSCOPE_SOCKET="+d.Socket)
	cmd.Cancel = func() error { return a.askToEnd(ctx, cmd.Process) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return interruptCodes + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	case ctx.Err() != nil:
		return exitInterrupt, nil //nolint:nilerr // the interrupt is the reason, and it is in the code
	}
	return exitError, fmt.Errorf("run %s: %w", command[0], err)
}

// askToEnd passes on to a command why this process ends. An interrupt from the terminal has reached the command by
// itself: another would cut short what it does about the first.
func (a *app) askToEnd(ctx context.Context, p *os.Process) error {
	timeUp := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if timeUp || a.env.terminated == nil || a.env.terminated() {
		return p.Signal(syscall.SIGTERM)
	}
	if _, terminal := terminalOf(a.in); terminal {
		return nil
	}
	return p.Signal(os.Interrupt)
}

// loopback replaces an address that means every interface with one that can be dialled.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}
