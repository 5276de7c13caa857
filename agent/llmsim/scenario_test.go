package llmsim_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const small = `seed 1
duration 4s
gpu h100
target t model=Llama-3.1-8B dtype=bf16
load streams=4 prompt=20..30 output=20..40 0s..4s
`

func play(t *testing.T) *scenario.Timeline {
	t.Helper()
	sc, err := scenario.Parse("small.scenario", bytes.NewReader([]byte(small)))
	if err != nil {
		t.Fatal(err)
	}
	tl, err := sc.Run()
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func TestAScenarioIsStreamedToTheToken(t *testing.T) {
	tl := play(t)
	now := clock()
	epoch := now().Add(100 * ms)
	url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: epoch, Precise: true, Plan: tl}))
	reqs := tl.Requests()
	if len(reqs) < 8 {
		t.Fatalf("the scenario has %d requests: too few to tell anything", len(reqs))
	}
	got, err := llmsim.Play(t.Context(), llmsim.PlayerConfig{BaseURL: url, Now: now, Epoch: epoch, Usage: true}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got {
		want := &reqs[i]
		if p.Err != nil || !p.Terminal || p.Tokens != len(want.Tokens) {
			t.Errorf("request %d: %d tokens, %v; want %d", i, p.Tokens, p.Err, len(want.Tokens))
		}
		if p.Chunks > 0 && p.First < epoch.Add(want.First()) {
			t.Errorf("request %d: its first token came before it was made", i)
		}
	}
}

// What the server tells of itself is read by the agent's own scraper, and is what the timeline holds.
func TestMetricsAreThoseOfTheTimeline(t *testing.T) {
	tl := play(t)
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, llmsim.Config{Plan: tl})
		for _, at := range []time.Duration{0, time.Second, 1500 * ms} {
			time.Sleep(at)
			start := time.Now()
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			var got timeline.EngineSample
			id, err := scrape.Translate(w.Body.Bytes(), &got)
			if err != nil {
				t.Fatal(err)
			}
			if id.Engine != "vllm" || id.Model != "sim-8b" || time.Since(start) != 0 {
				t.Errorf("identity %+v", id)
			}
			elapsed := map[time.Duration]time.Duration{0: 0, time.Second: time.Second, 1500 * ms: 2500 * ms}[at]
			st := tl.Engine(0, elapsed)
			for c, want := range map[timeline.EngineCounter]float64{
				timeline.Running: float64(st.Running), timeline.Waiting: float64(st.Waiting), timeline.KVUsage: st.KVUsage,
				timeline.KVBlocks: float64(st.KVBlocks), timeline.KVBlockSize: float64(st.BlockSize),
				timeline.PromptTotal: float64(st.PromptTokens), timeline.OutputTotal: float64(st.OutputTokens),
				timeline.PreemptTotal: float64(st.Preemptions), timeline.StepTotal: float64(st.Steps),
				timeline.FinishedTotal: float64(st.Finished), timeline.ITLSum: st.ITLSum, timeline.ITLCount: float64(st.ITLCount),
				timeline.TTFTSum: st.TTFTSum, timeline.TTFTCount: float64(st.TTFTCount),
			} {
				if v, ok := got.Get(c); !ok || v-want > 1e-5*want || want-v > 1e-5*want {
					t.Errorf("at %v: %s = %v, %v; want %v", elapsed, c, v, ok, want)
				}
			}
			if at > 0 && st.OutputTokens == 0 {
				t.Error("the scenario made no token: the comparison tells nothing")
			}
		}
	})
}

// Requests that the scenario's probe does not see go around it.
func TestUnseenRequestsGoStraightToTheServer(t *testing.T) {
	sc, err := scenario.Parse("part.scenario", bytes.NewReader([]byte(small+"probe coverage=50%\n")))
	if err != nil {
		t.Fatal(err)
	}
	tl, err := sc.Run()
	if err != nil {
		t.Fatal(err)
	}
	now := clock()
	epoch := now().Add(100 * ms)
	server := newServer(t, llmsim.Config{Now: now, Epoch: epoch, Plan: tl})
	url := listen(t, server)
	var through atomic.Int64
	probe := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through.Add(1)
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(probe.Close)
	got, err := llmsim.Play(t.Context(), llmsim.PlayerConfig{BaseURL: probe.URL, Direct: url, Now: now, Epoch: epoch, Usage: true}, tl.Requests())
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for i, p := range got {
		if p.Err != nil {
			t.Errorf("request %d: %v", i, p.Err)
		}
		if tl.Requests()[i].Observed {
			want++
		}
	}
	if n := int(through.Load()); n != want || n == 0 || n == len(got) {
		t.Errorf("%d of %d requests went through the probe, want %d", n, len(got), want)
	}
}

// An engine that restarts tells another start and counts anew, so that the agent's own scraper sees it.
func TestARestartIsToldAsARealEngineTellsIt(t *testing.T) {
	sc, err := scenario.Parse("restart.scenario", bytes.NewReader([]byte(small+"fault restart 500ms 2s..3s\n")))
	if err != nil {
		t.Fatal(err)
	}
	tl, err := sc.Run()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, llmsim.Config{Plan: tl})
		read := func() (start, output float64) {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			var got timeline.EngineSample
			if _, err := scrape.Translate(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			start, _ = got.Get(timeline.StartTime)
			output, _ = got.Get(timeline.OutputTotal)
			return start, output
		}
		time.Sleep(1900 * ms)
		start, output := read()
		time.Sleep(700 * ms)
		again, anew := read()
		if moved := again - start; moved < 2.4 || moved > 2.6 {
			t.Errorf("the start moved by %.3f s, want 2.5 s", moved)
		}
		if output < 20 || anew >= output {
			t.Errorf("%v tokens before the restart, %v soon after it", output, anew)
		}
	})
}
