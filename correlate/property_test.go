package correlate_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// checkCells holds what is true of all cells of a scenario that a probe saw whole.
func checkCells(t *testing.T, cells []correlate.Cell, tl *scenario.Timeline) {
	t.Helper()
	tokens, want := map[string]float64{}, map[string]float64{}
	end := map[string]timeline.Instant{}
	for i := range cells {
		c := &cells[i]
		tokens[c.Target] += c.Tokens
		if c.Span.Duration() != time.Second || int64(c.Span.Start)%1e9 != 0 {
			t.Fatalf("cell %+v is not a whole second", c.Span)
		}
		if last, ok := end[c.Target]; ok && last != c.Span.Start {
			t.Fatalf("cells of %s overlap or leave a hole: one ends at %d, the next starts at %d", c.Target, last, c.Span.Start)
		}
		end[c.Target] = c.Span.End
		if v := &c.Verdict; v.OK() && math.Abs(v.Shares.Sum()-1) > 1e-9 {
			t.Fatalf("shares %+v sum to %v", v.Shares, v.Shares.Sum())
		}
		if c.Verdict.Confidence > timeline.Low {
			t.Fatalf("a lone cell has confidence %s", c.Verdict.Confidence)
		}
		if c.CoveredS > 1+1e-9 || c.CoveredS < 0 {
			t.Fatalf("%v s of one are covered", c.CoveredS)
		}
	}
	for _, r := range tl.Requests() {
		want[tl.Targets()[r.Target].Name] += float64(len(r.Tokens))
	}
	for name, n := range want {
		near(t, "tokens of "+name, tokens[name], n, 1e-6)
	}
}

const small = `
seed 4
duration 12s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load rate=6 arrivals=poisson prompt=100..900 output=20..200 0s..11s
`

func TestTheSameInputGivesTheSameBytes(t *testing.T) {
	tl := parse(t, small)
	_, a := play(tl, 0.7)
	_, b := play(tl, 0.7)
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Error("two runs over one input differ")
	}
}

func TestMixtureSumsToOne(t *testing.T) {
	_, out := play(parse(t, small), 1)
	for i := range out.Phases {
		p := &out.Phases[i]
		if p.Request.First == 0 || p.Request.First == p.Request.Last {
			continue
		}
		var sum float64
		for k, part := range p.Mixture {
			sum += part.Share
			if k > 0 && part.Share > p.Mixture[k-1].Share {
				t.Errorf("mixture %v is not in order", p.Mixture)
			}
		}
		near(t, "mixture", sum, 1, 1e-6)
	}
}

func TestPartCoverageWithholds(t *testing.T) {
	for _, part := range []float64{0.1, 0.3, 0.6} {
		tl := parse(t, `
seed 8
duration 30s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
load streams=40 prompt=200 output=300 0s..30s
`)
		_, out := play(tl, part)
		for i := range out.Cells {
			c := &out.Cells[i]
			from, to := c.Span.Start.Sub(t0), c.Span.End.Sub(t0)
			if from < 3e9 || to > tl.Duration()-2e9 {
				continue
			}
			if !c.Coverage.OK() || c.Coverage.Value >= 0.95 {
				t.Errorf("part %v: coverage %v %s", part, c.Coverage.Value, c.Coverage.Why)
			}
			if tr := tl.Truth(0, from, to); tr.MeanBatch > 1 {
				near(t, "batch", c.Batch.Value, tr.MeanBatch, 0.1*tr.MeanBatch)
			}
			if c.Verdict.Ceiling > timeline.Medium {
				t.Errorf("part %v: ceiling %s", part, c.Verdict.Ceiling)
			}
		}
		for i := range out.Phases {
			if g := out.Phases[i].Grade; g == timeline.Isolated {
				t.Errorf("part %v: a phase is %s", part, g)
			}
		}
	}
}

func TestALoneRequestIsIsolated(t *testing.T) {
	tl := parse(t, `
seed 8
duration 20s
gpu h100
target main model=Llama-3.1-8B dtype=bf16
request at=3s prompt=300 output=1500
`)
	_, out := play(tl, 1)
	if len(out.Phases) != 1 {
		t.Fatalf("%d phases", len(out.Phases))
	}
	p := &out.Phases[0]
	near(t, "concurrency", p.Concurrency.Value, 1, 1e-6)
	if p.Grade != timeline.Isolated || p.Label != timeline.Memory {
		t.Errorf("got %s, %s (%s); want isolated, memory", p.Grade, p.Label, p.Reason)
	}
	tr := tl.Truth(0, p.Request.First.Sub(t0), p.Request.Last.Sub(t0))
	near(t, "DRAM bytes", p.DRAMBytes.Value, tr.DRAMBytes, 0.01*tr.DRAMBytes)
	near(t, "DRAM", p.Counters[timeline.DRAMUtil].Value, tr.DRAMUtil, 0.01)
}

// TestTheCadenceOfAdvanceDoesNotMatter closes cells as an agent does, and all at once.
func TestTheCadenceOfAdvanceDoesNotMatter(t *testing.T) {
	tl := parse(t, small)
	live := player{tl: tl, seen: 1, targets: tl.Targets()}
	_, a := live.run()
	once := player{tl: tl, seen: 1, targets: tl.Targets(), atOnce: true}
	_, b := once.run()
	x, err := json.Marshal(a.Cells)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b.Cells)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		for i := range a.Cells {
			if diff := cmp.Diff(a.Cells[i], b.Cells[i]); diff != "" {
				t.Fatalf("cell %d (-live +at once):\n%s", i, diff)
			}
		}
		t.Error("cells differ")
	}
	for i := range a.Phases {
		p, q := &a.Phases[i], &b.Phases[i]
		if p.Request.Ref != q.Request.Ref || p.Label != q.Label || p.Windows != q.Windows || p.Grade != q.Grade {
			t.Errorf("phase %d: live %d %s %d %s, at once %d %s %d %s", i, p.Request.Ref, p.Label, p.Windows, p.Grade, q.Request.Ref, q.Label, q.Windows, q.Grade)
		}
	}
}
