package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestValidateNamesWhatCannotWork(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(*Config)
		want string // one line of the error; empty: fine
	}{
		"the defaults":                {func(*Config) {}, ""},
		"no place for anything":       {func(c *Config) { c.StateDir, c.Record.Enabled = "", false }, ""},
		"a relative state directory":  {func(c *Config) { c.StateDir = "state" }, `state_dir: "state" is relative: want a path that begins with /`},
		"a relative socket":           {func(c *Config) { c.Socket = "agent.sock" }, `socket: "agent.sock" is relative: want a path that begins with /`},
		"a scrape that overlaps":      {func(c *Config) { c.Scrape.Timeout = 2 * time.Second }, "scrape.timeout: 2s is longer than scrape.interval (1s)"},
		"a format nobody knows":       {func(c *Config) { c.Targets = []Target{{Name: "a", EngineURL: "http://h:1", DType: "bf61"}} }, `targets[0].dtype: unknown dtype "bf61" (nearest: bf16`},
		"a GPU by its number":         {func(c *Config) { c.Targets = []Target{{Name: "a", EngineURL: "http://h:1", GPUs: []string{"0"}}} }, `targets[0].gpus: "0" is no UUID of a GPU`},
		"a cache format nobody knows": {func(c *Config) { c.Targets = []Target{{Name: "a", EngineURL: "http://h:1", KVDType: "zz"}} }, `targets[0].kv_dtype: unknown dtype "zz"`},
		"a scenario that is shipped":  {func(c *Config) { c.NVML.Source = "sim:memory_bound" }, ""},
		"a scenario nobody has":       {func(c *Config) { c.NVML.Source = "sim:memory_bond" }, `nvml.source: open scenario: there is no file "memory_bond"`},
		"a duty above all":            {func(c *Config) { c.NVML.Duty = 0.9 }, "nvml.duty: 0.9 is not a share above 0 and at most 0.5"},
		"a cell too long":             {func(c *Config) { c.Engine.Cell = time.Hour }, "correlation.cell: 1h0m0s is too long, the most is 1m0s"},
		"a lateness too long":         {func(c *Config) { c.Engine.Lateness = time.Hour }, "correlation.lateness: 1h0m0s is too long, the most is 1m0s"},
		"a port that is none":         {func(c *Config) { c.Metrics.Listen = ":99999" }, `metrics.listen: ":99999" is not HOST:PORT`},
		"a name that does not print":  {func(c *Config) { c.Targets = []Target{{Name: "a\nb", EngineURL: "http://h:1"}} }, `targets[0].name: "a\nb" does not print`},
		"a period too long":           {func(c *Config) { c.NVML.Period = time.Second }, "nvml.period 1s: want 100ms to 250ms"},
		"a proxy in front of itself": {func(c *Config) {
			c.Proxy.Listen, c.Proxy.Upstream = "127.0.0.1:8001", "http://localhost:8001"
		}, `proxy.upstream: "127.0.0.1:8001" is the proxy's own address`},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			c.StateDir, c.Socket = "/state", "/run/agent.sock"
			tt.set(&c)
			err := c.Validate()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("Validate() = %v", err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Count(err.Error(), "\n") > 0):
				t.Errorf("Validate() = %v, want %s", err, tt.want)
			}
		})
	}
}

func TestLoops(t *testing.T) {
	for _, tt := range []struct {
		listen, upstream string
		want             bool
	}{
		{"127.0.0.1:8001", "http://127.0.0.1:8001/v1", true},
		{"0.0.0.0:8001", "http://127.0.0.1:8001", true},
		{":8001", "http://localhost:8001", true},
		{"[::]:80", "http://[::1]", true},
		{"127.0.0.1:8001", "http://127.0.0.1:8000", false},
		{"0.0.0.0:8001", "http://10.0.0.7:8001", false},
		{"127.0.0.1:0", "http://127.0.0.1:0", false},
		{"engine:8001", "http://engine:8001", true},
	} {
		if got := Loops(tt.listen, tt.upstream); got != tt.want {
			t.Errorf("Loops(%s, %s) = %v", tt.listen, tt.upstream, got)
		}
	}
}

func TestOnlyRecordingsNeedAPlace(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	if err := c.CheckStateDir(); !errors.Is(err, ErrNoStateDir) {
		t.Errorf("without a place: %v", err)
	}
	c.Record.Enabled = false
	if err := errors.Join(c.CheckStateDir(), c.Validate()); err != nil {
		t.Errorf("without a recording: %v", err)
	}
	c.Record.Enabled, c.Record.Dir = true, "/r"
	if err := c.CheckStateDir(); err != nil {
		t.Errorf("with a directory of its own: %v", err)
	}
	if _, err := New(t.Context(), DefaultConfig(), Deps{}, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrNoStateDir) {
		t.Errorf("an agent without a place: %v", err)
	}
}
