package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/llmsim"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// script makes a helper of a shell script.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), remote.HelperName)
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700)) // it is to be run
	return path
}

// answer is a helper that finds GPUs of that list, with the state of each counter.
func answer(t *testing.T, gpus []timeline.GPU, states ...remote.CallState) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"driver": "580.95.05", "gpus": gpus, "capabilities": states,
		"latency": []remote.CallLatency{{GPU: 0, Call: "gpm_sample", MeanUS: 40}},
	})
	must(t, err)
	return script(t, "cat <<'END'\n"+string(text)+"\nEND")
}

func state(gpu int, call, word string) remote.CallState {
	return remote.CallState{GPU: gpu, Call: call, State: word}
}

var unsupported = timeline.StateUnsupported.String()

var (
	h100 = timeline.GPU{UUID: "GPU-0", Name: "NVIDIA H100 80GB HBM3", GPM: true}
	a100 = timeline.GPU{UUID: "GPU-1", Name: "NVIDIA A100-SXM4-80GB"}
)

func find(t *testing.T, r *doctor.Report, name string) doctor.Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no check %s in %+v", name, r.Checks)
	return doctor.Check{}
}

func TestEachOutcomeOfTheDriverIsTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o      doctor.Options
		check  string
		state  doctor.State
		detail string // part of it
		who    string
		say    string // part of what the node can say, or cannot
	}{
		"no helper": {
			doctor.Options{HelperDir: "/no/such/folder"},
			"helper", doctor.Failed, "is neither beside this program nor on PATH", "you",
			"what bounds decode: no GPU counters",
		},
		"a helper that is not there": {
			doctor.Options{Helper: "/no/such/helper"}, "helper", doctor.Failed, "cannot run: ", "you", "what bounds decode: no GPU counters",
		},
		"no library": {
			doctor.Options{Helper: script(t, "echo 'tpotscope-nvml: open driver: library not found' >&2; exit 1")},
			"driver", doctor.Failed,
			"no NVIDIA driver on this host or in this container", "you", "what bounds decode: no GPU counters",
		},
		"a driver that hangs": {
			doctor.Options{Helper: script(t, "sleep 30"), Timeout: 300 * time.Millisecond},
			"driver", doctor.Failed,
			"did not answer within 300ms: it hangs", "the cluster's admin", "",
		},
		"a symbol that is missing": {
			doctor.Options{Helper: script(t, "echo 'tpotscope-nvml: symbol lookup error: undefined symbol: nvmlX' >&2; exit 127")},
			"driver", doctor.Failed,
			"lacks a function: symbol lookup error: undefined symbol: nvmlX", "the cluster's admin", "",
		},
		"another failure": {
			doctor.Options{Helper: script(t, "echo one >&2; echo 'tpotscope-nvml: two' >&2; exit 3")}, "driver", doctor.Failed, "two", "the cluster's admin", "",
		},
		"a crash": {
			doctor.Options{Helper: script(t, "printf 'SIGSEGV: segmentation violation\\nPC=0x1\\nrax 0x0\\ngs 0x0\\n' >&2; exit 2")},
			"driver", doctor.Failed,
			"the helper crashed in the driver: SIGSEGV: segmentation violation", "the cluster's admin", "",
		},
		"a GPU that cannot be opened": {
			doctor.Options{Helper: script(t, `echo '{"gpus":[{"uuid":"GPU-0"}],"missing":"open gpu 1: gpu is lost"}'`)},
			"lost", doctor.Failed,
			"open gpu 1: gpu is lost", "the cluster's admin", "",
		},
		"a GPU whose call hangs": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100, h100}, state(0, "dram_util", "timeout"), state(1, "dram_util", "ok"))},
			"dram_util", doctor.Failed,
			"on 1 of 2 GPUs: timeout, a call of the driver does not come back", "the cluster's admin", "what bounds decode on 1 of 2 GPUs",
		},
		"a silent failure": {doctor.Options{Helper: script(t, "exit 3")}, "driver", doctor.Failed, "exit status 3", "the cluster's admin", ""},
		"an answer of another version": {
			doctor.Options{Helper: script(t, "echo hello")}, "driver", doctor.Failed, "helper and agent are of different versions", "you", "",
		},
		"no GPU": {doctor.Options{Helper: answer(t, nil)}, "gpus", doctor.Failed, "the driver lists no GPU", "you", "no GPU counters"},
		"everything": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100}, state(0, "dram_util", "ok"), state(0, "power", "ok"))},
			"counters", doctor.Fine,
			"2 of 2 counters can be read on every GPU", "", "what bounds decode on 1 of 1 GPUs, per cell of 1 s",
		},
		"no permission": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100, h100}, state(0, "dram_util", "no_permission"), state(1, "dram_util", "ok"))},
			"dram_util",
			doctor.Failed, "on 1 of 2 GPUs: no permission", "the cluster's admin", "whether memory bounds decode on 1 of 2 GPUs: DRAM bandwidth cannot be read (no permission)",
		},
		"an old GPU": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100, a100}, state(0, "dram_util", "ok"), state(1, "dram_util", unsupported))},
			"dram_util",
			doctor.Warning, "on 1 of 2 GPUs: ", "nobody: this hardware or driver does not have it", "what bounds decode on 1 of 2 GPUs: no activity windows",
		},
		"an instance": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100, {UUID: "MIG-0", ParentUUID: "GPU-0", MIG: true}}, state(0, "power", "ok"), state(1, "power", unsupported))},
			"power", doctor.Warning, "on 1 of 2 GPUs: not supported on instances (MIG)", "nobody: the driver tells it of a whole GPU, not of an instance", "",
		},
		"a lost GPU": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100}, state(0, "power", "lost"))}, "power", doctor.Failed, "lost", "the cluster's admin", "",
		},
		"a counter that is not trusted": {
			doctor.Options{Helper: answer(t, []timeline.GPU{h100}, state(0, "sm_util", "untrusted"))}, "sm_util", doctor.Warning, "untrusted", "the cluster's admin", "",
		},
		"functions that are missing": {
			doctor.Options{Helper: script(t, `echo '{"driver":"525.60","missing_functions":["a","b"],"gpus":[]}'`)},
			"driver", doctor.Fine,
			"driver 525.60; lacks 2 functions", "", "",
		},
		"a driver that is not known": {
			doctor.Options{Helper: script(t, `echo '{"driver":"999.1","driver_note":"newer than all","gpus":[]}'`)},
			"driver", doctor.Warning, "driver 999.1; newer than all", "", "",
		},
		"a slow driver": {
			doctor.Options{Helper: script(t, `echo '{"gpus":[{"uuid":"GPU-0"}],"latency":[{"gpu":0,"call":"gpm_sample","mean_us":30000}]}'`)},
			"latency",
			doctor.Warning, "gpm_sample takes 30 ms on GPU 0", "you", "",
		},
		"a simulation": {
			doctor.Options{Helper: answer(t, []timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true, Simulated: true}})},
			"driver", doctor.Fine,
			"SIMULATED driver 580.95.05", "", "",
		},
		"counters that are off": {
			doctor.Options{NoCounters: "nvml.source is off"}, "helper", doctor.Skipped, "nvml.source is off", "", "no GPU counters",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.o.Env, tt.o.Engines = []string{"PATH=" + os.Getenv("PATH"), "LD_BIND_NOW=1"}, []string{"http://127.0.0.1:9"}
			r := doctor.Run(t.Context(), tt.o)
			c := find(t, r, tt.check)
			if c.State != tt.state || !strings.Contains(c.Detail, tt.detail) || c.Who != tt.who {
				t.Errorf("check %+v, want %s, %q, %q", c, tt.state, tt.detail, tt.who)
			}
			if said := strings.Join(append(r.CanSay, r.CannotSay...), "\n"); !strings.Contains(said, tt.say) {
				t.Errorf("said is %q, want %q in it", said, tt.say)
			}
			if r.Simulated != (name == "a simulation") {
				t.Errorf("simulated: %v", r.Simulated)
			}
		})
	}
}

func TestTheHelperResolvesItsSymbolsLazily(t *testing.T) {
	t.Parallel()
	helper := script(t, `echo "[$LD_BIND_NOW] $*" >&2; exit 1`)
	r := doctor.Run(t.Context(), doctor.Options{Helper: helper, Library: "/a/library", Env: []string{"PATH=/bin", "LD_BIND_NOW=1"}, Engines: []string{"http://127.0.0.1:9"}})
	if got, want := find(t, r, "driver").Detail, "[] --probe --library /a/library"; got != want {
		t.Errorf("the helper saw %q, want %q", got, want)
	}
}

func TestAnInterruptIsNoHangingDriver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	helper := script(t, "touch "+filepath.Join(t.TempDir(), "began")+"; sleep 30")
	time.AfterFunc(200*time.Millisecond, cancel)
	r := doctor.Run(ctx, doctor.Options{Helper: helper, Env: os.Environ()})
	if c := find(t, r, "driver"); c.State != doctor.Skipped {
		t.Errorf("check %+v", c)
	}
}

func engine(t *testing.T) string {
	t.Helper()
	clock, err := hostclock.New()
	must(t, err)
	llm, err := llmsim.New(llmsim.Config{Model: "sim-8b", Now: clock.Now, Epoch: clock.Now(), Free: llmsim.DefaultPace()})
	must(t, err)
	srv := httptest.NewServer(llm)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestEnginesAreFoundOrNot(t *testing.T) {
	t.Parallel()
	there, gone := engine(t), "http://127.0.0.1:9"
	o := doctor.Options{NoCounters: "not asked for", Engines: []string{gone, there}}
	r := doctor.Run(t.Context(), o)
	if c := find(t, r, "engine"); c.State != doctor.Fine || c.Detail != "vllm at "+there+" serves sim-8b" || r.Worst() != doctor.Failed {
		t.Errorf("check %+v, worst %s: one of two does not answer", c, r.Worst())
	}
	if len(r.Engines) != 1 || r.Engines[0].URL != there || r.Engines[0].Kind != "vllm" {
		t.Errorf("engines %+v", r.Engines)
	}
	o.Engines = []string{gone}
	r = doctor.Run(t.Context(), o)
	if c := find(t, r, "engine"); c.State != doctor.Failed || r.Worst() != doctor.Failed || len(r.Engines) != 0 {
		t.Errorf("check %+v, worst %s", c, r.Worst())
	}
	if found := doctor.FindEngines(t.Context(), []string{there, gone, there + "/"}); len(found) != 1 {
		t.Errorf("found %+v", found)
	}
	if got := doctor.UsualEngines(); len(got) == 0 || got[0] != "http://127.0.0.1:8000" {
		t.Errorf("the usual engines are %v", got)
	}
}

// Each engine that was named and does not answer is told apart, with why.
func TestASilentEngineIsNamedWithWhy(t *testing.T) {
	t.Parallel()
	serve := func(h http.HandlerFunc) string {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		return srv.URL
	}
	bare := serve(http.NotFound)
	other := serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("go_goroutines 7\n")) })
	locked := serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	gone := "http://127.0.0.1:9"
	r := doctor.Run(t.Context(), doctor.Options{NoCounters: "not asked for", Engines: []string{gone, bare, other, locked}})
	want := map[string][2]string{
		gone:   {"connection refused", "nothing listens there"},
		bare:   {"status 404", "turn its metrics on"},
		other:  {"metrics of no known engine", "turn its metrics on"},
		locked: {"status 401", "without a key"},
	}
	for _, c := range r.Checks {
		if c.Name != "engine" {
			continue
		}
		url, why, _ := strings.Cut(c.Detail, ": ")
		if w, ok := want[url]; !ok || c.State != doctor.Failed || !strings.Contains(why, w[0]) || !strings.Contains(c.Fix, w[1]) {
			t.Errorf("%+v, want %q", c, w)
		}
		delete(want, url)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
}

func TestThePlacesOfTheAgentAreChecked(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ts") //nolint:usetesting // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent.sock")
	o := doctor.Options{NoCounters: "not asked for", Engines: []string{"http://127.0.0.1:9"}, Socket: socket, StateDir: filepath.Join(dir, "not", "yet")}
	if c := find(t, doctor.Run(t.Context(), o), "agent"); c.State != doctor.Skipped || c.Detail != "no agent runs on "+socket {
		t.Errorf("agent %+v", c)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must(t, err)
	defer func() { must(t, ln.Close()) }()
	r := doctor.Run(t.Context(), o)
	if c := find(t, r, "agent"); c.State != doctor.Fine || c.Detail != "an agent answers on "+socket {
		t.Errorf("agent %+v", c)
	}
	if c := find(t, r, "state"); c.State != doctor.Fine && c.State != doctor.Warning || !strings.Contains(c.Detail, " GB free") {
		t.Errorf("state %+v", c)
	}
	if _, err := os.Stat(o.StateDir); err == nil {
		t.Error("the state directory was made: doctor changes nothing")
	}
	o.StateDir = "/proc/nowhere"
	if c := find(t, doctor.Run(t.Context(), o), "state"); c.State == doctor.Fine {
		t.Errorf("a place that cannot be written: %+v", c)
	}
	o.Socket, o.StateDir = "", ""
	if r := doctor.Run(t.Context(), o); find(t, r, "agent").State != doctor.Skipped || find(t, r, "state").State != doctor.Skipped {
		t.Errorf("without places: %+v", r.Checks)
	}
}

// What does not depend on the machine of the test is compared whole.
func TestTheReportReadsTheSame(t *testing.T) {
	t.Parallel()
	url := engine(t)
	helper := answer(t, []timeline.GPU{h100, h100, a100},
		state(0, "dram_util", "ok"), state(1, "dram_util", "ok"), state(2, "dram_util", unsupported),
		state(0, "power", "no_permission"), state(1, "power", "ok"), state(2, "power", "ok"), state(0, "temperature", "ok"))
	r := doctor.Run(t.Context(), doctor.Options{Helper: helper, Env: os.Environ(), Engines: []string{url}})
	r.Time = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	kept := r.Checks[:0]
	for _, c := range r.Checks {
		if c.Name != "clocks" && c.Name != "stamps" {
			kept = append(kept, c)
		}
	}
	r.Checks = kept
	for name, write := range map[string]func(*bytes.Buffer) error{
		"report.txt":  func(b *bytes.Buffer) error { return r.Text(b) },
		"report.json": func(b *bytes.Buffer) error { return r.JSON(b) },
	} {
		var b bytes.Buffer
		must(t, write(&b))
		got := strings.NewReplacer(url, "http://engine", helper, "/path/of/"+remote.HelperName).Replace(b.String())
		file := filepath.Join("testdata", name+".golden")
		if *update {
			must(t, os.WriteFile(file, []byte(got), 0o600))
		}
		want, err := os.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestListsOfTheJSONFormAreNeverNull(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	must(t, doctor.Run(t.Context(), doctor.Options{NoCounters: "off", Engines: []string{"http://127.0.0.1:9"}}).JSON(&b))
	if strings.Contains(b.String(), "null") {
		t.Errorf("the report:\n%s", &b)
	}
	var r doctor.Report
	must(t, json.Unmarshal(b.Bytes(), &r))
	if r.Schema != "tpotscope.doctor/1" {
		t.Error(fmt.Sprint("schema ", r.Schema))
	}
}

func TestWhatIsSaidOfSeveralCountersIsSaidOnce(t *testing.T) {
	t.Parallel()
	gpus := []timeline.GPU{{UUID: "GPU-0", Name: "a GPU", GPM: true}, {UUID: "MIG-1", Name: "an instance", GPM: true, MIG: true}}
	no := timeline.StateUnsupported.String()
	o := doctor.Options{
		Helper:  answer(t, gpus, state(1, "energy", no), state(1, "power", no), state(1, "pcie_tx", no)),
		Engines: []string{"http://127.0.0.1:9"}, Env: []string{"PATH=" + os.Getenv("PATH")},
	}
	r := doctor.Run(t.Context(), o)
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 counters", ": energy, power, pcie_tx", "on 1 of 2 GPUs: instances (MIG)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &b)
		}
	}
	if n := strings.Count(b.String(), "nobody: this hardware or driver does not have it"); n != 1 {
		t.Errorf("the same is said %d times:\n%s", n, &b)
	}
}

func TestEachStateOfACounterIsTold(t *testing.T) {
	t.Parallel()
	o := doctor.Options{Helper: answer(t, []timeline.GPU{h100, h100, a100},
		state(0, "power", "lost"), state(1, "power", "no_permission"), state(2, "power", unsupported))}
	var said []string
	for _, c := range doctor.Run(t.Context(), o).Checks {
		if c.Name == "power" {
			said = append(said, c.Detail)
		}
	}
	want := []string{"on 1 of 3 GPUs: lost", "on 1 of 3 GPUs: no permission", "on 1 of 3 GPUs: not supported"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}
