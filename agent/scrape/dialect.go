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

// startTimeMetric tells when a process began, whatever it is.
const startTimeMetric = "process_start_time_seconds"

// Translate reads a Prometheus text page of an engine into s, and returns what the page tells of the engine's
// identity. Counters that the page does not hold, or whose value is not a number, stay absent. The page is used up.
func Translate(page []byte, s *timeline.EngineSample) (Identity, error) {
	kept, err := wanted(page, maxSeries, known)
	if err != nil {
		return Identity{}, err
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	fams, err := p.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return Identity{}, errUnreadable
	}
	for _, d := range dialects {
		for name := range fams {
			if strings.HasPrefix(name, d.prefix) {
				id := d.read(families(fams), s)
				id.Engine = d.name
				if t, ok := families(fams).least(startTimeMetric); ok {
					s.Put(timeline.StartTime, t)
				}
				return id, nil
			}
		}
	}
	return Identity{}, errUnknown
}

// maxSeries is how many series of an engine's page are read. An engine of sixteen replicas tells some hundreds that are no buckets.
const maxSeries = 1 << 13

// wanted takes out of a page, in place, all that is not read: other programs' metrics, help texts, and the lines of
// histogram buckets, which are most of what an engine tells. What is left is parsed, which takes a hundred times as long
// and as much room: so that is bounded.
func wanted(page []byte, most int, known func(name []byte) bool) ([]byte, error) {
	kept := page[:0]
	series := 0
	for line := range bytes.Lines(page) {
		if !ours(bytes.TrimSpace(line), known) {
			continue
		}
		if line[0] != '#' {
			series++
		}
		if series > most {
			return nil, errTooMany
		}
		kept = append(kept, line...)
	}
	return kept, nil
}

// ours reports whether a line of a page is of a metric that may be read. A line that is none stays, so that a page which
// is no page of metrics is told from one of another program.
func ours(line []byte, known func(name []byte) bool) bool {
	if rest, comment := bytes.CutPrefix(line, []byte("# TYPE ")); comment {
		name, _, _ := bytes.Cut(rest, []byte(" "))
		return known(name)
	}
	if len(line) == 0 || line[0] == '#' {
		return false
	}
	name := line[:max(0, bytes.IndexAny(line, "{ \t"))]
	if bytes.HasSuffix(name, []byte("_bucket")) && line[len(name)] == '{' {
		return false
	}
	return known(name) || !metricName(name)
}

// known reports whether a name is that of an engine's metric, or of the one of its process.
func known(name []byte) bool {
	if bytes.HasPrefix(name, []byte(startTimeMetric)) {
		return true
	}
	for _, d := range dialects {
		if bytes.HasPrefix(name, []byte(d.prefix)) {
			return true
		}
	}
	return false
}

// metricName reports whether a name is one in the text format of Prometheus.
func metricName(name []byte) bool {
	for i, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(name) > 0
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
			// A count that is no number comes out of the parser as some number, nothing most likely.
			return total, count, plausible(total) && plausible(count) && (count > 0 || total == 0)
		}
	}
	return 0, 0, false
}

// label returns the first value of a label of a metric that is not empty, as [clip] leaves it.
func (f families) label(name, label string) string {
	for _, m := range f.metrics(name) {
		if v := clip(labelOf(m, label)); v != "" {
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
