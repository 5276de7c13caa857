package summary_test

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestNothingSaysWhyEverywhere(t *testing.T) {
	r := summary.New(summary.Config{}).Report()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"ttft_s", "tpot_s", "tpot_n1_s", "itl_s", "icl_s", "e2e_s", "traffic_coverage"} {
		if a, _ := m[k].(map[string]any)["absent"].(string); a == "" {
			t.Errorf("%s = %v, want why it is absent", k, m[k])
		}
	}
	for _, k := range []string{"gpus", "groups", "warnings"} {
		if _, ok := m[k].([]any); !ok {
			t.Errorf("%s = %v, want a list", k, m[k])
		}
	}
	if r.Decode.Bound != timeline.Undetermined || r.Decode.Shares.OK() {
		t.Errorf("decode %+v", r.Decode)
	}
}

func TestReportTravelsThroughJSON(t *testing.T) {
	for name, b := range map[string]*summary.Builder{"full": recording(summary.Config{Anchor: anchor()}, 0.5), "empty": summary.New(summary.Config{})} {
		t.Run(name, func(t *testing.T) {
			want := b.Report()
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got summary.Report
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, again) {
				t.Errorf("report changes on its way:\n%s", cmp.Diff(string(text), string(again)))
			}
		})
	}
}

func FuzzReportJSON(f *testing.F) {
	text, err := json.Marshal(recording(summary.Config{Anchor: anchor()}, 0.5).Report())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"tpot_s":{"absent":"x"},"decode":{"shares":{"absent":"y"}},"groups":[{"concurrency":{"low":1}}]}`))
	f.Add([]byte(`{"tpot_s":null,"itl_s":{"n":1,"ci95_mean":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r summary.Report
		if json.Unmarshal(b, &r) != nil {
			return
		}
		if _, err := json.Marshal(&r); err != nil && !strings.Contains(err.Error(), "year outside") {
			t.Fatalf("what was read does not write: %v", err)
		}
	})
}

func TestWhatIsNoNumberDoesNotSpoilTheReport(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		b := summary.New(summary.Config{})
		for i := range 30 {
			c := memoryCell(rng, i, 1)
			m := timeline.Known(bad)
			switch i % 6 {
			case 0:
				c.DRAMBytes, c.ModelledBytes = m, m
			case 1:
				c.OutputTokens, c.PromptTokens, c.Steps = m, m, m
			case 2:
				c.Tokens, c.ThrottledS = bad, bad
			case 3:
				c.Verdict.Shares.Memory, c.Verdict.Roof.High, c.Verdict.D = bad, bad, bad
			case 4:
				c.Counters[timeline.DRAMUtil].Value, c.PerGPU[0].Counters[timeline.SMUtil].Value = bad, bad
			}
			b.AddCell(&c)
			p := phase(float64(i), 10, 0.02)
			p.Latency.TPOT, p.Latency.ITL[0], p.Concurrency = m, bad, m
			b.AddPhase(&p)
		}
		if _, err := json.Marshal(b.Report()); err != nil {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestSameInputSameReport(t *testing.T) {
	a, err := json.Marshal(recording(summary.Config{}, 0.7).Report())
	if err != nil {
		t.Fatal(err)
	}
	b := recording(summary.Config{}, 0.7)
	b.Report() // a report changes nothing
	c, err := json.Marshal(b.Report())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, c) {
		t.Error("same input, other report")
	}
}
