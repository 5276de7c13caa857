package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAgrees(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		dominant scenario.Limiter
		share    float64
		right    []timeline.Label
	}{
		"one that holds the time":      {scenario.LimitMemory, 0.9, []timeline.Label{timeline.Memory}},
		"compute":                      {scenario.LimitCompute, 0.7, []timeline.Label{timeline.Compute}},
		"launch, or what it may be":    {scenario.LimitLaunch, 0.8, []timeline.Label{timeline.Launch, timeline.HostOrLaunch}},
		"host, or what it may be":      {scenario.LimitHost, 0.8, []timeline.Label{timeline.Host, timeline.HostOrLaunch}},
		"something else":               {scenario.LimitOther, 0.8, []timeline.Label{timeline.Busy, timeline.Communication}},
		"other ranks":                  {scenario.LimitComm, 0.8, []timeline.Label{timeline.Busy, timeline.Communication}},
		"just above the line":          {scenario.LimitMemory, 0.64, []timeline.Label{timeline.Memory, timeline.Mixed, timeline.Balanced, timeline.Busy}},
		"just below the line":          {scenario.LimitMemory, 0.56, []timeline.Label{timeline.Memory, timeline.Mixed, timeline.Balanced, timeline.Busy}},
		"nothing that holds the time":  {scenario.LimitMemory, 0.5, []timeline.Label{timeline.Mixed, timeline.Balanced, timeline.Busy}},
		"above the line without doubt": {scenario.LimitHost, 0.66, []timeline.Label{timeline.Host, timeline.HostOrLaunch}},
	} {
		right := map[timeline.Label]bool{}
		for _, l := range tt.right {
			right[l] = true
		}
		for _, l := range []timeline.Label{
			timeline.Memory, timeline.Compute, timeline.Balanced, timeline.Mixed, timeline.Host, timeline.Launch, timeline.HostOrLaunch,
			timeline.Communication, timeline.Busy, timeline.Undetermined,
		} {
			if got := agrees(l, &scenario.Truth{Dominant: tt.dominant, Share: tt.share}); got != right[l] {
				t.Errorf("%s (%v, %.0f %%): agrees(%s) = %v", name, tt.dominant, 100*tt.share, l, got)
			}
		}
	}
}

// options are those of a demo of that scenario whose words go to the test's log.
func options(t *testing.T, text string) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.scenario")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return Options{
		Scenario: file, Dir: filepath.Join(t.TempDir(), "run"), Version: "test", Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Say: func(string) {}, Progress: func(string, float64, float64) {},
	}
}

const short = `seed 5
duration 60s
gpu h100
target main model=Qwen2.5-32B dtype=bf16
load streams=6 prompt=50..80 output=40..60 0s..60s
phase first 1s..5s
phase later 5s..60s
`

func TestADemoThatEndsEarlyComparesWhatItPlayed(t *testing.T) {
	o := options(t, short)
	o.Duration = 6 * time.Second
	res, err := Run(t.Context(), o)
	must(t, err)
	if len(res.Phases) != 1 || res.Phases[0].Name != "first" || !res.Phases[0].Agrees || res.Partial {
		t.Fatalf("phases %+v, partial %v: want the first alone, and right", res.Phases, res.Partial)
	}
	if p := &res.Phases[0]; !p.TrueTPOT.OK() || !p.FoundTPOT.OK() || p.FoundTPOT.Value < 0.9*p.TrueTPOT.Value || p.FoundTPOT.Value > 1.1*p.TrueTPOT.Value {
		t.Errorf("TPOT %v, truth %v", p.FoundTPOT, p.TrueTPOT)
	}
	if q := res.Requests; q.Answered == 0 || q.Seen < q.Answered || q.KernelStamped == 0 {
		t.Errorf("requests %+v", q)
	}
	if res.Received.Spans < res.Requests.Answered || res.Received.Metrics == 0 {
		t.Errorf("an OTLP receiver got %+v", res.Received)
	}
	if !res.Simulated || !res.Report.Simulated || !strings.Contains(res.Path, "in this process (no simulated driver library was named)") {
		t.Errorf("simulated %v, %v, path %q", res.Simulated, res.Report.Simulated, res.Path)
	}
	r, err := record.OpenReader(o.Dir)
	must(t, err)
	if m := r.Meta(); !m.Simulated || m.Note != "demo: scenario test" {
		t.Errorf("the recording says %+v", m)
	}
	var b bytes.Buffer
	must(t, res.Text(&b))
	for _, want := range []string{"SIMULATED", "first ", " yes\n", "tpotscope report " + o.Dir} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &b)
		}
	}
}

// Whom the scenario's probe does not see goes around the proxy, and is served all the same.
func TestADemoKeepsFromTheProxyWhatTheScenariosProbeDoesNotSee(t *testing.T) {
	t.Parallel()
	o := options(t, short+"probe coverage=50%\n")
	o.Duration = 5 * time.Second
	res, err := Run(t.Context(), o)
	must(t, err)
	if q := res.Requests; q.Seen == 0 || q.Seen > q.Sent*3/4 || q.Answered < q.Sent/2 {
		t.Errorf("requests %+v: want about half of them seen", q)
	}
	if c := res.Report.TrafficCoverage; !c.OK() || c.Value < 0.2 || c.Value > 0.8 {
		t.Errorf("coverage %v, want about a half", c)
	}
}

func TestAnInterruptedDemoComparesWhatItPlayed(t *testing.T) {
	o := options(t, short)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(_ string, done, _ float64) {
		if done > 2 {
			cancel()
		}
	}
	res, err := Run(ctx, o)
	must(t, err)
	if len(res.Phases) != 0 || !res.Partial || res.Requests.Sent == 0 {
		t.Errorf("phases %+v, partial %v, %d requests: want none compared", res.Phases, res.Partial, res.Requests.Sent)
	}
}

func TestAMedianOfNothingHasAForm(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Requests{ClientTPOT: median(nil)})
	must(t, err)
	if want := `"client_tpot_p50_s":{"absent":"no request got two chunks"}`; !strings.Contains(string(b), want) {
		t.Errorf("%s lacks %s", b, want)
	}
}

func TestAScenarioThatIsNotThereIsAnError(t *testing.T) {
	o := options(t, short)
	o.Scenario = "no_such"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `there is no file "no_such"`) {
		t.Errorf("Run() = %v", err)
	}
}

func TestNothingIsTabledThatWasNotPlayed(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	must(t, (&Result{Partial: true}).Text(&b))
	for _, text := range []string{"no phase was played to its end", "interrupted: ", "no helper ran\n"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("the text lacks %q:\n%s", text, &b)
		}
	}
	if strings.Contains(b.String(), "TPOT/true") {
		t.Errorf("an empty table:\n%s", &b)
	}
}
