package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// site is the agent and what it is told.
type site struct {
	dir     string
	world   sim.Waves
	page    *sim.Page
	url     string // of engines and receiver
	o       options
	metrics string // address of the agent's metrics
}

func (s *site) socket() string { return filepath.Join(s.dir, "agent.sock") }

// config writes the agent's configuration: the defaults, but for where things are.
func (s *site) config() (string, error) {
	type object = map[string]any
	targets := make([]object, 0, s.o.gpus)
	for i, g := range s.world.GPUs()[:s.o.gpus] {
		targets = append(targets, object{
			"name": targetName(i), "engine_url": fmt.Sprintf("%s/engine/%d", s.url, i), "gpus": []string{g.UUID},
			"model": "meta-llama/Llama-3.1-8B-Instruct", "dtype": "bf16",
		})
	}
	config := object{
		"state_dir": filepath.Join(s.dir, "state"), "socket": s.socket(), "targets": targets,
		"nvml":    object{"driver_library": filepath.Join(s.o.bin, "nvmlsim", "libnvidia-ml.so.1"), "helper": filepath.Join(s.o.bin, remote.HelperName)},
		"metrics": object{"listen": s.metrics},
		"otlp":    object{"endpoint": object{"url": s.url}},
	}
	if s.o.soak {
		config["record"] = object{"max_bytes": soakBytes}
	}
	b, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	path := filepath.Join(s.dir, "config.yaml")
	return path, os.WriteFile(path, b, 0o600)
}

// start starts the agent: the real binary, or this program in its place if a profile is asked for.
func (s *site) start(ctx context.Context) (*process, error) {
	var err error
	if s.metrics, err = freePort(ctx); err != nil {
		return nil, err
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	env := []string{sim.EnvPage + "=" + filepath.Join(s.dir, "nvml.page")}
	if s.o.profile != "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		profile, err := filepath.Abs(s.o.profile)
		if err != nil {
			return nil, err
		}
		return start(ctx, s.o.verbose, append(env, envAgent+"="+config, envProfile+"="+profile), self)
	}
	args := []string{"agent", "--config", config}
	for _, kv := range s.o.set {
		args = append(args, "--set", kv)
	}
	return start(ctx, s.o.verbose, env, filepath.Join(s.o.bin, "tpotscope"), args...)
}

// run runs the agent under load and measures it.
func (s *site) run(ctx context.Context, clock *hostclock.Clock, traffic *traffic) (*result, error) {
	p, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	if err := p.answering(ctx, s.socket()); err != nil {
		return nil, err
	}
	reporting, stopReporting := context.WithCancel(ctx)
	defer stopReporting()
	sources := 1
	if s.o.soak {
		sources = soakSources
	}
	reporters, err := newReporters(reporting, s, clock, strconv.Itoa(os.Getpid()), sources)
	if err != nil {
		return nil, err
	}
	res := &result{o: s.o}
	playing, stop := context.WithTimeout(ctx, s.o.warmup+s.o.over)
	defer stop()
	g, _ := errgroup.WithContext(reporting)
	if s.o.soak {
		g.Go(func() error { return disturb(playing, s.o, s.page, reporters, traffic) })
	}
	g.Go(func() error { return scrapeEvery(playing, "http://"+s.metrics+"/metrics", 15*time.Second) })
	g.Go(func() error { return res.watch(playing, p) })
	g.Go(func() error {
		traffic.play(playing, reporters)
		return nil
	})
	if err := errors.Join(g.Wait(), reporters.stopAll()); err != nil { // they send what is left
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	res.tokens = traffic.sent()
	res.lostByClient, res.requests, res.reporters, res.left = reporters.dropped, traffic.refs, reporters.made, reporters.left
	for i := range traffic.engines {
		res.restarts += traffic.engines[i].restarts()
	}
	if err := res.ask(ctx, "http://"+s.metrics); err != nil {
		return nil, err
	}
	res.log = p.stop()
	return res, res.read(filepath.Join(s.dir, "state", "recordings", "agent"))
}

// read counts what the agent's recording holds.
func (r *result) read(dir string) error {
	var err error
	if r.recorded, err = sizes(dir); err != nil {
		return fmt.Errorf("read the recording: %w", err)
	}
	if r.segments = segmentsOf(dir); r.o.soak {
		return nil // what was recorded first is gone
	}
	recording, err := record.OpenReader(dir)
	if err != nil {
		return err
	}
	for _, err := range recording.Tokens() {
		if err != nil {
			return fmt.Errorf("read the recording: %w", err)
		}
		r.recordedTokens++
	}
	return nil
}

// scrapeEvery reads the agent's metrics as a Prometheus would.
func scrapeEvery(ctx context.Context, url string, period time.Duration) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := get(ctx, url); err != nil && ctx.Err() == nil {
				return fmt.Errorf("scrape the agent: %w", err)
			}
		}
	}
}

// ask takes what the agent itself says at the end.
func (r *result) ask(ctx context.Context, url string) error {
	b, err := get(ctx, url+"/healthz")
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	if err := json.Unmarshal(b, &r.health); err != nil {
		return fmt.Errorf("read health: %w", err)
	}
	if b, err = get(ctx, url+"/metrics"); err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, "{")
		value := line[strings.LastIndexByte(line, ' ')+1:]
		if strings.Contains(name, "drop") && !strings.HasPrefix(line, "#") && strings.TrimSpace(value) != "0" {
			r.dropSeries = append(r.dropSeries, strings.TrimSpace(line))
		}
	}
	return nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	return readAll(resp.Body)
}
