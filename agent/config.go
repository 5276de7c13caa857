package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/tpotscope/tpotscope/agent/burst"
	"github.com/tpotscope/tpotscope/agent/probe/relay"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/otlp"
	"github.com/tpotscope/tpotscope/nvml"
)

// Config is everything that can be set on an agent. Each value has its default in [DefaultConfig]; an unknown key in a
// file is an error.
type Config struct {
	StateDir string       `yaml:"state_dir"`
	Socket   string       `yaml:"socket"`
	NVML     NVML         `yaml:"nvml"`
	Targets  []Target     `yaml:"targets"`
	Proxy    relay.Config `yaml:"proxy"`
	Scrape   Scrape       `yaml:"scrape"`
	DCGM     DCGM         `yaml:"dcgm"`
	Metrics  Metrics      `yaml:"metrics"`
	Record   Record       `yaml:"record"`
	OTLP     otlp.Config  `yaml:"otlp"`
	Engine   Correlation  `yaml:"correlation"`
	Host     Host         `yaml:"host"`
	Version  string       `yaml:"-"`
}

// Target names one engine and the GPUs that serve it.
type Target = timeline.Target

// NVML says where counters come from.
type NVML struct {
	Source     string        `yaml:"source"`         // "helper", "off", or "sim:NAME" for a simulation
	Helper     string        `yaml:"helper"`         // path of tpotscope-nvml; empty: beside this program, then on PATH
	Library    string        `yaml:"driver_library"` // path of libnvidia-ml.so.1; empty: as the loader finds it
	Period     time.Duration `yaml:"period"`         // of GPM windows, at least 100 ms
	FastPeriod time.Duration `yaml:"fast_period"`    // of clocks and reasons
	SlowPeriod time.Duration `yaml:"slow_period"`    // of all else
	Duty       float64       `yaml:"duty"`           // most of one thread that driver calls of one GPU may take
	Burst      string        `yaml:"burst"`          // who may have clocks read at the highest rate for a while: "auto", "manual" or "off"
}

// Scrape says how engines' own metrics are read.
type Scrape struct {
	Interval time.Duration `yaml:"interval"`
	Timeout  time.Duration `yaml:"timeout"`
}

// DCGM says where dcgm-exporter is read, for GPUs whose driver gives no windows of activity.
type DCGM = scrape.DCGMConfig

// Metrics is the door for scrapes and health checks.
type Metrics struct {
	Listen    string `yaml:"listen"` // empty: closed
	WebConfig string `yaml:"web_config"`
	Profile   string `yaml:"profile"` // minimal, standard or full
}

// Record says where recordings go.
type Record struct {
	Enabled  bool   `yaml:"enabled"`
	Dir      string `yaml:"dir"` // empty: recordings/agent below state_dir
	MaxBytes int64  `yaml:"max_bytes"`
}

// Correlation sets the engine that joins counters and tokens.
type Correlation struct {
	Cell     time.Duration `yaml:"cell"`
	Lateness time.Duration `yaml:"lateness"`        // how long a cell waits for readings that are under way
	Warmup   int           `yaml:"warmup_requests"` // requests after an engine's start that are marked as warm-up

	AllowForeign bool `yaml:"allow_foreign"` // judge although a process that is not the engine's computes on its GPU
}

// Host says how the host is read.
type Host struct {
	Interval time.Duration `yaml:"interval"`
}

// DefaultConfig returns the defaults. StateDir and Socket depend on the user and are left to the command.
func DefaultConfig() Config {
	return Config{
		NVML:    defaultNVML(),
		Proxy:   relay.DefaultConfig(),
		Scrape:  Scrape{Interval: time.Second, Timeout: 900 * time.Millisecond},
		DCGM:    scrape.DefaultDCGMConfig(),
		Metrics: Metrics{Listen: "127.0.0.1:19400", Profile: "standard"},
		Record:  Record{Enabled: true, MaxBytes: 2 << 30},
		OTLP:    otlp.DefaultConfig(),
		Engine:  defaultCorrelation(),
		Host:    Host{Interval: time.Second},
	}
}

// RecordDir returns the directory of the agent's own recording.
func (c *Config) RecordDir() string {
	if c.Record.Dir != "" {
		return c.Record.Dir
	}
	return filepath.Join(c.StateDir, "recordings", "agent")
}

// Validate reports every fault of c at once.
func (c *Config) Validate() error {
	return errors.Join(
		c.validatePlaces(), c.NVML.validate(), c.validateTargets(), c.validateProxy(),
		atLeast("scrape.interval", c.Scrape.Interval, 100*time.Millisecond),
		atLeast("scrape.timeout", c.Scrape.Timeout, 10*time.Millisecond), c.validateTimeout(),
		atLeast("host.interval", c.Host.Interval, 100*time.Millisecond),
		c.validateLateness(), within("dcgm", c.DCGM.Validate()), c.Metrics.validate(), within("otlp", c.OTLP.Validate()), c.Engine.validate(), c.Record.validate(),
	)
}

// ErrNoStateDir says that recordings have nowhere to go.
var ErrNoStateDir = errors.New("state_dir: missing, though recordings go below it: set it, or TPOTSCOPE_STATE_DIR, XDG_STATE_HOME or HOME")

// CheckStateDir returns [ErrNoStateDir] if an agent of that configuration would not know where to record. It is no part
// of [Config.Validate]: most commands need no place for recordings.
func (c *Config) CheckStateDir() error {
	if c.Record.Enabled && c.Record.Dir == "" && c.StateDir == "" {
		return ErrNoStateDir
	}
	return nil
}

// validatePlaces checks the places that are set.
func (c *Config) validatePlaces() error {
	var errs []error
	errs = append(errs, absolute("state_dir", c.StateDir), absolute("socket", c.Socket), absolute("record.dir", c.Record.Dir))
	// A longer path does not fit the address of a socket (unix(7), sun_path).
	if most := 107; len(c.Socket) > most {
		errs = append(errs, fmt.Errorf("socket: the path has %d bytes, the most that a socket takes is %d", len(c.Socket), most))
	}
	return errors.Join(errs...)
}

// absolute makes sure that a place is the same wherever the agent is started.
func absolute(key, path string) error {
	if path != "" && !filepath.IsAbs(path) {
		return fmt.Errorf("%s: %q is relative: want a path that begins with /", key, path)
	}
	return nil
}

func defaultNVML() NVML {
	d := nvml.DefaultConfig()
	return NVML{Source: SourceHelper, Period: d.Period, FastPeriod: d.FastPeriod, SlowPeriod: d.SlowPeriod, Duty: d.DutyBudget, Burst: string(burst.Auto)}
}

func defaultCorrelation() Correlation {
	d := correlate.DefaultConfig()
	return Correlation{Cell: d.Cell, Lateness: d.Lateness, Warmup: d.Warmup}
}

// sampling returns the part that concerns rates.
func (n *NVML) sampling() nvml.Config {
	return nvml.Config{Period: n.Period, FastPeriod: n.FastPeriod, SlowPeriod: n.SlowPeriod, DutyBudget: n.Duty}
}

func (n *NVML) validate() error {
	var err error
	name, simulated := strings.CutPrefix(n.Source, simPrefix)
	switch {
	case n.Source == SourceHelper, n.Source == sourceOff:
	case simulated && name != "":
		if _, serr := OpenScenario(name); serr != nil {
			err = fmt.Errorf("nvml.source: %w", serr)
		}
	default:
		err = fmt.Errorf(`nvml.source: %q is not one of "helper", "off", "sim:NAME"`, n.Source)
	}
	return errors.Join(err, within("nvml", n.validateSampling()), within("nvml", burst.Mode(n.Burst).Validate()))
}

// validateSampling checks the rates, under the names that they have in a file.
func (n *NVML) validateSampling() error {
	if n.Duty > 0 && n.Duty <= maxDuty {
		return n.sampling().Validate()
	}
	sampling := n.sampling()
	sampling.DutyBudget = maxDuty
	return errors.Join(append(faults(sampling.Validate()), fmt.Errorf("duty: %v is not a share above 0 and at most %v", n.Duty, maxDuty))...)
}

// maxDuty is the most of a thread that driver calls may take.
const maxDuty = 0.5

// What counters may come from beside a simulation.
const (
	SourceHelper = "helper" // the driver, through the helper
	sourceOff    = "off"
)

// simPrefix marks a source of counters that is a simulation in this process.
const simPrefix = "sim:"

func (c *Config) validateTargets() error {
	var errs []error
	names := map[string]bool{}
	for i, t := range c.Targets {
		switch {
		case t.Name == "":
			errs = append(errs, fmt.Errorf("targets[%d].name: missing", i))
		case strings.ContainsFunc(t.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
			errs = append(errs, fmt.Errorf("targets[%d].name: %q does not print", i, t.Name))
		case names[t.Name]:
			errs = append(errs, fmt.Errorf("targets[%d].name: %q is there twice", i, t.Name))
		}
		names[t.Name] = true
		if t.EngineURL == "" {
			errs = append(errs, fmt.Errorf("targets[%d].engine_url: missing", i))
		} else if err := CheckURL(t.EngineURL); err != nil {
			errs = append(errs, fmt.Errorf("targets[%d].engine_url: %w", i, err))
		}
		for _, uuid := range t.GPUs {
			if !strings.HasPrefix(uuid, "GPU-") && !strings.HasPrefix(uuid, "MIG-") {
				errs = append(errs, fmt.Errorf("targets[%d].gpus: %q is no UUID of a GPU; `nvidia-smi -L` lists them", i, uuid))
			}
		}
		for _, degree := range []struct {
			name string
			n    int
		}{{"tp", t.TP}, {"pp", t.PP}, {"dp", t.DP}} {
			if degree.n < 0 {
				errs = append(errs, fmt.Errorf("targets[%d].%s: %d is negative", i, degree.name, degree.n))
			}
		}
		errs = append(errs, knownDType(fmt.Sprintf("targets[%d].dtype", i), t.DType), knownDType(fmt.Sprintf("targets[%d].kv_dtype", i), t.KVDType))
	}
	if c.Proxy.Target != "" && !names[c.Proxy.Target] {
		errs = append(errs, fmt.Errorf("proxy.target: there is no target %q", c.Proxy.Target))
	}
	return errors.Join(errs...)
}

// knownDType makes sure that a number format is one whose width is known.
func knownDType(key, name string) error {
	if name == "" {
		return nil
	}
	if _, err := hardware.LookupDType(name); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// CheckURL says what is wrong with the URL of an engine.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q is not an http or https URL", s)
	case u.Host == "":
		return fmt.Errorf("%q names no host", s)
	case u.User != nil:
		return errors.New("credentials in a URL end up in logs: leave them out")
	}
	return nil
}

// validateProxy checks the proxy, which is off without an upstream.
func (c *Config) validateProxy() error {
	switch {
	case c.Proxy.Upstream == "" && c.Proxy.Listen == "":
		return nil
	case c.Proxy.Upstream == "":
		return errors.New("proxy.upstream: missing, though proxy.listen is set")
	case c.Proxy.Listen == "":
		return errors.New("proxy.listen: missing, though proxy.upstream is set")
	}
	err := within("proxy", c.Proxy.Validate())
	if err == nil && Loops(c.Proxy.Listen, c.Proxy.Upstream) {
		err = fmt.Errorf("proxy.upstream: %q is the proxy's own address", c.Proxy.Listen)
	}
	return err
}

// Loops reports whether a proxy that listens there would send to itself.
func Loops(listen, upstream string) bool {
	host, port, err := net.SplitHostPort(listen)
	u, uerr := url.Parse(upstream)
	if err != nil || uerr != nil || port == "0" || port != cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]) {
		return false
	}
	here, there := net.ParseIP(host), net.ParseIP(u.Hostname())
	if u.Hostname() == "localhost" {
		there = net.IPv4(127, 0, 0, 1)
	}
	if host == "localhost" {
		here = net.IPv4(127, 0, 0, 1)
	}
	everywhere := host == "" || here != nil && here.IsUnspecified()
	return host == u.Hostname() || here != nil && here.Equal(there) || everywhere && there != nil && (there.IsLoopback() || there.IsUnspecified())
}

// within puts a section's name before each of its faults.
func within(section string, err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	for _, e := range faults(err) {
		errs = append(errs, fmt.Errorf("%s.%w", section, e))
	}
	return errors.Join(errs...)
}

// faults returns the errors that err joins.
func faults(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func (m *Metrics) validate() error {
	var errs []error
	if m.Listen != "" {
		_, port, err := net.SplitHostPort(m.Listen)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
			errs = append(errs, fmt.Errorf("metrics.listen: %q is not HOST:PORT", m.Listen))
		}
	}
	if err := web.Validate(m.WebConfig); err != nil {
		errs = append(errs, fmt.Errorf("metrics.web_config: %w", err))
	}
	switch m.Profile {
	case "minimal", "standard", "full":
	default:
		errs = append(errs, fmt.Errorf("metrics.profile: %q is not one of minimal, standard, full", m.Profile))
	}
	return errors.Join(errs...)
}

func (e *Correlation) validate() error {
	var errs []error
	errs = append(errs, atLeast("correlation.cell", e.Cell, 500*time.Millisecond),
		atMost("correlation.cell", e.Cell, time.Minute), atMost("correlation.lateness", e.Lateness, time.Minute)) // as the engine
	if e.Warmup < 0 {
		errs = append(errs, fmt.Errorf("correlation.warmup_requests: %d is negative", e.Warmup))
	}
	return errors.Join(errs...)
}

// validateTimeout makes sure that a scrape has ended before the next is due.
func (c *Config) validateTimeout() error {
	if c.Scrape.Timeout > c.Scrape.Interval {
		return fmt.Errorf("scrape.timeout: %v is longer than scrape.interval (%v)", c.Scrape.Timeout, c.Scrape.Interval)
	}
	return nil
}

// validateLateness makes sure that a scrape can still find its cell.
func (c *Config) validateLateness() error {
	if c.Engine.Lateness <= c.Scrape.Interval {
		return fmt.Errorf("correlation.lateness: %v must be longer than scrape.interval (%v): the scrape that ends a cell would come too late for it",
			c.Engine.Lateness, c.Scrape.Interval)
	}
	return nil
}

func (r *Record) validate() error {
	if r.Enabled && r.MaxBytes < 16<<20 {
		return fmt.Errorf("record.max_bytes: %d is less than 16 MiB", r.MaxBytes)
	}
	return nil
}
