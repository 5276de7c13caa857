package otlp

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// environment is what the OTEL_* variables say. Their meaning is that of
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
type environment struct {
	disabled bool
	common   Endpoint
	metrics  Endpoint
	traces   Endpoint
	interval time.Duration
	service  string
	resource map[string]string
	warnings []string
}

// Prefixes of the variables of all signals, and of one.
const (
	envCommon  = "OTEL_EXPORTER_OTLP_"
	envMetrics = envCommon + "METRICS_"
	envTraces  = envCommon + "TRACES_"
)

// endpointField is one field of an endpoint: its key in a file, what its variable ends with, and how to get at it.
type endpointField struct {
	key, suffix string
	missing     func(*Endpoint) bool
	take        func(to, from *Endpoint)
}

var endpointFields = []endpointField{
	{"url", "ENDPOINT", func(e *Endpoint) bool { return e.URL == "" }, func(to, from *Endpoint) { to.URL = from.URL }},
	{"protocol", "PROTOCOL", func(e *Endpoint) bool { return e.Protocol == "" }, func(to, from *Endpoint) { to.Protocol = from.Protocol }},
	{"headers", "HEADERS", func(e *Endpoint) bool { return e.Headers == nil }, func(to, from *Endpoint) { to.Headers = from.Headers }},
	{"timeout", "TIMEOUT", func(e *Endpoint) bool { return e.Timeout == 0 }, func(to, from *Endpoint) { to.Timeout = from.Timeout }},
	{"compression", "COMPRESSION", func(e *Endpoint) bool { return e.Compression == "" }, func(to, from *Endpoint) { to.Compression = from.Compression }},
	{"ca_file", "CERTIFICATE", func(e *Endpoint) bool { return e.CAFile == "" }, func(to, from *Endpoint) { to.CAFile = from.CAFile }},
	{"cert_file", "CLIENT_CERTIFICATE", func(e *Endpoint) bool { return e.CertFile == "" }, func(to, from *Endpoint) { to.CertFile = from.CertFile }},
	{"key_file", "CLIENT_KEY", func(e *Endpoint) bool { return e.KeyFile == "" }, func(to, from *Endpoint) { to.KeyFile = from.KeyFile }},
	{"insecure", "INSECURE", func(e *Endpoint) bool { return e.Insecure == nil }, func(to, from *Endpoint) { to.Insecure = from.Insecure }},
}

// WithEnvironment returns c with what it leaves open taken from the OTEL_* variables, and warnings for what they ask
// and is not done. What c states wins.
func (c Config) WithEnvironment() (Config, []string, error) { return c.WithVariables(os.Getenv) }

// WithVariables is WithEnvironment for an environment that is handed in. Origins says which values came from it.
func (c Config) WithVariables(getenv func(string) string) (Config, []string, error) {
	env, err := readEnvironment(getenv)
	if err != nil {
		return c, nil, err
	}
	origins := map[string]string{}
	// What the configuration says for all signals wins over what the environment says for one.
	stated := c.Endpoint
	fill := func(section, prefix string, to, from *Endpoint) {
		for _, f := range endpointFields {
			if f.missing(to) && f.missing(&stated) && !f.missing(from) {
				f.take(to, from)
				origins[section+"."+f.key] = prefix + f.suffix
			}
		}
	}
	fill("metrics", envMetrics, &c.Metrics, &env.metrics)
	fill("traces", envTraces, &c.Traces, &env.traces)
	fill("endpoint", envCommon, &c.Endpoint, &env.common)
	if env.disabled && !c.Disabled {
		c.Disabled, origins["disabled"] = true, "OTEL_SDK_DISABLED"
	}
	if c.Interval == 0 && env.interval != 0 {
		c.Interval, origins["interval"] = env.interval, "OTEL_METRIC_EXPORT_INTERVAL"
	}
	c.Resource = env.attributes(c.Resource, origins)
	c.Origins = origins
	return c, env.warnings, nil
}

// attributes returns those of the environment below those of the configuration.
func (env *environment) attributes(stated, origins map[string]string) map[string]string {
	all := env.resource
	if len(all) > 0 {
		origins["resource"] = "OTEL_RESOURCE_ATTRIBUTES"
	}
	if env.service != "" {
		all["service.name"], origins["resource"] = env.service, "OTEL_SERVICE_NAME"
	}
	maps.Copy(all, stated)
	return all
}

// readEnvironment reads all variables. The error joins every fault.
func readEnvironment(getenv func(string) string) (environment, error) {
	var env environment
	var errs []error
	env.disabled = strings.EqualFold(strings.TrimSpace(getenv("OTEL_SDK_DISABLED")), "true")
	env.service = getenv("OTEL_SERVICE_NAME")
	var err error
	if env.resource, err = readPairs(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		errs = append(errs, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err))
	}
	if env.interval, err = readMillis(getenv("OTEL_METRIC_EXPORT_INTERVAL")); err != nil {
		errs = append(errs, fmt.Errorf("OTEL_METRIC_EXPORT_INTERVAL: %w", err))
	}
	for _, of := range []struct {
		prefix string
		e      *Endpoint
	}{{envCommon, &env.common}, {envMetrics, &env.metrics}, {envTraces, &env.traces}} {
		if *of.e, err = env.readEndpoint(getenv, of.prefix); err != nil {
			errs = append(errs, err)
		}
	}
	if t := getenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"); t != "" && !strings.EqualFold(t, "cumulative") {
		env.warnings = append(env.warnings, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE asks for "+strconv.Quote(t)+": only cumulative is sent")
	}
	if err := errors.Join(errs...); err != nil {
		return environment{}, fmt.Errorf("read environment: %w", err)
	}
	return env, nil
}

// readEndpoint reads the variables of one prefix.
func (env *environment) readEndpoint(getenv func(string) string, prefix string) (Endpoint, error) {
	var errs []error
	e := Endpoint{
		URL: getenv(prefix + "ENDPOINT"), Protocol: getenv(prefix + "PROTOCOL"), Compression: getenv(prefix + "COMPRESSION"),
		CAFile: getenv(prefix + "CERTIFICATE"), CertFile: getenv(prefix + "CLIENT_CERTIFICATE"), KeyFile: getenv(prefix + "CLIENT_KEY"),
	}
	if e.Protocol == "http/json" {
		env.warnings = append(env.warnings, prefix+"PROTOCOL asks for http/json: http/protobuf is sent")
		e.Protocol = HTTPProtobuf
	}
	var err error
	if e.Timeout, err = readMillis(getenv(prefix + "TIMEOUT")); err != nil {
		errs = append(errs, fmt.Errorf("%sTIMEOUT: %w", prefix, err))
	}
	if v := getenv(prefix + "HEADERS"); v != "" {
		if e.Headers, err = readPairs(v); err != nil {
			errs = append(errs, fmt.Errorf("%sHEADERS: %w", prefix, err))
		}
	}
	if v := strings.TrimSpace(getenv(prefix + "INSECURE")); v != "" {
		e.Insecure = new(strings.EqualFold(v, "true")) // any other value is false, as the specification has it
	}
	return e, errors.Join(errs...)
}

// readMillis reads a number of milliseconds; nothing is zero.
func readMillis(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	ms, err := strconv.ParseUint(strings.TrimSpace(v), 10, 31)
	if err != nil {
		return 0, errors.New("want a number of milliseconds")
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// readPairs reads key=value pairs parted by commas, with values percent-encoded. Errors name no value: it may be a
// secret.
func readPairs(v string) (map[string]string, error) {
	pairs := map[string]string{}
	for i, pair := range strings.Split(v, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key, err := url.PathUnescape(strings.TrimSpace(key))
		if !ok || err != nil || key == "" {
			return nil, fmt.Errorf("pair %d: want key=value", i+1)
		}
		if value, err = url.PathUnescape(strings.TrimSpace(value)); err != nil {
			return nil, fmt.Errorf("value of %s: bad percent encoding", key)
		}
		pairs[key] = value
	}
	return pairs, nil
}
