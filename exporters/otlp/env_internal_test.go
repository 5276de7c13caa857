package otlp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/exporters/otlp/spool"
)

func getenv(vars map[string]string) func(string) string {
	return func(k string) string { return vars[k] }
}

func TestEndpointsFollowFromEnvironmentAndConfiguration(t *testing.T) {
	type place struct {
		Endpoint  string
		GRPC      bool
		Plaintext bool
		Gzip      bool
		Timeout   time.Duration
		Headers   map[string]string
	}
	def := func(url string) place { return place{Endpoint: url, Gzip: true, Timeout: 10 * time.Second} }
	for name, tt := range map[string]struct {
		env             map[string]string
		cfg             Config
		metrics, traces place // zero: not sent
	}{
		"nothing is said: nothing is sent": {},
		"one URL for all gets a path for each signal": {
			env:     map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/base/"},
			metrics: def("http://collector:4318/base/v1/metrics"), traces: def("http://collector:4318/base/v1/traces"),
		},
		"a signal's own URL is used as it stands": {
			env:     map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://vendor/api/v2/otlp"},
			metrics: def("https://vendor/api/v2/otlp"),
		},
		"the configuration wins over the environment": {
			env: map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://env-traces:4318",
				"OTEL_EXPORTER_OTLP_TIMEOUT": "2500", "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
			},
			cfg:     Config{Endpoint: Endpoint{URL: "http://file:4318", Compression: "gzip"}},
			metrics: place{Endpoint: "http://file:4318/v1/metrics", Gzip: true, Timeout: 2500 * time.Millisecond},
			traces:  place{Endpoint: "http://file:4318/v1/traces", Gzip: true, Timeout: 2500 * time.Millisecond},
		},
		"grpc takes host and port, and TLS unless told otherwise": {
			env: map[string]string{
				"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "[::1]:5317",
				"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "TRUE",
			},
			metrics: place{Endpoint: "collector:4317", GRPC: true, Gzip: true, Timeout: 10 * time.Second},
			traces:  place{Endpoint: "[::1]:5317", GRPC: true, Plaintext: true, Gzip: true, Timeout: 10 * time.Second},
		},
		"the scheme of a grpc URL says whether there is TLS": {
			env: map[string]string{
				"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c",
				"OTEL_EXPORTER_OTLP_INSECURE": "true",
			},
			metrics: place{Endpoint: "c:4317", GRPC: true, Plaintext: true, Gzip: true, Timeout: 10 * time.Second},
			traces:  place{Endpoint: "c:4317", GRPC: true, Gzip: true, Timeout: 10 * time.Second},
		},
		"a signal's variables replace those for all": {
			env: map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=y", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=t",
				"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1", "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "none",
			},
			metrics: place{Endpoint: "http://c:4318/v1/metrics", Timeout: 10 * time.Second, Headers: map[string]string{"api-key": "a b", "x": "y"}},
			traces:  place{Endpoint: "c:4318", GRPC: true, Plaintext: true, Gzip: true, Timeout: time.Millisecond, Headers: map[string]string{"api-key": "t"}},
		},
		"the SDK is disabled": {
			env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, warnings, err := tt.cfg.WithVariables(getenv(tt.env))
			if err != nil || len(warnings) > 0 {
				t.Fatalf("WithVariables() = %v, %v", warnings, err)
			}
			if got, want := cfg.Enabled(), tt.metrics.Endpoint+tt.traces.Endpoint != ""; got != want {
				t.Errorf("Enabled() = %v, want %v", got, want)
			}
			if got, want := cfg.TracesEnabled(), tt.traces.Endpoint != ""; got != want {
				t.Errorf("TracesEnabled() = %v, want %v", got, want)
			}
			metrics, traces := cfg.merged()
			for signal, x := range map[spool.Signal]struct {
				e    Endpoint
				want place
			}{spool.Metrics: {metrics, tt.metrics}, spool.Traces: {traces, tt.traces}} {
				if x.want.Endpoint == "" {
					if x.e.URL != "" && !cfg.Disabled {
						t.Errorf("%s go to %s, want nowhere", signal, x.e.URL)
					}
					continue
				}
				c, err := x.e.spoolConfig(signal)
				if err != nil {
					t.Error(err)
				}
				got := place{c.Endpoint, c.GRPC, c.Plaintext, c.Gzip, c.Timeout, c.Headers}
				if diff := cmp.Diff(x.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", signal, diff)
				}
			}
		})
	}
}

func TestResourceComesFromTheEnvironmentUnlessConfigured(t *testing.T) {
	cfg, _, err := Config{Resource: map[string]string{"deployment.environment.name": "test"}}.WithVariables(getenv(map[string]string{
		"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,k8s.node.name=n1,deployment.environment.name=prod", "OTEL_SERVICE_NAME": "b", "OTEL_METRIC_EXPORT_INTERVAL": "15000",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"service.name": "b", "k8s.node.name": "n1", "deployment.environment.name": "test"}
	if diff := cmp.Diff(want, cfg.Resource); diff != "" || cfg.Interval != 15*time.Second {
		t.Errorf("interval %v, resource (-want +got):\n%s", cfg.Interval, diff)
	}
}

func TestWhatIsAskedAndNotDoneIsWarnedOf(t *testing.T) {
	_, warnings, err := Config{}.WithVariables(getenv(map[string]string{
		"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
	}))
	if err != nil || len(warnings) != 2 || !strings.Contains(strings.Join(warnings, " "), "only cumulative") {
		t.Errorf("warnings %q (%v), want one of temporality and one of JSON", warnings, err)
	}
}

func TestEveryFaultOfTheEnvironmentIsNamedAndNoSecretIs(t *testing.T) {
	_, _, err := Config{}.WithVariables(getenv(map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret%zz", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "10s", "OTEL_RESOURCE_ATTRIBUTES": "novalue",
		"OTEL_METRIC_EXPORT_INTERVAL": "-1",
	}))
	if err == nil {
		t.Fatal("WithVariables() takes it")
	}
	for _, want := range []string{
		"OTEL_EXPORTER_OTLP_HEADERS: value of authorization", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_RESOURCE_ATTRIBUTES: pair 1", "OTEL_METRIC_EXPORT_INTERVAL",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v shows a header's value", err)
	}
}

func TestFaultsOfEndpointsAreNamed(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, e := range map[string]Endpoint{
		"want http://host:4318":      {URL: "localhost:4318"},
		"want http/protobuf or grpc": {URL: "http://c", Protocol: "udp"},
		"want gzip or none":          {URL: "http://c", Compression: "zstd"},
		"no certificate in it":       {URL: "https://c", CAFile: empty},
		"read certificate authority": {URL: "https://c", CAFile: empty + ".missing"},
		"read client certificate":    {URL: "https://c", CertFile: empty, KeyFile: empty},
		"want host:4317, http":       {URL: "ftp://c", Protocol: GRPC},
		"send them as headers":       {URL: "http://user:hunter2@c:4318"},
		"credentials in a URL":       {URL: "user:hunter2@c:4317", Protocol: GRPC},
	} {
		cfg := DefaultConfig()
		cfg.Metrics = e
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "metrics: ") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Validate() = %v, want %q of metrics", err, want)
		}
	}
}

func FuzzReadPairs(f *testing.F) {
	f.Add("a=b,c=d%20e")
	f.Add("authorization=Basic%20x==")
	f.Add(",,=,%zz")
	f.Fuzz(func(t *testing.T, v string) {
		pairs, err := readPairs(v)
		if err != nil {
			return
		}
		for k := range pairs {
			if k == "" {
				t.Errorf("readPairs(%q) has an empty key", v)
			}
		}
		if len(pairs) > strings.Count(v, "=") {
			t.Errorf("readPairs(%q) makes %d pairs", v, len(pairs))
		}
	})
}

func TestValuesNameTheVariableTheyCameFrom(t *testing.T) {
	vars := getenv(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "5",
		"OTEL_SERVICE_NAME": "a", "OTEL_SDK_DISABLED": "true", "OTEL_METRIC_EXPORT_INTERVAL": "1000",
	})
	cfg, _, err := Config{Endpoint: Endpoint{Timeout: time.Second}}.WithVariables(vars)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"endpoint.url": "OTEL_EXPORTER_OTLP_ENDPOINT", "traces.protocol": "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "resource": "OTEL_SERVICE_NAME",
		"disabled": "OTEL_SDK_DISABLED", "interval": "OTEL_METRIC_EXPORT_INTERVAL",
	}
	if diff := cmp.Diff(want, cfg.Origins); diff != "" {
		t.Errorf("origins (-want +got):\n%s", diff)
	}
	again, _, err := cfg.WithVariables(vars)
	if err != nil {
		t.Fatal(err)
	}
	again.Origins = cfg.Origins
	if diff := cmp.Diff(cfg, again, cmp.AllowUnexported(Endpoint{})); diff != "" {
		t.Errorf("reading the environment twice changes something:\n%s", diff)
	}
}

func TestFaultsComeInOneOrder(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Metrics.URL, cfg.Traces.URL, cfg.Interval, cfg.QueueBytes = "ftp://a", "ftp://b", -1, 0
	first := cfg.Validate()
	for range 20 {
		if again := cfg.Validate(); again.Error() != first.Error() {
			t.Fatalf("faults in another order:\n%v\n%v", first, again)
		}
	}
	for _, want := range []string{"interval: -1ns is negative", "queue_bytes: 0 is no room", "metrics: ", "traces: "} {
		if !strings.Contains(first.Error(), want) {
			t.Errorf("faults %v lack %s", first, want)
		}
	}
}
