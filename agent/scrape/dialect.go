package scrape

import (
	"bytes"
	"math"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// dialect is one engine's way to name its metrics.
type dialect struct {
	name   string
	prefix string
	read   func(families, *timeline.EngineSample) Identity
}

// dialects lists what can be read. The first whose prefix occurs wins: no engine exports another's names.
var dialects = []dialect{
	{"vllm", "vllm:", readVLLM},
	{"sglang", "sglang:", readSGLang},
	{"llama.cpp", "llamacpp:", readLlama},
}

// Translate reads a Prometheus text page of an engine into s, and returns what the page tells of the engine's
// identity. Counters that the page does not hold, or whose value is not a number, stay absent. The page is used up.
func Translate(page []byte, s *timeline.EngineSample) (Identity, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	fams, err := p.TextToMetricFamilies(bytes.NewReader(withoutBuckets(page)))
	if err != nil {
		return Identity{}, errUnreadable
	}
	for _, d := range dialects {
		for name := range fams {
			if strings.HasPrefix(name, d.prefix) {
				id := d.read(families(fams), s)
				id.Engine = d.name
				if t, ok := families(fams).least("process_start_time_seconds"); ok {
					s.Put(timeline.StartTime, t)
				}
				return id, nil
			}
		}
	}
	return Identity{}, errUnknown
}

// withoutBuckets takes the lines of histogram buckets out of a page, in place: they are most of what an engine tells,
// and only sums and counts are read.
func withoutBuckets(page []byte) []byte {
	kept := page[:0]
	for line := range bytes.Lines(page) {
		if name, _, ok := bytes.Cut(line, []byte("{")); !ok || !bytes.HasSuffix(name, []byte("_bucket")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// families are the metrics of one page by name.
type families map[string]*dto.MetricFamily

// sum returns the sum over all label sets of the first of names that has a finite value: engines with data-parallel
// replicas, several models or reasons of finishing export one series each. Names are tried in order because engines
// rename metrics, and some export the old and the new name side by side.
func (f families) sum(names ...string) (float64, bool) {
	for _, name := range names {
		total, found := 0.0, false
		for _, m := range f.metrics(name) {
			if v, ok := scalar(m); ok {
				total, found = total+v, true
			}
		}
		if found {
			return total, true
		}
	}
	return 0, false
}

// distribution returns the sum and the count of the first of names that is a histogram or a summary, over all label
// sets.
func (f families) distribution(names ...string) (total, count float64, ok bool) {
	for _, name := range names {
		for _, m := range f.metrics(name) {
			switch {
			case m.GetHistogram() != nil:
				total, count, ok = total+m.GetHistogram().GetSampleSum(), count+float64(m.GetHistogram().GetSampleCount()), true
			case m.GetSummary() != nil:
				total, count, ok = total+m.GetSummary().GetSampleSum(), count+float64(m.GetSummary().GetSampleCount()), true
			}
		}
		if ok {
			return total, count, plausible(total)
		}
	}
	return 0, 0, false
}

// label returns the first value of a label of a metric that is not empty.
func (f families) label(name, label string) string {
	for _, m := range f.metrics(name) {
		if v := labelOf(m, label); v != "" {
			return v
		}
	}
	return ""
}

func (f families) metrics(name string) []*dto.Metric {
	if fam := f[name]; fam != nil {
		return fam.GetMetric()
	}
	return nil
}

func labelOf(m *dto.Metric, label string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == label {
			return l.GetValue()
		}
	}
	return ""
}

func scalar(m *dto.Metric) (float64, bool) {
	v := math.NaN()
	switch {
	case m.GetCounter() != nil:
		v = m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		v = m.GetGauge().GetValue()
	case m.GetUntyped() != nil:
		v = m.GetUntyped().GetValue()
	}
	return v, plausible(v)
}

// most is more than any engine counts in its life: at a million tokens a second, thirty years.
const most = 1e15

// plausible reports whether v can be what an engine tells. What cannot would stay in every sum it reaches.
func plausible(v float64) bool { return v >= 0 && v <= most }

// putSum sets c to the sum of the first of names that is there.
func putSum(s *timeline.EngineSample, c timeline.EngineCounter, f families, names ...string) {
	if v, ok := f.sum(names...); ok {
		s.Put(c, v)
	}
}

// putPair sets sum and count to those of the first distribution of names that is there.
func putPair(s *timeline.EngineSample, sum, count timeline.EngineCounter, f families, names ...string) {
	if total, n, ok := f.distribution(names...); ok {
		s.Put(sum, total)
		s.Put(count, n)
	}
}
