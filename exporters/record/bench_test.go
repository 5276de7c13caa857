package record_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// node writes seconds of a node at default rates: per GPU ten windows, ten readings of clocks and one of the rest a
// second; streams times 50 tokens a second.
func node(tb testing.TB, dir string, gpus, streams, seconds int, flush bool) record.Stats {
	tb.Helper()
	m := meta()
	m.GPUs = nil
	for i := range gpus {
		m.GPUs = append(m.GPUs, timeline.GPU{UUID: fmt.Sprintf("GPU-6f1c3f0a-0000-4000-8000-%012d", i)})
	}
	w, err := record.Create(dir, m, record.Options{MaxBytes: -1})
	if err != nil {
		tb.Fatal(err)
	}
	for s := range seconds {
		for tick := range 10 {
			for g := range gpus {
				at := timeline.Instant(s)*sec + timeline.Instant(tick)*100e6 + timeline.Instant(g*3701+tick*911)
				fast := timeline.Sample{GPU: g, Over: timeline.Span{Start: at - 110e6, End: at}, Slack: 20_000}
				for c := timeline.GraphicsUtil; c <= timeline.DRAMUtil; c++ {
					fast.Put(c, float64((int(at)/7+int(c)*31)%1000)/1000)
				}
				w.AddSample(&fast)
				clocks := timeline.Sample{GPU: g, Over: timeline.Span{Start: at, End: at + 30_000}, Slack: 15_000}
				clocks.Put(timeline.SMClock, 1.98e9)
				clocks.Put(timeline.EventReasons, 0)
				w.AddSample(&clocks)
				if tick == 0 {
					slow := timeline.Sample{GPU: g, Over: timeline.Span{Start: at, End: at + 60_000}, Slack: 30_000}
					for c := timeline.Power; c < timeline.NumCounters; c++ {
						slow.Put(c, float64(int(at)%100_000))
					}
					w.AddSample(&slow)
				}
			}
		}
		for i := range 50 * streams {
			at := timeline.Instant(s)*sec + timeline.Instant(i)*sec/timeline.Instant(50*streams)
			w.AddToken(timeline.TokenEvent{
				Ref: uint64(i % streams), At: at + timeline.Instant(i*7919%4096), After: at + timeline.Instant(i*7919%4096), Tokens: 1,
				Source: timeline.CountUsage, Kind: timeline.KindContent, Stamp: timeline.StampKernel,
			})
		}
		if flush {
			if err := w.Flush(); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return w.Stats()
}

// BenchmarkWrite is a second of a node: the time is what the agent spends a second.
func BenchmarkWrite(b *testing.B) {
	for _, streams := range []int{16, 256} {
		b.Run(fmt.Sprintf("gpus=8/streams=%d", streams), func(b *testing.B) {
			b.ReportAllocs()
			s := node(b, filepath.Join(b.TempDir(), "run"), 8, streams, b.N, true)
			b.ReportMetric(float64(s.Written)/float64(b.N), "B/s")
		})
	}
}

// BenchmarkMerge reads what BenchmarkWrite writes: the time is of a second of the node.
func BenchmarkMerge(b *testing.B) {
	for _, streams := range []int{0, 256} {
		for _, flush := range []bool{true, false} {
			b.Run(fmt.Sprintf("gpus=8/streams=%d/flush=%v", streams, flush), func(b *testing.B) {
				dir := filepath.Join(b.TempDir(), "run")
				node(b, dir, 8, streams, b.N, flush)
				r, err := record.OpenReader(dir)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				rows := 0
				for _, err := range r.Merge("boot-1") {
					if err != nil {
						b.Fatal(err)
					}
					rows++
				}
				b.ReportMetric(float64(rows)/float64(b.N), "rows/op")
			})
		}
	}
}
