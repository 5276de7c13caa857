package prom

import (
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tpotscope/tpotscope/exporters"
)

// Classic buckets end at the powers of two from 2^-12 s (0.24 ms) to 2^5 s.
const (
	firstPower = -12
	lastPower  = 5
)

// metric returns one series as the client library wants it.
func (s *Sink) metric(x *exporters.Series) (prometheus.Metric, error) {
	desc, labels := s.descs[x.ID], make([]string, len(x.Labels))
	for i, l := range x.Labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	switch exporters.Lookup(x.ID).Kind {
	case exporters.Histogram:
		native, err := prometheus.NewConstNativeHistogram(desc, x.Buckets.Count, x.Buckets.Sum, positive(x.Buckets), nil,
			x.Buckets.Zero, int32(x.Buckets.Scale), exporters.ZeroThreshold, x.Since, labels...)
		if err != nil {
			return nil, err
		}
		h := &histogram{Metric: native, exemplars: s.exemplars(x.Buckets)}
		if s.classic {
			h.buckets = classicBuckets(x.Buckets)
		}
		return h, nil
	case exporters.Counter:
		return prometheus.NewConstMetricWithCreatedTimestamp(desc, prometheus.CounterValue, x.Value, x.Since, labels...)
	default:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, x.Value, labels...)
	}
}

// positive returns the buckets as Prometheus numbers them: by upper bound, one more than OpenTelemetry.
func positive(b *exporters.Buckets) map[int]int64 {
	m := make(map[int]int64, len(b.Counts))
	for i, n := range b.Counts {
		if n > 0 {
			m[b.Offset+i+1] = int64(n)
		}
	}
	return m
}

func classicBuckets(b *exporters.Buckets) []*dto.Bucket {
	var buckets []*dto.Bucket
	for p := firstPower; p <= lastPower; p++ {
		buckets = append(buckets, &dto.Bucket{UpperBound: new(math.Ldexp(1, p)), CumulativeCount: new(b.AtMost(p))})
	}
	return buckets
}

func (s *Sink) exemplars(b *exporters.Buckets) []*dto.Exemplar {
	var out []*dto.Exemplar
	for _, e := range b.Exemplars(0) {
		out = append(out, &dto.Exemplar{
			Label: []*dto.LabelPair{
				{Name: new("trace_id"), Value: new(e.TraceID)},
				{Name: new("span_id"), Value: new(e.SpanID)},
			},
			Value:     new(e.Value),
			Timestamp: timestamppb.New(s.state.Anchor().Time(e.At)),
		})
	}
	return out
}

// histogram adds exemplars, and classic buckets if asked for, to a native histogram. In the text formats, which know
// no native histograms, an exemplar hangs on a classic bucket: the last is there for that at least.
type histogram struct {
	prometheus.Metric
	exemplars []*dto.Exemplar
	buckets   []*dto.Bucket
}

// Write writes the histogram into m.
func (h *histogram) Write(m *dto.Metric) error {
	if err := h.Metric.Write(m); err != nil {
		return err
	}
	last := &dto.Bucket{UpperBound: new(math.Inf(1)), CumulativeCount: new(m.GetHistogram().GetSampleCount())}
	buckets := slices.Concat(h.buckets, []*dto.Bucket{last})
	for _, e := range h.exemplars { // in the order of time: the newest stays
		for _, b := range buckets {
			if e.GetValue() <= b.GetUpperBound() {
				b.Exemplar = e
				break
			}
		}
	}
	m.Histogram.Bucket, m.Histogram.Exemplars = buckets, h.exemplars
	return nil
}
