package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent"
)

func TestConfigFiles(t *testing.T) {
	env := environment{lookup: func(string) (string, bool) { return "", false }}
	files, err := filepath.Glob("testdata/*.yml")
	must(t, err)
	good, bad := 0, 0
	for _, file := range files {
		base := strings.TrimSuffix(file, ".yml")
		t.Run(filepath.Base(base), func(t *testing.T) {
			_, _, err := loadConfig(env, file, nil)
			if strings.HasSuffix(base, ".good") {
				good++
				if err != nil {
					t.Error(err)
				}
				return
			}
			bad++
			if err == nil {
				t.Fatal("is taken")
			}
			golden(t, filepath.Base(base)+".golden", err.Error()+"\n")
		})
	}
	if good < 3 || bad < 20 {
		t.Errorf("%d good and %d bad files were read", good, bad)
	}
}

func TestDefaultsNeedNoFile(t *testing.T) {
	p := newPlace(t)
	cfg, all, err := loadConfig(p.env(), "", nil)
	must(t, err)
	if cfg.StateDir != p.state || cfg.Socket != p.socket || cfg.Metrics.Listen != "127.0.0.1:19400" {
		t.Errorf("state %s, socket %s, metrics %s", cfg.StateDir, cfg.Socket, cfg.Metrics.Listen)
	}
	names := map[string]string{}
	for _, s := range all {
		if other, twice := names[envName(s.key)]; twice {
			t.Errorf("%s and %s share the variable %s", s.key, other, envName(s.key))
		}
		names[envName(s.key)] = s.key
	}
}

func TestEachLayerWinsOverTheOneBelow(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "config.yml")
	must(t, os.WriteFile(file, []byte("nvml: {period: 150ms, fast_period: 150ms, slow_period: 3s}\nscrape: {interval: 1500ms}\n"), 0o600))
	p.vars["TPOTSCOPE_NVML_PERIOD"], p.vars["TPOTSCOPE_NVML_FAST_PERIOD"] = "200ms", "200ms"
	cfg, all, err := loadConfig(p.env(), file, map[string]string{"nvml.period": "250ms"})
	must(t, err)
	if n := cfg.NVML; n.Period != 250*time.Millisecond || n.FastPeriod != 200*time.Millisecond || n.SlowPeriod != 3*time.Second {
		t.Errorf("flag %v, env %v, file %v", n.Period, n.FastPeriod, n.SlowPeriod)
	}
	origins := map[string]string{}
	for _, s := range all {
		origins[s.key] = s.origin
	}
	for key, want := range map[string]string{
		"nvml.period": "flag", "nvml.fast_period": "env TPOTSCOPE_NVML_FAST_PERIOD", "nvml.slow_period": "file " + file,
		"scrape.interval": "file " + file, "scrape.timeout": "default",
	} {
		if origins[key] != want {
			t.Errorf("%s comes from %q, want %q", key, origins[key], want)
		}
	}
}

// Text of flags and variables is no YAML: an address may hold what YAML gives a meaning.
func TestTextIsTakenAsItStands(t *testing.T) {
	for _, text := range []string{"[::1]:19400", "127.0.0.1:0", ""} {
		cfg, _, err := loadConfig(newPlace(t).env(), "", map[string]string{"metrics.listen": text})
		if err != nil || cfg.Metrics.Listen != text {
			t.Errorf("metrics.listen=%s gives %q, %v", text, cfg.Metrics.Listen, err)
		}
	}
}

func TestBadFlagsAndVariablesAreNamedTogether(t *testing.T) {
	p := newPlace(t)
	p.vars["TPOTSCOPE_SCRAPE_INTERVAL"] = "soon"
	_, _, err := loadConfig(p.env(), "", map[string]string{"nvml.duty": "much", "nvml.perod": "1s", "zzz": "1"})
	if err == nil {
		t.Fatal("is taken")
	}
	want := []string{
		`nvml.duty (flag): "much" is not a float64`, `nvml.perod: no such setting (did you mean "nvml.period"?)`,
		`scrape.interval (env TPOTSCOPE_SCRAPE_INTERVAL): "soon" is not a duration such as 110ms or 2s`, `zzz: no such setting`,
	}
	got := strings.Split(err.Error(), "\n")
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestTheFileIsTheNamedOneElseThatOfTheEnvironment(t *testing.T) {
	p := newPlace(t)
	p.vars["TPOTSCOPE_CONFIG"] = "/from/env"
	if got := p.env().configFile("/from/flag"); got != "/from/flag" {
		t.Errorf("the file is %s, want the named one", got)
	}
	if got := p.env().configFile(""); got != "/from/env" {
		t.Errorf("the file is %s, want that of the environment", got)
	}
}

func TestPlacesFollowTheUser(t *testing.T) {
	vars := map[string]string{"HOME": "/home/u"}
	env := environment{lookup: func(n string) (string, bool) { v, ok := vars[n]; return v, ok }}
	if got := env.stateDir() + " " + env.socket(); got != "/home/u/.local/state/tpotscope /home/u/.local/state/tpotscope/agent.sock" {
		t.Error(got)
	}
	vars["XDG_STATE_HOME"], vars["XDG_RUNTIME_DIR"] = "/s", "/r"
	if got := env.stateDir() + " " + env.socket(); got != "/s/tpotscope /r/tpotscope/agent.sock" {
		t.Error(got)
	}
	env.root = true
	if got := env.stateDir() + " " + env.socket(); got != "/var/lib/tpotscope /run/tpotscope/agent.sock" {
		t.Error(got)
	}
}

func TestPrintedSettingsAreAFileAndHideSecrets(t *testing.T) {
	p := newPlace(t)
	p.run(t, "config", "print", "--set", "otlp.endpoint.headers={authorization: Bearer s3cret}").want(t, exitOK)
	got := p.run(t, "config", "print", "--set", "nvml.period=200ms", "--set", "otlp.endpoint.headers={authorization: s3cret}").want(t, exitOK).out
	if strings.Contains(got, "s3cret") {
		t.Error("a header's value is printed")
	}
	if !strings.Contains(got, "  period: 200ms ") || !strings.Contains(got, "# flag\n") || !strings.Contains(got, "# env TPOTSCOPE_STATE_DIR\n") {
		t.Errorf("values and where they came from:\n%s", got)
	}
	plain := p.run(t, "config", "print").want(t, exitOK).out
	file := filepath.Join(t.TempDir(), "printed.yml")
	must(t, os.WriteFile(file, []byte(plain), 0o600))
	p.run(t, "config", "check", file).want(t, exitOK)
	var want, got2 agent.Config
	var err error
	want, _, err = loadConfig(p.env(), "", nil)
	must(t, err)
	got2, _, err = loadConfig(p.env(), file, nil)
	must(t, err)
	if diff := cmp.Diff(settingsText(&want), settingsText(&got2)); diff != "" {
		t.Errorf("what was printed is another configuration:\n%s", diff)
	}
}

func settingsText(cfg *agent.Config) map[string]string {
	m := map[string]string{}
	for _, s := range settings(cfg) {
		m[s.key] = s.text()
	}
	return m
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct{ key, want string }{
		{"perod", "period"}, {"lsten", "listen"}, {"period", "period"}, {"zzzzzz", ""}, {"", ""},
	} {
		if got := nearest(tt.key, []string{"period", "listen", "profile"}); got != tt.want {
			t.Errorf("nearest(%q) = %q, want %q", tt.key, got, tt.want)
		}
	}
}
