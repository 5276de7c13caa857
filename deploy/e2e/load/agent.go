package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"

	"github.com/goccy/go-yaml"

	"github.com/tpotscope/tpotscope/agent"
)

// Variables that make this program play the agent, for a profile.
const (
	envAgent   = "TPOTSCOPE_LOAD_AGENT"   // its configuration
	envProfile = "TPOTSCOPE_LOAD_PROFILE" // where the profile goes
)

// runAgent runs the agent's own code in this process until it is asked to end, under the CPU profiler.
func runAgent(config, profile string) error {
	b, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	cfg := agent.DefaultConfig()
	if err := yaml.Unmarshal(b, &cfg); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	cfg.Version = "load"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a, err := agent.New(ctx, cfg, agent.Deps{Simulated: true}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	cpu, err := os.Create(profile)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return fmt.Errorf("start the profile: %w", err)
	}
	stopHeap := context.AfterFunc(ctx, func() { _ = writeHeap(profile + ".heap") }) // while everything is still held
	defer stopHeap()
	err = a.Run(ctx)
	pprof.StopCPUProfile()
	if errClose := cpu.Close(); err == nil {
		err = errClose
	}
	return err
}

func writeHeap(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	runtime.GC()
	if err := pprof.Lookup("allocs").WriteTo(f, 0); err != nil {
		return err
	}
	return f.Close()
}
