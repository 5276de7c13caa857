package otlp

import (
	"cmp"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
)

// schemaURL is the version of the semantic conventions that the names follow: the last that holds the gen_ai names
// which backends and dashboards know.
const schemaURL = "https://opentelemetry.io/schemas/1.41.0"

// scope names who measured.
func scope(cfg Config) instrumentation.Scope {
	return instrumentation.Scope{Name: "tpotscope", Version: cfg.Version, SchemaURL: schemaURL}
}

// ofHost lists the prefixes of resource attributes that describe where things run and not what runs: they hold for an
// engine as they do for the agent. What else the agent's own resource says, such as its pod, does not.
var ofHost = []string{"host.", "k8s.node.", "k8s.cluster.", "cloud.", "deployment.", "os."}

// agentResource describes the agent: of the GPUs' series and its own.
func agentResource(cfg Config) *resource.Resource {
	attrs := map[string]string{"service.name": "tpotscope", "service.version": cfg.Version, "service.instance.id": cfg.Host, "host.name": cfg.Host}
	maps.Copy(attrs, cfg.Resource)
	return newResource(attrs)
}

// targetResource describes an engine: of what is told of its requests. The instance is unique in a fleet as long as
// host names are.
func targetResource(cfg Config, target string) *resource.Resource {
	attrs := map[string]string{"host.name": cfg.Host}
	for k, v := range cfg.Resource {
		for _, prefix := range ofHost {
			if strings.HasPrefix(k, prefix) {
				attrs[k] = v
			}
		}
	}
	attrs["service.name"] = cmp.Or(cfg.Services[target], target)
	attrs["service.instance.id"] = strings.TrimPrefix(attrs["host.name"]+"/"+target, "/")
	return newResource(attrs)
}

func newResource(attrs map[string]string) *resource.Resource {
	var kvs []attribute.KeyValue
	for k, v := range attrs {
		if v != "" {
			kvs = append(kvs, attribute.String(k, v))
		}
	}
	return resource.NewWithAttributes(schemaURL, kvs...)
}
