package otlp

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
)

// backStep is how far the wall clock must have been set back for times to be taken as they are; less is held up until
// the clock has caught up, so that no series goes back in time.
const backStep = time.Minute

// agentKey stands for the agent among the targets; no target has an empty name.
const agentKey = ""

// pending gathers points until they are sent.
type pending struct {
	cfg       Config
	resources map[string]*resource.Resource // by target
	numbers   map[string]*[exporters.NumMetrics][]metricdata.DataPoint[float64]
	buckets   map[string]*[exporters.NumMetrics][]metricdata.ExponentialHistogramDataPoint[float64]
	last      map[string]int64  // unix ms of the newest points of a target, a GPU, or their histograms
	attached  map[string]uint64 // exemplars of each histogram that were sent
	count     int
}

func newPending(cfg Config) *pending {
	p := &pending{cfg: cfg, resources: map[string]*resource.Resource{}, last: map[string]int64{}, attached: map[string]uint64{}}
	p.reset()
	return p
}

func (p *pending) reset() {
	p.numbers = map[string]*[exporters.NumMetrics][]metricdata.DataPoint[float64]{}
	p.buckets = map[string]*[exporters.NumMetrics][]metricdata.ExponentialHistogramDataPoint[float64]{}
	p.count = 0
}

// resource returns the resource of a target, or the agent's.
func (p *pending) resource(key string) *resource.Resource {
	r := p.resources[key]
	if r == nil {
		if key == agentKey {
			r = agentResource(p.cfg)
		} else {
			r = targetResource(p.cfg, key)
		}
		p.resources[key] = r
	}
	return r
}

// due reports whether what is called key may have a point at t: one that is later than its last by the resolution, and
// by a millisecond at least.
func (p *pending) due(key string, t time.Time) bool {
	ms, last := t.UnixMilli(), p.last[key]
	if last != 0 && ms < last+max(1, p.cfg.Resolution.Milliseconds()) && last-ms < backStep.Milliseconds() {
		return false
	}
	p.last[key] = ms
	return true
}

// addCell adds a point at the end of c to each of its target's series, and to those of its GPUs that were read.
func (p *pending) addCell(s *exporters.State, c *correlate.Cell) {
	at := s.Anchor().Time(c.Span.End)
	target := targetOf(c.Target)
	if p.due("target/"+target, at) {
		for _, x := range s.AppendTarget(nil, target) {
			p.addNumber(target, &x, at)
		}
	}
	for i := range c.PerGPU {
		g := &c.PerGPU[i]
		if g.CoveredS <= 0 || !p.due("gpu/"+g.UUID, at) {
			continue
		}
		for _, x := range s.AppendGPU(nil, g.UUID, target) {
			p.addNumber(agentKey, &x, at)
		}
	}
}

// targetOf returns how series spell a target.
func targetOf(name string) string {
	if name == "" {
		return "unknown"
	}
	return name
}

// addRest adds what has one point a batch: what requests feed, info series, and the agent's own readings.
func (p *pending) addRest(s *exporters.State, newest timeline.Instant) {
	if newest == 0 {
		return
	}
	at := s.Anchor().Time(newest)
	// A flush out of turn may come without a newer cell, and requests may have ended all the same.
	if last := p.last["rest"]; last != 0 && at.UnixMilli() <= last && last-at.UnixMilli() < backStep.Milliseconds() {
		at = time.UnixMilli(last + 1).UTC()
	}
	p.last["rest"] = at.UnixMilli()
	for _, x := range s.Append(nil) {
		m, key := exporters.Lookup(x.ID), agentKey
		if m.Scope == exporters.OfTarget {
			key = x.Labels[0]
		}
		switch {
		case m.Kind == exporters.Histogram:
			p.addBuckets(key, &x, at, s.Anchor())
		case m.Kind == exporters.Info || m.Scope == exporters.OfAgent || ofRequests(x.ID):
			p.put(key, &x, at)
		}
	}
}

// ofRequests reports whether requests feed the counter, which end when they end and not when a cell does.
func ofRequests(id exporters.ID) bool { return id == exporters.Requests || id == exporters.StallTime }

// addNumber adds a point of a counter or a gauge that cells feed.
func (p *pending) addNumber(key string, x *exporters.Series, at time.Time) {
	if k := exporters.Lookup(x.ID).Kind; !ofRequests(x.ID) && (k == exporters.Counter || k == exporters.Gauge) {
		p.put(key, x, at)
	}
}

func (p *pending) put(key string, x *exporters.Series, at time.Time) {
	all := p.numbers[key]
	if all == nil {
		all = new([exporters.NumMetrics][]metricdata.DataPoint[float64])
		p.numbers[key] = all
	}
	all[x.ID] = append(all[x.ID], metricdata.DataPoint[float64]{Attributes: attributes(x), StartTime: x.Since, Time: at, Value: x.Value})
	p.count++
}

func (p *pending) addBuckets(key string, x *exporters.Series, at time.Time, anchor timeline.Anchor) {
	all := p.buckets[key]
	if all == nil {
		all = new([exporters.NumMetrics][]metricdata.ExponentialHistogramDataPoint[float64])
		p.buckets[key] = all
	}
	b := x.Buckets
	point := metricdata.ExponentialHistogramDataPoint[float64]{
		Attributes: attributes(x), StartTime: x.Since, Time: at, Count: b.Count, Sum: b.Sum, Scale: int32(b.Scale), ZeroCount: b.Zero,
		ZeroThreshold: exporters.ZeroThreshold, PositiveBucket: metricdata.ExponentialBucket{Offset: int32(b.Offset), Counts: slices.Clone(b.Counts)},
	}
	seen := key + "/" + exporters.Lookup(x.ID).Name
	for _, e := range b.Exemplars(p.attached[seen]) {
		trace, err1 := hex.DecodeString(e.TraceID)
		span, err2 := hex.DecodeString(e.SpanID)
		if err1 == nil && err2 == nil && len(trace) == 16 && len(span) == 8 {
			point.Exemplars = append(point.Exemplars, metricdata.Exemplar[float64]{Time: anchor.Time(e.At), Value: e.Value, TraceID: trace, SpanID: span})
		}
	}
	p.attached[seen] = b.Attached()
	all[x.ID] = append(all[x.ID], point)
	p.count++
}

// attributes returns the labels of x.
func attributes(x *exporters.Series) attribute.Set {
	keys := exporters.Lookup(x.ID).Labels
	kvs := make([]attribute.KeyValue, len(keys))
	for i, k := range keys {
		kvs[i] = attribute.String(k, strings.ToValidUTF8(x.Labels[i], "\uFFFD"))
	}
	return attribute.NewSet(kvs...)
}

// take returns what was gathered, one request a resource, and begins anew.
func (p *pending) take() []*metricdata.ResourceMetrics {
	keys := map[string]bool{}
	for k := range p.numbers {
		keys[k] = true
	}
	for k := range p.buckets {
		keys[k] = true
	}
	var out []*metricdata.ResourceMetrics
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		var metrics []metricdata.Metrics
		for id := range exporters.NumMetrics {
			m := exporters.Lookup(id)
			if n := p.numbers[key]; n != nil && len(n[id]) > 0 {
				metrics = append(metrics, metricdata.Metrics{Name: m.Name, Description: m.Help, Unit: m.Unit, Data: numbers(m, n[id])})
			}
			if b := p.buckets[key]; b != nil && len(b[id]) > 0 {
				metrics = append(metrics, metricdata.Metrics{
					Name: m.Name, Description: m.Help, Unit: m.Unit,
					Data: metricdata.ExponentialHistogram[float64]{Temporality: metricdata.CumulativeTemporality, DataPoints: b[id]},
				})
			}
		}
		out = append(out, &metricdata.ResourceMetrics{
			Resource: p.resource(key), ScopeMetrics: []metricdata.ScopeMetrics{{Scope: scope(p.cfg), Metrics: metrics}},
		})
	}
	p.reset()
	return out
}

func numbers(m *exporters.Metric, points []metricdata.DataPoint[float64]) metricdata.Aggregation {
	if m.Kind == exporters.Counter {
		return metricdata.Sum[float64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: true, DataPoints: points}
	}
	return metricdata.Gauge[float64]{DataPoints: points}
}
