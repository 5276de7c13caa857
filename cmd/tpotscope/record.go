package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
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
		Use: "record [flags] [-- CMD...]", GroupID: "ask", Short: "record while a command runs, then report", Args: cobra.ArbitraryArgs,
		Long: `Record finds the engine, samples GPUs, engine and host while CMD runs (or until
--for or Ctrl-C), and then reports. CMD's input, output, user and exit code are
its own: with a CMD the report goes to standard error. Without one, record exits
with 3 if nothing was recorded that a report could tell of. With --slo it exits
as report does, and with a CMD only where that exits with 0.

With --listen a proxy stamps the tokens of requests that go through it, and CMD
gets its address as OPENAI_BASE_URL.`,
		Example: `  tpotscope record -- vllm bench serve --model M --num-prompts 200
  tpotscope record --listen 127.0.0.1:8001 --upstream http://127.0.0.1:8000 \
    -- python my_client.py
  tpotscope record --for 60s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(positive(cmd, "for"), o.objective()); err != nil {
				return err
			}
			return a.record(cmd.Context(), &o, args)
		},
	}
	o.register(cmd)
	fl := cmd.Flags()
	fl.StringVarP(&o.dir, "output", "o", "", "directory of the recording (default: by time, below the state directory)")
	fl.StringVar(&o.engine, "engine", "", "base URL of the engine (default: whoever answers on the usual local ports)")
	fl.StringVar(&o.nvmlSource, "nvml", "", nvmlHelp())
	fl.StringVar(&o.listen, "listen", "", "HOST:PORT of a proxy for the time of the recording")
	fl.StringVar(&o.upstream, "upstream", "", "engine that the proxy sends to (default: the engine)")
	fl.StringVar(&o.model, "model", "", "model, where the engine does not tell")
	fl.StringVar(&o.dtype, "dtype", "", "number format of the weights, where the engine does not tell")
	fl.DurationVar(&o.length, "for", 0, "end after this long")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "do not report at the end")
	return cmd
}

// record runs an agent of its own around a command. With a command, the exit code is the command's.
func (a *app) record(ctx context.Context, o *recordOptions, command []string) error {
	if err := findCommand(command); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "tpotscope-record-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // a leftover in the temporary directory harms nobody
	cfg, err := a.recordConfig(ctx, o, temp)
	if err != nil {
		return err
	}
	code, ran, err := a.recordAround(ctx, cfg, o, command)
	if err != nil && (len(command) == 0 || !ran) {
		return err
	}
	if err != nil {
		a.say("tpotscope: the recording ended early: %v\n", err)
	}
	err = a.reportRecording(context.WithoutCancel(ctx), cfg.Record.Dir, o, len(command) > 0)
	var status *exitStatus
	switch {
	case len(command) == 0:
		return err
	case err != nil && (!errors.As(err, &status) || status.err != nil):
		a.say("tpotscope: %v\n", err)
	}
	if code == 0 && len(o.slo) > 0 && status != nil {
		code = status.code // what became of the objectives, which the command itself knows nothing of
	}
	if code != 0 {
		return &exitStatus{code: code}
	}
	return nil
}

// findCommand makes sure that there is a program of that name, before anything is recorded.
func findCommand(command []string) error {
	if len(command) == 0 {
		return nil
	}
	_, err := exec.LookPath(command[0])
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return &exitStatus{exitCannotRun, fmt.Errorf("run %s: it is not executable", command[0])}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &exitStatus{exitNotFound, fmt.Errorf("run %s: there is no such command; nothing was recorded", command[0])}
	}
	return &exitStatus{exitCannotRun, fmt.Errorf("run %s: %w", command[0], err)}
}

// recordAround records until the command has ended, or the time is up. It returns the command's exit code, and whether
// the command was run at all. A recording that ends early does not end the command.
func (a *app) recordAround(ctx context.Context, cfg agent.Config, o *recordOptions, command []string) (int, bool, error) {
	ready := make(chan agent.Doors, 1)
	deps := a.agentDeps()
	deps.Ready = func(d agent.Doors) {
		a.say("recording to %s\n", cfg.Record.Dir)
		ready <- d
	}
	ag, err := agent.New(ctx, cfg, deps, a.quietLog())
	if err != nil {
		return 0, false, err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	var g errgroup.Group
	code, ran := 0, false
	g.Go(func() error { defer close(ended); return ag.Run(run) })
	g.Go(func() error {
		defer stop()
		select {
		case d := <-ready:
			ran = true
			code = a.during(ctx, o, command, d, ended)
		case <-ended:
		case <-run.Done():
		}
		return nil
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return code, ran, err
}

// reportRecording reports, unless that is not wanted. Beside a command it goes to standard error, and that the report has
// nothing to tell of is not the command's fault. Without one it is the outcome, shown or not.
func (a *app) reportRecording(ctx context.Context, dir string, o *recordOptions, beside bool) error {
	shown := *a
	switch {
	case o.quiet && beside && o.html == "":
		_, err := record.OpenReader(dir)
		return err
	case o.quiet:
		shown.out = io.Discard
	case beside:
		shown.out = a.err
	}
	err := shown.printReport(ctx, dir, &o.reportFlags)
	var status *exitStatus
	if beside && len(o.slo) == 0 && errors.As(err, &status) && status.code == exitEvidence {
		return nil
	}
	return err
}

// recordConfig is an agent's configuration for one recording: no doors but the proxy, no ways out, and a directory of
// its own, so that the agent of this node may run beside it.
func (a *app) recordConfig(ctx context.Context, o *recordOptions, temp string) (agent.Config, error) {
	cfg, err := a.load(map[string]string{"nvml.source": o.nvmlSource})
	if err != nil {
		return cfg, err
	}
	if o.dir == "" {
		if err := needState(cfg.StateDir); err != nil {
			return cfg, err
		}
		o.dir = freshRun(cfg.StateDir, "")
	}
	if holdsRecording(o.dir) {
		return cfg, &exitStatus{exitUsage, fmt.Errorf("%s holds a recording already: name another directory with -o", o.dir)}
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return cfg, fmt.Errorf("place the recording: %w", err)
	}
	cfg.Record.Enabled, cfg.Record.Dir = true, o.dir
	cfg.Metrics.Listen, cfg.OTLP.Disabled = "", true
	cfg.Socket = filepath.Join(temp, "agent.sock") // its path must be short
	if len(cfg.Targets) == 0 || o.engine != "" {
		cfg.Targets = a.findTarget(ctx, o)
	} else if len(cfg.Targets) == 1 {
		t := &cfg.Targets[0]
		t.Model, t.DType = cmp.Or(o.model, t.Model), cmp.Or(o.dtype, t.DType)
	}
	if o.dtype != "" {
		if _, err := hardware.LookupDType(o.dtype); err != nil {
			return cfg, &exitStatus{exitUsage, fmt.Errorf("--dtype: %w", err)}
		}
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

// during waits for the command, the time or the interrupt, and returns the command's exit code. Without a command it
// also ends with the recording.
func (a *app) during(ctx context.Context, o *recordOptions, command []string, d agent.Doors, ended <-chan struct{}) int {
	if o.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.length)
		defer cancel()
	}
	if len(command) == 0 {
		if o.length == 0 {
			a.say("press Ctrl-C to stop and report\n")
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
		return 0
	}
	code := a.runChild(ctx, command, d)
	time.Sleep(tail)
	return code
}

// runChild runs the command with this process's own streams. When the end is asked for, the command is asked in the
// same way, and waited for.
func (a *app) runChild(ctx context.Context, command []string, d agent.Doors) int {
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
		return 0
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return interruptCodes + int(status.Signal())
		}
		return exit.ExitCode()
	case ctx.Err() != nil:
		return exitInterrupt
	}
	a.say("tpotscope: run %s: %v\n", command[0], err)
	return exitCannotRun
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
