package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// setting is one value of the configuration by its dotted key.
type setting struct {
	key    string
	value  reflect.Value
	origin string            // "default", "file PATH", "env NAME" or "flag"
	places map[string]string // in the file, of its parts, by their keys
}

// settings lists every value of cfg in the order of the struct.
func settings(cfg *agent.Config) []*setting {
	return appendSettings(nil, "", reflect.ValueOf(cfg).Elem())
}

func appendSettings(all []*setting, prefix string, v reflect.Value) []*setting {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if name == "-" || name == "" {
			continue
		}
		if f := v.Field(i); f.Kind() == reflect.Struct {
			all = appendSettings(all, prefix+name+".", f)
		} else {
			all = append(all, &setting{key: prefix + name, value: f, origin: "default"})
		}
	}
	return all
}

// envName returns the environment variable of a key: TPOTSCOPE_ and the key in capitals, dots as underscores.
func envName(key string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// loadConfig puts a configuration together: flags over environment over file over the OTEL_* variables over defaults.
// Flags are dotted keys. The error joins every fault of every layer.
func loadConfig(env environment, file string, flags map[string]string) (agent.Config, []*setting, error) {
	cfg := agent.DefaultConfig()
	cfg.StateDir, cfg.Socket = env.stateDir(), env.socket()
	cfg.Version = version
	all := settings(&cfg)
	var errs []error
	if file != "" {
		errs = append(errs, readConfigFile(all, file))
	}
	for _, s := range all {
		if text, ok := env.lookup(envName(s.key)); ok {
			errs = append(errs, s.set(text, "env "+envName(s.key)))
		}
		if text, ok := flags[s.key]; ok {
			errs = append(errs, s.set(text, "flag"))
		}
	}
	errs = append(errs, unknownVariables(env, all))
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		if !slices.ContainsFunc(all, func(s *setting) bool { return s.key == key }) {
			errs = append(errs, unknownKey(key, all))
		}
	}
	errs = append(errs, takeOTel(env, &cfg, all), originOf(cfg.Validate(), all))
	return cfg, all, errors.Join(errs...)
}

// takeOTel fills what no layer above states from the OTEL_* variables.
func takeOTel(env environment, cfg *agent.Config, all []*setting) error {
	byKey := map[string]*setting{}
	for _, s := range all {
		byKey[s.key] = s
	}
	stated := cfg.OTLP
	if byKey["otlp.interval"].origin == "default" {
		stated.Interval = 0
	}
	filled, _, err := stated.WithVariables(env.get)
	if err != nil {
		return err
	}
	filled.Interval = cmp.Or(filled.Interval, cfg.OTLP.Interval)
	cfg.OTLP = filled
	for key, name := range filled.Origins {
		s := byKey["otlp."+key]
		if s.origin == "default" {
			s.origin = "env " + name
		} else {
			s.origin += ", env " + name
		}
	}
	return nil
}

// originOf adds to faults where in a file the value is, and to those of an OTLP endpoint which variable it came from: who
// reads them has not set the key.
func originOf(err error, all []*setting) error {
	var errs []error
	for _, e := range leaves(err) {
		for _, s := range all {
			signal, ok := strings.CutSuffix(s.key, ".url")
			from, env := strings.CutPrefix(s.origin, "env OTEL_")
			if ok && env && (strings.HasPrefix(e.Error(), signal+":") || signal == "otlp.endpoint" && strings.HasPrefix(e.Error(), "otlp.") && strings.Contains(e.Error(), ": endpoint: ")) {
				e = fmt.Errorf("%w (OTEL_%s)", e, from)
				break
			}
		}
		errs = append(errs, placed(e, all))
	}
	return errors.Join(errs...)
}

// leaves returns the errors that err joins, at any depth.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if err == nil {
			return nil
		}
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}

// variablePrefix is what this program's own variables begin with.
const variablePrefix = "TPOTSCOPE_"

// unknownVariables names every variable that looks like a setting and is none.
func unknownVariables(env environment, all []*setting) error {
	if env.names == nil {
		return nil
	}
	known := []string{configVariable, sim.EnvPage}
	for _, s := range all {
		known = append(known, envName(s.key))
	}
	ends := make([]string, len(known)) // what all begin with tells nothing of which one was meant
	for i, name := range known {
		ends[i] = strings.TrimPrefix(name, variablePrefix)
	}
	var errs []error
	for _, name := range env.names() {
		switch near := nearest(strings.TrimPrefix(name, variablePrefix), ends); {
		case !strings.HasPrefix(name, variablePrefix), slices.Contains(known, name):
		case near != "":
			errs = append(errs, fmt.Errorf("%s: no such variable (did you mean %s?)", name, variablePrefix+near))
		default:
			errs = append(errs, fmt.Errorf("%s: no such variable", name))
		}
	}
	return errors.Join(errs...)
}

// set gives the setting a value written as YAML. Text is taken as it stands, so that an address may hold what YAML
// gives a meaning.
func (s *setting) set(text, origin string) error {
	if s.value.Kind() == reflect.String {
		s.value.SetString(text)
		s.origin = origin
		return nil
	}
	fresh := reflect.New(s.value.Type())
	if err := yaml.UnmarshalWithOptions([]byte(text), fresh.Interface(), yaml.Strict()); err != nil {
		if s.value.Type() == reflect.TypeFor[time.Duration]() {
			return fmt.Errorf("%s (%s): %q is not a duration such as 110ms or 2s", s.key, origin, text)
		}
		return fmt.Errorf("%s (%s): %q is not a %s", s.key, origin, text, s.value.Type().Kind())
	}
	s.value.Set(fresh.Elem())
	s.origin = origin
	return nil
}

func unknownKey(key string, all []*setting) error {
	var keys []string
	for _, s := range all {
		keys = append(keys, s.key)
	}
	if near := nearest(key, keys); near != "" {
		return fmt.Errorf("%s: no such setting (did you mean %q?)", key, near)
	}
	return fmt.Errorf("%s: no such setting", key)
}

// nearest returns the candidate whose spelling comes nearest to key, or nothing if none is close.
func nearest(key string, candidates []string) string {
	if near := hardware.Nearest(key, candidates, 1); len(near) > 0 {
		return near[0]
	}
	return ""
}

// environment is what the command reads from the process's environment, so that tests can hand in another.
type environment struct {
	lookup     func(string) (string, bool)
	names      func() []string // of all variables, in order; nil: none is known
	root       bool
	terminated func() bool // the end was asked for by SIGTERM, not from a keyboard; nil: no
}

func (e environment) get(name string) string {
	v, _ := e.lookup(name)
	return v
}

// stateDir is /var/lib/tpotscope for root, else the user's state directory; empty if there is none.
func (e environment) stateDir() string {
	if e.root {
		return "/var/lib/tpotscope"
	}
	// A relative one is to be ignored (XDG Base Directory Specification).
	if dir := e.get("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tpotscope")
	}
	if home := e.get("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "tpotscope")
	}
	return ""
}

// socket is below /run for root, else below the user's runtime directory.
func (e environment) socket() string {
	if e.root {
		return "/run/tpotscope/agent.sock"
	}
	if dir := e.get("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tpotscope", "agent.sock")
	}
	if dir := e.stateDir(); dir != "" {
		return filepath.Join(dir, "agent.sock")
	}
	return ""
}

// configVariable names the file to read.
const configVariable = variablePrefix + "CONFIG"

// defaultConfigFile is read when no file is named and it exists.
const defaultConfigFile = "/etc/tpotscope/config.yaml"

// configFile returns the file to read: the named one, else that of the environment, else the default one if there is
// one.
func (e environment) configFile(named string) string {
	if named == "" {
		named = e.get(configVariable)
	}
	if named != "" {
		return named
	}
	if _, err := os.Stat(defaultConfigFile); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return defaultConfigFile
}

// text returns the value as YAML on one line. Values of headers are secrets and are not shown.
func (s *setting) text() string {
	if strings.HasSuffix(s.key, "headers") {
		if s.value.Len() == 0 {
			return "{}"
		}
		return fmt.Sprintf("{%d headers, values not shown}", s.value.Len())
	}
	b, err := yaml.MarshalWithOptions(s.value.Interface(), yaml.Flow(true))
	if err != nil {
		return fmt.Sprint(s.value.Interface())
	}
	return strings.TrimSpace(string(b))
}

// configSchema names the JSON form of what config says.
const configSchema = "tpotscope.config/1"

// configJSON is what config says, for programs.
type configJSON struct {
	Schema   string        `json:"schema"`
	File     string        `json:"file,omitempty"` // empty: none was read
	Faults   []string      `json:"faults"`
	Warnings []string      `json:"warnings"`
	Settings []settingJSON `json:"settings,omitempty"`
}

type settingJSON struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // as in a file
	Origin string `json:"origin"`
}

// readSettings reads the configuration for config, which says what is wrong with it itself.
func (a *app) readSettings() ([]*setting, *configJSON, error) {
	flags, err := a.overrides()
	if err != nil {
		return nil, nil, err
	}
	said := &configJSON{Schema: configSchema, File: a.env.configFile(a.config), Faults: []string{}, Warnings: []string{}}
	cfg, all, err := loadConfig(a.env, said.File, flags)
	for _, e := range leaves(err) {
		said.Faults = append(said.Faults, e.Error())
	}
	if _, warnings, werr := cfg.OTLP.WithVariables(a.env.get); werr == nil {
		said.Warnings = append(said.Warnings, warnings...)
	}
	if err := cfg.CheckStateDir(); err != nil {
		said.Warnings = append(said.Warnings, err.Error())
	}
	if err != nil {
		err = &exitStatus{exitUsage, fmt.Errorf("configuration: %w", err)}
	}
	return all, said, err
}

// checkConfig says whether the configuration is one, and which was checked.
func (a *app) checkConfig(asJSON bool) error {
	_, said, err := a.readSettings()
	if said == nil {
		return err
	}
	if asJSON {
		if werr := a.writeJSON(said); werr != nil {
			return werr
		}
		if err != nil {
			err = &exitStatus{code: exitUsage} // the faults are in what is printed
		}
		return err
	}
	for _, w := range said.Warnings {
		a.say("warning: %s\n", w)
	}
	if err != nil {
		return err
	}
	checked := said.File
	if checked == "" {
		checked = "the defaults, for there is no " + defaultConfigFile
	}
	_, err = fmt.Fprintf(a.out, "configuration is fine: %s\n", checked)
	return err
}

// printConfig prints every value and where it came from.
func (a *app) printConfig(asJSON bool) error {
	all, said, err := a.readSettings()
	switch {
	case err != nil:
		return err
	case !asJSON:
		return printSettings(a.out, all)
	}
	for _, s := range all {
		said.Settings = append(said.Settings, settingJSON{s.key, s.text(), s.origin})
	}
	return a.writeJSON(said)
}

func (a *app) writeJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
