package prom_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/timestamp"

	"github.com/tpotscope/tpotscope/agent/importer"
	"github.com/tpotscope/tpotscope/agent/replay"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters"
	"github.com/tpotscope/tpotscope/exporters/prom"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// node is some five and a half minutes of two engines on a GPU each. The first decodes, then takes long prompts under a power
// cap, and then waits for its host; the second decodes all the time.
const node = `
seed 11
duration 340s
gpu h100 count=2
target chat model=Qwen2.5-32B dtype=bf16 gpus=0
target code model=Qwen2.5-32B dtype=bf16 gpus=1
engine max_batch=64 budget=2048 chunk=1024
load target=chat streams=12 prompt=80..160 output=60..120 0s..340s
load target=code streams=4 prompt=80..160 output=60..120 0s..340s
load target=chat rate=1.4 arrivals=even prompt=2500..4500 output=20..40 105s..210s
fault power_cap 350W gpu=0 110s..212s
fault host_stall 40ms target=chat 225s..340s
phase decode 30s..100s
phase power_cap 120s..210s
phase host_stall 230s..330s
`

const (
	// scrapeEvery is the time between two scrapes. A cell is told when it is Lateness old, as the agent does; with scrapes
	// at that offset each sees exactly the cells up to a multiple of scrapeEvery.
	scrapeEvery = 5 * time.Second
	// readmeRange is the range of the README's queries, and ended when they are asked: before the end of the scenario,
	// where the cells that are left are told at once.
	readmeRange = "5m"
	ended       = 330 * time.Second
)

// origin is where a scenario starts on the timeline of its recording.
const origin = timeline.Instant(1000 * time.Second)

// play is a node that was recorded, replayed and scraped.
type play struct {
	*server
	truth *scenario.Timeline
	start time.Time
	late  time.Duration
	cells []correlate.Cell
}

// newPlay records the scenario, replays the recording through the engine into the sink, and scrapes it at the times at
// which a Prometheus would have.
func newPlay(t *testing.T) *play {
	t.Helper()
	parsed, err := scenario.Parse("node", strings.NewReader(node))
	if err != nil {
		t.Fatal(err)
	}
	truth, err := parsed.Run()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	if err := importer.FromScenario(t.Context(), truth, dir, importer.ScenarioOptions{}); err != nil {
		t.Fatal(err)
	}
	recording, err := record.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	var anchor timeline.Anchor
	for a, err := range recording.Anchors() {
		if err != nil {
			t.Fatal(err)
		}
		anchor = *a
		break
	}
	sink, err := prom.New(prom.Config{State: exporters.StateConfig{Profile: exporters.Standard, Targets: recording.Meta().Targets, Version: "1.2.3"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := correlate.DefaultConfig()
	p := &play{server: newServer(t), truth: truth, start: anchor.Time(origin), late: cfg.Lateness}
	scraped := time.Duration(0)
	scrapeUpTo := func(now time.Duration) {
		for ; scraped+p.late < now; scraped += scrapeEvery {
			p.scrape(t, sink, p.at(scraped))
		}
	}
	_, err = replay.Run(t.Context(), recording, cfg, func(o *correlate.Output) error {
		if n := len(o.Cells); n > 0 {
			scrapeUpTo(o.Cells[n-1].Span.End.Sub(origin) + p.late)
		}
		cells := slices.Clone(o.Cells)
		p.cells = append(p.cells, cells...)
		return sink.Consume(t.Context(), &exporters.Batch{Anchor: anchor, GPUs: recording.Meta().GPUs, Cells: cells, Phases: slices.Clone(o.Phases)})
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if scraped <= ended {
		t.Fatalf("the last scrape was at %v", scraped-scrapeEvery)
	}
	return p
}

// at returns when the cells up to an offset of the scenario are scraped.
func (p *play) at(offset time.Duration) time.Time { return p.start.Add(offset + p.late) }

// scrape stores what the sink shows, as read by Prometheus' parser of its protobuf format, at the given time.
func (p *play) scrape(t *testing.T, sink *prom.Sink, at time.Time) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	r.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	w := httptest.NewRecorder()
	sink.Handler().ServeHTTP(w, r)
	parser, err := textparse.New(w.Body.Bytes(), w.Header().Get("Content-Type"), labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	app := p.db.Appender(t.Context())
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var ls labels.Labels
		switch entry {
		case textparse.EntrySeries:
			parser.Labels(&ls)
			_, _, v := parser.Series()
			_, err = app.Append(0, ls, timestamp.FromTime(at), v)
		case textparse.EntryHistogram:
			parser.Labels(&ls)
			_, _, h, fh := parser.Histogram()
			_, err = app.AppendHistogram(0, ls, timestamp.FromTime(at), h, fh)
			for e := (exemplar.Exemplar{}); parser.Exemplar(&e); { // none is looked at here
			}
		case textparse.EntryInvalid, textparse.EntryType, textparse.EntryHelp, textparse.EntryComment, textparse.EntryUnit:
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// readme returns the queries of the README by the comment above each.
func readme(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for _, block := range regexp.MustCompile("(?ms)^```promql\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		comment, query, _ := strings.Cut(block[1], "\n")
		name, ok := strings.CutPrefix(comment, "# ")
		if query = strings.TrimSpace(query); !ok || query == "" || queries[name] != "" {
			t.Errorf("README.md: this query needs one comment of its own above it:\n%s", block[1])
			continue
		}
		queries[name] = query
	}
	return queries
}

func (p *play) check(t *testing.T, query string, w window, wants []expectation) {
	t.Helper()
	got := p.query(t, query, p.at(w.to))
	for n, expect := range wants {
		want := expect(p, w)
		if len(want) == 0 {
			t.Errorf("%s: expectation %d says nothing", query, n)
		}
		for k, v := range got {
			if _, ok := want[k]; !ok && v != 0 {
				t.Errorf("%s at %v: %s is %g, and was not expected", query, w.to, k, v)
			}
		}
		for k, b := range want {
			if v, ok := got[k]; (!ok && b.low > 0) || !(v >= b.low && v <= b.high) { // no number is in no band
				t.Errorf("%s at %v: %s is %g, want %g to %g", query, w.to, k, v, b.low, b.high)
			}
		}
	}
}

// The queries that the README shows say what the scenario does: as they are written, over their five minutes, and over
// each phase alone.
func TestQueriesOfTheReadme(t *testing.T) {
	queries := readme(t)
	p := newPlay(t)
	for _, name := range slices.Sorted(maps.Keys(expectations)) {
		if queries[name] == "" {
			t.Errorf("README.md shows no query %q", name)
		}
	}
	length, err := model.ParseDuration(readmeRange)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		t.Run(name, func(t *testing.T) {
			query, wants := queries[name], expectations[name]
			if wants == nil {
				t.Fatalf("nothing says what this query should return:\n%s", query)
			}
			if !strings.Contains(query, "["+readmeRange+"]") {
				t.Fatalf("%s: its range is not [%s]", query, readmeRange)
			}
			p.check(t, query, seen(ended, time.Duration(length)), wants)
			for _, phase := range p.truth.Phases() {
				short := strings.ReplaceAll(query, "["+readmeRange+"]", fmt.Sprintf("[%ds]", int(phase.Span.Length().Seconds())))
				p.check(t, short, seen(phase.Span.To, phase.Span.Length()), wants)
			}
		})
	}
}
