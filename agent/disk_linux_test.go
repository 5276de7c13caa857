package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/exporters/record"
)

const idle = `seed 3
duration 40s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=2 prompt=50 output=40 0s..39s
`

// The disk fills up under a running agent, and is freed again.
func TestAFullDiskIsSaidOnceAndGotOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tpotscope-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no small file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	w := newWorld(t, idle)
	cfg := w.config(t)
	cfg.Record.Dir = filepath.Join(dir, "run")
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	samples := filepath.Join(cfg.Record.Dir, "samples-000001.arrows")
	until(t, 10*time.Second, "a first batch", func() bool { st, err := os.Stat(samples); return err == nil && st.Size() > 0 })

	fill := filepath.Join(dir, "fill")
	f, err := os.Create(fill)
	must(t, err)
	for chunk := make([]byte, 4096); err == nil; {
		_, err = f.Write(chunk)
	}
	must(t, f.Close())
	says := func() bool { return strings.Contains(ag.get(t, "/healthz"), "the recording loses rows") }
	until(t, 10*time.Second, "the health to say so", says)
	lost := func() bool {
		return strings.Contains(ag.get(t, "/metrics"), `tpotscope_ring_drops_total{ring="recording"`)
	}
	until(t, 10*time.Second, "the loss to be counted", lost)
	until(t, 10*time.Second, "more than one write that fails", func() bool { return says() && ag.log.count("recording") > 0 })
	must(t, os.Remove(fill))
	until(t, 10*time.Second, "the health to be well again", func() bool { return !says() })
	if n, m := ag.log.count("recording loses rows"), ag.log.count("recording goes on"); n != 1 || m != 1 {
		t.Errorf("the loss was logged %d times and its end %d times, want once each", n, m)
	}
	ag.stop(t)

	r, err := record.OpenReader(cfg.Record.Dir)
	must(t, err)
	var longest time.Duration
	last, n := int64(0), 0
	for s, err := range r.Samples() {
		must(t, err)
		if last != 0 {
			longest = max(longest, time.Duration(int64(s.Over.End)-last))
		}
		last = int64(s.Over.End)
		n++
	}
	if n == 0 || longest < 500*time.Millisecond {
		t.Errorf("%d samples with a longest gap of %v, want a gap where the disk was full", n, longest)
	}
	if len(r.Meta().GPUs) != 1 || len(r.Meta().Targets) != 1 {
		t.Errorf("meta.json names %d GPUs and %d targets", len(r.Meta().GPUs), len(r.Meta().Targets))
	}
}
