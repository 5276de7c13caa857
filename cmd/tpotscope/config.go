package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/tpotscope/tpotscope/agent"
)

// setting is one value of the configuration by its dotted key.
type setting struct {
	key    string
	value  reflect.Value
	origin string // "default", "file PATH", "env NAME" or "flag"
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
	return "TPOTSCOPE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// loadConfig puts a configuration together: flags over environment over file over defaults. Flags are dotted keys.
func loadConfig(env environment, file string, flags map[string]string) (agent.Config, []*setting, error) {
	cfg := agent.DefaultConfig()
	cfg.StateDir, cfg.Socket = env.stateDir(), env.socket()
	cfg.Version = version
	all := settings(&cfg)
	if file != "" {
		if err := readConfigFile(&cfg, all, file); err != nil {
			return cfg, all, err
		}
	}
	var errs []error
	for _, s := range all {
		if text, ok := env.lookup(envName(s.key)); ok {
			errs = append(errs, s.set(text, "env "+envName(s.key)))
		}
		if text, ok := flags[s.key]; ok {
			errs = append(errs, s.set(text, "flag"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		if !slices.ContainsFunc(all, func(s *setting) bool { return s.key == key }) {
			errs = append(errs, unknownKey(key, all))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cfg, all, err
	}
	return cfg, all, cfg.Validate()
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

// readConfigFile reads a file over what cfg holds. What the file leaves open or empty stays as it is.
func readConfigFile(cfg *agent.Config, all []*setting, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	if err := checkDurations(text, all); err != nil {
		return fmt.Errorf("read config %s: %w", file, err)
	}
	var there map[string]any
	if err := yaml.Unmarshal(text, &there); err != nil {
		return fmt.Errorf("read config %s: %w", file, explainYAML(err, all))
	}
	before := make([]any, len(all))
	for i, s := range all {
		before[i] = s.value.Interface()
	}
	if err := yaml.UnmarshalWithOptions(text, cfg, yaml.Strict(), yaml.DisallowUnknownField()); err != nil {
		return fmt.Errorf("read config %s: %w", file, explainYAML(err, all))
	}
	for i, s := range all {
		if present(there, strings.Split(s.key, ".")) {
			s.origin = "file " + file
		} else {
			s.value.Set(reflect.ValueOf(before[i]))
		}
	}
	return nil
}

// present reports whether a file gives the key a value.
func present(m map[string]any, path []string) bool {
	v := m[path[0]]
	if len(path) == 1 {
		return v != nil
	}
	below, ok := v.(map[string]any)
	return ok && present(below, path[1:])
}

// checkDurations names every duration of a file that is none, with its place. A file that is no YAML passes: who decodes
// it says so.
func checkDurations(text []byte, all []*setting) error {
	var errs []error
	for _, s := range all {
		if s.value.Type() != reflect.TypeFor[time.Duration]() {
			continue
		}
		path, err := yaml.PathString("$." + s.key)
		if err != nil {
			return fmt.Errorf("find %s: %w", s.key, err)
		}
		node, err := path.ReadNode(bytes.NewReader(text))
		if err != nil || node == nil || node.Type() == ast.NullType {
			continue
		}
		if _, err := time.ParseDuration(node.GetToken().Value); err != nil {
			at := node.GetToken().Position
			errs = append(errs, fmt.Errorf("[%d:%d] %s: %q is not a duration such as 110ms or 2s", at.Line, at.Column, s.key, node.String()))
		}
	}
	return errors.Join(errs...)
}

var (
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
	wrongType    = regexp.MustCompile(`cannot unmarshal (\S+) into Go (?:struct field|value) (?:\S+ )?of type (\S+)`)
)

// explainYAML says a decoder's complaint in words of the file, and adds the nearest key to one about an unknown key. The
// position is in it already.
func explainYAML(err error, all []*setting) error {
	text := strings.TrimRight(yaml.FormatError(err, false, true), "\n ")
	text = wrongType.ReplaceAllString(text, "$1 where $2 is wanted")
	if m := unknownField.FindStringSubmatch(text); m != nil {
		if near := nearest(m[1], leafNames(all)); near != "" {
			return fmt.Errorf("%s\n(did you mean %q?)", text, near)
		}
	}
	return errors.New(text)
}

func leafNames(all []*setting) []string {
	var names []string
	for _, s := range all {
		names = append(names, strings.Split(s.key, ".")...)
	}
	names = append(names, "name", "engine_url", "gpus", "model", "dtype", "kv_dtype", "tp")
	slices.Sort(names)
	return slices.Compact(names)
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

// nearest returns the candidate within a third of key's length in edits, or nothing.
func nearest(key string, candidates []string) string {
	best, least := "", max(2, len(key)/3)+1
	for _, c := range candidates {
		if d := edits(key, c); d < least {
			best, least = c, d
		}
	}
	return best
}

// edits returns the Levenshtein distance of a and b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// environment is what the command reads from the process's environment, so that tests can hand in another.
type environment struct {
	lookup     func(string) (string, bool)
	root       bool
	terminated func() bool // the end was asked for by SIGTERM, not from a keyboard; nil: no
}

func (e environment) get(name string) string {
	v, _ := e.lookup(name)
	return v
}

// stateDir is /var/lib/tpotscope for root, else the user's state directory.
func (e environment) stateDir() string {
	if e.root {
		return "/var/lib/tpotscope"
	}
	if dir := e.get("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "tpotscope")
	}
	return filepath.Join(e.get("HOME"), ".local", "state", "tpotscope")
}

// socket is below /run for root, else below the user's runtime directory.
func (e environment) socket() string {
	if e.root {
		return "/run/tpotscope/agent.sock"
	}
	if dir := e.get("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "tpotscope", "agent.sock")
	}
	return filepath.Join(e.stateDir(), "agent.sock")
}

// defaultConfigFile is read when no file is named and it exists.
const defaultConfigFile = "/etc/tpotscope/config.yaml"

// configFile returns the file to read: the named one, else that of the environment, else the default one if there is
// one.
func (e environment) configFile(named string) string {
	if named == "" {
		named = e.get("TPOTSCOPE_CONFIG")
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
