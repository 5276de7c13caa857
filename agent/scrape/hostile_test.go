package scrape_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// full returns a page of four megabytes of a series that differs by a number.
func full(format string) []byte {
	var b strings.Builder
	for i := 0; b.Len() < 4<<20-300; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return []byte(b.String())
}

// A page is parsed at a price of ten times its size, each second: what is not read must not be parsed, and what is read
// has a bound.
func TestAPageCostsNoMoreThanWhatIsReadOfIt(t *testing.T) {
	const running = "vllm:num_requests_running 8\n"
	var s timeline.EngineSample
	others := append([]byte(running), full("# HELP x%[1]d a help\n# TYPE x%[1]d gauge\nx%[1]d{a=\"b\"} 1\n")...)
	allocs := testing.AllocsPerRun(1, func() {
		s = timeline.EngineSample{}
		if _, err := scrape.Translate(append([]byte(nil), others...), &s); err != nil {
			t.Error(err)
		}
	})
	if v, ok := s.Get(timeline.Running); !ok || v != 8 || allocs > 1000 {
		t.Errorf("beside other programs' metrics %v running were read (%v), with %v allocations", v, ok, allocs)
	}
	_, err := scrape.Translate(append([]byte(running), full("vllm:num_requests_running{a=\"%d\"} 1\n")...), &s)
	if err == nil || err.Error() != "too many series" {
		t.Errorf("a hundred thousand series of one metric: %v, want them refused", err)
	}
	many := full("DCGM_FI_DEV_GPU_TEMP{UUID=\"GPU-%d\"} 1\n")
	for _, page := range [][]byte{many, many[:bytes.LastIndexByte(many[:8000], '\n')+1]} {
		if _, _, err = scrape.TranslateDCGM(bytes.Clone(page)); err == nil || err.Error() != "too many series" {
			t.Errorf("a hundred thousand GPUs, or two hundred: %v, want them refused", err)
		}
	}
}

// The parser makes some number of a count that is none, which would stay in every mean it reaches.
func TestACountThatIsNoneIsNotTaken(t *testing.T) {
	for _, count := range []string{"NaN", "+Inf", "1e300", "1e18"} {
		var s timeline.EngineSample
		text := "# TYPE vllm:inter_token_latency_seconds histogram\nvllm:inter_token_latency_seconds_sum 5\nvllm:inter_token_latency_seconds_count " +
			count + "\nvllm:num_requests_running 1\n"
		if _, err := scrape.Translate([]byte(text), &s); err != nil {
			continue // that is as good
		}
		if v, ok := s.Get(timeline.ITLCount); ok {
			t.Errorf("a count of %s was taken as %v", count, v)
		}
	}
}

// Names go into logs, labels and files.
func TestNamesOfMetricsAreMadeFitToShow(t *testing.T) {
	for _, name := range []string{strings.Repeat("é", 400), "a\x1b[31m" + strings.Repeat("m", 1<<16), `a\nlevel=ERROR`} {
		var s timeline.EngineSample
		id, err := scrape.Translate(fmt.Appendf(nil, "vllm:num_requests_running{model_name=\"%s\"} 8\n", name), &s)
		if err != nil {
			t.Fatal(err)
		}
		odd := strings.ContainsFunc(id.Model, func(r rune) bool { return !unicode.IsPrint(r) })
		if id.Model == "" || len(id.Model) > 256 || !utf8.ValidString(id.Model) || odd {
			t.Errorf("a name of %d bytes became %.40q of %d", len(name), id.Model, len(id.Model))
		}
	}
}
