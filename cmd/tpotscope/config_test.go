package main

import (
	"encoding/json"
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
	env := environment{lookup: func(string) (string, bool) { return "", false }, root: true}
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

func TestAFileThatNeverEndsIsNoFileOfSettings(t *testing.T) {
	err := readConfigFile(nil, "/dev/zero")
	if err == nil || !strings.Contains(err.Error(), "/dev/zero: longer than") {
		t.Errorf("readConfigFile(/dev/zero) = %v", err)
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

func TestAnchorsAndMergesAreFollowed(t *testing.T) {
	env := environment{lookup: func(string) (string, bool) { return "", false }, root: true}
	cfg, _, err := loadConfig(env, "testdata/anchors.good.yml", nil)
	must(t, err)
	if cfg.Host.Interval != time.Second || len(cfg.Targets) != 2 || cfg.Targets[1].Name != "code" || cfg.Targets[1].EngineURL != cfg.Targets[0].EngineURL {
		t.Errorf("host %+v, targets %+v", cfg.Host, cfg.Targets)
	}
}

func TestAVariableThatIsNoneIsAnError(t *testing.T) {
	p := newPlace(t)
	p.vars["TPOTSCOPE_NVML_PEROID"], p.vars["TPOTSCOPE_XYZZY_QUUX_FROB"], p.vars["TPOTSCOPE_NVML_SIM"], p.vars["OTHER"] = "1s", "", "/page", "x"
	_, _, err := loadConfig(p.env(), "", nil)
	want := "TPOTSCOPE_NVML_PEROID: no such variable (did you mean TPOTSCOPE_NVML_PERIOD?)\nTPOTSCOPE_XYZZY_QUUX_FROB: no such variable"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestWithoutAHomeNothingIsPlacedAnywhere(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"no home": {}, "a home that is no path": {"HOME": "."}, "relative places": {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"},
	} {
		p := &place{vars: vars}
		cfg, _, err := loadConfig(p.env(), "", nil)
		if err != nil || cfg.StateDir+cfg.Socket != "" {
			t.Errorf("%s: state %q, socket %q, %v", name, cfg.StateDir, cfg.Socket, err)
		}
	}
}

func TestOnlyWhatNeedsTheStateDirectoryFailsWithoutAHome(t *testing.T) {
	t.Parallel()
	with, dir := imported(t)
	p := &place{vars: map[string]string{"TPOTSCOPE_CONFIG": os.DevNull}}
	for args, code := range map[string]int{
		"config print": exitOK, "report " + dir: exitOK, "export " + dir: exitOK,
		"doctor --set nvml.source=off --engine http://127.0.0.1:9 --json": exitError,
	} {
		if got := p.run(t, strings.Fields(args)...); got.code != code || strings.Contains(got.err, "state_dir") {
			t.Errorf("%s: exit code %d, want %d\n%s", args, got.code, code, got.err)
		}
	}
	if got := p.run(t, "config", "check").want(t, exitOK); !strings.HasPrefix(got.err, "warning: state_dir: missing, ") {
		t.Errorf("config check says %q", got.err)
	}
	for _, args := range []string{
		"agent --nvml off", "report @last", "export @agent", "demo --for 1s", "record --nvml off --engine http://127.0.0.1:9 --for 1s", "doctor --calibrate --with true",
	} {
		if got := p.run(t, strings.Fields(args)...); got.code != exitUsage || !strings.HasPrefix(got.err, "tpotscope: configuration: state_dir: missing, ") || !strings.Contains(got.err, "HOME") {
			t.Errorf("%s: exit code %d\n%s", args, got.code, got.err)
		}
	}
	for _, args := range []string{"burst", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:9"} {
		if got := p.run(t, strings.Fields(args)...); got.code != exitUsage || !strings.HasPrefix(got.err, "tpotscope: configuration: socket: missing: ") {
			t.Errorf("%s: exit code %d\n%s", args, got.code, got.err)
		}
	}
	p.vars["TPOTSCOPE_SOCKET"] = with.socket
	if got := p.run(t, "burst").want(t, exitError); !strings.Contains(got.err, "no agent runs on "+with.socket) {
		t.Errorf("burst says %q", got.err)
	}
}

func TestOTelVariablesAreShownAndChecked(t *testing.T) {
	p := newPlace(t)
	p.vars["OTEL_EXPORTER_OTLP_ENDPOINT"], p.vars["OTEL_METRIC_EXPORT_INTERVAL"] = "http://collector:4318", "15000"
	p.vars["OTEL_EXPORTER_OTLP_HEADERS"], p.vars["OTEL_EXPORTER_OTLP_PROTOCOL"] = "authorization=s3cret", "http/json"
	text := p.run(t, "config", "print").want(t, exitOK).out
	for _, line := range []string{
		`    url: "http://collector:4318" # env OTEL_EXPORTER_OTLP_ENDPOINT`, "  interval: 15s # env OTEL_METRIC_EXPORT_INTERVAL",
		"    headers: {1 headers, values not shown} # env OTEL_EXPORTER_OTLP_HEADERS", "    enabled: true # default",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(line), " ")) {
			t.Errorf("lacks %s:\n%s", line, text)
		}
	}
	if strings.Contains(text, "s3cret") {
		t.Error("a header's value is printed")
	}
	if got := p.run(t, "config", "print", "--set", "otlp.interval=10s").want(t, exitOK).out; !strings.Contains(got, "  interval: 10s ") {
		t.Errorf("a flag does not win:\n%s", got)
	}
	if got := p.run(t, "config", "check").want(t, exitOK); !strings.Contains(got.err, "warning: OTEL_EXPORTER_OTLP_PROTOCOL") {
		t.Errorf("stderr %q", got.err)
	}
	p.vars["OTEL_EXPORTER_OTLP_ENDPOINT"] = "ftp://collector"
	if got := p.run(t, "config", "check").want(t, exitUsage); !strings.Contains(got.err, "otlp.metrics: ") || !strings.Contains(got.err, "(OTEL_EXPORTER_OTLP_ENDPOINT)") {
		t.Errorf("stderr %q", got.err)
	}
	p.vars["OTEL_EXPORTER_OTLP_TIMEOUT"] = "10s"
	if got := p.run(t, "config", "check").want(t, exitUsage); !strings.Contains(got.err, "OTEL_EXPORTER_OTLP_TIMEOUT: want a number of milliseconds") {
		t.Errorf("stderr %q", got.err)
	}
	if got := newPlace(t).run(t, "config", "print").want(t, exitOK).out; !strings.Contains(got, "  interval: 10s ") {
		t.Errorf("the default interval is not shown:\n%s", got)
	}
}

func TestConfigAnswersInJSON(t *testing.T) {
	p := newPlace(t)
	read := func(code int, args ...string) configJSON {
		t.Helper()
		var c configJSON
		must(t, json.Unmarshal([]byte(p.run(t, append(append([]string{"config"}, args...), "--json")...).want(t, code).out), &c))
		if c.Schema != "tpotscope.config/1" {
			t.Errorf("schema %s", c.Schema)
		}
		return c
	}
	if c := read(exitOK, "check", "testdata/small.good.yml"); c.File != "testdata/small.good.yml" || len(c.Faults) > 0 {
		t.Errorf("%+v", c)
	}
	if c := read(exitUsage, "check", "testdata/several.bad.yml"); len(c.Faults) < 12 {
		t.Errorf("%d faults: %q", len(c.Faults), c.Faults)
	}
	c := read(exitOK, "print", "--set", "nvml.period=200ms")
	if i := slices.IndexFunc(c.Settings, func(s settingJSON) bool { return s.Key == "nvml.period" }); i < 0 || c.Settings[i].Value != "200ms" || c.Settings[i].Origin != "flag" {
		t.Errorf("settings %+v", c.Settings)
	}
}

func TestACheckWithoutAFileSaysSo(t *testing.T) {
	p := newPlace(t)
	delete(p.vars, "TPOTSCOPE_CONFIG")
	if _, err := os.Stat(defaultConfigFile); err == nil {
		t.Skipf("this machine has a %s", defaultConfigFile)
	}
	if got := p.run(t, "config", "check").want(t, exitOK); got.out != "configuration is fine: the defaults, for there is no "+defaultConfigFile+"\n" {
		t.Errorf("stdout %q", got.out)
	}
}

// Whatever a file holds, reading it ends, and what it takes can be printed.
func FuzzConfigFile(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("nvml: &n {<<: *n, period: 1s}\n"))
	f.Add([]byte("targets: &t [*t, {<<: *t}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg := agent.DefaultConfig()
		all := settings(&cfg)
		if err := readConfig(all, "f", text); err != nil && err.Error() == "" {
			t.Error("an error without a word")
		}
		for _, s := range all {
			if s.text() == "" {
				t.Errorf("%s cannot be printed", s.key)
			}
		}
	})
}

// A fault that is found when all layers are there names the place in the file, if the value is the file's.
func TestAFaultIsBlamedOnWhoSetTheValue(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "config.yml")
	must(t, os.WriteFile(file, []byte("record:\n  max_bytes: 1000\nproxy:\n  listen: 127.0.0.1:8001\n"), 0o600))
	_, _, err := loadConfig(p.env(), file, nil)
	if err == nil || !strings.Contains(err.Error(), file+":2:14: record.max_bytes: 1000 is less") || !strings.HasPrefix(err.Error(), "proxy.upstream: missing") {
		t.Errorf("%v, want the place of the size, and none of what is missing", err)
	}
	p.vars["TPOTSCOPE_RECORD_MAX_BYTES"] = "2000"
	_, _, err = loadConfig(p.env(), file, nil)
	if err == nil || !strings.Contains(err.Error(), "record.max_bytes: 2000 is less") || strings.Contains(err.Error(), ":2:14") {
		t.Errorf("%v, want no place in the file: the variable set it", err)
	}
}
