package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/exporters/record"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// An agent lives on without its helper, and says what is wrong with it.
func TestAnAgentLivesWithoutItsHelper(t *testing.T) {
	t.Parallel()
	dying := filepath.Join(t.TempDir(), remote.HelperName)
	must(t, os.WriteFile(dying, []byte("#!/bin/sh\necho 'the driver is gone' >&2\nexit 1\n"), 0o700)) // it is to be run
	for name, tt := range map[string]struct {
		helper string
		want   []string
		log    string
	}{
		"a helper that dies":         {dying, []string{"no counters: ", `"last_loss": `, "the driver is gone", `"restarts": 1`}, "gpu helper lost"},
		"a helper that is not there": {"/no/such/helper", []string{"no counters: ", "no such file or directory"}, "gpu helper lost"},
		"no helper found":            {"", []string{"no counters: "}, "no counters: helper not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := remote.Find("/no/such/folder"); err == nil && tt.helper == "" {
				t.Skip("a helper is on PATH: it would be found")
			}
			cfg := quiet(t)
			cfg.NVML.Source, cfg.NVML.Helper = agent.SourceHelper, tt.helper
			ag := start(t, cfg, agent.Deps{HelperDir: "/no/such/folder"})
			for _, want := range tt.want {
				until(t, 10*time.Second, want, func() bool { return strings.Contains(ag.get(t, "/healthz"), want) })
			}
			if page := ag.get(t, "/readyz"); page != "ok\n" {
				t.Errorf("/readyz says %q", page)
			}
			ag.stop(t)
			if ag.log.count(tt.log) == 0 {
				t.Errorf("the log lacks %q", tt.log)
			}
		})
	}
}

func TestASimulatedSourceIsLabelledEverywhere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.scenario")
	must(t, os.WriteFile(file, []byte(small), 0o600))
	cfg := quiet(t)
	cfg.NVML.Source = "sim:" + file
	ag := start(t, cfg, agent.Deps{})
	until(t, 10*time.Second, "a GPU", func() bool { return strings.Contains(ag.get(t, "/healthz"), `"state": "ok"`) })
	if page := ag.get(t, "/healthz"); !strings.Contains(page, `"simulated": true`) {
		t.Errorf("health %s", page)
	}
	until(t, 10*time.Second, "the sampler's own series", func() bool { return strings.Contains(ag.get(t, "/metrics"), "tpotscope_sampler_rate") })
	if page := ag.get(t, "/"); !strings.Contains(page, "/metrics") {
		t.Errorf("/ says %q", page)
	}
	ag.stop(t)
	if ag.log.count("counters are SIMULATED") != 1 {
		t.Error("the log does not say so once")
	}
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	if !r.Meta().Simulated {
		t.Error("the recording does not say so")
	}
}

func TestScenariosAreOpenedByFileElseByName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.scenario")
	must(t, os.WriteFile(file, []byte(small), 0o600))
	for _, name := range []string{file, "memory_bound"} {
		if _, err := agent.OpenScenario(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := filepath.Join(dir, "bad.scenario")
	must(t, os.WriteFile(bad, []byte("seed x\n"), 0o600))
	for name, want := range map[string]string{
		"no_such":                     `there is no file "no_such", and of the shipped ones only `,
		filepath.Join(dir, "no_such"): "open scenario: " + filepath.Join(dir, "no_such") + ": no such file or directory",
		bad:                           "bad.scenario",
	} {
		if _, err := agent.OpenScenario(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	cfg := quiet(t)
	cfg.NVML.Source = "sim:no_such"
	if _, err := agent.New(t.Context(), cfg, agent.Deps{}, discard()); err == nil {
		t.Error("an agent of a scenario that is not there was made")
	}
}

func TestARecordingThatCannotBeMadeIsAnError(t *testing.T) {
	t.Parallel()
	cfg := quiet(t)
	cfg.Record.Dir = filepath.Join(os.DevNull, "run")
	cfg.OTLP.Disabled, cfg.OTLP.Endpoint.URL = false, "http://127.0.0.1:9"
	if _, err := tryStart(t, cfg, agent.Deps{}); err == nil || !strings.HasPrefix(err.Error(), "open recording: ") {
		t.Errorf("the agent starts: %v", err)
	}
	if _, err := os.Stat(cfg.Socket); err == nil {
		t.Error("the socket is there")
	}
}
