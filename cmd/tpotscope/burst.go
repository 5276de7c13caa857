package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent/burst"
)

func (a *app) burstCommand() *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use: "burst", GroupID: "run", Short: "have the running agent read clocks at the highest rate for a while",
		Long: `Burst asks the agent that runs on this host, through its socket, to read clocks
and the reasons that hold them at the highest rate for a while: throttling that
comes and goes within a tenth of a second shows then. One burst runs at a time.

The agent begins one by itself, for 30 s and at most once in five minutes, when
throttling begins, when tokens come slower, and at an error that the driver
tells. nvml.burst says who may begin one: auto, manual or off.`,
		Example: `  tpotscope burst
  tpotscope burst --for 10s`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length < burst.Min || length > burst.Max {
				return &exitStatus{exitUsage, fmt.Errorf("--for: %v: %w", length, burst.ErrLength)}
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			if err := needSocket(&cfg); err != nil {
				return err
			}
			if err := burst.Ask(cmd.Context(), cfg.Socket, length); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "The agent reads clocks at the highest rate for %v.\n", length)
			return err
		},
	}
	cmd.Flags().DurationVar(&length, "for", 30*time.Second, "how long: 1s to 1m")
	return cmd
}
