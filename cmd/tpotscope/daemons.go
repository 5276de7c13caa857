package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/ingest"
	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func (a *app) agentCommand() *cobra.Command {
	var engine, nvmlSource, listen, upstream string
	cmd := &cobra.Command{
		Use: "agent", GroupID: "run", Short: "the node daemon: counters, engines, probes in; series, spans out",
		Long: `Agent samples this node's GPUs through its helper, reads the engines' own
metrics, takes what probes report on its socket, and sends correlated series and
spans out.

On 127.0.0.1:19400, unless told otherwise (metrics.listen), it serves
  /metrics   series, for Prometheus
  /healthz   its state and what is missing, as JSON; 200 while it runs
  /readyz    200 once it serves

Nothing leaves the node until an OTLP endpoint is set (otlp.endpoint.url, or
OTEL_EXPORTER_OTLP_ENDPOINT).`,
		Example: `  tpotscope agent --engine http://127.0.0.1:8000
  tpotscope agent --config /etc/tpotscope/config.yaml
  tpotscope agent --engine http://127.0.0.1:8000 --listen 127.0.0.1:8001 \
    --upstream http://127.0.0.1:8000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(map[string]string{"nvml.source": nvmlSource, "proxy.listen": listen, "proxy.upstream": upstream})
			if err != nil {
				return err
			}
			if engine != "" {
				cfg.Targets = []timeline.Target{{Name: "default", EngineURL: engine}}
				if err := cfg.Validate(); err != nil {
					return &exitStatus{exitUsage, fmt.Errorf("--engine: %w", err)}
				}
			}
			if err := cfg.CheckStateDir(); err != nil {
				return &exitStatus{exitUsage, fmt.Errorf("configuration: %w", err)}
			}
			ag, err := agent.New(cmd.Context(), cfg, a.agentDeps(), a.log)
			if err != nil {
				return err
			}
			return ag.Run(cmd.Context())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&engine, "engine", "", "base URL of the engine, instead of the targets of the configuration")
	fl.StringVar(&nvmlSource, "nvml", "", nvmlHelp())
	fl.StringVar(&listen, "listen", "", "HOST:PORT of the proxy inside the agent")
	fl.StringVar(&upstream, "upstream", "", "engine that the proxy sends to")
	return cmd
}

// agentDeps are what a production agent is given.
func (a *app) agentDeps() agent.Deps {
	return agent.Deps{
		HelperDir: programDir(),
		Ready: func(d agent.Doors) {
			a.log.Info("agent ready", slog.String("metrics", d.Metrics), slog.String("proxy", d.Proxy), slog.String("socket", d.Socket))
		},
	}
}

func (a *app) proxyCommand() *cobra.Command {
	cfg := relay.DefaultConfig()
	var to string
	cmd := &cobra.Command{
		Use: "proxy --listen HOST:PORT --upstream URL", GroupID: "run", Short: "the client probe: a byte-exact relay that stamps tokens",
		Long: `Proxy relays OpenAI-compatible requests to an engine and stamps each event of
the reply, with the kernel's receive time where the socket gives it. What the
client receives is what the engine sent. It reports to the agent on this node;
without one it says so, and relays all the same. Prompts and completions are
neither stored nor logged nor sent.`,
		Example: `  tpotscope proxy --listen 127.0.0.1:8001 --upstream http://127.0.0.1:8000
  OPENAI_BASE_URL=http://127.0.0.1:8001/v1 python my_client.py`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needFlags(cmd, "listen", "upstream"); err != nil {
				return err
			}
			whole, err := a.load(nil)
			if err != nil {
				return err
			}
			if to == "" {
				if err := needSocket(&whole); err != nil {
					return fmt.Errorf("%w, or name the agent with --agent", err)
				}
				to = "unix:" + whole.Socket
			}
			if err := cfg.Validate(); err != nil {
				return usage(cmd, err)
			}
			if agent.Loops(cfg.Listen, cfg.Upstream) {
				return usage(cmd, fmt.Errorf("--upstream: %s is the proxy's own address", cfg.Listen))
			}
			return a.runProxy(cmd.Context(), cfg, to)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&cfg.Listen, "listen", "", "HOST:PORT to listen on")
	fl.StringVar(&cfg.Upstream, "upstream", "", "http or https base URL of the engine")
	fl.StringVar(&cfg.Target, "target", "", "name of the agent's target these requests belong to")
	fl.StringVar(&to, "agent", "", "where to report: unix:PATH or http(s)://HOST:PORT (default: this node's agent)")
	fl.StringVar(&cfg.CAFile, "upstream-ca", "", "PEM file of authorities to trust for the upstream, instead of the system's")
	fl.BoolVar(&cfg.Insecure, "upstream-insecure", false, "do not verify the upstream's certificate")
	fl.BoolVar(&cfg.InjectUsage, "inject-usage", false, "ask the engine for its final token count where a client did not, and take the extra event out of the reply (llama.cpp's timings go with it)")
	fl.DurationVar(&cfg.HeadTimeout, "head-timeout", cfg.HeadTimeout, "longest wait for a reply to begin; 0 waits for ever")
	fl.DurationVar(&cfg.StreamTimeout, "stream-timeout", cfg.StreamTimeout, "longest pause within a reply; 0 waits for ever")
	return cmd
}

// runProxy relays until ctx ends and then says what was seen.
func (a *app) runProxy(ctx context.Context, cfg relay.Config, to string) error {
	clock, err := hostclock.New()
	if err != nil {
		return fmt.Errorf("read clocks: %w", err)
	}
	cc := ingest.DefaultClientConfig()
	cc.URL, cc.Source, cc.BootID, cc.Now = to, "proxy", clock.BootID(), clock.Now
	cc.Process = strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(int64(clock.Now()), 36)
	client, err := ingest.NewClient(cc)
	if err != nil {
		return err
	}
	r, err := relay.New(cfg, clock, client, nil, a.log)
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		r.Close()
		return fmt.Errorf("open proxy: %w", err)
	}
	report, stopReport := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReport()
	var g errgroup.Group
	g.Go(func() error {
		defer stopReport() // requests that end with the relay are still reported
		return r.Serve(ctx, ln)
	})
	g.Go(func() error { return a.watchAgent(report, to) })
	var unreported error
	g.Go(func() error {
		if err := client.Run(report); err != nil && !errors.Is(err, context.Canceled) {
			unreported = err
		}
		return nil
	})
	err = g.Wait()
	a.sayProxy(r.Stats(), client, unreported)
	return err
}

// lookForAgent is how often a proxy looks for an agent that is not there.
const lookForAgent = 2 * time.Second

// watchAgent says that nobody takes the reports, and says when somebody does, until ctx ends.
func (a *app) watchAgent(ctx context.Context, to string) error {
	if answers(ctx, to) {
		return nil
	}
	a.log.Warn("no agent takes reports: requests are relayed, and what is observed waits for one, as far as there is room", slog.String("agent", to))
	tick := time.NewTicker(lookForAgent)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if answers(ctx, to) {
			a.log.Info("an agent is there: it takes the reports", slog.String("agent", to))
			return nil
		}
	}
}

// answers reports whether somebody listens where an agent is expected.
func answers(ctx context.Context, to string) bool {
	network, address := "unix", strings.TrimPrefix(to, "unix:")
	if u, err := url.Parse(to); err == nil && u.Host != "" {
		network, address = "tcp", u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), u.Scheme) // a port may be named
		}
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return false
	}
	_ = conn.Close() // only asked whether somebody answers
	return true
}

// sayProxy prints what the relay saw.
func (a *app) sayProxy(st relay.Stats, client *ingest.Client, unreported error) {
	total, events := uint64(0), uint64(0)
	for _, n := range st.Requests {
		total += n
	}
	for _, n := range st.Events {
		events += n
	}
	a.say("%d requests observed, %d passed unobserved, %d token events", total, st.Passed, events)
	if events > 0 {
		a.say(" (%.1f %% of them kernel-stamped, %.1f %% shared a read)",
			100*float64(st.Events[timeline.StampKernel])/float64(events), 100*float64(st.Coalesced)/float64(events))
	}
	tokens, requests := client.Dropped()
	switch {
	case tokens+requests > 0:
		a.say("; not reported: %d token events and %d records that found no room", tokens, requests)
		if unreported != nil {
			a.say(", and what waited at the end (%v)", unreported)
		}
	case unreported != nil:
		a.say("; not reported: what waited at the end (%v)", unreported)
	}
	a.say("; held p50 %v, p99 %v\n", st.Hold.Quantile(0.5).Round(time.Microsecond), st.Hold.Quantile(0.99).Round(time.Microsecond))
}
