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
	metrics  Endpoint
	traces   Endpoint
	interval time.Duration
	service  string
	resource map[string]string
	warnings []string
}

// WithEnvironment returns c with what it leaves open taken from the OTEL_* variables, and warnings for what they ask
// and is not done. What c states wins.
func (c Config) WithEnvironment() (Config, []string, error) { return c.withEnvironment(os.Getenv) }

func (c Config) withEnvironment(getenv func(string) string) (Config, []string, error) {
	env, err := readEnvironment(getenv)
	if err != nil {
		return c, nil, err
	}
	explicit := c.Endpoint
	explicit.base = true
	c.Metrics, c.Traces = c.Metrics.over(explicit).over(env.metrics), c.Traces.over(explicit).over(env.traces)
	c.Endpoint = Endpoint{}
	c.Disabled = c.Disabled || env.disabled
	if c.Interval == 0 {
		c.Interval = env.interval
	}
	resource := env.resource
	if env.service != "" {
		resource["service.name"] = env.service
	}
	maps.Copy(resource, c.Resource)
	c.Resource = resource
	return c, env.warnings, nil
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
	common, err := env.readEndpoint(getenv, "OTEL_EXPORTER_OTLP_")
	common.base = true
	errs = append(errs, err)
	metrics, err := env.readEndpoint(getenv, "OTEL_EXPORTER_OTLP_METRICS_")
	errs = append(errs, err)
	traces, err := env.readEndpoint(getenv, "OTEL_EXPORTER_OTLP_TRACES_")
	errs = append(errs, err)
	env.metrics, env.traces = metrics.over(common), traces.over(common)
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
