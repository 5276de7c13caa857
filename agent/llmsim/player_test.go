package llmsim_test

import (
	"context"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/scenario"
)

// steady returns n requests, gap apart, each with k tokens tpot apart.
func steady(n, k int, gap, ttft, tpot time.Duration) []scenario.Request {
	var reqs []scenario.Request
	for i := range n {
		r := scenario.Request{Index: i, Arrival: time.Duration(i) * gap, PromptTokens: 10, OutputTokens: k}
		for j := range k {
			r.Tokens = append(r.Tokens, r.Arrival+ttft+time.Duration(j)*tpot)
		}
		r.Finish = r.Tokens[k-1]
		reqs = append(reqs, r)
	}
	return reqs
}

func TestThePlayerSeesWhatTheServerPlans(t *testing.T) {
	reqs := steady(8, 20, 15*ms, 60*ms, 7*ms)
	now := clock()
	epoch := now().Add(50 * ms)
	url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: epoch, Precise: true, Plan: plan{requests: reqs}}))
	got, err := llmsim.Play(t.Context(), llmsim.PlayerConfig{BaseURL: url, Now: now, Epoch: epoch, Usage: true, KeepTimes: true}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(reqs) {
		t.Fatalf("%d played, want %d", len(got), len(reqs))
	}
	for i, p := range got {
		if p.Err != nil || p.Status != http.StatusOK || !p.Terminal || p.Tokens != 20 || p.Chunks != 20 || len(p.Times) != 20 || p.Index != i {
			t.Errorf("request %d: %+v", i, p)
		}
		// Nothing is early; how late it is depends on the machine's load, so the bound is loose.
		for j, at := range p.Times {
			due := epoch.Add(reqs[i].Tokens[j])
			if at < due || at > due.Add(2*time.Second) {
				t.Errorf("request %d token %d came %v after it was due", i, j, at.Sub(due))
			}
		}
		if p.Sent < epoch.Add(reqs[i].Arrival) || p.Head > p.First || p.First > p.Last || p.Last > p.Done {
			t.Errorf("request %d: times out of order: %+v", i, p)
		}
	}
}

func TestThePlayerCountsByWhatItIsTold(t *testing.T) {
	for name, cfg := range map[string]llmsim.PlayerConfig{
		"usage":      {Usage: true},
		"continuous": {Continuous: true, Text: true},
		"ids":        {TokenIDs: true, Text: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := clock()
			reqs := []scenario.Request{{Index: 0, OutputTokens: 10}}
			url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: now(), Free: llmsim.Pace{TPOT: ms, Tokens: 1}}))
			cfg.BaseURL, cfg.Now, cfg.Epoch = url, now, now()
			cfg.Header = http.Header{llmsim.FaultHeader: {"merge=4"}}
			// A server without a plan has no request of that index.
			got, err := llmsim.Play(t.Context(), cfg, reqs)
			if err != nil {
				t.Fatal(err)
			}
			if got[0].Status != http.StatusConflict {
				t.Fatalf("a request of no plan: %+v", got[0])
			}
			cfg.Free = true
			got, err = llmsim.Play(t.Context(), cfg, reqs)
			if err != nil {
				t.Fatal(err)
			}
			if got[0].Err != nil || got[0].Tokens != 10 || got[0].Chunks != 3 {
				t.Errorf("got %+v, want 10 tokens in 3 chunks", got[0])
			}
		})
	}
}

func TestThePlayerReportsBrokenStreams(t *testing.T) {
	now := clock()
	url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: now(), Free: llmsim.Pace{TPOT: ms, Tokens: 1}}))
	for fault, want := range map[string]string{"cut=3": "read stream", "nodone": "EOF", "error=2": ""} {
		cfg := llmsim.PlayerConfig{BaseURL: url, Now: now, Epoch: now(), Free: true, Header: http.Header{llmsim.FaultHeader: {fault}}}
		got, err := llmsim.Play(t.Context(), cfg, []scenario.Request{{OutputTokens: 5}})
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			if got[0].Err != nil || !got[0].InBand {
				t.Errorf("%s: %+v, want an error in the stream", fault, got[0])
			}
			continue
		}
		if got[0].Err == nil || !strings.Contains(got[0].Err.Error(), want) {
			t.Errorf("%s: %v, want %s", fault, got[0].Err, want)
		}
	}
}

func TestThePlayerStopsWithItsContext(t *testing.T) {
	now := clock()
	url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: now(), Free: llmsim.Pace{TTFT: time.Hour, TPOT: ms, Tokens: 1}}))
	ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
	defer cancel()
	reqs := steady(3, 1, 40*ms, 0, 0)
	reqs[2].Arrival = time.Hour
	got, err := llmsim.Play(ctx, llmsim.PlayerConfig{BaseURL: url, Now: now, Epoch: now(), Free: true}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Errorf("%d requests were sent, want 2", len(got))
	}
}

func TestALongLineIsReadWhole(t *testing.T) {
	now := clock()
	reqs := []scenario.Request{{Index: 0, PromptTokens: 50000, OutputTokens: 2, Tokens: []time.Duration{ms, 2 * ms}, Finish: 2 * ms}}
	url := listen(t, newServer(t, llmsim.Config{Now: now, Epoch: now(), Plan: plan{requests: reqs}}))
	got, err := llmsim.Play(t.Context(), llmsim.PlayerConfig{BaseURL: url, Now: now, Epoch: now(), TokenIDs: true}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Err != nil || got[0].Tokens != 2 {
		t.Errorf("got %+v, want 2 tokens", got[0])
	}
}

// BenchmarkStreams reports how late tokens leave and what a token costs, server and player together.
func BenchmarkStreams(b *testing.B) {
	for _, precise := range []bool{false, true} {
		name := "runtime timer"
		if precise {
			name = "kernel timer"
		}
		b.Run(name, func(b *testing.B) {
			var late []float64
			cpu := cpuTime(b)
			for b.Loop() {
				reqs := steady(64, 40, 0, 100*ms, 43*ms)
				now := clock()
				epoch := now().Add(20 * ms)
				s, err := llmsim.New(llmsim.Config{Now: now, Epoch: epoch, Precise: precise, Plan: plan{requests: reqs}})
				if err != nil {
					b.Fatal(err)
				}
				stop := benchListen(b, s)
				got, err := llmsim.Play(b.Context(), llmsim.PlayerConfig{BaseURL: stop.url, Now: now, Epoch: epoch, KeepTimes: true}, reqs)
				stop.end()
				if err != nil {
					b.Fatal(err)
				}
				for i := range got {
					for j, at := range got[i].Times {
						late = append(late, at.Sub(epoch.Add(reqs[i].Tokens[j])).Seconds()*1e3)
					}
				}
			}
			if len(late) == 0 {
				b.Fatal("no token came")
			}
			b.ReportMetric((cpuTime(b)-cpu).Seconds()*1e6/float64(len(late)), "cpu-us/token")
			slices.Sort(late)
			b.ReportMetric(late[len(late)/2], "p50-late-ms")
			b.ReportMetric(late[int(math.Ceil(0.99*float64(len(late))))-1], "p99-late-ms")
		})
	}
}

// cpuTime returns the processor time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	p, err := process.NewProcess(int32(os.Getpid()))
	if err != nil {
		b.Fatal(err)
	}
	t, err := p.Times()
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration((t.User + t.System) * float64(time.Second))
}
