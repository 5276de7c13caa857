package route_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/route"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// An exporter that names other GPUs each time must not add to the list for ever: each of them holds its readings.
func TestGPUsThatAnExporterMakesUpAreBounded(t *testing.T) {
	var got sink
	r := route.New(route.Config{Cell: time.Second, Lateness: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}, &got)
	for i := range 2000 {
		end := begin.Add(time.Duration(i) * time.Second)
		reading := scrape.DCGMReading{GPU: timeline.GPU{UUID: fmt.Sprintf("GPU-%d", i)}, Every: time.Second}
		reading.Windows = timeline.Sample{GPU: timeline.NoGPU, Over: timeline.Span{Start: end.Add(-time.Second), End: end}}
		reading.Windows.Put(timeline.DRAMUtil, 0.5)
		reading.Gauges = timeline.Sample{GPU: timeline.NoGPU, Over: timeline.Span{Start: end.Add(-1), End: end}}
		r.Exporter(&reading)
	}
	if n := len(got.gpus); n == 0 || n > 256 {
		t.Errorf("%d GPUs are listed", n)
	}
}
